"""Labels of a chart: none lies on another, on a dot, on a line or off the chart, however near their points are."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.report.labels import GLYPH, Box, NamedPoint, dot_box, line_boxes, place_labels

FRAME = Box(left=0, top=0, right=600, bottom=400)
POINTS = st.builds(
    NamedPoint,
    text=st.text("abcdefg ", min_size=1, max_size=12),
    x=st.floats(20, 580),
    y=st.floats(20, 380),
    radius=st.floats(2, 20),
)


@given(st.lists(POINTS, max_size=14, unique=True))
def test_no_label_lies_on_anything(points: list[NamedPoint]) -> None:
    line = list(line_boxes((0, 100), (600, 100), every=3.0))
    placed = place_labels(points, FRAME, barriers=line)
    dots = [dot_box(point.x, point.y, point.radius) for point in points]
    for one, other in combinations(placed, 2):
        assert not one.box.overlaps(other.box)
    for label in placed:
        assert FRAME.contains(label.box)
        assert not any(label.box.overlaps(box) for box in (*dots, *line))
        assert label.box.right - label.box.left >= GLYPH * len(label.point.text) - 1e-9
    order = [points.index(label.point) for label in placed]
    assert order == sorted(order), "the first points have the first choice"


def test_a_label_that_stands_apart_has_a_line_to_the_rim_of_its_dot() -> None:
    near = [NamedPoint(text=f"name {place}", x=300, y=200 + place, radius=10) for place in range(16)]
    apart = [label for label in place_labels(near, FRAME) if label.leader is not None]
    assert apart
    for label in apart:
        assert label.leader is not None
        _, (x, y) = label.leader
        assert abs(((x - label.point.x) ** 2 + (y - label.point.y) ** 2) ** 0.5 - label.point.radius) < 1e-6


def test_a_label_without_room_is_left_out() -> None:
    small = Box(left=0, top=0, right=40, bottom=20)
    assert place_labels([NamedPoint(text="much too long for it", x=20, y=10, radius=2)], small) == []


def test_a_line_from_a_label_does_not_cross_a_barrier() -> None:
    wall = list(line_boxes((0, 180), (600, 180), every=2.0))
    crowd = [NamedPoint(text=f"name {place}", x=300 + place, y=195, radius=3) for place in range(12)]
    for label in place_labels(crowd, FRAME, barriers=wall):
        assert label.box.top > 180 or label.leader is None
