"""Turn a schedule table and the time of each virtual stage into when every step of every rank starts and ends.

Event by event, for one plan: a rank executes its row in order and starts a step once the step before it has ended and
its inputs have arrived. Sends are either

    overlapped   on a stream of their own: the value arrives send_s after the link is free, the rank goes on computing
    blocking     by the rank itself: it is busy for send_s, the value arrives when it is done

A link is one direction between two ranks and carries one message at a time, in the order of the sender's row; an
overlapped pair sends its activation before its gradient. The receiver spends no time of its own. Batches of plans are
timed by ``pipeline_formula``, which a test holds against this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from ridgeline.plan.schedules import Action, Phase, ScheduleTable, Step
from ridgeline.trace import Span, Timeline
from ridgeline.trace.timeline import nanoseconds_of

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

    @property
    def pacing_rank(self) -> int:
        """The rank that ends last, its tail included; the first of equals."""
        return max(range(len(self.gather)), key=lambda rank: self.gather[rank].end_s)

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

    def exposed_send_s(self, rank: int) -> float:
        """Time a rank loses to sends: its own where they block, else what it waits for after the value was made."""
        return self.blocked_s(rank) if self.send_blocks else self.waited_s[rank]

    def bubble_s(self, rank: int) -> float:
        """Time a rank neither computes, sends, reduces nor optimizes: busy + bubble = makespan."""
        return self.makespan_s - self.busy_s(rank)


def timeline(run: PipelineRun) -> Timeline:
    """A process per rank, with a stream for compute, for sends down and up, for the reduction and the optimizer."""
    spans: list[Span] = []
    for rank, row in enumerate(run.table.rows):
        process = f"stage {rank}"
        for step, (start, end) in zip(row, run.steps[rank], strict=True):
            spans.append(_span(process, "compute", str(step), (start, end), _kind(step)))
        tails = (("reduce", run.reduce[rank]), ("optimizer", run.optimizer[rank]), ("gather", run.gather[rank]))
        for stream, tail in tails:
            if tail.duration_s > 0:
                spans.append(_span(process, stream, stream, tail, stream))
    for send in run.sends:
        stream = "send-forward" if send.action.phase is Phase.FORWARD else "send-backward"
        name = f"{send.action} to stage {send.receiver}"
        spans.append(_span(f"stage {send.sender}", stream, name, (send.start_s, send.end_s), "send"))
    return Timeline.of(spans, streams=STREAMS, predicted=True)


STREAMS = ("compute", "send-forward", "send-backward", "reduce", "optimizer", "gather")


def _span(process: str, stream: str, name: str, interval: tuple[float, float], kind: str) -> Span:
    start, end = nanoseconds_of(interval).tolist()
    return Span(process=process, stream=stream, name=name, kind=kind, start_ns=start, duration_ns=end - start)


def _kind(step: Step) -> str:
    if isinstance(step, Action):
        return step.phase.name.lower().replace("_", "-")
    return "overlap"


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
    check_fit(table, work, slow, tail)
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
