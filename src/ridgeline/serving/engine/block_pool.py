"""Blocks of KV cache as vLLM keeps them: a free queue, hashed blocks in it that can be hit again, and who shares one.

The order of every single block is that of vLLM's `FreeKVCacheBlockQueue`, but nothing is kept block by block. What one
request gave back together stays a run until it is taken or hit, and hashes are kept per chain (the tokens of one text
after one prefix): whoever holds a block of a chain holds those before it, and tails are evicted first, so the cached
blocks of a chain are always its first ones. Allocating a prompt or freeing a request is a few list slices.

Two blocks may carry one hash (a full hit recomputes its last block); the older serves the hits, the younger is a twin.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field
from itertools import takewhile

from ridgeline.core.records import dataclass
from ridgeline.serving.request import Piece


@dataclass(frozen=True, slots=True)
class Hit:
    """The cached prefix of a request: its blocks, and how many of each chain."""

    blocks: list[int]
    parts: list[tuple[PrefixChain, int]]


NO_HIT = Hit([], [])


class BlockPool:
    """Allocation pops the front of the free queue and forgets the hash found there; a hit leaves the queue.

    Block 0 is the null block and is never handed out. Blocks that were never used stand in the queue as one empty run.
    """

    __slots__ = ("_fresh", "_queue", "_sharers", "_unhashed_first", "_unused", "free_blocks", "num_blocks")

    def __init__(self, num_blocks: int, *, unhashed_first: bool = True) -> None:
        self.num_blocks = num_blocks
        self.free_blocks = num_blocks - 1
        self._unhashed_first = unhashed_first
        self._unused = FreedBlocks([])
        self._fresh = 1  # the first block of it
        self._queue: deque[FreedBlocks] = deque([self._unused])
        self._sharers: dict[int, int] = {}  # holders of a block beyond the first

    def close(self) -> None:
        """Runs and chains refer to each other: part them, so that both are freed at once."""
        for run in self._queue:
            run.parts.clear()

    # ---- hits

    def lookup(self, spans: list[Span], limit: int) -> Hit:
        """The longest cached prefix, at most `limit` blocks."""
        blocks: list[int] = []
        parts: list[tuple[PrefixChain, int]] = []
        for chain, stop in spans:
            want = min(stop, limit) - chain.first
            if want <= 0:
                continue
            found = chain.blocks[:want]
            if found:
                blocks += found
                parts.append((chain, len(found)))
            if len(found) < want:
                break
        return Hit(blocks, parts)

    def evictable(self, hit: Hit) -> int:
        """How many of these blocks lie in the free queue: hitting them makes that many fewer free."""
        return sum(count - chain.homes[:count].count(None) for chain, count in hit.parts)

    def touch(self, hit: Hit) -> None:
        """Hold these cached blocks once more."""
        for chain, count in hit.parts:
            homes = chain.homes
            for place in range(count):
                run = homes[place]
                if run is None:
                    block = chain.blocks[place]
                    self._sharers[block] = self._sharers.get(block, 0) + 1
                else:
                    _leave(run, chain, place)
                    homes[place] = None
                    self.free_blocks -= 1

    # ---- allocation

    def take(self, count: int) -> list[int]:
        """The next `count` blocks of the free queue; their hashes are forgotten."""
        taken: list[int] = []
        queue = self._queue
        missing = count
        while missing > 0:
            run = queue[0]
            if run is self._unused:
                end = min(self._fresh + missing, self.num_blocks)
                taken += range(self._fresh, end)
                missing -= end - self._fresh
                self._fresh = end
                if end == self.num_blocks:
                    queue.popleft()
                continue
            part = run.blocks[-missing:]
            if run.parts:
                _forget(run, len(part))
            del run.blocks[-missing:]
            if not run.blocks:
                queue.popleft()
            part.reverse()
            taken += part
            missing -= len(part)
        self.free_blocks -= count
        return taken

    def insert(self, spans: list[Span], blocks: list[int], low: int, high: int) -> None:
        """Enter the hashes of the full blocks `low .. high` of a request's table."""
        for chain, stop in spans:
            begin, end = max(low, chain.first), min(high, stop)
            if begin >= end:
                continue
            known = chain.first + len(chain.blocks)
            for place in range(begin, min(known, end)):
                chain.twins.setdefault(place - chain.first, []).append((blocks[place], None))
            if end > known:
                chain.blocks += blocks[known:end]
                chain.homes += [None] * (end - known)

    # ---- release

    def free(self, blocks: list[int], spans: list[Span], hashed: int) -> None:
        """Give a table back, tail first: its `hashed` first blocks to the back of the queue, others to the front."""
        parts = _parts(blocks, spans, hashed)
        if self._sharers and not self._sharers.keys().isdisjoint(blocks):
            blocks, parts, hashed = self._last_holder(blocks, parts, hashed)
        self.free_blocks += len(blocks)
        plain = blocks[hashed:] if hashed else blocks
        if plain:
            enqueue = self._queue.appendleft if self._unhashed_first else self._queue.append
            enqueue(FreedBlocks(plain))
        if hashed:
            run = FreedBlocks(blocks[:hashed], parts)
            self._queue.append(run)
            for part in parts:
                if part.twin:
                    block, others = run.blocks[_offset(run, part)], part.chain.twins[part.low]
                    others[[twin for twin, _ in others].index(block)] = (block, run)
                else:
                    part.chain.homes[part.low : part.high] = [run] * (part.high - part.low)

    def _last_holder(
        self, blocks: list[int], parts: list[HashedRun], hashed: int
    ) -> tuple[list[int], list[HashedRun], int]:
        """What nobody else holds: shared blocks, the first ones of a table unless there are twins, lose a holder."""
        sharers = self._sharers
        shared = 0
        while shared < len(blocks) and blocks[shared] in sharers:
            self._let_go(blocks[shared])
            shared += 1
        rest = blocks[shared:]
        own = _without_first(parts, shared)
        hashed = max(hashed - shared, 0)
        if sharers.keys().isdisjoint(rest):
            return rest, own, hashed
        places = [(part, place) for part in own for place in range(part.low, part.high)]
        kept: list[int] = []
        own = []
        for number, block in enumerate(rest):
            if block in sharers:
                self._let_go(block)
                continue
            kept.append(block)
            if number < hashed:
                part, place = places[number]
                _append(own, part.chain, place, twin=part.twin)
        return kept, own, sum(part.high - part.low for part in own)

    def _let_go(self, block: int) -> None:
        if self._sharers[block] > 1:
            self._sharers[block] -= 1
        else:
            del self._sharers[block]


def _without_first(parts: list[HashedRun], count: int) -> list[HashedRun]:
    """Parts less their first `count` blocks."""
    left: list[HashedRun] = []
    for part in parts:
        gone = min(count, part.high - part.low)
        count -= gone
        part.low += gone
        if part.low < part.high:
            left.append(part)
    return left


def _parts(blocks: list[int], spans: list[Span], hashed: int) -> list[HashedRun]:
    """The hashed blocks of a table by chain; twins stand alone."""
    parts: list[HashedRun] = []
    for chain, stop in spans:
        first = chain.first
        low, high = 0, min(stop, hashed) - first
        if high <= 0:
            continue
        if not chain.twins or blocks[first : first + high] == chain.blocks[:high]:
            parts.append(HashedRun(chain, low, high))
            continue
        for place in range(high):
            _append(parts, chain, place, twin=blocks[first + place] != chain.blocks[place])
    return parts


def _append(parts: list[HashedRun], chain: PrefixChain, place: int, *, twin: bool) -> None:
    last = parts[-1] if parts else None
    if last is not None and last.chain is chain and last.high == place and not (last.twin or twin):
        last.high += 1
    else:
        parts.append(HashedRun(chain, place, place + 1, twin))


def _offset(run: FreedBlocks, part: HashedRun) -> int:
    """Where the blocks of a part begin in its run."""
    return sum(other.high - other.low for other in takewhile(lambda other: other is not part, run.parts))


def _leave(run: FreedBlocks, chain: PrefixChain, place: int) -> None:
    """A hit takes one block out of the run it waits in: the first of its part, since hits are prefixes."""
    at = 0
    for number, part in enumerate(run.parts):
        if part.chain is chain and part.low == place and not part.twin:
            del run.blocks[at]
            part.low += 1
            if part.low == part.high:
                del run.parts[number]
            return
        at += part.high - part.low
    raise AssertionError("a cached block that waits in no run")


def _forget(run: FreedBlocks, count: int) -> None:
    """The last `count` blocks of a run lose their hashes."""
    at = len(run.blocks)
    while count:
        part = run.parts[-1]
        gone = min(count, part.high - part.low)
        chain = part.chain
        if not chain.twins:
            del chain.blocks[part.high - gone :]
            del chain.homes[part.high - gone :]
        else:
            for place in range(part.high - 1, part.high - gone - 1, -1):
                _forget_one(chain, place, run.blocks[at - part.high + place], twin=part.twin)
        at -= gone
        part.high -= gone
        count -= gone
        if part.low == part.high:
            run.parts.pop()


def _forget_one(chain: PrefixChain, place: int, block: int, *, twin: bool) -> None:
    others = chain.twins.get(place)
    if twin:
        assert others is not None
        del others[[one for one, _ in others].index(block)]
    elif others:
        heir, home = others.pop(0)
        chain.blocks[place], chain.homes[place] = heir, home
        if home is not None:
            own = (part for part in home.parts if part.chain is chain and part.low == place)
            next(part for part in own if home.blocks[_offset(home, part)] == heir).twin = False
    else:
        assert place == len(chain.blocks) - 1, "only the tail of a chain can go"
        chain.blocks.pop()
        chain.homes.pop()
    if others is not None and not others:
        del chain.twins[place]


OPEN_END = 1 << 62


class PrefixChain:
    """Tokens of one text after one prefix.

    A block's hash is that of all tokens up to its end. Two blocks have one hash exactly when they end at the same place
    of the same chain, so a chain and a place stand for the hash, and no token is ever hashed.

    first    the first block of a table that ends in this chain
    blocks   the cached blocks from there on
    homes    for each of them the run of the free queue it waits in, None while somebody holds it
    twins    further blocks of the same hash by place in `blocks`, oldest first, with their runs
    """

    __slots__ = ("blocks", "first", "homes", "number", "twins")

    def __init__(self, number: int, first: int) -> None:
        self.number = number
        self.first = first
        self.blocks: list[int] = []
        self.homes: list[FreedBlocks | None] = []
        self.twins: dict[int, list[tuple[int, FreedBlocks | None]]] = {}


@dataclass(slots=True)
class HashedRun:
    """Consecutive hashed blocks `low .. high` of one chain inside a run; a twin is a second block of its hash."""

    chain: PrefixChain
    low: int
    high: int
    twin: bool = False


@dataclass(slots=True)
class FreedBlocks:
    """Blocks freed together, in table order: the last one is reused first. No parts: nothing in it is hashed."""

    blocks: list[int]
    parts: list[HashedRun] = field(default_factory=list)


Span = tuple[PrefixChain, int]
"""A chain in a prompt, and the block of the table before which its part of the prompt ends."""


class ContentIndex:
    """Chains by what they follow: equal prefixes find the same chain."""

    __slots__ = ("_block", "_chains")

    def __init__(self, block_size: int) -> None:
        self._block = block_size
        self._chains: dict[tuple[int, int, int, int], PrefixChain] = {}

    def _chain(self, parent: int, begin: int, seed: int, start: int) -> PrefixChain:
        name = (parent, begin, seed, start)
        chain = self._chains.get(name)
        if chain is None:
            chain = self._chains[name] = PrefixChain(len(self._chains) + 1, begin // self._block)
        return chain

    def spans(self, pieces: tuple[Piece, ...]) -> list[Span]:
        """The chains of a prompt, in order."""
        begin, parent = 0, 0
        found: list[Span] = []
        for piece in pieces:
            if piece.tokens:
                chain = self._chain(parent, begin, piece.seed, piece.start)
                begin += piece.tokens
                parent = chain.number
                found.append((chain, begin // self._block))
        return found

    def answer(self, spans: list[Span], begin: int, seed: int) -> Span:
        """The chain of the answer to a prompt of `begin` tokens."""
        return self._chain(spans[-1][0].number, begin, seed, begin), OPEN_END
