"""The sheet of `ridgeline plan --serve --json`: a deployment that keeps an objective, and why it is this one."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from ridgeline.report.sheets.serve import KeptSheet


class ReplicaSheet(TypedDict):
    """Replicas of one kind.

    role          both; or prefill and decode
    chips         of one replica
    mesh          degrees above 1: tp, pp, ep, and dp attention ranks
    rate          requests per second that one holds under the objective, on a shortened load
    breaks        the limit that it misses first when the rate rises
    cache_tokens  that fit into the cache of one scheduler
    """

    role: str
    replicas: int
    chips: int
    words: str
    mesh: dict[str, int]
    precision: str
    rate: float
    breaks: str
    cache_tokens: int


class DeploymentSheet(TypedDict):
    """A deployment simulated as a whole fleet.

    whole     under all requests; else under the busiest part of them
    rate      requests per second that were sent
    goodput   requests per second within every limit, over the time until the last answer
    cost_per_million_tokens_usd   output tokens; null without a price
    user_tokens_per_s         1 / median TPOT
    """

    words: str
    chips: int
    pools: list[ReplicaSheet]
    router: str
    met: bool
    whole: bool
    rate: float
    goodput: float
    objective: list[KeptSheet]
    output_tokens_per_s: float
    user_tokens_per_s: float
    cost_per_million_tokens_usd: float | None


class KnobSheet(TypedDict):
    """The best replica that decides one thing otherwise, on the shortened load.

    axis     tp, pp, ep, dp (attention ranks), precision, speculation, tokens, seqs, prefix
    rate     requests per second of one replica; 0: it keeps the objective at none that was tried
    change   of requests per second and chip against the chosen replica, as a share
    """

    axis: str
    choice: str
    words: str
    rate: float
    change: float
    breaks: str


class FrontierPointSheet(TypedDict):
    """A replica at a rate that no other beats in both speed of a user and cost.

    user_tokens_per_s   1 / median TPOT
    met                 whether the whole objective is kept there; TTFT is
    """

    system: str
    words: str
    rate: float
    user_tokens_per_s: float
    tokens_per_s_per_chip: float
    cost_per_million_tokens_usd: float | None
    met: bool


class DeploymentPlanSheet(TypedDict):
    """`plan --serve`.

    goal          cost, chips: the fewest that hold the load; goodput: the most on what there is
    asked_rate    requests per second of the load
    in_flight     requests that one scheduler of the replicas that decode has in flight
    step          seconds of such a decode step by part
    next_best     the best deployment of another kind
    bounded       replicas whose best case was priced; `simulated` those with a capacity, by `trials` simulations
    to            with `--to`: the target, which can be told all of the deployment
    """

    kind: Literal["deployment"]
    possible: Literal[True]
    model: str
    system: str
    engine: str
    to: NotRequired[str]
    goal: str
    requests: int
    asked_rate: float
    mean_prompt_tokens: float
    mean_output_tokens: float
    percentile: float
    deployment: DeploymentSheet
    others: list[DeploymentSheet]
    breaks: list[str]
    in_flight: float
    step_s: dict[str, float]
    knobs: list[KnobSheet]
    frontier: list[FrontierPointSheet]
    bounded: int
    simulated: int
    trials: int
    complete: bool
    seconds: float
    cpu_seconds: float
    assumptions: list[str]
