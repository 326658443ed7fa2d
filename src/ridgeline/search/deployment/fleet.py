"""Turn candidates into verified deployments: whole fleets simulated, with just as many replicas as it takes.

Numbers of replicas are found on the busiest part of the load, which asks for at least as many as all of it; the best is
then simulated under all requests, and with a replica fewer where it has some to spare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Literal

from ridgeline.core.records import dataclass
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serving_plan import ServingPlan
from ridgeline.plan.workload import Objective
from ridgeline.search.deployment.capacity import Capacity, Load, TrialBench
from ridgeline.search.deployment.space import DEGREES, Shape, precision_words, shape_words
from ridgeline.search.progress import GoOn
from ridgeline.serving import Instance, Role, ServingPrediction, SloMissed
from ridgeline.serving.simulation import ScaledStepCost

Goal = Literal["cost", "chips", "goodput"]
GOALS: tuple[Goal, ...] = ("cost", "chips", "goodput")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCandidate:
    """Replicas of one kind, or a pool that prefills and a pool that decodes.

    capacities   of one replica of each pool, from a shortened load
    replicas     of each pool
    """

    capacities: tuple[Capacity, ...]
    replicas: tuple[int, ...]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(capacity.shape for capacity in self.capacities)

    @property
    def meshes(self) -> list[Mesh]:
        return [shape.mesh for shape in self.shapes]

    @property
    def is_disaggregated(self) -> bool:
        return len(self.capacities) > 1

    @property
    def chips(self) -> int:
        return sum(shape.chips * many for shape, many in zip(self.shapes, self.replicas, strict=True))

    @property
    def rate(self) -> float:
        """Requests per second that all replicas hold together: the pool that holds least decides."""
        return min(item.rate * many for item, many in zip(self.capacities, self.replicas, strict=True))

    @property
    def words(self) -> str:
        """`3 x tp=2, bf16`, or `2 prefill x tp=2 + 4 decode x tp=1, bf16`."""
        if not self.is_disaggregated:
            return f"{self.replicas[0]} x {shape_words(self.shapes[0])}"
        first, second = (shape_words(shape).split(", ") for shape in self.shapes)
        remainder = ", ".join(second[1:])
        return f"{self.replicas[0]} prefill x {first[0]} + {self.replicas[1]} decode x {second[0]}, {remainder}"

    def scenario(self, base: Scenario, router: str) -> Scenario:
        """The deployment on the chips of a scenario."""
        if not self.is_disaggregated:
            scenario = self.shapes[0].scenario(base, self.replicas[0])
        else:
            first, second = self.shapes
            pools = (first.pool("prefill", self.replicas[0]), second.pool("decode", self.replicas[1]))
            scenario = second.pooled(base, pools)
        serving: ServingPlan = replace(scenario.plan.serving, router=router)  # type: ignore[arg-type]
        return replace(scenario, plan=replace(scenario.plan, serving=serving))


def fewest(capacities: tuple[Capacity, ...], rate: float) -> FleetCandidate:
    """As many replicas of each pool as a rate takes."""
    replicas = tuple(max(ceil(rate / replica.rate - 1e-9), 1) for replica in capacities)
    return FleetCandidate(capacities=capacities, replicas=replicas)


def fullest(replica: Capacity, chips: int) -> FleetCandidate:
    """As many replicas as the chips hold."""
    return FleetCandidate(capacities=(replica,), replicas=(chips // replica.shape.chips,))


def fullest_pools(prefill: Capacity, decode: Capacity, chips: int) -> FleetCandidate | None:
    """The split of the chips between two pools that holds the highest rate; None where they do not hold one of each."""
    first, second = prefill.shape.chips, decode.shape.chips
    splits = ((many, (chips - many * first) // second) for many in range(1, (chips - second) // first + 1))
    candidates = (FleetCandidate(capacities=(prefill, decode), replicas=replicas) for replicas in splits)
    return max(candidates, key=lambda candidate: candidate.rate, default=None)


def order(candidate: FleetCandidate, goal: Goal, rate: float) -> tuple[float, float]:
    """Less is better: chips, then how little of what they hold is needed; or for goodput the rate."""
    if goal == "goodput":
        return -candidate.rate, float(candidate.chips)
    return float(candidate.chips), rate / max(candidate.rate, 1e-12)


def is_allowed(candidate: FleetCandidate, chips: int, replicas: tuple[int, ...] | None = None) -> bool:
    """Whether a deployment fits on so many chips, with as many replicas as are pinned."""
    counts = candidate.replicas
    return candidate.chips <= chips and min(counts) > 0 and (replicas is None or sum(counts) in replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPool:
    """Replicas of one role.

    chips          of one replica
    mesh           degrees above 1, by axis
    rate           requests per second that one replica holds alone, on a shortened load
    holds          the same, or its share of all where that is more
    breaks         the limit that is missed first beyond that
    cache_tokens   what the cache of a replica holds
    """

    capacity: Capacity
    replicas: int
    instance: Instance
    holds: float

    JSON = """
        role=instance.role replicas chips=capacity.shape.chips words mesh precision rate=capacity.rate holds
        breaks=capacity.breaks cache_tokens=instance.memory.tokens
    """

    @property
    def words(self) -> str:
        return shape_words(self.capacity.shape)

    @property
    def mesh(self) -> dict[str, int]:
        shape = self.capacity.shape
        return {axis: shape.choice(axis) for axis in DEGREES if shape.choice(axis) > 1}

    @property
    def precision(self) -> str:
        return precision_words(self.capacity.shape.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A deployment simulated as a whole fleet.

    rate    requests per second that were sent: those asked for, or for goodput the most that keeps the objective
    whole   under all requests; otherwise under the busiest part of them
    """

    candidate: FleetCandidate
    prediction: ServingPrediction
    rate: float
    whole: bool = False

    JSON = """
        words=candidate.words chips=candidate.chips pools router=prediction.scenario.plan.serving.router met whole
        rate goodput objective=prediction.limits output_tokens_per_s=prediction.metrics.output_tokens_per_s
        user_tokens_per_s cost_per_million_tokens_usd=prediction.cost_per_million_tokens_usd
    """

    @property
    def pools(self) -> tuple[PlannedPool, ...]:
        """Its replicas by role."""
        rows = zip(self.candidate.capacities, self.candidate.replicas, self.prediction.instances, strict=True)
        rate = self.rate if self.met else 0.0
        return tuple(
            PlannedPool(capacity=item, replicas=many, instance=instance, holds=max(item.rate, rate / many))
            for item, many, instance in rows
        )

    @property
    def user_tokens_per_s(self) -> float:
        """Tokens per second of a typical request: 1 / median TPOT."""
        median_s = self.prediction.metrics.tpot.percentiles[50.0]
        return 1.0 / median_s if median_s else 0.0

    @property
    def met(self) -> bool:
        return self.prediction.met

    @property
    def goodput(self) -> float:
        """Requests per second within every limit; all of them without an objective."""
        words = self.prediction.metrics
        return words.requests_per_s if words.goodput is None else words.goodput


PART = 3000  # requests of the busiest part
SLOWER = 0.96  # of the rate, where a fleet misses the objective at the rate of its replicas together
MOST_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCheck:
    """Where fleets are simulated, and what is allowed; steps take `step_scale` times what is predicted."""

    bench: TrialBench
    goal: Goal = "cost"
    replicas: tuple[int, ...] | None = None
    step_scale: float = 1.0

    def is_allowed(self, candidate: FleetCandidate) -> bool:
        return is_allowed(candidate, self.bench.base.system.chips, self.replicas)

    def passing(self, candidate: FleetCandidate | None, rate: float, *, whole: bool) -> Verified | None:
        """A fleet at a rate, if it is allowed and keeps the objective; given up as soon as it does not."""
        if candidate is None or not self.is_allowed(candidate):
            return None
        try:
            fleet = self.run(candidate, rate, whole=whole, give_up=self.bench.objective)
        except SloMissed:
            return None
        return fleet if fleet is not None and fleet.met else None

    def run(
        self, candidate: FleetCandidate, rate: float, *, whole: bool, give_up: Objective | None = None
    ) -> Verified | None:
        """A fleet at a rate, under all requests or the busiest part."""
        bench = self.bench
        scenario = candidate.scenario(bench.base, router_of(bench.base, bench.load))
        roles: tuple[Role, ...] = ("prefill", "decode") if candidate.is_disaggregated else ("both",)
        instances = tuple(
            replace(bench.instance(shape), role=role, count=many)
            for shape, role, many in zip(candidate.shapes, roles, candidate.replicas, strict=True)
        )
        if self.step_scale != 1.0:
            instances = tuple(
                replace(item, cost=ScaledStepCost(cost=item.cost, factor=self.step_scale)) for item in instances
            )
        whole = whole or len(bench.load.requests) <= PART
        requests = bench.load.at(rate) if whole else bench.load.part(rate, PART)
        served = bench.run(scenario, instances, requests, give_up)
        return None if served is None else Verified(candidate=candidate, prediction=served, rate=rate, whole=whole)

    def rank(self, fleet: Verified) -> tuple[float, ...]:
        if self.goal == "goodput":
            return not fleet.met, -fleet.rate, fleet.candidate.chips
        return not fleet.met, fleet.candidate.chips, -fleet.candidate.rate


def router_of(base: Scenario, load: Load) -> str:
    """Who deals requests: as the plan says; by load where it says nothing, and by prefix where prompts share them."""
    if base.plan.serving.router != "round-robin":
        return base.plan.serving.router
    return "prefix-aware" if load.hit_share > 0 else "least-loaded"


def verify_candidates(
    bench: TrialBench, candidates: Sequence[FleetCandidate], goal: Goal, replicas: tuple[int, ...] | None, go_on: GoOn
) -> tuple[Verified, ...]:  # fmt: skip
    """The candidates as whole fleets, the best first and under all requests; once stopped, only the first of them."""
    check = FleetCheck(bench=bench, goal=goal, replicas=replicas)
    fleets: list[Verified] = []
    for candidate in candidates:
        if goal != "goodput" and outdone(candidate, fleets):
            continue
        if not go_on(f"the busiest requests on {candidate.words}") and fleets:
            break
        if goal == "goodput":
            fleet = _lower_rate(check, candidate, candidate.rate, whole=False)
        else:
            fleet = _size_fleet(check, candidate)
        fleets += [fleet] if fleet is not None else []
    fleets.sort(key=check.rank)
    for place, fleet in enumerate(fleets):
        if fleet.whole or not go_on(f"all requests on {fleet.candidate.words}"):
            break
        whole_fleet = _under_all(check, fleet)
        if whole_fleet is not None:
            fleets[place] = whole_fleet
            if whole_fleet.met:
                break
    return tuple(sorted(fleets, key=lambda fleet: (not fleet.whole, check.rank(fleet))))


def outdone(candidate: FleetCandidate, fleets: Sequence[Verified]) -> bool:
    """Whether two deployments hold the load on no more chips than one replica of each of its pools takes: it is neither
    the best nor the next best."""
    least = sum(shape.chips for shape in candidate.shapes)
    return sum(fleet.met and fleet.candidate.chips <= least for fleet in fleets) > 1


def _under_all(check: FleetCheck, fleet: Verified) -> Verified | None:
    """A fleet under all requests: more replicas or a lower rate where it misses, fewer where it has some to spare."""
    if check.goal == "goodput":
        return _lower_rate(check, fleet.candidate, fleet.rate, whole=True)
    rate = check.bench.load.rate
    fewer = None if fleet.candidate.is_disaggregated else _smaller(fleet.candidate)
    if (passing := check.passing(fewer, rate, whole=True)) is not None:
        return passing
    whole_fleet = check.run(fleet.candidate, rate, whole=True)
    return whole_fleet if whole_fleet is None or whole_fleet.met else _grow(check, whole_fleet, whole=True)


def _size_fleet(check: FleetCheck, candidate: FleetCandidate) -> Verified | None:
    """With replicas taken away as long as the objective holds, or added until it does."""
    fleet = check.run(candidate, check.bench.load.rate, whole=False)
    if fleet is None or not fleet.met:
        return fleet and _grow(check, fleet, whole=False)
    while (fewer := check.passing(_smaller(fleet.candidate), fleet.rate, whole=False)) is not None:
        fleet = fewer
    return fleet


def _grow(check: FleetCheck, fleet: Verified, *, whole: bool) -> Verified:
    """With replicas added until the objective holds or the chips are used up."""
    for _ in range(MOST_TRIES):
        more = larger(fleet)
        attempt = check.run(more, fleet.rate, whole=whole) if check.is_allowed(more) else None
        if attempt is None or attempt.met:
            return attempt or fleet
        fleet = attempt
    return fleet


def _smaller(candidate: FleetCandidate) -> FleetCandidate | None:
    """One replica fewer, of the pool that has most to spare."""
    spare = [replica.rate * (many - 1) for replica, many in zip(candidate.capacities, candidate.replicas, strict=True)]
    place = spare.index(max(spare))
    if candidate.replicas[place] == 1:
        return None
    return replace(candidate, replicas=tuple(many - (at == place) for at, many in enumerate(candidate.replicas)))


def larger(fleet: Verified) -> FleetCandidate:
    """One replica more, or a twentieth; of the pool whose limit is missed most."""
    place = 0
    if fleet.candidate.is_disaggregated:
        over = {name: item.found / item.limit for name, item in fleet.prediction.kept.items()}
        place = int(max(over, key=lambda name: over[name], default="tpot") != "ttft")
    counts = enumerate(fleet.candidate.replicas)
    return replace(
        fleet.candidate, replicas=tuple(many + (max(many // 20, 1) if at == place else 0) for at, many in counts)
    )


def _lower_rate(check: FleetCheck, candidate: FleetCandidate, rate: float, *, whole: bool) -> Verified | None:
    """At a rate, or less until the objective holds."""
    fleet = None
    for _ in range(MOST_TRIES):
        fleet = check.run(candidate, rate, whole=whole)
        if fleet is None or fleet.met:
            break
        rate *= SLOWER
    return fleet


def tried_at(bench: TrialBench, candidate: FleetCandidate, rate: float) -> Verified | None:
    """A fleet under the busiest part of the load, whether or not it keeps the objective."""
    return FleetCheck(bench=bench).run(candidate, rate, whole=False)
