"""Turn `ridgeline roofline` into calls of the library.

0  done        2  the input cannot be used
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.streams import say
from ridgeline.cli.terminal import CalibrationFile, Json, ProfileOption, console, count, print_json


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(roofline)


def roofline(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A catalog id or a config.json.")],
    on: Annotated[str, typer.Option("--on", metavar="CHIP", help="A chip such as h200-sxm.")],
    phase: Annotated[str, typer.Option(help="train, prefill or decode.")] = "train",
    seq: Annotated[
        int, typer.Option(metavar="N", parser=count, help="Tokens of a sequence; decode: in the cache.")
    ] = 4096,
    batch: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 1,
    engine: Annotated[str, typer.Option(metavar="ID", help="The software whose kernels are meant.")] = "",
    profile: ProfileOption = None,
    calibration: CalibrationFile = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Draw it: .svg, .png or .html.")
    ] = None,
    json: Json = False,
) -> None:
    """Put every op of a model on a chip's roofline: what limits it, how near its roof it is, where the ridges are."""
    from ridgeline.api import roofline as library
    from ridgeline.core.files import refuse_unwritable
    from ridgeline.report.roofline import draw_roofline, write_chart

    if output is not None:
        refuse_unwritable(output)
    found = library(
        model, on, phase=phase, seq=seq, batch=batch, engine=engine, calibration=calibration, profile=profile
    )
    if output is not None:
        write_chart(found, output)
        say(f"{output}: {len(found.ops)} ops", err=True)
    print_json(found) if json else draw_roofline(found, console())
