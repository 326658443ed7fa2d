"""How the weights of data sources move over the steps of training, and the learning rate that is warmed up again.

value(t)          first + (last - first) min(t / steps, 1)          of a weight, and of the share of replay
a new source      (1 - share) weight / sum over new ones
an earlier one    share weight / sum over earlier ones
"""

from __future__ import annotations

import math

from ridgeline.plan.rl_workload import DataReplay, Rl

NEW, EARLIER = "new", "earlier"  # sources where none are described


def replay_share(replay: DataReplay, step: int) -> float:
    """Of the documents of a step, the first of which is 0, those that come from earlier data.

    >>> [replay_share(DataReplay(share=0.2, final_share=0.1, steps=10), step) for step in (0, 5, 99)]
    [0.2, 0.15000000000000002, 0.1]
    """
    return _moved_value(replay.share, replay.final_share, step / replay.steps)


def rate_factor(replay: DataReplay | None, step: int) -> float:
    """Learning rate of a step over that of the first training: warmed up again, then a cosine down to the floor.

    >>> schedule = DataReplay(warmup_steps=2, peak=0.5, decay_steps=4, floor=0.2)
    >>> [round(rate_factor(schedule, step), 3) for step in (0, 1, 2, 4, 6, 99)]
    [0.25, 0.5, 0.5, 0.3, 0.1, 0.1]
    """
    if replay is None:
        return 1.0
    if step < replay.warmup_steps:
        return replay.peak * (step + 1) / replay.warmup_steps
    if not replay.decay_steps:
        return replay.peak
    progress = min((step - replay.warmup_steps) / replay.decay_steps, 1.0)
    return replay.peak * (replay.floor + (1 - replay.floor) * (1 + math.cos(math.pi * progress)) / 2)


def mixture_at(work: Rl, step: int) -> dict[str, float]:
    """The share of every source in the documents of a step, the first of which is 0; they sum to 1."""
    replay = work.replay or DataReplay()
    share, progress = replay_share(replay, step), step / replay.steps
    if not work.sources:
        return {NEW: 1 - share, EARLIER: share} if share else {NEW: 1.0}
    weights = {name: _moved_value(entry.weight, entry.final_weight, progress) for name, entry in work.sources.items()}
    totals = {
        is_earlier: sum(weights[name] for name, entry in work.sources.items() if entry.earlier == is_earlier)
        for is_earlier in (False, True)
    }
    parts = {False: 1 - share, True: share}
    return {
        name: parts[entry.earlier] * weights[name] / totals[entry.earlier] if weights[name] else 0.0
        for name, entry in work.sources.items()
    }


def _moved_value(first: float, last: float | None, progress: float) -> float:
    """A value on its way from one to the other; it stays where there is no other."""
    return first if last is None else first + (last - first) * min(max(progress, 0.0), 1.0)
