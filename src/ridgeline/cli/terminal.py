"""What all verbs share: the options that mean the same everywhere, and the way answers reach the terminal."""

from __future__ import annotations

import json as codec
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer

from ridgeline.cli.streams import Trimmed, is_unicode, say

if TYPE_CHECKING:
    from rich.console import Console

PIPED = 160  # columns where neither a terminal nor COLUMNS says how wide it is
NARROWEST, WIDEST = 20, 10_000  # columns that COLUMNS may say

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one key of the scenario, e.g. plan.tp=4; may be repeated."),
]


def count(text: str | int) -> int:
    """A number of tokens or sequences as an option: 8192, 128k, 1M; a default is a number already."""
    from ridgeline.core.errors import UnitError
    from ridgeline.core.units import parse_count

    try:
        return parse_count(str(text))
    except UnitError as wrong:
        raise typer.BadParameter(str(wrong)) from None


Seq = Annotated[
    int | None, typer.Option(metavar="N", parser=count, help="Tokens of a sequence, 8192 unless given; 128k is 131072.")
]
GlobalBatch = Annotated[
    int | None, typer.Option(metavar="N", parser=count, help="Sequences of a step; 1024 unless given.")
]
CalibrationFile = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="FILE.json", help="Parameters that `ridgeline fit --with` wrote."),
]
Anchor = Annotated[
    list[str] | None,
    typer.Option(
        "--anchor",
        metavar="RUN",
        help="A run of yours to correct by: CSV of `explain -o`, CSV of runs, scenario with [measured], "
        "TRACE@SCENARIO; may be repeated.",
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="FILE|none",
        help="Measured kernels that price ops: a file of `characterize`, aiconfigurator:CHIP, or none; "
        "else what ships for the chip.",
    ),
]
ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO", help="A scenario file in TOML, JSON or YAML.")]


def console() -> Console:
    """The terminal at its own width; a pipe or a file gets no colours, no trailing blanks and a fixed width."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=_columns(), file=cast(TextIO, Trimmed(sys.stdout)))


def _columns() -> int:
    """What COLUMNS says, where it is a width."""
    told = os.environ.get("COLUMNS", "")
    return max(NARROWEST, min(int(told), WIDEST)) if told.isascii() and told.isdigit() and int(told) else PIPED


def stderr_console() -> Console:
    """The terminal behind standard error, for what is shown while something takes its time."""
    from rich.console import Console

    return Console(stderr=True)


def print_json(value: Any) -> None:
    """Print a result, or a table of JSON, for programs; NaN would be our mistake. An ASCII terminal gets escapes."""
    from ridgeline.core.encode import to_json

    escaped = not is_unicode(sys.stdout)
    say(codec.dumps(to_json(value), indent=2, ensure_ascii=escaped, allow_nan=False))
