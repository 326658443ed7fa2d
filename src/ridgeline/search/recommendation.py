"""Turn a PlanRequest into a Recommendation: what `ridgeline plan` prints, and the scenario that `-o` writes.

    cases -> find_plan each -> the outcome that the goal prefers                        search
          -> its plans in order, why, event by event, what would beat it, refined       explain

Whoever watches is told of both phases and may stop each: what was found until then is recommended, and marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.hardware.load import rated_power
from ridgeline.plan.plan_table import scenario_text
from ridgeline.plan.scenario_file import self_contained
from ridgeline.plan.supported import unsupported_decisions
from ridgeline.search.cases import Case, search_cases
from ridgeline.search.distinct import kinds
from ridgeline.search.explain import GivenPlan, PlanExplanation, explain, given_plan, simulated_step_s
from ridgeline.search.infeasible import refusal
from ridgeline.search.objectives import Outcome, Point, chosen, frontier, outcome, points, rank_plans, usual_axes
from ridgeline.search.other_engines import OtherEngine, other_engines
from ridgeline.search.plan_search import find_plan, predict_entries
from ridgeline.search.progress import Progress, Watch, ignore_progress
from ridgeline.search.refinement import Refinement, refinement
from ridgeline.search.request import PlanRequest
from ridgeline.search.target_gains import TargetGain, target_gains
from ridgeline.search.what_if import WhatIf, what_if
from ridgeline.sim import Prediction, scenario_headroom

SIMULATED = 5  # plans run event by event
REFINED_AXES = ("placement", "recompute", "offload")  # what refinement chooses; where one is pinned nothing is refined


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """Why the chosen outcome's plan, and what next.

    plans         in the objective's order; the first is the winner
    kinds         the best plan of each kind: another mesh, sharding or recompute
    why           what every alternative loses, and how sure that is
    simulated_s   steps of the first plans event by event, None where that would take too long
    what_if       changes that were tried, the most gain first
    engines       what other software would gain, the most first
    untold        what plans would gain that the target cannot be told, the most first
    given         the plan that came with the scenario, None where none did
    refinement    what refinement made of the first plans; None where it was not asked for, or stopped
    assumptions   what was not given, what the numbers rest on, what the engine is not known to do
    complete      False where it was stopped before all was tried
    """

    plans: tuple[Prediction, ...]
    kinds: tuple[Prediction, ...]
    why: PlanExplanation
    assumptions: tuple[str, ...]
    simulated_s: tuple[float | None, ...] = ()
    what_if: tuple[WhatIf, ...] = ()
    engines: tuple[OtherEngine, ...] = ()
    untold: tuple[TargetGain, ...] = ()
    given: GivenPlan | None = None
    refinement: Refinement | None = None
    complete: bool = True

    @property
    def recommended(self) -> Prediction:
        """The plan that is recommended: the winner, or what refinement made of a plan, told in the engine's words."""
        return self.refinement.prediction if self.refinement else self.plans[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What is recommended, and everything it was chosen from.

    outcomes        of every system and size that was searched, in that order
    chosen          the outcome the goal prefers; None where none qualifies
    reasons         for its plan; None where none is chosen
    problems        why none is chosen; empty where one is, or where the search was stopped before
    skipped         sizes that were left out, and why
    frontier        the Pareto front of all plans in the two quantities of `frontier_axes`
    complete        False where the search was stopped before all plans were priced
    """

    request: PlanRequest
    outcomes: tuple[Outcome, ...]
    chosen: Outcome | None
    reasons: Reasons | None
    problems: tuple[Problem, ...]
    skipped: tuple[str, ...]
    frontier_axes: tuple[str, str]
    frontier: tuple[Point, ...]
    complete: bool

    @property
    def considered(self) -> int:
        """Plans priced on all systems."""
        return sum(outcome.search.swept.considered for outcome in self.outcomes)

    @property
    def feasible(self) -> int:
        """Those among them that fit."""
        return sum(outcome.search.swept.feasible for outcome in self.outcomes)

    @property
    def scenario_text(self) -> str:
        """The recommended plan as a scenario file that stands on its own; nothing where there is none."""
        if self.chosen is None or self.reasons is None:
            return ""
        best = self.reasons.recommended
        note = f"Found by `ridgeline plan`: {self.considered:,} plans priced, predicted step {best.step_time_s:.4g} s."
        table = {key: value for key, value in self.chosen.table.items() if key != "measured"}  # of another plan
        return scenario_text(self_contained(table), best.scenario.plan, note)


OnBest = Callable[[Recommendation], None]


def recommend(
    request: PlanRequest, watch: Watch = ignore_progress, *, all_gains: bool = True, on_best: OnBest | None = None
) -> Recommendation:
    """Search every case of a request, choose, and explain the choice.

    watch       told of progress in both phases; answers False to stop
    all_gains   also price changes and other engines that cannot gain anything; without, only those that may
    on_best     told of the best plans as soon as they are found, before their reasons

    >>> request = PlanRequest.from_options("llama3-8b", on="8xh100-sxm", global_batch=64, settings=["plan.pp=1"])
    >>> found = recommend(request)
    >>> found.complete, found.reasons.recommended.fits, found.reasons.plans[0] == found.chosen.best
    (True, True, True)
    """
    if problems := tuple(request.goal.problems()):
        raise InputError(problems)
    skipped: list[str] = []
    outcomes: list[Outcome] = []
    for item in search_cases(request, lambda case: _outcome(case, request, watch), skipped):
        outcomes.append(item)
        if not item.search.swept.complete:
            break
    complete = all(outcome.search.swept.complete for outcome in outcomes)
    best = chosen(outcomes, request.goal)
    watch(Progress(phase="explain", what="why the best is the best"))
    axes = request.frontier or usual_axes(outcome.scenario.system for outcome in outcomes)
    result = Recommendation(
        request=request,
        outcomes=tuple(outcomes),
        chosen=best,
        reasons=None,
        problems=refusal(outcomes, request.goal, _Stoppable(watch)) if best is None and complete else (),
        skipped=tuple(skipped),
        frontier_axes=axes,
        frontier=frontier(points(outcome.search for outcome in outcomes), *axes),
        complete=complete,
    )
    if best is None:
        return result
    if on_best is not None:
        on_best(replace(result, reasons=replace(_reasons(best, request, None, faster=True), complete=complete)))
    return replace(result, reasons=_reasons(best, request, watch if complete else None, faster=not all_gains))


def _outcome(case: Case, request: PlanRequest, watch: Watch) -> Outcome:
    """What the search of one case found."""
    name = case.scenario.system.name

    def progress(priced: int, best_s: float) -> bool | None:
        return watch(Progress(phase="search", what=name, priced=priced, best_s=best_s))

    search = find_plan(
        case.scenario, case.pins, most=request.top, headroom=request.headroom, calibration=request.calibration,
        progress=progress, given=case.given, target=request.target,
    )  # fmt: skip
    return outcome(search, request.goal, table=case.table, given=case.given)


def _reasons(best: Outcome, request: PlanRequest, watch: Watch | None, *, faster: bool) -> Reasons:
    """The reasons for a plan; without anybody to watch those that take no time."""
    go_on = _Stoppable(watch)
    search, small = best.search, request.goal.objective == "memory"
    plans = rank_plans(search, request.goal, request.top)
    some = plans if small else predict_entries(search.scenario, kinds(search.swept, request.top), search.calibration)
    changes: tuple[WhatIf, ...] = ()
    alternatives: tuple[OtherEngine, ...] = ()
    if go_on("what would beat the best"):
        changes = what_if(search, plans[0], search.calibration, go_on, faster=faster)
    if go_on("what other software would gain"):
        alternatives = other_engines(search, plans[0], search.calibration, go_on, faster=faster)
    beyond = target_gains(search, plans[0], go_on) if search.target and go_on("what it cannot be told") else ()
    events = tuple(
        simulated_step_s(plan, search.calibration)
        for plan in plans[:SIMULATED]
        if go_on("the first plans, event by event")
    )
    free = request.refine and not small and not any(axis in search.pins.pinned for axis in REFINED_AXES)
    refined = None
    if free and go_on("stage boundaries and recompute by stage"):
        refined = refinement(
            _merge_plans(plans, some), events[0], search.capacity_bytes, go_on, search.calibration, search.target
        )
    return Reasons(
        plans=plans,
        kinds=some,
        why=explain(search, plans[0]),
        assumptions=tuple(_assumption_notes(best, plans[0], given=request.headroom is not None)),
        simulated_s=events,
        what_if=changes,
        engines=alternatives,
        untold=beyond,
        given=given_plan(search, search.scenario, plans[0]) if best.given else None,
        refinement=refined,
        complete=not go_on.stopped,
    )


class _Stoppable:
    """Whether to go on: what is tried next is told, and once the answer was False it stays so."""

    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch
        self.stopped = watch is None

    def __call__(self, what: str) -> bool:
        if self._watch is not None and not self.stopped:
            self.stopped = self._watch(Progress(phase="explain", what=what)) is False
        return not self.stopped


def _merge_plans(plans: Sequence[Prediction], others: Iterable[Prediction]) -> tuple[Prediction, ...]:
    """The plans, and the others that are not among them."""
    catalog_entry = [plan.scenario.plan for plan in plans]
    return (*plans, *(one for one in others if one.scenario.plan not in catalog_entry))


def _assumption_notes(best: Outcome, winner: Prediction, *, given: bool) -> Iterable[str]:
    """Every assumption once: what was not given, what the numbers rest on, what the engine is not known to do."""
    notes: list[str] = [*winner.assumptions]
    origin = "given" if given else scenario_headroom(winner.scenario).origin
    notes.append(f"headroom = {best.search.headroom:.1%} of memory kept free: {origin}")
    notes += unsupported_decisions(winner.scenario)
    notes += best.run.goodput.assumptions if best.run else ()
    chip = winner.scenario.system.chip
    notes += [f"money not counted: no price of {chip.id} is published here"] if chip.price is None else []
    unknown = rated_power(chip) is None
    notes += [f"energy not counted: no rated power of {chip.id} is published here"] if unknown else []
    return dict.fromkeys(notes)
