"""What became of requests, and the metrics of `vllm bench serve` over them.

    TTFT        sent until the first token
    TPOT        (E2E - TTFT) / (output tokens - 1) of a request; one-token answers have none (0 in goodput)
    ITL         pauses between tokens, those of all requests in one pool
    E2E         sent until the last token
    goodput     requests per second that keep every limit of the objective

Percentiles interpolate linearly; throughput is over the time from the start to the last completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.records import dataclass
from ridgeline.plan.workload import Objective
from ridgeline.serving.engine.step import RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Requests in the order they finished, one column per fact; times in seconds since the start.

    The parts of a request's time sum to its E2E:

        queue       sent until its first step begins
        prefill     first step until the first token
        decode      first token until the last, less the two below
        stalled     what prefill chunks of others added to the steps it decoded in
        preempted   dropped for lack of blocks, until its tokens are computed again
        transfer    its cache on the way from the engine that prefilled to the one that decodes

    `replica` is the place of the engine that answered. `gaps` holds every pause between two tokens of one request with
    how often it occurred.
    """

    ids: tuple[str, ...]
    sent_s: Array
    first_token_s: Array
    finished_s: Array
    queue_s: Array
    prefill_s: Array
    decode_s: Array
    stalled_s: Array
    preempted_s: Array
    transfer_s: Array
    prompt_tokens: Array
    output_tokens: Array
    hit_tokens: Array
    preemptions: Array
    replica: Array
    gaps: tuple[Array, Array]
    steps: int
    events: int

    @property
    def ttft_s(self) -> Array:
        return self.first_token_s - self.sent_s

    @property
    def e2e_s(self) -> Array:
        return self.finished_s - self.sent_s

    @property
    def tpot_s(self) -> Array:
        return (self.finished_s - self.first_token_s) / np.maximum(self.output_tokens - 1, 1)

    @property
    def duration_s(self) -> float:
        """Start to the last completion."""
        return float(self.finished_s.max()) if len(self.ids) else 0.0


class TokenGaps:
    """Pauses between tokens, gathered as single ones and as runs that grow by the same amount each step."""

    __slots__ = ("_runs", "_single")

    def __init__(self) -> None:
        self._single: list[tuple[float, int]] = []
        self._runs: list[tuple[float, float, int, int]] = []

    def add(self, seconds: float, times: int) -> None:
        self._single.append((seconds, times))

    def add_run(self, first_s: float, growth_s: float, steps: int, times: int) -> None:
        """`steps` pauses, the first of `first_s`, each `growth_s` longer than the one before."""
        self._runs.append((first_s, growth_s, steps, times))

    @staticmethod
    def join(several: Iterable[TokenGaps]) -> TokenGaps:
        """The pauses of all of them."""
        made = TokenGaps()
        for one in several:
            made._single += one._single
            made._runs += one._runs
        return made

    def columns(self) -> tuple[Array, Array]:
        """(seconds, how often), shortest first."""
        single = np.array(self._single, dtype=float).reshape(-1, 2)
        runs = np.array(self._runs, dtype=float).reshape(-1, 4)
        lengths = runs[:, 2].astype(int)
        place = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        seconds = np.concatenate(
            [single[:, 0], np.repeat(runs[:, 0], lengths) + place * np.repeat(runs[:, 1], lengths)]
        )
        times = np.concatenate([single[:, 1], np.repeat(runs[:, 3], lengths)])
        order = np.argsort(seconds, kind="stable")
        return seconds[order], times[order]


PARTS = ("queue", "prefill", "decode", "stalled", "preempted", "transfer")
"""Where the time of a request goes: columns of `Served` without their unit."""


def served_columns(
    finishes: Sequence[tuple[RequestState, float, int]], gaps: TokenGaps, *, steps: int, events: int
) -> Served:
    """The columns of requests that are answered: each with the time of its last token, and the place of its engine."""
    states, finished_s, replica = zip(*finishes, strict=True) if finishes else ((), (), ())

    def column(name: str, kind: type = float) -> Array:
        return np.array([getattr(state, name) for state in states], dtype=kind)

    sent, first, started = column("sent_s"), column("first_token_s"), column("first_scheduled_s")
    stalled, preempted = column("stalled_s"), column("preempted_s")
    prefilled, transfer = column("prefilled_s"), column("transfer_s")
    finished = np.array(finished_s, dtype=float)
    prompt = column("prompt_tokens", int)
    return Served(
        ids=tuple(state.request.id for state in states),
        sent_s=sent,
        first_token_s=first,
        finished_s=finished,
        queue_s=started - sent - prefilled - transfer,
        prefill_s=first - started + prefilled,
        decode_s=finished - first - stalled - preempted,
        stalled_s=stalled,
        preempted_s=preempted,
        transfer_s=transfer,
        prompt_tokens=prompt,
        output_tokens=column("target", int) + 1 - prompt,
        hit_tokens=column("first_hit_tokens", int),
        preemptions=column("preemptions", int),
        replica=np.array(replica, dtype=int),
        gaps=gaps.columns(),
        steps=steps,
        events=events,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpread:
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
class RunMetrics:
    """What a load generator prints of a run; seconds and per second."""

    requests_per_s: float
    output_tokens_per_s: float
    tokens_per_s: float
    ttft: MetricSpread
    tpot: MetricSpread
    itl: MetricSpread
    e2e: MetricSpread


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMetrics(RunMetrics):
    """The figures of a simulated run."""

    requests: int
    duration_s: float
    prompt_tokens: int
    output_tokens: int
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
        ttft=spread_of(found.ttft_s, percentiles),
        tpot=spread_of(found.tpot_s[found.output_tokens > 1], percentiles),
        itl=_weighted_spread(*found.gaps, percentiles),
        e2e=spread_of(found.e2e_s, percentiles),
        goodput=None if objective is None else float(good(found, objective).sum()) / seconds,
        hit_share=float(found.hit_tokens.sum()) / prompts if prompts else 0.0,
        time={part: float(getattr(found, f"{part}_s").mean()) if found.ids else 0.0 for part in PARTS},
    )


def good(found: Served, objective: Objective) -> Array:
    """Which requests keep every limit."""
    within = np.ones(len(found.ids), dtype=bool)
    for name in ("ttft", "tpot", "e2e"):
        if (limit := getattr(objective, name)) is not None:
            within &= getattr(found, f"{name}_s") <= limit
    return within


def spread_of(values: Array, percentiles: Sequence[float]) -> MetricSpread:
    """Mean, median, standard deviation and percentiles of values; nothing measured: all zero."""
    if not values.size:
        return MetricSpread(mean=0.0, median=0.0, std=0.0, percentiles=dict.fromkeys(percentiles, 0.0))
    return MetricSpread(
        mean=float(values.mean()),
        median=float(np.median(values)),
        std=float(values.std()),
        percentiles={one: float(np.percentile(values, one)) for one in percentiles},
    )


def _weighted_spread(values: Array, times: Array, percentiles: Sequence[float]) -> MetricSpread:
    """The same of sorted values that each occurred so many times."""
    total = float(times.sum())
    if not total:
        return spread_of(values, percentiles)
    mean = float((values * times).sum() / total)
    upto = np.cumsum(times)

    def percentile(share: float) -> float:
        place = share / 100.0 * (total - 1)
        below = np.floor(place)
        low, high = (float(values[np.searchsorted(upto, one, side="right")]) for one in (below, np.ceil(place)))
        return low + (high - low) * float(place - below)

    return MetricSpread(
        mean=mean,
        median=percentile(50.0),
        std=float(np.sqrt((times * (values - mean) ** 2).sum() / total)),
        percentiles={one: percentile(one) for one in percentiles},
    )
