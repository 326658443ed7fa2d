"""Turn a winner into what a target of an export forbids: faster plans of its engine that the target cannot express.

The engine's space is swept again without regard to the target. Of the plans it keeps (the fastest, and the best at each
choice of each axis) those count that are faster than the winner and not supported: the fastest for each set of
decisions that stand against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.core.records import dataclass
from ridgeline.plan.capability import UnsupportedDecision
from ridgeline.search.distinct import kinds
from ridgeline.search.plan_search import Search, find_plan, predict_entries
from ridgeline.search.progress import GoOn, always
from ridgeline.search.shortlist import Entry
from ridgeline.sim import Prediction

WORTH = 0.005  # gains below half a per cent are not worth telling
MOST_ASKED = 200  # plans
MOST = 3  # sets of decisions that are told


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetGain:
    """A plan that the target cannot express.

    untold   the decisions that stand against it
    gain     tokens per second per chip over the winner's, less one
    """

    untold: tuple[UnsupportedDecision, ...]
    gain: float
    prediction: Prediction

    JSON = """
        untold gain step_time_s=prediction.step_time_s tokens_per_s_per_chip=prediction.tokens_per_s_per_chip
        plan=prediction.plan_table words=prediction.plan_words
    """


def target_gains(search: Search, winner: Prediction, go_on: GoOn = always) -> tuple[TargetGain, ...]:
    """What the target keeps from the plan, the most gain first; nothing where `go_on` answered False."""

    def progress(priced: int, best_s: float) -> bool:  # noqa: ARG001
        return go_on("what it cannot be told")

    free = find_plan(
        search.scenario, search.pins, most=0, headroom=search.headroom, calibration=search.calibration,
        progress=progress,
    )  # fmt: skip
    if not free.swept.complete:
        return ()
    gains: list[TargetGain] = []
    for entry, untold in _faster(search, winner, free):
        for candidate_value in predict_entries(search.scenario, [entry], search.calibration):
            gain = candidate_value.tokens_per_s_per_chip / winner.tokens_per_s_per_chip - 1
            if gain >= WORTH:
                gains.append(TargetGain(untold=untold, gain=gain, prediction=candidate_value))
    return tuple(sorted(gains, key=lambda one: -one.gain)[:MOST])


def _faster(
    search: Search, winner: Prediction, free: Search
) -> Iterator[tuple[Entry, tuple[UnsupportedDecision, ...]]]:
    """The fastest plan for each set of decisions; a set that holds a faster one's says nothing new."""
    items: list[frozenset[str]] = []
    target = search.target
    assert target is not None
    for entry in kinds(free.swept, MOST_ASKED):
        if entry.step_s > winner.step_time_s:
            return
        attempt = replace(search.scenario, plan=entry.plan)
        if not target.capability.unsupported_decisions(attempt):
            continue
        untold = target.unsupported_decisions(attempt)
        paths = frozenset(decision.path for decision in untold)
        if untold and not any(capacity <= paths for capacity in items):
            items.append(paths)
            yield entry, untold
