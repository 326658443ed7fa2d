"""How a deployment serves: the scheduler's knobs by their engine's own names, the fleet of replicas around it,
speculation, and the limits that an engine sets by habit.

[plan.serving]
replicas = 4                                  # absent: as many as the chips make
router = "least-loaded"
vllm = { version = "0.19.0", max_num_batched_tokens = 2048, max_num_seqs = 128 }

[[plan.serving.pools]]                        # prefill/decode disaggregation, or replicas that differ
role = "prefill"
replicas = 2
tp = 2
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, Doc, Keyed, QuantityUnit, Size

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding: tokens are drafted, and all of them verified in one step.

    draft        who drafts: the model's own prediction block (mtp), one layer of its kind (eagle), or the prompt
                 itself (ngram), which costs the chip nothing
    acceptance   probability that a drafted token is right, given that all before it were

    A step yields 1 + a + a^2 + ... + a^k tokens of every request, a = acceptance, k = draft_tokens.
    """

    draft_tokens: Count = 3
    acceptance: Annotated[float, AtLeast(0), Doc("probability that a drafted token is accepted")] = 0.7
    draft: Literal["mtp", "eagle", "ngram"] = "mtp"

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a request gains in one step, on average.

        >>> round(Speculation(draft_tokens=3, acceptance=0.7).tokens_per_step, 3)
        2.533
        """
        return sum(self.acceptance**place for place in range(self.draft_tokens + 1))

    def problems(self) -> Iterable[Problem]:
        if self.acceptance > 1:
            yield Problem(path="acceptance", given=f"{self.acceptance:g}", expected="a probability between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Defaults of an engine on chips of at least so much memory."""

    memory_gib: Annotated[float, AtLeast(0)] = 0.0
    max_num_batched_tokens: Count
    max_num_seqs: Count
    unless: Annotated[tuple[str, ...], Doc("chip ids, or how they begin, that it is not for")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Serves:
    """How an engine serves by default.

    budgets                  tokens and requests of a step by a chip's memory, the last that applies
    memory_of                what `gpu_memory_utilization` is a share of: all memory of the chip (vLLM, SGLang), or what
                             is free once the model is loaded (TensorRT-LLM)
    graph_batch              largest number of decode tokens that a captured graph holds; beyond it kernels are launched
    windowed_cache           the cache drops tokens that no window of its layer sees any more (hybrid KV cache)
    shared_groups            query heads of a cached head (grouped-query attention) whose decode kernel multiplies on
                             matrix units (XQA, flash decoding); others run a query head at a time on vector units
                             (masked multi-head attention, MMHA). Absent: any
    rank_cores               cores of a chip that are tensor ranks of their own (NeuronCores): query heads are padded to
                             a multiple of all of them, and each holds a cached head at least
    static_shapes            programs are compiled for contexts of a power of two tokens (buckets), so that a decode
                             reads its bucket whole
    """

    budgets: tuple[Budget, ...]
    gpu_memory_utilization: float = 0.9
    memory_of: Literal["all", "free"] = "all"
    block_size: Count = 16
    graph_batch: Annotated[int, AtLeast(0)] = 512
    windowed_cache: bool = True
    shared_groups: tuple[Annotated[int, AtLeast(0)], ...] | None = None
    rank_cores: Count = 1
    static_shapes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLimits:
    """The settings of an instance with nothing left open."""

    gpu_memory_utilization: float
    memory_of: Literal["all", "free"]
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    graph_batch: int


BARE = Serves(budgets=(Budget(max_num_batched_tokens=8192, max_num_seqs=256),))
"""An engine that says nothing of serving: a program of one's own."""


def serving_limits(serves: Serves | None, chip_id: str, memory_bytes: float) -> ServingLimits:
    """What an engine does on such a chip.

    >>> from ridgeline.plan.engine import ENGINES
    >>> vllm = ENGINES["vllm"].serves
    >>> [serving_limits(vllm, chip, gib * GIB).max_num_batched_tokens
    ...     for chip, gib in (("a100-80-sxm", 80), ("h100-sxm", 80), ("b200-sxm", 180))]
    [2048, 8192, 16384]
    """
    habit = serves or BARE
    own_limits = [
        budget
        for budget in habit.budgets
        if memory_bytes >= budget.memory_gib * GIB * 0.93  # data sheets count in powers of ten, and round up
        and not any(chip_id.startswith(name) for name in budget.unless)
    ]
    budget = (own_limits or list(habit.budgets))[-1]
    return ServingLimits(
        gpu_memory_utilization=habit.gpu_memory_utilization,
        memory_of=habit.memory_of,
        max_num_batched_tokens=budget.max_num_batched_tokens,
        max_num_seqs=budget.max_num_seqs,
        block_size=habit.block_size,
        graph_batch=habit.graph_batch,
    )


Share = Annotated[float, AtLeast(0)]
Seconds = Annotated[float, QuantityUnit("s"), AtLeast(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmKnobs:
    """Arguments of `vllm serve` that its scheduler and cache read; absent: vLLM's default for the chip and version."""

    version: Annotated[str, Doc("whose rules; absent: the newest known")] = ""
    max_num_batched_tokens: Count | None = None
    max_num_seqs: Count | None = None
    max_model_len: Count | None = None
    block_size: Count = 16
    gpu_memory_utilization: Share | None = None
    num_gpu_blocks_override: Count | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: Size = 0
    scheduler_reserve_full_isl: Annotated[bool | None, Doc("admission asks for the whole prompt's blocks")] = None
    watermark: Annotated[float | None, AtLeast(0), Doc("share of blocks that admission leaves free")] = None
    async_scheduling: bool | None = None

    def problems(self) -> Iterable[Problem]:
        yield from _share("gpu_memory_utilization", self.gpu_memory_utilization)
        if self.watermark is not None and self.watermark >= 1:
            yield Problem(path="watermark", given=f"{self.watermark:g}", expected="a share from 0 up to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangKnobs:
    """Arguments of `sglang.launch_server` that its scheduler and cache read; absent: SGLang's default."""

    chunked_prefill_size: Annotated[int | None, AtLeast(-1), Doc("-1 turns chunking off")] = None
    max_prefill_tokens: Count = 16384
    max_running_requests: Count | None = None
    max_total_tokens: Count | None = None
    mem_fraction_static: Share | None = None
    page_size: Count = 1
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    schedule_policy: Literal["fcfs", "lpm", "lof"] = "fcfs"
    schedule_conservativeness: Annotated[float, AtLeast(0)] = 1.0
    enable_priority_scheduling: Annotated[bool | None, Doc("larger priorities first")] = None
    disable_priority_preemption: Annotated[bool | None, Doc("running requests keep their seats")] = None
    priority_scheduling_preemption_threshold: Annotated[Size | None, Doc("by how much larger; absent: 10")] = None

    def problems(self) -> Iterable[Problem]:
        yield from _share("mem_fraction_static", self.mem_fraction_static)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorrtLlmKnobs:
    """Fields of TensorRT-LLM's LLM API that its scheduler and cache read; absent: its default."""

    max_batch_size: Count | None = None
    max_num_tokens: Count | None = None
    max_seq_len: Count | None = None
    capacity_scheduler_policy: Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"] = "GUARANTEED_NO_EVICT"
    enable_chunked_prefill: bool = False
    enable_block_reuse: bool = True
    free_gpu_memory_fraction: Share | None = None
    tokens_per_block: Count = 32
    disable_overlap_scheduler: bool = False

    def problems(self) -> Iterable[Problem]:
        yield from _share("free_gpu_memory_fraction", self.free_gpu_memory_fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticKnobs:
    """A static batcher: nobody joins a batch before all its answers have ended."""

    batch_size: Count = 8


EngineKnobs = VllmKnobs | SglangKnobs | TensorrtLlmKnobs
Knobs = EngineKnobs | StaticKnobs
KNOBS = Keyed({"vllm": VllmKnobs, "sglang": SglangKnobs, "tensorrt_llm": TensorrtLlmKnobs, "static": StaticKnobs})
"""Arguments of each engine by the key under plan.serving."""
SEARCHED_KNOBS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "vllm": {"tokens": "max_num_batched_tokens", "seqs": "max_num_seqs", "prefix": "enable_prefix_caching"},
        "sglang": {"tokens": "chunked_prefill_size", "seqs": "max_running_requests", "prefix": "disable_radix_cache"},
        "tensorrt_llm": {"tokens": "max_num_tokens", "seqs": "max_batch_size", "prefix": "enable_block_reuse"},
    }
)
"""The engines' own names of what a search chooses: token budget, batch limit, prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas of one kind.

    role       both; or prefill and decode, with the cache moved between them over the system's links
    system     chips of its own, where they differ from the scenario's
    tp ... dp  of one replica; dp ranks step together
    """

    role: Literal["both", "prefill", "decode"] = "both"
    replicas: Count = 1
    tp: Count | None = None
    pp: Count | None = None
    ep: Count | None = None
    dp: Count = 1
    system: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscale:
    """Replicas by load, with the words of Ray Serve's autoscaling: ongoing requests over the target, rounded up."""

    min_replicas: Count = 1
    max_replicas: Count
    target_ongoing_requests: Annotated[float, AtLeast(0)]
    upscale_delay: Seconds = 30.0
    downscale_delay: Seconds = 600.0
    startup: Annotated[
        float, QuantityUnit("s"), AtLeast(0), Doc("from the decision until a replica takes requests")
    ] = 60.0

    def problems(self) -> Iterable[Problem]:
        if self.max_replicas < self.min_replicas:
            given_text = str(self.max_replicas)
            yield Problem(path="max_replicas", given=given_text, expected=f"min_replicas ({self.min_replicas}) or more")
        if self.target_ongoing_requests <= 0:
            yield Problem(path="target_ongoing_requests", given="0", expected="requests a replica, above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A replica stops: what it held is sent again elsewhere, and it is back after `down`."""

    at: Seconds
    replica: Size = 0
    down: Seconds = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """Decisions of a deployment.

    knobs                 the engine's own arguments, in a table of its name; absent: its defaults
    replicas              engines with a scheduler of their own; absent: as many as the chips make
    data_parallel_size    ranks of one replica that step together (DP attention, expert parallelism)
    router                round-robin; least-loaded: 4 x waiting + running; prefix-aware: where most of the prompt is
                          cached unless that replica is overloaded
    mtbf, restart         random failures of a replica, and how long it is away
    """

    knobs: Annotated[Knobs | None, KNOBS] = None
    replicas: Count | None = None
    data_parallel_size: Count = 1
    router: Literal["round-robin", "least-loaded", "prefix-aware"] = "round-robin"
    pools: tuple[Pool, ...] = ()
    autoscale: Autoscale | None = None
    failures: tuple[Failure, ...] = ()
    mtbf: Annotated[float | None, QuantityUnit("s"), AtLeast(0)] = None
    restart: Seconds = 120.0

    def problems(self) -> Iterable[Problem]:
        roles = {pool.role for pool in self.pools}
        if roles and roles not in ({"both"}, {"prefill", "decode"}):
            given_text, expected_text = ", ".join(sorted(roles)), "both alone, or prefill and decode"
            yield Problem(path="pools", given=given_text, expected=expected_text)
        if self.autoscale is not None and roles == {"prefill", "decode"}:
            yield Problem(path="autoscale", given="pools of prefill and decode", expected="replicas of one role")


def default_knobs(engine: str) -> EngineKnobs:
    """What an engine serves with where no argument is given; one that is not known serves as vLLM does."""
    defaults: dict[str, EngineKnobs] = {"sglang": SglangKnobs(), "tensorrt-llm": TensorrtLlmKnobs()}
    return defaults.get(engine, VllmKnobs())


def _share(name: str, value: float | None) -> Iterable[Problem]:
    if value is not None and not 0 < value <= 1:
        yield Problem(path=name, given=f"{value:g}", expected="a share of memory above 0, at most 1")
