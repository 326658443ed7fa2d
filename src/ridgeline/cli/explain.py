"""Turn `ridgeline explain` into calls of the library: a scenario beside a trace, or beside requests under load.

0  done        2  the input cannot be used
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.spool import plain_files
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, ScenarioFile, Settings, console, print_json
from ridgeline.cli.trace import Classes, Policy, only_bench_results

if TYPE_CHECKING:
    from ridgeline.serving.deployment import Priced


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(explain)


def explain(
    scenario: ScenarioFile,
    traces: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[TRACE...]", help="A trace of it, or a folder of ranks; none for requests under load."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            "--residuals",
            metavar="FILE.csv",
            help="Write the residuals, which `ridgeline validate` and `ridgeline fit --with` read.",
        ),
    ] = None,
    policy: Policy = "all",
    classes: Classes = None,
    settings: Settings = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Parameters that `ridgeline fit --with` wrote.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Measured kernels, where requests were measured.")
    ] = None,
    anchor: Annotated[
        Path | None, typer.Option(metavar="RESULT", help="One more result of the load generator, to fit steps to.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare a trace that cannot be of the scenario all the same.")
    ] = False,
    json: Json = False,
) -> None:
    """Compare a scenario with a trace: what accounts for the gap. Requests under load: why the slow ones are slow."""
    if not traces:
        _explain_alone(scenario, settings or (), calibration, json)
        return
    if only_bench_results(traces):
        from ridgeline.api import priced_of

        _explain_bench(scenario, traces, settings or (), priced_of(calibration, (), profile), anchor, json)
        return
    choices = {"policy": policy, "classes": classes, "settings": settings or (), "calibration": calibration}
    _explain_traces(scenario, traces, output, json, **choices, force=force)


def _explain_traces(scenario: Path, traces: list[Path], output: Path | None, json: bool, **choices: Any) -> None:
    """A scenario beside traces of its step; the residuals are written if asked."""
    from ridgeline.calibrate.anchor import write_residuals
    from ridgeline.calibrate.explain import explain as library
    from ridgeline.core.files import refuse_unwritable
    from ridgeline.report.diff import draw_explanation

    if output is not None:
        refuse_unwritable(output)  # before the work
    with plain_files(traces) as paths:
        found = library(scenario, *paths, **choices)
    if output is not None:
        write_residuals(found, output)
    if json:
        print_json(found)
        return
    draw_explanation(found, console())
    if output is not None:
        say(f"{output}: {len(found.parts)} residuals; fit them with `ridgeline fit --with {output}`")


def _explain_bench(
    path: Path, results: list[Path], settings: Sequence[str], priced: Priced, anchor: Path | None, json: bool
) -> None:
    """A serve scenario beside what a load generator measured of it."""
    from ridgeline.calibrate.explain_bench import explain_bench
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.report.serve import draw_bench_explanation
    from ridgeline.serving.bench_result import read_bench_runs

    runs = [run for result in results for run in read_bench_runs(result)]
    fitted = read_bench_runs(anchor)[0] if anchor is not None else None
    explanation = explain_bench(read_scenario(path, settings), runs, priced, fitted)
    print_json(explanation) if json else draw_bench_explanation(explanation, console())


def _explain_alone(path: Path, settings: Sequence[str], calibration: Path | None, json: bool) -> None:
    """A scenario without a trace: requests under load explain themselves."""
    from ridgeline.cli.serve import explain_serve
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.plan.scenario_file import read_scenario

    built = read_scenario(path, settings)
    if built.workload.kind != "serve":
        given, expected = f"no trace of a {built.workload.kind} scenario", "a trace to compare it with"
        raise InputError(Problem(path="TRACE", given=given, expected=expected))
    explain_serve(built, calibration=calibration, json=json)
