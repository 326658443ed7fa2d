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
    from ridgeline.serving.bench_result import BenchReport
    from ridgeline.trace import Analysis, CounterFile, MemoryRecord


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
    from ridgeline.trace import Analysis

    if html is not None:
        refuse_unwritable(html)  # before the work
    with plain_files(traces) as paths:
        result = _with_progress(
            paths, policy=policy, chip=chip, classes=classes, counters=counters, unit=unit, what_if=what_if or [],
            model=model, capture=capture,
        )  # fmt: skip
    if html is not None and isinstance(result, Analysis):
        _write(result, html, html_spans)
    print_json(result) if json else _draw(result)


def _draw(result: Analysis | BenchReport | CounterFile | MemoryRecord) -> None:
    """Draw what the library made of the files, each kind in its own way."""
    from ridgeline.report.analyze import draw_analysis, draw_counters, draw_memory
    from ridgeline.report.serve import draw_bench
    from ridgeline.serving.bench_result import BenchReport
    from ridgeline.trace import CounterFile, MemoryRecord

    match result:
        case BenchReport():
            draw_bench(result, console())
        case CounterFile():
            draw_counters(result, console())
        case MemoryRecord():
            draw_memory(result, console())
        case _:
            draw_analysis(result, console())


def _write(result: Analysis, path: Path, spans: int) -> None:
    """Write the report, and say on standard error what is in it."""
    from ridgeline.report.trace_html import write_page

    packed = write_page(result, path, spans)
    merged = "" if packed.kept == packed.of else f" of {packed.of:,}, the others merged"
    say(f"{path}: {packed.kept:,} spans{merged}, {path.stat().st_size / 1e6:.1f} MB", err=True)


def only_bench_results(traces: list[Path]) -> bool:
    """Whether every file is the result of a load generator."""
    from ridgeline.serving.bench_result import is_bench_result

    return all(map(is_bench_result, traces))


def _with_progress(traces: list[Path], **choices: Any) -> Analysis | BenchReport | CounterFile | MemoryRecord:
    """Analyse with a progress bar on standard error while files are read."""
    from rich.progress import Progress

    from ridgeline.api import analyze as library

    with Progress(console=stderr_console(), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("reading", total=None)

        def tell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return library(*traces, **choices, progress=tell)
