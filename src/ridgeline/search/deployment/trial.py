"""Turn a deployment and requests into a simulated trial: what was taken of each limit, at what speed and price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType

import numpy as np

from ridgeline.core.errors import InputError
from ridgeline.core.records import dataclass
from ridgeline.core.units import HOUR, MILLION
from ridgeline.plan.scenario import Scenario, serving
from ridgeline.plan.serve import Objective
from ridgeline.search.deployment.load import Load
from ridgeline.search.deployment.shape import Shape
from ridgeline.serving.deployment import Instance, Priced, instances_of
from ridgeline.serving.fleet.fleet_loop import Role
from ridgeline.serving.fleet.slo_abort import Hopeless
from ridgeline.serving.request import Request
from ridgeline.serving.served import Served
from ridgeline.serving.serving_prediction import ServingPrediction, served_by

FEWEST, MOST = 400, 1600  # requests of a shortened load
RESIDENTS = 3.0  # times the requests in flight that it holds at least, so that most of them meet a busy engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A simulated load.

    rate           requests per second that were sent
    taken          what each limit of the objective took at its percentile, over the limit
    user_speed     tokens per second of a typical request after its first: 1 / median TPOT
    chips          of the deployment
    output_tokens_per_s   at the rate that was sent, in the long run
    at_once        most requests that were there at one time; None of a trial that was given up
    """

    rate: float
    taken: Mapping[str, float]
    user_speed: float
    ttft_s: float
    chips: int
    output_tokens_per_s: float
    at_once: int | None = None

    @property
    def met(self) -> bool:
        return all(share <= 1.0 for share in self.taken.values())

    @property
    def worst(self) -> str:
        """The limit that is nearest to being missed, or missed most; nothing without limits."""
        return max(self.taken, key=lambda name: self.taken[name], default="")

    def cost_per_million_tokens(self, price: float | None) -> float | None:
        """Price of a million output tokens, chips paid by the hour."""
        if price is None or not self.output_tokens_per_s:
            return None
        return self.chips * price / HOUR / self.output_tokens_per_s * MILLION


@dataclass(slots=True)
class Bench:
    """Where trials run: the load, the objective, and instances that are priced once.

    trials   how many were simulated, and their requests
    """

    base: Scenario
    load: Load
    objective: Objective
    priced: Priced
    trials: int = 0
    requests: int = 0
    _instances: dict[tuple[Shape, Role], Instance] = field(default_factory=dict)

    def instance(self, shape: Shape, role: Role = "both") -> Instance:
        """One replica of a shape, priced."""
        result = self._instances.get((shape, role))
        if result is None:
            (result,) = instances_of(shape.pooled(self.base, (shape.pool(role, 1),)), self.priced)
            self._instances[shape, role] = result
        return result

    def trial(self, shape: Shape, rate: float, most: int, role: Role = "both") -> Trial | None:
        """One replica alone at a mean rate; None where it cannot hold a request.

        A replica that prefills answers with one token; one that decodes finds every prompt in its cache.
        """
        part = self.load.part(rate, most)
        limits = self.objective
        if role == "prefill":
            part = tuple(replace(item, output_tokens=1, max_new_tokens=1) for item in part)
            limits = replace(limits, tpot=None, itl=None, e2e=None)
        elif role == "decode":
            part = tuple(replace(item, remote_tokens=item.prompt_tokens - 1) for item in part)
            limits = replace(limits, ttft=None, e2e=None)
        instance = replace(self.instance(shape), role="both")
        try:
            outcome = self.run(
                self._asked(shape, limits), (instance,), part, give_up=replace(limits, tpot=None, e2e=None)
            )
        except Hopeless as abort:
            return self._given_up(shape, rate, abort)
        return None if outcome is None else self.told(outcome, rate)

    def _given_up(self, shape: Shape, rate: float, missed: Hopeless) -> Trial:
        """A trial whose first tokens come too late, whatever the rest of it would show.

        Overload makes them late first. Where other limits are missed alone, the trial is a point of the frontier.
        """
        return Trial(
            rate=rate,
            taken=MappingProxyType({missed.limit: missed.over}),
            user_speed=0.0,
            ttft_s=0.0,
            chips=shape.chips,
            output_tokens_per_s=rate * float(self.load.outputs.mean()),
        )

    def run(
        self,
        scenario: Scenario,
        instances: tuple[Instance, ...],
        requests: tuple[Request, ...],
        *,
        give_up: Objective | None = None,
    ) -> ServingPrediction | None:
        """A deployment under requests; None where a request is too long for it. `Hopeless` where it is given up."""
        longest = max(request.prompt_tokens + request.output_tokens for request in requests)
        if any(longest - 1 > instance.longest for instance in instances):
            return None
        self.trials += 1
        self.requests += len(requests)
        try:
            return served_by(scenario, instances, requests, give_up=give_up)
        except InputError:
            return None

    def told(self, found: ServingPrediction, rate: float) -> Trial:
        """A run as a trial."""
        median = found.metrics.tpot.percentiles[50.0]
        return Trial(
            rate=rate,
            taken=MappingProxyType({name: item.found / item.limit for name, item in found.kept.items()}),
            user_speed=1.0 / median if median else 0.0,
            ttft_s=found.metrics.ttft.percentiles[50.0],
            chips=found.run.chips,
            output_tokens_per_s=rate * float(self.load.outputs.mean()),
            at_once=_at_once(found.run.served),
        )

    def _asked(self, shape: Shape, limits: Objective) -> Scenario:
        candidate_value = shape.pooled(self.base, (shape.pool("both", 1),))
        work = serving(candidate_value).workload
        return replace(candidate_value, workload=replace(work, objective=limits))

    def length(self, rate: float, tpot_s: float) -> int:
        """Requests of a shortened load at a rate: enough to fill an engine several times."""
        resident = rate * float(self.load.outputs.mean()) * tpot_s
        return int(min(max(RESIDENTS * resident, FEWEST), MOST))


def _at_once(served: Served) -> int:
    """Most requests between sending and their last token at one time."""
    finished_counts = np.searchsorted(np.sort(served.finished_s), np.sort(served.sent_s), side="left")
    return int((np.arange(1, len(finished_counts) + 1) - finished_counts).max(initial=0))
