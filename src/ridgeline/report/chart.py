"""Turn points and curves into the marks of a chart: round ticks, named axes, a legend, labels that lie on nothing.

The same marks become an SVG of a page or a file of its own, or a PNG.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from ridgeline.core.records import dataclass
from ridgeline.core.units import BINARY, DAY, HOUR, MINUTE, format_duration, format_gib
from ridgeline.report import html
from ridgeline.report.drawing import RULE, ChartPoint, Colour, Label, Line, Look, Mark, svg_marks
from ridgeline.report.html import Scale
from ridgeline.report.labels import GLYPH, Box, NamedPoint, dot_box, line_boxes, place_labels

WIDE, TALL = 960, 430  # pixels
LEFT, RIGHT, TOP, BOTTOM = 96, 24, 52, 58
FEW = 8  # different values that are all written at an axis

Form = Callable[[float], str]
BLUE: Colour = (47, 111, 178)
ORANGE: Colour = (192, 84, 16)
GREEN: Colour = (46, 125, 79)
GREY: Colour = (138, 148, 160)
LOOK: Look = {
    "rule": (RULE, 1.0), "line": (GREY, 1.0), "leader": (GREY, 1.0), "curve": (BLUE, 2.0), "limit": (ORANGE, 2.0),
    "dot": (BLUE, 0.0), "best": (ORANGE, 0.0), "weak": (GREY, 0.0),
}  # fmt: skip
"""Colours of a PNG; the style of a page has the same by class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartAxis:
    """What an axis shows, how its numbers are written, and the unit in which its ticks are round.

    marks   what stands at a logarithmic axis; none: 1, 2 and 5 times powers of ten of the unit
    """

    name: str
    form: Form = "{:.3g}".format
    unit: float = 1.0
    marks: tuple[float, ...] = ()

    def with_round_ends(self, scale: Scale) -> Scale:
        """A scale with ends that can be ticks."""
        if not (scale.log and self.marks):
            return scale.with_round_ends(unit=self.unit)
        low = max((mark for mark in self.marks if mark <= scale.low), default=scale.low)
        high = min((mark for mark in self.marks if mark >= scale.high), default=scale.high)
        return replace(scale, low=low, high=high)

    def ticks(self, scale: Scale, most: int = 8) -> list[float]:
        """Round values of a scale.

        >>> seconds_axis("", 600.0).ticks(Scale.of([5, 600], 0, 1))
        [5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0]
        """
        if not (scale.log and self.marks):
            return scale.ticks(most, self.unit)
        inside = [mark for mark in self.marks if scale.low <= mark <= scale.high]
        return inside[:: -(-len(inside) // most)] if inside else [scale.low, scale.high]


TIMES = (
    *(factor * 10.0**power for power in range(-9, 1) for factor in (1, 2, 5)), 10.0, 20.0, 30.0,
    *(MINUTE * count for count in (1, 2, 5, 10, 20, 30)), *(HOUR * count for count in (1, 2, 5, 12)),
    *(DAY * factor * 10.0**power for power in range(6) for factor in (1, 2, 5)),
)  # fmt: skip
"""Durations that people have on a clock."""


def seconds_axis(name: str, most: float) -> ChartAxis:
    """An axis of durations up to `most` seconds."""
    unit = next((size for size in (DAY, HOUR, MINUTE) if most >= 2 * size), 1.0)
    return ChartAxis(name=name, form=format_duration, unit=unit, marks=TIMES)


def memory_axis(name: str) -> ChartAxis:
    """An axis of bytes, with ticks in GiB."""
    return ChartAxis(name=name, form=lambda value: format_gib(value).replace(".0 ", " "), unit=BINARY["Gi"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartDot:
    """A point of a chart: what is said of it when pointed at, its kind, and a name that is written beside it."""

    x: float
    y: float
    note: str
    kind: str = "dot"
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line through points, of a kind; a name that is written at its end."""

    points: Sequence[tuple[float, float]]
    kind: str = "curve"
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Dots and curves over two axes; `legend` says what kinds mean; `x_ticks` replaces round ticks."""

    across: ChartAxis
    up: ChartAxis
    dots: Sequence[ChartDot] = ()
    curves: Sequence[Curve] = ()
    legend: Sequence[tuple[str, str]] = ()
    x_ticks: Sequence[float] = ()
    from_zero: bool = False
    wide: int = WIDE
    tall: int = TALL

    @property
    def scales(self) -> tuple[Scale, Scale]:
        """Both axes, with round ends."""
        points = [(dot.x, dot.y) for dot in self.dots] + [point for curve in self.curves for point in curve.points]
        xs, ys = [x for x, _ in points], [y for _, y in points]
        if self.from_zero:
            xs, ys = [0.0, *xs], [0.0, *ys]
        across = self.across.with_round_ends(Scale.of(xs, LEFT, self.wide - RIGHT))
        up = self.up.with_round_ends(Scale.of(ys, self.tall - BOTTOM, TOP))
        return across, up


RADIUS = {"best": 7.0, "dot": 4.5, "weak": 4.5}


def chart_marks(chart: Chart) -> Iterator[Mark]:
    """All of a chart, what lies below first."""
    across, up = chart.scales
    yield from axis_marks(chart, across, up)
    for curve in chart.curves:
        places = [(across(x), up(y)) for x, y in curve.points]
        for start, end in pairwise(places):
            yield Line(kind=curve.kind, start=start, end=end)
    for dot in sorted(chart.dots, key=lambda dot: dot.kind == "best"):
        yield ChartPoint(kind=dot.kind, x=across(dot.x), y=up(dot.y), radius=RADIUS[dot.kind], told=dot.note)
    yield from _names(chart, across, up)
    yield from legend_marks(chart.legend, chart.wide - RIGHT, 14)


def axis_name(axis: ChartAxis, scale: Scale) -> str:
    """The name of an axis, which says that it is logarithmic where it is."""
    return f"{axis.name}, logarithmic" if scale.log else axis.name


def axis_marks(chart: Chart, across: Scale, up: Scale) -> Iterator[Mark]:
    """Rules with their numbers, and the names of both axes."""
    right, bottom = chart.wide - RIGHT, chart.tall - BOTTOM
    for value in chart.x_ticks or chart.across.ticks(across):
        at = across(value)
        yield Line(kind="rule", start=(at, TOP), end=(at, bottom))
        yield Label(text=chart.across.form(value), x=at, y=bottom + 18, anchor="middle")
    for value in chart.up.ticks(up):
        yield Line(kind="rule", start=(LEFT, up(value)), end=(right, up(value)))
        yield Label(text=chart.up.form(value), x=LEFT - 8, y=up(value) + 4, anchor="end")
    yield Label(text=axis_name(chart.across, across), x=(LEFT + right) / 2, y=chart.tall - 14, anchor="middle")
    yield Label(text=axis_name(chart.up, up), x=LEFT, y=TOP - 14)


def _names(chart: Chart, across: Scale, up: Scale) -> Iterator[Mark]:
    """The names of dots and curves, each where it has room, with a line to what it names where it stands apart."""
    covered = [dot_box(across(dot.x), up(dot.y), RADIUS[dot.kind]) for dot in chart.dots]
    points = [
        NamedPoint(text=dot.name, x=across(dot.x), y=up(dot.y), radius=RADIUS[dot.kind])
        for dot in chart.dots
        if dot.name
    ]
    for curve in chart.curves:
        places = [(across(x), up(y)) for x, y in curve.points]
        for start, end in pairwise(places):
            covered += line_boxes(start, end)
        if curve.name:
            points.append(NamedPoint(text=curve.name, x=places[-1][0], y=places[-1][1] - 8))
    frame = Box(left=LEFT, top=TOP - 8, right=chart.wide - 2, bottom=chart.tall - BOTTOM)
    yield from label_marks(points, frame, covered)


def label_marks(
    points: Sequence[NamedPoint], frame: Box, covered: Sequence[Box], barriers: Sequence[Box] = ()
) -> Iterator[Mark]:
    """Labels that found a place, and lines from those that stand apart to their points."""
    for label in place_labels(points, frame, covered, barriers):
        if label.leader is not None:
            start, end = label.leader
            yield Line(kind="leader", start=start, end=end)
        yield Label(text=label.point.text, x=label.box.left, y=label.baseline, faint=False)


def legend_marks(legend: Sequence[tuple[str, str]], right: float, y: float) -> Iterator[Mark]:
    """What kinds of dots mean, in a line that ends at the right edge."""
    x = right - sum(GLYPH * len(word) + LEGEND_GAP for _, word in legend)
    for kind, word in legend:
        yield ChartPoint(kind=kind, x=x + 8, y=y, radius=RADIUS.get(kind, 4.5))
        yield Label(text=word, x=x + 20, y=y + 4, faint=False)
        x += GLYPH * len(word) + LEGEND_GAP


LEGEND_GAP = 30  # pixels of a dot and of what is free behind its word


def chart_svg(chart: Chart, title: str = "") -> str:
    """The chart as an SVG element."""
    return svg_marks(chart_marks(chart), chart.wide, chart.tall, title)


POINT_AT = "Point at a dot, or step to it with the Tab key: what it is stands here."


def chart_figure(chart: Chart, caption: str) -> str:
    """A chart of a page with its caption and a line that says what is pointed at."""
    words = html.escape_text(caption)
    note = f'<p class="told">{POINT_AT}</p>' if any(dot.note for dot in chart.dots) else ""
    return f"<figure data-chart>{chart_svg(chart, caption)}<figcaption>{words}</figcaption>{note}</figure>"


def bars(rows: Sequence[tuple[str, float, str, str]], total: float) -> str:
    """Parts of a whole as lines of a table: name, share as a bar of a kind, size, meaning."""
    lines = []
    for name, value, kind, meaning in rows:
        share = value / total if total else 0.0
        bar = html.svg(240, 12, [f'<rect class="{kind}" width="{max(240 * share, 0.5):.1f}" height="12"/>'])
        cells = (
            f'<td class="text">{html.inline_code(name)}</td><td class="text bar">{bar}</td>'
            f"<td>{html.escape_text(format_duration(value))}</td><td>{share:.1%}</td>"
            f'<td class="text faint">{html.escape_text(meaning)}</td>'
        )
        lines.append(f"<tr>{cells}</tr>")
    return f'<div class="wide" tabindex="0"><table class="bars"><tbody>{"".join(lines)}</tbody></table></div>'
