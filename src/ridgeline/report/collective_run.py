"""Turn a collective that ran into a sheet of facts, and the sheet into the table that nccl-tests prints."""

from __future__ import annotations

from rich.console import Console

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import blocks, clean, facts, headed, listed
from ridgeline.report.sheets.collective import CollectiveRunRowSheet, CollectiveRunSheet
from ridgeline.runtime.collective_run import CollectiveRun, RunRow

COLUMNS = ("size", "time", "algbw", "busbw", "bound", "over it", "backend's own", "busbw of it")


def collective_run_sheet(found: CollectiveRun) -> CollectiveRunSheet:
    """Everything the run says."""
    return {
        "kind": "collective-run",
        "collective": found.collective,
        "ranks": found.algorithm.ranks,
        "backend": found.backend,
        "algorithm": found.algorithm.name,
        "rounds": found.algorithm.rounds,
        "steps": len(found.algorithm.steps),
        "send_latency_s": found.latency_s,
        "send_bytes_per_s": found.bytes_per_s,
        "correct": found.correct,
        "rows": [_row(found, row) for row in found.rows],
    }


def _row(found: CollectiveRun, row: RunRow) -> CollectiveRunRowSheet:
    return {
        "size_bytes": row.size_bytes,
        "seconds": row.seconds,
        "algbw": row.size_bytes / row.seconds,
        "busbw": found.busbw(row, row.seconds),
        "own_seconds": row.own_seconds,
        "own_algbw": row.size_bytes / row.own_seconds,
        "own_busbw": found.busbw(row, row.own_seconds),
        "bound_seconds": row.bound_seconds,
        "ratio_to_bound": row.seconds / row.bound_seconds,
        "wrong": list(row.wrong),
    }


def draw_collective_run(sheet: CollectiveRunSheet, console: Console) -> None:
    """Print the table of sizes."""
    title = f"{sheet['collective']} by {sheet['algorithm']} on {sheet['ranks']} ranks, {sheet['backend']}"
    send = f"{format_quantity(sheet['send_latency_s'], 's', 3)}, {format_quantity(sheet['send_bytes_per_s'], 'B/s', 3)}"
    table = headed(COLUMNS, right=COLUMNS)
    for row in sheet["rows"]:
        table.add_row(
            format_quantity(row["size_bytes"], "B", 3),
            format_quantity(row["seconds"], "s", 3),
            format_quantity(row["algbw"], "B/s", 3),
            format_quantity(row["busbw"], "B/s", 3),
            format_quantity(row["bound_seconds"], "s", 3),
            f"{row['ratio_to_bound']:.1f}",
            format_quantity(row["own_seconds"], "s", 3),
            format_quantity(row["own_busbw"], "B/s", 3),
        )
    said = facts(
        ("steps", f"{sheet['steps']:,} in {sheet['rounds']} rounds"),
        ("one send", send),
        ("outputs", "right, bit for bit" if sheet["correct"] else "WRONG"),
    )
    wrong = [f"{format_quantity(row['size_bytes'], 'B', 3)}: {one}" for row in sheet["rows"] for one in row["wrong"]]
    console.print(blocks([clean(title)], [said], listed("wrong outputs", wrong), [table]))
