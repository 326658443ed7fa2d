"""Draw a collective that ran as the table that nccl-tests prints."""

from __future__ import annotations

from rich.console import Console

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import blocks, clean, facts, headed, listed
from ridgeline.runtime.collective_run import CollectiveRun

COLUMNS = ("size", "time", "algbw", "busbw", "bound", "over it", "backend's own", "busbw of it")


def draw_collective_run(run: CollectiveRun, console: Console) -> None:
    """Print the table of sizes."""
    algorithm = run.algorithm
    title = f"{run.collective} by {algorithm.name} on {algorithm.ranks} ranks, {run.backend}"
    table = headed(COLUMNS, right=COLUMNS)
    for row in run.rows:
        table.add_row(
            format_quantity(row.size_bytes, "B", 3),
            format_quantity(row.seconds, "s", 3),
            format_quantity(row.algbw, "B/s", 3),
            format_quantity(row.busbw, "B/s", 3),
            format_quantity(row.bound_seconds, "s", 3),
            f"{row.ratio_to_bound:.1f}",
            format_quantity(row.own_seconds, "s", 3),
            format_quantity(row.own_busbw, "B/s", 3),
        )
    figures = facts(
        ("steps", f"{algorithm.step_count:,} in {algorithm.rounds} rounds"),
        ("one send", f"{format_quantity(run.latency_s, 's', 3)}, {format_quantity(run.bytes_per_s, 'B/s', 3)}"),
        ("outputs", "right, bit for bit" if run.correct else "WRONG"),
    )
    wrong = [f"{format_quantity(row.size_bytes, 'B', 3)}: {text}" for row in run.rows for text in row.wrong]
    console.print(blocks([clean(title)], [figures], listed("wrong outputs", wrong), [table]))
