"""Turn numbers and texts into what terminal pages are made of: cells, bars, tables without lines, lists, blocks.

Text that came from a file is never read as markup, and control characters in it are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.records import dataclass
from ridgeline.core.units import DECIMAL, format_quantity, signed_quantity
from ridgeline.report.html import Scale

Side = Literal["left", "right"]
Overflow = Literal["ellipsis", "fold"]
Rows = Iterable[Iterable[RenderableType]]
BarRow = tuple[str, str, float | None, str, str]  # name, size, share of the whole, colour, meaning
DASH = "–"  # stands where there is no number
WEAK = {"assumed": "yellow", "analytic": "cyan"}  # colours of weak evidence


def clean(text: object) -> Text:
    """Text from a stranger: no markup, no control characters."""
    return Text(re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", str(text)))


def time(nanoseconds: float) -> str:
    """A time of a trace in a readable unit.

    >>> time(1234500), time(0)
    ('1.234 ms', '0 s')
    """
    return format_quantity(nanoseconds / 1000 * DECIMAL["u"], "s", 4)


def signed_time(nanoseconds: float) -> str:
    """A difference of times of traces, with its sign.

    >>> signed_time(1234500), signed_time(-2000)
    ('+1.234 ms', '−2 us')
    """
    return signed_quantity(nanoseconds / 1000 * DECIMAL["u"], "s", 4)


def percent(value: float | None) -> str:
    """A fraction as people read it.

    >>> percent(0.0457), percent(None)
    ('4.6 %', '–')
    """
    return DASH if value is None else f"{value * 100:.1f} %"


def bar(share: float, colour: str, cells: int = 24) -> Text:
    """A bar of so many cells at a share of 1, an eighth of a cell at the least.

    >>> bar(0.5, "blue", 4).plain, bar(0.0, "blue").plain
    ('██', '')
    """
    eighths = max(1, round(min(abs(share), 1.0) * cells * 8)) if share else 0
    return Text("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip(), style=colour)


INTERVAL_KEY = "█ up to its low end, ▓ to what is predicted, ░ to its high end"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalBar:
    """A number between the ends of its interval."""

    low: float
    middle: float
    high: float


def interval_bars(bars: Sequence[tuple[str, IntervalBar]], cells: int = 56) -> list[tuple[str, str]]:
    """Names with bars of their intervals on one scale, the longest as many cells wide.

    >>> interval_bars([("a", IntervalBar(low=1, middle=2, high=4)), ("b", IntervalBar(low=1, middle=1, high=2))], 8)
    [('a', '██▓▓░░░░'), ('b', '██░░')]
    """
    unit = cells / max((bar.high for _, bar in bars), default=1.0)
    lines = []
    for name, bar in bars:
        low, middle, high = (round(end * unit) for end in (bar.low, bar.middle, bar.high))
        lines.append((name, "█" * low + "▓" * (middle - low) + "░" * (high - middle)))
    return lines


def better_or_worse(share: float) -> Text:
    """A bar of a difference: red where it costs time, green where it saves some."""
    return bar(share, "red" if share > 0 else "green")


def grid(*justify: Side, rows: Rows = ()) -> Table:
    """A table without lines and heads."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for side in justify:
        table.add_column(justify=side, no_wrap=side == "right")
    for row in rows:
        table.add_row(*row)
    return table


def bar_table(rows: Iterable[BarRow], cells: int = 24, form: Callable[[float], str] = "{:.1%}".format) -> Table:
    """Parts below each other: name, size, share of the whole as text and as a bar of so many cells, meaning."""
    table = grid("left", "right", "right", "left", "left")
    for name, size, share, colour, meaning in rows:
        figure = "" if share is None else form(share)
        drawing = bar(share, colour, cells) if colour and share is not None else Text("")
        table.add_row(name, size, figure, drawing, Text(meaning, style="dim"))
    return table


def header_table(
    columns: Iterable[str],
    rows: Rows = (),
    *,
    right: Iterable[str] = (),
    head: str = "bold",
    title: str = "",
    overflow: Overflow = "ellipsis",
) -> Table:
    """A table without lines under heads of a style; the columns in `right` end at one edge."""
    table = Table(box=None, pad_edge=False, header_style=head, title_justify="left", title_style="bold")
    table.title = clean(title) if title else None
    ends = set(right)
    for column in columns:
        table.add_column(column, justify="right" if column in ends else "left", overflow=overflow)
    for row in rows:
        table.add_row(*row)
    return table


def facts(*rows: tuple[str, object]) -> Table:
    """Names and what is said of them, a line each; what is empty is left out."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in rows:
        if value not in (None, "", [], {}):
            table.add_row(Text(name, style="dim"), value if isinstance(value, Text) else clean(value))
    return table


def list_lines(
    title: str, items: Sequence[str], *, most: int | None = None, style: str = "dim"
) -> list[RenderableType]:
    """A title and a line for each item, the rest of many counted; nothing where there is none."""
    lines: list[RenderableType] = [Text.assemble("  - ", clean(item)) for item in items[:most]]
    if most is not None and len(items) > most:
        lines.append(Text(f"  … {len(items) - most} more with --json", style="dim"))
    return [Text(title, style=style), *lines] if lines else []


def blocks(*parts: Iterable[RenderableType]) -> Group:
    """Parts of a page below each other, an empty line between those that say something."""
    lines: list[RenderableType] = []
    for part in parts:
        block = list(part)
        lines += [Text(""), *block] if lines and block else block
    return Group(*lines)


# -- plot -------------------------------------------------------------------------------------------------------------


WIDE, TALL = 64, 12  # characters inside the axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One point and the character that stands for it; later dots cover earlier ones."""

    x: float
    y: float
    mark: str = "o"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotAxis:
    """What an axis shows and how its numbers are written."""

    name: str
    form: Callable[[float], str]


def scatter(dots: Sequence[Dot], across: PlotAxis, up: PlotAxis) -> list[str]:
    """The lines of a scatter plot.

    >>> plain = PlotAxis(name="n", form=lambda value: f"{value:.0f}")
    >>> for line in scatter([Dot(x=1, y=1), Dot(x=2, y=2, mark="*")], plain, plain)[:2]: print(line.rstrip())
    n
    2 |                                                               *
    """
    if not dots:
        return []
    x_scale = Scale.of([dot.x for dot in dots], 0, WIDE - 1)
    y_scale = Scale.of([dot.y for dot in dots], 0, TALL - 1)
    grid = [[" "] * WIDE for _ in range(TALL)]
    for dot in dots:
        grid[TALL - 1 - round(y_scale(dot.y))][round(x_scale(dot.x))] = dot.mark
    low_y, high_y = up.form(y_scale.low), up.form(y_scale.high)
    edge = max(len(low_y), len(high_y))
    rows = []
    for index, row in enumerate(grid):
        label = high_y if index == 0 else low_y if index == TALL - 1 else ""
        rows.append(f"{label:>{edge}} |{''.join(row)}")
    low_x, high_x = across.form(x_scale.low), across.form(x_scale.high)
    middle = f" {across.name} "
    foot = low_x + middle.center(max(len(middle), WIDE - len(low_x) - len(high_x))) + high_x
    return [up.name, *rows, " " * edge + " +" + "-" * WIDE, " " * edge + "  " + foot]
