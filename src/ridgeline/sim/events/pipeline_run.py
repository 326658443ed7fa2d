"""What a schedule's table does in time: seconds of its stages, rows with everything worked out, and when it all ran.

Sends between ranks are either

    overlapped   on a stream of their own: the value arrives send_s after the link is free, the rank goes on computing
    blocking     by the rank itself: it is busy for send_s, the value arrives when it is done

A link is one direction between two ranks and carries one message at a time, in the order of the sender's row; an
overlapped pair sends its activation before its gradient. The receiver spends no time of its own. ``event_loop``
executes the rows; batches of plans are timed by ``closed_form.schedule_time``, which tests hold against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import NamedTuple

from ridgeline.core.records import dataclass
from ridgeline.plan.schedules import Action, Phase, ScheduleTable, Step

_NOBODY: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """Seconds of one microbatch on one virtual stage. A whole backward costs its two halves.

    ``send_s`` is the time an activation or a gradient needs to reach the next virtual stage on another rank; between
    virtual stages of one rank nothing is sent, whatever stands here.
    """

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    send_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Compute of one microbatch, forward and backward."""
        return self.forward_s + self.backward_input_s + self.backward_weight_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Factors on what is slower than planned: compute by rank, sends by link.

    Link r joins ranks r and r + 1, both directions; link p - 1 joins the last rank to the first.
    """

    ranks: Mapping[int, float] = field(default_factory=lambda: _NOBODY)
    links: Mapping[int, float] = field(default_factory=lambda: _NOBODY)


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


class StepInterval(NamedTuple):
    """From when to when, in seconds after the step began."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


class Send(NamedTuple):
    """One message between ranks."""

    sender: int
    receiver: int
    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """What happened: the interval of each step of ``table.rows[rank]``, the sends, and each rank's tail."""

    table: ScheduleTable
    steps: tuple[tuple[StepInterval, ...], ...]
    sends: tuple[Send, ...]
    send_blocks: bool
    waited_s: tuple[float, ...]
    """Per rank, time idle before a step whose input was already made and still under way."""
    reduce: tuple[StepInterval, ...]
    optimizer: tuple[StepInterval, ...]
    gather: tuple[StepInterval, ...]

    @property
    def makespan_s(self) -> float:
        """Until the last rank has finished its tail."""
        return max(interval.end_s for interval in self.gather)

    def at_pace(self, pace: float) -> PipelineRun:
        """The same with everything so many times as long."""

        def longer(each: Sequence[StepInterval]) -> tuple[StepInterval, ...]:
            return tuple(StepInterval(start * pace, end * pace) for start, end in each)

        return replace(
            self,
            steps=tuple(longer(row) for row in self.steps),
            sends=tuple(send._replace(start_s=send.start_s * pace, end_s=send.end_s * pace) for send in self.sends),
            waited_s=tuple(seconds * pace for seconds in self.waited_s),
            reduce=longer(self.reduce),
            optimizer=longer(self.optimizer),
            gather=longer(self.gather),
        )

    @property
    def schedule_s(self) -> float:
        """Until the last step of the table has ended, with its send where sends block: what the tails follow."""
        return max(interval.start_s for interval in self.reduce)

    def compute_s(self, rank: int) -> float:
        """Time a rank spends inside steps."""
        return sum(end - start for start, end in self.steps[rank])

    def blocked_s(self, rank: int) -> float:
        """Time a rank spends sending instead of computing: 0 where sends are overlapped."""
        return sum(send.end_s - send.start_s for send in self.sends if send.sender == rank) if self.send_blocks else 0.0

    def busy_s(self, rank: int) -> float:
        """Steps, blocking sends and tail."""
        tail = self.reduce[rank].duration_s + self.optimizer[rank].duration_s + self.gather[rank].duration_s
        return self.compute_s(rank) + self.blocked_s(rank) + tail

    def bubble_s(self, rank: int) -> float:
        """Time a rank neither computes, sends, reduces nor optimizes: busy + bubble = makespan."""
        return self.makespan_s - self.busy_s(rank)


class Planned(NamedTuple):
    """A step with all that does not depend on time worked out.

    Slots number the values that travel: the input of the forward of microbatch i at stage s, and the same for the
    backward; -1 stands for a value that exists from the start.
    """

    duration_s: float
    needs: int
    also_needs: int
    makes: tuple[tuple[int, int, float, Action], ...]
    """(slot, receiving rank, seconds of the send, action); the sender itself as receiver means no send."""


def compile_row(
    table: ScheduleTable, rank: int, work: Sequence[StageWork], gain: float, slow: Slowdown
) -> list[Planned]:
    """The row of a rank with everything worked out that does not depend on when it happens."""
    placement, m = table.placement[rank], table.microbatches
    rank_of = [owner for owner, _ in table.locations()]
    stages, factor = len(rank_of), slow.ranks.get(rank, 1.0)

    def hop(stage: int, neighbour: int) -> tuple[int, float]:
        receiver = rank_of[neighbour]
        link = min(rank, receiver) if abs(rank - receiver) == 1 else table.stages - 1
        return receiver, 0.0 if receiver == rank else work[stage].send_s * slow.links.get(link, 1.0)

    down = [hop(stage, stage + 1) if stage + 1 < stages else None for stage in placement]
    up = [hop(stage, stage - 1) if stage > 0 else None for stage in placement]
    seconds = [_phase_seconds(work[stage], factor) for stage in placement]

    def plan(action: Action) -> Planned:
        stage, chunk, i = placement[action.chunk], action.chunk, action.microbatch
        duration = seconds[chunk][action.phase]
        if action.phase is Phase.BACKWARD_WEIGHT:
            return Planned(duration, -1, -1, ())
        forward = action.phase is Phase.FORWARD
        neighbour = down[chunk] if forward else up[chunk]
        first = stage == 0 if forward else stage == stages - 1
        slot = (stage if forward else stages + stage) * m + i
        makes = () if neighbour is None else ((slot + m if forward else slot - m, *neighbour, action),)
        return Planned(duration, -1 if first else slot, -1, makes)

    def plan_step(step: Step) -> Planned:
        if isinstance(step, Action):
            return plan(step)
        one, two = plan(step.forward), plan(step.backward)
        return Planned((one.duration_s + two.duration_s) * (1 - gain), one.needs, two.needs, one.makes + two.makes)

    return [plan_step(step) for step in table.rows[rank]]


def _phase_seconds(work: StageWork, factor: float) -> dict[Phase, float]:
    return {
        Phase.FORWARD: work.forward_s * factor,
        Phase.BACKWARD: (work.backward_input_s + work.backward_weight_s) * factor,
        Phase.BACKWARD_INPUT: work.backward_input_s * factor,
        Phase.BACKWARD_WEIGHT: work.backward_weight_s * factor,
    }


def check_fit(table: ScheduleTable, work: Sequence[StageWork], slow: Slowdown, tail: Tail) -> None:
    """Refuse work, slowdowns or tails of another size than the table."""
    wanted = table.stages * table.chunks
    if len(work) != wanted:
        raise ValueError(f"got work for {len(work)} virtual stages, expected {wanted} = stages x chunks of the table")
    tails = (("reduce_s", tail.reduce_s), ("optimizer_s", tail.optimizer_s), ("gather_s", tail.gather_s))
    for what, given in tails:
        if given and len(given) != table.stages:
            raise ValueError(f"got {what} for {len(given)} ranks, expected {table.stages}, or none at all")
    for what, factors in (("ranks", slow.ranks), ("links", slow.links)):
        if strangers := sorted(set(factors) - set(range(table.stages))):
            raise ValueError(f"slow {what} {strangers} do not exist; the table has 0 to {table.stages - 1}")
