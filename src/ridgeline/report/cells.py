"""Turn numbers of a trace into cells of a page: times, differences, bars, tables without lines."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_quantity

NANO = 1000  # nanoseconds in the microsecond, the unit of every trace and so of these sheets


def time(microseconds: float) -> str:
    """A time of a trace in a readable unit.

    >>> time(1234.5), time(0)
    ('1.234 ms', '0 s')
    """
    return format_quantity(microseconds * 1e-6, "s", 4) if microseconds else "0 s"


def signed(microseconds: float) -> str:
    """A difference with its sign."""
    return ("+" if microseconds > 0 else "-" if microseconds < 0 else "") + time(abs(microseconds))


def bar(share: float, colour: str, cells: int = 24) -> Text:
    """A bar of so many cells at a share of 1, an eighth of a cell at the least.

    >>> bar(0.5, "blue", 4).plain, bar(0.0, "blue").plain
    ('██', '')
    """
    eighths = max(1, round(min(abs(share), 1.0) * cells * 8)) if share else 0
    return Text("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip(), style=colour)


def better_or_worse(share: float) -> Text:
    """A bar of a difference: red where it costs time, green where it saves some."""
    return bar(share, "red" if share > 0 else "green")


def grid(*justify: Any) -> Table:
    """A table without lines."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for one in justify:
        table.add_column(justify=one, no_wrap=one == "right")
    return table
