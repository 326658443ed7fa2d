"""The knobs of a TensorRT-LLM engine that its scheduler reads, by the names of its LLM API."""

from __future__ import annotations

from ridgeline.core.records import dataclass
from ridgeline.plan.serving_plan import TensorrtLlmKnobs
from ridgeline.serving.vllm_settings import VllmRules, VllmSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorrtLlmSettings(TensorrtLlmKnobs):
    """Arguments of an engine with nothing left open.

    blocks                      of the paged KV cache, `tokens_per_block` tokens each
    capacity_scheduler_policy   GUARANTEED_NO_EVICT: a request starts when the cache holds it and all that run to their
                                last possible token; MAX_UTILIZATION: when its next step fits, and the last to start is
                                paused where a step does not
    enable_chunked_prefill      a prompt may be cut where the tokens of a step end, to whole blocks; else it waits for a
                                step that holds it
    disable_overlap_scheduler   else the PyTorch backend decides a step while the one before runs
    """

    blocks: int
    max_batch_size: int = 2048
    max_num_tokens: int = 8192
    max_seq_len: int = 1 << 20

    @property
    def step_limits(self) -> tuple[int, int]:
        """Tokens of a step, and requests that run together."""
        return self.max_num_tokens, self.max_batch_size

    @property
    def in_flight(self) -> VllmSettings:
        """The same by the names of the in-flight batcher of both engines, whose pool has a null block."""
        return VllmSettings(
            num_blocks=self.blocks + 1,
            block_size=self.tokens_per_block,
            max_num_seqs=self.max_batch_size,
            max_num_batched_tokens=self.max_num_tokens,
            max_model_len=self.max_seq_len,
            enable_prefix_caching=self.enable_block_reuse,
            enable_chunked_prefill=self.enable_chunked_prefill,
            async_scheduling=not self.disable_overlap_scheduler,
            scheduler_reserve_full_isl=False,
            rules=VllmRules(reserve_full_isl=False, unhashed_blocks_first=False),
        )
