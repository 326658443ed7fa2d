"""Turn a Hydra configuration and its defaults list into the options it composes to, by dotted path.

Followed are the forms that verl's own files and those of projects around it have: `group@package: name`, `name`,
`_self_`, `${choice}_name`, and groups chosen on the command line (`model_engine=megatron`, `engine=veomni`). Files are
looked for in the folders given, in order, inside the checkout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from ridgeline.core.errors import InputError
from ridgeline.core.files import parse_table
from ridgeline.targets.option_reader import flatten
from ridgeline.targets.run_files import Around

DEEPEST = 8  # defaults lists inside each other
HERE = PurePosixPath()
ENTRY = re.compile(r"(?:optional\s+)?([\w./-]{1,120})(?:@([\w.]{1,120}))?")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a table stands: its folder below the roots, the package it fills, the choices made outside of it."""

    folder: PurePosixPath = HERE
    package: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    depth: int = 0

    def chosen(self, entries: list[Any]) -> dict[str, str]:
        """Names of groups: those of the list, above them those of `override`, of tables outside, of the caller."""
        pairs = [(str(key), str(value)) for entry in entries if isinstance(entry, dict) for key, value in entry.items()]
        plain = {key.removeprefix("optional "): value for key, value in pairs if not key.startswith("override ")}
        forced = {key.removeprefix("override "): value for key, value in pairs if key.startswith("override ")}
        return plain | forced | dict(self.choices)


@dataclass(slots=True, kw_only=True)
class Composer:
    """Where configurations are looked for, and the choices that groups were given by the caller.

    asked  names of the files that were looked for
    """

    around: Around
    folders: tuple[Path, ...]
    choices: Mapping[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def options(self, name: str) -> dict[str, Any] | None:
        """What a configuration says with all that it builds on; None where it is not here."""
        data = self._read(name)
        return None if data is None else self.composed(data, PurePosixPath(name).parent)

    def composed(self, data: Mapping[str, Any], folder: PurePosixPath = HERE) -> dict[str, Any]:
        """A table's options above or below those of its defaults list, as the list says; what is missing left out."""
        made = self._inside(data, _Place(folder=folder, choices=self.choices))
        return {key: value for key, value in made.items() if value != "???"}

    def _inside(self, data: Mapping[str, Any], place: _Place) -> dict[str, Any]:
        listed = data.get("defaults")
        own = {
            _at(place.package, key): value
            for key, value in flatten(data)
            if not key.startswith("hydra.") and key.partition(".")[0] != "defaults"
        }
        entries = list(listed) if isinstance(listed, list) and place.depth < DEEPEST else []
        if "_self_" not in entries:  # Hydra reads the table first
            entries.insert(0, "_self_")
        chosen = place.chosen(entries)
        made: dict[str, Any] = {}
        for entry in entries:
            if entry == "_self_":
                made |= own
                continue
            for name, package in _entries(entry, place, chosen):
                inner = self._read(name)
                if inner is not None:
                    at = _Place(PurePosixPath(name).parent, package, chosen, place.depth + 1)
                    made |= self._inside(inner, at)
        return made

    def _read(self, name: str) -> dict[str, Any] | None:
        """A table by its name below the folders; a name that leaves them is not read."""
        path = PurePosixPath(name.removesuffix(".yaml"))
        parts: list[str] = []
        for part in path.parts:
            parts = parts[:-1] if part == ".." else [*parts, part] if part not in ("/", ".") else parts
        self.asked.append("/".join(parts))
        for folder in self.folders:
            text = self.around.text(folder.joinpath(*parts).with_name(f"{parts[-1]}.yaml")) if parts else None
            if text is not None:
                return _parsed(f"{parts[-1]}.yaml", text)
        return None


@lru_cache(maxsize=64)
def _parsed(name: str, text: str) -> dict[str, Any] | None:
    """A table parsed once, for many scripts start from it; nobody changes what it holds."""
    try:
        return parse_table(Path(name), text).data
    except InputError:
        return None


def _entries(entry: Any, place: _Place, chosen: Mapping[str, str]) -> Iterator[tuple[str, str]]:
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
        name = next(
            (chosen[word] for word in (usual, str(key).removeprefix("optional ")) if word in chosen), str(value)
        )
        name = re.sub(r"\$\{(\w+)\}", lambda word: chosen.get(word.group(1), ""), name)
        inside = (
            package if package is not None else ".".join(part for part in PurePosixPath(group).parts if part != "..")
        )
        yield str(at / name), _at(place.package, inside)


def _at(package: str, name: str) -> str:
    return f"{package}.{name}" if package and name else package or name
