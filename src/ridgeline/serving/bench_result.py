"""Results of `vllm bench serve` and `sglang.bench_serving`, and what they say beside each other.

    vllm bench serve --save-result --save-detailed    one JSON object: input_lens, output_lens, ttfts, itls, start_times
    sglang.bench_serving --output-details             JSON lines, one object for each run, without start_times

Input is hostile: lists of unequal length, negative or endless times and absurd lengths are refused with the request
they belong to. A request that failed (an error, or no token) is counted and left out.

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

import math
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import median

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.documents import JsonMapping, JsonValue
from ridgeline.core.errors import InputError
from ridgeline.core.records import dataclass
from ridgeline.core.units import BINARY
from ridgeline.serving.request_files import json_documents, refuse_file
from ridgeline.serving.served import RunMetrics, spread_of
from ridgeline.trace import TraceSource

RESULT = "a detailed result of `vllm bench serve` or `sglang.bench_serving`"
MOST_REQUESTS = 1_000_000
MOST_TOKENS = int(16 * BINARY["Mi"])  # of one prompt or answer
MOST_RUNS = 64  # in one file
LONGEST_S = 1e7
KEYS = ("ttfts", "itls", "output_lens")
HEAD = 4 * int(BINARY["Ki"])


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """One run of a load generator, by request in the order sent; seconds.

    sent_s        since the first request was sent; None where the file does not tell
    pauses        between the chunks of an answer, by request
    request_rate  asked for, per second; infinite: all at once
    max_concurrency  the client's own limit; None: none
    """

    source: str
    tool: str
    model: str
    request_rate: float
    max_concurrency: int | None
    failed: int
    duration_s: float
    sent_s: Array | None
    ttft_s: Array
    e2e_s: Array
    prompt_tokens: Array
    output_tokens: Array
    pauses: tuple[Array, ...]

    @property
    def finite_rate(self) -> float | None:
        """Requests a second that were asked for; None where all were sent at once."""
        return self.request_rate if isfinite(self.request_rate) else None

    @property
    def requests(self) -> int:
        """Requests that were answered."""
        return len(self.ttft_s)

    @property
    def most_in_flight(self) -> int | None:
        """Requests that were under way at once; None where the file does not tell."""
        if self.sent_s is None:
            return None
        times = np.concatenate([self.sent_s, self.sent_s + self.e2e_s])
        change = np.concatenate([np.ones(self.requests), -np.ones(self.requests)])
        return int(np.cumsum(change[np.lexsort((change, times))]).max())

    @property
    def tpot_s(self) -> Array:
        """(E2E - TTFT) / (output tokens - 1) of each request with more than one token."""
        several = self.output_tokens > 1
        return (self.e2e_s - self.ttft_s)[several] / (self.output_tokens[several] - 1)


def is_bench_result(path: Path) -> bool:
    """Whether a file looks like a load generator's detailed result: an object that names its metrics early on."""
    if not path.is_file():
        return False
    head = TraceSource(path).head(HEAD).lstrip()
    known = (b'"request_throughput"', b'"input_lens"', b'"total_input_tokens"', b'"request_rate"')
    return head.startswith(b"{") and any(key in head for key in known)


def read_bench_runs(path: Path) -> tuple[BenchRun, ...]:
    """Every run that a file holds."""
    documents = json_documents(path, RESULT)
    if not 1 <= len(documents) <= MOST_RUNS:
        raise _refuse(path, f"{len(documents)} runs", f"1 to {MOST_RUNS} runs")
    several = len(documents) > 1
    return tuple(
        _run(path, document, f"{path.name}:{number}" if several else path.name)
        for number, document in enumerate(documents, start=1)
    )


def _run(path: Path, document: object, source: str) -> BenchRun:
    if not isinstance(document, Mapping) or not all(isinstance(document.get(key), list) for key in KEYS):
        todo = "measure with --save-result --save-detailed (vLLM) or --output-details (SGLang)"
        raise _refuse(path, "a result without the times of its requests", todo=todo)
    columns = {key: document[key] for key in (*KEYS, "input_lens") if isinstance(document.get(key), list)}
    count = len(columns["ttfts"])
    if count > MOST_REQUESTS or any(len(column) != count for column in columns.values()):
        raise _refuse(path, "lists of different lengths", f"the same number of requests in {', '.join(columns)}")
    errors = _optional(path, document, "errors", count)
    starts = _optional(path, document, "start_times", count)
    kept = [at for at in range(count) if not (errors and errors[at]) and _positive(columns["output_lens"][at])]
    if not kept:
        raise _refuse(path, "a run in which no request was answered")
    if starts is not None:
        starts = [_seconds(path, at, "start_times", value) for at, value in enumerate(starts)]
        kept.sort(key=lambda at: starts[at])
    return _columns(path, document, columns, kept, starts, source)


def _columns(
    path: Path, document: JsonMapping, columns: Mapping[str, list[JsonValue]], kept: Sequence[int],
    starts: list[float] | None, source: str,
) -> BenchRun:  # fmt: skip
    pauses = tuple(_pauses(path, at, columns["itls"][at]) for at in kept)
    ttft = np.array([_seconds(path, at, "ttfts", columns["ttfts"][at]) for at in kept])
    latencies = _optional(path, document, "latencies", len(columns["ttfts"]))
    if latencies is None:
        e2e = ttft + np.array([float(part.sum()) for part in pauses])
    else:
        e2e = np.array([_seconds(path, at, "latencies", latencies[at]) for at in kept])
    sent = None if starts is None else np.array([starts[at] - starts[kept[0]] for at in kept])
    server = document.get("server_info")
    model = document.get("model_id") or (server.get("model_path") if isinstance(server, Mapping) else "")
    rate = document.get("request_rate")
    prompts = columns.get("input_lens") or [1] * len(columns["ttfts"])
    return BenchRun(
        source=source,
        tool="vllm bench serve" if "endpoint_type" in document else "sglang.bench_serving",
        model=str(model or "")[:200],
        request_rate=float(rate) if isinstance(rate, int | float) and rate > 0 and rate is not True else math.inf,
        max_concurrency=limit if _positive(limit := document.get("max_concurrency")) else None,
        failed=len(columns["ttfts"]) - len(kept),
        duration_s=_seconds(path, -1, "duration", document.get("duration", 0.0)),
        sent_s=sent,
        ttft_s=ttft,
        e2e_s=np.maximum(e2e, ttft),
        prompt_tokens=np.array([_tokens(path, at, "input_lens", prompts[at]) for at in kept]),
        output_tokens=np.array([_tokens(path, at, "output_lens", columns["output_lens"][at]) for at in kept]),
        pauses=pauses,
    )


def _optional(path: Path, document: JsonMapping, key: str, count: int) -> list[JsonValue] | None:
    found = document.get(key)
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != count:
        raise _refuse(path, f"{key} of another length", f"{count} requests in {key}")
    return found


def _positive(value: object) -> bool:
    return type(value) is int and value > 0


def _tokens(path: Path, at: int, key: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= MOST_TOKENS:
        raise _refuse(path, f"{key}[{at}] {str(value)[:40]!r}", f"a whole number from 1 to {MOST_TOKENS:,}")
    return value


def _seconds(path: Path, at: int, key: str, value: object) -> float:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not 0 <= number < LONGEST_S:
        raise _refuse(path, f"{key}[{at}] {str(value)[:40]!r}" if at >= 0 else f"{key} {str(value)[:40]!r}", "seconds")
    return number


def _pauses(path: Path, at: int, values: object) -> Array:
    if not isinstance(values, list) or len(values) > MOST_TOKENS:
        raise _refuse(path, f"itls[{at}] {str(values)[:40]!r}", "a list of seconds")
    try:
        found = np.array(values, dtype=float).reshape(-1)
    except (TypeError, ValueError):
        found = np.array([math.nan])
    if not (np.isfinite(found).all() and (found >= 0).all()):
        raise _refuse(path, f"itls[{at}] with something else than seconds", "a list of seconds")
    return found


def _refuse(path: Path, given: str, expected: str = "", todo: str = "") -> InputError:
    return refuse_file(path, given, expected or RESULT, todo)


STALL = 3.0  # pauses of so many usual ones are stalls
FEWEST_ALONE = 8  # requests without company from which TTFT is split


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchAnalysis:
    """One run: metrics, and the parts of an average request's E2E.

    time    alone and waited (or first-token, where too few requests were alone), pace, slower, stalled; seconds
    alone   requests that had no company until their first token
    pace_s  the run's median pause
    """

    run: BenchRun
    metrics: RunMetrics
    time: dict[str, float]
    alone: int | None
    pace_s: float

    JSON = """
        source=run.source tool=run.tool model=run.model request_rate=run.finite_rate
        max_concurrency=run.max_concurrency requests=run.requests failed=run.failed
        duration_s=run.duration_s requests_per_s=metrics.requests_per_s
        output_tokens_per_s=metrics.output_tokens_per_s tokens_per_s=metrics.tokens_per_s
        most_in_flight=run.most_in_flight ttft=metrics.ttft tpot=metrics.tpot itl=metrics.itl e2e=metrics.e2e
        time alone pace_s
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """Runs of a load generator, and medians over them: of the median TTFT, TPOT and E2E, and requests a second."""

    runs: tuple[BenchAnalysis, ...]

    JSON = "kind='bench' runs medians"

    @classmethod
    def read(cls, paths: Sequence[Path]) -> BenchReport:
        """Every run of some results of a load generator, analysed."""
        return cls(runs=tuple(analyze_bench(run) for path in paths for run in read_bench_runs(path)))

    @property
    def medians(self) -> dict[str, float]:
        spreads = {name: [getattr(run.metrics, name) for run in self.runs] for name in ("ttft", "tpot", "e2e")}
        medians = {f"{name}_s": median(one.median for one in spread) for name, spread in spreads.items()}
        return medians | {"requests_per_s": median(run.metrics.requests_per_s for run in self.runs)}


def analyze_bench(run: BenchRun, percentiles: Sequence[float] = (90.0, 99.0)) -> BenchAnalysis:
    """The figures of `vllm bench serve` by its definitions, computed again, and the parts of time."""
    pauses = np.concatenate(run.pauses) if run.pauses else np.zeros(0)
    pace = float(np.median(pauses)) if pauses.size else 0.0
    time, alone = _first_token(run)
    time |= _later_tokens(run, pauses, pace)
    seconds = run.duration_s or float(run.e2e_s.max()) or float("inf")
    prompts, outputs = int(run.prompt_tokens.sum()), int(run.output_tokens.sum())
    metrics = RunMetrics(
        requests_per_s=run.requests / seconds,
        output_tokens_per_s=outputs / seconds,
        tokens_per_s=(prompts + outputs) / seconds,
        ttft=spread_of(run.ttft_s, percentiles),
        tpot=spread_of(run.tpot_s, percentiles),
        itl=spread_of(pauses, percentiles),
        e2e=spread_of(run.e2e_s, percentiles),
    )
    return BenchAnalysis(run=run, metrics=metrics, time=time, alone=alone, pace_s=pace)


def _first_token(run: BenchRun) -> tuple[dict[str, float], int | None]:
    """TTFT as what a lone prompt takes and the rest, where enough requests were alone."""
    whole = {"first-token": float(run.ttft_s.mean())}
    if run.sent_s is None:
        return whole, None
    alone = _single_requests(run.sent_s, run.sent_s + run.e2e_s, run.ttft_s)
    if int(alone.sum()) < FEWEST_ALONE:
        return whole, int(alone.sum())
    terms = np.stack([np.ones(run.requests), run.prompt_tokens.astype(float)], axis=1)
    found, *_ = np.linalg.lstsq(terms[alone], run.ttft_s[alone], rcond=None)
    lone = np.clip(terms @ found, 0.0, run.ttft_s)
    return {"alone": float(lone.mean()), "waited": float((run.ttft_s - lone).mean())}, int(alone.sum())


def _single_requests(sent: Array, done: Array, ttft: Array) -> Mask:
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
