"""Turn what a load generator measured into the metrics it prints and, as far as its file tells, where the time went.

A detailed result holds when each request was sent, its first token and every later chunk. So

    TTFT   = alone + waited     alone: what prompts of this length took while no other request was in flight,
                                a + b * prompt tokens, fitted to such requests; told only where there are enough
    E2E - TTFT = pace + slower + stalled
             pace      what pauses take up to the run's median pause, each: the usual decode step
             slower    what they take beyond it, up to three times: larger batches, longer caches, short prefills
             stalled   what they take beyond three times: long prefills of others, preemption, the host

The parts sum to E2E. A client that reads two chunks at once sees one long pause and one of nothing. Which of the
causes a long pause has, the file cannot tell; a prediction of the same run can.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.records import dataclass
from ridgeline.plan.serve import Objective
from ridgeline.serving.bench_result import BenchRun
from ridgeline.serving.metrics import Spread, spread

STALL = 3.0  # pauses of so many usual ones are stalls
FEWEST_ALONE = 8  # requests without company from which TTFT is split


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchMetrics:
    """What the load generator prints, computed again from the requests; seconds and per second."""

    requests: int
    failed: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    tokens_per_s: float
    ttft: Spread
    tpot: Spread
    itl: Spread
    e2e: Spread
    goodput: float | None
    most_in_flight: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchAnalysis:
    """One run: metrics, and the parts of an average request's E2E.

    time    alone and waited (or first-token, where too few requests were alone), pace, slower, stalled; seconds
    alone   requests that had no company until their first token
    pace_s  the run's median pause
    """

    run: BenchRun
    metrics: BenchMetrics
    time: dict[str, float]
    alone: int | None
    pace_s: float

    JSON = """
        source=run.source tool=run.tool model=run.model request_rate=run.finite_rate
        max_concurrency=run.max_concurrency requests=metrics.requests failed=metrics.failed
        duration_s=metrics.duration_s requests_per_s=metrics.requests_per_s
        output_tokens_per_s=metrics.output_tokens_per_s tokens_per_s=metrics.tokens_per_s
        most_in_flight=metrics.most_in_flight ttft=metrics.ttft tpot=metrics.tpot itl=metrics.itl e2e=metrics.e2e
        time alone pace_s
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """Runs of a load generator, and medians over them: of the median TTFT, TPOT and E2E, and requests a second."""

    runs: tuple[BenchAnalysis, ...]

    JSON = "kind='bench' runs medians"

    @property
    def medians(self) -> dict[str, float]:
        spreads = {name: [getattr(run.metrics, name) for run in self.runs] for name in ("ttft", "tpot", "e2e")}
        medians = {f"{name}_s": median(one.median for one in spread) for name, spread in spreads.items()}
        return medians | {"requests_per_s": median(run.metrics.requests_per_s for run in self.runs)}


def analyze_bench(run: BenchRun, objective: Objective | None = None) -> BenchAnalysis:
    """Metrics and the parts of time."""
    pauses = np.concatenate(run.pauses) if run.pauses else np.zeros(0)
    pace = float(np.median(pauses)) if pauses.size else 0.0
    time, alone = _first_token(run)
    time |= _later_tokens(run, pauses, pace)
    return BenchAnalysis(run=run, metrics=bench_metrics(run, pauses, objective), time=time, alone=alone, pace_s=pace)


def bench_metrics(
    run: BenchRun, pauses: Array, objective: Objective | None = None, percentiles: Sequence[float] = (90.0, 99.0)
) -> BenchMetrics:
    """The figures of `vllm bench serve`, by its definitions."""
    seconds = run.duration_s or float(run.e2e_s.max()) or float("inf")
    prompts, outputs = int(run.prompt_tokens.sum()), int(run.output_tokens.sum())
    return BenchMetrics(
        requests=run.requests,
        failed=run.failed,
        duration_s=run.duration_s,
        requests_per_s=run.requests / seconds,
        output_tokens_per_s=outputs / seconds,
        tokens_per_s=(prompts + outputs) / seconds,
        ttft=spread(run.ttft_s, percentiles),
        tpot=spread(run.tpot_s, percentiles),
        itl=spread(pauses, percentiles),
        e2e=spread(run.e2e_s, percentiles),
        goodput=None if objective is None else float(_kept(run, objective).sum()) / seconds,
        most_in_flight=_most_in_flight(run),
    )


def _kept(run: BenchRun, objective: Objective) -> Mask:
    """Requests that keep every limit but that of single pauses."""
    tpot = (run.e2e_s - run.ttft_s) / np.maximum(run.output_tokens - 1, 1)
    taken = {"ttft": run.ttft_s, "tpot": tpot, "e2e": run.e2e_s}
    kept = np.ones(run.requests, dtype=bool)
    for name, limit in objective.limits.items():
        if name in taken:
            kept &= taken[name] <= limit
    return kept


def _first_token(run: BenchRun) -> tuple[dict[str, float], int | None]:
    """TTFT as what a lone prompt takes and the rest, where enough requests were alone."""
    whole = {"first-token": float(run.ttft_s.mean())}
    if run.sent_s is None:
        return whole, None
    alone = _alone(run.sent_s, run.sent_s + run.e2e_s, run.ttft_s)
    if int(alone.sum()) < FEWEST_ALONE:
        return whole, int(alone.sum())
    terms = np.stack([np.ones(run.requests), run.prompt_tokens.astype(float)], axis=1)
    found, *_ = np.linalg.lstsq(terms[alone], run.ttft_s[alone], rcond=None)
    lone = np.clip(terms @ found, 0.0, run.ttft_s)
    return {"alone": float(lone.mean()), "waited": float((run.ttft_s - lone).mean())}, int(alone.sum())


def _alone(sent: Array, done: Array, ttft: Array) -> Mask:
    """Requests that overlap no other between being sent and their first token."""
    ends = np.maximum.accumulate(done)
    before = np.concatenate([[-np.inf], ends[:-1]])
    after = np.concatenate([sent[1:], [np.inf]])
    return (before <= sent) & (after >= sent + ttft)


def _later_tokens(run: BenchRun, pauses: Array, pace: float) -> dict[str, float]:
    limit = STALL * pace
    calm = np.minimum(pauses, limit) if pace else pauses
    parts = {
        "pace": float(np.minimum(pauses, pace).sum()),
        "slower": float((calm - np.minimum(pauses, pace)).sum()),
        "stalled": float((pauses - calm).sum()),
    }
    rest = float((run.e2e_s - run.ttft_s).sum()) - float(pauses.sum())  # to the usage chunk behind the last token
    return {name: seconds / run.requests for name, seconds in {**parts, "after-last-token": rest}.items()}


def _most_in_flight(run: BenchRun) -> int | None:
    if run.sent_s is None:
        return None
    times = np.concatenate([run.sent_s, run.sent_s + run.e2e_s])
    change = np.concatenate([np.ones(run.requests), -np.ones(run.requests)])
    return int(np.cumsum(change[np.lexsort((change, times))]).max())
