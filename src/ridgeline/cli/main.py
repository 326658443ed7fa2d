"""Turn arguments into calls of the library, and what it raises into messages and exit codes.

Exit codes are listed in `refuse`. Heavy modules are imported inside the verbs: `ridgeline --help` answers at once.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli import (
    bringup,
    calibrate,
    capture,
    collective,
    diff,
    explain,
    export,
    plan,
    predict,
    profile,
    query,
    roofline,
    run,
    runtime,
    trace,
)
from ridgeline.cli.refuse import DONE, STOPPED, refuse
from ridgeline.cli.streams import finish, prepare, say, silence
from ridgeline.cli.terminal import Json, ScenarioFile, Settings, console, count, print_json
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
        say(f"ridgeline {__version__}")
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
    sheets = library.show(*map(capture.named_model, names), detail=detail, settings=tuple(settings or ()))
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
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.report.catalog_sheets import scenario_sheet

    sheet = scenario_sheet(read_scenario(scenario, settings or ()))
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
query.register(app)
diff.register(app)
explain.register(app)
profile.register(app)
roofline.register(app)
collective.register(app)
runtime.register(app)
run.register(app)
capture.register(app)
bringup.register(app)
describe(app)


def main() -> None:
    """Run the command line and leave with its exit code; every error is a message, none a traceback."""
    arguments = sys.argv[1:]
    prepare()
    with _interrupts() as interrupted:
        code = _run(arguments, interrupted)
        try:
            finish()
        except BrokenPipeError:
            code = DONE
        except OSError as wrong:
            code = refuse(wrong, ())
    raise SystemExit(code)


def _run(arguments: list[str], interrupted: threading.Event) -> int:
    """The exit code of a command line."""
    try:
        code = app(args=arguments, prog_name="ridgeline", standalone_mode=False)
    except BrokenPipeError:
        silence()
        return DONE  # the reader of a pipe went away: not an error of ours
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # as rich and typer tell it
            silence()
            return DONE
        return left.code if isinstance(left.code, int) else DONE
    except BaseException as wrong:
        if interrupted.is_set() or isinstance(wrong, KeyboardInterrupt):  # whatever became of it on its way
            return STOPPED
        return refuse(wrong, arguments)
    return code if isinstance(code, int) else DONE


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that tells whether Ctrl-C was pressed; a job that ignores interrupts goes on ignoring them."""
    pressed = threading.Event()
    handled = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handled is signal.SIG_IGN:
        yield pressed
        return

    def asked(*_: object) -> None:
        pressed.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, asked)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, handled)


if __name__ == "__main__":
    main()
