"""Name the parts of a pipeline schedule and hold them as one table: per rank, the ordered steps it executes.

The model is cut into p * v virtual stages; rank r of p holds v of them, its chunks. One microbatch visits the virtual
stages in rising order on the way forward and in falling order on the way backward. A table says who does what in which
order and nothing about time: timing, transport and memory are functions of the table.

    forward at s          needs activation s-1 (if s > 0)                       makes activation s
    backward (B, I) at s  needs activation s, gradient s+1 (if s is not last)   makes gradient s
    weight backward at s  needs gradient s                                      makes nothing others wait for

s = virtual stage, always of the same microbatch. "activation s" is what the forward at s leaves behind: its output for
s+1 and what its own backward will read. "gradient s" is the gradient with respect to the input of s.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from ridgeline.core.records import dataclass


class Phase(StrEnum):
    """What an action computes. The letters are the ones pipeline papers draw in their boxes."""

    FORWARD = "F"
    BACKWARD = "B"
    """Gradient of the input and of the weights in one go."""
    BACKWARD_INPUT = "I"
    """Gradient of the input only: all that the previous virtual stage waits for."""
    BACKWARD_WEIGHT = "W"
    """Gradient of the weights only: nobody waits for it before the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One phase of one microbatch on one chunk of a rank. The rank is the row the action stands in.

    >>> str(Action(phase=Phase.FORWARD, microbatch=3, chunk=1))
    'F3@1'
    """

    phase: Phase
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.phase.value}{self.microbatch}@{self.chunk}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """A forward and a backward that run as one step, so that each hides the other's communication.

    Both inputs must be there before the step starts and both outputs appear when it ends.
    """

    forward: Action
    backward: Action

    def __str__(self) -> str:
        return f"{self.forward}&{self.backward}"


Step: TypeAlias = Action | Overlap
"""What a rank executes before it looks at its row again."""

Row: TypeAlias = tuple[Step, ...]


def actions_of(step: Step) -> tuple[Action, ...]:
    """The one or two actions inside a step."""
    return (step,) if isinstance(step, Action) else (step.forward, step.backward)


def flatten(row: Iterable[Step]) -> Iterator[Action]:
    """The actions of a row in order; the forward of an overlapped pair comes first."""
    for step in row:
        yield from actions_of(step)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTable:
    """A pipeline schedule as data.

    placement[rank][chunk] is the virtual stage that chunk holds; rows[rank] is what the rank executes, in order.
    Nothing is checked here: ``laws.violations`` says whether a table is a schedule at all.
    """

    name: str
    stages: int
    chunks: int
    microbatches: int
    placement: tuple[tuple[int, ...], ...]
    rows: tuple[Row, ...]

    def virtual_stage(self, rank: int, chunk: int) -> int:
        """Where in the model the given chunk of the given rank sits, 0 being the first virtual stage."""
        return self.placement[rank][chunk]

    def locations(self) -> tuple[tuple[int, int], ...]:
        """(rank, chunk) of every virtual stage, in model order."""
        places = (
            (stage, (rank, chunk)) for rank, stages in enumerate(self.placement) for chunk, stage in enumerate(stages)
        )
        return tuple(place for _, place in sorted(places))

    def row_text(self, rank: int) -> str:
        """A row in one line. With one chunk per rank the chunk number is left out."""
        text = " ".join(map(str, self.rows[rank]))
        return text.replace("@0", "") if self.chunks == 1 else text


def loop_placement(stages: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    """Chunks go round and round the ranks: the last rank hands over to the first.

        virtual stage = chunk * p + rank                p = stages

    >>> loop_placement(3, 2)
    ((0, 3), (1, 4), (2, 5))
    """
    return tuple(tuple(chunk * stages + rank for chunk in range(chunks)) for rank in range(stages))


def v_placement(stages: int) -> tuple[tuple[int, ...], ...]:
    """Two chunks a rank, down and back up: the last rank hands over to itself, the first rank holds both ends.

        virtual stage = rank for chunk 0,  2 * p - 1 - rank for chunk 1                p = stages

    >>> v_placement(3)
    ((0, 5), (1, 4), (2, 3))
    """
    return tuple((rank, 2 * stages - 1 - rank) for rank in range(stages))


class PipelineValue(StrEnum):
    """The two kinds of value that travel along the pipeline."""

    ACTIVATION = "activation"
    GRADIENT = "gradient"


class Token(NamedTuple):
    """One value, named by what it is, the virtual stage that made it, and its microbatch."""

    tensor: PipelineValue
    virtual_stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.tensor.value} of microbatch {self.microbatch} from virtual stage {self.virtual_stage}"


def needs(table: ScheduleTable, rank: int, action: Action) -> tuple[Token, ...]:
    """The values that must exist before the action starts."""
    stage, microbatch = table.placement[rank][action.chunk], action.microbatch
    if action.phase is Phase.FORWARD:
        return (Token(PipelineValue.ACTIVATION, stage - 1, microbatch),) if stage > 0 else ()
    if action.phase is Phase.BACKWARD_WEIGHT:
        return (Token(PipelineValue.GRADIENT, stage, microbatch),)
    activation = Token(PipelineValue.ACTIVATION, stage, microbatch)
    last = stage == table.stages * table.chunks - 1
    return (activation,) if last else (activation, Token(PipelineValue.GRADIENT, stage + 1, microbatch))


def makes(table: ScheduleTable, rank: int, action: Action) -> Token | None:
    """The value the action leaves for others, or None for a weight backward."""
    stage = table.placement[rank][action.chunk]
    if action.phase is Phase.BACKWARD_WEIGHT:
        return None
    tensor = PipelineValue.ACTIVATION if action.phase is Phase.FORWARD else PipelineValue.GRADIENT
    return Token(tensor, stage, action.microbatch)


def step_needs(table: ScheduleTable, rank: int, step: Step) -> tuple[Token, ...]:
    """What a step waits for: an overlapped pair waits for the inputs of both halves."""
    return tuple(token for action in actions_of(step) for token in needs(table, rank, action))


def step_makes(table: ScheduleTable, rank: int, step: Step) -> tuple[Token, ...]:
    """What a step leaves for others."""
    tokens = (makes(table, rank, action) for action in actions_of(step))
    return tuple(token for token in tokens if token is not None)


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
                neighbour = token.virtual_stage + (1 if token.tensor is PipelineValue.ACTIVATION else -1)
                if 0 <= neighbour < len(rank_of) and rank_of[neighbour] != sender:
                    yield Message(token, sender, rank_of[neighbour])
