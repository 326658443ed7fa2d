"""SGLang's prefix cache, the arguments that its scheduler reads, and which prompts join a prefill.

The cache is a radix tree over token sequences, least recently used leaves evicted first.

A sequence is a tuple of runs (seed, start, tokens), so an edge of thousands of tokens is a few numbers. Locked nodes
(on the path of a running request) stay; the others count as evictable. Recency is a count of lookups, no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from ridgeline.core.records import dataclass
from ridgeline.plan.serving_plan import SglangKnobs
from ridgeline.serving.engine.step import Chunk, RequestState

Run = tuple[int, int, int]
Runs = tuple[Run, ...]


def length(runs: Iterable[Run]) -> int:
    """Tokens in a sequence."""
    return sum(run[2] for run in runs)


def cut(runs: Sequence[Run], tokens: int) -> tuple[Runs, Runs]:
    """The first `tokens` of a sequence, and the rest.

    >>> cut(((7, 0, 10), (8, 0, 5)), 12)
    (((7, 0, 10), (8, 0, 2)), ((8, 2, 3),))
    """
    head: list[Run] = []
    for place, (seed, start, count) in enumerate(runs):
        if tokens < count:
            if tokens:
                head.append((seed, start, tokens))
            return tuple(head), ((seed, start + tokens, count - tokens), *runs[place + 1 :])
        head.append((seed, start, count))
        tokens -= count
    return tuple(head), ()


def common(left: Runs, right: Runs) -> int:
    """How many tokens two sequences begin with alike."""
    same, i, j, a, b = 0, 0, 0, 0, 0
    while i < len(left) and j < len(right):
        one, two = left[i], right[j]
        if one[0] != two[0] or one[1] + a != two[1] + b:
            break
        step = min(one[2] - a, two[2] - b)
        same, a, b = same + step, a + step, b + step
        if a == one[2]:
            i, a = i + 1, 0
        if b == two[2]:
            j, b = j + 1, 0
    return same


class RadixNode:
    """An edge of the tree and what hangs below it."""

    __slots__ = ("children", "key", "locks", "parent", "seen", "tokens")

    def __init__(self, key: Runs, parent: RadixNode | None) -> None:
        self.key = key
        self.tokens = length(key)
        self.parent = parent
        self.children: dict[Runs, RadixNode] = {}
        self.locks = 0
        self.seen = 0


class RadixCache:
    """Match, insert, lock, evict; `evictable` tokens are cached and held by nobody."""

    def __init__(self, page_size: int = 1) -> None:
        self.page = page_size
        self.root = RadixNode((), None)
        self.root.locks = 1
        self.evictable = 0
        self._lookups = 0
        self._leaves: set[RadixNode] = set()  # those that nobody holds
        self._oldest: list[tuple[int, int, RadixNode]] = []  # heap of leaves by recency; entries may be out of date
        self._entries = 0

    def close(self) -> None:
        """Nodes and their parents refer to each other: part them, so that all are freed at once."""
        below = [self.root]
        while below:
            node = below.pop()
            below += node.children.values()
            node.children.clear()

    def _first(self, key: Runs) -> Runs:
        """The first page of a key: what tells the children of a node apart."""
        return cut(key, self.page)[0]

    def match(self, key: Runs) -> tuple[int, RadixNode]:
        """(tokens, node) of the longest cached prefix in whole pages; splits the node that the match ends inside."""
        matched, node, _ = self._descend(key)
        return matched, node

    def _descend(self, key: Runs) -> tuple[int, RadixNode, Runs]:
        """The same, and what of the sequence is not cached."""
        self._lookups += 1
        node, matched = self.root, 0
        tokens = length(key)
        key = key if tokens % self.page == 0 else cut(key, tokens // self.page * self.page)[0]
        node.seen = self._lookups
        while key and (child := node.children.get(self._first(key))) is not None:
            child.seen = self._lookups
            same = common(child.key, key) // self.page * self.page
            matched += same
            key = cut(key, same)[1]
            if same < child.tokens:
                return matched, self._split(child, same), key
            node = child
        return matched, node, key

    def insert(self, key: Runs) -> tuple[int, RadixNode]:
        """(tokens that were there, last node) after a sequence is entered in whole pages."""
        present, node, key = self._descend(key)
        if key:
            new = RadixNode(key, node)
            new.seen = self._lookups
            node.children[self._first(key)] = new
            self.evictable += new.tokens
            self._leaves.discard(node)
            self._offer(new)
            node = new
        return present, node

    def _split(self, child: RadixNode, tokens: int) -> RadixNode:
        assert child.parent is not None
        head, rest = cut(child.key, tokens)
        new = RadixNode(head, child.parent)
        new.locks, new.seen = child.locks, child.seen
        new.parent.children[self._first(child.key)] = new  # type: ignore[union-attr]
        child.key, child.tokens, child.parent = rest, child.tokens - tokens, new
        new.children[self._first(rest)] = child
        return new

    def lock(self, node: RadixNode) -> None:
        """Hold the path to a node."""
        while node.parent is not None:
            if node.locks == 0:
                self.evictable -= node.tokens
                self._leaves.discard(node)
            node.locks += 1
            node = node.parent

    def unlock(self, node: RadixNode) -> None:
        """Let go of it."""
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.evictable += node.tokens
                if not node.children:
                    self._offer(node)
            node = node.parent

    def _offer(self, leaf: RadixNode) -> None:
        """A leaf that nobody holds can be evicted."""
        self._leaves.add(leaf)
        self._entries += 1
        heapq.heappush(self._oldest, (leaf.seen, self._entries, leaf))

    def evict(self, tokens: int) -> int:
        """Drop whole leaves, least recently used first, until that many tokens are free; how many became free."""
        freed = 0
        while freed < tokens and self._oldest:
            seen, _, leaf = heapq.heappop(self._oldest)
            if leaf not in self._leaves:
                continue
            if seen != leaf.seen:  # used since it was offered
                self._offer(leaf)
                continue
            parent = leaf.parent
            assert parent is not None
            freed += leaf.tokens
            self.evictable -= leaf.tokens
            self._leaves.discard(leaf)
            del parent.children[self._first(leaf.key)]
            if not parent.children and parent.locks == 0:
                self._offer(parent)
        return freed


FIRST_RATIO = 0.7  # SGLANG_INIT_NEW_TOKEN_RATIO
LEAST_RATIO = 0.14  # of the first one
DECAY_STEPS = 600  # decode steps from the first ratio to the least
RETRACT_STEPS = 20  # decode steps that a retraction makes room for
MOST_NEW_TOKENS = 4096  # an answer counts no more than this in admission


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings(SglangKnobs):
    """Arguments of an engine with nothing left open; `chunked_prefill_size` 0 turns chunking off.

    Unless `disable_overlap_schedule` a step is decided before the last one's result is known.
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
        return self._free + self._tree.evictable

    def _ceil(self, tokens: int) -> int:
        return -(-tokens // self._page) * self._page

    @property
    def remaining(self) -> float:
        """Cache that is not promised to anybody."""
        return self._available() - self._total

    def release(self, growth: float, free_tokens: int) -> None:
        """Running requests gave up their seats, and with them what their answers were promised."""
        self._total -= growth
        self._free = free_tokens

    def verdict(self) -> Verdict:
        """What the budgets say about one more request."""
        if self._available() <= max(self._total, self._current):
            return Verdict.NO_TOKEN
        if self._input <= 0 or (self._chunk is not None and self._chunk <= 0):
            return Verdict.OTHER
        return Verdict.CONTINUE

    def continue_chunked(self, state: RequestState) -> bool:
        """The next chunk of the request that is being prefilled in chunks; whether it is the last one."""
        assert self._chunk is not None
        room = min(self._chunk, int(self.remaining))
        left = state.known - state.computed
        new = min(left, room if room > 0 else self._chunk)
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
        assert isinstance(state.node, RadixNode)
        self._tree.lock(state.node)
        if new + growth + self._page >= self.remaining:
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
        need, free = self._ceil(new) + self._page, self._available()
        if need > free - max(self._total, self._current) or not self._ends_fit(state, free - self._current - need):
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
