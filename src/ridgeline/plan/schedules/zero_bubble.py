"""Rows of the zero bubble schedules, which split the backward and use its weight half to fill the gaps.

Only the input half I is on the path from the last virtual stage to the first; the weight half W may run any time later.
"""

from ridgeline.plan.schedules.notation import Phases, all_actions, write_row
from ridgeline.plan.schedules.table import Action, Row, flatten


def zero_bubble_h1_rows(stages: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    """1f1b with W of microbatch i right after I of microbatch i + r, so that rank r saves r W's for its drain.

    r = rank, p = stages. A rank holds p - r microbatches that await I, as in 1f1b, and r that await W: p in all, on
    every rank. With at least p microbatches the bubble is

        (p - 1) (F + I - min(F, I, W))

    The paper's (p - 1) (F + I - W) is the case of W the cheapest of the three.
    """
    actions = all_actions(microbatches, chunks)
    return tuple(write_row(_h1_phases(stages, rank, microbatches), actions) for rank in range(stages))


def _h1_phases(stages: int, rank: int, microbatches: int) -> Phases:
    warmup = min(stages - rank - 1, microbatches)
    pairs = microbatches - warmup
    quiet = min(rank, pairs)
    quiet_drain = min(rank - quiet, warmup)
    return (
        (warmup, "F@0"),
        (quiet, "F@0 I@0"),
        (pairs - quiet, "F@0 I@0 W"),
        (quiet_drain, "I@0"),
        (warmup - quiet_drain, "I@0 W"),
        (quiet + quiet_drain, "W"),
    )


def zbv_rows(stages: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    """Two chunks in a V: F, I and W each take one slot, and once a rank has started no slot is empty.

    So with F = I = W every rank works without a gap from its own start to its own end, and rank r only starts r slots
    late. At most 2 p chunks are held, each half a stage: the memory of 1f1b, on every rank.

    The pattern is laid out for at least 2 p - 1 microbatches. For fewer, the surplus ones are struck out: values
    never cross microbatches, so what is left of a valid table is valid, and holds no more than before.
    """
    drawn = max(microbatches, 2 * stages - 1)
    actions = all_actions(drawn, chunks)
    rows = (write_row(_zbv_phases(stages, rank, drawn), actions) for rank in range(stages))
    return tuple(_keep(row, microbatches) for row in rows)


def _zbv_phases(stages: int, rank: int, microbatches: int) -> Phases:
    remaining = stages - rank
    return (
        (2 * remaining - 1, "F@0"),
        (rank, "F@1 F@0"),
        (remaining, "F@1 I@1 W"),
        (microbatches - stages - remaining + 1, "F@0 I@0 W F@1 I@1 W"),
        (remaining - 1, "I@0 W F@1 I@1 W"),
        (rank, "I@0 I@1"),
        (remaining, "I@0 W"),
        (2 * rank, "W"),
    )


def _keep(row: Row, microbatches: int) -> tuple[Action, ...]:
    return tuple(action for action in flatten(row) if action.microbatch < microbatches)
