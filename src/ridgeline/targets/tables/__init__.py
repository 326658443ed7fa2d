"""Turn a dialect's file of words into tables: what it calls things, what it leaves out, what its names stand for.

`DIALECT.toml` holds one table or list for each constant; texts of scripts lie beside it as they are written.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ridgeline.core.documents import JsonMapping, JsonObject

FOLDER = Path(__file__).parent


@cache
def tables(dialect: str) -> JsonMapping:
    """Every table of a dialect, as its file nests them."""
    return MappingProxyType(tomllib.loads((FOLDER / f"{dialect}.toml").read_text(encoding="utf-8")))


def words(dialect: str, name: str) -> dict[str, str]:
    """A table of one word for each.

    >>> words("torchtitan", "schedules")["1f1b"]
    '1F1B'
    """
    return {key: str(value) for key, value in tables(dialect)[name].items()}


def sizes(dialect: str, name: str) -> dict[str, int]:
    """A table of whole numbers."""
    return {key: int(value) for key, value in tables(dialect)[name].items()}


def word_lists(dialect: str, name: str) -> dict[str, tuple[str, ...]]:
    """A table of several words for each."""
    return {key: tuple(map(str, value)) for key, value in tables(dialect)[name].items()}


def names(dialect: str, name: str) -> tuple[str, ...]:
    """A list of words."""
    return tuple(map(str, tables(dialect)[name]))


def values(dialect: str, name: str) -> JsonObject:
    """A table of values of any kind."""
    return dict(tables(dialect)[name])


def word_pairs(dialect: str, name: str) -> dict[tuple[str, str], str]:
    """A table of words by two keys: of a family, and in it."""
    return {(first, second): str(value) for (first, second), value in value_pairs(dialect, name).items()}


def value_pairs(dialect: str, name: str) -> dict[tuple[str, str], Any]:
    """A table of values by two keys: of a family, and in it."""
    return {(first, key): value for first, inner in tables(dialect)[name].items() for key, value in inner.items()}


def template(file: str) -> str:
    """A text of this folder, as it is written."""
    return (FOLDER / file).read_text(encoding="utf-8")
