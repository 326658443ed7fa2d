"""Turn a Recommendation into what `ridgeline plan` prints: the plans, and the reasons for the first."""

from __future__ import annotations

from itertools import zip_longest

from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import signed_quantity
from ridgeline.plan.scenario import Scenario, training
from ridgeline.plan.workload import Train
from ridgeline.search.distinct import kind_words
from ridgeline.search.explain import difference, difference_words
from ridgeline.search.objectives import Outcome, Run, scaling_efficiency
from ridgeline.search.recommendation import Reasons, Recommendation
from ridgeline.search.refinement import Refinement, lacking
from ridgeline.search.stage_layout.refine import Refined
from ridgeline.search.target import ExportTarget
from ridgeline.search.target_gains import TargetGain
from ridgeline.search.what_if import WhatIf, worth
from ridgeline.sim import Prediction, capacity_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTime:
    """Seconds that a recommendation took, by whoever asked for it: wall and CPU of the search, wall of the reasons."""

    seconds: float
    cpu_seconds: float
    explain_seconds: float


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
        refined = self.refinement.beyond
        if refined is None:
            return None
        return RefinedPlan(prediction=refined.prediction, winner=self.winner, refined=refined, target=self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPlan:
    """The best plan of a system."""

    best: Prediction

    JSON = """
        plan=best.plan_table words=best.plan_words step_time_s=best.step_time_s tokens_per_s
        tokens_per_s_per_chip=best.tokens_per_s_per_chip mfu=best.utilization.mfu
        peak_memory_bytes=best.memory.peak_bytes capacity_bytes=best.memory.capacity_bytes
        cost_usd=best.bill.cost_usd energy_j=best.bill.energy_j tokens=best.scenario.workload.tokens
    """

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of all chips."""
        return self.best.tokens_per_s_per_chip * self.best.scenario.system.chips


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSystem:
    """One system and size that was searched; without a plan where nothing fits.

    efficiency   tokens/s/chip over that of the same chip's smallest system that fits
    """

    outcome: Outcome
    chosen: bool
    efficiency: float | None

    JSON = """
        system=outcome.scenario.system.name chips=outcome.scenario.system.chips
        chip=outcome.scenario.system.chip.id engine=outcome.scenario.plan.engine
        considered=outcome.search.swept.considered feasible=outcome.search.swept.feasible chosen *plan
        days?=outcome.run.days run?=outcome.run efficiency?
    """

    @property
    def plan(self) -> SystemPlan | None:
        return SystemPlan(best=self.outcome.best) if self.outcome.best else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary:
    """What was searched, and how long it took."""

    found: Recommendation
    time: SearchTime

    JSON = """
        complete=found.complete considered=found.considered feasible=found.feasible seconds=time.seconds
        cpu_seconds=time.cpu_seconds compared skipped=found.skipped
    """

    @property
    def compared(self) -> tuple[ComparedSystem, ...]:
        """Every system and size."""
        result = self.found
        rows = zip(result.outcomes, scaling_efficiency(result.outcomes), strict=True)
        return tuple(
            ComparedSystem(outcome=item, chosen=item is result.chosen, efficiency=efficiency)
            for item, efficiency in rows
        )


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
    chosen: Outcome
    reasons: Reasons
    search: SearchSummary

    JSON = """
        kind='plan' possible=true objective=found.request.goal.objective model=scenario.model.id
        system=scenario.system.name chips=scenario.system.chips engine=scenario.plan.engine seq=scenario.workload.seq
        global_batch=scenario.workload.sequences *search explain_seconds=search.time.explain_seconds
        explained=reasons.complete capacity_bytes headroom=chosen.search.headroom plans kinds refined
        handed=recommended bounds=winner.bounds why=reasons.why.losses sure=reasons.why next features
        tried=reasons.what_if engines=reasons.engines frontier_axes=found.frontier_axes frontier=found.frontier
        assumptions=reasons.assumptions tokens?=run_tokens days?=run.days run? to?=found.request.target.id *untold
        given?=reasons.given
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

    @property
    def plans(self) -> tuple[SimulatedPlan, ...]:
        rows = zip_longest(self.reasons.plans, self.reasons.simulated_s)
        return tuple(SimulatedPlan(prediction=plan, winner=self.winner, simulated_s=step) for plan, step in rows)

    @property
    def kinds(self) -> tuple[PricedPlan, ...]:
        return tuple(PricedPlan(prediction=plan, winner=self.winner) for plan in self.reasons.kinds)

    @property
    def refined(self) -> tuple[RefinedPlan, ...]:
        """The first plans with stage boundaries, recompute by stage and offload chosen freely."""
        return tuple(
            RefinedPlan(
                prediction=refined_plan.prediction,
                winner=self.winner,
                refined=refined_plan,
                target=self.chosen.search.target,
            )
            for refined_plan in (self.reasons.refinement.refined if self.reasons.refinement else ())
        )

    @property
    def recommended(self) -> RecommendedPlan:
        refinement = self.reasons.refinement or Refinement(prediction=self.winner, start=self.winner)
        return RecommendedPlan(
            prediction=refinement.prediction, winner=self.winner, refinement=refinement,
            target=self.chosen.search.target,
        )  # fmt: skip

    @property
    def next(self) -> tuple[WhatIf, ...]:
        return worth([change for change in self.reasons.what_if if not change.is_feature])

    @property
    def features(self) -> tuple[WhatIf, ...]:
        return worth([change for change in self.reasons.what_if if change.is_feature])

    @property
    def run(self) -> Run | None:
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


def plan_report(found: Recommendation, time: SearchTime) -> PlanReport | NoPlan:
    """What was found, or why there is no plan."""
    search = SearchSummary(found=found, time=time)
    if found.chosen is None or found.reasons is None:
        return NoPlan(problems=found.problems, search=search)
    return PlanReport(found=found, chosen=found.chosen, reasons=found.reasons, search=search)
