"""What all verbs share: the options that mean the same everywhere, and the way answers reach the terminal."""

from __future__ import annotations

import json as codec
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

PIPED = 160  # columns where no terminal says how wide it is

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one key of the scenario, e.g. plan.tp=4; may be repeated."),
]
ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO", help="A scenario file in TOML, JSON or YAML.")]


def console() -> Console:
    """The terminal at its own width; a pipe or a file gets no colours and a fixed width."""
    from rich.console import Console

    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=PIPED)


def stderr_console() -> Console:
    """The terminal behind standard error, for what is shown while something takes its time."""
    from rich.console import Console

    return Console(stderr=True)


def print_json(value: Any) -> None:
    """The answer for programs; a number that is none would be a mistake of ours."""
    typer.echo(codec.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
