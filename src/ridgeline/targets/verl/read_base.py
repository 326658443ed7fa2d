"""Turn the configuration that a launch script of verl starts from into the options below its own.

A program of Hydra's has a configuration by name: the script says it (`--config-name`), or the program does. Where that
stands in the script's checkout it is composed, so that defaults are those of the version beside the script; elsewhere
the readers' own defaults hold, which are those of the recorded version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ridgeline.core.errors import InputError
from ridgeline.core.files import parse_table
from ridgeline.targets.option_reader import flatten, starts_script
from ridgeline.targets.run_files import HIGHEST, Around, around
from ridgeline.targets.shell_eval import read_script
from ridgeline.targets.target import Files
from ridgeline.targets.verl.read_defaults import Composer

SCRIPTS = (".sh", ".sbatch", ".slurm")
OWN = ("verl/trainer/config", "verl/verl/trainer/config")  # where verl keeps its configurations
ENGINES = ("megatron", "veomni", "torchtitan", "automodel", "mlite")
WORD = re.compile(r"([A-Za-z_][\w@/]*)=([\w.-]{1,80})")  # a group that is chosen, not an option
# configurations that verl's programs name themselves
USUAL = {"fsdp_sft_trainer": "sft_trainer"} | dict.fromkeys(("sft_trainer", "sft_trainer_ray"), "sft_trainer_engine")
UPDATE = re.compile(r"\+{0,2}(actor_rollout_ref|data|model|trainer)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The configuration below a run's own options.

    engine   who runs the actor, by the names of what was chosen; empty for verl's usual one (FSDP)
    options  what it holds by dotted path, where it stands in the checkout
    quiet    options of verl's own files, which nobody wrote for this run
    """

    engine: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    quiet: frozenset[str] = frozenset()

    @property
    def megatron(self) -> bool:
        """Whether Megatron is the actor's engine."""
        return self.engine == "megatron"


def base_of(files: Files) -> Base:
    """The configuration of the command that trains; of a YAML file, those that it builds on."""
    for name, text in files.items():
        if name.endswith((".yaml", ".yml")) and "actor_rollout_ref" in text:
            return _of_table(files, name, text)
    for name, text in files.items():
        if name.endswith(SCRIPTS):
            for command in sorted(read_script(text, around(files)).commands, key=starts_script):
                if any(UPDATE.match(word) for word in command[1:]):
                    return _of_command(files, command)
    return Base()


def _of_table(files: Files, name: str, text: str) -> Base:
    try:
        data = parse_table(Path(name), text).data
    except InputError:
        return Base()
    place = around(files)
    folders = (*((place.folder,) if place.folder else ()), *_places(place, OWN, whole=True))
    composer = Composer(around=place, folders=folders)
    options = composer.composed(data)
    own = {key for key, _ in flatten(data)}
    listed = re.search(r"^defaults:[ \t]*\n((?:[ \t]*(?:-.*|#.*)?\n)+)", text, re.MULTILINE)
    return Base(
        engine=_engine(listed.group(1) if listed else ""),
        options={key: value for key, value in options.items() if key not in own},
        quiet=frozenset(options) - own,
    )


def _of_command(files: Files, command: list[str]) -> Base:
    said, place = _options(command), around(files)
    module = _program(command)
    name = said.get("config-name") or _name_in(place, module) or "ppo_trainer"
    chosen = {pair.group(1): pair.group(2) for word in command[1:] if (pair := WORD.fullmatch(word.lstrip("+")))}
    beside = (f"{PurePosixPath(module).parent}/config", str(PurePosixPath(module).parent))
    verl = tuple(_places(place, OWN, whole=True))
    named = [*_places(place, (said.get("config-path", ""), *beside)), *([place.folder] if place.folder else [])]
    theirs = tuple(folder for folder in named if folder not in verl)
    composer = Composer(around=place, folders=(*theirs, *verl), choices=chosen)
    options = composer.options(name) or {}
    own = Composer(around=place, folders=theirs, choices=chosen).options(name) or {}
    words = [name, *(f"{key}={value}" for key, value in chosen.items() if "engine" in key or "actor" in key)]
    engines = " ".join([*words, *(part for part in composer.asked if part.startswith(("ppo_", "actor/")))])
    return Base(engine=_engine(engines), options=options, quiet=frozenset(options) - frozenset(own))


def _engine(words: str) -> str:
    """The engine that names of configurations speak of."""
    return next((engine for engine in ENGINES if engine in words.lower()), "")


def _places(place: Around, names: tuple[str, ...], *, whole: bool = False) -> Iterator[Path]:
    """Folders of the checkout by their name, or by the end of it: below the file's folder and those above it."""
    if place.folder is None or place.top is None:
        return
    above = [one for one in (place.folder, *place.folder.parents) if one.is_relative_to(place.top)][:HIGHEST]
    for name in names:
        parts = [part for part in re.split(r"[/\\]+", name[:300]) if part not in ("", ".", "..") and "$" not in part]
        for start in range(1 if whole and parts else len(parts)):
            for folder in above:
                found = folder.joinpath(*parts[start:])
                if found.is_dir():
                    yield found


def _program(command: list[str]) -> str:
    """The program's path below the checkout: of `-m a.b.c` or `a/b/c.py`, without its suffix."""
    for at, word in enumerate(command[:-1]):
        if word == "-m":
            return command[at + 1].replace(".", "/")
    return next((word.removesuffix(".py") for word in command[1:] if word.endswith(".py")), "")


def _name_in(place: Around, module: str) -> str:
    """The configuration that a program of the checkout names itself, or that verl's programs do."""
    text = place.named(f"{module}.py") if module else None
    said = re.search(r"hydra\.main\([^)]{0,200}config_name\s*=\s*[\"']([\w/.-]{1,80})[\"']", text) if text else None
    if said:
        return said.group(1)
    last = module.rpartition("/")[2]
    usual = {
        "fsdp_sft_trainer": "sft_trainer",
        "sft_trainer": "sft_trainer_engine",
        "sft_trainer_ray": "sft_trainer_engine",
    }
    return usual.get(last, "")


def _options(command: list[str]) -> dict[str, str]:
    """Hydra's own options of a command."""
    found: dict[str, str] = {}
    for at, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in ("--config-name", "--config-path"):
            found[name[2:]] = (value if equals else "".join(command[at + 1 : at + 2])).strip("\"'")
    return found
