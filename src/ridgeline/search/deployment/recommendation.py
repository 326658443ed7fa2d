"""Turn a question into a recommended deployment: every case searched, the best chosen, verified and explained."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, MissingNumber
from ridgeline.core.records import dataclass
from ridgeline.plan.plan import scenario_text
from ridgeline.plan.scenario import Scenario, serving
from ridgeline.plan.scenario_file import assemble, self_contained
from ridgeline.plan.workload import Serve
from ridgeline.search.deployment.comparison import ComparedDeployment, compare_deployments
from ridgeline.search.deployment.explain import (
    DeploymentReasons,
    FrontierPoint,
    explain_deployment,
    frontier,
    why_no_deployment,
)
from ridgeline.search.deployment.find_deployment import DeploymentSearch, find_deployment
from ridgeline.search.deployment.fleet import Goal, Verified
from ridgeline.search.deployment.promise import Promise, promise_of
from ridgeline.search.deployment.request import DeploymentCase, DeploymentRequest, deployment_cases
from ridgeline.search.progress import GoOn, Stoppable, Watch, ignore_progress
from ridgeline.search.recommendation import SearchAnswer, SearchTime, search_until_stopped
from ridgeline.sim import missing_number_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOutcome:
    """One case and what its search found."""

    case: DeploymentCase
    search: DeploymentSearch

    @property
    def complete(self) -> bool:
        return self.search.complete


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentAnswer(SearchAnswer):
    """The deployment that is recommended; its frontier is cost per million output tokens against tokens/s of a user."""

    request: DeploymentRequest
    outcomes: tuple[DeploymentOutcome, ...]
    chosen: DeploymentOutcome | None
    reasons: DeploymentReasons | None
    promise: Promise | None
    frontier: tuple[FrontierPoint, ...]
    side_by_side: tuple[ComparedDeployment, ...]

    @property
    def unsearched_systems(self) -> list[str]:
        """Systems that were left when the search was stopped."""
        names = [outcome.search.scenario.system.name for outcome in self.outcomes]
        return [system for system in self.request.systems if not any(system in name for name in names)]

    @property
    def goal(self) -> Goal:
        return self.request.goal

    @property
    def best(self) -> Verified | None:
        return self.chosen.search.best if self.chosen is not None else None

    @property
    def scenario_text(self) -> str:
        """The recommended deployment as a scenario file; nothing where there is none."""
        if self.chosen is None or self.best is None:
            return ""
        fleet = self.best
        note = f"Found by `ridgeline plan --serve`: {fleet.candidate.chips} chips, {fleet.rate:.4g} requests/s."
        table = _request_table(self.chosen, fleet, rescaled=self.goal == "goodput")
        return scenario_text(self_contained(table), fleet.prediction.scenario.plan, note)

    @property
    def scenario(self) -> Scenario:
        """What that file says: the deployment under the load that was asked for, or that it holds."""
        built, problems = assemble(tomllib.loads(self.scenario_text))
        if built is None:
            raise InputError(problems)
        return built

    def report(self, time: SearchTime) -> DeploymentReport:
        """What was found, where a deployment is recommended."""
        assert self.chosen is not None
        assert self.best is not None
        assert self.reasons is not None
        return DeploymentReport(found=self, search=self.chosen.search, best=self.best, why=self.reasons, time=time)


def _request_table(outcome: DeploymentOutcome, fleet: Verified, *, rescaled: bool) -> JsonObject:
    """The scenario's table with the load that was simulated."""
    work = dict(outcome.case.table["workload"])
    many = getattr(outcome.search.scenario.workload, "requests", None)
    if rescaled:
        arrivals = work["arrivals"]
        arrivals = {"kind": "trace", "file": arrivals} if isinstance(arrivals, str) else dict(arrivals)
        work["arrivals"] = {**arrivals, "rate": round(fleet.rate, 4)}
    if many is not None:
        work["requests"] = many
    return {**outcome.case.table, "workload": work}


def recommend_deployment(request: DeploymentRequest, watch: Watch | None = None) -> DeploymentAnswer:
    """Search every case of a question, choose, and explain the choice.

    >>> asked = DeploymentRequest.from_options("llama3-8b", on="2xh100-sxm", rate=4.0, ttft="1s", tpot="50ms",
    ...     settings=["plan.tp=1", "plan.precision=bf16", "plan.serving.pools=none", "workload.requests=200"])
    >>> found = recommend_deployment(asked)
    >>> found.best.candidate.chips, found.best.met
    (1, True)
    """
    watch = watch or ignore_progress
    outcomes, complete = search_until_stopped(_outcomes(request, watch), watch)
    chosen = _choose_outcome(outcomes, request.goal)
    searches = [outcome.search for outcome in outcomes]
    problems = [tuple(why_no_deployment(search)) for search in searches]
    go_on = Stoppable(watch if complete else None)
    promises = [_promise(search, go_on) for search in searches]
    return DeploymentAnswer(
        request=request,
        outcomes=outcomes,
        chosen=chosen,
        reasons=explain_deployment(chosen.search) if chosen else None,
        promise=next((promise for outcome, promise in zip(outcomes, promises, strict=True) if outcome is chosen), None),
        problems=() if chosen else tuple(problem for reasons in problems for problem in reasons),
        frontier=frontier(searches),
        side_by_side=compare_deployments(searches, chosen.search if chosen else None, promises, problems),
        complete=not go_on.stopped,
    )


def _promise(search: DeploymentSearch, go_on: GoOn) -> Promise | None:
    """What the best of a search promises, for which whole fleets are simulated again; None once stopped."""
    return promise_of(search) if go_on(f"how sure the best on {search.scenario.system.name} is") else None


def _outcomes(request: DeploymentRequest, watch: Watch) -> Iterator[DeploymentOutcome]:
    for case in deployment_cases(request):
        try:
            search = find_deployment(case.scenario, case.space, request.goal, request.priced, watch)
        except MissingNumber as missing:
            raise InputError([missing_number_problem(missing)]) from None
        yield DeploymentOutcome(case=case, search=search)


def _choose_outcome(outcomes: Sequence[DeploymentOutcome], goal: Goal) -> DeploymentOutcome | None:
    """The cheapest by the hour where all chips have a price, else that with the fewest chips; or the most goodput."""
    able = [(outcome, outcome.search.best) for outcome in outcomes if outcome.search.best is not None]
    prices = [outcome.search.scenario.system.chip.price for outcome, _ in able]

    def order(pair: tuple[DeploymentOutcome, Verified]) -> tuple[float, ...]:
        outcome, best = pair
        if goal == "goodput":
            return (-best.goodput,)
        price = outcome.search.scenario.system.chip.price
        share = price.value if goal == "cost" and all(prices) and price else 1.0
        return best.candidate.chips * share, best.candidate.chips

    return min(able, key=order)[0] if able else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentReport:
    """The deployment that is recommended, what limits it, and what else was found.

    asked_rate   requests per second
    promise      how sure the deployment keeps the objective; null without one
    others       further deployments that were simulated as a whole
    breaks       the limit that is missed first when the rate rises, by pool
    in_flight    requests that a replica decodes at once, on average
    step_s       seconds of such a decode step by part
    knobs        the best replica that decides one thing otherwise, by axis
    compared     every system, where there are several
    frontier     cost per million output tokens against tokens per second of a user
    bounded      replicas whose best case was computed
    simulated    replicas that were simulated
    trials       simulations of them
    """

    found: DeploymentAnswer
    search: DeploymentSearch
    best: Verified
    why: DeploymentReasons
    time: SearchTime

    JSON = """
        kind='deployment' possible=true model=scenario.model.id system=scenario.system.name
        engine=scenario.plan.engine goal=found.goal requests asked_rate=search.rate mean_prompt_tokens
        mean_output_tokens percentile=scenario.workload.objective.percentile deployment=best promise=found.promise
        compared?=found.side_by_side others breaks=why.breaks in_flight=why.in_flight step_s=why.step knobs=why.knobs
        frontier=found.frontier bounded simulated trials complete=found.complete seconds=time.seconds
        cpu_seconds=time.cpu_seconds assumptions
        to?=found.request.target.id
    """

    @property
    def scenario(self) -> Scenario[Serve]:
        return serving(self.search.scenario)

    @property
    def requests(self) -> int:
        return len(self.search.load.requests)

    @property
    def mean_prompt_tokens(self) -> float:
        return float(self.search.load.prompts.mean())

    @property
    def mean_output_tokens(self) -> float:
        return float(self.search.load.outputs.mean())

    @property
    def searches(self) -> list[DeploymentSearch]:
        """The searches of all systems."""
        return [outcome.search for outcome in self.found.outcomes]

    @property
    def own_others(self) -> list[Verified]:
        """Further deployments on the same system."""
        return [fleet for fleet in self.search.verified if fleet is not self.best]

    @property
    def others(self) -> list[Verified]:
        return self.own_others + [
            search.best for search in self.searches if search is not self.search and search.best is not None
        ]

    @property
    def narrow_formats(self) -> str:
        """Formats below 16 bits that the search chose among others, in words; nothing where they were asked for."""
        shape = self.best.candidate.shapes[-1]
        formats = {"weights": shape.precision.weights, "cache": shape.precision.kv}
        words = [f"{name} {format_}" for name, format_ in formats.items() if format_.bits < 16]
        return ", ".join(words) if len(self.search.space.precision) > 1 else ""

    @property
    def bounded(self) -> int:
        return sum(len(search.bounds) for search in self.searches)

    @property
    def simulated(self) -> int:
        return sum(len(search.capacities) for search in self.searches)

    @property
    def trials(self) -> int:
        return sum(search.bench.trials for search in self.searches)

    @property
    def assumptions(self) -> list[str]:
        return [note for note in self.best.prediction.assumptions if not note.startswith("precision = ")]
