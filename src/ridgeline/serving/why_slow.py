"""Turn a serving prediction into why its slow requests are slow: their time by part, the queue's story, what would help.

Every remedy is a change of the plan that is simulated under the same requests; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, MissingNumber
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serve import Serve
from ridgeline.plan.serving_plan import ServingPlan, SglangKnobs, VllmKnobs
from ridgeline.serving.deployment import Instance, Priced, instances_of, knobs_of, unservable
from ridgeline.serving.replica import Sample
from ridgeline.serving.request import Request
from ridgeline.serving.served import PARTS, Served
from ridgeline.serving.serving_prediction import ServingPrediction, served_by
from ridgeline.serving.sglang_settings import SglangSettings
from ridgeline.serving.vllm_settings import VllmSettings

SLOWEST = 5  # requests that are listed
TRIED = 4000  # requests that a remedy is simulated with, at most
APART_S = 1e4  # seconds between requests that do not meet
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WhySlow:
    """Why the slowest requests of a prediction are slow.

    metric, percentile, found   what was looked at, and how long it is
    slow, usual                 mean seconds by part of the requests beyond the percentile, and of the half in the middle
    least                       what a request alone on the deployment takes, by metric: no load, no waiting
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

    @property
    def cause(self) -> str:
        """The part that makes slow requests slower than usual ones, most of all."""
        return max(PARTS, key=lambda part: self.slow[part] - self.usual[part])


def why_slow(found: ServingPrediction, priced: Priced | None = None) -> WhySlow:
    """Explain a prediction that was made with samples."""
    metric, percentile = _looked_at(found)
    values = _values(found.run.served, metric)
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
        queue=_queue(found),
        remedies=tuple(_remedies(found, metric, percentile, priced)),
        least=_least(found),
    )


def _looked_at(found: ServingPrediction) -> tuple[Metric, float]:
    """The limit that is missed most, or TTFT at p99."""
    work = found.scenario.workload
    assert isinstance(work, Serve)
    over = {name: kept.found / kept.limit for name, kept in found.kept.items()}
    worst = max(over, key=lambda name: over[name], default="ttft")
    metric: Metric = "e2e" if worst == "e2e" else "tpot" if worst in ("tpot", "itl") else "ttft"
    return metric, work.objective.percentile


def _values(served: Served, metric: Metric) -> Array:
    if metric == "ttft":
        return served.ttft_s
    if metric == "e2e":
        return served.e2e_s
    return (served.finished_s - served.first_token_s) / np.maximum(served.output_tokens - 1, 1)


def _counted(served: Served, metric: Metric) -> dict[str, Array]:
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


def _parts(served: Served, of: Array, metric: Metric) -> dict[str, float]:
    return {part: float(column[of].mean()) for part, column in _counted(served, metric).items()}


def _slowest(served: Served, values: Array, metric: Metric) -> tuple[SlowRequest, ...]:
    columns = _counted(served, metric)
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


def _queue(found: ServingPrediction) -> QueueStory | None:
    """The replica whose queue became longest, and how that came."""
    best: tuple[int, int] | None = None
    for replica, samples in enumerate(found.run.samples):
        peak = max((sample[1] for sample in samples), default=0)
        if peak > 1 and (best is None or peak > best[0]):
            best = (peak, replica)
    if best is None:
        return None
    samples = found.run.samples[best[1]]
    at = max(range(len(samples)), key=lambda place: samples[place][1])
    begin = at
    while begin > 0 and samples[begin - 1][1] > 0:
        begin -= 1
    return QueueStory(
        replica=best[1],
        began_s=samples[begin][0],
        peak_s=samples[at][0],
        peak=samples[at][1],
        limit=_limit(samples[begin : at + 1], _instance_at(found.instances, best[1])),
    )


def _limit(samples: Sequence[Sample], one: Instance) -> Limit:
    """What was exhausted most of the time while the queue grew."""
    most = one.settings.max_num_seqs if isinstance(one.settings, VllmSettings) else 0
    most = one.settings.max_running_requests if isinstance(one.settings, SglangSettings) else most
    seqs = sum(running >= most * one.ranks for _, _, running, _ in samples) if most else 0
    cache = sum(held >= FULL for *_, held in samples)
    if 2 * max(seqs, cache) < len(samples):
        return "tokens"
    return "max_num_seqs" if seqs >= cache else "cache"


def _instance_at(instances: Sequence[Instance], replica: int) -> Instance:
    for one in instances:
        if replica < one.count:
            return one
        replica -= one.count
    return instances[-1]


# ---- what would help


def _remedies(found: ServingPrediction, metric: Metric, percentile: float, priced: Priced | None) -> Iterator[Remedy]:
    """Changes of the plan, simulated; those that help, the best first."""
    requests = found.requests[:TRIED]
    base = _outcome(found.scenario, requests, metric, percentile, priced) if len(requests) < len(found.requests) else None
    now = base.found if base else float(np.percentile(_values(found.run.served, metric), percentile))
    tried = []
    for change, scenario in changes(found.scenario):
        outcome = _outcome(scenario, requests, metric, percentile, priced)
        if outcome is not None and outcome.found < now:
            tried.append(replace(outcome, change=change))
    yield from sorted(tried, key=lambda one: one.found)


def _outcome(
    scenario: Scenario, requests: tuple[Request, ...], metric: Metric, percentile: float, priced: Priced | None
) -> Remedy | None:
    if any(check(scenario)):
        return None
    try:
        instances = instances_of(scenario, priced)
        if any(unservable(instances, requests)):
            return None
        made = served_by(scenario, instances, requests)
    except (InputError, MissingNumber):
        return None
    value = float(np.percentile(_values(made.run.served, metric), percentile))
    return Remedy(change="", found=value, goodput=made.metrics.goodput, chips=made.run.chips)


def changes(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """Plans that differ in one thing, each with its name as `--set` writes it."""
    serving = scenario.plan.serving
    knobs = knobs_of(scenario)
    one = instances_of(scenario, None)[0]

    def with_serving(make: Callable[[ServingPlan], ServingPlan]) -> Scenario:
        return replace(scenario, plan=replace(scenario.plan, serving=make(serving)))

    if isinstance(knobs, VllmKnobs) and isinstance(one.settings, VllmSettings):
        tokens, seqs = one.settings.max_num_batched_tokens, one.settings.max_num_seqs
        for name, value in (
            ("max_num_seqs", seqs * 2),
            ("max_num_seqs", max(seqs // 2, 1)),
            ("max_num_batched_tokens", tokens * 2),
            ("max_num_batched_tokens", max(tokens // 4, 256)),
            ("long_prefill_token_threshold", max(tokens // 4, 256)),
            ("gpu_memory_utilization", 0.95),
            ("enable_prefix_caching", True),
        ):
            if getattr(knobs, name) != value:
                own = replace(knobs, **{name: value})
                yield f"plan.serving.vllm.{name}={_plain(value)}", with_serving(lambda plan, own=own: replace(plan, vllm=own))  # type: ignore[misc]
    elif isinstance(knobs, SglangKnobs) and isinstance(one.settings, SglangSettings):
        chunk = one.settings.chunked_prefill_size or one.settings.max_prefill_tokens
        for name, value in (
            ("chunked_prefill_size", chunk * 2),
            ("chunked_prefill_size", max(chunk // 4, 256)),
            ("mem_fraction_static", 0.93),
            ("schedule_conservativeness", 0.3),
        ):
            own_s = replace(knobs, **{name: value})
            yield f"plan.serving.sglang.{name}={_plain(value)}", with_serving(lambda plan, own=own_s: replace(plan, sglang=own))  # type: ignore[misc]
    if not serving.pools and one.count > 1 and serving.router != "least-loaded":
        yield "plan.serving.router=least-loaded", with_serving(lambda plan: replace(plan, router="least-loaded"))
    yield from _shapes(scenario)


def _shapes(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """Other splits of the chips that there are, and twice as many chips."""
    from ridgeline.hardware.load import system as load_system

    plan, serving, system = scenario.plan, scenario.plan.serving, scenario.system
    mesh = plan.mesh
    if serving.pools or serving.autoscale:
        return
    whole = replace(plan, serving=replace(serving, replicas=None))
    for tp in (mesh.tp * 2, mesh.tp // 2):
        if tp and (mesh.dp * mesh.tp) % tp == 0 and (mesh.dp * mesh.tp) // tp >= serving.data_parallel_size:
            other = replace(whole, mesh=replace(mesh, tp=tp, dp=mesh.dp * mesh.tp // tp))
            yield f"plan.tp={tp}", replace(scenario, plan=other)
    try:
        twice = load_system(f"{system.chips * 2}x{system.template}")
    except InputError:
        return
    yield f"system={twice.name}", replace(scenario, system=twice, plan=replace(whole, mesh=replace(mesh, dp=mesh.dp * 2)))


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _least(found: ServingPrediction) -> dict[str, float]:
    """Percentiles of requests that never meet: no deployment of this kind is faster."""
    work = found.scenario.workload
    assert isinstance(work, Serve)
    step = max(len(found.requests) // ALONE, 1)
    alone = tuple(
        replace(request, arrival_s=place * APART_S, after=None)
        for place, request in enumerate(found.requests[::step][:ALONE])
    )
    quiet = replace(found.scenario, plan=replace(found.scenario.plan, serving=replace(
        found.scenario.plan.serving, failures=(), mtbf=None, autoscale=None)))  # fmt: skip
    made = served_by(quiet, found.instances, alone).metrics
    return {name: getattr(made, name).percentiles[work.objective.percentile] for name in ("ttft", "tpot", "itl", "e2e")}
