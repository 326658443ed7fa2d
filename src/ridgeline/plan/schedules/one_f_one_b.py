"""Rows of the schedules with a whole backward: gpipe, 1f1b and interleaved.

All three walk one order of forwards and one order of backwards; they differ in how many forwards run before the first
backward, and therefore in how many activations a rank holds:

    gpipe         all m of them                        held: m
    1f1b          p - r - 1, then in pairs             held: min(m, p - r)
    interleaved   2 (p - r - 1) + (v - 1) p, in pairs  held: one more, at most m v

p = stages, r = rank, v = chunks per rank, m = microbatches. Held counts chunks, each 1/v of a stage.
"""

from collections.abc import Sequence

from ridgeline.plan.schedules.notation import all_actions
from ridgeline.plan.schedules.table import Action, Phase, Row


def gpipe_rows(stages: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    """Every forward, then every backward."""
    return _rows(stages, microbatches, chunks, [microbatches * chunks] * stages)


def one_f_one_b_rows(stages: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    """Just enough forwards for the first backward to come back, then one forward, one backward."""
    return _rows(stages, microbatches, chunks, [stages - rank - 1 for rank in range(stages)])


def interleaved_rows(stages: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    """1f1b over groups of p microbatches, each group taken through all chunks of a rank before the next begins.

    p is the group size because the output of a chunk needs p forwards to travel round the loop: a group of p keeps the
    rank busy exactly until its first microbatch is back for the next chunk.
    """
    warmup = [2 * (stages - rank - 1) + (chunks - 1) * stages for rank in range(stages)]
    return _rows(stages, microbatches, chunks, warmup)


def _rows(stages: int, microbatches: int, chunks: int, warmup: Sequence[int]) -> tuple[Row, ...]:
    actions = all_actions(microbatches, chunks)
    groups = [range(first, min(first + stages, microbatches)) for first in range(0, microbatches, stages)]
    forwards = [actions[Phase.FORWARD, chunk][i] for group in groups for chunk in range(chunks) for i in group]
    backwards = [
        actions[Phase.BACKWARD, chunk][i] for group in groups for chunk in reversed(range(chunks)) for i in group
    ]
    return tuple(_alternate(forwards, backwards, count) for count in warmup)


def _alternate(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> Row:
    """``warmup`` forwards, then forward and backward in turn, then the backwards that are left."""
    warmup = min(warmup, len(forwards))
    paired = len(forwards) - warmup
    pairs = zip(forwards[warmup:], backwards[:paired], strict=True)
    return (*forwards[:warmup], *(action for pair in pairs for action in pair), *backwards[paired:])
