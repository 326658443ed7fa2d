"""The knobs of a vLLM engine that its scheduler reads, and the rules that changed between versions."""

from __future__ import annotations

from dataclasses import field

from ridgeline.core.records import dataclass
from ridgeline.plan.serving_plan import VllmKnobs


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRules:
    """What the scheduler does differently by version.

    reserve_full_isl                  admission asks for blocks of the whole sequence (0.19), before: of its first chunk
    unhashed_blocks_first             freed blocks without a hash go to the queue's front (0.22), before: to the back
    threshold_spares_a_lone_request   the long-prefill threshold is skipped when one request exists (seen in 0.32)
    """

    reserve_full_isl: bool = True
    unhashed_blocks_first: bool = True
    threshold_spares_a_lone_request: bool = True


def vllm_rules(version: str) -> VllmRules:
    """The rules of a version such as `0.19.0`; an unreadable one counts as the newest.

    >>> vllm_rules("0.15.1").reserve_full_isl, vllm_rules("0.19.0").reserve_full_isl
    (False, True)
    """
    parts = version.split("+")[0].split(".")
    try:
        number = (int(parts[0]), int(parts[1]))
    except (ValueError, IndexError):
        return VllmRules()
    return VllmRules(
        reserve_full_isl=number >= (0, 19),
        unhashed_blocks_first=number >= (0, 22),
        threshold_spares_a_lone_request=number >= (0, 28),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings(VllmKnobs):
    """Arguments of an engine with nothing left open; `num_blocks` of the cache count the null block."""

    num_blocks: int
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    max_model_len: int = 1 << 20
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    async_scheduling: bool = False
    rules: VllmRules = field(default_factory=VllmRules)

    @property
    def watermark_blocks(self) -> int:
        return int(self.watermark * self.num_blocks)

    @property
    def reserve_full_isl(self) -> bool:
        return self.scheduler_reserve_full_isl and self.rules.reserve_full_isl

    @property
    def step_limits(self) -> tuple[int, int]:
        """Tokens of a step, and requests that run together."""
        return self.max_num_batched_tokens, self.max_num_seqs
