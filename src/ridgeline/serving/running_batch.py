"""Turn a simulated deployment into what it runs at once on average: its batch, its cache, and what bounds its steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.core.records import dataclass
from ridgeline.serving.deployment import Instance
from ridgeline.serving.replica import Sample
from ridgeline.serving.serving_prediction import ServingPrediction
from ridgeline.serving.slow_requests import Limit, queue_story
from ridgeline.sim.forward_work import DecodeStep, decode_step


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBatch:
    """What runs at once on a replica that decodes, over the time in which something runs.

    batch           requests of one replica, on average
    context         cached tokens that a decoding request reads, on average over its steps
    longest_queue   requests that wait at one replica, at most
    cache_held      share of the cache that is cache_share, on average
    cache_peak      the same at its highest
    limit           what was exhausted while the longest queue grew; `none` where no request waited for another
    step            a decode step at this batch and context, by class and bound; None where nothing decodes
    """

    batch: float
    context: float
    longest_queue: int
    cache_held: float
    cache_peak: float
    limit: Limit
    step: DecodeStep | None


def running_batch(prediction: ServingPrediction) -> RunningBatch:
    """The average batch of a prediction that was made with samples, and the step it takes."""
    places = [instance for instance in prediction.instances for _ in range(instance.count)]
    decoding = [place for place, instance in enumerate(places) if instance.role != "prefill"]
    means = np.array([_time_means(prediction.run.samples[place]) for place in decoding]).reshape(-1, 3)
    seconds = means[:, 0]
    batch, cache_share = (
        float(np.average(column, weights=seconds)) if seconds.any() else 0.0 for column in means.T[1:]
    )
    samples = [sample for samples in prediction.run.samples for sample in samples]
    context = _mean_context(prediction)
    queue = queue_story(prediction)
    return RunningBatch(
        batch=batch,
        context=context,
        longest_queue=max((waiting for _, waiting, _, _ in samples), default=0),
        cache_held=cache_share,
        cache_peak=max((share for *_, share in samples), default=0.0),
        limit="none" if queue is None else queue.limit,
        step=_step(places[decoding[0]], batch, context) if decoding and batch > 0 else None,
    )


def _time_means(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """Seconds in which something runs; requests that run and share of the cache cache_share, on average over them."""
    columns = np.array(samples, dtype=float).reshape(-1, 4)
    seconds = np.diff(columns[:, 0], append=columns[-1:, 0]) * (columns[:, 2] > 0)
    total = float(seconds.sum())
    if not total:
        return 0.0, 0.0, 0.0
    return total, float((columns[:, 2] * seconds).sum() / total), float((columns[:, 3] * seconds).sum() / total)


def _mean_context(prediction: ServingPrediction) -> float:
    """Cached tokens of a decoding request: its prompt and half of its answer, over steps of all requests."""
    requests = prediction.run.served
    steps = np.maximum(requests.output_tokens - 1, 0)
    total = float(steps.sum())
    return float(((requests.prompt_tokens + requests.output_tokens / 2) * steps).sum() / total) if total else 0.0


def _step(instance: Instance, batch: float, context: float) -> DecodeStep:
    """A decode step of one of a replica's schedulers, which share its requests evenly."""
    return decode_step(instance.scenario, max(batch / instance.ranks, 1.0), context)
