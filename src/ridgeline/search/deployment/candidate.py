"""A deployment as a search ranks it: which replicas, how many, what they hold, and what that costs."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Literal

from ridgeline.core.records import dataclass
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serving_plan import ServingPlan
from ridgeline.search.deployment.capacity import Capacity
from ridgeline.search.deployment.shape import DEGREES, Shape, precision_words, shape_words
from ridgeline.serving.deployment import Instance
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
