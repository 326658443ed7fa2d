"""Rows of DualPipe-V: two chunks in a V, and in the steady state every forward overlaps a backward.

DualPipe runs two mirrored pipelines over the same ranks and keeps two copies of the weights. Cut in half, rank r keeps
the chunks of virtual stages r and 2 p - 1 - r only: the mirror image is the second leg of the V.
"""

from ridgeline.plan.schedules.notation import Phases, all_actions, write_row
from ridgeline.plan.schedules.table import Row


def dualpipe_v_rows(stages: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    """The published phases; the first pair of the last rank is left apart, which shortens the bubble.

        bubble = (p - 1) (F&B + B - 3 W)                held = 2 p + 1 chunks of half a stage

    p = stages, B = I + W, F&B = an overlapped pair. The bubble is DeepSeek's, counted in ranks instead of virtual
    stages; under in-order execution it is exact where F = I >= W and a pair costs F + B.
    """
    actions = all_actions(microbatches, chunks)
    return tuple(write_row(_phases(stages, rank, microbatches), actions) for rank in range(stages))


def _phases(stages: int, rank: int, microbatches: int) -> Phases:
    """Of the last 2 (r + 1) backwards the later half is split, which leaves r + 1 W's to fill the drain."""
    after, upto = stages - rank - 1, rank + 1
    pairs = microbatches - 2 * stages + upto
    separate = 1 if after == 0 else 0
    return (
        (2 * after, "F@0"),
        (upto, "F@0 F@1"),
        (after, "I@1 W F@1"),
        (separate, "F@0 B@1 F@1&B@0"),
        (pairs - separate, "F@0&B@1 F@1&B@0"),
        (after, "B@1 F@1&B@0"),
        (upto // 2, "B@1 B@0"),
        (upto % 2, "B@1 I@0"),
        (upto // 2, "I@1 I@0"),
        (after, "W I@0"),
        (upto, "W"),
    )
