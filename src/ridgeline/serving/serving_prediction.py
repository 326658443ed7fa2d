"""Turn a serve scenario into a prediction: its requests, its fleet, what became of them, and whether that is enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from ridgeline.core.errors import InputError
from ridgeline.core.records import NotebookValue, dataclass
from ridgeline.core.units import HOUR, MILLION
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario, serving
from ridgeline.plan.workload import Objective
from ridgeline.serving.deployment import Instance, StepPricing, fleet_of, instances_of, unservable
from ridgeline.serving.fleet import FleetRun, Progress, simulate_fleet
from ridgeline.serving.load import load_of
from ridgeline.serving.replica import SloBudget
from ridgeline.serving.request import Request
from ridgeline.serving.served import ServingMetrics, serving_metrics
from ridgeline.sim import Impossible, unless_impossible

PERCENTILES = (50.0, 90.0, 99.0)
FRONT_END_S = 8e-3  # sent until queued, and first token until received: TTFT p50 less 2.5 steps in rows of serving.csv


FRONT_END_NOTE = f"front end: {FRONT_END_S * 1e3:g} ms from sending to the engine's queue, assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One limit of the objective, and what the run took at its percentile, in seconds."""

    metric: str
    percentile: float
    limit: float
    found: float

    JSON = "metric percentile limit_s=limit found_s=found met"

    @property
    def met(self) -> bool:
        return self.found <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTitle:
    """What serves.

    chips      of all replicas
    mesh       degrees above 1 of the first replica, by axis
    replicas   how many, by role
    """

    scenario: Scenario
    chips: int
    mesh: Mapping[str, int]
    replicas: Mapping[str, int]

    JSON = """
        name=scenario.name model=scenario.model.id system=scenario.system.name chips engine=scenario.plan.engine
        precision=scenario.plan.precision.compute mesh replicas router=scenario.plan.serving.router
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPrediction(NotebookValue):
    """A deployment under a load.

    kept                limits of the objective, by name; empty without one
    goodput_share       requests that keep every limit, of all
    tokens_per_s_per_chip   output tokens
    """

    scenario: Scenario
    instances: tuple[Instance, ...]
    requests: tuple[Request, ...]
    run: FleetRun
    metrics: ServingMetrics
    kept: dict[str, Kept]
    goodput_share: float | None
    cost_per_million_tokens_usd: float | None
    assumptions: tuple[str, ...]

    JSON = """
        kind='serving' possible=true scenario=title requests=metrics.requests duration_s=metrics.duration_s
        requests_per_s=metrics.requests_per_s output_tokens_per_s=metrics.output_tokens_per_s
        tokens_per_s=metrics.tokens_per_s tokens_per_s_per_chip ttft_s=metrics.ttft.figures
        tpot_s=metrics.tpot.figures itl_s=metrics.itl.figures e2e_s=metrics.e2e.figures goodput=metrics.goodput
        goodput_share objective=limits met time_s=metrics.time hit_share=metrics.hit_share preemptions
        steps=run.served.steps cache=instances chip_seconds=run.chip_seconds transfer_bytes=run.transfer_bytes
        retried=run.retried replica_changes cost_per_million_tokens_usd assumptions
    """

    @property
    def title(self) -> ServedTitle:
        """What serves."""
        replicas: Counter[str] = Counter()
        for instance in self.instances:
            replicas[instance.role] += instance.count
        mesh = self.instances[0].scenario.plan.mesh.split
        return ServedTitle(scenario=self.scenario, chips=self.run.chips, mesh=mesh, replicas=dict(replicas))

    @property
    def limits(self) -> tuple[Kept, ...]:
        """Limits of the objective, and whether each is met."""
        return tuple(self.kept.values())

    @property
    def preemptions(self) -> int:
        """How often a request lost its cache and was computed again."""
        return int(self.run.served.preemptions.sum())

    @property
    def replica_changes(self) -> list[tuple[float, float]]:
        """Seconds and the number of replicas from then on."""
        return [(at, float(count)) for at, count in self.run.replicas]

    @property
    def met(self) -> bool:
        """Whether every limit is kept at its percentile."""
        return all(one.met for one in self.kept.values())

    @property
    def tokens_per_s_per_chip(self) -> float:
        return self.metrics.output_tokens_per_s / self.run.chips


def predict_serving(
    scenario: Scenario, priced: StepPricing | None = None, *, sample: bool = False, progress: Progress | None = None
) -> ServingPrediction | Impossible:
    """What becomes of a serve scenario's requests, or the reasons why nobody can tell.

    sample   keep queues and cache over time, for a timeline
    """
    work = serving(scenario).workload

    def serve() -> ServingPrediction | Impossible:
        instances, requests = instances_of(scenario, priced), load_of(work)
        reasons = tuple(unservable(instances, requests))
        if reasons:
            return Impossible(scenario=scenario, reasons=reasons)
        return served_by(scenario, instances, requests, sample=sample, progress=progress)

    return unless_impossible(scenario, check(scenario), serve)


def served_by(
    scenario: Scenario,
    instances: tuple[Instance, ...],
    requests: tuple[Request, ...],
    *,
    sample: bool = False,
    progress: Progress | None = None,
    give_up: Objective | None = None,
) -> ServingPrediction:
    """The prediction of a deployment that is already priced, under requests that are already made.

    `give_up` raises `SloMissed` as soon as these limits cannot be kept any more.
    """
    work = serving(scenario).workload
    until = max((request.arrival_s for request in requests), default=0.0)
    misses = SloBudget(give_up, requests, FRONT_END_S) if give_up is not None else None
    fleet = fleet_of(scenario, instances, until)
    run = simulate_fleet(requests, fleet, sample=sample, progress=progress, misses=misses)
    served = run.served  # clients measure from before the front end, which takes a while to queue a request
    served = replace(served, sent_s=served.sent_s - FRONT_END_S, queue_s=served.queue_s + FRONT_END_S)
    run = replace(run, served=served)
    percentiles = tuple(sorted({*PERCENTILES, work.objective.percentile}))
    limited = work.objective if work.objective.limits else None
    metrics = serving_metrics(run.served, limited, percentiles)
    notes = [note for instance in instances for note in instance.notes]
    return ServingPrediction(
        scenario=scenario,
        instances=instances,
        requests=requests,
        run=run,
        metrics=metrics,
        kept={
            name: Kept(
                metric=name,
                percentile=work.objective.percentile,
                limit=limit,
                found=getattr(metrics, name).percentiles[work.objective.percentile],
            )
            for name, limit in work.objective.limits.items()
        },
        goodput_share=None if metrics.goodput is None else metrics.goodput * metrics.duration_s / metrics.requests,
        cost_per_million_tokens_usd=_cost(run, instances, metrics),
        assumptions=(*scenario.assumptions, *dict.fromkeys(notes), FRONT_END_NOTE),
    )


def _cost(run: FleetRun, instances: tuple[Instance, ...], metrics: ServingMetrics) -> float | None:
    """Price of a million output tokens: chips by the hour, for as long as they were there."""
    prices = [one.scenario.system.chip.price for one in instances]
    if any(price is None for price in prices) or not metrics.output_tokens:
        return None
    chips = sum(one.chips * one.count for one in instances)
    hourly = sum(one.chips * one.count * price.value for one, price in zip(instances, prices, strict=True) if price)
    return hourly / chips * run.chip_seconds / HOUR / metrics.output_tokens * MILLION


def refuse_impossible(found: ServingPrediction | Impossible) -> ServingPrediction:
    """The prediction, or its reasons as an `InputError`."""
    if isinstance(found, Impossible):
        raise InputError(list(found.reasons))
    return found
