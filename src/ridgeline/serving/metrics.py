"""Turn what became of requests into the metrics of `vllm bench serve`, by its definitions.

    TTFT        sent until the first token
    TPOT        (E2E - TTFT) / (output tokens - 1) of a request; one-token answers have none (0 in goodput)
    ITL         pauses between tokens, those of all requests in one pool
    E2E         sent until the last token
    goodput     requests per second that keep every limit of the objective

Percentiles interpolate linearly; throughput is over the time from the start to the last completion.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.records import dataclass
from ridgeline.plan.serve import Objective
from ridgeline.serving.served import PARTS, Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How one metric is distributed over requests, or pauses; seconds. Nothing measured: all zero."""

    mean: float
    median: float
    std: float
    percentiles: dict[float, float]

    JSON = "mean median std percentiles=percentiles_by_share"

    @property
    def percentiles_by_share(self) -> dict[str, float]:
        """Seconds by percentile, 99 or 99.9."""
        return {f"{share:g}": seconds for share, seconds in self.percentiles.items()}

    @property
    def figures(self) -> dict[str, float]:
        """The mean, and percentiles as p99."""
        return {"mean": self.mean, **{f"p{share:g}": seconds for share, seconds in self.percentiles.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMetrics:
    """The figures of a run."""

    requests: int
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    tokens_per_s: float
    ttft: Spread
    tpot: Spread
    itl: Spread
    e2e: Spread
    goodput: float | None
    """Requests per second within the objective; None without one."""
    hit_share: float
    """Prompt tokens found in the prefix cache, of all."""
    time: dict[str, float]
    """Where the time of an average request went: the parts of `Served`, in seconds."""


def serving_metrics(
    found: Served, objective: Objective | None = None, percentiles: Sequence[float] = (99.0,)
) -> ServingMetrics:
    """What `vllm bench serve` would print of such a run."""
    several = found.output_tokens > 1
    tpot = (found.finished_s - found.first_token_s) / np.maximum(found.output_tokens - 1, 1)
    seconds = found.duration_s or float("inf")
    prompts, outputs = int(found.prompt_tokens.sum()), int(found.output_tokens.sum())
    return ServingMetrics(
        requests=len(found.ids),
        duration_s=found.duration_s,
        prompt_tokens=prompts,
        output_tokens=outputs,
        requests_per_s=len(found.ids) / seconds,
        output_tokens_per_s=outputs / seconds,
        tokens_per_s=(prompts + outputs) / seconds,
        ttft=spread(found.ttft_s, percentiles),
        tpot=spread(tpot[several], percentiles),
        itl=_weighted_spread(*found.gaps, percentiles),
        e2e=spread(found.e2e_s, percentiles),
        goodput=None if objective is None else float(good(found, objective).sum()) / seconds,
        hit_share=float(found.hit_tokens.sum()) / prompts if prompts else 0.0,
        time={part: float(getattr(found, f"{part}_s").mean()) if found.ids else 0.0 for part in PARTS},
    )


def good(found: Served, objective: Objective) -> Array:
    """Which requests keep every limit."""
    tpot = (found.finished_s - found.first_token_s) / np.maximum(found.output_tokens - 1, 1)
    kept = np.ones(len(found.ids), dtype=bool)
    for limit, taken in ((objective.ttft, found.ttft_s), (objective.tpot, tpot), (objective.e2e, found.e2e_s)):
        if limit is not None:
            kept &= taken <= limit
    return kept


def spread(values: Array, percentiles: Sequence[float]) -> Spread:
    """Mean, median, standard deviation and percentiles of values; nothing measured: all zero."""
    if not values.size:
        return Spread(mean=0.0, median=0.0, std=0.0, percentiles=dict.fromkeys(percentiles, 0.0))
    return Spread(
        mean=float(values.mean()),
        median=float(np.median(values)),
        std=float(values.std()),
        percentiles={one: float(np.percentile(values, one)) for one in percentiles},
    )


def _weighted_spread(values: Array, times: Array, percentiles: Sequence[float]) -> Spread:
    """The same of sorted values that each occurred so many times."""
    total = float(times.sum())
    if not total:
        return spread(values, percentiles)
    mean = float((values * times).sum() / total)
    upto = np.cumsum(times)

    def percentile(share: float) -> float:
        place = share / 100.0 * (total - 1)
        below = np.floor(place)
        low, high = (float(values[np.searchsorted(upto, one, side="right")]) for one in (below, np.ceil(place)))
        return low + (high - low) * float(place - below)

    return Spread(
        mean=mean,
        median=percentile(50.0),
        std=float(np.sqrt((times * (values - mean) ** 2).sum() / total)),
        percentiles={one: percentile(one) for one in percentiles},
    )
