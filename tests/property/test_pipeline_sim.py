"""The event run obeys what any pipeline obeys, and the closed form stays within 2 % below it."""

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_oracle import Tail, blocked_s, bubble_s, busy_s, run_events, summarize

from ridgeline.plan.schedules import SCHEDULES, ScheduleTable, build, requirement
from ridgeline.sim.closed_form.schedule_time import closed_form
from ridgeline.sim.events.event_loop import PipelineRun, Slowdown, StageWork

NAMES = sorted(SCHEDULES)
CLOSE = 0.02


class Plan(NamedTuple):
    """One random plan; the table is built when asked for, so that a failing plan prints short."""

    name: str
    stages: int
    microbatches: int
    chunks: int
    work: list[StageWork]
    send_blocks: bool
    gain: float

    @property
    def table(self) -> ScheduleTable:
        return build(self.name, stages=self.stages, microbatches=self.microbatches, chunks=self.chunks)


def run(plan: Plan, **how: Slowdown | Tail) -> PipelineRun:
    return run_events(plan.table, plan.work, send_blocks=plan.send_blocks, overlapped_gain=plan.gain, **how)  # type: ignore[arg-type]


def predicted(plan: Plan) -> float:
    work = replace(summarize(plan.work, plan.table.placement), overlapped_gain=plan.gain)
    sizes = {"stages": plan.stages, "chunks": plan.chunks, "microbatches": plan.microbatches}
    return float(closed_form(plan.name, **sizes, work=work, send_blocks=plan.send_blocks))


@st.composite
def plans(draw: st.DrawFn, name: str, most_microbatches: int = 48) -> Plan:
    """p 1 to 8, I and W 0.5 to 2 times F, ends up to 30 % heavier, sends up to 20 % of F."""
    p, kind = draw(st.integers(1, 8)), SCHEDULES[name]
    v = draw(st.integers(kind.fewest_chunks, kind.most_chunks or 4))
    m = draw(st.integers(1, most_microbatches))
    m = {"interleaved": p * (1 + m % 6), "dualpipe-v": 2 * p + m}.get(name, m)
    assert requirement(name, p, m, v) is None
    ratio, heavier = st.floats(0.5, 2.0), st.floats(1.0, 1.3)
    forward, inputs, weights = 1.0, draw(ratio), draw(ratio)
    send = draw(st.one_of(st.just(0.0), st.floats(0.0, 0.2)))

    def stage() -> StageWork:
        f, i, w = draw(heavier), draw(heavier), draw(heavier)
        return StageWork(forward_s=f * forward, backward_input_s=i * inputs, backward_weight_s=w * weights, send_s=send)

    inner = StageWork(forward_s=forward, backward_input_s=inputs, backward_weight_s=weights, send_s=send)
    work = [stage(), *[inner] * (p * v - 2), stage()][: p * v]
    gain = draw(st.floats(0.0, 0.3)) if name == "dualpipe-v" else 0.0
    return Plan(name, p, m, v, work, draw(st.booleans()), gain)


any_plan = st.sampled_from(NAMES).flatmap(lambda name: plans(name, 16))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_the_closed_form_agrees(name: str, data: st.DataObject) -> None:
    plan = data.draw(plans(name))
    events, formula = run(plan).makespan_s, predicted(plan)
    assert formula <= events * (1 + 1e-9), "no path listed is longer than a run"
    assert formula >= events * (1 - CLOSE)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_equal_stages_agree_exactly(name: str, data: st.DataObject) -> None:
    plan = data.draw(plans(name))
    plan = plan._replace(work=[plan.work[len(plan.work) // 2]] * len(plan.work), send_blocks=False)
    assert predicted(plan) == pytest.approx(run(plan).makespan_s)


@given(plan=any_plan)
@settings(max_examples=80, deadline=None)
def test_busy_and_idle_fill_the_makespan(plan: Plan) -> None:
    ranks = plan.stages
    result = run(plan, tail=Tail(reduce_s=[0.5] * ranks, optimizer_s=[0.25] * ranks))
    for rank in range(ranks):
        idle = sum(later.start_s - earlier.end_s for earlier, later in pairwise(result.steps[rank]))
        idle += result.steps[rank][0].start_s - blocked_s(result, rank)
        idle += result.reduce[rank].start_s - result.steps[rank][-1].end_s
        idle += result.makespan_s - result.optimizer[rank].end_s
        assert bubble_s(result, rank) == pytest.approx(idle, abs=1e-9)
        assert busy_s(result, rank) + bubble_s(result, rank) == pytest.approx(result.makespan_s)
        assert -1e-9 <= result.waited_s[rank] <= bubble_s(result, rank) + 1e-9


@given(plan=any_plan)
@settings(max_examples=40, deadline=None)
def test_the_same_plan_gives_the_same_run(plan: Plan) -> None:
    assert run(plan) == run(plan)


@given(plan=any_plan, factor=st.floats(1.0, 4.0), data=st.data())
@settings(max_examples=80, deadline=None)
def test_slower_is_never_shorter(plan: Plan, factor: float, data: st.DataObject) -> None:
    before = run(plan).makespan_s
    place = data.draw(st.integers(0, plan.stages - 1))
    assert run(plan, slow=Slowdown(ranks={place: factor})).makespan_s >= before - 1e-9
    assert run(plan, slow=Slowdown(links={place: factor})).makespan_s >= before - 1e-9
    slower = [replace(stage, send_s=stage.send_s * factor) for stage in plan.work]
    assert run(plan._replace(work=slower)).makespan_s >= before - 1e-9
    assert predicted(plan._replace(work=slower)) >= predicted(plan) - 1e-9


@given(plan=any_plan)
@settings(max_examples=60, deadline=None)
def test_more_microbatches_are_never_shorter(plan: Plan) -> None:
    larger = plan._replace(microbatches=plan.microbatches + (plan.stages if plan.name == "interleaved" else 1))
    assert run(larger).makespan_s >= run(plan).makespan_s - 1e-9
    assert predicted(larger) >= predicted(plan) * (1 - CLOSE)


@given(plan=any_plan, factor=st.floats(2.0, 4.0))
@settings(max_examples=40, deadline=None)
def test_a_straggler_is_seen_by_events_alone(plan: Plan, factor: float) -> None:
    late = run(plan, slow=Slowdown(ranks={plan.stages - 1: factor}))
    last = plan.stages - 1
    own = sum(plan.work[stage].total_s for stage in plan.table.placement[last])
    assert late.makespan_s >= plan.microbatches * own * factor * (1 - plan.gain) - 1e-9
