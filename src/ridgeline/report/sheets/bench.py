"""What `ridgeline analyze RESULT --json` prints of a load generator's detailed result."""

from __future__ import annotations

from typing import Literal, TypedDict


class SpreadSheet(TypedDict):
    """How a metric is distributed over requests (ITL: over pauses), seconds.

    percentiles  by their number, as text
    """

    mean: float
    median: float
    std: float
    percentiles: dict[str, float]


class BenchRunSheet(TypedDict):
    """One run of a load generator.

    source              its file, and which run of it
    tool                vllm bench serve, or sglang.bench_serving
    request_rate        asked for, per second; null: all at once
    max_concurrency     the client's own limit; null: none
    failed              requests left out because they failed
    most_in_flight      requests sent and not answered, at most; null where the file does not tell when they were sent
    ttft, tpot, itl, e2e  by the definitions of `vllm bench serve`
    time                where an average request's E2E went, seconds; parts sum to it: alone and waited, or first-token
                        where too few requests were alone; pace, slower, stalled, after-last-token
    alone               requests that had no company until their first token; null where the file does not tell
    pace_s              the run's median pause, the usual decode step
    """

    source: str
    tool: str
    model: str
    request_rate: float | None
    max_concurrency: int | None
    requests: int
    failed: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    tokens_per_s: float
    most_in_flight: int | None
    ttft: SpreadSheet
    tpot: SpreadSheet
    itl: SpreadSheet
    e2e: SpreadSheet
    time: dict[str, float]
    alone: int | None
    pace_s: float


class BenchSheet(TypedDict):
    """`analyze RESULT...`: what a load generator measured of a server.

    medians  over the runs, of their median TTFT, TPOT and E2E and of their requests_per_s
    """

    kind: Literal["bench"]
    runs: list[BenchRunSheet]
    medians: dict[str, float]
