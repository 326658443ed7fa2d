"""Name the parts of a pipeline schedule and hold them as one table: per rank, the ordered steps it executes.

The model is cut into p * v virtual stages; rank r of p holds v of them, its chunks. One microbatch visits the virtual
stages in rising order on the way forward and in falling order on the way backward. A table says who does what in which
order and nothing about time: timing, transport and memory are functions of the table, each in its own module.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TypeAlias

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

    def location(self, virtual_stage: int) -> tuple[int, int]:
        """(rank, chunk) that holds a virtual stage: the inverse of ``virtual_stage``."""
        return self.locations()[virtual_stage]

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
