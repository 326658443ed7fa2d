"""Charts: axes say what they are, numbers are round, what is chosen has a mark and a name of its own."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.report.chart import (
    Chart,
    ChartAxis,
    ChartDot,
    bars,
    chart_figure,
    chart_marks,
    memory_axis,
    seconds_axis,
)
from ridgeline.report.drawing import ChartPoint, Label
from ridgeline.report.html import Scale

DOTS = [
    ChartDot(x=1.3, y=7.0 * 2**30, note="slow"),
    ChartDot(x=162.0, y=163.0 * 2**30, note="fast", kind="best", name="chosen"),
]
PLAIN = Chart(across=seconds_axis("step", 162.0), up=memory_axis("memory"), dots=DOTS, legend=(("best", "chosen"),))


def texts(chart: Chart) -> list[str]:
    return [mark.text for mark in chart_marks(chart) if isinstance(mark, Label)]


def is_round(value: float) -> bool:
    """Whether a number is 1, 2 or 5 times a power of ten."""
    power = math.floor(math.log10(value) + 1e-9)
    return any(abs(value / 10**power - factor) < 1e-6 for factor in (1, 2, 5, 10))


def test_logarithmic_axes_say_so_and_have_round_ticks() -> None:
    written = texts(PLAIN)
    assert "step, logarithmic" in written
    assert "memory, logarithmic" in written
    assert {"1 s", "5 s", "20 s", "60 s", "5 min"} <= set(written)
    assert "10 GiB" in written
    linear = Chart(
        across=ChartAxis(name="chips"),
        up=ChartAxis(name="rate"),
        dots=[ChartDot(x=8, y=3, note=""), ChartDot(x=16, y=4, note="")],
    )
    assert not any("logarithmic" in text for text in texts(linear))


def test_what_is_chosen_has_a_mark_and_a_name() -> None:
    points = {mark.told: mark for mark in chart_marks(PLAIN) if isinstance(mark, ChartPoint) and mark.told}
    assert points["fast"].kind != points["slow"].kind
    assert points["fast"].radius > points["slow"].radius
    assert texts(PLAIN).count("chosen") == 2, "beside the dot and in the legend"
    assert 'tabindex="0"' in chart_figure(PLAIN, "a caption")


@given(st.lists(st.floats(1e-9, 1e15), min_size=2, max_size=8, unique=True))
def test_ticks_are_round_few_and_inside(values: list[float]) -> None:
    scale = Scale.of(values, 0, 100).with_round_ends()
    assert scale.low <= min(values) * (1 + 1e-6)
    assert scale.high >= max(values) * (1 - 1e-6)
    ticks = scale.ticks()
    assert len(ticks) <= 9
    assert all(scale.low * (1 - 1e-5) <= tick <= scale.high * (1 + 1e-5) for tick in ticks)
    if scale.log:
        factors = [tick / 10 ** math.floor(math.log10(tick) + 1e-9) for tick in ticks]
        assert all(round(factor, 4) in (1, 2, 3, 5, 10) for factor in factors)
    elif len(ticks) > 2:
        assert is_round(ticks[1] - ticks[0])


def test_durations_have_ticks_of_their_own_unit() -> None:
    assert seconds_axis("", 30.0).form(17.68) == "17.7 s"
    axis = seconds_axis("run", 7200.0 * 5)
    scale = Scale.of([0.0, 36000.0], 0, 100).with_round_ends(unit=axis.unit)
    assert [axis.form(tick) for tick in scale.ticks(unit=axis.unit)][-1] == "10 h"


def test_bars_are_parts_of_a_whole() -> None:
    table = bars([("matmul", 3.0, "compute", "<b>"), ("host", 1.0, "host", "")], 4.0)
    assert "75.0%" in table
    assert "<b>" not in table
