"""SGLang's scheduler: the order of its queue, its radix cache, admission, retraction, and overlap with the last step.

Turns a queue of requests, a pool of tokens and a radix tree into steps, as `srt/managers/scheduler.py` decides them:
merge the last prefill batch, try a new one, else decode; retract when a decode does not fit. What overlap scheduling
changes is in `OverlapScheduler`.

Answers count one token less. One whose last token is under way by its `max_new_tokens` keeps its seat for as long as
that takes, but is left out of the next decode; one that stops by itself computes a token that nobody gets. Where a
decode does not fit while answers end, nothing runs until they have. A retracted answer loses its token under way.
"""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.serving.engine.sglang_prefill import (
    MOST_NEW_TOKENS,
    RETRACT_STEPS,
    NewTokenRatio,
    PrefillAdder,
    RadixCache,
    RadixNode,
    Runs,
    SglangSettings,
    Verdict,
    cut,
)
from ridgeline.serving.engine.step import Chunk, ClockedPolicy, RequestState, Step
from ridgeline.serving.request import Request

MOST_MATCHED = 128  # waiting requests beyond which lpm acts as fcfs
FEW_CACHED = 32  # cached tokens up to which a request may wait for another that shares more
MANY_SHARED = 32

Text = Callable[[RequestState, int], Runs]
"""The first tokens of a request's prompt and answer."""


def order_queue(waiting: list[RequestState], settings: SglangSettings, tree: RadixCache, text: Text) -> None:
    """Sort the waiting requests in place; equal ones keep the order they entered the queue in."""
    if goes_by_cache(waiting, settings):
        _longest_prefix(waiting, settings, tree, text)
    elif settings.schedule_policy == "lof":
        sign = -1 if settings.enable_priority_scheduling else 0
        waiting.sort(key=lambda state: (sign * state.priority, -state.request.max_new_tokens))
    elif settings.schedule_policy == "fcfs" and settings.enable_priority_scheduling:
        waiting.sort(key=lambda state: -state.priority)


def goes_by_cache(waiting: list[RequestState], settings: SglangSettings) -> bool:
    """Whether the order looks at the tree now."""
    return settings.schedule_policy == "lpm" and not settings.disable_radix_cache and len(waiting) <= MOST_MATCHED


def _longest_prefix(waiting: list[RequestState], settings: SglangSettings, tree: RadixCache, text: Text) -> None:
    """Longest cached prefix first; who shares a prefix with an earlier waiting request lets that one fill the cache."""
    queue = RadixCache(settings.page_size)
    place: dict[int, float] = {}
    for state in waiting:
        key = text(state, state.known)
        cached = tree.match(key)[0]
        place[id(state)] = -cached
        if cached <= FEW_CACHED:
            if queue.match(key)[0] >= MANY_SHARED:
                place[id(state)] = float("inf")
            else:
                queue.insert(key)
    waiting.sort(key=lambda state: place[id(state)])


class SglangCache(ClockedPolicy):
    """A pool of tokens in pages. What requests hold is in the tree and locked, or their own."""

    def __init__(self, settings: SglangSettings) -> None:
        super().__init__(settings.page_size, results_late=self.depth > 1)
        self.settings = settings
        self.tree = RadixCache(settings.page_size)
        self.free_tokens = settings.max_total_tokens // settings.page_size * settings.page_size

    def occupancy(self) -> float:
        """Share of the cache that requests hold."""
        return 1 - (self.free_tokens + self.tree.evictable) / self.settings.max_total_tokens

    def close(self) -> None:
        self.tree.close()

    def text(self, state: RequestState, tokens: int) -> Runs:
        """The first tokens of prompt and answer."""
        request = state.request
        runs = tuple((piece.seed, piece.start, piece.tokens) for piece in request.prompt if piece.tokens)
        if tokens <= state.prompt_tokens:
            return cut(runs, tokens)[0]
        return (*runs, (request.output_seed, state.prompt_tokens, tokens - state.prompt_tokens))

    def _pages(self, tokens: int) -> int:
        page = self.settings.page_size
        return -(-tokens // page) * page

    def _make_room(self, tokens: int) -> None:
        if tokens > self.free_tokens:
            self.free_tokens += self.tree.evict(tokens - self.free_tokens)

    def _keep(self, state: RequestState, tokens: int) -> None:
        """Enter what a request has computed into the tree and hold it there; what was there twice is freed."""
        if self.settings.disable_radix_cache:
            return
        key = self.text(state, tokens)
        present, _ = self.tree.insert(key)
        if tokens > state.prompt_tokens:  # a leaf of its own for the answer, which is then dropped before the prompt
            self.tree.insert(self.text(state, state.prompt_tokens))
        self.free_tokens += max(present - state.held, 0)
        held, node = self.tree.match(key)
        assert isinstance(state.node, RadixNode)
        self.tree.unlock(state.node)
        self.tree.lock(node)
        state.held, state.node = held, node

    def _give_back(self, state: RequestState) -> None:
        self.free_tokens += self._pages(state.computed) - state.held
        assert isinstance(state.node, RadixNode)
        self.tree.unlock(state.node)
        state.held, state.node = 0, self.tree.root


REFRESH_CALLS = 32  # prefill attempts between two refreshes of what the waiting requests would hit


class SglangScheduler(SglangCache):
    """`schedule` decides a step, `update` takes its result back; preemption is retraction."""

    sampled = 1
    """Tokens of a decoding answer that are known beyond those in the cache: the one sampled last."""

    def __init__(self, settings: SglangSettings) -> None:
        super().__init__(settings)
        self.ratio = NewTokenRatio(settings.schedule_conservativeness)
        self.waiting: list[RequestState] = []
        self.running: list[RequestState] = []
        self.chunked: RequestState | None = None
        self._last_prefill: list[Chunk] = []
        self._full = False
        self._admissions = self._attempts = self._entries = 0
        self._entered: dict[int, int] = {}  # when a request last entered the queue
        self._tried: dict[int, int] = {}  # tokens to compute of one that was looked at and not admitted
        self._unseated: list[RequestState] = []  # by requests of higher priority in this step

    # ---- the queue

    def add(self, request: Request) -> RequestState:
        state = self._arrive(request, request.output_tokens)
        state.node = self.tree.root
        state.remote = request.remote_tokens
        self._enter(state)
        return state

    def _enter(self, state: RequestState) -> None:
        """To the tail of the queue."""
        self.waiting.append(state)
        if self.settings.priority_preemption:
            self._entries += 1
            self._entered[id(state)] = self._entries

    @property
    def has_unfinished(self) -> bool:
        if self.waiting or self.running:
            return True
        return any(not chunk.last or chunk.state.computed < chunk.state.target for chunk in self._last_prefill)

    def load(self) -> tuple[int, int]:
        return len(self.waiting), len(self.running) + len(self._last_prefill)

    def produced_tokens(self, state: RequestState) -> int:
        """Tokens of its answer that are known."""
        return (self._clock.computed_tokens(state) + 1 if state.decoding else state.known) - state.prompt_tokens

    # ---- one step

    def schedule(self) -> Step:
        """Decide the next step and allocate for it."""
        if self.chunked is not None:
            self._keep(self.chunked, self.chunked.computed)
        self._merge()
        step = Step()
        chunks = self._prefill()
        step.preempted += self._unseated
        if chunks:
            step.chunks = self._last_prefill = chunks
            step.admitted = [chunk.state for chunk in chunks if chunk.state.slots]
            for chunk in chunks:
                chunk.state.slots = 0
                if chunk.last and chunk.state.computed >= chunk.state.target:
                    step.finishing.append(chunk.state)
        elif self.running:
            self._decode(step)
        return step

    def _merge(self) -> None:
        """The last prefill batch joins the running ones, without what is finished or goes on in chunks."""
        joining = self._joining()
        if len(joining) < len(self._last_prefill) or (joining and not self.running):
            self._full = False  # the mark belongs to a batch, and an empty one is replaced by the one that joins
        begin = Step()
        for state in joining:
            self._clock.start(state, begin)
        self.running += joining
        self._last_prefill = []

    def _joining(self) -> list[RequestState]:
        """Who of the last prefill batch decodes from now on."""
        whole = [chunk.state for chunk in self._last_prefill if chunk.last]
        return [state for state in whole if state.computed < state.target]

    def _prefill(self) -> list[Chunk]:
        settings = self.settings
        self._unseated = []
        if not self.running or settings.priority_preemption:
            self._full = False
        if (self._full or not self.waiting) and self.chunked is None:
            return []
        room = settings.max_running_requests - len(self.running)
        if room <= 0 and self.chunked is None and not settings.priority_preemption:
            self._full = True
            return []
        self._order_queue()
        adder = PrefillAdder(settings, self.tree, self.free_tokens, self._expected_growth())
        adder.answers = self._answers
        if self.chunked is not None and adder.continue_chunked(self.chunked):
            self.chunked = None
        for state in self.waiting:
            if adder.verdict() is Verdict.OTHER:
                break
            if len(adder.chunks) >= settings.max_running_requests - len(self.running):
                self._full = True
            if self._full and not (settings.priority_preemption and self._unseat(state, adder)):
                break
            state.computed, state.node = self.tree.match(self.text(state, state.known - 1))  # one is left to compute
            if settings.priority_preemption:
                self._tried[id(state)] = state.known - state.computed
            verdict = adder.add(state)
            if verdict is not Verdict.CONTINUE:
                if verdict is Verdict.NO_TOKEN:
                    self._full = bool(adder.chunks or self.running)
                break
        started = self._start(adder)
        for state in self._unseated:
            self._enter(state)
        return started

    def _unseat(self, state: RequestState, adder: PrefillAdder) -> bool:
        """Free the seats of running requests of lower priority for a waiting one, if that makes room enough.

        Lowest priority first, of equal ones who entered the queue last. Counted is what they are expected to grow by,
        not what they hold; what the waiting one computes counts once it has been looked at.
        """
        allowed = min(state.request.max_new_tokens, MOST_NEW_TOKENS)
        missing = self._tried.get(id(state), 0) + allowed + self.settings.page_size - adder.remaining
        chosen: list[RequestState] = []
        for one in sorted(self.running, key=lambda one: (one.priority, -self._entered[id(one)])):
            if state.priority - one.priority <= self.settings.priority_scheduling_preemption_threshold:
                break
            chosen.append(one)
            missing -= self._growth(one)
            if missing <= 0:
                break
        if not chosen or missing > 0:
            return False
        gone = {id(one) for one in chosen}
        left = len(self.running)
        for one in [one for one in self.running if id(one) in gone]:
            growth = self._growth(one)
            left -= 1
            self._release(one, left)
            adder.release(growth, self.free_tokens)
            self._unseated.append(one)
        self.running = [one for one in self.running if id(one) not in gone]
        return True

    def _start(self, adder: PrefillAdder) -> list[Chunk]:
        """Allocate for the prefill batch."""
        if not adder.chunks:
            return []
        taken = {id(chunk.state) for chunk in adder.chunks}
        self.waiting = [state for state in self.waiting if id(state) not in taken]
        if adder.chunked is not None:
            self.chunked = adder.chunked
        need = sum(self._pages(chunk.context + chunk.tokens) - self._pages(chunk.context) for chunk in adder.chunks)
        page = self.settings.page_size
        spare = 0 if page == 1 else sum(chunk.tokens + page for chunk in adder.chunks)
        self._make_room(max(need, spare))
        self.free_tokens -= need
        for chunk in adder.chunks:
            state = chunk.state
            if state is not adder.continued:
                state.slots = 1  # admitted in this step
                state.order = self._admissions
                self._admissions += 1
                state.hit_tokens = chunk.context
                self._tried.pop(id(state), None)
            state.computed = chunk.context + chunk.tokens
        return adder.chunks

    def _order_queue(self) -> None:
        settings, waiting = self.settings, self.waiting
        order_queue(waiting, settings, self.tree, self.text)
        if not settings.disable_radix_cache and waiting and not goes_by_cache(waiting, settings):
            if self._attempts % REFRESH_CALLS == 0:
                for state in reversed(waiting[:MOST_MATCHED]):
                    self.tree.match(self.text(state, state.known))
            self._attempts += 1

    def _expected_growth(self) -> float:
        """Tokens that running answers are expected to need yet."""
        ratio = 1.0 if self.settings.ignore_eos else self.ratio.current
        have = self._clock.now + self.sampled
        return sum(
            [
                min(state.request.max_new_tokens - (state.offset + have - state.prompt_tokens), MOST_NEW_TOKENS) * ratio
                if state.decoding
                else self._growth(state)
                for state in self.running
            ]
        )

    def _growth(self, state: RequestState) -> float:
        ratio = 1.0 if self.settings.ignore_eos else self.ratio.current
        return min(state.request.max_new_tokens - self.produced_tokens(state), MOST_NEW_TOKENS) * ratio

    def _answers(self) -> list[tuple[int, int]]:
        """(tokens left, tokens held) of the running requests."""
        produced = [(state, self.produced_tokens(state)) for state in self.running]
        return [(state.request.max_new_tokens - many, state.prompt_tokens + many) for state, many in produced]

    # ---- decode and retraction

    def _decode(self, step: Step) -> None:
        ending = self._leave_out_ending()
        if not self.running:
            return
        need = len(self._clock.needing()) * self.settings.page_size
        self._make_room(need)
        if self.free_tokens < need:
            if ending:
                return  # what they hold is free when their result is known
            self._retract(step)
            need = len(self._clock.needing()) * self.settings.page_size
        else:
            self.ratio.decay()
        if self.running:
            self._make_room(len(self.running) * self.settings.page_size)  # as if each began a page
            self.free_tokens -= need
            self._clock.tick(step)
            step.decoded = list(self.running)

    def _leave_out_ending(self) -> bool:
        """Whether there are answers whose last token is under way: none where every result is known."""
        return False

    def _retract(self, step: Step) -> None:
        """Drop requests, fewest produced first, then longest prompt, until the rest can decode; at least one."""
        page = self.settings.page_size
        kept = sorted(self.running, key=lambda state: (self.produced_tokens(state), -state.prompt_tokens), reverse=True)
        first = True
        while first or self.free_tokens < self._needed(kept) * page:
            if len(kept) == 1:
                break
            first = False
            self._drop(kept.pop(), step, len(kept))
            self._make_room(self._needed(kept) * page)
        if len(kept) == 1 and self.free_tokens < self._needed(kept) * page:
            self._drop(kept.pop(), step, 0)  # the engine aborts it; here it starts over when there is room
        self.running = kept
        self._full = False
        self.ratio.after_retraction(
            sum(map(self.produced_tokens, kept)), sum(state.request.max_new_tokens for state in kept), len(kept)
        )

    def _needed(self, states: list[RequestState]) -> int:
        return sum(self._clock.computed_tokens(state) % self.settings.page_size == 0 for state in states)

    def _drop(self, state: RequestState, step: Step, others: int) -> None:
        """The request starts over from the tail of the queue."""
        self._release(state, others)
        self._enter(state)
        step.preempted.append(state)

    def _release(self, state: RequestState, others: int) -> None:
        """Free what the tree does not hold, and make room for some steps of the others."""
        produced = self.produced_tokens(state)
        self._clock.stop(state)
        self._give_back(state)
        self._make_room(others * RETRACT_STEPS)
        state.known = state.prompt_tokens + produced
        state.computed = state.remote = 0
        state.preemptions += 1
        self._tried.pop(id(state), None)

    # ---- results

    def update(self, step: Step) -> list[RequestState]:
        """The result of a step is known: prompts enter the tree, finished requests leave."""
        ended = set(map(id, step.finishing))
        for chunk in step.chunks:
            state, tokens = chunk.state, chunk.context + chunk.tokens
            if chunk.last and id(state) not in ended and state.computed >= tokens:  # not retracted since
                self._keep(state, tokens)
                state.known = max(state.known, tokens + 1)
        if not ended:
            return []
        finished = self._ended(step)
        for state in finished:
            self._keep(state, state.computed)
            self._give_back(state)
        left = [state for state in self.running if id(state) not in ended]
        if len(left) < len(self.running):
            self.running, self._full = left, False
        return finished

    def become_idle(self) -> None:
        """Nothing is left to do before the next arrival: expectations are those of a fresh engine."""
        self.ratio.reset()

    def _ended(self, step: Step) -> list[RequestState]:
        """Who ends by a step, in the order of its batch."""
        ended = {id(state) for state in step.finishing}
        return [state for state in ([chunk.state for chunk in step.chunks] or self.running) if id(state) in ended]

    # ---- runs of pure decode

    def decode_room(self, limit: int) -> int:
        """Steps until a request ends, tokens are missing, or a prefill could be tried."""
        if self._last_prefill or self.chunked is not None or not self.running or (self.waiting and not self._full):
            return 0
        page = self.settings.page_size
        room = (self.free_tokens + self.tree.evictable) // page
        return self._clock.steps_within(room, self._clock.steps_to_end(limit))

    def decode_run(self, steps: int) -> Step:
        page = self.settings.page_size
        need = len(self._clock.needing_within(steps)) * page
        before = len(self._clock.needing_within(steps - 1)) * page if steps > 1 else 0
        self._make_room(max(need, before + len(self.running) * page))
        self.free_tokens -= need
        self.ratio.decay(steps)
        return super().decode_run(steps)


class OverlapScheduler(SglangScheduler):
    """SGLang's scheduler one step ahead of its results, as it runs unless `--disable-overlap-schedule` is given."""

    depth = 2
    sampled = 0

    def produced_tokens(self, state: RequestState) -> int:
        """Tokens of its answer that are known."""
        computed = self._clock.computed_tokens(state)
        return (computed if state.decoding or computed >= state.known else state.known) - state.prompt_tokens

    def _joining(self) -> list[RequestState]:
        """All of the last prefill batch but what goes on in chunks: nobody knows yet who ended."""
        return [chunk.state for chunk in self._last_prefill if chunk.last]

    def _leave_out_ending(self) -> bool:
        """Answers whose last token is under way decode no more; whether there were any."""
        decoding = [state for state in self.running if state.decoding]
        if len(decoding) == len(self.running):
            return False
        self.running, self._full = decoding, False
        return True

    def _ended(self, step: Step) -> list[RequestState]:
        """Who ends by a step whose result came late: not who was retracted since."""
        ended = {id(state) for state in step.finishing}
        batch = [chunk.state for chunk in step.chunks] or step.decoded or ()
        finished = [one for one in batch if id(one) in ended and self._clock.computed_tokens(one) >= one.target]
        for state in finished:
            if state.decoding:
                self._clock.stop(state)
        self._last_prefill = [chunk for chunk in self._last_prefill if id(chunk.state) not in ended]
        return finished

    def decode_run(self, steps: int) -> Step:
        """That many pure decode steps at once; the last one's batch is kept where somebody ends by it."""
        step = super().decode_run(steps)
        if step.finishing:
            step.decoded = list(self.running)
        return step


def sglang_scheduler(settings: SglangSettings) -> SglangScheduler:
    """The scheduler that these settings ask for, with overlap or without."""
    return SglangScheduler(settings) if settings.disable_overlap_schedule else OverlapScheduler(settings)
