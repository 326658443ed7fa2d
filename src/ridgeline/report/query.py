"""Draw the answer to a query, or a record of memory."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import clean, grid
from ridgeline.trace.read.memory_snapshot import MemoryRecord
from ridgeline.trace.span_query import QueryAnswer

WIDEST = 100  # characters of a cell
SHOWN = 12  # holders of a chip


def draw_query(answer: QueryAnswer, console: Console) -> None:
    """Print an answer as a table."""
    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(answer.columns):
        numbers = all(isinstance(row[place], int | float | None) for row in answer.rows[:50])
        table.add_column(clean(column), justify="right" if numbers else "left", overflow="fold")
    for row in answer.rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    console.print(table)
    for line in answer.warnings:
        console.print(Text(f"warning: {clean(line)}", style="yellow"))
    if answer.truncated:
        console.print(Text(f"{len(answer.rows):,} rows shown, there are more: --limit N", style="dim"))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return "" if value is None else str(clean(str(value)[:WIDEST]))


def draw_memory(record: MemoryRecord, console: Console) -> None:
    """Print who held the peak of every chip."""
    for line in record.warnings:
        console.print(Text(f"warning: {line}", style="yellow"))
    for one in record.devices:
        console.print(Text(f"chip {one.device}: {format_quantity(one.peak_bytes, 'B')} at the peak", style="bold"))
        told = f"{one.events:,} events"
        if one.before_bytes:
            told += f"; {format_quantity(one.before_bytes, 'B')} were allocated before the history began"
        if one.reserved_bytes:
            reserved = format_quantity(one.reserved_bytes, "B")
            told += f"; at the end {one.fragmentation:.0%} of {reserved} reserved unused"
        if one.out_of_memory:
            told += f"; {one.out_of_memory:,} allocations failed"
        console.print(Text(told, style="dim"))
        table = grid("right", "right", "left")
        for held in one.holders[:SHOWN]:
            share = held.size_bytes / max(1, one.peak_bytes)
            table.add_row(format_quantity(held.size_bytes, "B"), f"{share:.1%}", clean(held.what))
        console.print(table)
