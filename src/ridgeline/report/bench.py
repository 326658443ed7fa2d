"""Turn analysed runs of a load generator into the sheet of `ridgeline analyze RESULT --json`, and into a page."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import bar, blocks, clean, grid, headed
from ridgeline.report.sheets.bench import BenchRunSheet, BenchSheet, SpreadSheet
from ridgeline.serving.bench_analysis import BenchAnalysis
from ridgeline.serving.metrics import Spread

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


def bench_sheet(found: Sequence[BenchAnalysis]) -> BenchSheet:
    """Every run, and the medians over them."""
    runs = [_run(one) for one in found]
    medians = {f"{name}_s": median(one[name]["median"] for one in runs) for name in ("ttft", "tpot", "e2e")}
    medians["requests_per_s"] = median(one["requests_per_s"] for one in runs)
    return {"kind": "bench", "runs": runs, "medians": medians}


def _run(found: BenchAnalysis) -> BenchRunSheet:
    run, told = found.run, found.metrics
    return {
        "source": run.source,
        "tool": run.tool,
        "model": run.model,
        "request_rate": run.request_rate if isfinite(run.request_rate) else None,
        "max_concurrency": run.max_concurrency,
        "requests": told.requests,
        "failed": told.failed,
        "duration_s": told.duration_s,
        "requests_per_s": told.requests_per_s,
        "output_tokens_per_s": told.output_tokens_per_s,
        "tokens_per_s": told.tokens_per_s,
        "most_in_flight": told.most_in_flight,
        "ttft": _spread(told.ttft),
        "tpot": _spread(told.tpot),
        "itl": _spread(told.itl),
        "e2e": _spread(told.e2e),
        "time": found.time,
        "alone": found.alone,
        "pace_s": found.pace_s,
    }


def _spread(one: Spread) -> SpreadSheet:
    shares = {f"{share:g}": seconds for share, seconds in one.percentiles.items()}
    return {"mean": one.mean, "median": one.median, "std": one.std, "percentiles": shares}


def draw_bench(sheet: BenchSheet, console: Console) -> None:
    """A block for each run; medians below several."""
    for run in sheet["runs"]:
        console.print(blocks([_title(run)], [_metrics(run)], [Text("an average request", style="bold"), _time(run)]))
        console.print()
    if len(sheet["runs"]) > 1:
        parts = [f"{name.removesuffix('_s').upper()} {_seconds(value)}"
                 for name, value in sheet["medians"].items() if name != "requests_per_s"]  # fmt: skip
        console.print(Text(f"median of {len(sheet['runs'])} runs: {', '.join(parts)}"))


def _title(run: BenchRunSheet) -> Text:
    rate = f"{run['request_rate']:g}/s" if run["request_rate"] else "all at once"
    limit = f", at most {run['max_concurrency']} at a time" if run["max_concurrency"] else ""
    failed = f", {run['failed']:,} failed" if run["failed"] else ""
    flight = f", {run['most_in_flight']:,} in flight at most" if run["most_in_flight"] else ""
    head = f"{run['requests']:,} requests sent at {rate}{limit}{failed}: {run['requests_per_s']:.4g} requests/s, "
    return Text.assemble(
        clean(run["source"]), f" ({run['tool']}) ", head, f"{run['output_tokens_per_s']:,.0f} output tokens/s{flight}"
    )


def _metrics(run: BenchRunSheet) -> Table:
    shares = list(run["ttft"]["percentiles"])
    names = ["mean", "median", *(f"p{share}" for share in shares)]
    table = headed(["", *names], right=names)
    for name in METRICS:
        one = run[name]  # type: ignore[literal-required]
        values = [one["mean"], one["median"], *(one["percentiles"][share] for share in shares)]
        table.add_row(name.upper(), *(_seconds(value) for value in values))
    return table


def _time(run: BenchRunSheet) -> Table:
    whole = sum(run["time"].values()) or 1.0
    table = grid("left", "right", "right", "left", "left")
    for name, seconds in run["time"].items():
        if seconds > 0:
            share = seconds / whole
            table.add_row(name, _seconds(seconds), f"{share:.0%}", bar(share, "blue", 16), MEANING[name])
    return table


def _seconds(value: float) -> str:
    return format_quantity(value, "s", 4)
