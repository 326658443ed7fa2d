"""Blocks of KV cache as vLLM keeps them: a free queue, hashed blocks in it that can be hit again, and who shares one.

The queue is kept as runs, not as single blocks: what one request gave back together stays together until it is taken
or hit, so allocating a prompt or freeing a request costs a few list slices. The order of every single block is that
of vLLM's `FreeKVCacheBlockQueue`; block 0 is the null block and is never handed out.
"""

from __future__ import annotations

from collections import deque
from itertools import repeat


class FreeRun:
    """Blocks freed together, in table order: the last one is reused first (a request's tail goes before its head)."""

    __slots__ = ("blocks", "keys")

    def __init__(self, blocks: list[int], keys: list[int]) -> None:
        self.blocks = blocks
        self.keys = keys  # one per block, or none at all where nothing is hashed


class BlockPool:
    """Allocation pops the front of the free queue and forgets the hash found there; a hit leaves the queue."""

    __slots__ = ("_duplicates", "_home", "_queue", "_sharers", "_unhashed_first", "cached", "free_blocks", "num_blocks")

    def __init__(self, num_blocks: int, *, unhashed_first: bool = True) -> None:
        self.num_blocks = num_blocks
        self.free_blocks = num_blocks - 1
        self.cached: dict[int, int] = {}
        self._unhashed_first = unhashed_first
        self._queue: deque[FreeRun] = deque([FreeRun(list(range(num_blocks - 1, 0, -1)), [])])
        self._home: list[FreeRun | None] = [None] * num_blocks  # the run a hashed block waits in
        self._sharers: dict[int, int] = {}  # holders beyond the first
        self._duplicates: dict[int, list[int]] = {}  # further blocks of one hash, oldest first

    def lookup(self, keys: list[int], limit: int) -> list[int]:
        """Blocks of the longest cached prefix of `keys`, at most `limit` of them."""
        hits: list[int] = []
        cached = self.cached
        for key in keys[:limit]:
            block = cached.get(key)
            if block is None:
                break
            hits.append(block)
        return hits

    def evictable(self, hits: list[int]) -> int:
        """How many of these blocks lie in the free queue: hitting them makes that many fewer free."""
        home = self._home
        return sum(home[block] is not None for block in hits)

    def touch(self, hits: list[int]) -> None:
        """Hold these cached blocks once more."""
        for block in hits:
            run = self._home[block]
            if run is None:
                self._sharers[block] = self._sharers.get(block, 0) + 1
            else:
                place = run.blocks.index(block)
                del run.blocks[place]
                del run.keys[place]
                self._home[block] = None
                self.free_blocks -= 1

    def take(self, count: int) -> list[int]:
        """The next `count` blocks of the free queue; their hashes are forgotten."""
        taken: list[int] = []
        queue = self._queue
        while (missing := count - len(taken)) > 0:
            run = queue[0]
            blocks, keys = run.blocks, run.keys
            if len(blocks) <= missing:
                queue.popleft()
                if keys:
                    self._forget(blocks, keys)
                blocks.reverse()
                taken += blocks
                run.blocks, run.keys = [], []
            else:
                part = blocks[-missing:]
                del blocks[-missing:]
                if keys:
                    self._forget(part, keys[-missing:])
                    del keys[-missing:]
                part.reverse()
                taken += part
        self.free_blocks -= count
        return taken

    def insert(self, keys: list[int], blocks: list[int]) -> None:
        """Enter hashes of full blocks; the first block of a hash keeps serving the hits."""
        if self.cached.keys().isdisjoint(keys):
            self.cached.update(zip(keys, blocks, strict=True))
            return
        for key, block in zip(keys, blocks, strict=True):
            if key in self.cached:
                self._duplicates.setdefault(key, []).append(block)
            else:
                self.cached[key] = block

    def free(self, blocks: list[int], keys: list[int]) -> None:
        """Give a request's blocks back, tail first: those with a hash (one key each) to the back, others to the front."""
        if self._sharers:
            blocks, keys = self._last_holder(blocks, keys)
        hashed, plain = blocks[: len(keys)], blocks[len(keys) :]
        self.free_blocks += len(blocks)
        if plain:
            run = FreeRun(plain, [])
            if self._unhashed_first:
                self._queue.appendleft(run)
            else:
                self._queue.append(run)
        if hashed:
            run = FreeRun(hashed, keys)
            home = self._home
            for block in hashed:
                home[block] = run
            self._queue.append(run)

    def _last_holder(self, blocks: list[int], keys: list[int]) -> tuple[list[int], list[int]]:
        sharers = self._sharers
        if sharers.keys().isdisjoint(blocks):
            return blocks, keys
        kept: list[int] = []
        names: list[int] = []
        for place, block in enumerate(blocks):
            others = sharers.get(block, 0)
            if others > 1:
                sharers[block] = others - 1
            elif others:
                del sharers[block]
            else:
                kept.append(block)
                if place < len(keys):
                    names.append(keys[place])
        return kept, names

    def _forget(self, blocks: list[int], keys: list[int]) -> None:
        home = self._home
        for block in blocks:
            home[block] = None
        if self._duplicates and not self._duplicates.keys().isdisjoint(keys):
            for block, key in zip(blocks, keys, strict=True):
                self._forget_one(block, key)
        else:
            deque(map(self.cached.pop, keys, repeat(None)), maxlen=0)

    def _forget_one(self, block: int, key: int) -> None:
        others = self._duplicates.get(key)
        if others is None:
            del self.cached[key]
        elif self.cached[key] == block:
            self.cached[key] = others.pop(0)
        else:
            others.remove(block)
        if others is not None and not others:
            del self._duplicates[key]
