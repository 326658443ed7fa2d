"""Arguments of a vLLM engine that its scheduler reads, rules by version, and the scheduler: what runs in each step.

Turns a queue of requests and a pool of blocks into steps, decision for decision as `v1/core/sched/scheduler.py` makes
them. A step in which every running request decodes is one counter (`clock`) and the few requests that need a block.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import field

from ridgeline.core.records import dataclass
from ridgeline.plan.serving_plan import VllmKnobs
from ridgeline.serving.engine.block_pool import NO_HIT, BlockPool, ContentIndex, Hit
from ridgeline.serving.engine.step import Chunk, ClockedPolicy, RequestState, Step, by_order
from ridgeline.serving.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRules:
    """What the scheduler does differently by version.

    reserve_full_isl                  admission asks for blocks of the whole sequence (0.19), before: of its first chunk
    unhashed_blocks_first             freed blocks without a hash go to the queue's front (0.22), before: to the back
    threshold_spares_a_lone_request   the long-prefill threshold is skipped when one request exists (seen in 0.32)
    async_scheduling                  a step is decided while the one before runs (0.14), unless the engine is told
    """

    reserve_full_isl: bool = True
    unhashed_blocks_first: bool = True
    threshold_spares_a_lone_request: bool = True
    async_scheduling: bool = True


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
        async_scheduling=number >= (0, 14),
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
    def reserve_full_isl(self) -> bool:
        return self.scheduler_reserve_full_isl and self.rules.reserve_full_isl

    @property
    def step_limits(self) -> tuple[int, int]:
        """Tokens of a step, and requests that run together."""
        return self.max_num_batched_tokens, self.max_num_seqs


class VllmScheduler(ClockedPolicy):
    """`schedule` decides a step, `update` takes its result back; preemption is by recompute."""

    def __init__(self, settings: VllmSettings) -> None:
        super().__init__(settings.block_size, results_late=settings.async_scheduling)
        self.settings = settings
        self.depth = 2 if settings.async_scheduling else 1
        self.pool = BlockPool(settings.num_blocks, unhashed_first=settings.rules.unhashed_blocks_first)
        self.running: dict[int, RequestState] = {}
        self._index = ContentIndex(settings.block_size)
        self._queue: list[tuple[int, int, RequestState]] = []  # a heap of who waits, by `_rank`
        self._by_priority = settings.scheduling_policy == "priority"
        self._admissions = 0
        self._block = settings.block_size
        self._prefilling: dict[int, RequestState] = {}
        self._blocked = False  # the head of the queue waits for a finish

    # ---- the queue

    def add(self, request: Request) -> RequestState:
        state = self._arrive(request, self.settings.max_model_len - request.prompt_tokens)
        state.remote = request.remote_tokens
        if self.settings.enable_prefix_caching:
            state.spans = self._index.spans(request.prompt)
        if self._by_priority or not self._queue:
            self._blocked = False
        heapq.heappush(self._queue, (*self._rank(state), state))
        return state

    def _rank(self, state: RequestState) -> tuple[int, int]:
        """Small priorities are served first; of equal ones who came first. Who runs came before all that wait, so that
        a preempted request is next again."""
        return state.priority if self._by_priority else 0, state.arrival

    def waiting(self) -> Iterator[RequestState]:
        """Waiting requests, next first."""
        return (state for *_, state in sorted(self._queue))

    @property
    def has_unfinished(self) -> bool:
        return bool(self.running or self._queue)

    def close(self) -> None:
        self.pool.close()

    def load(self) -> tuple[int, int]:
        return len(self._queue), len(self.running)

    def occupancy(self) -> float:
        return 1 - self.pool.free_blocks / max(self.pool.num_blocks - 1, 1)

    # ---- one step

    def schedule(self) -> Step:
        """Decide the next step and allocate for it; computed tokens advance at once."""
        step = Step()
        budget = self.settings.max_num_batched_tokens
        threshold = self.settings.long_prefill_token_threshold
        if self.settings.rules.threshold_spares_a_lone_request and len(self.running) + len(self._queue) <= 1:
            threshold = 0
        needing = self._clock.needing()
        if self._prefilling or self._clock.count > budget or len(needing) > self.pool.free_blocks:
            budget = self._walk(step, budget, threshold)
        else:
            self._give_blocks(needing)
            self._clock.tick(step)
            budget -= step.decodes
        if not step.preempted:
            self._admit(step, budget, threshold)
        for chunk in step.chunks:
            if chunk.last:
                self._clock.start(chunk.state, step)
        if len(step.finishing) > 1:
            step.finishing.sort(key=by_order)
        return step

    def _give_blocks(self, states: list[RequestState]) -> None:
        """One block to each of these, in this order."""
        if states:
            for state, block in zip(states, self.pool.take(len(states)), strict=True):
                state.blocks.append(block)

    # ---- running requests one by one, where budget or blocks may not suffice

    def _walk(self, step: Step, budget: int, threshold: int) -> int:
        order = list(self.running.values())
        planned: dict[int, int] = {}
        place = 0
        while place < len(order) and budget > 0:
            state = order[place]
            computed = self._clock.computed_tokens(state)
            if not state.decoding and computed >= state.known:
                place += 1  # its last token is being computed
                continue
            new = 1 if state.decoding else state.known - computed
            if 0 < threshold < new:
                new = threshold
            new = min(
                new, budget if new <= budget else self._chunk_of(budget), self.settings.max_model_len - computed - 1
            )
            if new <= 0:
                place += 1
                continue
            need = -(-(computed + new) // self._block) - len(state.blocks)
            while need > self.pool.free_blocks:
                victim = max(order, key=self._rank)
                at = order.index(victim)
                del order[at]
                if at < place:
                    place -= 1
                budget += planned.pop(victim.order, 0)
                self._preempt(victim, step)
                if victim is state:
                    break
            else:
                state.blocks += self.pool.take(max(need, 0))
                if not state.decoding:
                    self._enter_hashes(state, state.computed // self._block, computed + new)
                state.slots = new  # a preemption later in this step finds these allocated and hashed
                planned[state.order] = new
                budget -= new
                place += 1
                continue
            break
        self._carry_out(step, order, planned)
        return budget

    def _carry_out(self, step: Step, order: list[RequestState], planned: dict[int, int]) -> None:
        self._clock.tick(step, [state for state in order if state.decoding and state.order not in planned])
        step.decoded = []
        for state in order:
            new = planned.get(state.order, 0)
            if not new:
                step.idle.append(state)
                continue
            state.slots = 0
            if state.order in self._prefilling:
                self._compute(step, state, new)
            else:
                step.decoded.append(state)

    def _compute(self, step: Step, state: RequestState, new: int) -> None:
        step.chunks.append(Chunk(state, new, state.computed, state.computed + new >= state.known))
        state.computed += new
        if state.computed >= state.known:
            self._prefilling.pop(state.order, None)
        else:
            self._prefilling[state.order] = state

    def _preempt(self, state: RequestState, step: Step) -> None:
        """Free everything, forget what was computed, wait at the front; what was hashed can be hit again."""
        if state.decoding:
            self._clock.stop(state)
        hashed = state.computed + state.slots
        if hashed > state.known and self.depth > 1:
            hashed -= 1  # the token in flight is not known yet
        self._prefilling.pop(state.order, None)
        del self.running[state.order]
        self._release(state, hashed)
        if state.computed >= state.known:
            state.known = state.computed + 1
        state.slots = state.computed = 0
        state.preemptions += 1
        self._blocked = False
        heapq.heappush(self._queue, (*self._rank(state), state))
        step.preempted.append(state)

    # ---- waiting requests

    def _admit(self, step: Step, budget: int, threshold: int) -> None:
        settings = self.settings
        while budget > 0 and self._queue:
            state = self._queue[0][2]
            if len(self.running) >= settings.max_num_seqs:
                self._blocked = True
                return
            hit = NO_HIT
            if settings.enable_prefix_caching:
                if state.known > state.prompt_tokens:
                    self._quote_answer(state)
                hit = self.pool.lookup(state.spans, (state.known - 1) // self._block)
            cached = max(len(hit.blocks) * self._block, state.remote)
            new = state.known - cached
            if 0 < threshold < new:
                new = threshold
            if new > budget:
                if not settings.enable_chunked_prefill:
                    return
                new = self._chunk_of(budget)
                if not new:
                    return
            if not self._fits(state, hit, cached + new):
                self._blocked = True
                return
            self._start(step, state, hit, cached, new)
            budget -= new

    def _chunk_of(self, budget: int) -> int:
        """Tokens of a prompt that is cut where a step's budget ends."""
        return budget

    def _fits(self, state: RequestState, hit: Hit, tokens: int) -> bool:
        settings = self.settings
        if settings.reserve_full_isl:
            tokens = max(tokens, min(state.known, settings.max_model_len))
        spare = int(settings.watermark * settings.num_blocks) if self.running else 0
        need = max(-(-tokens // self._block) - len(hit.blocks), 0) + self.pool.evictable(hit)
        return need + spare <= self.pool.free_blocks

    def _start(self, step: Step, state: RequestState, hit: Hit, cached: int, new: int) -> None:
        heapq.heappop(self._queue)
        held = len(hit.blocks)
        self.pool.touch(hit)
        state.blocks = hit.blocks + self.pool.take(max(-(-(cached + new) // self._block) - held, 0))
        state.slots = 0
        state.remote = 0
        state.hit_tokens = held * self._block
        state.computed = cached
        state.order = self._admissions
        self._admissions += 1
        self._enter_hashes(state, held, cached + new)
        self.running[state.order] = state
        step.admitted.append(state)
        self._compute(step, state, new)

    # ---- hashes of what is computed

    def _quote_answer(self, state: RequestState) -> None:
        """Let the chains of a request reach into its answer."""
        if not state.quotes_answer:
            state.quotes_answer = True
            state.spans.append(self._index.answer(state.spans, state.prompt_tokens, state.request.output_seed))

    def _enter_hashes(self, state: RequestState, first: int, tokens: int) -> None:
        """Enter the hashes of blocks from `first` on that a prefill chunk fills, when its slots are allocated."""
        last = tokens // self._block
        if last > first and self.settings.enable_prefix_caching:
            self.pool.insert(state.spans, state.blocks, first, last)

    def _release(self, state: RequestState, hashed_tokens: int) -> None:
        """Give the blocks back. An answer's blocks get their hashes now: nobody could have asked for them before."""
        hashed = 0
        if self.settings.enable_prefix_caching:
            hashed = hashed_tokens // self._block
            first = state.known // self._block
            if hashed > first:
                self._quote_answer(state)
                self.pool.insert(state.spans, state.blocks, first, hashed)
        self.pool.free(state.blocks, state.spans, hashed)
        state.blocks = []

    # ---- results

    def update(self, step: Step) -> list[RequestState]:
        """The result of a step is known: its finished requests leave."""
        for state in step.finishing:
            if state.decoding:
                self._clock.stop(state)
            if state.order in self.running and self.running[state.order] is state:
                del self.running[state.order]
                self._release(state, state.target)
            else:
                # its last token came while it waited to be recomputed (asynchronous scheduling)
                self._queue = [entry for entry in self._queue if entry[2] is not state]
                heapq.heapify(self._queue)
        if step.finishing:
            self._blocked = False
        return step.finishing

    # ---- runs of pure decode

    def decode_room(self, limit: int) -> int:
        """Steps until a request ends, a block is missing, or somebody else could be scheduled."""
        clock = self._clock
        if self._prefilling or not clock.count or clock.count > self.settings.max_num_batched_tokens:
            return 0
        if len(self.running) > clock.count or (self._queue and not self._blocked):
            return 0
        return clock.steps_within(self.pool.free_blocks, clock.steps_to_end(limit))

    def decode_run(self, steps: int) -> Step:
        self._give_blocks(self._clock.needing_within(steps))
        step = super().decode_run(steps)
        step.finishing.sort(key=by_order)
        return step
