"""The sheets of serve scenarios: `ridgeline predict --json`, `ridgeline explain --json`, and fits of request logs."""

from __future__ import annotations

from typing import Literal, TypedDict


class ServedScenarioSheet(TypedDict):
    """What serves.

    mesh        degrees of one replica above 1, by axis
    replicas    by role: both, or prefill and decode
    """

    name: str
    model: str
    system: str
    chips: int
    engine: str
    precision: str
    mesh: dict[str, int]
    replicas: dict[str, int]
    router: str


class KeptSheet(TypedDict):
    """A limit of the objective, and what the run took at its percentile.

    metric   ttft, tpot, itl or e2e
    """

    metric: str
    percentile: float
    limit_s: float
    found_s: float
    met: bool


class CacheSheet(TypedDict):
    """The KV cache of one replica's scheduler.

    tokens        that fit
    weights, kv   bytes of a chip
    """

    role: str
    tokens: int
    blocks: int
    block_size: int
    weights_bytes: float
    kv_bytes: float
    kv_bytes_per_token: float


class ServingSheet(TypedDict):
    """Requests under load on a deployment.

    ttft, tpot, itl, e2e   seconds: mean, p50, p90, p99 and the objective's percentile
    time                   where the time of an average request went, in seconds; the parts sum to the mean E2E
    goodput                requests per second within every limit; null without an objective
    goodput_share          the same of all requests
    hit_share              prompt tokens found in the prefix cache, of all
    tokens_per_s           prompts and answers together
    tokens_per_s_per_chip  of answers
    chip_seconds           chips times the time they were there
    transfer_bytes         cache moved from prefill to decode
    retried                requests sent again after a replica failed
    replica_changes        seconds and replicas that take requests, whenever that changed
    cost_per_million_tokens_usd   of answers; null where the chip has no price
    """

    kind: Literal["serving"]
    possible: Literal[True]
    scenario: ServedScenarioSheet
    requests: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    tokens_per_s: float
    tokens_per_s_per_chip: float
    ttft_s: dict[str, float]
    tpot_s: dict[str, float]
    itl_s: dict[str, float]
    e2e_s: dict[str, float]
    goodput: float | None
    goodput_share: float | None
    objective: list[KeptSheet]
    met: bool
    time_s: dict[str, float]
    hit_share: float
    preemptions: int
    steps: int
    cache: list[CacheSheet]
    chip_seconds: float
    transfer_bytes: float
    retried: int
    replica_changes: list[list[float]]
    cost_per_million_tokens_usd: float | None
    assumptions: list[str]


class SlowRequestSheet(TypedDict):
    """One of the slowest requests; parts in seconds (of one token where the metric is TPOT)."""

    id: str
    sent_s: float
    seconds: float
    prompt_tokens: int
    output_tokens: int
    replica: int
    parts: dict[str, float]


class QueueSheet(TypedDict):
    """When the longest queue grew, and what was exhausted meanwhile.

    limit   max_num_seqs, cache, or tokens: neither, prompts wait for their turn in the token budget
    """

    replica: int
    began_s: float
    peak_s: float
    peak: int
    limit: str


class RemedySheet(TypedDict):
    """A change that was simulated under the same requests.

    change    as `--set` takes it
    found     the percentile with it, in seconds
    """

    change: str
    found_s: float
    goodput: float | None
    chips: int


class WhySlowSheet(TypedDict):
    """Why the slow requests of a serve scenario are slow.

    found         the percentile of the metric, in seconds
    slow, usual   mean seconds by part: of requests beyond the percentile, of the half in the middle
    cause         the part that differs most between them
    remedies      changes that help, the best first
    least         what requests take that never meet others, by metric, in seconds: no objective below can be met
    kept_rate     requests per second at which every limit is kept on this deployment; null where none does
    """

    kind: Literal["why slow"]
    scenario: ServedScenarioSheet
    metric: str
    percentile: float
    found_s: float
    met: bool
    objective: list[KeptSheet]
    cause: str
    slow_s: dict[str, float]
    usual_s: dict[str, float]
    slowest: list[SlowRequestSheet]
    queue: QueueSheet | None
    remedies: list[RemedySheet]
    least_s: dict[str, float]
    kept_rate: float | None


class LogErrorsSheet(TypedDict):
    """How far simulated requests are off measured ones.

    e2e_mape   mean |residual| of E2E over requests
    e2e_mean   residual of the mean E2E
    ttft       residuals of mean, p50, p90, p99
    """

    requests: int
    e2e_mape: float
    e2e_mean: float
    ttft: dict[str, float]


class RequestLogSheet(TypedDict):
    """`validate LOG.jsonl`: measured requests under five numbers of a step.

    numbers    seconds of a step, a decode, a cached token, a prompt token and an attention pair
    own        whether the numbers come from this log, or from the one that --anchor names
    errors     of all requests
    held_out   of the half that ended last, with numbers from the half that ended first; null where none was fitted
    """

    kind: Literal["request log"]
    log: str
    version: str
    ranks: int
    own: bool
    numbers: dict[str, float]
    errors: LogErrorsSheet
    held_out: LogErrorsSheet | None
