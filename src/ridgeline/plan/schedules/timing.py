"""Turn a table into start and end times, and into the sends and receives between its steps: a checker, no simulator.

Time. Every rank executes its row in order and starts a step as soon as the previous one ended and its inputs exist.
Communication takes no time, ranks are alike, and every chunk costs the same: these are the assumptions under which the
literature states its bubbles, so this executor can be held against it.

Transport. Between two steps of a rank lies a boundary; boundary k comes right before step k. The value a step makes is
sent in the boundary right after it. An operation is done when both sides have posted theirs (rendezvous: nothing is
buffered), and a rank enters its next step when all operations of the boundary are done. Transports differ in what a
boundary posts at once and in where a receive stands:

    one-by-one   sends then receives, each alone; a receive stands right before the step that needs the value
    batched      all operations of a boundary at once; receives stand as above
    ahead        batched; a receive stands before the first step of its rank that starts once the value exists

Megatron-LM fuses send and receive of a boundary, since 1f1b stops otherwise: two neighbours would both be sending.
Interleaved and V-shaped schedules hold a value for several steps before they use it, and stop even when batched: the
sender waits for a receive that is several steps away. Implementations post those receives ahead, and so does the table.

Why "ahead" never stops. Take an in-order run with positive costs that finishes, and steps by rising start time. Say
every step that starts before s ran, and look at the boundary before a step that starts at s. Whatever it receives
exists by s, so its sender's step started before s and has posted the send. Whatever it sends exists at some t <= s; the
receive stands right after a step that started before t, so it is posted too. The boundary completes and the step runs.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias, TypeVar, assert_never

from ridgeline.core.records import dataclass
from ridgeline.plan.schedules.table import (
    Message,
    Overlap,
    Phase,
    ScheduleTable,
    Step,
    Token,
    flatten,
    messages,
    step_makes,
    step_needs,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Time of one action on one chunk, in any unit.

    A full backward costs backward_input + backward_weight. An overlapped pair costs ``overlapped`` in total; left at
    None it costs its two halves one after the other, so overlap gains nothing.
    """

    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0
    overlapped: float | None = None

    def of(self, step: Step) -> float:
        """Duration of a step.

        >>> from ridgeline.plan.schedules import Action
        >>> Costs().of(Action(phase=Phase.BACKWARD, microbatch=0))
        2.0
        """
        if isinstance(step, Overlap):
            together = self.of(step.forward) + self.of(step.backward)
            return together if self.overlapped is None else self.overlapped
        match step.phase:
            case Phase.FORWARD:
                return self.forward
            case Phase.BACKWARD:
                return self.backward_input + self.backward_weight
            case Phase.BACKWARD_INPUT:
                return self.backward_input
            case Phase.BACKWARD_WEIGHT:
                return self.backward_weight
            case _:
                assert_never(step.phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Start and end of every step that ran, per rank and in row order.

    ``stuck`` holds (rank, position in its row, the value it waits for) for each rank that never finished.
    """

    times: tuple[tuple[tuple[float, float], ...], ...]
    stuck: tuple[tuple[int, int, Token], ...] = ()

    @property
    def makespan(self) -> float:
        """Time from zero to the end of the last step anywhere."""
        return max((rank[-1][1] for rank in self.times if rank), default=0.0)

    @property
    def longest_span(self) -> float:
        """The longest any one rank takes from its own first start to its own last end.

        This is the step time when the optimizer does not wait for all ranks, which is how zero bubble counts.
        """
        return max((rank[-1][1] - rank[0][0] for rank in self.times if rank), default=0.0)

    @property
    def busiest(self) -> float:
        """The most time any one rank spends inside steps."""
        return max((sum(end - start for start, end in rank) for rank in self.times), default=0.0)

    @property
    def bubble(self) -> float:
        """Idle time of the busiest rank: makespan - busiest."""
        return self.makespan - self.busiest

    @property
    def bubble_fraction(self) -> float:
        """Share of the makespan the busiest rank idles: 1 - busiest / makespan."""
        return self.bubble / self.makespan if self.makespan else 0.0

    @property
    def span_bubble(self) -> float:
        """Idle time inside the longest span: longest_span - busiest."""
        return self.longest_span - self.busiest


def run_in_order(table: ScheduleTable, costs: Costs | None = None) -> Run:
    """Execute every row in order; sends are buffered and never block. A table that cannot finish comes back stuck.

    >>> from ridgeline.plan.schedules import build
    >>> run_in_order(build("1f1b", stages=4, microbatches=8)).makespan   # (8 + 4 - 1) * (F + I + W)
    33.0
    """
    costs = costs or Costs()
    token_end: dict[Token, float] = {}
    done_tokens: list[Token] = []
    times: list[list[tuple[float, float]]] = [[] for _ in table.rows]

    def execute(rank: int) -> Iterator[Token]:
        clock = 0.0
        for step in table.rows[rank]:
            for token in step_needs(table, rank, step):
                if token not in token_end:
                    yield token
                clock = max(clock, token_end[token])
            times[rank].append((clock, clock := clock + costs.of(step)))
            for token in step_makes(table, rank, step):
                token_end[token] = clock
                done_tokens.append(token)

    stuck = drive([execute(rank) for rank in range(len(table.rows))], done_tokens)
    waits = tuple((rank, len(times[rank]), stuck[rank]) for rank in sorted(stuck))
    return Run(times=tuple(map(tuple, times)), stuck=waits)


Event = TypeVar("Event", bound=Hashable)


def drive(workers: Sequence[Iterator[Event]], happened: list[Event]) -> dict[int, Event]:
    """Resume each worker until it yields an event that it must wait for; resume it again once that event has happened.

    A worker appends what it brings about to ``happened`` and never yields something that already happened. The result
    maps each worker that never finished to the event it still waits for; empty means all finished. Every event wakes
    only those who wait for it, so the cost is linear in the number of events.
    """
    waiting: dict[Event, list[int]] = {}
    ready = deque(range(len(workers)))
    while ready:
        worker = ready.popleft()
        wanted_token = next(workers[worker], None)
        if wanted_token is not None:
            waiting.setdefault(wanted_token, []).append(worker)
        while happened:
            ready.extend(waiting.pop(happened.pop(), ()))
    return {worker: event for event, stuck in waiting.items() for worker in stuck}


def peak_in_flight(table: ScheduleTable, *, released_by: Phase = Phase.BACKWARD_WEIGHT) -> tuple[int, ...]:
    """Most activations held at once, per rank.

    A full backward B always releases. Where the backward is split, ``released_by`` says which half does:

        W (default)   nothing is given back before the weight gradient is done: the safe count
        I             all is given back at the input gradient: what a schedule would hold if W needed no activation

    The truth of a split backward lies between, since W reads only the inputs of the matrix multiplications. The
    forward of an overlapped pair counts as held before its backward releases.

    >>> from ridgeline.plan.schedules import build
    >>> table = build("zero-bubble-h1", stages=4, microbatches=8)
    >>> peak_in_flight(table), peak_in_flight(table, released_by=Phase.BACKWARD_INPUT)
    ((4, 4, 4, 4), (4, 3, 2, 1))
    """
    releasing = (Phase.BACKWARD, released_by)
    peaks = []
    for row in table.rows:
        in_flight = peak = 0
        for action in flatten(row):
            if action.phase is Phase.FORWARD:
                in_flight += 1
                peak = max(peak, in_flight)
            elif action.phase in releasing:
                in_flight -= 1
        peaks.append(peak)
    return tuple(peaks)


class Transport(StrEnum):
    """How a rank issues the operations of a boundary, from the most to the least likely to stop."""

    ONE_BY_ONE = "one-by-one"
    BATCHED = "batched"
    AHEAD = "ahead"


class Side(StrEnum):
    """The two halves of a message."""

    SEND = "send"
    RECEIVE = "receive"


class Operation(NamedTuple):
    """One half of a message, as one rank posts it."""

    side: Side
    message: Message

    @property
    def counterpart(self) -> "Operation":
        """What the other rank must post."""
        return Operation(Side.RECEIVE if self.side is Side.SEND else Side.SEND, self.message)

    def __str__(self) -> str:
        token, sender, receiver = self.message
        return f"{self.side.value} {token} (rank {sender} to {receiver})"


Boundary: TypeAlias = tuple[Operation, ...]


def boundaries(table: ScheduleTable, transport: Transport = Transport.AHEAD) -> tuple[tuple[Boundary, ...], ...]:
    """Per rank, the operations of each boundary: boundary k right before step k, and one after the last step.

    >>> from ridgeline.plan.schedules import build
    >>> for boundary in boundaries(build("1f1b", stages=2, microbatches=2), Transport.BATCHED)[1]:
    ...     print([f"{op.side} {op.message.token.tensor} {op.message.token.microbatch}" for op in boundary])
    ['receive activation 0']
    []
    ['send gradient 0', 'receive activation 1']
    []
    ['send gradient 1']
    """
    crossing = {message.token: message for message in messages(table)}
    run = run_in_order(table) if transport is Transport.AHEAD else None
    exists = _first_existence(table, run) if run else {}
    operations: list[list[list[Operation]]] = [[[] for _ in range(len(row) + 1)] for row in table.rows]
    for rank, row in enumerate(table.rows):
        for position, step in enumerate(row):
            for token in step_makes(table, rank, step):
                if token in crossing:
                    operations[rank][position + 1].append(Operation(Side.SEND, crossing[token]))
            for token in step_needs(table, rank, step):
                if token in crossing and crossing[token].receiver == rank:
                    place = position
                    if run and token in exists:
                        place = min(place, bisect_left(run.times[rank], (exists[token], 0.0)))
                    operations[rank][place].append(Operation(Side.RECEIVE, crossing[token]))
    return tuple(tuple(tuple(sorted(ops, key=_sends_first)) for ops in rank) for rank in operations)


def _first_existence(table: ScheduleTable, run: Run) -> dict[Token, float]:
    return {
        token: end
        for rank, times in enumerate(run.times)
        for step, (_, end) in zip(table.rows[rank], times, strict=False)
        for token in step_makes(table, rank, step)
    }


def _sends_first(operation: Operation) -> bool:
    return operation.side is Side.RECEIVE


def blocked_ranks(table: ScheduleTable, transport: Transport = Transport.AHEAD) -> dict[int, Operation]:
    """The ranks that wait forever, each with the operation it needs from another rank. Empty means all finish.

    >>> from ridgeline.plan.schedules import build
    >>> table = build("1f1b", stages=2, microbatches=2)
    >>> for rank, operation in sorted(blocked_ranks(table, Transport.ONE_BY_ONE).items()):
    ...     print(f"rank {rank} waits for: {operation}")
    rank 0 waits for: receive activation of microbatch 1 from virtual stage 0 (rank 0 to 1)
    rank 1 waits for: receive gradient of microbatch 0 from virtual stage 1 (rank 1 to 0)
    >>> blocked_ranks(table, Transport.BATCHED)
    {}
    """
    posted_operations: set[Operation] = set()
    done_operations: list[Operation] = []

    def communicate(batches: Sequence[Boundary]) -> Iterator[Operation]:
        for batch in batches:
            posted_operations.update(batch)
            done_operations.extend(batch)
            for operation in batch:
                if operation.counterpart not in posted_operations:
                    yield operation.counterpart

    plans = boundaries(table, transport)
    if transport is Transport.ONE_BY_ONE:
        plans = tuple(tuple((operation,) for boundary in plan for operation in boundary) for plan in plans)
    return drive([communicate(plan) for plan in plans], done_operations)
