"""Turn `ridgeline predict` and `ridgeline timeline` into calls of the library.

0  done        2  the scenario cannot run, or the input cannot be used
"""

from __future__ import annotations

import json as codec
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a page for people.")]
File = Annotated[Path, typer.Argument(metavar="SCENARIO", help="A scenario file in TOML, JSON or YAML.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one key of the scenario, e.g. plan.tp=4; may be repeated."),
]


def register(app: typer.Typer) -> None:
    """Give the command line the verbs of this module."""
    app.command()(predict)
    app.command()(timeline)


def predict(
    scenario: File,
    settings: Settings = None,
    json: Json = False,
    full_attention: Annotated[
        bool, typer.Option("--full-attention", help="Count causal attention over all pairs in MFU, not at half.")
    ] = False,
) -> None:
    """Predict one training step: how long, where the time goes, what limits it, whether it fits, how sure that is."""
    from ridgeline.core.errors import InputError
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.report.predict import draw_prediction, impossible_sheet, prediction_sheet, refusal
    from ridgeline.sim.predict import predict as library
    from ridgeline.sim.prediction import Impossible

    try:
        built = read_scenario(scenario, settings or ())
    except InputError as wrong:
        if json and wrong.problems:
            _print(refusal(wrong.problems))
            raise typer.Exit(2) from None
        raise
    found = library(built, causal=not full_attention)
    if isinstance(found, Impossible):
        if json:
            _print(impossible_sheet(found))
            raise typer.Exit(2)
        _refuse(found)
    sheet = prediction_sheet(found)
    if json:
        _print(sheet)
        return
    from rich.console import Console

    draw_prediction(sheet, Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=160))


def timeline(
    scenario: File,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Trace file to write.")],
    settings: Settings = None,
) -> None:
    """Write the predicted step as a trace that Perfetto and chrome://tracing open, a process per pipeline stage."""
    from ridgeline.core.units import format_quantity
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.sim.events import timeline as library
    from ridgeline.sim.prediction import Impossible
    from ridgeline.trace import write_chrome

    found = library(read_scenario(scenario, settings or ()))
    if isinstance(found, Impossible):
        _refuse(found)
    write_chrome(found, output)
    where = f"{len(found):,} spans of {len(found.processes)} stage(s), {format_quantity(found.span_s, 's')}"
    typer.echo(f"{output}: {where}; open it at https://ui.perfetto.dev or chrome://tracing")


def _refuse(found: Any) -> NoReturn:
    """Leave by the way of bad input, which prints every reason and exits with 2."""
    from ridgeline.core.errors import InputError

    raise InputError(list(found.reasons))


def _print(value: Any) -> None:
    typer.echo(codec.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
