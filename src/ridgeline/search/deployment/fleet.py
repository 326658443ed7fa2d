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
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serve import Objective
from ridgeline.plan.serving_plan import ServingPlan
from ridgeline.search.deployment.capacity import Bench, Capacity, Load
from ridgeline.search.deployment.space import DEGREES, Shape, precision_words, shape_words
from ridgeline.search.progress import GoOn
from ridgeline.serving.deployment import Instance
from ridgeline.serving.fleet.fleet_loop import Role
from ridgeline.serving.fleet.slo_abort import Hopeless
from ridgeline.serving.serving_prediction import ServingPrediction

Goal = Literal["cost", "chips", "goodput"]
GOALS: tuple[Goal, ...] = ("cost", "chips", "goodput")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
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
    def disaggregated(self) -> bool:
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
        if not self.disaggregated:
            return f"{self.replicas[0]} x {shape_words(self.shapes[0])}"
        first, second = (shape_words(shape).split(", ") for shape in self.shapes)
        remainder = ", ".join(second[1:])
        return f"{self.replicas[0]} prefill x {first[0]} + {self.replicas[1]} decode x {second[0]}, {remainder}"

    def with_replicas(self, *replicas: int) -> Candidate:
        """The same pools with other numbers of replicas."""
        return Candidate(capacities=self.capacities, replicas=replicas)

    def scenario(self, base: Scenario, router: str | None = None) -> Scenario:
        """The deployment on the chips of a scenario."""
        if not self.disaggregated:
            candidate_value = self.shapes[0].scenario(base, self.replicas[0])
        else:
            first, second = self.shapes
            pools = (first.pool("prefill", self.replicas[0]), second.pool("decode", self.replicas[1]))
            candidate_value = second.pooled(base, pools)
        if router is None:
            return candidate_value
        serving: ServingPlan = replace(candidate_value.plan.serving, router=router)  # type: ignore[arg-type]
        return replace(candidate_value, plan=replace(candidate_value.plan, serving=serving))


def fewest(capacity: Capacity, rate: float) -> Candidate:
    """As many replicas as a rate takes."""
    return Candidate(capacities=(capacity,), replicas=(max(ceil(rate / capacity.rate - 1e-9), 1),))


def fewest_pools(prefill: Capacity, decode: Capacity, rate: float) -> Candidate:
    """As many replicas of each pool as a rate takes."""
    many = (max(ceil(rate / item.rate - 1e-9), 1) for item in (prefill, decode))
    return Candidate(capacities=(prefill, decode), replicas=tuple(many))


def fullest(capacity: Capacity, chips: int) -> Candidate:
    """As many replicas as the chips hold."""
    return Candidate(capacities=(capacity,), replicas=(chips // capacity.shape.chips,))


def fullest_pools(prefill: Capacity, decode: Capacity, chips: int) -> Candidate | None:
    """The split of the chips between two pools that holds the highest rate; None where they do not hold one of each."""
    result = [
        Candidate(
            capacities=(prefill, decode), replicas=(many, (chips - many * prefill.shape.chips) // decode.shape.chips)
        )
        for many in range(1, (chips - decode.shape.chips) // prefill.shape.chips + 1)
    ]
    return max(result, key=lambda one: one.rate, default=None)


def order(candidate: Candidate, goal: Goal, rate: float) -> tuple[float, float]:
    """Less is better: chips, then how little of what they hold is needed; or for goodput the rate."""
    if goal == "goodput":
        return -candidate.rate, float(candidate.chips)
    return float(candidate.chips), rate / max(candidate.rate, 1e-12)


def is_allowed(one: Candidate, chips: int, replicas: tuple[int, ...] | None = None) -> bool:
    """Whether a deployment fits on so many chips, with as many replicas as are pinned."""
    return one.chips <= chips and min(one.replicas) > 0 and (replicas is None or sum(one.replicas) in replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPool:
    """Replicas of one role.

    chips          of one replica
    mesh           degrees above 1, by axis
    rate           requests per second that one replica holds
    breaks         the limit that is missed first beyond that
    cache_tokens   what the cache of a replica holds
    """

    capacity: Capacity
    replicas: int
    instance: Instance

    JSON = """
        role=instance.role replicas chips=capacity.shape.chips words mesh precision rate=capacity.rate
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

    candidate: Candidate
    prediction: ServingPrediction
    rate: float
    whole: bool = False

    JSON = """
        words=candidate.words chips=candidate.chips pools router=prediction.scenario.plan.serving.router met whole
        rate goodput objective=prediction.limits output_tokens_per_s=prediction.metrics.output_tokens_per_s
        user_tokens_per_s cost_per_million_tokens_usd=prediction.cost_per_million_tokens_usd
    """

    @property
    def pools(self) -> tuple[ReplicaPool, ...]:
        """Its replicas by role."""
        rows = zip(self.candidate.capacities, self.candidate.replicas, self.prediction.instances, strict=True)
        return tuple(ReplicaPool(capacity=item, replicas=many, instance=instance) for item, many, instance in rows)

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
class _Check:
    """Where fleets are simulated, and what is allowed."""

    bench: Bench
    goal: Goal
    replicas: tuple[int, ...] | None

    def allowed(self, one: Candidate) -> bool:
        return is_allowed(one, self.bench.base.system.chips, self.replicas)

    def kept(self, one: Candidate | None, rate: float, *, whole: bool) -> Verified | None:
        """A fleet at a rate, if it is allowed and keeps the objective; given up as soon as it does not."""
        if one is None or not self.allowed(one):
            return None
        try:
            outcome = self.run(one, rate, whole=whole, give_up=self.bench.objective)
        except Hopeless:
            return None
        return outcome if outcome is not None and outcome.met else None

    def run(self, one: Candidate, rate: float, *, whole: bool, give_up: Objective | None = None) -> Verified | None:
        """A fleet at a rate, under all requests or the busiest part."""
        bench = self.bench
        scenario = one.scenario(bench.base, router_of(bench.base, bench.load))
        roles: tuple[Role, ...] = ("prefill", "decode") if one.disaggregated else ("both",)
        instances = tuple(
            replace(bench.instance(shape), role=role, count=many)
            for shape, role, many in zip(one.shapes, roles, one.replicas, strict=True)
        )
        all_of_it = whole or len(bench.load.requests) <= PART
        requests = bench.load.at(rate) if all_of_it else bench.load.part(rate, PART)
        outcome = bench.run(scenario, instances, requests, give_up=give_up)
        return None if outcome is None else Verified(candidate=one, prediction=outcome, rate=rate, whole=all_of_it)


def router_of(base: Scenario, load: Load) -> str:
    """Who deals requests: as the plan says; by load where it says nothing, and by prefix where prompts share them."""
    if base.plan.serving.router != "round-robin":
        return base.plan.serving.router
    return "prefix-aware" if load.hit_share > 0 else "least-loaded"


def verify_candidates(
    bench: Bench, candidates: Sequence[Candidate], goal: Goal, replicas: tuple[int, ...] | None, go_on: GoOn
) -> tuple[Verified, ...]:  # fmt: skip
    """The candidates as whole fleets, the best first and under all requests."""
    check = _Check(bench=bench, goal=goal, replicas=replicas)
    found: list[Verified] = []
    for candidate in candidates:
        if goal != "goodput" and outdone(candidate, found):
            continue
        if not go_on(f"the busiest requests on {candidate.words}"):
            break
        candidate_value = (
            _raise_rate(check, candidate, candidate.rate, whole=False)
            if goal == "goodput"
            else _size_fleet(check, candidate)
        )
        found += [candidate_value] if candidate_value is not None else []
    found.sort(key=lambda one: _rank(check, one))
    for place, fleet in enumerate(found):
        if fleet.whole or not go_on(f"all requests on {fleet.candidate.words}"):
            break
        done = _under_all(check, fleet)
        if done is not None:
            found[place] = done
            if done.met:
                break
    return tuple(sorted(found, key=lambda fleet: (not fleet.whole, _rank(check, fleet))))


def outdone(one: Candidate, found: Sequence[Verified]) -> bool:
    """Whether two deployments hold the load on no more chips than one replica of each of its pools takes: it is neither
    the best nor the next best."""
    least = sum(shape.chips for shape in one.shapes)
    return sum(done.met and done.candidate.chips <= least for done in found) > 1


def _rank(check: _Check, done: Verified) -> tuple[float, ...]:
    if check.goal == "goodput":
        return not done.met, -done.rate, done.candidate.chips
    return not done.met, done.candidate.chips, -done.candidate.rate


def _under_all(check: _Check, one: Verified) -> Verified | None:
    """A fleet under all requests: more replicas or a lower rate where it misses, fewer where it has some to spare."""
    if check.goal == "goodput":
        return _raise_rate(check, one.candidate, one.rate, whole=True)
    rate = check.bench.load.rate
    less = None if one.candidate.disaggregated else _smaller(one.candidate)
    selection = check.kept(less, rate, whole=True)
    if selection is not None:
        return selection
    outcome = check.run(one.candidate, rate, whole=True)
    return outcome if outcome is None or outcome.met else _grown(check, outcome, whole=True)


def _size_fleet(check: _Check, one: Candidate) -> Verified | None:
    """With replicas taken away as long as the objective holds, or added until it does."""
    outcome = check.run(one, check.bench.load.rate, whole=False)
    if outcome is None or not outcome.met:
        return outcome and _grown(check, outcome, whole=False)
    while (fewer := check.kept(_smaller(outcome.candidate), outcome.rate, whole=False)) is not None:
        outcome = fewer
    return outcome


def _grown(check: _Check, found: Verified, *, whole: bool) -> Verified:
    """With replicas added until the objective holds or the chips are used up."""
    for _ in range(MOST_TRIES):
        more = _larger(found)
        attempt = check.run(more, found.rate, whole=whole) if check.allowed(more) else None
        if attempt is None:
            return found
        found = attempt
        if found.met:
            return found
    return found


def _smaller(one: Candidate) -> Candidate | None:
    """One replica fewer, of the pool that has most to spare."""
    spare = [capacity.rate * (many - 1) for capacity, many in zip(one.capacities, one.replicas, strict=True)]
    place = spare.index(max(spare))
    if one.replicas[place] == 1:
        return None
    return one.with_replicas(*(many - (at == place) for at, many in enumerate(one.replicas)))


def _larger(found: Verified) -> Candidate:
    """One replica more, or a twentieth; of the pool whose limit is missed most."""
    item, place = found.candidate, 0
    if item.disaggregated:
        over = {name: item.found / item.limit for name, item in found.prediction.kept.items()}
        place = int(max(over, key=lambda name: over[name], default="tpot") != "ttft")
    more = [many + (max(many // 20, 1) if at == place else 0) for at, many in enumerate(item.replicas)]
    return item.with_replicas(*more)


def _raise_rate(check: _Check, one: Candidate, rate: float, *, whole: bool) -> Verified | None:
    """At a rate, or less until the objective holds."""
    result = None
    for _ in range(MOST_TRIES):
        result = check.run(one, rate, whole=whole)
        if result is None or result.met:
            return result
        rate *= SLOWER
    return result


def tried_at(bench: Bench, one: Candidate, rate: float) -> Verified | None:
    """A fleet under the busiest part of the load, whether or not it keeps the objective."""
    return _Check(bench=bench, goal="cost", replicas=None).run(one, rate, whole=False)
