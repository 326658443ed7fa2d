"""vLLM V1's scheduler: running requests first in list order, then the waiting ones, within one token budget.

Turns a queue of requests and a pool of blocks into steps, decision for decision as `v1/core/sched/scheduler.py` makes
them. A step in which every running request decodes is one counter (`clock`) and the few requests that need a block.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from ridgeline.serving.block_pool import BlockPool
from ridgeline.serving.request import ContentIndex, Request, block_keys
from ridgeline.serving.step import Chunk, RequestState, Step
from ridgeline.serving.vllm_settings import VllmSettings


class VllmScheduler:
    """`schedule` decides a step, `update` takes its result back; preemption is by recompute."""

    def __init__(self, settings: VllmSettings) -> None:
        self.settings = settings
        self.depth = 2 if settings.async_scheduling else 1
        self.pool = BlockPool(settings.num_blocks, unhashed_first=settings.rules.unhashed_blocks_first)
        self.running: dict[int, RequestState] = {}
        self._index = ContentIndex()
        self._fcfs: deque[RequestState] = deque()
        self._heap: list[tuple[int, int, RequestState]] = []
        self._by_priority = settings.policy == "priority"
        self._arrivals = 0
        self._admissions = 0
        self._clock = 0
        self._decoding = 0
        self._kv_tokens = 0  # computed tokens of all decoding requests
        self._block = settings.block_size
        self._phases: list[list[RequestState]] = [[] for _ in range(self._block)]
        self._ends: dict[int, list[RequestState]] = {}
        self._end_times: list[int] = []
        self._prefilling: dict[int, RequestState] = {}
        self._joining: list[RequestState] = []
        self._blocked = False  # the head of the queue waits for a finish

    # ---- the queue

    def add(self, request: Request) -> RequestState:
        """A request arrives at the engine."""
        state = RequestState(request, self._arrivals)
        self._arrivals += 1
        longest = self.settings.max_model_len - state.prompt_tokens
        state.target = state.prompt_tokens + max(1, min(request.output_tokens, longest)) - 1
        if self.settings.prefix_caching:
            state.spans = self._index.spans(request.prompt)
            state.keys = block_keys(state.spans, self._block)
        if self._by_priority or not self._fcfs:
            self._blocked = False
        self._enqueue(state)
        return state

    def _enqueue(self, state: RequestState, *, front: bool = False) -> None:
        if self._by_priority:
            heapq.heappush(self._heap, (state.priority, state.arrival, state))
        elif front:
            self._fcfs.appendleft(state)
        else:
            self._fcfs.append(state)

    def waiting(self) -> Iterator[RequestState]:
        """Waiting requests, next first."""
        if self._by_priority:
            return (state for _, _, state in sorted(self._heap, key=lambda entry: entry[:2]))
        return iter(self._fcfs)

    def _head(self) -> RequestState | None:
        if self._by_priority:
            return self._heap[0][2] if self._heap else None
        return self._fcfs[0] if self._fcfs else None

    @property
    def waiting_count(self) -> int:
        return len(self._heap) if self._by_priority else len(self._fcfs)

    @property
    def unfinished(self) -> bool:
        return bool(self.running or self._fcfs or self._heap)

    def computed(self, state: RequestState) -> int:
        """Tokens of a running request that are computed or being computed."""
        return state.offset + self._clock if state.decoding else state.computed

    # ---- one step

    def schedule(self) -> Step:
        """Decide the next step and allocate for it; computed tokens advance at once."""
        step = Step()
        budget = self.settings.max_num_batched_tokens
        threshold = self._threshold()
        phase = self._phases[self._clock % self._block]
        if self._prefilling or self._decoding > budget or len(phase) > self.pool.free_blocks:
            budget = self._walk(step, budget, threshold)
        else:
            self._decode_all(step, phase)
            budget -= step.decodes
        if not step.preempted:
            self._admit(step, budget, threshold)
        for chunk in step.chunks:
            if chunk.last:
                self._start_decoding(chunk.state, step)
        if len(step.finishing) > 1:
            step.finishing.sort(key=_by_order)
        return step

    def _threshold(self) -> int:
        limit = self.settings.long_prefill_token_threshold
        alone = len(self.running) + self.waiting_count <= 1
        return 0 if alone and self.settings.rules.threshold_spares_a_lone_request else limit

    def _decode_all(self, step: Step, phase: list[RequestState]) -> None:
        if phase:
            if len(phase) > 1:
                phase.sort(key=_by_order)
            for state, block in zip(phase, self.pool.take(len(phase)), strict=True):
                state.blocks.append(block)
        self._advance(step)

    def _advance(self, step: Step) -> None:
        """Every decoding request computes one token."""
        self._clock += 1
        step.decodes = self._decoding
        self._kv_tokens += self._decoding
        step.kv_tokens = self._kv_tokens
        step.joined, self._joining = self._joining, step.joined
        ended = self._ends.pop(self._clock, None)
        if ended is not None:
            heapq.heappop(self._end_times)
            step.finishing = ended
            for state in ended:
                if self.depth == 1 or state.request.output_tokens >= state.request.max_new_tokens:
                    self._stop_decoding(state)

    def _start_decoding(self, state: RequestState, step: Step) -> None:
        """The prompt is computed and this step samples: from the next step on it decodes, unless one token was asked."""
        if state.computed >= state.target:
            step.finishing.append(state)
            if self.depth == 1 or state.request.output_tokens >= state.request.max_new_tokens:
                return
        state.decoding = True
        self._decoding += 1
        self._kv_tokens += state.computed
        self._joining.append(state)
        self._place(state, state.computed - self._clock)

    def _place(self, state: RequestState, offset: int) -> None:
        state.offset = offset
        self._phases[-offset % self._block].append(state)
        end = state.target - offset
        if end > self._clock:
            if end not in self._ends:
                self._ends[end] = []
                heapq.heappush(self._end_times, end)
            self._ends[end].append(state)

    def _displace(self, state: RequestState) -> None:
        self._phases[-state.offset % self._block].remove(state)
        end = state.target - state.offset
        if end in self._ends and state in self._ends[end]:
            self._ends[end].remove(state)
            if not self._ends[end]:
                del self._ends[end]
                self._end_times.remove(end)
                heapq.heapify(self._end_times)

    def _stop_decoding(self, state: RequestState) -> None:
        self._displace(state)
        state.computed = state.offset + self._clock
        state.decoding = False
        self._decoding -= 1
        self._kv_tokens -= state.computed
        if self._joining and state in self._joining:
            self._joining.remove(state)

    # ---- running requests one by one, where budget or blocks may not suffice

    def _walk(self, step: Step, budget: int, threshold: int) -> int:
        order = list(self.running.values())
        planned: dict[int, int] = {}
        place = 0
        while place < len(order) and budget > 0:
            state = order[place]
            computed = state.offset + self._clock if state.decoding else state.computed
            if not state.decoding and computed >= state.known:
                place += 1  # its last token is being computed
                continue
            new = 1 if state.decoding else state.known - computed
            if 0 < threshold < new:
                new = threshold
            new = min(new, budget, self.settings.max_model_len - computed - 1)
            if new <= 0:
                place += 1
                continue
            need = -(-(computed + new) // self._block) - len(state.blocks)
            while need > self.pool.free_blocks:
                victim = self._victim(order)
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
                    self._enter_hashes(state, computed + new)
                state.slots = new  # a preemption later in this step finds these allocated and hashed
                planned[state.order] = new
                budget -= new
                place += 1
                continue
            break
        self._carry_out(step, order, planned)
        return budget

    def _victim(self, order: list[RequestState]) -> RequestState:
        if self._by_priority:
            return max(order, key=lambda state: (state.priority, state.arrival))
        return order[-1]

    def _carry_out(self, step: Step, order: list[RequestState], planned: dict[int, int]) -> None:
        idle = [state for state in order if state.decoding and state.order not in planned]
        for state in idle:
            self._displace(state)
            if state in self._joining:
                self._joining.remove(state)
            self._decoding -= 1
            self._kv_tokens -= state.offset + self._clock
        self._advance(step)
        for state in idle:  # it stays where it is while the clock moves
            self._decoding += 1
            self._kv_tokens += state.offset + self._clock - 1
            self._place(state, state.offset - 1)
            self._joining.append(state)
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
            self._stop_decoding(state)
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
        self._enqueue(state, front=True)
        step.preempted.append(state)

    # ---- waiting requests

    def _admit(self, step: Step, budget: int, threshold: int) -> None:
        settings = self.settings
        while budget > 0 and (state := self._head()) is not None:
            if len(self.running) >= settings.max_num_seqs:
                self._blocked = True
                return
            hits: list[int] = []
            if settings.prefix_caching:
                self._extend_keys(state, state.known)
                hits = self.pool.lookup(state.keys, (state.known - 1) // self._block)
            cached = len(hits) * self._block
            new = state.known - cached
            if 0 < threshold < new:
                new = threshold
            if new > budget:
                if not settings.chunked_prefill:
                    return
                new = budget
            if not self._fits(state, hits, cached + new):
                self._blocked = True
                return
            self._start(step, state, hits, new)
            budget -= new

    def _fits(self, state: RequestState, hits: list[int], tokens: int) -> bool:
        settings = self.settings
        if settings.reserve_full_isl:
            tokens = max(tokens, min(state.known, settings.max_model_len))
        spare = settings.watermark_blocks if self.running else 0
        need = max(-(-tokens // self._block) - len(hits), 0) + self.pool.evictable(hits)
        return need + spare <= self.pool.free_blocks

    def _start(self, step: Step, state: RequestState, hits: list[int], new: int) -> None:
        if self._by_priority:
            heapq.heappop(self._heap)
        else:
            self._fcfs.popleft()
        cached = len(hits) * self._block
        self.pool.touch(hits)
        state.blocks = hits + self.pool.take(max(-(-(cached + new) // self._block) - len(hits), 0))
        state.slots = 0
        state.hit_tokens = cached
        state.computed = cached
        state.order = self._admissions
        self._admissions += 1
        self._enter_hashes(state, cached + new, len(hits))
        self.running[state.order] = state
        step.admitted.append(state)
        self._compute(step, state, new)

    # ---- hashes of what is computed

    def _extend_keys(self, state: RequestState, tokens: int) -> None:
        """Keys of the full blocks among the first `tokens`, answer included."""
        have, want = len(state.keys), tokens // self._block
        if want <= have:
            return
        if not state.output_chain:
            request = state.request
            state.output_chain = self._index.extended(state.spans, request.output_seed, state.prompt_tokens)
        chain, block = state.output_chain, self._block
        state.keys += range(chain + (have + 1) * block, chain + want * block + 1, block)

    def _enter_hashes(self, state: RequestState, tokens: int, hits: int = -1) -> None:
        """Enter the hashes of blocks that a prefill chunk fills, when its slots are allocated."""
        if not self.settings.prefix_caching:
            return
        first = hits if hits >= 0 else state.computed // self._block
        last = tokens // self._block
        if last > first:
            self.pool.insert(state.keys[first:last], state.blocks[first:last])

    def _release(self, state: RequestState, hashed_tokens: int) -> None:
        """Give the blocks back. Hashes of an answer's blocks are entered now: nobody could have asked for them before."""
        keys: list[int] = []
        if self.settings.prefix_caching:
            self._extend_keys(state, hashed_tokens)
            last = hashed_tokens // self._block
            keys = state.keys[:last]
            first = min(state.known // self._block, last)
            if last > first:
                self.pool.insert(keys[first:], state.blocks[first:last])
        self.pool.free(state.blocks, keys)
        state.blocks = []

    # ---- results

    def update(self, step: Step) -> list[RequestState]:
        """The result of a step is known: its finished requests leave."""
        for state in step.finishing:
            if state.decoding:
                self._stop_decoding(state)
            if state.order in self.running and self.running[state.order] is state:
                del self.running[state.order]
                self._release(state, state.target)
            else:
                self._leave_queue(state)
        if step.finishing:
            self._blocked = False
        return step.finishing

    def _leave_queue(self, state: RequestState) -> None:
        """Its last token came while it waited to be recomputed (asynchronous scheduling)."""
        if self._by_priority:
            self._heap = [entry for entry in self._heap if entry[2] is not state]
            heapq.heapify(self._heap)
        else:
            self._fcfs.remove(state)

    # ---- runs of pure decode

    def decode_room(self, limit: int) -> int:
        """Steps until a request ends, a block is missing, or somebody else could be scheduled."""
        if self._prefilling or not self._decoding or self._decoding > self.settings.max_num_batched_tokens:
            return 0
        if len(self.running) > self._decoding or (self.waiting_count and not self._blocked):
            return 0
        if self._end_times:
            limit = min(limit, self._end_times[0] - self._clock)
        free, block, phases = self.pool.free_blocks, self._block, self._phases
        if free * block > self._decoding * (limit + block):
            return limit
        for steps in range(limit):
            free -= len(phases[(self._clock + steps) % block])
            if free < 0:
                return steps
        return limit

    def decode_run(self, steps: int) -> Step:
        """That many pure decode steps at once, as the last of them."""
        block, phases, clock = self._block, self._phases, self._clock
        takers: list[RequestState] = []
        for place in range(clock, clock + steps):
            phase = phases[place % block]
            if phase:
                if len(phase) > 1:
                    phase.sort(key=_by_order)
                takers += phase
        for state, taken in zip(takers, self.pool.take(len(takers)), strict=True):
            state.blocks.append(taken)
        step = Step()
        self._clock += steps - 1
        self._kv_tokens += self._decoding * (steps - 1)
        self._advance(step)
        step.finishing.sort(key=_by_order)
        return step


def _by_order(state: RequestState) -> int:
    return state.order
