"""Turn points into a picture of plain characters: a scatter with axes, logarithmic where the values span much."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDE, TALL = 64, 12  # characters inside the axes
SPAN = 4.0  # largest over smallest value from which an axis is logarithmic


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One point and the character that stands for it; later dots cover earlier ones."""

    x: float
    y: float
    mark: str = "o"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis shows and how its numbers are written."""

    name: str
    form: Callable[[float], str]


def scatter(dots: Sequence[Dot], across: Axis, up: Axis) -> list[str]:
    """The lines of a scatter plot.

    >>> plain = Axis(name="n", form=lambda value: f"{value:.0f}")
    >>> for line in scatter([Dot(x=1, y=1), Dot(x=2, y=2, mark="*")], plain, plain)[:2]: print(line.rstrip())
    n
    2 |                                                               *
    """
    if not dots:
        return []
    place_x, place_y = _scale([dot.x for dot in dots], WIDE), _scale([dot.y for dot in dots], TALL)
    grid = [[" "] * WIDE for _ in range(TALL)]
    for dot in dots:
        grid[TALL - 1 - place_y(dot.y)][place_x(dot.x)] = dot.mark
    low_y, high_y = up.form(min(dot.y for dot in dots)), up.form(max(dot.y for dot in dots))
    edge = max(len(low_y), len(high_y))
    rows = []
    for index, row in enumerate(grid):
        label = high_y if index == 0 else low_y if index == TALL - 1 else ""
        rows.append(f"{label:>{edge}} |{''.join(row)}")
    low_x, high_x = across.form(min(dot.x for dot in dots)), across.form(max(dot.x for dot in dots))
    middle = f" {across.name} "
    foot = low_x + middle.center(max(len(middle), WIDE - len(low_x) - len(high_x))) + high_x
    return [up.name, *rows, " " * edge + " +" + "-" * WIDE, " " * edge + "  " + foot]


def _scale(values: Sequence[float], cells: int) -> Callable[[float], int]:
    """Where a value stands among so many cells."""
    low, high = min(values), max(values)
    bent = low > 0 and high / low > SPAN
    start, end = (math.log(low), math.log(high)) if bent else (low, high)

    def place(value: float) -> int:
        at = math.log(value) if bent else value
        return round((at - start) / (end - start) * (cells - 1)) if end > start else cells // 2

    return place
