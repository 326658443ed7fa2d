"""Turn a predicted step of post-training into a Timeline: a process for every pool, a span for every phase."""

from __future__ import annotations

import numpy as np

from ridgeline.rl.prediction import RlPrediction
from ridgeline.trace import NO_LAYER, Timeline, nanoseconds_of

STEPS = 3  # that are drawn one after the other, so that what overlaps is seen


def rl_timeline(prediction: RlPrediction, steps: int = STEPS) -> Timeline:
    """Spans of some steps, by pool; waiting is what lies between them."""
    pools = list(dict.fromkeys(pool.pool for pool in prediction.idle))
    pools += [phase.pool for phase in prediction.phases if phase.pool not in (*pools, "all")]
    names = list(dict.fromkeys(phase.name for phase in prediction.phases))
    rows = [
        (step * prediction.step_time_s + phase.begin_s, min(phase.seconds, prediction.step_time_s), pool, phase.name)
        for step in range(steps)
        for phase in prediction.phases
        for pool in (pools if phase.pool == "all" else [phase.pool])
    ]
    begin = np.array([row[0] for row in rows])
    start, end = nanoseconds_of([begin, begin + np.array([row[1] for row in rows])])
    return Timeline.of_columns(
        start_ns=start,
        end_ns=end,
        codes=np.array([(pools.index(pool), 0, names.index(name), 0) for _, _, pool, name in rows], dtype=np.int32),
        phase=np.zeros(len(rows), np.int8),
        layer=np.full(len(rows), NO_LAYER, np.int16),
        tables=(tuple(pools), ("phases",), tuple(names), ("phase",)),
        counters=(),
        sends={},
        predicted=True,
    )
