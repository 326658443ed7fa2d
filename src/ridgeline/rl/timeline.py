"""Turn a predicted step of post-training into a Timeline: a process for every pool, a span for every phase."""

from __future__ import annotations

from ridgeline.core.units import DECIMAL
from ridgeline.rl.prediction import RlPrediction
from ridgeline.trace import Span, Timeline

STEPS = 3  # that are drawn one after the other, so that what overlaps is seen


def rl_timeline(prediction: RlPrediction, steps: int = STEPS) -> Timeline:
    """Spans of some steps, by pool; waiting is what lies between them."""
    pools = list(dict.fromkeys(pool.pool for pool in prediction.idle))
    spans = [
        Span(
            process=pool, stream="phases", name=phase.name, kind="phase",
            start_ns=_nanoseconds(step * prediction.step_time_s + phase.begin_s),
            duration_ns=max(_nanoseconds(min(phase.seconds, prediction.step_time_s)), 1),
        )
        for step in range(steps)
        for phase in prediction.phases
        for pool in (pools if phase.pool == "all" else [phase.pool])
    ]  # fmt: skip
    return Timeline.of(spans)


def _nanoseconds(seconds: float) -> int:
    return round(seconds / DECIMAL["n"])
