"""A deployment as a search ranks it: which replicas, how many, what they hold, and what that costs."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Literal

from ridgeline.core.records import dataclass
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serving_plan import ServingPlan
from ridgeline.search.deployments.capacity import Capacity
from ridgeline.search.deployments.shape import Shape, shape_words
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
        return tuple(one.shape for one in self.capacities)

    @property
    def disaggregated(self) -> bool:
        return len(self.capacities) > 1

    @property
    def chips(self) -> int:
        return sum(shape.chips * many for shape, many in zip(self.shapes, self.replicas, strict=True))

    @property
    def rate(self) -> float:
        """Requests per second that all replicas hold together: the pool that holds least decides."""
        return min(one.rate * many for one, many in zip(self.capacities, self.replicas, strict=True))

    @property
    def words(self) -> str:
        """`3 x tp=2, bf16`, or `2 prefill x tp=2 + 4 decode x tp=1, bf16`."""
        if not self.disaggregated:
            return f"{self.replicas[0]} x {shape_words(self.shapes[0])}"
        first, second = (shape_words(shape).split(", ") for shape in self.shapes)
        rest = ", ".join(second[1:])
        return f"{self.replicas[0]} prefill x {first[0]} + {self.replicas[1]} decode x {second[0]}, {rest}"

    def with_replicas(self, *replicas: int) -> Candidate:
        """The same pools with other numbers of replicas."""
        return Candidate(capacities=self.capacities, replicas=replicas)

    def scenario(self, base: Scenario, router: str | None = None) -> Scenario:
        """The deployment on the chips of a scenario."""
        if not self.disaggregated:
            made = self.shapes[0].scenario(base, self.replicas[0])
        else:
            first, second = self.shapes
            pools = (first.pool("prefill", self.replicas[0]), second.pool("decode", self.replicas[1]))
            made = second.pooled(base, pools)
        if router is None:
            return made
        serving: ServingPlan = replace(made.plan.serving, router=router)  # type: ignore[arg-type]
        return replace(made, plan=replace(made.plan, serving=serving))


def fewest(capacity: Capacity, rate: float) -> Candidate:
    """As many replicas as a rate takes."""
    return Candidate(capacities=(capacity,), replicas=(max(ceil(rate / capacity.rate - 1e-9), 1),))


def fewest_pools(prefill: Capacity, decode: Capacity, rate: float) -> Candidate:
    """As many replicas of each pool as a rate takes."""
    many = (max(ceil(rate / one.rate - 1e-9), 1) for one in (prefill, decode))
    return Candidate(capacities=(prefill, decode), replicas=tuple(many))


def fullest(capacity: Capacity, chips: int) -> Candidate:
    """As many replicas as the chips hold."""
    return Candidate(capacities=(capacity,), replicas=(chips // capacity.shape.chips,))


def fullest_pools(prefill: Capacity, decode: Capacity, chips: int) -> Candidate | None:
    """The split of the chips between two pools that holds the highest rate; None where they do not hold one of each."""
    found = [
        Candidate(
            capacities=(prefill, decode), replicas=(many, (chips - many * prefill.shape.chips) // decode.shape.chips)
        )
        for many in range(1, (chips - decode.shape.chips) // prefill.shape.chips + 1)
    ]
    return max(found, key=lambda one: one.rate, default=None)


def order(candidate: Candidate, goal: Goal, rate: float) -> tuple[float, float]:
    """Less is better: chips, then how little of what they hold is needed; or for goodput the rate."""
    if goal == "goodput":
        return -candidate.rate, float(candidate.chips)
    return float(candidate.chips), rate / max(candidate.rate, 1e-12)


def allowed(one: Candidate, chips: int, replicas: tuple[int, ...] | None = None) -> bool:
    """Whether a deployment fits on so many chips, with as many replicas as are pinned."""
    return one.chips <= chips and min(one.replicas) > 0 and (replicas is None or sum(one.replicas) in replicas)


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

    @property
    def met(self) -> bool:
        return self.prediction.met

    @property
    def goodput(self) -> float:
        """Requests per second within every limit; all of them without an objective."""
        told = self.prediction.metrics
        return told.requests_per_s if told.goodput is None else told.goodput
