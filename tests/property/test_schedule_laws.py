"""Every schedule at every size obeys the laws, holds what the literature says, and idles what the literature says."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_laws import violations

from ridgeline.plan.schedules import (
    SCHEDULES,
    Action,
    Costs,
    Phase,
    ScheduleTable,
    Transport,
    blocked_ranks,
    build,
    peak_in_flight,
    requirement,
    run_in_order,
)

stages = st.integers(1, 8)
microbatches = st.integers(1, 20)
cost = st.integers(1, 12).map(float)


@st.composite
def sizes(draw: st.DrawFn, name: str) -> tuple[int, int, int]:
    """Stages, microbatches and chunks that the schedule accepts."""
    p, m = draw(stages), draw(microbatches)
    kind = SCHEDULES[name]
    v = draw(st.integers(kind.fewest_chunks, kind.most_chunks or 4))
    if name == "interleaved":
        m = p * draw(st.integers(1, 4))
    if name == "dualpipe-v":
        m += 2 * p - 1
    assert requirement(name, p, m, v) is None
    return p, m, v


@st.composite
def tables(draw: st.DrawFn, name: str) -> ScheduleTable:
    p, m, v = draw(sizes(name))
    return build(name, stages=p, microbatches=m, chunks=v)


def held(table: ScheduleTable, rank: int) -> int:
    """Chunks the literature says a rank holds at most, up to the end of the weight backward."""
    p, v, m = table.stages, table.chunks, table.microbatches
    return {
        "gpipe": m,
        "1f1b": min(m, p - rank),
        "interleaved": min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1),
        "zero-bubble-h1": min(m, p),
        "zbv": min(2 * m, 2 * p),
        "dualpipe-v": 2 * p + 1,
    }[table.name]


@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_laws_hold(name: str, data: st.DataObject) -> None:
    table = data.draw(tables(name))
    assert violations(table) == ()
    assert blocked_ranks(table, SCHEDULES[name].transport) == {}


@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_held_activations_reach_the_bound_and_stay_within(name: str, data: st.DataObject) -> None:
    table = data.draw(tables(name))
    peaks = peak_in_flight(table)
    bounds = tuple(held(table, rank) for rank in range(table.stages))
    if name == "zbv" and table.microbatches < 2 * table.stages - 1:
        assert all(peak <= bound for peak, bound in zip(peaks, bounds, strict=True))
    else:
        assert peaks == bounds
    early = peak_in_flight(table, released_by=Phase.BACKWARD_INPUT)
    assert all(less <= more for less, more in zip(early, peaks, strict=True))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(["gpipe", "1f1b", "interleaved"]), f=cost, i=cost, w=cost)
def test_bubble_of_whole_backwards(data: st.DataObject, name: str, f: float, i: float, w: float) -> None:
    """(p - 1) (F + B) per chunk, so (p - 1) / (m v) of the work and, at v = 1, (p - 1) / (m + p - 1) of the step."""
    table = data.draw(tables(name))
    run = run_in_order(table, Costs(forward=f, backward_input=i, backward_weight=w))
    p, work = table.stages, table.microbatches * table.chunks
    assert run.bubble == pytest.approx((p - 1) * (f + i + w))
    assert run.bubble / run.busiest == pytest.approx((p - 1) / work)
    assert run.bubble_fraction == pytest.approx((p - 1) / (work + p - 1))


@settings(max_examples=60, deadline=None)
@given(p=stages, extra=st.integers(0, 12), f=cost, i=cost, w=cost)
def test_bubble_of_zero_bubble_h1(p: int, extra: int, f: float, i: float, w: float) -> None:
    table = build("zero-bubble-h1", stages=p, microbatches=p + extra)
    run = run_in_order(table, Costs(forward=f, backward_input=i, backward_weight=w))
    assert run.bubble == pytest.approx((p - 1) * (f + i - min(f, i, w)))


@settings(max_examples=40, deadline=None)
@given(p=stages, extra=st.integers(0, 12))
def test_zbv_never_pauses_when_phases_cost_the_same(p: int, extra: int) -> None:
    run = run_in_order(build("zbv", stages=p, microbatches=2 * p - 1 + extra))
    assert run.span_bubble == 0
    assert run.bubble == p - 1


@settings(max_examples=40, deadline=None)
@given(p=stages, extra=st.integers(0, 12), f=cost, saved=st.floats(0, 0.9))
def test_bubble_of_dualpipe_v(p: int, extra: int, f: float, saved: float) -> None:
    w = f * (1 - saved)
    table = build("dualpipe-v", stages=p, microbatches=2 * p + extra)
    run = run_in_order(table, Costs(forward=f, backward_input=f, backward_weight=w))
    pair, whole = 2 * f + w, f + w
    assert run.bubble == pytest.approx((p - 1) * (pair + whole - 3 * w))


@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=20, deadline=None)
@given(data=st.data(), f=cost, i=cost, w=cost)
def test_steps_run_in_order_and_work_is_conserved(name: str, data: st.DataObject, f: float, i: float, w: float) -> None:
    table = data.draw(tables(name))
    run = run_in_order(table, Costs(forward=f, backward_input=i, backward_weight=w))
    for times in run.times:
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(times))
        assert sum(end - start for start, end in times) == pytest.approx(
            table.microbatches * table.chunks * (f + i + w)
        )


@settings(max_examples=100, deadline=None)
@given(data=st.data(), p=st.integers(2, 4), m=st.integers(2, 4))
def test_posting_ahead_finishes_whatever_buffering_finishes(data: st.DataObject, p: int, m: int) -> None:
    """The claim of ``transport``, tried on rows in random order: both finish or neither does."""
    table = build("1f1b", stages=p, microbatches=m)
    turns = [data.draw(st.permutations([*range(m), *range(m)])) for _ in range(p)]
    shuffled = replace(table, rows=tuple(_forward_then_backward(row) for row in turns))
    assert bool(run_in_order(shuffled).stuck) == bool(blocked_ranks(shuffled, Transport.AHEAD))


def _forward_then_backward(turns: list[int]) -> tuple[Action, ...]:
    """The first turn of a microbatch is its forward, the second its backward."""
    seen: set[int] = set()
    row = []
    for microbatch in turns:
        phase = Phase.BACKWARD if microbatch in seen else Phase.FORWARD
        row.append(Action(phase=phase, microbatch=microbatch))
        seen.add(microbatch)
    return tuple(row)
