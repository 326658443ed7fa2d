"""Which results each verb prints with `--json`, their JSON schema, and the terminal page of each: `results.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from rich.console import Console

    from ridgeline.core.schema import Schema

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RESULTS: Mapping[str, Sequence[str]] = MappingProxyType(_TABLES["results"])
"""The classes of a verb's results. Where there are several they differ in `kind` or `possible`."""
PAGES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        name: (f"ridgeline.report.{module}", function)
        for module, functions in _TABLES["pages"].items()
        for name, function in functions.items()
    }
)
"""Class of a result -> the module and function that draw its terminal page."""


def draw(result: object, console: Console) -> None:
    """Print the page of a result, whatever it is."""
    module, function = PAGES[type(result).__name__]
    getattr(import_module(module), function)(result, console)


def results_of(verb: str) -> tuple[type, ...]:
    """The classes of what a verb prints; imported only here, since some rooms are wide."""
    names = (f"ridgeline.{path}".rpartition(".") for path in RESULTS.get(verb, ()))
    return tuple(cast(type, getattr(import_module(module), name)) for module, _, name in names)


def verb_schema(verb: str) -> Schema:
    """The JSON schema of what a verb prints with `--json`; records inside are definitions of their own.

    >>> verb_schema("query")["$defs"]["QueryAnswer"]["required"]
    ['kind', 'sql', 'columns', 'rows', 'truncated', 'warnings']
    """
    from ridgeline.core.schema import result_schema

    return result_schema(verb, results_of(verb))
