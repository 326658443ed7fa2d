"""Turn a PlanRequest into a Recommendation, and that into what `ridgeline plan` prints and `-o` writes.

    cases -> find_plan each -> the outcome that the goal prefers                        search
          -> its plans in order, why, event by event, what would beat it, refined       explain

Whoever watches is told of both phases and may stop each: what was found until then is recommended, and marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import zip_longest

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import signed_quantity
from ridgeline.hardware.load import rated_power
from ridgeline.plan.capability import unsupported_decisions
from ridgeline.plan.plan import scenario_text
from ridgeline.plan.scenario import Scenario, training
from ridgeline.plan.scenario_file import self_contained
from ridgeline.plan.workload import Train
from ridgeline.search.progress import Progress, Stoppable, Watch, ignore_progress
from ridgeline.search.recommendation import SearchAnswer, SearchTime, search_until_stopped
from ridgeline.search.stage_layout.refine import Refined, Refinement, lacking, refinement, simulated_step_s
from ridgeline.search.target import ExportTarget
from ridgeline.search.training.comparison import (
    ComparedSystem,
    SystemComparison,
    compare_systems,
    compare_with_chosen,
)
from ridgeline.search.training.explain import (
    GivenPlan,
    PlanExplanation,
    difference,
    difference_words,
    explain,
    given_plan,
    refusal,
)
from ridgeline.search.training.gains import OtherEngine, TargetGain, WhatIf, other_engines, target_gains, what_if, worth
from ridgeline.search.training.objectives import (
    PlanOutcome,
    Point,
    TrainingRun,
    amount,
    chosen,
    frontier,
    outcome,
    points,
    rank_plans,
    usual_axes,
)
from ridgeline.search.training.plan_search import SAME, find_plan, kind_words, ranked_kinds
from ridgeline.search.training.request import PlanRequest, TrainingCase, search_cases
from ridgeline.search.training.shortlist import EQUAL
from ridgeline.sim import Prediction, capacity_of, scenario_headroom

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
class Recommendation(SearchAnswer):
    """The plan that is recommended, and every plan it was chosen from.

    skipped         sizes that were left out, and why
    frontier_axes   the two quantities of the Pareto front
    """

    request: PlanRequest
    outcomes: tuple[PlanOutcome, ...]
    chosen: PlanOutcome | None
    reasons: Reasons | None
    skipped: tuple[str, ...]
    frontier_axes: tuple[str, str]
    frontier: tuple[Point, ...]

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
        return scenario_text(self_contained(self.chosen.table), best.scenario.plan, note)

    def report(self, time: SearchTime) -> PlanReport | NoPlan:
        """What was found, or why there is no plan."""
        search = SearchSummary(found=self, time=time)
        if self.chosen is None or self.reasons is None:
            return NoPlan(problems=self.problems, search=search)
        return PlanReport(found=self, chosen=self.chosen, reasons=self.reasons, search=search)


OnBest = Callable[[Recommendation], None]


def recommend(
    request: PlanRequest, watch: Watch | None = None, *, all_gains: bool = True, on_best: OnBest | None = None
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
    watch = watch or ignore_progress
    if problems := tuple(request.goal.problems()):
        raise InputError(problems)
    skipped: list[str] = []
    found = search_cases(request, partial(_outcome, request, watch), skipped)
    outcomes, complete = search_until_stopped(found, watch)
    names = [outcome.scenario.system.name for outcome in outcomes]
    left_out = [system for system in request.systems if not complete and not any(system in name for name in names)]
    skipped.extend(f"{system}: not searched, stopped before" for system in left_out)
    best = chosen(outcomes, request.goal)
    axes = request.frontier or usual_axes(outcome.scenario.system for outcome in outcomes)
    result = Recommendation(
        request=request,
        outcomes=outcomes,
        chosen=best,
        reasons=None,
        problems=refusal(outcomes, request.goal, Stoppable(watch)) if best is None and complete else (),
        skipped=tuple(skipped),
        frontier_axes=axes,
        frontier=frontier(points(outcome.search for outcome in outcomes), *axes),
        complete=complete,
    )
    if best is None:
        return result
    reasons = replace(_first_reasons(best, request), complete=complete)
    if on_best is not None:
        on_best(replace(result, reasons=reasons))
    if not complete:
        return replace(result, reasons=reasons)
    return replace(result, reasons=_all_reasons(reasons, best, request, Stoppable(watch), faster=not all_gains))


def _outcome(request: PlanRequest, watch: Watch, case: TrainingCase) -> PlanOutcome:
    """What the search of one case found."""
    report_progress = partial(Progress, phase="search", what=case.scenario.system.name)
    search = find_plan(
        case.scenario, case.pins, most=request.top, headroom=request.headroom, calibration=request.calibration,
        progress=lambda priced, best_s: watch(report_progress(priced=priced, best_s=best_s)), given=case.given,
        target=request.target,
    )  # fmt: skip
    return outcome(search, request.goal, table=case.table, given=case.given)


def _first_reasons(best: PlanOutcome, request: PlanRequest) -> Reasons:
    """The reasons for a plan that take no time."""
    search, small = best.search, request.goal.objective == "memory"
    plans = rank_plans(search, request.goal, request.top)
    some = plans if small else ranked_kinds(search, plans[0], request.top)
    return Reasons(
        plans=plans,
        kinds=some,
        why=explain(search, plans[0]),
        assumptions=tuple(_assumption_notes(best, plans[0], given=request.headroom is not None)),
        given=given_plan(search, search.scenario, plans[0]) if best.given else None,
    )


def _all_reasons(first: Reasons, best: PlanOutcome, request: PlanRequest, go_on: Stoppable, *, faster: bool) -> Reasons:
    """The first reasons, and those that are searched for and simulated until `go_on` answers False."""
    search, plans = best.search, first.plans
    changes = what_if(search, plans[0], go_on, faster=faster) if go_on("what would beat the best") else ()
    go_on_beside = go_on("what other software would gain")
    engines = other_engines(search, plans[0], go_on, faster=faster) if go_on_beside else ()
    beyond = target_gains(search, plans[0], go_on) if search.target and go_on("what it cannot be told") else ()
    events: list[float | None] = []
    for plan in plans[:SIMULATED]:
        if not go_on("the first plans, event by event"):
            break
        compared = not faster or not events or events[0] is not None  # with the winner's
        events.append(simulated_step_s(plan, search.calibration) if compared else None)
    small = request.goal.objective == "memory"
    free = request.refine and not small and not any(axis in search.pins.pinned for axis in REFINED_AXES)
    refined = None
    if free and go_on("stage boundaries and recompute by stage"):
        listed = [plan.scenario.plan for plan in plans]
        candidates = (*plans, *(plan for plan in first.kinds if plan.scenario.plan not in listed))
        refined = refinement(
            candidates, events[0], search.capacity_bytes, go_on, search.calibration, search.target, faster=faster
        )  # fmt: skip
    return replace(
        first,
        simulated_s=tuple(events),
        what_if=changes,
        engines=engines,
        untold=beyond,
        refinement=refined,
        complete=not go_on.stopped,
    )


def _assumption_notes(best: PlanOutcome, winner: Prediction, *, given: bool) -> Iterable[str]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """A plan and its prediction.

    words    the plan in one line
    family   mesh, sharding and recompute alone: plans of one family are of one kind
    why      what the step loses to the best, or what limits it
    """

    prediction: Prediction
    winner: Prediction

    JSON = """
        plan=prediction.plan_table words=prediction.plan_words family step_time_s=prediction.step_time_s
        tokens_per_s_per_chip=prediction.tokens_per_s_per_chip mfu=prediction.utilization.mfu
        peak_memory_bytes=prediction.memory.peak_bytes interval=prediction.interval why
        breakdown=prediction.seconds_by_part cost_usd=prediction.bill.cost_usd energy_j=prediction.bill.energy_j
    """

    @property
    def words(self) -> str:
        return self.prediction.plan_words

    @property
    def family(self) -> str:
        return kind_words(self.prediction.scenario.plan)

    @property
    def lost_s(self) -> float:
        """Seconds of its step beyond the winner's."""
        return self.prediction.step_time_s - self.winner.step_time_s

    @property
    def saves_s(self) -> float:
        """Seconds of the first plan's step that it saves."""
        return self.winner.step_time_s - self.prediction.step_time_s

    @property
    def why(self) -> str:
        winner = self.winner
        if self.prediction is winner:
            limits = ", ".join(f"{name} {seconds / winner.step_time_s:.0%}" for name, seconds in winner.bounds.items())
            return f"the best of all that fit; limited by {limits}"
        parts = difference_words(difference(self.prediction, winner), winner.step_time_s)
        return f"{signed_quantity(self.lost_s, 's')}: {parts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPlan(PricedPlan):
    """One of the best plans.

    simulated_s   its step run event by event; null where that was not done
    """

    simulated_s: float | None

    JSON = f"{PricedPlan.JSON} simulated_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefinedPlan(PricedPlan):
    """A plan with stage boundaries, recompute by stage and offload chosen.

    lacking   what the engine or target cannot express of it; empty where it can express all
    """

    refined: Refined
    target: ExportTarget | None

    JSON = f"{PricedPlan.JSON} saves_s changes lacking"

    @property
    def changes(self) -> list[str]:
        return [str(change) for change in self.refined.changes]

    @property
    def lacking(self) -> str:
        return lacking(self.refined, self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendedPlan(PricedPlan):
    """The plan that is recommended, which `-o` writes.

    refined   whether it is other than the first plan
    of        the plan it was made of
    beyond    what would be faster still, but the engine cannot express
    """

    refinement: Refinement
    target: ExportTarget | None

    JSON = f"{PricedPlan.JSON} refined of saves_s changes simulated_s=refinement.event_s beyond"

    @property
    def refined(self) -> bool:
        return bool(self.refinement.changes)

    @property
    def of(self) -> str:
        return self.refinement.start.plan_words

    @property
    def changes(self) -> list[str]:
        return [str(change) for change in self.refinement.changes]

    @property
    def beyond(self) -> RefinedPlan | None:
        if (plan := self.refinement.beyond) is None:
            return None
        return RefinedPlan(prediction=plan.prediction, winner=self.winner, refined=plan, target=self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary:
    """What was searched, and how long it took."""

    found: Recommendation
    time: SearchTime

    JSON = """
        complete=found.complete considered=found.considered feasible=found.feasible seconds=time.seconds
        cpu_seconds=time.cpu_seconds compared comparison? skipped=found.skipped
    """

    @property
    def compared(self) -> tuple[ComparedSystem, ...]:
        """Every system and size."""
        return tuple(compare_systems(self.found.outcomes, self.found.chosen, self.found.request.goal.objective))

    @property
    def only_sizes(self) -> bool:
        """Whether all systems have one chip and engine: their sizes differ, and their errors hardly."""
        kinds = {(item.scenario.system.chip.id, item.scenario.plan.engine) for item in self.found.outcomes}
        return len(kinds) == 1

    @property
    def comparison(self) -> SystemComparison | None:
        """Which systems cannot be told apart from the chosen one, where there are several."""
        return None if self.only_sizes else compare_with_chosen(self.compared, self.found.request.goal.objective)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """Why there is no plan."""

    problems: tuple[Problem, ...]
    search: SearchSummary | None = None
    plans: tuple[PricedPlan, ...] = ()

    JSON = "kind='plan' possible=false problems plans *search"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The best plans of all that were priced, and the reasons for the first.

    plans           in the objective's order; the first is the winner
    kinds           the best plan of each kind: another mesh, sharding or recompute
    handed          the plan that is recommended, which `-o` writes
    why             what every alternative loses to the winner
    next            changes of plan or machine that gain
    features        changes of software that gain
    tried           all changes that were tried
    explained       false where it was stopped before all reasons were found
    frontier        the Pareto front of all plans in the two quantities of `frontier_axes`
    headroom        share of memory kept free
    """

    found: Recommendation
    chosen: PlanOutcome
    reasons: Reasons
    search: SearchSummary

    JSON = """
        kind='plan' possible=true objective=found.request.goal.objective model=scenario.model.id
        system=scenario.system.name chips=scenario.system.chips engine=scenario.plan.engine seq=scenario.workload.seq
        global_batch=scenario.workload.sequences *search explain_seconds=search.time.explain_seconds
        explained=reasons.complete capacity_bytes headroom=chosen.search.headroom plans kinds refined
        handed=recommended bounds=winner.bounds why=reasons.why.losses sure=reasons.why next features
        tried=reasons.what_if engines=reasons.engines frontier_axes=found.frontier_axes frontier=found.frontier
        fastest? assumptions=reasons.assumptions tokens?=run_tokens days?=run.days run? to?=found.request.target.id
        *untold given?=reasons.given
    """

    @property
    def winner(self) -> Prediction:
        return self.reasons.plans[0]

    @property
    def scenario(self) -> Scenario[Train]:
        return training(self.winner.scenario)

    @property
    def capacity_bytes(self) -> float:
        """Bytes of a chip's memory that a program may take."""
        return capacity_of(self.winner.scenario)

    def winner_amount(self, quantity: str) -> float:
        """One of the quantities of the Pareto front, of the winner; 0 where it is not known."""
        return amount(self.winner, quantity) or 0.0

    @property
    def plans(self) -> tuple[SimulatedPlan, ...]:
        rows = zip_longest(self.reasons.plans, self.reasons.simulated_s)
        return tuple(SimulatedPlan(prediction=plan, winner=self.winner, simulated_s=step) for plan, step in rows)

    @property
    def best_simulated(self) -> SimulatedPlan:
        """The fastest event by event of the plans that were simulated; the winner where it is as fast."""
        first, *next_plans = self.plans
        runs = [(plan.simulated_s, plan) for plan in next_plans if plan.simulated_s is not None]
        seconds, best = min(runs, key=lambda pair: pair[0], default=(0.0, first))
        return best if first.simulated_s is not None and seconds * (1 + EQUAL) < first.simulated_s else first

    @property
    def tolerance(self) -> float:
        """Share of a step below which plans count as equally fast."""
        return EQUAL

    @property
    def kinds(self) -> tuple[PricedPlan, ...]:
        return tuple(PricedPlan(prediction=plan, winner=self.winner) for plan in self.reasons.kinds)

    @property
    def fastest(self) -> PricedPlan | None:
        """The fastest plan, where one with fewer moving parts was chosen that is as fast but for `EQUAL`."""
        plans = (plan for _, plan in self.chosen.search.final_prices)
        fastest = min(plans, key=lambda plan: plan.step_time_s, default=self.winner)
        share = self.winner.step_time_s / fastest.step_time_s - 1
        equal = SAME < share <= EQUAL and self.found.request.goal.objective != "memory"
        return PricedPlan(prediction=fastest, winner=self.winner) if equal else None

    @property
    def refined(self) -> tuple[RefinedPlan, ...]:
        """The first plans with stage boundaries, recompute by stage and offload chosen freely."""
        target, refinement = self.chosen.search.target, self.reasons.refinement
        return tuple(
            RefinedPlan(prediction=plan.prediction, winner=self.winner, refined=plan, target=target)
            for plan in (refinement.refined if refinement else ())
        )

    @property
    def recommended(self) -> RecommendedPlan:
        winner, target = self.winner, self.chosen.search.target
        refinement = self.reasons.refinement or Refinement(prediction=winner, start=winner)
        return RecommendedPlan(prediction=refinement.prediction, winner=winner, refinement=refinement, target=target)

    @property
    def next(self) -> tuple[WhatIf, ...]:
        return worth([change for change in self.reasons.what_if if not change.is_feature])

    @property
    def features(self) -> tuple[WhatIf, ...]:
        return worth([change for change in self.reasons.what_if if change.is_feature])

    @property
    def run(self) -> TrainingRun | None:
        """The whole run, where tokens were asked for."""
        return self.chosen.run if self.found.request.goal.tokens is not None else None

    @property
    def run_tokens(self) -> float | None:
        return self.found.request.goal.tokens if self.run else None

    @property
    def untold(self) -> UnsupportedGains | None:
        return UnsupportedGains(untold=self.reasons.untold) if self.found.request.target else None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedGains:
    """What plans would gain that the target cannot express."""

    untold: tuple[TargetGain, ...]
