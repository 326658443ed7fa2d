"""Turn a Hydra configuration and its defaults list into the options it composes to, by dotted path.

Followed are the forms that verl's own files and those of projects around it have: `group@package: name`, `name`,
`_self_`, `${choice}_name`, and groups chosen on the command line (`model_engine=megatron`, `engine=veomni`). Files are
looked for in the folders given, in order, inside the checkout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.targets.imports.option_reader import flatten, split_options, starts_script, table_of
from ridgeline.targets.imports.run_files import HIGHEST, Checkout, checkout_of
from ridgeline.targets.imports.shell_eval import scripts_among
from ridgeline.targets.target import Files

DEEPEST = 8  # defaults lists inside each other
HERE = PurePosixPath()
ENTRY = re.compile(r"(?:optional\s+)?([\w./-]{1,120})(?:@([\w.]{1,120}))?")
OWN = ("verl/trainer/config", "verl/verl/trainer/config")  # where verl keeps its configurations
ENGINES = ("megatron", "veomni", "torchtitan", "automodel", "mlite")
WORD = re.compile(r"([A-Za-z_][\w@/]*)=([\w.-]{1,80})")  # a group that is chosen, not an option
# configurations that verl's programs name themselves
USUAL = {"fsdp_sft_trainer": "sft_trainer"} | dict.fromkeys(("sft_trainer", "sft_trainer_ray"), "sft_trainer_engine")
UPDATE = re.compile(r"\+{0,2}(actor_rollout_ref|data|model|trainer)\.")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a table stands: its folder below the roots, the package it fills, the choices made outside of it."""

    folder: PurePosixPath = HERE
    package: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    depth: int = 0

    def chosen(self, entries: list[object]) -> dict[str, str]:
        """Names of groups: those of the list, above them those of `override`, of tables outside, of the caller."""
        pairs = [(str(key), str(value)) for entry in entries if isinstance(entry, dict) for key, value in entry.items()]
        plain = {key.removeprefix("optional "): value for key, value in pairs if not key.startswith("override ")}
        forced_values = {key.removeprefix("override "): value for key, value in pairs if key.startswith("override ")}
        return plain | forced_values | dict(self.choices)


@dataclass(slots=True, kw_only=True)
class Composer:
    """Where configurations are looked for, and the choices that groups were given by the caller.

    asked  names of the files that were looked for
    """

    checkout: Checkout
    folders: tuple[Path, ...]
    choices: Mapping[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def options(self, name: str) -> JsonObject | None:
        """What a configuration says with all that it builds on; None where it is not here."""
        data = self._read(name)
        return None if data is None else self.compose(data, PurePosixPath(name).parent)

    def compose(self, data: JsonMapping, folder: PurePosixPath = HERE) -> JsonObject:
        """A table's options above or below those of its defaults list, as the list says; what is missing left out."""
        composed_table = self._inside(data, _Place(folder=folder, choices=self.choices))
        return {key: value for key, value in composed_table.items() if value != "???"}

    def _inside(self, data: JsonMapping, place: _Place) -> JsonObject:
        listed_values = data.get("defaults")
        own_keys = {
            _at(place.package, key): value
            for key, value in flatten(data)
            if not key.startswith("hydra.") and key.partition(".")[0] != "defaults"
        }
        entries = list(listed_values) if isinstance(listed_values, list) and place.depth < DEEPEST else []
        if "_self_" not in entries:  # Hydra reads the table first
            entries.insert(0, "_self_")
        chosen = place.chosen(entries)
        merged_table: JsonObject = {}
        for entry in entries:
            if entry == "_self_":
                merged_table |= own_keys
                continue
            for name, package in _entries(entry, place, chosen):
                inner = self._read(name)
                if inner is not None:
                    at = _Place(PurePosixPath(name).parent, package, chosen, place.depth + 1)
                    merged_table |= self._inside(inner, at)
        return merged_table

    def _read(self, name: str) -> JsonObject | None:
        """A table by its name below the folders; a name that leaves them is not read."""
        path = PurePosixPath(name.removesuffix(".yaml"))
        parts: list[str] = []
        for part in path.parts:
            parts = parts[:-1] if part == ".." else [*parts, part] if part not in ("/", ".") else parts
        self.asked.append("/".join(parts))
        for folder in self.folders:
            text = self.checkout.text(folder.joinpath(*parts).with_name(f"{parts[-1]}.yaml")) if parts else None
            if text is not None:
                return table_of(f"{parts[-1]}.yaml", text)
        return None


def _entries(entry: object, place: _Place, chosen: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names of files, and the package that each fills, of one entry of a defaults list.

    >>> list(_entries({"actor@a.actor": "${engine}_actor"}, _Place(), {"engine": "dp"}))
    [('actor/dp_actor', 'a.actor')]
    >>> list(_entries("base", _Place(PurePosixPath("actor"), "a.actor"), {}))
    [('actor/base', 'a.actor')]
    """
    pairs = entry.items() if isinstance(entry, dict) else [(entry, None)]
    for key, value in pairs:
        form = ENTRY.fullmatch(str(key))
        if form is None or (isinstance(entry, dict) and value is None):
            continue
        group, package = form.groups()
        at = PurePosixPath(group.lstrip("/")) if group.startswith("/") else place.folder / group
        if value is None:
            yield str(at), _at(place.package, package or "")
            continue
        usual = group if package == group.replace("/", ".") else ""  # `engine=...` chooses for `engine@engine`
        choices = (chosen[word] for word in (usual, str(key).removeprefix("optional ")) if word in chosen)
        name = re.sub(r"\$\{(\w+)\}", lambda word: chosen.get(word.group(1), ""), next(choices, str(value)))
        inside = ".".join(part for part in PurePosixPath(group).parts if part != "..") if package is None else package
        yield str(at / name), _at(place.package, inside)


def _at(package: str, name: str) -> str:
    return f"{package}.{name}" if package and name else package or name


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The configuration below a run's own options.

    engine   who runs the actor, by the names of what was chosen; empty for verl's usual one (FSDP)
    options  what it holds by dotted path, where it stands in the checkout
    quiet    options of verl's own files, which nobody wrote for this run
    """

    engine: str = ""
    options: JsonObject = field(default_factory=dict)
    quiet: frozenset[str] = frozenset()


def base_of(files: Files) -> Base:
    """The configuration of the command that trains; of a YAML file, those that it builds on."""
    for name, text in files.items():
        if name.endswith((".yaml", ".yml")) and "actor_rollout_ref" in text:
            data = table_of(name, text)
            if data is None:
                return Base()
            place = checkout_of(files)
            folders = (*((place.folder,) if place.folder else ()), *_places(place, OWN, whole=True))
            options = Composer(checkout=place, folders=folders).compose(data)
            option_names = {key for key, _ in flatten(data)}
            listed_values = re.search(r"^defaults:[ \t]*\n((?:[ \t]*(?:-.*|#.*)?\n)+)", text, re.MULTILINE)
            engine = _engine(listed_values.group(1) if listed_values else "")
            below = {key: value for key, value in options.items() if key not in option_names}
            return Base(engine=engine, options=below, quiet=frozenset(below))
    for _, script in scripts_among(files):
        for command in sorted(script.commands, key=starts_script):
            if any(UPDATE.match(word) for word in command[1:]):
                return _of_command(files, command)
    return Base()


def _of_command(files: Files, command: list[str]) -> Base:
    stated_options = {name: "".join(values[:1]).strip("\"'") for name, values in split_options(command)}
    place = checkout_of(files)
    module = _program(command)
    name = stated_options.get("config-name") or _name_in(place, module) or "ppo_trainer"
    chosen = {pair.group(1): pair.group(2) for word in command[1:] if (pair := WORD.fullmatch(word.lstrip("+")))}
    config_folders = (f"{PurePosixPath(module).parent}/config", str(PurePosixPath(module).parent))
    verl = tuple(_places(place, OWN, whole=True))
    own_folders = _places(place, (stated_options.get("config-path", ""), *config_folders))
    theirs = tuple(folder for folder in (*own_folders, place.folder) if folder is not None and folder not in verl)
    composer = Composer(checkout=place, folders=(*theirs, *verl), choices=chosen)
    options = composer.options(name) or {}
    is_own = Composer(checkout=place, folders=theirs, choices=chosen).options(name) or {}
    words = [name, *(f"{key}={value}" for key, value in chosen.items() if "engine" in key or "actor" in key)]
    engines = " ".join([*words, *(part for part in composer.asked if part.startswith(("ppo_", "actor/")))])
    return Base(engine=_engine(engines), options=options, quiet=frozenset(options) - frozenset(is_own))


def _engine(words: str) -> str:
    return next((engine for engine in ENGINES if engine in words.lower()), "")


def _places(place: Checkout, names: tuple[str, ...], *, whole: bool = False) -> Iterator[Path]:
    """Folders of the checkout by their name, or by the end of it: below the file's folder and those above it."""
    if place.folder is None or place.top is None:
        return
    above = [folder for folder in (place.folder, *place.folder.parents) if folder.is_relative_to(place.top)][:HIGHEST]
    for name in names:
        parts = [part for part in re.split(r"[/\\]+", name[:300]) if part not in ("", ".", "..") and "$" not in part]
        for start in range(1 if whole and parts else len(parts)):
            for folder in above:
                place_path = folder.joinpath(*parts[start:])
                if place_path.is_dir():
                    yield place_path


def _program(command: list[str]) -> str:
    """The program's path below the checkout: of `-m a.b.c` or `a/b/c.py`, without its suffix."""
    for at, word in enumerate(command[:-1]):
        if word == "-m":
            return command[at + 1].replace(".", "/")
    return next((word.removesuffix(".py") for word in command[1:] if word.endswith(".py")), "")


def _name_in(place: Checkout, module: str) -> str:
    """The configuration that a program of the checkout names itself, or that verl's programs do."""
    text = place.named(f"{module}.py") if module else None
    name = re.search(r"hydra\.main\([^)]{0,200}config_name\s*=\s*[\"']([\w/.-]{1,80})[\"']", text) if text else None
    return name.group(1) if name else USUAL.get(module.rpartition("/")[2], "")
