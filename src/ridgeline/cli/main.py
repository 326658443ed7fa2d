"""Turn arguments into calls of the library, and what it raises into messages and exit codes.

    0  done        2  the input cannot be used; the message says what was given, expected and what to do

Heavy modules are imported inside the verbs, so that `ridgeline --help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli import calibrate, export, plan, predict, trace
from ridgeline.cli.terminal import Json, ScenarioFile, Settings, console, print_json
from ridgeline.cli.verbs import describe
from ridgeline.version import __version__

app = typer.Typer(
    name="ridgeline",
    help="Where model meets machine: describe, predict and plan the training and serving of foundation models.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"ridgeline {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Where model meets machine: describe, predict and plan the training and serving of foundation models."""


def _completed(begun: str) -> list[str]:
    """Names that `show` takes and that begin so, for the shell's completion."""
    from ridgeline.report.show import known_names

    return [name for name in known_names() if name.startswith(begun)]


@app.command()
def show(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="WHAT",
            autocompletion=_completed,
            help="chips, systems, models, engines, schedules, dtypes; or ids, system names (64xh100-sxm), files.",
        ),
    ],
    json: Json = False,
    seq: Annotated[int, typer.Option(help="Models: sequence length for flops and cache.")] = 8192,
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
    sheets = library.show(*names, detail=detail, settings=tuple(settings or ()))
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


@app.command()
def check(
    scenario: ScenarioFile,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Check a scenario file: print it as understood, or every reason why it cannot run (exit code 2)."""
    from ridgeline.core.errors import InputError
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.report.catalog_sheets import scenario_sheet
    from ridgeline.report.sheets.plain import plain

    try:
        built = read_scenario(scenario, settings or ())
    except InputError as wrong:
        if not json:
            raise
        print_json({"possible": False, "problems": plain(wrong.problems) or [{"given": str(wrong)}]})
        raise typer.Exit(2) from None
    sheet = scenario_sheet(built)
    if json:
        print_json({"possible": True, "problems": [], "scenario": sheet})
        return
    from ridgeline.report.catalog_tables import draw

    draw([sheet], console())


@app.command()
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


predict.register(app)
plan.register(app)
calibrate.register(app)
export.register(app)
trace.register(app)
describe(app)


def main() -> None:
    """Run the command line; expected errors become one message each and exit code 2."""
    from ridgeline.core.errors import InputError, MissingNumber

    try:
        app(prog_name="ridgeline")
    except (InputError, MissingNumber) as wrong:
        _complain(wrong)
        raise SystemExit(2) from None
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe went away: not an error of ours
        raise SystemExit(0) from None


def _complain(wrong: Exception) -> None:
    lines = str(wrong).splitlines() or [type(wrong).__name__]
    if len(lines) > 1:
        typer.echo(f"ridgeline: {len(lines)} problems", err=True)
    for line in lines:
        typer.echo(f"ridgeline: {line}" if len(lines) == 1 else f"  {line}", err=True)


if __name__ == "__main__":
    main()
