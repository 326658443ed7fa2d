"""Turn a schedule table, passes and exchanges into when everything of a step happens, with links that are shared.

Event by event, the rows of every rank in order, and beside the steps of the table:

    sends      overlapped: on a stream per direction of a link, the value arrives send_s after the link is free
               blocking: by the rank itself, which is busy for send_s
    buckets    parts of a gradient reduction, ready one after the other during the last backward of a virtual stage
    gathers    of weights that sharded optimizers have updated: beside the first forward, which cannot end before
    tail       what is left of the reduction, the optimizer, what is left of the gathering

A link is one direction between two ranks and carries one message at a time, in the order of the sender's row; an
overlapped pair sends its activation before its gradient. The receiver spends no time of its own.

All traffic that a chip sends on one tier at the same time shares the tier: each goes slower by the sum of the loads.
A step of the table has collectives of its own, some of the time; a `PassMix` says how much longer it takes beside the
rest, and how fast the rest moves meanwhile. A send loads the links of its sender; receiving is the other direction.

Events are ordered by (time, phase, sequence): what communication ends at an instant ends before compute does, and
within a phase what was started first. Batches of plans are timed by ``closed_form.schedule_time``, which tests hold
against this loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from heapq import heappop, heappush
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from ridgeline.core.records import dataclass
from ridgeline.plan.schedules import Action, Phase, ScheduleTable, Step, actions_of
from ridgeline.sim.events.stream_work import NOTHING, Comm, Exchange, Loads, PassMix, slowdown

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


class Traffic(NamedTuple):
    """One message of an exchange: a bucket of gradients, or gathered weights."""

    rank: int
    name: str
    start_s: float
    end_s: float
    gathers: bool = False
    """Whether it gathers weights; else it reduces gradients."""


Spell = TypeVar("Spell", StepInterval, Send, Traffic)


def _stretch(spells: Iterable[Spell], pace: float) -> tuple[Spell, ...]:
    """The same, each so many times as long and as late."""
    return tuple(spell._replace(start_s=spell.start_s * pace, end_s=spell.end_s * pace) for spell in spells)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """What happened: the interval of each step of ``table.rows[rank]``, sends, each rank's tail, exchanges beside."""

    table: ScheduleTable
    steps: tuple[tuple[StepInterval, ...], ...]
    sends: tuple[Send, ...]
    send_blocks: bool
    waited_s: tuple[float, ...]
    """Per rank, time idle before a step whose input was already made and still under way."""
    reduce: tuple[StepInterval, ...]
    optimizer: tuple[StepInterval, ...]
    gather: tuple[StepInterval, ...]
    traffic: tuple[Traffic, ...] = ()

    @property
    def makespan_s(self) -> float:
        """Until the last rank has finished its tail."""
        return max(interval.end_s for interval in self.gather)

    def at_pace(self, pace: float) -> PipelineRun:
        """The same with everything so many times as long."""
        return replace(
            self,
            steps=tuple(_stretch(row, pace) for row in self.steps),
            sends=_stretch(self.sends, pace),
            waited_s=tuple(seconds * pace for seconds in self.waited_s),
            reduce=_stretch(self.reduce, pace),
            optimizer=_stretch(self.optimizer, pace),
            gather=_stretch(self.gather, pace),
            traffic=_stretch(self.traffic, pace),
        )


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


def check_fit(
    table: ScheduleTable, work: Sequence[StageWork], slow: Slowdown, tails: Mapping[str, Sequence[float]]
) -> None:
    """Refuse work, slowdowns or tails of another size than the table."""
    wanted = table.stages * table.chunks
    if len(work) != wanted:
        raise ValueError(f"got work for {len(work)} virtual stages, expected {wanted} = stages x chunks of the table")
    for what, given in tails.items():
        if given and len(given) != table.stages:
            raise ValueError(f"got {what} for {len(given)} ranks, expected {table.stages}, or none at all")
    for what, factors in (("ranks", slow.ranks), ("links", slow.links)):
        if strangers := sorted(set(factors) - set(range(table.stages))):
            raise ValueError(f"slow {what} {strangers} do not exist; the table has 0 to {table.stages - 1}")


BUCKETS = 8  # at most, per virtual stage: enough to spread a reduction over a backward
COMMUNICATION, COMPUTE = range(2)  # what ends first at one instant


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWork:
    """What the ranks of a table do.

    work      seconds of each virtual stage with nothing beside it
    mixes     by virtual stage and phase, what its steps consist of
    send      one message between ranks; its seconds are those of `work`
    exchange  by virtual stage
    """

    work: tuple[StageWork, ...]
    mixes: tuple[dict[Phase, PassMix], ...]
    send: Comm
    send_blocks: bool
    exchange: tuple[Exchange, ...]
    optimizer_s: tuple[float, ...]
    buckets: tuple[int, ...]


def run_shared(table: ScheduleTable, given: SharedWork, *, slow: Slowdown | None = None) -> PipelineRun:
    """Execute the table once."""
    slow = slow or Slowdown()
    check_fit(table, given.work, slow, {"optimizer_s": given.optimizer_s})
    engine = _Engine(table, given, slow)
    engine.run()
    return engine.result()


class _Flow:
    """Something under way: what is left of it in seconds alone, and how fast it goes."""

    __slots__ = ("alone_s", "begun_s", "done", "left_s", "loads", "mix", "rank", "rate", "since_s", "turn")

    def __init__(self, rank: int, seconds: float, done: Callable[[_Flow], None]) -> None:
        self.rank, self.alone_s, self.left_s, self.done = rank, seconds, seconds, done
        self.loads: Loads = NOTHING
        self.mix: PassMix | None = None
        self.rate, self.since_s, self.begun_s, self.turn = 0.0, 0.0, 0.0, 0


class _Engine:
    """The state of a run while it runs."""

    def __init__(self, table: ScheduleTable, given: SharedWork, slow: Slowdown) -> None:
        ranks = range(table.stages)
        self.table, self.given = table, given
        self.rows = [compile_row(table, rank, given.work, 0.0, slow) for rank in ranks]
        self.actions = [[actions_of(step) for step in row] for row in table.rows]
        self.mixes = [_mixes(table, given, rank) for rank in ranks]
        self.now, self.sequence = 0.0, 0
        self.heap: list[tuple[float, int, int, int, _Flow]] = []
        self.flows: list[list[_Flow]] = [[] for _ in ranks]
        self.queues: dict[tuple[int, int], deque[_Flow]] = {}
        values = 2 * table.stages * table.chunks * table.microbatches
        self.made = [-1.0] * values + [0.0]
        self.arrived = [-1.0] * values + [0.0]
        self.starts: list[list[float]] = [[] for _ in ranks]
        self.ends: list[list[float]] = [[] for _ in ranks]
        self.position, self.busy = [0] * table.stages, [False] * table.stages
        self.waited, self.free_s = [0.0] * table.stages, [0.0] * table.stages
        self.sends: list[Send] = []
        self.traffic: list[Traffic] = []
        self.tails: list[list[StepInterval]] = [[] for _ in ranks]
        self.gathering: dict[tuple[int, int], bool] = {}
        self.held: dict[tuple[int, int], Callable[[], None]] = {}
        self.first, self.last = _ends(table)

    def run(self) -> None:
        """From the first forward to the last tail."""
        for rank in range(self.table.stages):
            self._gather(rank)
            self._next(rank)
        while self.heap:
            time, _, _, turn, flow = heappop(self.heap)
            if flow.turn != turn:
                continue
            self.now = time
            self._settle(flow.rank)
            self.flows[flow.rank].remove(flow)
            flow.turn = -1
            self._retime(flow.rank)
            flow.done(flow)
        stuck = [len(row) for row in self.ends]
        if any(done < len(row) for done, row in zip(stuck, self.rows, strict=True)):
            raise ValueError(f"{self.table.name} stops after {stuck} steps per rank: it breaks a law of schedules")

    def result(self) -> PipelineRun:
        """What happened, once it has."""
        reduce, optimizer, gather = (tuple(tail[place] for tail in self.tails) for place in range(3))
        return PipelineRun(
            table=self.table,
            steps=tuple(tuple(map(StepInterval, *pair)) for pair in zip(self.starts, self.ends, strict=True)),
            sends=tuple(self.sends),
            send_blocks=self.given.send_blocks,
            waited_s=tuple(self.waited),
            reduce=reduce,
            optimizer=optimizer,
            gather=gather,
            traffic=tuple(self.traffic),
        )

    # -- what is under way -------------------------------------------------------------------------------------------

    def _begin(self, flow: _Flow) -> None:
        self._settle(flow.rank)
        flow.begun_s = flow.since_s = self.now
        self.flows[flow.rank].append(flow)
        self._retime(flow.rank)

    def _settle(self, rank: int) -> None:
        for flow in self.flows[rank]:
            flow.left_s = max(0.0, flow.left_s - (self.now - flow.since_s) * flow.rate)
            flow.since_s = self.now

    def _retime(self, rank: int) -> None:
        """New rates for all that is under way at a rank, and when it will end by them."""
        flows = self.flows[rank]
        near = far = 0.0
        mix: PassMix | None = None
        for flow in flows:
            near, far = near + flow.loads[0], far + flow.loads[1]
            mix = mix or flow.mix
        near, far = round(near, 3), round(far, 3)
        longer, slower = 1.0, (max(1.0, near), max(1.0, far))
        if mix is not None and (near or far):
            longer, pace = mix.beside((near, far))
            slower = (1 / pace[0], 1 / pace[1])
        for flow in flows:
            rate = 1 / (longer if flow.mix is not None else slowdown(flow.loads, slower))
            if rate == flow.rate:
                continue  # it ends when it was going to
            flow.rate, flow.turn, self.sequence = rate, flow.turn + 1, self.sequence + 1
            phase = COMPUTE if flow.mix is not None else COMMUNICATION
            heappush(self.heap, (self.now + flow.left_s / rate, phase, self.sequence, flow.turn, flow))

    def _queue(self, rank: int, stream: int, comm: Comm, done: Callable[[_Flow], None]) -> None:
        """Communication on a stream that carries one message at a time."""
        queue = self.queues.setdefault((rank, stream), deque())

        def ended(flow: _Flow) -> None:
            queue.popleft()
            if queue:
                self._begin(queue[0])
            done(flow)

        flow = _Flow(rank, comm.seconds, ended)
        flow.loads = comm.loads
        queue.append(flow)
        if len(queue) == 1:
            self._begin(flow)

    # -- steps of the table ------------------------------------------------------------------------------------------

    def _next(self, rank: int) -> None:
        """Start the next step of a rank if it is free and its inputs are there."""
        place = self.position[rank]
        if self.busy[rank] or place >= len(self.rows[rank]):
            return
        planned = self.rows[rank][place]
        ready, also = self.arrived[planned.needs], self.arrived[planned.also_needs]
        if ready < 0 or also < 0:
            return
        slot = planned.also_needs if also > ready else planned.needs
        if max(ready, also) > self.free_s[rank]:
            self.waited[rank] += self.now - max(self.free_s[rank], self.made[slot])
        self.busy[rank] = True
        self.starts[rank].append(self.now)
        self._slice(rank, place, 0)

    def _slice(self, rank: int, place: int, slice_: int) -> None:
        """One part of a step: those that finish gradients are cut, and hand over a bucket with each part."""
        actions = self.actions[rank][place]
        stages = [self.table.placement[rank][action.chunk] for action in actions if self._finishes(rank, action)]
        parts = max((self.given.buckets[stage] for stage in stages), default=1)
        for stage in stages:
            reduce = self.given.exchange[stage].reduce
            if reduce.seconds * reduce.hidden > 0:
                self._reduce(rank, f"gradients of stage {stage}", reduce.part(reduce.hidden / parts))
        planned = self.rows[rank][place]

        def done(_: _Flow) -> None:
            if slice_ + 1 < parts:
                self._slice(rank, place, slice_ + 1)
            else:
                self._gathered(rank, place)

        flow = _Flow(rank, planned.duration_s / parts, done)
        flow.mix = self.mixes[rank][tuple((action.phase, action.chunk) for action in actions)]
        self._begin(flow)

    def _finishes(self, rank: int, action: Action) -> bool:
        return self.last.get((rank, action.chunk)) == action

    def _gathered(self, rank: int, place: int) -> None:
        """End a step, unless it is a first forward whose weights are still being gathered."""
        for action in self.actions[rank][place]:
            key = rank, action.chunk
            if self.gathering.get(key) and self.first.get(key) == action:
                self.held[key] = lambda: self._gathered(rank, place)
                return
        self.ends[rank].append(self.now)
        self.position[rank] += 1
        makes = list(self.rows[rank][place].makes)
        for slot, *_ in makes:
            self.made[slot] = self.now
        self._send(rank, makes)

    def _send(self, rank: int, makes: list[tuple[int, int, float, Action]]) -> None:
        """Send what a step has made, one by one where sends block, and go on."""
        while makes:
            slot, receiver, seconds, action = makes.pop(0)
            if receiver == rank:
                self.arrived[slot] = self.now
                continue
            comm = Comm(stream="pp", seconds=seconds, loads=self.given.send.loads)
            blocks = self.given.send_blocks
            self._queue(rank, receiver, comm, self._arrival(slot, receiver, action, makes if blocks else None))
            if blocks:
                return
        self.busy[rank], self.free_s[rank] = False, self.now
        if self.position[rank] == len(self.rows[rank]):
            self._tail(rank)
        else:
            self._next(rank)

    def _arrival(
        self, slot: int, receiver: int, action: Action, then: list[tuple[int, int, float, Action]] | None
    ) -> Callable[[_Flow], None]:
        """What happens when a message has arrived; `then` is what a sender that waited for it sends next."""

        def arrive(flow: _Flow) -> None:
            self.arrived[slot] = self.now
            self.sends.append(Send(flow.rank, receiver, action, flow.begun_s, self.now))
            self._next(receiver)
            if then is not None:
                self._send(flow.rank, then)

        return arrive

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def _gather(self, rank: int) -> None:
        """At the start of a step, the weights that the optimizer of the one before has updated elsewhere."""
        for chunk, stage in enumerate(self.table.placement[rank]):
            gather = self.given.exchange[stage].gather
            if gather.seconds * gather.hidden <= 0:
                continue
            self.gathering[rank, chunk] = True

            def done(flow: _Flow, key: tuple[int, int] = (rank, chunk), stage: int = stage) -> None:
                self.gathering[key] = False
                self.traffic.append(Traffic(key[0], f"weights of stage {stage}", flow.begun_s, self.now, gathers=True))
                self.held.pop(key, lambda: None)()

            self._queue(rank, -1, gather.part(gather.hidden), done)

    def _reduce(self, rank: int, name: str, comm: Comm) -> None:
        def done(flow: _Flow) -> None:
            self.traffic.append(Traffic(rank, name, flow.begun_s, self.now))

        self._queue(rank, -1, comm, done)

    def _tail(self, rank: int) -> None:
        """After the last step: the rest of the reduction, the optimizer, the rest of the gathering."""
        stages, began = self.table.placement[rank], self.now
        reduce, gather = (
            [comm.part(1 - comm.hidden) for comm in comms]
            for comms in zip(
                *((self.given.exchange[s].reduce, self.given.exchange[s].gather) for s in stages), strict=True
            )
        )

        def reduced(_: _Flow) -> None:
            self.tails[rank].append(StepInterval(began, self.now))
            self._begin(_Flow(rank, self.given.optimizer_s[rank], updated))

        def updated(flow: _Flow) -> None:
            self.tails[rank].append(StepInterval(flow.begun_s, self.now))
            self._queue(rank, -1, _together(gather), gathered)

        def gathered(flow: _Flow) -> None:
            self.tails[rank].append(StepInterval(flow.begun_s, self.now))

        self._queue(rank, -1, _together(reduce), reduced)


def _together(comms: Sequence[Comm]) -> Comm:
    """Messages of one stream, one behind the other."""
    seconds = sum(comm.seconds for comm in comms)
    near, far = (sum(comm.seconds * comm.loads[tier] for comm in comms) / (seconds or 1.0) for tier in range(2))
    return Comm(stream=comms[0].stream, seconds=seconds, loads=(near, far))


def _mixes(table: ScheduleTable, given: SharedWork, rank: int) -> dict[tuple[tuple[Phase, int], ...], PassMix]:
    """For every kind of step of a rank, what it consists of."""
    found: dict[tuple[tuple[Phase, int], ...], PassMix] = {}
    for step in table.rows[rank]:
        key = tuple((action.phase, action.chunk) for action in actions_of(step))
        if key not in found:
            first, *rest = (given.mixes[table.placement[rank][chunk]][phase] for phase, chunk in key)
            found[key] = first + rest[0] if rest else first
    return found


def _ends(table: ScheduleTable) -> tuple[dict[tuple[int, int], Action], dict[tuple[int, int], Action]]:
    """By rank and chunk, the first forward, and the action that finishes the gradients."""
    first: dict[tuple[int, int], Action] = {}
    last: dict[tuple[int, int], Action] = {}
    for rank, row in enumerate(table.rows):
        for step in row:
            for action in actions_of(step):
                if action.phase is Phase.FORWARD:
                    first.setdefault((rank, action.chunk), action)
                elif action.phase is not Phase.BACKWARD_INPUT:
                    last[rank, action.chunk] = action
    return first, last
