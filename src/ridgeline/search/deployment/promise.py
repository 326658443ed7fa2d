"""Turn a recommended deployment into what its promise is worth: intervals, a chance, and the replicas that keep it.

Steps err as measured decodes do and first tokens as measured prefills do (`serving_spread`, which also gives the
intervals of a phase). One error holds for every step of a run, and first tokens are late where steps are slow. The
logarithm of an error is normal on either side of 1, with the ends of the measured range where nine of ten lie.

A fleet is simulated again with its steps so much faster or slower, so that queues grow as they would; what first tokens
err beyond steps multiplies their time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp, hypot, log
from statistics import NormalDist

from ridgeline.core.records import dataclass
from ridgeline.core.units import format_quantity
from ridgeline.cost import serving_spread
from ridgeline.hardware.chip import Chip
from ridgeline.hardware.what_if import what_if_distance
from ridgeline.plan.engine import Engine
from ridgeline.plan.scenario import serving
from ridgeline.search.deployment.capacity import bound_of
from ridgeline.search.deployment.find_deployment import DeploymentSearch
from ridgeline.search.deployment.fleet import FleetCandidate, FleetCheck, Verified, larger
from ridgeline.serving import ServingPrediction, served_by
from ridgeline.serving.simulation import ScaledStepCost

COVERAGE, SURE = 0.9, 0.9
SLOW, FAST = (1 + COVERAGE) / 2, (1 - COVERAGE) / 2
METRICS = ("ttft", "tpot", "itl", "e2e")
MOST_LARGER = 20  # fleets tried above the recommended one


@dataclass(frozen=True, slots=True, kw_only=True)
class PromisedLimit:
    """Seconds of one limit's metric at its percentile, expected with the promise's coverage."""

    metric: str
    percentile: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """How sure a deployment keeps its objective.

    limits     intervals of limited percentiles
    chance     of keeping every limit, up to 0.95
    replicas   the fewest found, by pool, that keep it with chance `sure`
    chips      of these; null: none
    obstacle   why none
    rows       measured runs behind errors
    """

    coverage: float
    limits: tuple[PromisedLimit, ...]
    chance: float
    sure: float
    replicas: tuple[int, ...]
    chips: int | None
    obstacle: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlowerSteps:
    """The recommended fleet, or one like it, with its steps as slow as they are at most with a chance."""

    check: FleetCheck
    best: Verified
    engine: Engine
    chip: Chip

    def found_s(self, chance: float, candidate: FleetCandidate | None = None) -> tuple[Verified, dict[str, float]]:
        """A fleet simulated so, and what each limited metric takes at its percentile, in seconds."""
        step, first_token = step_error(self.engine, chance, self.chip)
        check = replace(self.check, step_scale=step)
        fleet = check.run(candidate or self.best.candidate, self.best.rate, whole=self.best.whole)
        assert fleet is not None  # the recommended one serves these requests
        further = {"ttft": first_token / step}
        return fleet, {name: item.found * further.get(name, 1.0) for name, item in fleet.prediction.kept.items()}

    def is_kept(self, found_s: dict[str, float]) -> bool:
        return all(found_s[name] <= item.limit for name, item in self.best.prediction.kept.items())


def promise_of(search: DeploymentSearch) -> Promise | None:
    """What the recommended deployment of a search promises; None without an objective."""
    best, engine = search.best, search.scenario.engine
    if best is None or not best.prediction.kept:
        return None
    check = FleetCheck(bench=replace(search.bench), goal=search.goal, replicas=search.space.replicas)
    slower = _SlowerSteps(check=check, best=best, engine=engine, chip=search.scenario.system.chip)
    (_, low), (_, high) = slower.found_s(FAST), slower.found_s(SLOW)
    sure, obstacle = (best.candidate, "") if slower.is_kept(high) else _sure_candidate(slower)
    return Promise(
        coverage=COVERAGE,
        limits=tuple(
            PromisedLimit(metric=name, percentile=item.percentile, low_s=low[name], high_s=high[name])
            for name, item in best.prediction.kept.items()
        ),
        chance=_chance(best, high),
        sure=SURE,
        replicas=sure.replicas if sure else (),
        chips=sure.chips if sure else None,
        obstacle=obstacle,
        rows=_rows(engine),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedIntervals:
    """Where percentiles of a deployment's requests are expected with probability `coverage`, and of how many runs."""

    coverage: float
    limits: tuple[PromisedLimit, ...]
    rows: int


def served_intervals(found: ServingPrediction) -> ServedIntervals:
    """Intervals of every metric at the objective's percentile: the same requests again, steps slower and faster."""
    scenario = serving(found.scenario)
    percentile, engine = scenario.workload.objective.percentile, scenario.engine
    ends: list[dict[str, float]] = []
    for chance in (FAST, SLOW):
        step, first_token = step_error(engine, chance, scenario.system.chip)
        instances = tuple(replace(item, cost=ScaledStepCost(cost=item.cost, factor=step)) for item in found.instances)
        metrics = served_by(scenario, instances, found.requests).metrics
        further = {"ttft": first_token / step}
        ends.append({name: getattr(metrics, name).percentiles[percentile] * further.get(name, 1.0) for name in METRICS})
    limits = (
        PromisedLimit(metric=name, percentile=percentile, low_s=ends[0][name], high_s=ends[1][name]) for name in METRICS
    )
    return ServedIntervals(coverage=COVERAGE, limits=tuple(limits), rows=_rows(engine))


def _rows(engine: Engine) -> int:
    """Measured runs behind the errors of an engine."""
    return sum(serving_spread(engine, metric)[2] for metric in ("step", "ttft"))


def step_error(engine: Engine, chance: float, chip: Chip | None = None) -> tuple[float, float]:
    """What a step, and a first token, take at most with a chance, over their prediction; more on a what-if chip.

    >>> from ridgeline.plan.engine import ENGINES
    >>> step_error(ENGINES["vllm"], 0.5), step_error(ENGINES["vllm"], 0.95) == tuple(
    ...     serving_spread(ENGINES["vllm"], asked)[1] for asked in ("step", "ttft"))
    ((1.0, 1.0), True)
    """
    deviation = NormalDist().inv_cdf(chance) / NormalDist().inv_cdf(SLOW)
    far = what_if_distance(chip)[0] if chip else 0.0
    spreads = (serving_spread(engine, metric) for metric in ("step", "ttft"))
    step, first_token = (
        exp(hypot(log(slow), far) * deviation) if deviation > 0 else exp(hypot(log(fast), far) * deviation)
        for fast, slow, _ in spreads
    )
    return step, first_token


def _chance(best: Verified, slow_s: Mapping[str, float]) -> float:
    """The chance of keeping every limit, given what steps at the slow end take.

    The logarithm of a percentile is drawn straight from its prediction to the slow end. It bends upwards where queues
    grow, so the limit is reached no earlier than that.
    """
    crossings = [
        log(item.limit / item.found) / log(slow_s[name] / item.found)
        for name, item in best.prediction.kept.items()
        if slow_s[name] > item.limit
    ]
    return NormalDist().cdf(NormalDist().inv_cdf(SLOW) * min(crossings)) if crossings else SLOW


def _sure_candidate(slower: _SlowerSteps) -> tuple[FleetCandidate | None, str]:
    """The fewest replicas found that keep the objective with `SURE`; where there are none, why."""
    if obstacle := _alone_too_slow(slower):
        return None, obstacle
    candidate = slower.best.candidate
    for _ in range(MOST_LARGER):
        fleet, found_s = slower.found_s(SURE, candidate)
        if slower.is_kept(found_s):
            return candidate, ""
        more = larger(fleet)
        if not slower.check.is_allowed(more):
            break
        candidate = more
    return None, f"even {candidate.words} miss it"


def _alone_too_slow(slower: _SlowerSteps) -> str:
    """The limit that a request misses which meets no other, steps as slow as they are at most with `SURE`."""
    bench, shapes = slower.check.bench, slower.best.candidate.shapes
    step, first_token = step_error(slower.engine, SURE, slower.chip)
    tpot_s = bound_of(bench, shapes[-1]).tpot_s * step
    alone_s = {"ttft": bound_of(bench, shapes[0]).ttft_s * first_token, "tpot": tpot_s, "itl": tpot_s}
    for name, limit in bench.objective.limits.items():
        if alone_s.get(name, 0.0) > limit:
            seconds = format_quantity(alone_s[name], "s", 3)
            return f"{name.upper()} of a request that meets no other is {seconds} then: more replicas cannot help"
    return ""
