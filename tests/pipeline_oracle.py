"""A second, plainer execution of a schedule table, against which the event loop and the closed form are held.

A rank executes its row in order and starts a step once the step before it has ended and its inputs have arrived. Sends
are overlapped, on a link of their own, or block the rank that sends. Links carry one message at a time; nothing shares
them otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from ridgeline.plan.schedules import ScheduleTable
from ridgeline.sim.closed_form.schedule_time import PathWork, PhaseSeconds
from ridgeline.sim.events.event_loop import (
    PipelineRun,
    Planned,
    Send,
    Slowdown,
    StageWork,
    StepInterval,
    check_fit,
    compile_row,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Seconds per rank after its last step: what of its gradient reduction is not hidden, its optimizer, and what of
    gathering the new weights is not hidden.

    Each rank has its own, since ranks hold different parameters: the one that ends last with its tail paces the step.
    Empty means none. A rank does not wait for the others before its optimizer.
    """

    reduce_s: Sequence[float] = ()
    optimizer_s: Sequence[float] = ()
    gather_s: Sequence[float] = ()


def schedule_s(run: PipelineRun) -> float:
    """Until the last step of the table has ended, with its send where sends block: what the tails follow."""
    return max(interval.start_s for interval in run.reduce)


def blocked_s(run: PipelineRun, rank: int) -> float:
    """Time a rank spends sending instead of computing: 0 where sends are overlapped."""
    return sum(send.end_s - send.start_s for send in run.sends if send.sender == rank) if run.send_blocks else 0.0


def busy_s(run: PipelineRun, rank: int) -> float:
    """Steps, blocking sends and tail."""
    tail = run.reduce[rank].duration_s + run.optimizer[rank].duration_s + run.gather[rank].duration_s
    return sum(end - start for start, end in run.steps[rank]) + blocked_s(run, rank) + tail


def bubble_s(run: PipelineRun, rank: int) -> float:
    """Time a rank neither computes, sends, reduces nor optimizes: busy + bubble = makespan."""
    return run.makespan_s - busy_s(run, rank)


def run_events(
    table: ScheduleTable,
    work: Sequence[StageWork],
    *,
    send_blocks: bool,
    overlapped_gain: float = 0.0,
    slow: Slowdown | None = None,
    tail: Tail | None = None,
) -> PipelineRun:
    """Execute the table once. ``work`` is by virtual stage; an overlapped pair costs (F + B) (1 - overlapped_gain).

    >>> from ridgeline.plan.schedules import build
    >>> work = [StageWork(forward_s=1, backward_input_s=1, backward_weight_s=1, send_s=0.5)] * 2
    >>> table = build("1f1b", stages=2, microbatches=2)
    >>> run_events(table, work, send_blocks=False).makespan_s     # 3 (F + B) and the two hops of microbatch 1
    10.0
    >>> run_events(table, work, send_blocks=True, slow=Slowdown(ranks={1: 2.0})).makespan_s
    16.5
    """
    slow, tail = slow or Slowdown(), tail or Tail()
    check_fit(
        table,
        work,
        slow,
        {"reduce_s": tail.reduce_s, "optimizer_s": tail.optimizer_s, "gather_s": tail.gather_s},
    )
    rows = [compile_row(table, rank, work, overlapped_gain, slow) for rank in range(table.stages)]
    progress = _Progress(table.stages)
    _execute(table, rows, send_blocks, progress)
    reduce, optimizer, gather = _tails(progress.clocks, tail)
    return PipelineRun(
        table=table,
        steps=tuple(tuple(map(StepInterval, *pair)) for pair in zip(progress.starts, progress.ends, strict=True)),
        sends=tuple(progress.sends),
        send_blocks=send_blocks,
        waited_s=tuple(progress.waited),
        reduce=reduce,
        optimizer=optimizer,
        gather=gather,
    )


class _Progress:
    """How far each rank has come: filled while the table runs, read once."""

    def __init__(self, ranks: int) -> None:
        self.clocks = [0.0] * ranks
        self.waited = [0.0] * ranks
        self.starts: list[list[float]] = [[] for _ in range(ranks)]
        self.ends: list[list[float]] = [[] for _ in range(ranks)]
        self.sends: list[Send] = []


def _execute(table: ScheduleTable, rows: Sequence[Sequence[Planned]], send_blocks: bool, progress: _Progress) -> None:
    """Let each rank run until an input is missing, round and round; what a link carries depends on its sender alone."""
    missing = -1.0
    values = 2 * table.stages * table.chunks * table.microbatches
    made = [missing] * values + [0.0]  # the last is slot -1
    arrived = [missing] * values + [0.0]
    links: dict[tuple[int, int], float] = {}
    unfinished = list(range(len(rows)))
    while unfinished:
        moved = False
        for rank in unfinished:
            began, ended = progress.starts[rank], progress.ends[rank]
            clock, waited, position = progress.clocks[rank], progress.waited[rank], len(began)
            for duration, needs, also_needs, makes in islice(rows[rank], position, None):
                ready, also_ready = arrived[needs], arrived[also_needs]
                if ready == missing or also_ready == missing:
                    break
                if also_ready > ready:
                    needs, ready = also_needs, also_ready
                if ready > clock:
                    waited += ready - max(clock, made[needs])
                    clock = ready
                began.append(clock)
                end = clock = clock + duration
                ended.append(end)
                for slot, receiver, send_s, action in makes:
                    made[slot] = arrived[slot] = end
                    if receiver != rank:
                        depart = clock if send_blocks else max(end, links.get((rank, receiver), 0.0))
                        arrived[slot] = links[rank, receiver] = arrival = depart + send_s
                        clock = arrival if send_blocks else clock
                        progress.sends.append(Send(rank, receiver, action, depart, arrival))
            progress.clocks[rank], progress.waited[rank] = clock, waited
            moved = moved or len(began) > position
        if not moved:
            done = [len(row) for row in progress.starts]
            raise ValueError(f"{table.name} stops after {done} steps per rank: it breaks a law of schedules")
        unfinished = [rank for rank in unfinished if len(progress.starts[rank]) < len(rows[rank])]


def _tails(clocks: Sequence[float], tail: Tail) -> tuple[tuple[StepInterval, ...], ...]:
    """Reduction, optimizer and gathering of every rank, one behind the other."""
    found, ends = [], tuple(clocks)
    for seconds in (tail.reduce_s, tail.optimizer_s, tail.gather_s):
        found.append(
            tuple(StepInterval(end, end + s) for end, s in zip(ends, seconds or [0.0] * len(ends), strict=True))
        )
        ends = tuple(interval.end_s for interval in found[-1])
    return tuple(found)


def summarize(work: Sequence[StageWork], placement: Sequence[Sequence[int]]) -> PathWork:
    """The stages of one plan, as the event loop takes them, in the form the closed form takes."""
    ends = (0, len(work) - 1)
    inner = [work[stage] for stage in range(1, len(work) - 1)]
    held = [[work[stage] for stage in own if stage not in ends] for own in placement]
    slowest = max(held, key=lambda own: sum(stage.total_s for stage in own) / (len(own) or 1))
    return PathWork(
        first=_mean(work[:1]),
        inner=_mean(inner or work[:1]),
        last=_mean(work[-1:]),
        slowest=_mean(slowest) if inner else None,
        send_s=max(stage.send_s for stage in work),
    )


def _mean(stages: Sequence[StageWork]) -> PhaseSeconds:
    return PhaseSeconds(
        forward_s=sum(stage.forward_s for stage in stages) / len(stages),
        backward_input_s=sum(stage.backward_input_s for stage in stages) / len(stages),
        backward_weight_s=sum(stage.backward_weight_s for stage in stages) / len(stages),
    )


def last_rank(run: PipelineRun) -> int:
    """The rank that ends last, its tail included; the first of equals."""
    return max(range(len(run.gather)), key=lambda rank: run.gather[rank].end_s)
