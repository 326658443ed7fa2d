"""Turn two tables into one: the second laid over the first, key by key, so that a file says only what differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem

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
