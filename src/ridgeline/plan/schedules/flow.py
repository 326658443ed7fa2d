"""Turn an action into the tensors it needs and makes, and a table into its dependency graph and its messages.

    forward at s          needs activation s-1 (if s > 0)                       makes activation s
    backward (B, I) at s  needs activation s, gradient s+1 (if s is not last)   makes gradient s
    weight backward at s  needs gradient s                                      makes nothing others wait for

s = virtual stage, always of the same microbatch. "activation s" is what the forward at s leaves behind: its output for
s+1 and what its own backward will read. "gradient s" is the gradient with respect to the input of s.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from ridgeline.plan.schedules.table import Action, Phase, ScheduleTable, Step, actions_of, flatten


class Tensor(StrEnum):
    """The two kinds of value that travel along the pipeline."""

    ACTIVATION = "activation"
    GRADIENT = "gradient"


class Token(NamedTuple):
    """One value, named by what it is, the virtual stage that made it, and its microbatch."""

    tensor: Tensor
    virtual_stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.tensor.value} of microbatch {self.microbatch} from virtual stage {self.virtual_stage}"


RankedAction: TypeAlias = tuple[int, Action]
"""An action with the rank whose row it stands in."""


def needs(table: ScheduleTable, rank: int, action: Action) -> tuple[Token, ...]:
    """The values that must exist before the action starts."""
    stage, microbatch = table.placement[rank][action.chunk], action.microbatch
    if action.phase is Phase.FORWARD:
        return (Token(Tensor.ACTIVATION, stage - 1, microbatch),) if stage > 0 else ()
    if action.phase is Phase.BACKWARD_WEIGHT:
        return (Token(Tensor.GRADIENT, stage, microbatch),)
    activation = Token(Tensor.ACTIVATION, stage, microbatch)
    last = stage == table.stages * table.chunks - 1
    return (activation,) if last else (activation, Token(Tensor.GRADIENT, stage + 1, microbatch))


def makes(table: ScheduleTable, rank: int, action: Action) -> Token | None:
    """The value the action leaves for others, or None for a weight backward."""
    stage = table.placement[rank][action.chunk]
    if action.phase is Phase.BACKWARD_WEIGHT:
        return None
    tensor = Tensor.ACTIVATION if action.phase is Phase.FORWARD else Tensor.GRADIENT
    return Token(tensor, stage, action.microbatch)


def step_needs(table: ScheduleTable, rank: int, step: Step) -> tuple[Token, ...]:
    """What a step waits for: an overlapped pair waits for the inputs of both halves."""
    return tuple(token for action in actions_of(step) for token in needs(table, rank, action))


def step_makes(table: ScheduleTable, rank: int, step: Step) -> tuple[Token, ...]:
    """What a step leaves for others."""
    tokens = (makes(table, rank, action) for action in actions_of(step))
    return tuple(token for token in tokens if token is not None)


def producers(table: ScheduleTable) -> Mapping[Token, RankedAction]:
    """Which action, on which rank, makes each value."""
    return {
        token: (rank, action)
        for rank, row in enumerate(table.rows)
        for action in flatten(row)
        if (token := makes(table, rank, action)) is not None
    }


def dependencies(table: ScheduleTable) -> Mapping[RankedAction, tuple[RankedAction, ...]]:
    """For every (rank, action) of the table, the (rank, action) pairs that must end before it starts.

    Row order is not repeated here: an action also waits for the one before it in its row.

    >>> from ridgeline.plan.schedules import build
    >>> graph = dependencies(build("1f1b", stages=2, microbatches=1))
    >>> for (rank, action), earlier in graph.items():
    ...     print(f"rank {rank} {action} after", [f"rank {r} {a}" for r, a in earlier])
    rank 0 F0@0 after []
    rank 0 B0@0 after ['rank 0 F0@0', 'rank 1 B0@0']
    rank 1 F0@0 after ['rank 0 F0@0']
    rank 1 B0@0 after ['rank 1 F0@0']
    """
    made_by = producers(table)
    return {
        (rank, action): tuple(made_by[token] for token in needs(table, rank, action))
        for rank, row in enumerate(table.rows)
        for action in flatten(row)
    }


class Message(NamedTuple):
    """A value that crosses ranks."""

    token: Token
    sender: int
    receiver: int


def messages(table: ScheduleTable) -> Iterator[Message]:
    """Every value that one rank makes and another needs, in the order of the senders' rows."""
    rank_of = [rank for rank, _ in table.locations()]
    for sender, row in enumerate(table.rows):
        for step in row:
            for token in step_makes(table, sender, step):
                neighbour = token.virtual_stage + (1 if token.tensor is Tensor.ACTIVATION else -1)
                if 0 <= neighbour < len(rank_of) and rank_of[neighbour] != sender:
                    yield Message(token, sender, rank_of[neighbour])
