"""Turn a folder of TOML files into a read-only mapping that loads an entry when it is first asked for."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem, UnknownId

T = TypeVar("T")


class Catalog(Mapping[str, T], Generic[T]):
    """Entries by id, the file's stem; a file's `aliases` name it too. Unknown ids raise `UnknownId`, which suggests."""

    def __init__(self, kind: str, folder: Path, read: Callable[[str, JsonObject], T]) -> None:
        self.kind, self._folder, self._read = kind, folder, read
        self._loaded: dict[str, T] = {}

    @cached_property
    def _ids(self) -> tuple[str, ...]:
        return tuple(sorted(path.stem for path in self._folder.glob("*.toml")))

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        """Every other name and the id it means, folded by `fold`; a name claimed twice is an error."""
        ids: dict[str, str] = {fold(id): id for id in self._ids}
        for id in self._ids:
            for alias in self.table(id).get("aliases", ()):
                if ids.setdefault(fold(alias), id) != id:
                    raise InputError(f"{self.kind} catalog: {alias!r} names both {ids[fold(alias)]} and {id}")
        return ids

    def table(self, id: str) -> JsonObject:
        """The entry as its file writes it."""
        with open(f"{self._folder}/{id}.toml", encoding="utf-8") as stream:
            return tomllib.loads(stream.read())

    def with_key(self, key: str, value: str = "") -> Iterator[str]:
        """Ids whose file has a line of this key that holds this value, found without decoding every entry."""
        for id in self._ids:
            with open(f"{self._folder}/{id}.toml", encoding="utf-8") as stream:
                if any(line.startswith(key) and value in line for line in stream):
                    yield id

    def resolve(self, name: str) -> str | None:
        """The id that a name or alias means; None when there is none."""
        if name in self._loaded or self._is_id(name):
            return name
        return self.aliases.get(fold(name))

    def _is_id(self, name: str) -> bool:
        plain = name.isascii() and "/" not in name and "\\" not in name and "\0" not in name and len(name) < 128
        return plain and os.path.isfile(f"{self._folder}/{name}.toml")

    def __getitem__(self, name: str) -> T:
        if name in self._loaded:
            return self._loaded[name]
        id = self.resolve(name)
        if id is None:
            raise UnknownId(self.kind, name, self._ids)
        if id not in self._loaded:
            self._loaded[id] = self._read(id, self.table(id))
        return self._loaded[id]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.resolve(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


def fold(name: str) -> str:
    """A name without the differences people write: case, spaces, underscores, the publisher before a slash.

    >>> fold("meta-llama/Llama 3.1_70B")
    'llama3.1-70b'
    """
    import re

    text = name.rsplit("/", 1)[-1].lower()
    text = re.sub(r"[\s_-]+", "-", text.strip())
    return re.sub(r"^([a-z]+)-?v?(?=\d)", r"\1", text)


Nested = JsonMapping  # a table of tables


def overlay(base: Nested, over: Nested, replaces: Callable[[Nested, Nested], bool], path: str = "") -> JsonObject:
    """`base` with the keys of `over` laid upon it: a deep merge.

        table over table            merged key by key, unless `replaces(below, above)`: then the upper one stands alone
        table over a named list     each part merged with what stands under its `name`
        anything else               the upper value

    path   begins the paths of problems

    >>> overlay({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, lambda below, above: False)
    {'a': {'b': 3, 'c': 2}}
    >>> overlay({"tiers": [{"name": "up", "chips": 8}]}, {"tiers": {"up": {"chips": 4}}}, lambda below, above: False)
    {'tiers': [{'name': 'up', 'chips': 4}]}
    """
    merged_table = dict(base)
    for key, value in over.items():
        below = merged_table.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping) and not replaces(below, value):
            merged_table[key] = overlay(below, value, replaces, path)
        elif isinstance(value, Mapping) and isinstance(below, list) and below and all(map(_has_name, below)):
            _refuse_unknown(value, [part["name"] for part in below], f"{path}.{key}" if path else key)
            merged_table[key] = [overlay(part, value.get(part["name"], {}), replaces, path) for part in below]
        else:
            merged_table[key] = value
    return merged_table


def _has_name(part: object) -> bool:
    return isinstance(part, Mapping) and "name" in part


def _refuse_unknown(given: Nested, known: list[str], path: str) -> None:
    """Every part of a named list must be one that it has, and a table."""
    for name, part in given.items():
        if not isinstance(part, Mapping):
            raise InputError(Problem(path=f"{path}.{name}", given=repr(part)[:60], expected="a table"))
        if name not in known:
            expected_text = "one of " + ", ".join(str(part) for part in known)
            raise InputError(Problem(path=f"{path}.{name}", given=repr(name), expected=expected_text))
