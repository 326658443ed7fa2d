"""Draw runs of a load generator: metrics, and where the time of a request went."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import bar, blocks, clean, grid, headed
from ridgeline.serving.bench_result import BenchAnalysis, BenchReport

METRICS = ("ttft", "tpot", "itl", "e2e")
MEANING = {
    "alone": "a prompt of its length with no other request in flight",
    "waited": "the rest of TTFT: queue, prefills of others",
    "first-token": "TTFT: queue and prefill (too few requests were alone to tell them apart)",
    "pace": "decode at the run's median pause",
    "slower": "pauses up to three times that: larger batches, short prefills of others",
    "stalled": "what longer pauses took: long prefills of others, preemption, the host",
    "after-last-token": "from the last token to the end of the answer",
}


def draw_bench(report: BenchReport, console: Console) -> None:
    """A block for each run; medians below several."""
    for run in report.runs:
        console.print(blocks([_title(run)], [_metrics(run)], [Text("an average request", style="bold"), _time(run)]))
        console.print()
    if len(report.runs) > 1:
        parts = [f"{name.removesuffix('_s').upper()} {_seconds(value)}"
                 for name, value in report.medians.items() if name != "requests_per_s"]  # fmt: skip
        console.print(Text(f"median of {len(report.runs)} runs: {', '.join(parts)}"))


def _title(run: BenchAnalysis) -> Text:
    asked, metrics = run.run, run.metrics
    rate = f"{asked.finite_rate:g}/s" if asked.finite_rate else "all at once"
    limit = f", at most {asked.max_concurrency} at a time" if asked.max_concurrency else ""
    failed = f", {metrics.failed:,} failed" if metrics.failed else ""
    flight = f", {metrics.most_in_flight:,} in flight at most" if metrics.most_in_flight else ""
    sent = f"{metrics.requests:,} requests sent at {rate}{limit}{failed}"
    head = f"{sent}: {metrics.requests_per_s:.4g} requests/s, "
    return Text.assemble(
        clean(asked.source), f" ({asked.tool}) ", head, f"{metrics.output_tokens_per_s:,.0f} output tokens/s{flight}"
    )


def _metrics(run: BenchAnalysis) -> Table:
    shares = list(run.metrics.ttft.percentiles_by_share)
    names = ["mean", "median", *(f"p{share}" for share in shares)]
    table = headed(["", *names], right=names)
    for name in METRICS:
        one = getattr(run.metrics, name)
        values = [one.mean, one.median, *(one.percentiles_by_share[share] for share in shares)]
        table.add_row(name.upper(), *(_seconds(value) for value in values))
    return table


def _time(run: BenchAnalysis) -> Table:
    whole = sum(run.time.values()) or 1.0
    table = grid("left", "right", "right", "left", "left")
    for name, seconds in run.time.items():
        if seconds > 0:
            share = seconds / whole
            table.add_row(name, _seconds(seconds), f"{share:.0%}", bar(share, "blue", 16), MEANING[name])
    return table


def _seconds(value: float) -> str:
    return format_quantity(value, "s", 4)
