"""Turn the best plans of a search into the one that is recommended: the fastest that fits and its engine can be told.

Candidates are the winner, good plans with their layers moved and one way to recompute (``refine.even``), and the first
few as ``refine`` likes them where the engine can be told that. The best of them are run event by event. What refinement
gains beyond what the engine can be told is told beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration
from ridgeline.plan.capability import decision_words
from ridgeline.plan.supported import unsupported_decisions
from ridgeline.search.explain import simulated_step_s
from ridgeline.search.progress import GoOn, always
from ridgeline.search.space import selective_parts
from ridgeline.search.stage_layout.refine import REFINED, Change, Refined, even, refine
from ridgeline.search.target import ExportTarget
from ridgeline.sim import Impossible, Prediction

GAINS = 0.001  # of a step: less than this is not worth stages that differ
FINALISTS = 3  # candidates that are run event by event


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """The plan that is recommended after refinement, and how it came about.

    start       the plan of the search it was made of; `prediction` itself where nothing was better
    changes     what was changed in it
    event_s     its step run event by event, None where that was not done
    refined     the first plans with stage boundaries, recompute by stage and offload chosen freely, fastest first
    beyond      the best of these, where it is faster still but the engine cannot be told
    """

    prediction: Prediction
    start: Prediction
    changes: tuple[Change, ...] = ()
    event_s: float | None = None
    refined: tuple[Refined, ...] = ()
    beyond: Refined | None = None


def refinement(
    plans: Sequence[Prediction], winner_event_s: float | None, budget_bytes: float, go_on: GoOn = always,
    calibration: Calibration | None = None, target: ExportTarget | None = None,
) -> Refinement | None:  # fmt: skip
    """What to recommend of good plans, the winner first; its step event by event is given where that is known.

    None where `go_on` answered False before all was tried.
    """
    winner = plans[0]
    question = _Asked(budget_bytes=budget_bytes, go_on=go_on, calibration=calibration)
    free = tuple(sorted(_refine_plans(plans[:REFINED], question), key=_step))
    able = [item for item in (*_even_plans(plans, question), *free) if not lacking(item, target)]
    better = sorted((outcome for outcome in able if _step(outcome) < winner.step_time_s * (1 - GAINS)), key=_step)
    if not go_on("refined plans, event by event"):
        return None
    candidate_value, event_s = _finalist(better[:FINALISTS], winner_event_s, calibration)
    step_s = (_step(candidate_value) if candidate_value else winner.step_time_s) * (1 - GAINS)
    return Refinement(
        prediction=candidate_value.prediction if candidate_value else winner,
        start=candidate_value.start if candidate_value else winner,
        changes=candidate_value.changes if candidate_value else (),
        event_s=event_s,
        refined=free,
        beyond=next((refined_plan for refined_plan in free if _step(refined_plan) < step_s), None),
    )


def _step(one: Refined) -> float:
    return one.prediction.step_time_s


def _finalist(
    better: Sequence[Refined], winner_event_s: float | None, calibration: Calibration | None
) -> tuple[Refined | None, float | None]:
    """The fastest event by event, None where the winner is; the first where events were not run."""
    if winner_event_s is None:
        return (better[0] if better else None), None
    best, least = None, winner_event_s
    for refined_plan in better:
        seconds = simulated_step_s(refined_plan.prediction, calibration)
        if seconds is not None and seconds < least:
            best, least = refined_plan, seconds
    return best, least


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What plans are refined under."""

    budget_bytes: float
    go_on: GoOn
    calibration: Calibration | None


def _refine_plans(plans: Iterable[Prediction], asked: _Asked) -> Iterator[Refined]:
    """Plans refined without regard to what their engine can be told, those that became equal once."""
    made: list[Refined] = []
    for plan in plans:
        if not asked.go_on("stage boundaries, recompute by stage and offload"):
            return
        result = refine(plan.scenario, asked.calibration, budget_bytes=asked.budget_bytes)
        if isinstance(result, Impossible) or not result.fits or not result.changes:
            continue
        if all(result.scenario.plan != alternative.scenario.plan for alternative in made):
            made.append(result)
            yield result


def _even_plans(plans: Iterable[Prediction], asked: _Asked) -> Iterator[Refined]:
    """Plans refined as far as their engine can be told."""
    for plan in plans:
        if not asked.go_on("stage boundaries that the engine can be told"):
            return
        result = even(plan.scenario, asked.calibration, budget_bytes=asked.budget_bytes)
        if isinstance(result, Refined) and result.fits and result.changes:
            yield result


def lacking(one: Refined, target: ExportTarget | None = None) -> str:
    """What the engine is not known to do of a refined plan and was not asked before, or a target cannot be told, in
    words; nothing where all is."""
    before, current = unsupported_decisions(one.start.scenario), one.scenario.plan.recompute
    notes = [note.removeprefix("engine ") for note in unsupported_decisions(one.scenario) if note not in before]
    if "selective" in (current.kind, current.rest) and current.parts not in selective_parts(one.start.scenario):
        notes.append(f"{one.scenario.plan.engine} is not known to recompute just {' and '.join(current.parts)}")
    decisions = target.unsupported_decisions(one.scenario) if target else ()
    if target and decisions:
        notes.append(f"{target.id} cannot be told {decision_words(decisions)}: {decisions[0].why}")
    return "; ".join(notes)
