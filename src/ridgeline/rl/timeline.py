"""Turn a predicted step of post-training into a Timeline: a process for every pool, a span for every phase."""

from __future__ import annotations

from ridgeline.core.units import DECIMAL
from ridgeline.rl.prediction import RlPrediction
from ridgeline.trace import Timeline

STEPS = 3  # that are drawn one after the other, so that what overlaps is seen


def rl_timeline(prediction: RlPrediction, steps: int = STEPS) -> Timeline:
    """Spans of some steps, by pool; waiting is what lies between them."""
    pools = list(dict.fromkeys(pool.pool for pool in prediction.idle))
    pools += [phase.pool for phase in prediction.phases if phase.pool not in (*pools, "all")]
    giga = DECIMAL["G"]
    rows = [
        (pool, "phases", phase.name, round(begin_s * giga), round((begin_s + seconds) * giga))
        for step in range(steps)
        for phase in prediction.phases
        for begin_s, seconds in (
            (step * prediction.step_time_s + phase.begin_s, min(phase.seconds, prediction.step_time_s)),
        )
        for pool in (pools if phase.pool == "all" else [phase.pool])
    ]
    return Timeline.of_phases(rows, predicted=True)
