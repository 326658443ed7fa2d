"""Turn points into a picture of plain characters: a scatter with axes, logarithmic where the values span much."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline.core.records import dataclass
from ridgeline.report.scale import Scale

WIDE, TALL = 64, 12  # characters inside the axes


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
