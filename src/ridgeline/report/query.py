"""Turn the answer to a query, or a record of memory, into a sheet, and the sheet into a table."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import clean, grid
from ridgeline.report.sheets.query import MemorySheet, QuerySheet
from ridgeline.trace.read.memory_snapshot import format_of, read_snapshot
from ridgeline.trace.read.unproven import doubt
from ridgeline.trace.span_query import QueryAnswer

WIDEST = 100  # characters of a cell
SHOWN = 12  # holders of a chip


def query_sheet(found: QueryAnswer) -> QuerySheet:
    """An answer as plain facts."""
    return {
        "kind": "query",
        "sql": found.sql,
        "columns": list(found.columns),
        "rows": [list(row) for row in found.rows],
        "truncated": found.truncated,
        "warnings": list(found.warnings),
    }


def draw_query(sheet: QuerySheet, console: Console) -> None:
    """Print an answer as a table."""
    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(sheet["columns"]):
        numbers = all(isinstance(row[place], int | float | None) for row in sheet["rows"][:50])
        table.add_column(clean(column), justify="right" if numbers else "left", overflow="fold")
    for row in sheet["rows"]:
        table.add_row(*(Text(_cell(value)) for value in row))
    console.print(table)
    for line in sheet["warnings"]:
        console.print(Text(f"warning: {clean(line)}", style="yellow"))
    if sheet["truncated"]:
        console.print(Text(f"{len(sheet['rows']):,} rows shown, there are more: --limit N", style="dim"))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return "" if value is None else str(clean(str(value)[:WIDEST]))


def memory_sheet(path: Path) -> MemorySheet:
    """What a record of the allocator says."""
    return {
        "kind": "memory",
        "sources": [path.name],
        "format": (format := format_of(path)),
        "warnings": list(doubt(format)),
        "devices": [
            {
                "device": one.device,
                "events": one.events,
                "peak_bytes": one.peak_bytes,
                "peak_us": one.peak_us,
                "before_bytes": one.before_bytes,
                "reserved_bytes": one.reserved_bytes,
                "active_bytes": one.active_bytes,
                "fragmentation": one.fragmentation,
                "out_of_memory": one.out_of_memory,
                "holders": [
                    {"what": held.what, "bytes": held.size_bytes, "blocks": held.blocks} for held in one.holders
                ],
            }
            for one in read_snapshot(path)
        ],
    }


def draw_memory(sheet: MemorySheet, console: Console) -> None:
    """Print who held the peak of every chip."""
    for line in sheet["warnings"]:
        console.print(Text(f"warning: {line}", style="yellow"))
    for one in sheet["devices"]:
        console.print(
            Text(f"chip {one['device']}: {format_quantity(one['peak_bytes'], 'B')} at the peak", style="bold")
        )
        told = f"{one['events']:,} events"
        if one["before_bytes"]:
            told += f"; {format_quantity(one['before_bytes'], 'B')} were allocated before the history began"
        if one["reserved_bytes"]:
            reserved = format_quantity(one["reserved_bytes"], "B")
            told += f"; at the end {one['fragmentation']:.0%} of {reserved} reserved unused"
        if one["out_of_memory"]:
            told += f"; {one['out_of_memory']:,} allocations failed"
        console.print(Text(told, style="dim"))
        table = grid("right", "right", "left")
        for held in one["holders"][:SHOWN]:
            share = held["bytes"] / max(1, one["peak_bytes"])
            table.add_row(format_quantity(held["bytes"], "B"), f"{share:.1%}", clean(held["what"]))
        console.print(table)
