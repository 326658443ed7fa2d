"""Turn a table into the sends and receives between its steps, and say whether ranks that block on them ever stop.

The model. Between two steps of a rank lies a boundary; boundary k comes right before step k. The value a step makes is
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
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from ridgeline.plan.schedules.flow import Message, Token, messages, step_makes, step_needs
from ridgeline.plan.schedules.table import ScheduleTable
from ridgeline.plan.schedules.timing import Run, drive, run_in_order


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
