"""Arguments of a TensorRT-LLM engine that its scheduler reads, by the names of its LLM API, and the scheduler.

Each step, within `max_batch_size` requests and `max_num_tokens` tokens: every generation request one token, then
prompts in order of arrival. Who may start is the capacity scheduler's policy:

    GUARANTEED_NO_EVICT   blocks(prompt + max_new_tokens) <= free - sum over running (blocks to its last token - held);
                          whoever has started is never paused, so `max_new_tokens` decides how many run at once
    MAX_UTILIZATION       blocks of the next step are free; where a running request finds none, who started last is
                          paused: its blocks are freed and its tokens computed again, from the front of the queue

A prompt is not cut unless chunked prefill is on; then FIRST_COME_FIRST_SERVED, a cut chunk rounded down to whole blocks
(the chunk unit). Sources: `batch_manager/capacityScheduler.cpp` and `microBatchScheduler.cpp`, and the pages
"Paged Attention, IFB, and Request Scheduling" and "Useful Runtime Options" of its documentation. Not checked against
the engine, which needs a GPU. Left out: a request whose first new block another one computes in the same step waits a
step there and shares it here at once; beams; LoRA pages.
"""

from __future__ import annotations

from ridgeline.core.records import dataclass
from ridgeline.plan.serving_plan import TensorrtLlmKnobs
from ridgeline.serving.engine.block_pool import Hit
from ridgeline.serving.engine.step import RequestState, Step
from ridgeline.serving.engine.vllm import VllmRules, VllmScheduler, VllmSettings


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


class TensorrtLlmScheduler(VllmScheduler):
    """The in-flight batcher of `VllmScheduler` with TensorRT-LLM's capacity policies and chunk unit.

    `promised` = blocks that running requests may still take up to their last possible token. Taking one of them lowers
    it with the free blocks, so `free - promised` changes where a request starts or ends, and nowhere else.
    """

    def __init__(self, settings: TensorrtLlmSettings) -> None:
        super().__init__(settings.in_flight)
        self.engine_settings = settings
        self._no_evict = settings.capacity_scheduler_policy == "GUARANTEED_NO_EVICT"
        self._spare = self.pool.free_blocks  # free - promised

    @property
    def promised(self) -> int:
        """Blocks kept back for requests that run."""
        return self.pool.free_blocks - self._spare if self._no_evict else 0

    def _to_completion(self, state: RequestState) -> int:
        """Blocks of a request at its last possible token."""
        longest = state.prompt_tokens + max(state.request.max_new_tokens, state.request.output_tokens)
        return -(-min(longest, self.engine_settings.max_seq_len) // self._block)

    def _fits(self, state: RequestState, hit: Hit, tokens: int) -> bool:
        if not self._no_evict:
            return super()._fits(state, hit, tokens)
        need = max(self._to_completion(state) - len(hit.blocks), 0) + self.pool.evictable(hit)
        return need <= self._spare

    def _chunk_of(self, budget: int) -> int:
        return budget // self._block * self._block

    def _start(self, step: Step, state: RequestState, hit: Hit, cached: int, new: int) -> None:
        self._spare -= max(self._to_completion(state) - len(hit.blocks), 0) + self.pool.evictable(hit)
        super()._start(step, state, hit, cached, new)

    def _release(self, state: RequestState, hashed_tokens: int) -> None:
        held, free = len(state.blocks), self.pool.free_blocks
        super()._release(state, hashed_tokens)
        self._spare += max(self._to_completion(state) - held, 0) + self.pool.free_blocks - free
