"""Arguments of an SGLang engine that its scheduler reads, and which prompts join a prefill."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from ridgeline.core.records import dataclass
from ridgeline.plan.serving_plan import SglangKnobs
from ridgeline.serving.engine.radix_cache import Node, RadixCache
from ridgeline.serving.engine.step import Chunk, RequestState

FIRST_RATIO = 0.7  # SGLANG_INIT_NEW_TOKEN_RATIO
LEAST_RATIO = 0.14  # of the first one
DECAY_STEPS = 600  # decode steps from the first ratio to the least
RETRACT_STEPS = 20  # decode steps that a retraction makes room for
MOST_NEW_TOKENS = 4096  # an answer counts no more than this in admission


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings(SglangKnobs):
    """Arguments of an engine with nothing left open; `chunked_prefill_size` 0 turns chunking off.

    Unless `disable_overlap_schedule` a step is decided before the last one's result is known (`sglang_overlap`).
    """

    max_total_tokens: int
    max_running_requests: int = 2048
    chunked_prefill_size: int = 8192
    priority_scheduling_preemption_threshold: int = 10
    ignore_eos: bool = False

    @property
    def priority_preemption(self) -> bool:
        """Whether a waiting request may take the seat of running ones."""
        return bool(self.enable_priority_scheduling) and not self.disable_priority_preemption

    @property
    def step_limits(self) -> tuple[int, int]:
        """Tokens of a step, and requests that run together."""
        return self.chunked_prefill_size or self.max_prefill_tokens, self.max_running_requests


class NewTokenRatio:
    """The share of their allowance that running answers are expected to use: decays, jumps up after a retraction."""

    __slots__ = ("_decay", "_first", "_least", "current")

    def __init__(self, conservativeness: float) -> None:
        self._first = min(FIRST_RATIO * conservativeness, 1.0)
        self._least = min(self._first * LEAST_RATIO, 1.0)
        self._decay = (self._first - self._least) / DECAY_STEPS
        self.current = self._first

    def decay(self, steps: int = 1) -> None:
        """That many decode steps without a retraction."""
        for _ in range(steps):
            if self.current <= self._least:
                break
            self.current = max(self.current - self._decay, self._least)

    def reset(self) -> None:
        """The engine is idle."""
        self.current = self._first

    def after_retraction(self, produced: int, allowed: int, requests: int) -> None:
        """(produced + 20 n) / (allowed + 1) over the requests that stay, at most 1."""
        self.current = min(1.0, (produced + RETRACT_STEPS * requests) / (allowed + 1))


class Verdict(Enum):
    """Whether to look at the next request: go on, the cache is full, or another budget is used up."""

    CONTINUE = "continue"
    NO_TOKEN = "no token"
    OTHER = "other"


class PrefillAdder:
    """The batch being built.

    A request is admitted while

        new + min(allowed - produced, 4096) + page  <  free + evictable - expected growth - admitted here
    """

    def __init__(self, settings: SglangSettings, tree: RadixCache, free_tokens: int, expected_growth: float) -> None:
        self._settings, self._tree, self._free = settings, tree, free_tokens
        self._page = settings.page_size
        self._total = expected_growth  # cache promised: running answers, then everything admitted here
        self._current = 0  # cache used by this batch itself
        self._input = settings.max_prefill_tokens
        self._chunk = settings.chunked_prefill_size or None
        self.chunks: list[Chunk] = []
        self.chunked: RequestState | None = None
        """A request that this batch begins in chunks."""
        self.continued: RequestState | None = None
        self.answers: Callable[[], list[tuple[int, int]]] = list
        """(tokens left, tokens held) of the running requests, asked for where answers are played to their ends."""
        self._ends: list[tuple[int, int]] | None = None

    def _available(self) -> int:
        return self._free + (0 if self._settings.disable_radix_cache else self._tree.evictable)

    def _ceil(self, tokens: int) -> int:
        return -(-tokens // self._page) * self._page

    @property
    def remaining(self) -> float:
        """Cache that is not promised to anybody."""
        return self._available() - self._total

    def release(self, growth: float) -> None:
        """A running request gave up its seat, and with it what its answer was promised."""
        self._total -= growth

    def refill(self, free_tokens: int) -> None:
        """Tokens were freed since the batch was begun."""
        self._free = free_tokens

    def verdict(self) -> Verdict:
        """What the budgets say about one more request."""
        if self._available() - self._total <= 0 or self._available() - self._current <= 0:
            return Verdict.NO_TOKEN
        if self._input <= 0 or (self._chunk is not None and self._chunk <= 0):
            return Verdict.OTHER
        return Verdict.CONTINUE

    def continue_chunked(self, state: RequestState) -> bool:
        """The next chunk of the request that is being prefilled in chunks; whether it is the last one."""
        assert self._chunk is not None
        room = min(self._chunk, int(self._available() - self._total))
        if room <= 0:
            room = self._chunk
        left = state.known - state.computed
        new = min(left, room)
        self.continued = state
        self._take(state, new, last=new == left)
        return new == left

    def add(self, state: RequestState) -> Verdict:
        """Admit a request whose cached prefix is `computed` tokens up to `node`, if the budgets allow."""
        request = state.request
        produced = state.known - state.prompt_tokens
        new = state.known - state.computed
        if self._settings.ignore_eos and self._settings.disable_radix_cache:
            return self._add_without_tree(state, new)
        growth = min(max(request.max_new_tokens - produced, 0), MOST_NEW_TOKENS)
        assert isinstance(state.node, Node)
        self._tree.lock(state.node)
        if new + growth + self._page >= self._available() - self._total:
            self._tree.unlock(state.node)
            return Verdict.NO_TOKEN
        if self._chunk is None:
            if self.chunks and self._ceil(new) >= self._input:
                self._tree.unlock(state.node)
                return Verdict.OTHER
        elif self._ceil(new) > self._chunk:
            end = (state.computed + self._chunk // self._page * self._page) // self._page * self._page
            if end <= state.computed:
                self._tree.unlock(state.node)
                return Verdict.OTHER
            state.held = state.computed
            self.chunked = state
            self._take(state, end - state.computed, last=False)
            return self.verdict()
        state.held = state.computed
        self._take(state, new, last=True)
        return self.verdict()

    def _add_without_tree(self, state: RequestState, new: int) -> Verdict:
        """Answers of known length and no tree: play their ends forward, each giving back what it holds."""
        need = self._ceil(new) + self._page
        if need > self._available() - max(self._total, self._current):
            return Verdict.NO_TOKEN
        if not self._ends_fit(state, self._available() - self._current - need):
            return Verdict.NO_TOKEN
        if self._chunk is None or new <= self._chunk:
            self._take(state, new, last=True)
        elif self._chunk <= 0:
            return Verdict.OTHER
        else:
            self.chunked = state
            self._take(state, self._chunk, last=False)
        return self.verdict()

    def _ends_fit(self, state: RequestState, free: int) -> bool:
        own = _left_and_held(state)
        if self._ends is None:
            answers = [own, *self.answers(), *(_left_and_held(chunk.state) for chunk in self.chunks)]
            self._ends = sorted((answer for answer in answers if answer[0] > 0), key=lambda answer: answer[0])
        elif own[0] > 0:
            later = (place for place, end in enumerate(self._ends) if own[0] <= end[0])
            self._ends.insert(next(later, max(len(self._ends) - 1, 0)), own)
        freed = 0
        for place, (left, held) in enumerate(self._ends):
            batch = len(self._ends) - place
            if free + freed - left * batch <= batch:
                return False
            freed += held
        return True

    def _take(self, state: RequestState, new: int, *, last: bool) -> None:
        self.chunks.append(Chunk(state, new, state.computed, last))
        used = self._ceil(new)
        growth = min(state.request.max_new_tokens, MOST_NEW_TOKENS) if last else 0
        self._total += used + self._page + growth
        self._current += used + self._page
        self._input -= used
        if self._chunk is not None:
            self._chunk -= used


def _left_and_held(state: RequestState) -> tuple[int, int]:
    return state.request.max_new_tokens - (state.known - state.prompt_tokens), state.known
