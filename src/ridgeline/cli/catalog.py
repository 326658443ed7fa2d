"""Turn `ridgeline show`, `check` and `schema` into calls of the library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.capture import named_model
from ridgeline.cli.terminal import Json, ScenarioFile, Settings, console, count, print_json


def register(app: typer.Typer) -> None:
    """Give the command line the verbs of this module."""
    app.command()(show)
    app.command()(check)
    app.command()(schema)


def _completions(prefix: str) -> list[str]:
    """Names that `show` takes and that begin so, for the shell's completion."""
    from ridgeline.report.show import known_names

    return [name for name in known_names() if name.startswith(prefix)]


def show(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="WHAT",
            autocompletion=_completions,
            help="chips, systems, models, engines, schedules, dtypes; or ids, system names (64xh100-sxm), files.",
        ),
    ],
    json: Json = False,
    seq: Annotated[
        int,
        typer.Option(metavar="N", parser=count, help="Models: sequence length for flops and cache, 8192 or 8k."),
    ] = 8192,
    batch: Annotated[int, typer.Option(help="Models: sequences of a decode step.")] = 1,
    dtype: Annotated[str, typer.Option(help="Models: format of weights and cache.")] = "bf16",
    stages: Annotated[int, typer.Option(help="Schedules: pipeline stages.")] = 4,
    microbatches: Annotated[int, typer.Option(help="Schedules: microbatches.")] = 8,
    chunks: Annotated[int | None, typer.Option(help="Schedules: chunks per stage; its own number if left out.")] = None,
    sources: Annotated[bool, typer.Option("--sources", help="Chips: sources and dissent of each number.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help='Set one key, e.g. chip.hbm.bandwidth="8 TB/s"; may be repeated.'
        ),
    ] = None,
) -> None:
    """Show what the catalogs know: chips and models side by side, systems, engines, schedules, files."""
    from ridgeline.report import show as library
    from ridgeline.report.catalog_sheets import Detail

    detail = Detail(seq=seq, batch=batch, stages=stages, microbatches=microbatches, chunks=chunks, dtype=dtype)
    sheets = library.show(*map(named_model, names), detail=detail, settings=tuple(settings or ()))
    if json:
        print_json(sheets)
        return
    from ridgeline.report.catalog_tables import draw
    from ridgeline.report.catalog_tables import sources as draw_sources

    screen = console()
    draw(sheets, screen)
    chips = [sheet for sheet in sheets if sheet["kind"] == "chip"]
    if sources and chips:
        from ridgeline.hardware.load import sources as known

        screen.print(draw_sources(chips, known()))


def check(
    scenario: ScenarioFile,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Check a scenario file: print it as understood, or every reason why it cannot run (exit code 2)."""
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.report.catalog_sheets import scenario_sheet

    sheet = scenario_sheet(read_scenario(scenario, settings or ()))
    if json:
        print_json({"possible": True, "problems": [], "scenario": sheet})
        return
    from ridgeline.report.catalog_tables import draw

    draw([sheet], console())


def schema(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to this file instead of printing.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The schema is JSON with or without this.")] = False,  # noqa: ARG001
) -> None:
    """Print the JSON schema of scenario files, for editors that complete and check them."""
    import json as codec

    from ridgeline.core.files import write_text
    from ridgeline.plan.scenario_file import schema as library

    if output is None:
        print_json(library())
    else:
        write_text(output, codec.dumps(library(), indent=2) + "\n")
