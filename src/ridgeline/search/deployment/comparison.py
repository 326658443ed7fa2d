"""Turn the best deployments of several systems into a comparison: what each costs, how sure it is, what is missing.

A deployment whose steps turn out slower needs more chips. How many keep the objective with 90 % its promise says; that
figure gives the deviation of the logarithm of what it costs, at least that of a step (`step_error`). Errors of two
systems are taken for independent, and as far down as up.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, hypot, log
from statistics import NormalDist

from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import DECIMAL, HOUR
from ridgeline.hardware.load import rated_power
from ridgeline.hardware.what_if import system_title
from ridgeline.search.deployment.find_deployment import DeploymentSearch
from ridgeline.search.deployment.fleet import Verified
from ridgeline.search.deployment.promise import SLOW, SURE, Promise, step_error

ASSUMED = "errors as far as the chips for 90% say, for different systems independent"
NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalSpan:
    """What a goal minimises, and the ends of its interval."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedDeployment:
    """The best deployment of one system; without one where none keeps the objective.

    name            of the system, with its engine where that alone tells it from another
    all_priced      whether every chip that is compared has a price; the goal is otherwise counted in chips
    promise         how sure it keeps the objective; null without one, or where the search was stopped
    price_below     USD an hour of a chip below which it would be the cheapest, where no price is published
    chance_better   of being better by the goal than the chosen one; null of that one
    problems        why there is no deployment
    """

    name: str
    search: DeploymentSearch
    chosen: bool
    all_priced: bool
    promise: Promise | None
    price_below: float | None
    chance_better: float | None
    problems: tuple[Problem, ...]

    JSON = """
        name system=search.scenario.system.name chip=search.scenario.system.chip.id engine=search.scenario.plan.engine
        chosen deployment=best energy_per_output_token_j promise price_below_usd_per_hour=price_below goal_span?=span
        chance_better complete=search.complete problems
    """

    @property
    def best(self) -> Verified | None:
        return self.search.best

    @property
    def assumption(self) -> str:
        """What chances and spans rest on."""
        return ASSUMED

    @property
    def amount_name(self) -> str:
        """What `span` counts."""
        if self.search.goal == "goodput":
            return "chips for a request a second"
        return "$ per million output tokens" if self.search.goal == "cost" and self.all_priced else "chips"

    @property
    def best_words(self) -> str:
        """What the best of all is by the goal."""
        if self.search.goal == "goodput":
            return "predicted to serve most"
        if self.search.goal == "cost" and self.all_priced:
            return "predicted the cheapest"
        reason = ", which counts where not every chip has a price" if self.search.goal == "cost" else ""
        return f"predicted to need the fewest chips{reason}"

    @property
    def span(self) -> GoalSpan | None:
        """What the goal minimises, between the ends of its 90 % interval; None where it is not known."""
        if self.best is None:
            return None
        cost = self.best.prediction.cost_per_million_tokens_usd
        middle = cost if self.search.goal == "cost" and self.all_priced else goal_amount(self.search, all_priced=False)
        if middle is None:
            return None
        factor = exp(NORMAL.inv_cdf(SLOW) * deviation(self.search, self.promise))
        return GoalSpan(low=middle / factor, middle=middle, high=middle * factor)

    @property
    def energy_per_output_token_j(self) -> float | None:
        """At the rated power of its chips; null where that, or a deployment, is missing."""
        power = rated_power(self.search.scenario.system.chip)
        if self.best is None or power is None:
            return None
        return power.value * self.best.candidate.chips / self.best.prediction.metrics.output_tokens_per_s


def compare_deployments(
    searches: Sequence[DeploymentSearch], chosen: DeploymentSearch | None,
    promises: Sequence[Promise | None], problems: Sequence[tuple[Problem, ...]],
) -> tuple[ComparedDeployment, ...]:  # fmt: skip
    """Every system beside the others; nothing where there is one."""
    if len(searches) < 2:
        return ()
    pairs = [(system_title(search.scenario.system), search.scenario.plan.engine) for search in searches]
    titles = [title for title, _ in pairs]
    names = [f"{title} under {engine}" if titles.count(title) > 1 else title for title, engine in pairs]
    all_priced = all(search.scenario.system.chip.price for search in searches if search.best is not None)
    best = next((pair for pair in zip(searches, promises, strict=True) if pair[0] is chosen), None)
    return tuple(
        ComparedDeployment(
            name=name,
            search=search,
            chosen=search is chosen,
            all_priced=all_priced,
            promise=promise,
            price_below=_price_below(search, searches),
            chance_better=chance_better((search, promise), best, all_priced=all_priced)
            if best and search is not chosen
            else None,
            problems=reasons,
        )
        for name, search, promise, reasons in zip(names, searches, promises, problems, strict=True)
    )


def goal_amount(search: DeploymentSearch, *, all_priced: bool) -> float | None:
    """What the goal minimises of a search's best: USD an hour, chips, or chips for a request a second."""
    best, price = search.best, search.scenario.system.chip.price
    if best is None:
        return None
    if search.goal == "goodput":
        return 1.0 / best.goodput if best.goodput else None
    return best.candidate.chips * (price.value if search.goal == "cost" and all_priced and price else 1.0)


def deviation(search: DeploymentSearch, promise: Promise | None) -> float:
    """The standard deviation of the logarithm of what a search's best needs."""
    step, _ = step_error(search.scenario.engine, SLOW, search.scenario.system.chip)
    of_step = log(step) / NORMAL.inv_cdf(SLOW)
    if search.best is None or promise is None or promise.chips is None:
        return of_step
    return max(log(promise.chips / search.best.candidate.chips) / NORMAL.inv_cdf(SURE), of_step)


def chance_better(
    candidate: tuple[DeploymentSearch, Promise | None],
    chosen: tuple[DeploymentSearch, Promise | None],
    *,
    all_priced: bool,
) -> float | None:
    """The chance that one search's best is better by the goal than the chosen one; None where either has none."""
    amount, best = goal_amount(candidate[0], all_priced=all_priced), goal_amount(chosen[0], all_priced=all_priced)
    if amount is None or best is None:
        return None
    return NORMAL.cdf(-log(amount / best) / max(hypot(deviation(*candidate), deviation(*chosen)), 1e-12))


def _price_below(search: DeploymentSearch, searches: Sequence[DeploymentSearch]) -> float | None:
    """The price of a chip that nobody publishes at which output tokens cost as much as the cheapest of the others'."""
    if search.best is None or search.scenario.system.chip.price is not None:
        return None
    costs = [item.best.prediction.cost_per_million_tokens_usd for item in searches if item.best is not None]
    known_costs = [cost for cost in costs if cost is not None]
    speed = search.best.prediction.metrics.output_tokens_per_s / search.best.candidate.chips
    return min(known_costs) / DECIMAL["M"] * speed * HOUR if known_costs else None
