"""Turn `ridgeline analyze` into calls of the library.

0  done        2  the input cannot be used
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.spool import plain_files
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, console, print_json, stderr_console

if TYPE_CHECKING:
    from ridgeline.trace.analyze import Analysis


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(analyze)


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
    from ridgeline.report.analyze import draw_analysis
    from ridgeline.report.counters import draw_counters
    from ridgeline.trace.read.kernel_counters import read_counter_file

    if html is not None:
        refuse_unwritable(html)  # before the work
    with plain_files(traces) as paths:
        if only_bench_results(paths):
            _analyze_bench(paths, json)
            return
        if _only_counters(paths):
            kernels = read_counter_file(paths[0])
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
    print_json(found) if json else draw_analysis(found, console())


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
    from ridgeline.report.query import draw_memory
    from ridgeline.trace.read.memory_snapshot import read_memory

    record = read_memory(path)
    print_json(record) if json else draw_memory(record, console())


def only_bench_results(traces: list[Path]) -> bool:
    """Whether every file is the result of a load generator."""
    from ridgeline.serving.bench_result import is_bench_result

    return all(map(is_bench_result, traces))


def _analyze_bench(paths: list[Path], json: bool) -> None:
    from ridgeline.report.bench import draw_bench
    from ridgeline.serving.bench_result import BenchReport, analyze_bench, read_bench_runs

    report = BenchReport(runs=tuple(analyze_bench(run) for path in paths for run in read_bench_runs(path)))
    print_json(report) if json else draw_bench(report, console())


def _analysed(traces: list[Path], **choices: Any) -> Analysis:
    """Analyse with a progress bar on standard error while files are read."""
    from rich.progress import Progress

    from ridgeline.api import analyze as library

    with Progress(console=stderr_console(), transient=True, disable=not sys.stderr.isatty()) as bar:
        shown = bar.add_task("reading", total=None)

        def tell(done: int, total: int) -> None:
            bar.update(shown, completed=done, total=total)

        return library(*traces, **choices, progress=tell)
