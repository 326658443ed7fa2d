"""Turn a Recommendation into a sheet of facts, as `ridgeline plan --json` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest

from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import signed_quantity
from ridgeline.plan.plan_table import plan_table, plan_words
from ridgeline.report.sheets.plain import plain
from ridgeline.report.sheets.plan import (
    AskedSheet,
    ChangeSheet,
    ComparedSheet,
    GivenPlanSheet,
    HandedPlanSheet,
    LossSheet,
    NoPlanSheet,
    OtherEngineSheet,
    PlanSheet,
    PointSheet,
    PricedPlanSheet,
    RefinedPlanSheet,
    RunSheet,
    SimulatedPlanSheet,
    SureSheet,
    UntoldSheet,
)
from ridgeline.search.distinct import kind_words
from ridgeline.search.explain import Explanation, GivenPlan, Loss, difference
from ridgeline.search.objectives import Outcome, Point, Run, scaling_efficiency
from ridgeline.search.other_engines import OtherEngine
from ridgeline.search.recommend import Reasons, Recommendation
from ridgeline.search.refinement import Refinement, lacking
from ridgeline.search.stage_layout.refine import Refined
from ridgeline.search.target import ExportTarget
from ridgeline.search.target_gains import TargetGain
from ridgeline.search.what_if import WhatIf, worth
from ridgeline.sim.memory.peak import capacity_of
from ridgeline.sim.prediction import Prediction

TOLD = 3  # parts of a difference that are named
SILENT = 0.0005  # of a step: smaller parts of a difference are not worth a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Seconds that a recommendation took, by whoever asked for it: wall and CPU of the search, wall of the reasons."""

    seconds: float
    cpu_seconds: float
    explain_seconds: float


def plan_sheet(found: Recommendation, took: Took) -> PlanSheet | NoPlanSheet:
    """Everything that was found, in base units; why there is no plan where none was."""
    if found.chosen is None or found.reasons is None:
        return _refused(found, took)
    return _found(found, found.chosen, found.reasons, took)


def _found(found: Recommendation, chosen: Outcome, reasons: Reasons, took: Took) -> PlanSheet:
    winner = reasons.plans[0]
    scenario = winner.scenario
    return {
        "kind": "plan",
        "possible": True,
        "complete": found.complete,
        "objective": found.request.goal.objective,
        "model": scenario.model.id,
        "system": scenario.system.name,
        "chips": scenario.system.chips,
        "engine": scenario.plan.engine,
        "seq": scenario.workload.seq,
        "global_batch": scenario.workload.sequences,
        "considered": found.considered,
        "feasible": found.feasible,
        "seconds": took.seconds,
        "cpu_seconds": took.cpu_seconds,
        "explain_seconds": took.explain_seconds,
        "explained": reasons.complete,
        "capacity_bytes": capacity_of(scenario),
        "headroom": chosen.search.headroom,
        "plans": [_simulated(*pair, winner) for pair in zip_longest(reasons.plans, reasons.simulated_s)],
        "kinds": [_plan(prediction, winner) for prediction in reasons.kinds],
        "refined": [_refined(one, winner, chosen) for one in reasons.refinement.refined] if reasons.refinement else [],
        "handed": _handed(reasons, winner, chosen),
        "bounds": {str(bound): seconds for bound, seconds in winner.bounds.items()},
        "why": [_loss(loss) for loss in reasons.why.losses],
        "sure": _sure(reasons.why),
        "next": [_change(change) for change in worth([one for one in reasons.what_if if not one.is_feature])],
        "features": [_change(change) for change in worth([one for one in reasons.what_if if one.is_feature])],
        "tried": [_change(change) for change in reasons.what_if],
        "engines": [_engine(one, chosen.search.target) for one in reasons.engines],
        "frontier_axes": list(found.frontier_axes),
        "frontier": [_point(one) for one in found.frontier],
        "compared": compared(found),
        "skipped": list(found.skipped),
        "assumptions": list(reasons.assumptions),
        **_asked(found, chosen, reasons),
    }


def _asked(found: Recommendation, chosen: Outcome, reasons: Reasons) -> AskedSheet:
    """What is told only where it was asked for."""
    asked: AskedSheet = {}
    tokens = found.request.goal.tokens
    if chosen.run is not None and tokens is not None:
        asked = {"tokens": tokens, "days": chosen.run.days, "run": _run(chosen.run)}
    if found.request.target is not None:
        asked["to"] = found.request.target.id
        asked["untold"] = [_untold(one) for one in reasons.untold]
    if reasons.given is not None:
        asked["given"] = _given(reasons.given)
    return asked


def refusal_sheet(problems: Iterable[Problem]) -> NoPlanSheet:
    """Why there is no plan."""
    return {"kind": "plan", "possible": False, "problems": plain(list(problems)), "plans": []}


def _refused(found: Recommendation, took: Took) -> NoPlanSheet:
    return refusal_sheet(found.problems) | {
        "complete": found.complete,
        "considered": found.considered,
        "feasible": found.feasible,
        "seconds": took.seconds,
        "cpu_seconds": took.cpu_seconds,
        "compared": compared(found),
        "skipped": list(found.skipped),
    }


def _plan(prediction: Prediction, winner: Prediction) -> PricedPlanSheet:
    plan = prediction.scenario.plan
    return {
        "plan": plan_table(plan),
        "words": plan_words(plan),
        "family": kind_words(plan),
        "step_time_s": prediction.step_time_s,
        "tokens_per_s_per_chip": prediction.tokens_per_s_per_chip,
        "mfu": prediction.utilization.mfu,
        "peak_memory_bytes": prediction.memory.peak_bytes,
        "interval": plain(prediction.interval),
        "why": _reason(prediction, winner),
        "breakdown": {part.name: part.seconds for part in prediction.breakdown},
        "cost_usd": prediction.bill.cost_usd,
        "energy_j": prediction.bill.energy_j,
    }


def _simulated(prediction: Prediction, seconds: float | None, winner: Prediction) -> SimulatedPlanSheet:
    return {**_plan(prediction, winner), "simulated_s": seconds}


def _refined(found: Refined, winner: Prediction, chosen: Outcome) -> RefinedPlanSheet:
    """A plan that refinement made better, and what it changed."""
    saved = winner.step_time_s - found.prediction.step_time_s
    changes = [str(change) for change in found.changes]
    lacks = lacking(found, chosen.search.target)
    return {**_plan(found.prediction, winner), "saves_s": saved, "changes": changes, "lacking": lacks}


def _handed(reasons: Reasons, winner: Prediction, chosen: Outcome) -> HandedPlanSheet:
    """The plan that `-o` writes: the winner, or what refinement made of one of the first plans."""
    made = reasons.refinement or Refinement(prediction=winner, start=winner)
    return {
        **_plan(made.prediction, winner),
        "refined": bool(made.changes),
        "of": plan_words(made.start.scenario.plan),
        "saves_s": winner.step_time_s - made.prediction.step_time_s,
        "changes": [str(change) for change in made.changes],
        "simulated_s": made.event_s,
        "beyond": _refined(made.beyond, winner, chosen) if made.beyond else None,
    }


def _reason(prediction: Prediction, winner: Prediction) -> str:
    if prediction is winner:
        limits = ", ".join(f"{name} {seconds / winner.step_time_s:.0%}" for name, seconds in winner.bounds.items())
        return f"the best of all that fit; limited by {limits}"
    lost = prediction.step_time_s - winner.step_time_s
    return f"{signed_quantity(lost, 's')}: {spread(difference(prediction, winner), winner.step_time_s)}"


def spread(parts: Mapping[str, float], step_s: float) -> str:
    """The largest parts of a difference in words, the rest as one; they sum to the difference.

    >>> spread({"tp": 1.0, "bubble": -0.25, "pp": 1e-6}, 10.0)
    'tp +1 s, bubble −250 ms'
    """
    told = [(name, seconds) for name, seconds in parts.items() if abs(seconds) > SILENT * step_s][:TOLD]
    told = told or list(parts.items())[:1]
    rest = sum(parts.values()) - sum(seconds for _, seconds in told)
    words = [f"{name} {signed_quantity(seconds, 's')}" for name, seconds in told]
    return ", ".join([*words, f"rest {signed_quantity(rest, 's')}"] if abs(rest) > SILENT * step_s else words)


def _loss(loss: Loss) -> LossSheet:
    step_s = loss.prediction.step_time_s - loss.seconds
    return {
        "axis": list(loss.axis),
        "choice": loss.choice,
        "loses_s": loss.seconds,
        "to": spread(loss.parts, step_s),
        "parts": dict(loss.parts),
        "overlaps": loss.overlaps,
        "plan": plan_table(loss.prediction.scenario.plan),
        "words": plan_words(loss.prediction.scenario.plan),
    }


def _sure(why: Explanation) -> SureSheet:
    runner = why.runner_up
    return {
        "runner_up_loses_s": runner.seconds if runner else None,
        "runner_up_overlaps": runner.overlaps if runner else None,
        "overlapping": why.doubted,
        "of": why.shortlist,
        "basis": why.winner.interval.basis,
    }


def _change(change: WhatIf) -> ChangeSheet:
    made = change.prediction
    return {
        "kind": change.kind,
        "what": change.what,
        "how": change.how,
        "gain": change.gain,
        "step_time_s": made.step_time_s,
        "tokens_per_s_per_chip": made.tokens_per_s_per_chip,
        "plan": plan_table(made.scenario.plan),
        "words": plan_words(made.scenario.plan),
    }


def _untold(one: TargetGain) -> UntoldSheet:
    made = one.prediction
    return {
        "untold": [{"path": part.path, "value": part.value, "why": part.why} for part in one.untold],
        "gain": one.gain,
        "step_time_s": made.step_time_s,
        "tokens_per_s_per_chip": made.tokens_per_s_per_chip,
        "plan": plan_table(made.scenario.plan),
        "words": plan_words(made.scenario.plan),
    }


def _how(one: OtherEngine, target: ExportTarget | None) -> str:
    """How to ask for another engine: a target runs some alone."""
    runs = target is None or one.engine.id in target.engines(one.prediction.scenario.system)
    return f"--engine {one.engine.id}" if runs else f"another target, --engine {one.engine.id}"


def _engine(one: OtherEngine, target: ExportTarget | None) -> OtherEngineSheet:
    made = one.prediction
    return {
        "engine": one.engine.id,
        "name": one.engine.name,
        "availability": one.availability,
        "how": _how(one, target),
        "gain": one.gain,
        "step_time_s": made.step_time_s,
        "tokens_per_s_per_chip": made.tokens_per_s_per_chip,
        "interval": plain(made.interval),
        "overlaps": one.overlaps,
        "runs": one.runs,
        "has": list(one.has),
        "plan": plan_table(made.scenario.plan),
        "words": plan_words(made.scenario.plan),
    }


def _point(point: Point) -> PointSheet:
    return {
        "system": point.system,
        "chips": point.chips,
        "step_time_s": point.time,
        "peak_memory_bytes": point.memory,
        "cost_usd": point.cost,
        "energy_j": point.energy,
        "plan": plan_table(point.plan),
        "words": plan_words(point.plan),
    }


def compared(found: Recommendation) -> list[ComparedSheet]:
    """Every system and size; efficiency is tokens/s/chip over that of the same chip's smallest system that fits."""
    rows = [_outcome(one, found.chosen) for one in found.outcomes]
    for row, efficiency in zip(rows, scaling_efficiency(found.outcomes), strict=True):
        if efficiency is not None:
            row["efficiency"] = efficiency
    return rows


def _outcome(one: Outcome, chosen: Outcome | None) -> ComparedSheet:
    system, found = one.scenario.system, one.search.swept
    sheet: ComparedSheet = {
        "system": system.name,
        "chips": system.chips,
        "chip": system.chip.id,
        "engine": one.scenario.plan.engine,
        "considered": found.considered,
        "feasible": found.feasible,
        "chosen": one is chosen,
    }
    best = one.best
    if best is None:
        return sheet
    sheet |= {
        "plan": plan_table(best.scenario.plan),
        "words": plan_words(best.scenario.plan),
        "step_time_s": best.step_time_s,
        "tokens_per_s": best.tokens_per_s_per_chip * system.chips,
        "tokens_per_s_per_chip": best.tokens_per_s_per_chip,
        "mfu": best.utilization.mfu,
        "peak_memory_bytes": best.memory.peak_bytes,
        "capacity_bytes": best.memory.capacity_bytes,
        "cost_usd": best.bill.cost_usd,
        "energy_j": best.bill.energy_j,
        "tokens": best.scenario.workload.tokens,
    }
    return sheet | ({"days": one.run.days, "run": _run(one.run)} if one.run else {})


def _run(run: Run) -> RunSheet:
    return {
        "days": run.days,
        "cost_usd": run.cost_usd,
        "energy_j": run.energy_j,
        "useful": run.goodput.useful,
        "useful_low": run.goodput.low,
        "useful_high": run.goodput.high,
        "failures_per_day": run.goodput.failures_per_day,
        "checkpoint_interval_s": run.goodput.interval_s,
    }


def _given(own: GivenPlan) -> GivenPlanSheet:
    return {
        "plan": plan_table(own.prediction.scenario.plan),
        "words": plan_words(own.prediction.scenario.plan),
        "step_time_s": own.prediction.step_time_s,
        "peak_memory_bytes": own.prediction.memory.peak_bytes,
        "fits": own.prediction.fits,
        "faster": own.faster,
        "loses_s": own.loss.seconds,
        "to": spread(own.loss.parts, own.prediction.step_time_s - own.loss.seconds),
    }
