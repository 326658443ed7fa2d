"""Place texts of a chart beside what they name, so that none lies on another, on a line or off the chart.

Each label has its point. Places around it are tried from the nearest to the furthest, in the order in which labels
come; what has no free place is left out, and a table below the chart names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import hypot

from ridgeline.core.records import dataclass

GLYPH, LINE = 8.0, 14.0  # pixels of a sign and of a line of text, at most: those of a PNG
STEPS = (0, 1, 2, 3, 4, 5)  # lines that a label may be above or below its point


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A part of a chart, in pixels; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Whether they share more than an edge."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def contains(self, other: Box) -> bool:
        """Whether the other lies inside."""
        across = self.left <= other.left and other.right <= self.right
        return across and self.top <= other.top and other.bottom <= self.bottom


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPoint:
    """A text that belongs beside a dot of a radius, or at a place of a line where that is nothing."""

    text: str
    x: float
    y: float
    radius: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLabel:
    """A text with its box; it starts at the left edge and stands on the lower one."""

    point: NamedPoint
    box: Box

    @property
    def baseline(self) -> float:
        """Where the letters stand."""
        return self.box.bottom - 3

    @property
    def leader(self) -> tuple[tuple[float, float], tuple[float, float]] | None:
        """The line from a label that stands apart to the rim of its dot; None where it needs none."""
        box, point = self.box, self.point
        if abs((box.top + box.bottom) / 2 - point.y) <= LINE + point.radius:
            return None
        start = (min(max(point.x, box.left), box.right), box.top if box.top > point.y else box.bottom)
        far = hypot(start[0] - point.x, start[1] - point.y)
        share = point.radius / far
        return start, (point.x + (start[0] - point.x) * share, point.y + (start[1] - point.y) * share)


def place_labels(
    points: Sequence[NamedPoint], frame: Box, taken: Iterable[Box] = (), barriers: Iterable[Box] = ()
) -> list[PlacedLabel]:
    """The labels that have a free place, in the order of their points.

    taken      covered already; barriers: covered, and not even crossed by the line from a label to its point

    >>> frame = Box(left=0, top=0, right=200, bottom=100)
    >>> near = [NamedPoint(text="up", x=50, y=50, radius=4), NamedPoint(text="down", x=52, y=50, radius=4)]
    >>> [(label.point.text, label.box.left, label.box.top) for label in place_labels(near, frame)]
    [('up', 58, 43.0), ('down', 12.0, 43.0)]
    """
    lines = list(barriers)
    full_boxes = [*taken, *lines, *(dot_box(point.x, point.y, point.radius) for point in points if point.radius)]
    labels: list[PlacedLabel] = []
    for point in points:
        label = next((label for label in _free(point, frame, full_boxes) if not _crosses(label, lines)), None)
        if label is None:
            continue
        labels.append(label)
        full_boxes.append(label.box)
        lines.append(label.box)
        if label.leader is not None:
            full_boxes += line_boxes(*label.leader)
    return labels


def _free(point: NamedPoint, frame: Box, full_boxes: Sequence[Box]) -> Iterator[PlacedLabel]:
    """The places of a label where nothing is."""
    for box in _places(point):
        if frame.contains(box) and not any(box.overlaps(other) for other in full_boxes):
            yield PlacedLabel(point=point, box=box)


def _crosses(label: PlacedLabel, lines: Sequence[Box]) -> bool:
    """Whether the line from a label to its point crosses another label or a barrier."""
    if label.leader is None:
        return False
    pieces = list(line_boxes(*label.leader, thick=1.0, every=2.0))
    around = Box(
        left=min(piece.left for piece in pieces), top=min(piece.top for piece in pieces),
        right=max(piece.right for piece in pieces), bottom=max(piece.bottom for piece in pieces),
    )  # fmt: skip
    near = [other for other in lines if around.overlaps(other)]
    return any(piece.overlaps(other) for piece in pieces for other in near)


def _places(point: NamedPoint) -> Iterator[Box]:
    """Right and left of the point, then above and below it, further and further away."""
    wide, gap = GLYPH * len(point.text), point.radius + 4
    for step in STEPS:
        for sign in (-1, 1) if step else (1,):
            middle = point.y + sign * (step * LINE + (point.radius if step else 0.0))
            starts = (point.x + gap, point.x - gap - wide) if not step else _starts(point.x, wide, gap)
            for left in starts:
                yield Box(left=left, top=middle - LINE / 2, right=left + wide, bottom=middle + LINE / 2)


def _starts(x: float, wide: float, gap: float) -> tuple[float, ...]:
    return (x - wide / 2, x + gap, x - gap - wide)


def dot_box(x: float, y: float, radius: float) -> Box:
    """The box of a dot."""
    return Box(left=x - radius, top=y - radius, right=x + radius, bottom=y + radius)


def line_boxes(
    start: tuple[float, float], end: tuple[float, float], thick: float = 4.0, every: float = GLYPH
) -> Iterator[Box]:
    """Boxes that cover a line, so many pixels apart."""
    (left, top), (right, bottom) = start, end
    count = max(1, int(max(abs(right - left), abs(bottom - top)) / every))
    for place in range(count + 1):
        x, y = left + (right - left) * place / count, top + (bottom - top) * place / count
        yield dot_box(x, y, thick / 2)
