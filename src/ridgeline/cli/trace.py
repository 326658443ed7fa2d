"""Turn `ridgeline analyze`, `query`, `diff` and `explain` into calls of the library.

0  done        1  a step slower than `diff --fail-above` allows, or a report of bringup that is worse
2  the input cannot be used
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.spool import plain_files
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, ScenarioFile, Settings, console, print_json, stderr_console

if TYPE_CHECKING:
    from ridgeline.serving.deployment import Priced
    from ridgeline.trace.analyze import Analysis
    from ridgeline.trace.diff import Diff


def register(app: typer.Typer) -> None:
    """Give the command line the verbs of this module."""
    app.command()(analyze)
    app.command()(query)
    app.command()(diff)
    app.command()(explain)


Traces = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE...",
        help="Trace files, a folder of ranks, detailed results of a load generator, or - for standard input.",
    ),
]
Policy = Annotated[
    str, typer.Option(help="all: every kernel and copy; linked: only those whose launch is in the trace.")
]
ChipId = Annotated[
    str | None, typer.Option(metavar="ID", help="Chip of the roofline; found by the trace's device name if left out.")
]
Classes = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="TOML with further classes of kernels, tried before the own ones."),
]
Counters = Annotated[
    Path | None, typer.Option(metavar="FILE", help="CSV of Nsight Compute: what each kernel measured.")
]
Unit = Annotated[
    str | None,
    typer.Option(metavar="s|ms|us|ns", help="Unit of the times, where a trace does not keep to its own."),
]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write an interactive report as well: one file, works offline.")
]
HtmlSpans = Annotated[
    int, typer.Option(metavar="N", help="Spans that report keeps one by one; the shortest beyond are merged.")
]
ModelId = Annotated[
    str | None,
    typer.Option(
        metavar="ID[:TP]",
        help="Model that an engine served: its sizes price kernels behind graphs; guessed if left out.",
    ),
]
CaptureFile = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Trace, or a folder, of the capture of the graphs that the trace replays."),
]
OneTrace = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file, a folder of ranks, or - .")]
Sql = Annotated[str, typer.Argument(metavar="SQL", help="One SELECT over spans and counters.")]
WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="QUESTION",
        help='Replay with a change: "matmul x2", "overlap nccl", "no launch gaps", "fuse norm"; may be repeated.',
    ),
]


def analyze(
    traces: Traces,
    policy: Policy = "all",
    chip: ChipId = None,
    classes: Classes = None,
    counters: Counters = None,
    unit: Unit = None,
    html: Html = None,
    html_spans: HtmlSpans = 400_000,
    what_if: WhatIf = None,
    model: ModelId = None,
    capture: CaptureFile = None,
    json: Json = False,
) -> None:
    """Read traces: where the time went, why chips idled, how near ops are to the roofline, and what to change first."""
    from ridgeline.core.files import refuse_unwritable
    from ridgeline.report.analyze import analysis_sheet, draw_analysis
    from ridgeline.report.counters import counters_sheet, draw_counters

    if html is not None:
        refuse_unwritable(html)  # before the work
    with plain_files(traces) as paths:
        if _only_bench_results(paths):
            _analyze_bench(paths, json)
            return
        if _only_counters(paths):
            kernels = counters_sheet(paths[0])
            print_json(kernels) if json else draw_counters(kernels, console())
            return
        if _only_memory(paths):
            _analyze_memory(paths[0], json)
            return
        found = _analysed(
            paths, policy=policy, chip=chip, classes=classes, counters=counters, unit=unit, what_if=what_if or [],
            model=model, capture=capture,
        )  # fmt: skip
    if html is not None:
        _write(found, html, html_spans)
    sheet = analysis_sheet(found)
    print_json(sheet) if json else draw_analysis(sheet, console())


def _write(found: Analysis, path: Path, spans: int) -> None:
    """Write the report, and say on standard error what is in it."""
    from ridgeline.report.trace_html import write_page

    packed = write_page(found, path, spans)
    merged = "" if packed.kept == packed.of else f" of {packed.of:,}, the others merged"
    say(f"{path}: {packed.kept:,} spans{merged}, {path.stat().st_size / 1e6:.1f} MB", err=True)


def _only_counters(traces: list[Path]) -> bool:
    """Whether one file is named, and it holds counters of kernels without a timeline."""
    from ridgeline.trace.read.kernel_counters import recognises
    from ridgeline.trace.read.source import Source

    return len(traces) == 1 and traces[0].is_file() and recognises(Source(traces[0]).head())


def _only_memory(traces: list[Path]) -> bool:
    """Whether one file is named, and it is a record of PyTorch's allocator."""
    from ridgeline.trace.read.memory_snapshot import recognises
    from ridgeline.trace.read.source import Source

    return len(traces) == 1 and traces[0].is_file() and recognises(Source(traces[0]).head())


def _analyze_memory(path: Path, json: bool) -> None:
    from ridgeline.report.query import draw_memory, memory_sheet

    sheet = memory_sheet(path)
    print_json(sheet) if json else draw_memory(sheet, console())


def query(
    trace: OneTrace,
    sql: Sql = "SELECT * FROM spans",
    limit: Annotated[int, typer.Option(metavar="N", help="Most rows of the answer.")] = 10_000,
    seconds: Annotated[float, typer.Option(metavar="S", help="Longest time the query may take.")] = 60.0,
    unit: Unit = None,
    json: Json = False,
) -> None:
    """Ask a trace in SQL: a table `spans` with a row a span, a table `counters`; read-only and bounded."""
    from ridgeline.report.query import draw_query, query_sheet
    from ridgeline.trace.span_query import query as library

    with plain_files([trace]) as paths:
        sheet = query_sheet(library(*paths, sql=sql, limit=limit, seconds=seconds, unit=unit))
    print_json(sheet) if json else draw_query(sheet, console())


def _only_bench_results(traces: list[Path]) -> bool:
    """Whether every file is the result of a load generator."""
    from ridgeline.serving.bench_result import is_bench_result

    return all(map(is_bench_result, traces))


def _analyze_bench(paths: list[Path], json: bool) -> None:
    from ridgeline.report.bench import bench_sheet, draw_bench
    from ridgeline.serving.bench_analysis import analyze_bench
    from ridgeline.serving.bench_result import read_bench_runs

    sheet = bench_sheet([analyze_bench(run) for path in paths for run in read_bench_runs(path)])
    print_json(sheet) if json else draw_bench(sheet, console())


def diff(
    before: Annotated[
        Path,
        typer.Argument(
            metavar="A", help="A trace, a folder of ranks, a scenario file, a profile, or a report of bringup."
        ),
    ],
    after: Annotated[
        list[Path] | None,
        typer.Argument(metavar="B...", help="The same; each step is compared with A's. Or none, and --set."),
    ] = None,
    policy: Policy = "all",
    classes: Classes = None,
    settings: Settings = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the comparison as a page: one file, works offline.")
    ] = None,
    fail_above: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Exit with 1 when a step of B takes more than this above A's, such as 3%."),
    ] = None,
    json: Json = False,
) -> None:
    """Compare traces, predictions, or one of each: why B's step differs from A's, in causes that sum to it.

    Several B are each compared with A. Two profiles: which kernels differ beyond their spread. Two reports of bringup:
    what is newly wrong, missing or slower; exit code 1 where B is wrong or lacks an op and A was not.

    0  done        1  slower than --fail-above allows, or a worse report        2  the input cannot be used
    """
    from ridgeline.core.files import refuse_unwritable, write_text
    from ridgeline.report.diff import diff_sheet, draw_diff, draw_runs

    limit = None if fail_above is None else _share(fail_above)
    others = after or []
    if len(others) == 1 and _are_reports(before, others[0]):
        _diff_reports(before, others[0], json)
        return
    if len(others) == 1 and _are_profiles(before, others[0]):
        _diff_profiles(before, others[0], json)
        return
    if html is not None:
        refuse_unwritable(html)  # before the work
    sheets = [diff_sheet(one) for one in _diffs(before, others, policy=policy, classes=classes, settings=settings)]
    if html is not None:
        from ridgeline.report.diff_html import diff_page

        write_text(html, diff_page(sheets))
        say(f"{html}: {len(sheets)} comparison(s)", err=True)
    if json:
        print_json(sheets[0] if len(sheets) == 1 else {"kind": "diffs", "runs": sheets})
    else:
        for sheet in sheets:
            draw_diff(sheet, console())
        if len(sheets) > 1:
            draw_runs(sheets, console())
    slower = [one for one in sheets if limit is not None and one["difference_share"] > limit]
    for one in slower:
        text = f"{one['after']['label']} is {one['difference_share']:.1%} slower than {one['before']['label']}"
        say(f"regression: {text}, more than the {fail_above} that --fail-above allows", err=True)
    if slower:
        raise typer.Exit(1)


def _diffs(before: Path, others: Sequence[Path], **choices: Any) -> list[Diff]:
    """A against every B, or a scenario against itself as settings change it."""
    from ridgeline.calibrate.compare import diff as library

    choices["settings"] = choices["settings"] or ()
    with plain_files([before, *others]) as paths:
        if len(paths) == 1:
            return [library(paths[0], **choices)]
        return [library(paths[0], other, **choices) for other in paths[1:]]


def _share(text: str) -> float:
    """A share as people write it, 3% or 0.03.

    >>> _share("3%"), _share("0.5")
    (0.03, 0.5)
    """
    from ridgeline.core.errors import InputError, Problem

    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 100:
        raise InputError(
            Problem(path="--fail-above", given=repr(text), expected="a share from 0 up, such as 3% or 0.03")
        )
    return value


def _are_reports(*paths: Path) -> bool:
    from ridgeline.runtime.bringup.compare import is_report

    return all(path.is_file() and is_report(path) for path in paths)


def _diff_reports(before: Path, after: Path, json: bool) -> None:
    from ridgeline.report.bringup_diff import bringup_diff_sheet, draw_bringup_diff
    from ridgeline.runtime.bringup.compare import diff_reports, read_report

    sheet = bringup_diff_sheet(diff_reports(read_report(before), read_report(after)))
    print_json(sheet) if json else draw_bringup_diff(sheet, console())
    raise typer.Exit(1 if sheet["worse"] else 0)


def _are_profiles(*paths: Path) -> bool:
    from ridgeline.cost.profile import is_profile

    return all(is_profile(path) for path in paths)


def _diff_profiles(before: Path, after: Path, json: bool) -> None:
    from ridgeline.cost.profile import read_profile
    from ridgeline.cost.profile_compare import diff_profiles
    from ridgeline.report.profile import draw_profile_diff, profile_diff_sheet

    sheet = profile_diff_sheet(diff_profiles(read_profile(before), read_profile(after)))
    print_json(sheet) if json else draw_profile_diff(sheet, console())


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
    if _only_bench_results(traces):
        from ridgeline.api import priced_of

        _explain_bench(scenario, traces, settings or (), priced_of(calibration, (), profile), anchor, json)
        return
    choices = {"policy": policy, "classes": classes, "settings": settings or (), "calibration": calibration}
    _explain_traces(scenario, traces, output, json, **choices, force=force)


def _explain_traces(scenario: Path, traces: list[Path], output: Path | None, json: bool, **choices: Any) -> None:
    """A scenario beside traces of its step; the residuals are written if asked."""
    from ridgeline.calibrate.explain import explain as library
    from ridgeline.calibrate.residuals import write_residuals
    from ridgeline.core.files import refuse_unwritable
    from ridgeline.report.explain import draw_explanation, explanation_sheet

    if output is not None:
        refuse_unwritable(output)  # before the work
    with plain_files(traces) as paths:
        found = library(scenario, *paths, **choices)
    if output is not None:
        write_residuals(found, output)
    sheet = explanation_sheet(found)
    if json:
        print_json(sheet)
        return
    draw_explanation(sheet, console())
    if output is not None:
        say(f"{output}: {len(found.parts)} residuals; fit them with `ridgeline fit --with {output}`")


def _analysed(traces: list[Path], **choices: Any) -> Analysis:
    """Analyse with a progress bar on standard error while files are read."""
    from rich.progress import Progress

    from ridgeline.api import analyze as library

    with Progress(console=stderr_console(), transient=True, disable=not sys.stderr.isatty()) as bar:
        shown = bar.add_task("reading", total=None)

        def tell(done: int, total: int) -> None:
            bar.update(shown, completed=done, total=total)

        return library(*traces, **choices, progress=tell)


def _explain_bench(
    path: Path, results: list[Path], settings: Sequence[str], priced: Priced, anchor: Path | None, json: bool
) -> None:
    """A serve scenario beside what a load generator measured of it."""
    from ridgeline.calibrate.explain_bench import explain_bench
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.report.explain_bench import bench_explanation_sheet, draw_bench_explanation
    from ridgeline.serving.bench_result import read_bench_runs

    runs = [run for one in results for run in read_bench_runs(one)]
    fitted = read_bench_runs(anchor)[0] if anchor is not None else None
    sheet = bench_explanation_sheet(explain_bench(read_scenario(path, settings), runs, priced, fitted))
    print_json(sheet) if json else draw_bench_explanation(sheet, console())


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
