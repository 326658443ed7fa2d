"""Draw a GraphComparison on a terminal: totals of both compilers, then what either joins and the other does not."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_quantity
from ridgeline.graph import ComparedWork, GraphComparison
from ridgeline.report.cells import DASH, blocks, clean, header_table, list_lines, percent

SHOWN = 24  # rows on a page


def draw_graph_comparison(comparison: GraphComparison, console: Console) -> None:
    """Print both totals and the parts of the program, the largest difference first."""
    console.print(blocks([_title(comparison)], [_rows(comparison)], list_lines("notes", comparison.notes)))


def _title(comparison: GraphComparison) -> Text:
    first, second = comparison.first, comparison.second
    share = percent(abs(comparison.difference_s) / comparison.first_s) if comparison.first_s else DASH
    word = "longer" if comparison.difference_s > 0 else "shorter"
    ends = sorted((comparison.low_s, comparison.high_s), key=abs)
    span = " to ".join(format_quantity(abs(seconds), "s", 3) for seconds in ends)
    lines = (
        f"{clean(first.name).plain}: {format_quantity(comparison.first_s, 's', 4)} by {first.source}",
        f"{clean(second.name).plain}: {format_quantity(comparison.second_s, 's', 4)} by {second.source}, "
        f"{share} {word} ({span}) on {comparison.chip.id}",
    )
    return Text("\n".join(lines), style="bold")


def _rows(comparison: GraphComparison) -> Table:
    columns = ("kernels", "bytes", "first", "second", "difference")
    table = header_table(("part", "ops", *columns, "fuses more"), right=columns)
    for row in comparison.rows[:SHOWN]:
        table.add_row(*_cells(row))
    return table


def _cells(row: ComparedWork) -> tuple[str | Text, ...]:
    sign = "+" if row.difference_s > 0 else "-" if row.difference_s < 0 else ""
    return (
        clean(row.work),
        clean(row.ops or DASH),
        f"{row.first.kernels:,.0f} to {row.second.kernels:,.0f}",
        f"{format_quantity(row.first.bytes, 'B', 3)} to {format_quantity(row.second.bytes, 'B', 3)}",
        format_quantity(row.first.seconds, "s", 3),
        format_quantity(row.second.seconds, "s", 3),
        sign + format_quantity(abs(row.difference_s), "s", 3),
        row.fuses_more or DASH,
    )
