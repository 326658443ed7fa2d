"""How a serving instance is run: speculation, which a plan decides, and the limits that its engine sets by habit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, Doc

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
