"""Why slow requests are slow, and which other settings would help.

Every remedy is a change of the plan that is simulated under the same requests; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.documents import JsonValue
from ridgeline.core.errors import InputError, MissingNumber
from ridgeline.core.records import dataclass
from ridgeline.hardware.load import system as load_system
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario, serving
from ridgeline.plan.serving_plan import KNOBS, StaticKnobs
from ridgeline.serving.deployment import Instance, StepPricing, instances_of, knobs_of, unservable
from ridgeline.serving.replica import Sample
from ridgeline.serving.request import Request
from ridgeline.serving.served import PARTS, Served
from ridgeline.serving.serving_prediction import ServingPrediction, served_by

FEWEST_TOKENS = 256  # of a step

Change = tuple[str, Scenario]
"""A change as `--set` writes it, and the scenario with it."""


def changes(scenario: Scenario) -> Iterator[Change]:
    """Plans worth trying when requests are slow."""
    yield from _knobs(scenario)
    if sum(one.count for one in instances_of(scenario)) > 1:
        for router in ("least-loaded", "prefix-aware"):
            if scenario.plan.serving.router != router:
                yield f"plan.serving.router={router}", _serving(scenario, router=router)
    yield from _shapes(scenario)


def _knobs(scenario: Scenario) -> Iterator[Change]:
    """Seats, token budget, chunk and memory, up and down, by the engine's own names."""
    settings = instances_of(scenario)[0].settings
    if isinstance(settings, StaticKnobs):
        return
    tokens, seqs = settings.step_limits
    fewer_tokens, fewer_seqs = max(tokens // 4, FEWEST_TOKENS), max(seqs // 2, 1)
    tried: dict[str, dict[str, tuple[JsonValue, ...]]] = {
        "vllm": {
            "max_num_seqs": (seqs * 2, fewer_seqs),
            "max_num_batched_tokens": (tokens * 2, fewer_tokens),
            "long_prefill_token_threshold": (fewer_tokens,),
            "gpu_memory_utilization": (0.95,),
            "enable_prefix_caching": (True,),
        },
        "sglang": {
            "chunked_prefill_size": (tokens * 2, fewer_tokens),
            "mem_fraction_static": (0.93,),
            "schedule_conservativeness": (0.3,),
        },
        "tensorrt_llm": {
            "max_num_tokens": (tokens * 2, fewer_tokens),
            "max_batch_size": (fewer_seqs,),
            "enable_chunked_prefill": (True,),
            "capacity_scheduler_policy": ("MAX_UTILIZATION",),
            "free_gpu_memory_fraction": (0.95,),
        },
    }
    engine, knobs = KNOBS.key_of(settings), knobs_of(scenario)
    for name, value in ((name, value) for name, values in tried[engine].items() for value in values):
        if getattr(knobs, name) != value:
            changed: JsonValue = {name: value}
            written = str(value).lower() if isinstance(value, bool) else str(value)
            yield f"plan.serving.{engine}.{name}={written}", _serving(scenario, knobs=replace(knobs, **changed))


def _shapes(scenario: Scenario) -> Iterator[Change]:
    """Other splits of the chips that there are, and twice as many chips."""
    serving, mesh, system = scenario.plan.serving, scenario.plan.mesh, scenario.system
    if serving.pools or serving.autoscale:
        return
    plan = replace(scenario.plan, serving=replace(serving, replicas=None))
    ranks = mesh.dp * mesh.tp
    for tp in (mesh.tp * 2, mesh.tp // 2):
        if tp and ranks % tp == 0 and ranks // tp >= serving.data_parallel_size:
            yield f"plan.tp={tp}", replace(scenario, plan=replace(plan, mesh=replace(mesh, tp=tp, dp=ranks // tp)))
    try:
        twice = load_system(f"{system.chips * 2}x{system.name.partition('x')[2]}")
    except InputError:
        return
    more = replace(plan, mesh=replace(mesh, dp=mesh.dp * 2))
    yield f"system={twice.name}", replace(scenario, system=twice, plan=more)


def _serving(scenario: Scenario, **changed: JsonValue) -> Scenario:
    plan = scenario.plan
    return replace(scenario, plan=replace(plan, serving=replace(plan.serving, **changed)))


SLOWEST = 5  # requests that are listed
TRIED = 4000  # requests that a remedy is simulated with, at most
APART_S = 1e4  # seconds between requests that do not meet
HALVINGS = 8  # of the interval in which the rate lies that keeps the objective
ALONE = 16  # requests that are sent one by one to learn what nothing can beat
FULL = 0.97  # share of a cache that counts as full
MEANINGS = MappingProxyType(
    {
        "queue": "sent until its first step: others run, or nothing is free",
        "prefill": "its own prompt, computed in chunks",
        "stalled": "steps made longer by prompts of others",
        "decode": "its own tokens, one step each",
        "preempted": "dropped for lack of cache, and computed again",
        "transfer": "its cache on the way from prefill to decode",
    }
)

Metric = Literal["ttft", "tpot", "e2e"]
Limit = Literal["max_num_seqs", "cache", "tokens", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRequest:
    """One of the slowest: when it was sent, how long it took, and on what."""

    id: str
    sent_s: float
    seconds: float
    prompt_tokens: int
    output_tokens: int
    replica: int
    parts: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStory:
    """When the queue grew most: from its last emptiness to its peak, and what was exhausted then.

    limit   max_num_seqs: as many run as may; cache: blocks are all held; tokens: neither, prompts wait for their chunks
    """

    replica: int
    began_s: float
    peak_s: float
    peak: int
    limit: Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change that was simulated, and the percentile with it, in seconds."""

    change: str
    found: float
    goodput: float | None
    chips: int

    JSON = "change found_s=found goodput chips"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhySlow:
    """Why the slowest requests of a prediction are slow.

    metric, percentile, found   what was looked at, and how long it is
    slow, usual                 mean seconds by part: of requests beyond the percentile, of the half in the middle
    least                       what a request alone on the deployment takes, by metric: no load, no waiting
    kept_rate                   requests per second of this load, stretched, at which every limit is kept; None where
                                there is no objective, users wait for answers, or no rate keeps it
    """

    prediction: ServingPrediction
    metric: Metric
    percentile: float
    found: float
    slow: dict[str, float]
    usual: dict[str, float]
    slowest: tuple[SlowRequest, ...]
    queue: QueueStory | None
    remedies: tuple[Remedy, ...]
    least: dict[str, float]
    kept_rate: float | None

    JSON = """
        kind='why slow' scenario=prediction.title metric percentile found_s=found met=prediction.met
        objective=prediction.limits cause slow_s=slow usual_s=usual slowest queue remedies least_s=least kept_rate
    """

    @property
    def cause(self) -> str:
        """The part that makes slow requests slower than usual ones, most of all."""
        return max(PARTS, key=lambda part: self.slow[part] - self.usual[part])


def why_slow(found: ServingPrediction, priced: StepPricing | None = None) -> WhySlow:
    """Explain a prediction that was made with samples."""
    metric, percentile = _looked_at(found)
    values = getattr(found.run.served, f"{metric}_s")
    edge = float(np.percentile(values, percentile))
    low, high = np.percentile(values, [25, 75])
    return WhySlow(
        prediction=found,
        metric=metric,
        percentile=percentile,
        found=edge,
        slow=_parts(found.run.served, values >= edge, metric),
        usual=_parts(found.run.served, (values >= low) & (values <= high), metric),
        slowest=_slowest(found.run.served, values, metric),
        queue=queue_story(found),
        remedies=tuple(_remedies(found, metric, percentile, priced)),
        least=_least(found),
        kept_rate=_kept_rate(found),
    )


def _looked_at(found: ServingPrediction) -> tuple[Metric, float]:
    """The limit that is missed most, or TTFT at p99."""
    work = serving(found.scenario).workload
    over = {name: kept.found / kept.limit for name, kept in found.kept.items()}
    worst = max(over, key=lambda name: over[name], default="ttft")
    metric: Metric = "e2e" if worst == "e2e" else "tpot" if worst in ("tpot", "itl") else "ttft"
    return metric, work.objective.percentile


def _cause_counts(served: Served, metric: Metric) -> dict[str, Array]:
    """Seconds by part of every request, those that the metric counts."""
    columns = {part: getattr(served, f"{part}_s") for part in PARTS}
    none = np.zeros(len(served.ids))
    if metric == "ttft":
        return columns | {"decode": none, "stalled": none, "preempted": none}
    if metric == "tpot":
        per = np.maximum(served.output_tokens - 1, 1)
        after = {part: columns[part] / per for part in ("decode", "stalled", "preempted")}
        return dict.fromkeys(PARTS, none) | after
    return columns


def _parts(served: Served, of: Mask, metric: Metric) -> dict[str, float]:
    return {part: float(column[of].mean()) for part, column in _cause_counts(served, metric).items()}


def _slowest(served: Served, values: Array, metric: Metric) -> tuple[SlowRequest, ...]:
    columns = _cause_counts(served, metric)
    return tuple(
        SlowRequest(
            id=served.ids[place],
            sent_s=float(served.sent_s[place]),
            seconds=float(values[place]),
            prompt_tokens=int(served.prompt_tokens[place]),
            output_tokens=int(served.output_tokens[place]),
            replica=int(served.replica[place]),
            parts={part: float(column[place]) for part, column in columns.items()},
        )
        for place in np.argsort(-values, kind="stable")[:SLOWEST]
    )


# ---- the queue


def queue_story(found: ServingPrediction) -> QueueStory | None:
    """The replica whose queue became longest, and how that came."""
    peaks = [max((sample[1] for sample in samples), default=0) for samples in found.run.samples]
    if max(peaks, default=0) <= 1:
        return None
    replica = peaks.index(max(peaks))
    samples = found.run.samples[replica]
    places = [instance for instance in found.instances for _ in range(instance.count)]
    at = max(range(len(samples)), key=lambda place: samples[place][1])
    begin = at
    while begin > 0 and samples[begin - 1][1] > 0:
        begin -= 1
    return QueueStory(
        replica=replica,
        began_s=samples[begin][0],
        peak_s=samples[at][0],
        peak=samples[at][1],
        limit=_limit(samples[begin : at + 1], places[replica]),
    )


def _limit(samples: Sequence[Sample], one: Instance) -> Limit:
    """What was exhausted most of the time while the queue grew."""
    most = 0 if isinstance(one.settings, StaticKnobs) else one.settings.step_limits[1]
    seqs = sum(running >= most * one.ranks for _, _, running, _ in samples) if most else 0
    cache = sum(held >= FULL for *_, held in samples)
    if 2 * max(seqs, cache) < len(samples):
        return "tokens"
    return "max_num_seqs" if seqs >= cache else "cache"


# ---- what would help


def _remedies(
    found: ServingPrediction, metric: Metric, percentile: float, priced: StepPricing | None
) -> Iterator[Remedy]:
    """Changes of the plan, simulated; those that help, the best first."""
    requests = found.requests[:TRIED]

    def seconds(prediction: ServingPrediction) -> float:
        return float(np.percentile(getattr(prediction.run.served, f"{metric}_s"), percentile))

    base = _outcome(found.scenario, requests, priced) if len(requests) < len(found.requests) else None
    now = seconds(base or found)
    tried = []
    for change, scenario in changes(found.scenario):
        made = _outcome(scenario, requests, priced)
        if made is not None and (value := seconds(made)) < now:
            tried.append(Remedy(change=change, found=value, goodput=made.metrics.goodput, chips=made.run.chips))
    yield from sorted(tried, key=lambda remedy: remedy.found)


def _outcome(scenario: Scenario, requests: tuple[Request, ...], priced: StepPricing | None) -> ServingPrediction | None:
    """The same requests under another plan; None where that is none."""
    if any(check(scenario)):
        return None
    try:
        instances = instances_of(scenario, priced)
        return None if any(unservable(instances, requests)) else served_by(scenario, instances, requests)
    except (InputError, MissingNumber):
        return None


def _least(found: ServingPrediction) -> dict[str, float]:
    """Percentiles of requests that never meet: no deployment of this kind is faster."""
    work = serving(found.scenario).workload
    step = max(len(found.requests) // ALONE, 1)
    alone = tuple(
        replace(request, arrival_s=place * APART_S, after=None)
        for place, request in enumerate(found.requests[::step][:ALONE])
    )
    plan = found.scenario.plan
    calm = replace(plan.serving, failures=(), mtbf=None, autoscale=None)
    quiet = replace(found.scenario, plan=replace(plan, serving=calm))
    made = served_by(quiet, found.instances, alone).metrics
    return {name: getattr(made, name).percentiles[work.objective.percentile] for name in ("ttft", "tpot", "itl", "e2e")}


def _kept_rate(found: ServingPrediction) -> float | None:
    """By bisection of how much the arrivals are stretched, or pressed together."""
    requests = found.requests[:TRIED]
    span = max((request.arrival_s for request in requests), default=0.0)
    if not found.kept or span <= 0 or any(request.after for request in requests):
        return None
    rate = len(requests) / span

    def kept(times: float) -> bool:
        other = tuple(replace(request, arrival_s=request.arrival_s / times) for request in requests)
        return served_by(found.scenario, found.instances, other).met

    low, high = (1.0, 2.0) if kept(1.0) else (1 / 64, 1.0)
    if low < 1.0 and not kept(low):
        return None
    while low >= 1.0 and high < 64.0 and kept(high):
        low, high = high, high * 2
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if kept(middle) else (low, middle)
    return rate * low
