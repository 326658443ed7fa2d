"""Runs small enough to follow by hand, and what the closed form must and must not say about them."""

from collections.abc import Callable

import numpy as np
import pytest
from pipeline_oracle import Tail, blocked_s, bubble_s, busy_s, run_events, schedule_s, summarize

from ridgeline.plan.schedules import SCHEDULES, Action, Phase, ScheduleTable, build, requirement
from ridgeline.sim.closed_form.schedule_time import PathWork, PhaseSeconds, closed_form
from ridgeline.sim.events.event_loop import PipelineRun, Slowdown, StageWork

UNIT = StageWork(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
SENDING = StageWork(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, send_s=0.5)


def run(name: str, p: int, m: int, work: StageWork = UNIT, **how: object) -> PipelineRun:
    table = build(name, stages=p, microbatches=m)
    options: dict[str, object] = {"send_blocks": False} | how
    return run_events(table, [work] * (p * table.chunks), **options)  # type: ignore[arg-type]


def predicted(table: ScheduleTable, work: list[StageWork], send_blocks: bool = False) -> float:
    sizes = {"stages": table.stages, "chunks": table.chunks, "microbatches": table.microbatches}
    return float(closed_form(table.name, **sizes, work=summarize(work, table.placement), send_blocks=send_blocks))


def test_one_microbatch_goes_down_and_up() -> None:
    result = run("1f1b", 3, 1, SENDING)
    assert result.makespan_s == 3 * 3 + 4 * 0.5
    assert [step.start_s for step in result.steps[0]] == [0.0, 9.0]
    assert [(s.sender, s.receiver) for s in result.sends] == [(0, 1), (1, 2), (2, 1), (1, 0)]


def test_a_rank_waits_for_what_is_under_way() -> None:
    result = run("1f1b", 2, 1, SENDING)
    assert list(result.waited_s) == [0.5, 0.5]
    assert [bubble_s(result, rank) for rank in range(2)] == [4.0, 4.0]


def test_blocking_sends_are_busy_time_and_lengthen_the_sending_step() -> None:
    result = run("1f1b", 2, 2, SENDING, send_blocks=True)
    assert blocked_s(result, 0) == blocked_s(result, 1) == 1.0
    # F0 and its send, then three times F and B on rank 1 with the send of B0 between, then the send and B of the last
    assert result.makespan_s == 1.5 + 3 + 0.5 + 3 + 0.5 + 2
    assert run("1f1b", 2, 2, SENDING).makespan_s == 3 * 3 + 2 * 0.5


def test_a_link_carries_one_message_at_a_time() -> None:
    slow = StageWork(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, send_s=3.0)
    result = run("gpipe", 2, 3, slow)
    assert [(s.start_s, s.end_s) for s in result.sends if s.sender == 0] == [(1.0, 4.0), (4.0, 7.0), (7.0, 10.0)]


def test_the_two_directions_of_a_link_do_not_wait_for_each_other() -> None:
    result = run("1f1b", 2, 2, SENDING)
    by_direction = {(s.sender, s.action.phase) for s in result.sends}
    assert by_direction == {(0, Phase.FORWARD), (1, Phase.BACKWARD)}
    assert result.sends[1].start_s < result.sends[2].end_s


def test_nothing_is_sent_between_stages_of_one_rank() -> None:
    result = run("zbv", 1, 4, SENDING)
    assert result.sends == ()
    assert result.makespan_s == 4 * 2 * 3


def test_an_overlapped_pair_gains_what_it_is_told() -> None:
    without, with_gain = run("dualpipe-v", 1, 4), run("dualpipe-v", 1, 4, overlapped_gain=0.25)
    pairs = sum(not isinstance(step, Action) for step in without.table.rows[0])
    assert without.makespan_s - with_gain.makespan_s == pairs * 0.25 * 3.0


def test_a_straggler_paces_everyone_and_the_closed_form_does_not_know_it() -> None:
    table = build("1f1b", stages=4, microbatches=8)
    work = [UNIT] * 4
    assert run_events(table, work, send_blocks=False).makespan_s == predicted(table, work) == 33.0
    late = run_events(table, work, send_blocks=False, slow=Slowdown(ranks={1: 2.0})).makespan_s
    # microbatch 0 is through its B on rank 1 after F0 F1 F2 F3 B3 B2 B1 = 1 + 2 + 1 + 1 + 2 + 2 + 4 = 13 s; the row of
    # rank 1 then holds 5 forwards of 2 s and 7 backwards of 4 s and never waits; the last B of rank 0 takes 2 s
    assert late == 13 + 5 * 2 + 7 * 4 + 2
    assert late > predicted(table, work) * 1.5


def test_a_slow_link_is_paid_once_per_round_trip() -> None:
    table = build("1f1b", stages=2, microbatches=5)
    work = [SENDING] * 2
    even = run_events(table, work, send_blocks=False).makespan_s
    assert even == predicted(table, work)
    slow = run_events(table, work, send_blocks=False, slow=Slowdown(links={0: 4.0})).makespan_s
    # a round trip serves 2 microbatches: microbatches 0, 2 and 4 each wait for one more way down and up
    assert slow - even == 3 * 2 * (4.0 - 1.0) * 0.5
    assert slow > predicted(table, work) * 1.2


def test_a_slow_link_behind_enough_work_costs_only_its_first_message() -> None:
    table = build("gpipe", stages=2, microbatches=5)
    work = [SENDING] * 2
    even = run_events(table, work, send_blocks=False).makespan_s
    slow = run_events(table, work, send_blocks=False, slow=Slowdown(links={0: 2.0})).makespan_s
    assert slow - even == 2 * 0.5


def test_the_wrap_around_is_the_last_link() -> None:
    table = build("interleaved", stages=3, microbatches=3)
    work = [SENDING] * 6
    even = run_events(table, work, send_blocks=False).makespan_s
    slow = run_events(table, work, send_blocks=False, slow=Slowdown(links={2: 3.0})).makespan_s
    assert slow > even


def test_the_tail_follows_each_rank_on_its_own() -> None:
    tail = Tail(reduce_s=[5.0, 0.0], optimizer_s=[1.0, 1.0])
    result = run("1f1b", 2, 1, tail=tail)
    assert schedule_s(result) == 6.0
    assert result.makespan_s == 12.0
    assert (result.reduce[1], result.optimizer[1].start_s) == ((4.0, 4.0), 4.0)
    assert [busy_s(result, rank) + bubble_s(result, rank) for rank in range(2)] == [12.0, 12.0]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda t: run_events(t, [UNIT], send_blocks=False), "expected 2"),
        (lambda t: run_events(t, [UNIT] * 2, send_blocks=False, tail=Tail(reduce_s=[1.0])), "reduce_s"),
        (lambda t: run_events(t, [UNIT] * 2, send_blocks=False, slow=Slowdown(ranks={7: 2.0})), "do not exist"),
    ],
)
def test_what_does_not_fit_the_table_is_refused(broken: Callable[[ScheduleTable], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        broken(build("1f1b", stages=2, microbatches=2))


def test_a_table_that_cannot_end_says_so() -> None:
    table = build("1f1b", stages=2, microbatches=1)
    stuck = ScheduleTable(
        name="stuck", stages=2, chunks=1, microbatches=1, placement=table.placement, rows=((table.rows[0][1],), ())
    )
    with pytest.raises(ValueError, match="law"):
        run_events(stuck, [UNIT] * 2, send_blocks=False)


def test_a_large_table_runs_every_step_once() -> None:
    table = build("interleaved", stages=16, microbatches=128, chunks=4)
    run = run_events(table, [SENDING] * 64, send_blocks=False)
    assert [len(steps) for steps in run.steps] == [2 * 4 * 128] * 16


def test_sizes_without_a_schedule_are_nan() -> None:
    one = PhaseSeconds(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    work = PathWork(first=one, inner=one, last=one)
    p, m, v = (grid.ravel() for grid in np.meshgrid(np.arange(1, 5), np.arange(1, 10), np.arange(1, 4)))
    for name in SCHEDULES:
        seconds = closed_form(name, stages=p, chunks=v, microbatches=m, work=work)
        allowed = [requirement(name, *map(int, size)) is None for size in zip(p, m, v, strict=True)]
        assert np.isfinite(seconds).tolist() == allowed


def test_an_unknown_schedule_lists_its_neighbours() -> None:
    one = PhaseSeconds(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    with pytest.raises(ValueError, match="did you mean"):
        closed_form("1f2b", stages=1, chunks=1, microbatches=1, work=PathWork(first=one, inner=one, last=one))


def test_a_batch_is_its_plans_one_by_one() -> None:
    rng = np.random.default_rng(0)
    p, m, times = rng.integers(1, 9, 40), rng.integers(1, 40, 40), rng.uniform(0.5, 2.0, (3, 3, 40))

    def price(plans: slice | int) -> np.ndarray:
        first, inner, last = (
            PhaseSeconds(forward_s=f[plans], backward_input_s=i[plans], backward_weight_s=w[plans]) for f, i, w in times
        )
        work = PathWork(first=first, inner=inner, last=last, send_s=0.1)
        return closed_form("1f1b", stages=p[plans], chunks=1, microbatches=m[plans], work=work)

    assert price(slice(None)).tolist() == pytest.approx([float(price(plan)) for plan in range(40)])
