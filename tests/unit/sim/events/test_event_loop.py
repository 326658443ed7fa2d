"""Links that are shared, followed by hand; and where nobody shares, the run of the pipeline alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_oracle import Tail, last_rank, run_events

from ridgeline.plan.schedules import SCHEDULES, Phase, build
from ridgeline.sim.events.event_loop import SharedWork, Slowdown, StageWork, run_shared
from ridgeline.sim.events.stream_work import Comm, Exchange, PassMix, PassTimelines, PassWork, Task, flow, tasks_of

NEAR, FAR, NONE = (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)


def a_pass(attention: float = 0.0, matmul: float = 0.0, *comms: Comm) -> PassWork:
    compute = {"memory": 0.0, "attention": attention, "matmul": matmul, "kernel": 0.0}
    return PassWork(compute=MappingProxyType(compute), comms=comms)


def length(item: PassWork, background: tuple[float, float] = NONE) -> float:
    return flow(tasks_of(item), background).seconds


# -- one pass ---------------------------------------------------------------------------------------------------------


def test_two_equal_collectives_on_one_tier_take_twice_as_long() -> None:
    one, two = Task("tp", "one", "", 3.0, NEAR), Task("ep", "two", "", 3.0, NEAR)
    assert flow([one]).seconds == 3.0
    assert flow([one, two]).seconds == 6.0
    assert flow([one, two._replace(loads=FAR)]).seconds == 3.0
    assert flow([one, two._replace(stream="compute", loads=NONE)]).seconds == 3.0


def test_the_shorter_leaves_its_bandwidth_to_the_longer() -> None:
    # 1 s of the short one takes 2 s shared; the long one has 2 of 3 s left then
    found = flow([Task("tp", "short", "", 1.0, NEAR), Task("ep", "long", "", 3.0, NEAR)])
    assert [(item.name, item.end_s) for item in found.segments] == [("short", 2.0), ("long", 4.0)]


def test_loads_below_one_share_without_loss() -> None:
    half = (0.5, 0.0)
    assert flow([Task("tp", "a", "", 1.0, half), Task("ep", "b", "", 1.0, half)]).seconds == 1.0
    assert flow([Task("tp", "a", "", 1.0, half), Task("ep", "b", "", 1.0, NEAR)]).seconds == 1.5


def test_what_is_hidden_runs_beside_compute_and_the_rest_is_waited_for() -> None:
    tp = Comm(stream="tp", seconds=2.0, hidden=0.75, loads=NEAR)
    assert length(a_pass(0.0, 4.0, tp)) == 4.0 + 0.25 * 2.0
    assert length(a_pass(0.0, 1.0, tp)) == 0.75 * 2.0 + 0.25 * 2.0  # compute is too short to hide it
    cp = Comm(stream="cp", seconds=2.0, hidden=0.85, loads=NEAR)
    assert length(a_pass(5.0, 4.0, cp)) == pytest.approx(9.0 + 0.15 * 2.0)
    assert length(a_pass(1.0, 4.0, cp)) == pytest.approx(4.0 + 2.0)  # only attention hides it
    shard = Comm(stream="shard", seconds=2.0, hidden=0.5, loads=NEAR)
    assert length(a_pass(0.0, 4.0, shard)) == 1.0 + 4.0


def test_hidden_traffic_slows_what_is_waited_for_on_the_same_tier() -> None:
    shard = Comm(stream="shard", seconds=4.0, hidden=1.0, loads=NEAR)
    tp = Comm(stream="tp", seconds=2.0, hidden=0.0, loads=NEAR)
    # 3 s of compute beside the gather, then its last second and the first of tp share: 2 s, then 1 s of tp alone
    assert length(a_pass(0.0, 3.0, shard, tp)) == 3.0 + 2.0 + 1.0
    assert length(a_pass(0.0, 3.0, shard, Comm(stream="tp", seconds=2.0, loads=FAR))) == 5.0


def test_a_background_slows_a_pass_and_is_slowed_by_it() -> None:
    tp = Comm(stream="tp", seconds=1.0, loads=NEAR)
    found = flow(tasks_of(a_pass(0.0, 3.0, tp)), NEAR)
    assert found.seconds == 3.0 + 2.0
    assert found.pace == (pytest.approx((3.0 + 2.0 / 2) / 5.0), 1.0)
    assert length(a_pass(0.0, 3.0, tp), FAR) == 4.0


def test_a_mix_is_the_sum_of_its_passes() -> None:
    tp = Comm(stream="tp", seconds=1.0, loads=NEAR)
    patterns = PassTimelines([a_pass(0.0, 3.0, tp), a_pass(0.0, 2.0)])
    mix = patterns.mix({0: 2, 1: 1})
    assert mix.alone_s == 2 * 4.0 + 2.0
    longer, pace = mix.beside(NEAR)
    assert longer == pytest.approx((2 * 5.0 + 2.0) / 10.0)
    assert pace[0] == pytest.approx((2 * 4.0 + 2.0) / 12.0)
    assert mix.beside(FAR) == (1.0, (1.0, 1.0))
    assert (mix + mix).alone_s == 20.0


# -- a whole step -----------------------------------------------------------------------------------------------------

F, B = 1.0, 2.0
SILENT = Comm(stream="", seconds=0.0)


def shared(
    p: int = 2,
    *,
    send: Comm = SILENT,
    reduce: Comm = SILENT,
    gather: Comm = SILENT,
    tp: float = 0.0,
    **more: object,
) -> SharedWork:
    """p stages of F = 1 and I = W = 1, of which `tp` is waited-for communication on the near tier."""
    comms = (Comm(stream="tp", seconds=tp, loads=NEAR),) if tp else ()
    patterns = PassTimelines([a_pass(0.0, 1.0 - tp, *comms)])
    one, two = patterns.mix({0: 1}), patterns.mix({0: 2})
    mixes: dict[Phase, PassMix] = {
        Phase.FORWARD: one, Phase.BACKWARD: two, Phase.BACKWARD_INPUT: one, Phase.BACKWARD_WEIGHT: one,
    }  # fmt: skip
    work = StageWork(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, send_s=send.seconds)
    settings_ = {"send_blocks": False, "optimizer_s": (0.0,) * p, "buckets": (4,) * p} | more
    return SharedWork(
        work=(work,) * p, mixes=(mixes,) * p, send=send, exchange=(Exchange(reduce=reduce, gather=gather),) * p,
        **settings_,  # type: ignore[arg-type]
    )  # fmt: skip


def test_buckets_hide_behind_the_last_backward_and_the_rest_follows() -> None:
    table = build("1f1b", stages=1, microbatches=3)
    bare = 3 * (F + B)
    hidden = Comm(stream="dp", seconds=2.0, hidden=0.5, loads=FAR)
    assert run_shared(table, shared(1, reduce=hidden)).makespan_s == bare + 1.0
    long = Comm(stream="dp", seconds=8.0, hidden=0.5, loads=FAR)
    # 4 s of buckets begin with the last backward of 2 s, 4 s are never hidden
    assert run_shared(table, shared(1, reduce=long)).makespan_s == bare - B + 4.0 + 4.0


def test_buckets_and_the_steps_own_collectives_share_a_tier() -> None:
    table = build("1f1b", stages=1, microbatches=1)
    reduce = Comm(stream="dp", seconds=1.6, hidden=1.0, loads=NEAR)
    # a backward half of whose time is communication takes 1.5 times as long beside a bucket, which moves at 2/3:
    # four buckets of 0.4 s need 0.6 s each and meet four quarters of 0.5 s that grow to 0.75 s
    run = run_shared(table, shared(1, reduce=reduce, tp=0.5))
    quarter = 0.6 + (1 - 0.6 / 0.75) * 0.5  # beside its bucket, then alone
    assert run.makespan_s == pytest.approx(F + 4 * quarter)
    apart = Comm(stream="dp", seconds=1.6, hidden=1.0, loads=FAR)
    assert run_shared(table, shared(1, reduce=apart, tp=0.5)).makespan_s == F + B


def test_buckets_and_sends_share_a_tier() -> None:
    table = build("1f1b", stages=2, microbatches=1)
    send = Comm(stream="pp", seconds=1.0, loads=FAR)
    reduce = Comm(stream="dp", seconds=4.0, hidden=1.0, loads=FAR)
    alone = run_shared(table, shared(2, send=send)).makespan_s
    assert alone == 2 * (F + B) + 2 * 1.0
    # rank 1 reduces its 4 s from its backward on (at 3 s); its send (at 5 s) meets 2 s of it: 2 s instead of 1
    run = run_shared(table, shared(2, send=send, reduce=reduce))
    back = next(item for item in run.sends if item.sender == 1)
    assert (back.start_s, back.end_s) == (5.0, 7.0)
    apart = run_shared(table, shared(2, send=send, reduce=Comm(stream="dp", seconds=4.0, hidden=1.0, loads=NEAR)))
    assert next(item for item in apart.sends if item.sender == 1).end_s == 6.0
    assert run.makespan_s == apart.makespan_s + 1.0


def test_the_first_forward_waits_for_its_weights() -> None:
    table = build("1f1b", stages=1, microbatches=2)
    gather = Comm(stream="dp", seconds=4.0, hidden=0.75, loads=FAR)
    # 3 s beside the first forward of 1 s, 1 s behind the optimizer
    run = run_shared(table, shared(1, gather=gather, optimizer_s=(0.5,)))
    assert run.steps[0][0].end_s == 3.0
    assert run.makespan_s == 3.0 + B + (F + B) + 0.5 + 1.0


def test_each_rank_has_its_own_tail_and_the_last_paces() -> None:
    table = build("1f1b", stages=2, microbatches=1)
    given = shared(2, optimizer_s=(0.0, 4.0))
    run = run_shared(table, given)
    assert last_rank(run) == 1
    assert run.makespan_s == F + F + B + 4.0
    tail = Tail(reduce_s=(0.0, 3.0), optimizer_s=(0.0, 1.0), gather_s=(0.0, 0.5))
    plain = run_events(table, given.work, send_blocks=False, tail=tail)
    assert (last_rank(plain), plain.makespan_s) == (1, F + F + B + 4.5)


def test_a_slow_rank_and_a_slow_link_are_inputs() -> None:
    table = build("1f1b", stages=2, microbatches=4)
    given = shared(2, send=Comm(stream="pp", seconds=0.25, loads=FAR))
    even = run_shared(table, given).makespan_s
    late = run_shared(table, given, slow=Slowdown(ranks={1: 2.0})).makespan_s
    # rank 1 works all the time from its first input on: 4 microbatches of 6 s, then the last backward of rank 0
    assert late == F + 0.25 + 4 * 2 * (F + B) + 0.25 + B
    assert run_shared(table, given, slow=Slowdown(links={0: 4.0})).makespan_s > even


def test_at_one_instant_communication_ends_before_compute() -> None:
    # a send of 1 s and a step of 1 s that begin together: the arrival is seen by the receiver before the step's end
    table = build("gpipe", stages=2, microbatches=2)
    run = run_shared(table, shared(2, send=Comm(stream="pp", seconds=1.0, loads=FAR)))
    assert [(send.start_s, send.end_s) for send in run.sends][:2] == [(1.0, 2.0), (2.0, 3.0)]
    assert run.waited_s[1] == 1.0


class Case(NamedTuple):
    """A random pipeline, without traffic that shares."""

    name: str
    stages: int
    microbatches: int
    work: tuple[StageWork, ...]
    blocks: bool
    tail: tuple[float, ...]
    slow: tuple[float, float]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name, p = draw(st.sampled_from(sorted(SCHEDULES))), draw(st.integers(1, 5))
    many = draw(st.integers(1, 9))
    m = {"interleaved": p * (1 + many % 3), "dualpipe-v": 2 * p + many}.get(name, many)
    sizes, send = st.floats(0.1, 3.0), draw(st.floats(0.0, 0.5))
    work = tuple(
        StageWork(forward_s=draw(sizes), backward_input_s=draw(sizes), backward_weight_s=draw(sizes), send_s=send)
        for _ in range(p * SCHEDULES[name].fewest_chunks)
    )
    tail = tuple(draw(st.lists(st.floats(0.0, 2.0), min_size=p, max_size=p)))
    slow = draw(st.floats(1.0, 2.0)), draw(st.floats(1.0, 2.0))
    return Case(name, p, m, work, draw(st.booleans()), tail, slow)


@given(case=cases())
@settings(max_examples=80, deadline=None)
def test_where_nobody_shares_the_pipeline_runs_as_it_does_alone(case: Case) -> None:
    table = build(case.name, stages=case.stages, microbatches=case.microbatches)
    bare = shared(len(case.work))
    work = replace(bare, work=case.work, send_blocks=case.blocks, optimizer_s=case.tail)
    slow = Slowdown(ranks={0: case.slow[0]}, links={case.stages - 1: case.slow[1]})
    alone = run_events(table, case.work, send_blocks=case.blocks, slow=slow, tail=Tail(optimizer_s=case.tail))
    run = run_shared(table, work, slow=slow)
    for one, other in zip(chain(*alone.steps), chain(*run.steps), strict=True):
        assert one == pytest.approx(other)
    assert run.makespan_s == pytest.approx(alone.makespan_s)
    assert run.waited_s == pytest.approx(alone.waited_s)
    assert len(run.sends) == len(alone.sends)
