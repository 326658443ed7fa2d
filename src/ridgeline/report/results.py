"""Which results each verb prints with `--json`, their JSON schema, their pages and pictures: `results.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn, cast

from ridgeline.core.errors import InputError, Problem

if TYPE_CHECKING:
    from rich.console import Console

    from ridgeline.core.schema import Schema

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RESULTS: Mapping[str, Sequence[str]] = MappingProxyType(_TABLES["results"])
"""The classes of a verb's results. Where there are several they differ in `kind` or `possible`."""


def _call(table: str, result: object, *arguments: object) -> object:
    """Call the function of `ridgeline.report` that a table names for the class of a result."""
    name = type(result).__name__
    module, function = next((room, names[name]) for room, names in _TABLES[table].items() if name in names)
    return getattr(import_module(f"ridgeline.report.{module}"), function)(result, *arguments)


def draw(result: object, console: Console) -> None:
    """Print the terminal page of a result, whatever it is."""
    _call("pages", result, console)


def terminal_text(result: object, columns: int = 118) -> str:
    """The terminal page of a result as plain text."""
    import io

    from rich.console import Console

    text = io.StringIO()
    draw(result, Console(file=text, width=columns, color_system=None, highlight=False))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def page(result: object, *about: object) -> str:
    """The HTML page of a result. One without is refused: nothing is written, and the reader learns what to do instead.

    `about` is what its function takes besides: the command line that writes it again, of a validation what was
    validated before that, of requests under load their intervals behind it.
    """
    if not any(type(result).__name__ in names for names in _TABLES["html"].values()):
        refuse_page(result)
    return str(_call("html", result, *about))


def refuse_page(result: object) -> NoReturn:
    """Say that there is no HTML page of this kind of result: what it is, and what to do instead."""
    from ridgeline.core.schema import first_line

    about = first_line(type(result)).rstrip(".")
    todo = "drop --html; --json prints all of it"
    expectation = "a result that has a page"
    raise InputError(Problem(path="--html", given=f"{about[:1].lower()}{about[1:]}", expected=expectation, todo=todo))


def write_picture(result: object, path: Path, command: str = "") -> None:
    """Write the picture of a result: PNG, SVG or a page, by the ending of the file's name."""
    _call("pictures", result, path, command)


def results_of(verb: str) -> tuple[type, ...]:
    """The classes of what a verb prints; imported only here, since some rooms are wide."""
    names = (f"ridgeline.{path}".rpartition(".") for path in RESULTS.get(verb, ()))
    return tuple(cast(type, getattr(import_module(module), name)) for module, _, name in names)


def verb_schema(verb: str) -> Schema:
    """The JSON schema of what a verb prints with `--json`; records inside are definitions of their own.

    >>> verb_schema("query")["$defs"]["QueryAnswer"]["required"]
    ['kind', 'sql', 'columns', 'rows', 'truncated', 'warnings']
    """
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.core.schema import result_schema

    if verb not in RESULTS:
        expectation = f"a verb whose answers have one: {', '.join(sorted(RESULTS))}"
        raise InputError(Problem(path="VERB", given=repr(verb[:80]), expected=expectation))
    return result_schema(verb, results_of(verb))
