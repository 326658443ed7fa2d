"""Turn the best plans of several systems into a comparison: what each takes, how sure the order is, what is missing.

    ln(B / A) is normal about ln(predicted B / predicted A), its deviation hypot(deviation of A, deviation of B)

A deviation is that end of a prediction's interval which would turn the order, in logarithms, over the normal quantile
of its coverage. Errors of two systems are taken for independent. Systems that share a model or an engine err alike in
part; their order is then surer than told. Sizes of one chip under one engine err alike: between them no chance is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import hypot, log
from statistics import NormalDist
from types import MappingProxyType
from typing import Literal

from ridgeline.core.records import dataclass
from ridgeline.core.units import DECIMAL, HOUR
from ridgeline.hardware.load import rated_power
from ridgeline.hardware.what_if import system_title
from ridgeline.search.training.objectives import PlanOutcome, scaling_efficiency
from ridgeline.sim import Prediction

COMPARABLE = MappingProxyType({"time": "fastest", "cost": "cheapest", "energy": "most frugal"})  # what intervals are of
ASSUMED = "errors of different systems taken for independent; what they share makes the order surer"


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

    @property
    def usd_per_million_tokens(self) -> float | None:
        cost = self.best.bill.cost_usd
        return None if cost is None else cost * DECIMAL["M"] / self.best.scenario.workload.tokens

    @property
    def joules_per_token(self) -> float | None:
        energy = self.best.bill.energy_j
        return None if energy is None else energy / self.best.scenario.workload.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """A number that nobody publishes for a chip, and below which it would be the best of those compared.

    below   USD an hour, or W, of one chip; None where no other has that number either
    """

    number: Literal["price", "power"]
    chip: str
    below: float | None

    JSON = "number chip below words"

    @property
    def words(self) -> str:
        lacks = f"no {self.number} of {self.chip}"
        if self.below is None:
            return f"{lacks}, nor of any other"
        if self.number == "price":
            return f"{lacks}: below {self.below:.2f} USD/h a chip it would be the cheapest per token"
        return f"{lacks}: below {self.below:,.0f} W a chip it would take the least energy per token"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemStanding:
    """What the best plan of a system is beside others'.

    chance_better   of taking less of the objective than the chosen system; None of the chosen one, or where the
                    objective has no interval
    """

    plan: SystemPlan
    chance_better: float | None
    missing: tuple[BreakEven, ...]

    JSON = """
        interval=plan.best.interval bounds=plan.best.bounds cost_per_million_tokens_usd=plan.usd_per_million_tokens
        energy_per_token_j=plan.joules_per_token chance_better missing
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSystem:
    """One system and size that was searched; without a plan where nothing fits.

    name         of the system, with its engine where that alone tells it from another
    efficiency   tokens/s/chip over that of the same chip's smallest system that fits
    standing     beside other systems, where there are any
    """

    outcome: PlanOutcome
    name: str
    chosen: bool
    efficiency: float | None
    standing: SystemStanding | None = None

    JSON = """
        system=outcome.scenario.system.name chips=outcome.scenario.system.chips
        chip=outcome.scenario.system.chip.id engine=outcome.scenario.plan.engine
        considered=outcome.search.swept.considered feasible=outcome.search.swept.feasible chosen *plan
        days?=outcome.run.days run?=outcome.run efficiency? *standing
    """

    @property
    def plan(self) -> SystemPlan | None:
        return SystemPlan(best=self.outcome.best) if self.outcome.best else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemComparison:
    """Which systems are as good as the chosen one, as far as anybody can tell.

    chance_better   of each other system: of taking less of the objective than the chosen one
    alike           systems that cannot be told apart from it: the interval of the ratio of both holds 1
    assumption      what that rests on
    """

    objective: str
    chosen: str
    chance_better: Mapping[str, float]
    coverage: float
    assumption: str = ASSUMED

    JSON = "objective chosen chance_better coverage alike=alike_systems assumed=assumption"

    @property
    def alike_systems(self) -> list[str]:
        return [name for name, chance in self.chance_better.items() if chance > (1 - self.coverage) / 2]

    @property
    def best_words(self) -> str:
        """What the objective calls the best."""
        return COMPARABLE[self.objective]


def compare_systems(
    outcomes: Sequence[PlanOutcome], chosen: PlanOutcome | None, objective: str
) -> list[ComparedSystem]:
    """Every system and size; beside each other where there are several."""
    plans = [SystemPlan(best=item.best) for item in outcomes if item.best]

    def standing(item: PlanOutcome) -> SystemStanding | None:
        if item.best is None or len(outcomes) < 2:
            return None
        return SystemStanding(
            plan=SystemPlan(best=item.best),
            chance_better=chance_better(item, chosen, objective) if chosen and item is not chosen else None,
            missing=tuple(break_even(item.best, plans)),
        )

    rows = zip(outcomes, _system_names(outcomes), scaling_efficiency(outcomes), strict=True)
    return [
        ComparedSystem(outcome=item, name=name, chosen=item is chosen, efficiency=share, standing=standing(item))
        for item, name, share in rows
    ]


def _system_names(outcomes: Iterable[PlanOutcome]) -> list[str]:
    pairs = [(system_title(item.scenario.system), item.scenario.plan.engine) for item in outcomes]
    titles = [title for title, _ in pairs]
    return [f"{title} under {engine}" if titles.count(title) > 1 else title for title, engine in pairs]


def compare_with_chosen(rows: Iterable[ComparedSystem], objective: str) -> SystemComparison | None:
    """How sure the chosen system is the best; None without others, or where the objective has no interval."""
    some = [row for row in rows if row.standing is not None]
    best = next((row for row in some if row.chosen), None)
    if best is None or best.plan is None or len(some) < 2 or objective not in COMPARABLE:
        return None
    chances = {row.name: row.standing.chance_better for row in some if row.standing}
    return SystemComparison(
        objective=objective,
        chosen=best.name,
        chance_better=MappingProxyType({name: chance for name, chance in chances.items() if chance is not None}),
        coverage=best.plan.best.interval.coverage,
    )


def chance_better(outcome: PlanOutcome, chosen: PlanOutcome, objective: str) -> float | None:
    """The chance that an outcome takes less of the objective than the chosen one; None where nothing tells.

    >>> from ridgeline.search import PlanRequest, recommend
    >>> found = recommend(PlanRequest.from_options("llama3-8b", on="8xh100-sxm,8xa100-80-sxm", settings=["plan.pp=1"]))
    >>> fast, slow = found.outcomes
    >>> round(chance_better(slow, fast, "time"), 3), chance_better(fast, fast, "time")
    (0.0, None)
    """
    first, second = ((item.scenario.system.chip.id, item.scenario.plan.engine) for item in (outcome, chosen))
    if first == second:
        return None
    amount, best = outcome.value(objective), chosen.value(objective)
    if objective not in COMPARABLE or not amount or not best or outcome.best is None or chosen.best is None:
        return None
    faster, slower = (chosen.best, outcome.best) if amount >= best else (outcome.best, chosen.best)
    up, down = faster.interval.high / faster.step_time_s, slower.step_time_s / slower.interval.low
    quantile = NormalDist().inv_cdf((1 + faster.interval.coverage) / 2)
    return NormalDist().cdf(-log(amount / best) * quantile / max(hypot(log(up), log(down)), 1e-12))


def break_even(plan: Prediction, plans: Iterable[SystemPlan]) -> Iterator[BreakEven]:
    """Numbers that nobody publishes for a plan's chip, and what they would have to be for it to be the best of all."""
    chip, speed = plan.scenario.system.chip, plan.tokens_per_s_per_chip
    rivals = list(plans)
    if chip.price is None:
        costs = [item.usd_per_million_tokens for item in rivals if item.usd_per_million_tokens is not None]
        below = min(costs) / DECIMAL["M"] * speed * HOUR if costs else None
        yield BreakEven(number="price", chip=chip.id, below=below)
    if rated_power(chip) is None:
        energies = [item.joules_per_token for item in rivals if item.joules_per_token is not None]
        yield BreakEven(number="power", chip=chip.id, below=min(energies) * speed if energies else None)
