"""Turn an Answer and its reasons into a sheet of facts, as `ridgeline plan --json` prints it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from ridgeline.core.errors import Problem
from ridgeline.core.units import signed_quantity
from ridgeline.plan.check import unsupported
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
    PlanSheet,
    PointSheet,
    PricedPlanSheet,
    RefinedPlanSheet,
    RunSheet,
    SimulatedPlanSheet,
    SureSheet,
)
from ridgeline.search.answer import Answer
from ridgeline.search.distinct import kind_words, kinds
from ridgeline.search.explain import Explanation, Loss, Standing, difference, explain, simulated, standing
from ridgeline.search.find_plan import predicted
from ridgeline.search.objectives import Outcome, Point, Run, frontier, points, ranked
from ridgeline.search.recommend import Recommendation, lacking, recommended
from ridgeline.search.stage_layout.refine import Refined
from ridgeline.search.what_if import Change, what_if, worth
from ridgeline.sim.memory.peak import capacity_of
from ridgeline.sim.prediction import Prediction

FEW = 5  # plans simulated event by event
TOLD = 3  # parts of a difference that are named
SILENT = 0.0005  # of a step: smaller parts of a difference are not worth a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """Why the chosen plan, and what next; empty where the search was stopped.

    kinds       the best plan of each kind: another mesh, sharding or recompute
    simulated   seconds of the first plans event by event, None where that was not done
    handed      the plan to hand over: the winner, or what refinement made of a plan as far as the engine can be told
    seconds     it took to find all this
    """

    plans: tuple[Prediction, ...]
    why: Explanation
    simulated: tuple[float | None, ...] = ()
    tried: tuple[Change, ...] = ()
    given: Standing | None = None
    kinds: tuple[Prediction, ...] = ()
    recommended: Recommendation | None = None
    seconds: float = 0.0
    complete: bool = True


REFINED_AXES = ("placement", "recompute", "offload")  # what refinement chooses; where one is pinned nothing is refined


def reasons_of(answer: Answer, chosen: Outcome, *, further: bool = True, refine: bool = True) -> Reasons:
    """The reasons for the chosen plan.

    further   also what would beat it, and the first plans run event by event
    refine    also stage boundaries and recompute by stage
    """
    began, search, goal = time.perf_counter(), chosen.search, answer.ask.goal
    plans = ranked(search, goal, answer.ask.top)
    winner = plans[0]
    some = plans if goal.objective == "memory" else predicted(search.scenario, kinds(search.swept, answer.ask.top))
    own = standing(search, search.scenario, winner) if answer.case.given else None
    tried = what_if(search, winner) if further and answer.complete else ()
    events = tuple(simulated(plan) for plan in plans[:FEW]) if further and answer.complete else ()
    free = further and refine and answer.complete and goal.objective != "memory"
    free = free and not any(axis in search.pins for axis in REFINED_AXES)
    good = (*plans, *(plan for plan in some if plan.scenario.plan not in [one.scenario.plan for one in plans]))
    return Reasons(
        plans=plans,
        why=explain(search, winner),
        simulated=events,
        tried=tried,
        given=own,
        kinds=some,
        recommended=recommended(good, events[0], search.capacity_bytes) if free else None,
        seconds=time.perf_counter() - began,
        complete=further and answer.complete,
    )


def plan_sheet(answer: Answer, chosen: Outcome, reasons: Reasons, axes: tuple[str, str]) -> PlanSheet:
    """Everything that was found, in base units."""
    search, winner = chosen.search, reasons.plans[0]
    scenario = winner.scenario
    return {
        "kind": "plan",
        "possible": True,
        "complete": answer.complete,
        "objective": answer.ask.goal.objective,
        "model": scenario.model.id,
        "system": scenario.system.name,
        "chips": scenario.system.chips,
        "engine": scenario.plan.engine,
        "seq": scenario.workload.seq,
        "global_batch": scenario.workload.sequences,
        "considered": answer.considered,
        "feasible": answer.feasible,
        "seconds": answer.seconds,
        "cpu_seconds": answer.cpu_seconds,
        "explain_seconds": reasons.seconds,
        "explained": reasons.complete,
        "capacity_bytes": capacity_of(scenario),
        "headroom": search.headroom,
        "plans": [_simulated(*pair, winner) for pair in zip_longest(reasons.plans, reasons.simulated)],
        "kinds": [_plan(prediction, winner) for prediction in reasons.kinds],
        "refined": [_refined(one, winner) for one in reasons.recommended.refined] if reasons.recommended else [],
        "handed": _handed(reasons, winner),
        "bounds": {str(bound): seconds for bound, seconds in winner.bounds.items()},
        "why": [_loss(loss) for loss in reasons.why.losses],
        "sure": _sure(reasons.why),
        "next": [_change(change) for change in worth(reasons.tried)],
        "tried": [_change(change) for change in reasons.tried],
        "frontier_axes": list(axes),
        "frontier": [_point(one) for one in frontier(points(o.search for o in answer.outcomes), *axes)],
        "compared": compared(answer, chosen),
        "skipped": list(answer.skipped),
        "assumptions": list(_assumed(answer, winner, chosen.run)),
        **_asked(answer, chosen, reasons),
    }


def _asked(answer: Answer, chosen: Outcome, reasons: Reasons) -> AskedSheet:
    """What is told only where it was asked for."""
    asked: AskedSheet = {}
    tokens = answer.ask.goal.tokens
    if chosen.run is not None and tokens is not None:
        asked = {"tokens": tokens, "days": chosen.run.days, "run": _run(chosen.run)}
    if reasons.given is not None:
        asked["given"] = _given(reasons.given)
    return asked


def usual_axes(answer: Answer) -> tuple[str, str]:
    """Time against memory; between sizes time against money, or chips where no price is known."""
    if len({one.scenario.system.chips for one in answer.outcomes}) == 1:
        return "time", "memory"
    priced = [one.scenario.system.chip.price for one in answer.outcomes]
    return "time", "cost" if all(priced) else "chips"


def refusal_sheet(answer: Answer | None, problems: Iterable[Problem]) -> NoPlanSheet:
    """Why there is no plan."""
    sheet: NoPlanSheet = {"kind": "plan", "possible": False, "problems": plain(list(problems)), "plans": []}
    if answer is not None:
        sheet |= {
            "complete": answer.complete,
            "considered": answer.considered,
            "feasible": answer.feasible,
            "seconds": answer.seconds,
            "cpu_seconds": answer.cpu_seconds,
            "compared": compared(answer, None),
            "skipped": list(answer.skipped),
        }
    return sheet


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


def _refined(found: Refined, winner: Prediction) -> RefinedPlanSheet:
    """A plan that refinement made better, and what it changed."""
    saved = winner.step_time_s - found.prediction.step_time_s
    what_if = [str(change) for change in found.changes]
    return {**_plan(found.prediction, winner), "saves_s": saved, "changes": what_if, "lacking": lacking(found)}


def _handed(reasons: Reasons, winner: Prediction) -> HandedPlanSheet:
    """The plan that `-o` writes: the winner, or what refinement made of one of the first plans."""
    made = reasons.recommended or Recommendation(prediction=winner, start=winner)
    return {
        **_plan(made.prediction, winner),
        "refined": bool(made.changes),
        "of": plan_words(made.start.scenario.plan),
        "saves_s": winner.step_time_s - made.prediction.step_time_s,
        "changes": [str(change) for change in made.changes],
        "simulated_s": made.event_s,
        "beyond": _refined(made.beyond, winner) if made.beyond else None,
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


def _change(change: Change) -> ChangeSheet:
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


def compared(answer: Answer, chosen: Outcome | None) -> list[ComparedSheet]:
    """Every system and size; efficiency is tokens/s/chip over that of the same chip's smallest system that fits."""
    rows = [_outcome(one, chosen) for one in answer.outcomes]
    for row in rows:
        same = [other for other in rows if other["chip"] == row["chip"] and "step_time_s" in other]
        if "step_time_s" in row:
            smallest = min(same, key=lambda other: other["chips"])
            row["efficiency"] = row["tokens_per_s_per_chip"] / smallest["tokens_per_s_per_chip"]
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


def _given(own: Standing) -> GivenPlanSheet:
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


def _assumed(answer: Answer, winner: Prediction, run: Run | None) -> Iterable[str]:
    """Every assumption once: what was not given, what the numbers rest on, what the engine is not known to do."""
    notes: list[str] = [*winner.assumptions]
    share = answer.ask.headroom
    notes.append(f"headroom = {share:.0%} of memory kept free, because predicted peaks err by a few per cent")
    notes += unsupported(winner.scenario)
    notes += run.goodput.assumptions if run else ()
    chip = winner.scenario.system.chip
    notes += [f"money not counted: no price of {chip.id} is published here"] if chip.price is None else []
    notes += [f"energy not counted: no rated power of {chip.id} is published here"] if chip.tdp is None else []
    return dict.fromkeys(notes)
