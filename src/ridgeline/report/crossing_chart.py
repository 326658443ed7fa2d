"""Turn a selector by size into charts: seconds over bytes, the fastest algorithm's line, the bound, the crossings."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10

import numpy as np

from ridgeline.comm.crossings import SizeRange
from ridgeline.core.units import format_quantity
from ridgeline.report import html
from ridgeline.report.plot import Axis, Dot, scatter

MARKS = "abcdefghijklmnopqrstuvwxyz"
COLOURS = ("#2f6fb2", "#d1661f", "#3f8f4f", "#8c56a8", "#b3394a", "#5f7a86")
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 30
POINTS = 9  # of a range on a terminal


def crossing_lines(ranges: Sequence[SizeRange]) -> list[str]:
    """The chart in plain characters: a letter for each algorithm, `.` the bound, `|` where two cross."""
    dots: list[Dot] = []
    low = min(one.min_bound_seconds for one in ranges)
    for mark, one in zip(MARKS, ranges, strict=False):
        sizes = np.geomspace(one.min_bytes, one.max_bytes, POINTS)
        bound = np.interp(sizes, _ends(one, "bytes"), _ends(one, "bound_seconds"))
        taken = np.interp(sizes, _ends(one, "bytes"), _ends(one, "seconds"))
        dots += [Dot(x=float(x), y=float(y), mark=".") for x, y in zip(sizes, bound, strict=True)]
        dots += [Dot(x=float(x), y=float(y), mark=mark) for x, y in zip(sizes, taken, strict=True)]
    dots += [Dot(x=one.min_bytes, y=low, mark="|") for one in ranges[1:]]
    across = Axis(name="size", form=lambda value: format_quantity(value, "B", 2))
    up = Axis(name="seconds", form=lambda value: format_quantity(value, "s", 2))
    named = [f"{mark} {one.algorithm}" for mark, one in zip(MARKS, ranges, strict=False)]
    return [*scatter(dots, across, up), f"{', '.join(named)}; . bound; | crossing"]


def _ends(one: SizeRange, what: str) -> list[float]:
    return [getattr(one, f"min_{what}"), getattr(one, f"max_{what}")]


def crossing_marks(ranges: Sequence[SizeRange], width: float, height: float) -> list[str]:
    """The chart as marks of a drawing, both axes logarithmic, a rule with its size at each crossing."""
    low, high = ranges[0].min_bytes, ranges[-1].max_bytes
    times = [value for one in ranges for value in (*_ends(one, "seconds"), *_ends(one, "bound_seconds")) if value > 0]
    least, most = min(times), max(times)

    def x(size: float) -> float:
        return LEFT + (width - LEFT - RIGHT) * log10(size / low) / max(log10(high / low), 1e-9)

    def y(seconds: float) -> float:
        share = log10(max(seconds, least) / least) / max(log10(most / least), 1e-9)
        return height - BOTTOM - (height - TOP - BOTTOM) * share

    marks = [html.label("fastest by size; dashed: bound", LEFT, 14)]
    for seconds in (least, most):
        marks += [html.rule(f"M{LEFT} {y(seconds):.1f}H{width - RIGHT:.1f}")]
        marks += [html.label(format_quantity(seconds, "s", 2), LEFT - 6, y(seconds) + 4, anchor="end")]
    for size, anchor in ((low, "start"), (high, "end")):
        marks.append(html.label(format_quantity(size, "B", 3), x(size), height - 8, anchor=anchor))
    for row, one in enumerate(ranges):
        colour, (first, last) = COLOURS[row % len(COLOURS)], _ends(one, "bytes")
        sizes = np.geomspace(first, last, 24)
        taken = np.interp(sizes, (first, last), _ends(one, "seconds"))
        bound = np.interp(sizes, (first, last), _ends(one, "bound_seconds"))
        marks.append(html.rule(_path([(x(s), y(t)) for s, t in zip(sizes, bound, strict=True)]), "line"))
        path = _path([(x(s), y(t)) for s, t in zip(sizes, taken, strict=True)])
        told = f"{one.algorithm}, {one.chunks} chunks"
        line = f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2">'
        marks.append(f"{line}<title>{html.escaped(told)}</title></path>")
        high_up = TOP - 6 - 11 * (row % 2)
        marks.append(html.label(one.algorithm, (x(first) + x(last)) / 2, high_up, anchor="middle"))
        if row:
            marks.append(html.rule(f"M{x(first):.1f} {TOP}V{height - BOTTOM:.1f}"))
            marks.append(html.label(format_quantity(first, "B", 3), x(first), height - 8, anchor="middle"))
    return marks


def _path(points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def crossing_table(ranges: Sequence[SizeRange]) -> str:
    """The ranges as a table of a page."""
    rows = [
        (one.algorithm, one.chunks, *(format_quantity(value, "B", 3) for value in _ends(one, "bytes")),
         *(format_quantity(value, "s", 3) for value in _ends(one, "seconds")))
        for one in ranges
    ]  # fmt: skip
    return html.table(("fastest", "chunks", "from", "to", "takes at first", "takes at last"), rows, text=(0,))
