"""All-gather on any direct graph, heterogeneous or degraded: each free link takes a chunk that its receiver lacks.

What a rank holds is a row of bits. A round goes over the ports of all ranks at once, port by port: of the chunks that
the neighbour has and the rank has not (nor was promised in this round) the rarest is taken, on large graphs any. Slower
links are busy for more ticks; a chunk can be passed on when it has arrived.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.comm.algorithm import Algorithm, Steps
from ridgeline.comm.contract import Ints, contract
from ridgeline.comm.graph import Graph
from ridgeline.core.arrays import Array, Index

Bits = NDArray[np.uint64]
WINDOW = 8  # words of 64 chunks that are looked at first
TICKS = 4  # of the fastest link's time, where links differ
RAREST = 1 << 16  # places up to which the rarest chunk is looked for, not any
ONE = np.uint64(1)
SYNTHESIZED = "synthesized"


def matched_allgather(graph: Graph, per_rank: int, size_bytes: float, seed: int = 0) -> Algorithm:
    """An all-gather of `per_rank` chunks each that keeps links busy; the same seed gives the same one."""
    n, chunks = graph.ranks, graph.ranks * per_rank
    if n < 2:
        none = np.zeros(0, np.int32)
        empty = np.zeros(0, np.int8)
        steps = Steps(round=none, source=none, target=none, chunk=none, op=empty, channel=empty)
        return Algorithm(name=SYNTHESIZED, contract=contract("allgather", n, chunks), nodes=n, steps=steps)
    ticks = _ticks(size_bytes / chunks / graph.bytes_per_s + graph.latency_s)
    search = _Matching(graph, chunks, ticks, np.random.default_rng(seed))
    steps = search.run(per_rank)
    return Algorithm(name=SYNTHESIZED, contract=contract("allgather", n, chunks), nodes=n, steps=steps)


def matched_broadcast(graph: Graph, root: int, chunks: int, size_bytes: float, seed: int = 0) -> Algorithm:
    """A broadcast of so many chunks that keeps links busy: ranks pass on what their neighbours lack."""
    ticks = _ticks(size_bytes / chunks / graph.bytes_per_s + graph.latency_s)
    search = _Matching(graph, chunks, ticks, np.random.default_rng(seed))
    steps = search.run(0, np.full(chunks, root))
    made = contract("broadcast", graph.ranks, chunks, root)
    return Algorithm(name=SYNTHESIZED, contract=made, nodes=graph.ranks, steps=steps)


def _ticks(each: Array) -> Index:
    """How many ticks each link is busy with a chunk."""
    if np.ptp(each) <= 1e-12 * each.max():
        return np.ones(len(each), np.int64)
    busy: Index = np.ceil(each / each.min() * TICKS - 1e-6).astype(np.int64)
    return busy


class _Matching:
    """The state of the search: bits held and promised, links busy, chunks under way."""

    def __init__(self, graph: Graph, chunks: int, ticks: Index, random: np.random.Generator) -> None:
        n = graph.ranks
        self.n, self.chunks, self.ticks, self.random = n, chunks, ticks, random
        self.words = -(-chunks // 64)
        order = np.lexsort((random.random(graph.links), graph.head))
        degree = np.bincount(graph.head, minlength=n)
        self.link_at = np.full((int(degree.max()), n), -1, np.int64)  # link behind port p of each rank
        first = np.cumsum(degree) - degree
        rank = graph.head[order]
        self.link_at[np.arange(graph.links) - first[rank], rank] = order
        self.tail = graph.tail
        self.have = np.zeros((n, self.words), np.uint64)
        self.even = bool((ticks == 1).all())
        self.busy = np.zeros(graph.links, np.int64)
        self.rarest = n * chunks <= RAREST
        self.under_way: dict[int, list[tuple[Index, Index]]] = {}
        self.made: list[tuple[int, Ints, Ints, Ints]] = []

    def run(self, per_rank: int, owner: Index | None = None) -> Steps:
        own = np.arange(self.chunks)
        mask = ONE << (own % 64).astype(np.uint64)
        at = own // per_rank if owner is None else owner
        self.one_root = owner is not None
        np.bitwise_or.at(self.have, (at, own // 64), mask)
        self.promised = self.have.copy()
        self.holders = np.ones(self.chunks)
        self.lacks = self.chunks - np.bincount(at, minlength=self.n)
        now = 0
        while self.lacks.any() or self.under_way:
            for place, chunk in self.under_way.pop(now, ()):
                self.have[place, chunk >> 6] |= ONE << (chunk & 63).astype(np.uint64)
            if self.lacks.any():
                self._round(now)
            now += 1
        return self._steps()

    def _round(self, now: int) -> None:
        open_ = np.flatnonzero(self.lacks)
        for port in self.random.permutation(len(self.link_at)):
            link = self.link_at[port, open_]
            able = link >= 0 if self.even else (link >= 0) & (self.busy[link] <= now)
            rank = open_ if able.all() else open_[able]
            self._port(now, rank, self.link_at[port, rank])

    def _port(self, now: int, rank: Index, link: Index) -> None:
        """Let each of these ranks take one chunk over one of its links."""
        if not len(rank):
            return
        source = self.tail[link]
        at, found = self._rarest(rank, source) if self.rarest else self._word(rank, source)
        some = np.flatnonzero(found)
        if not len(some):
            return
        rank, source, word, at = rank[some], source[some], found[some], at[some]
        bit = _random_bit(word, int(self.random.integers(64)))
        self.promised[rank, at] |= ONE << bit
        chunk = at * 64 + bit.astype(np.int64)
        self.lacks[rank] -= 1
        if self.rarest:
            np.add.at(self.holders, chunk, 1)
        self.made.append((now, source.astype(np.int32), rank.astype(np.int32), chunk.astype(np.int32)))
        if self.even:
            self.under_way.setdefault(now + 1, []).append((rank, chunk))
            return
        used = link[some]
        self.busy[used] = now + self.ticks[used]
        for late in np.unique(self.ticks[used]):
            mine = self.ticks[used] == late
            self.under_way.setdefault(now + int(late), []).append((rank[mine], chunk[mine]))

    def _rarest(self, rank: Index, source: Index) -> tuple[Index, Bits]:
        """For each rank the chunk on offer that fewest ranks hold, as a word with one bit."""
        offered = self.have[source] & ~self.promised[rank]
        each = np.unpackbits(offered.view(np.uint8), axis=1, bitorder="little")[:, : self.chunks].astype(np.bool_)
        tie = self.random.random((len(rank), self.chunks) if self.one_root else self.chunks)
        count = self.holders + tie  # neighbours of one root must not all take the same chunk
        best = np.where(each, count, np.inf).argmin(axis=1)
        some = each[np.arange(len(rank)), best]
        return best // 64, np.where(some, ONE << (best % 64).astype(np.uint64), np.uint64(0))

    def _word(self, rank: Index, source: Index) -> tuple[Index, Bits]:
        """For each rank a word with chunks that its source has and it lacks (0: none), from a random place on."""
        low = int(self.random.integers(self.words))
        if self.words <= WINDOW:
            return self._scan(rank, source, slice(0, self.words), low)
        low = min(low, self.words - WINDOW)
        at, found = self._scan(rank, source, slice(low, low + WINDOW), 0)
        missed = np.flatnonzero(found == 0)
        if len(missed):
            turn = int(self.random.integers(self.words))
            at[missed], found[missed] = self._scan(rank[missed], source[missed], slice(0, self.words), turn)
        return at, found

    def _scan(self, rank: Index, source: Index, part: slice, turn: int) -> tuple[Index, Bits]:
        offered = self.have[source, part] & ~self.promised[rank, part]
        some = offered != 0
        rows = np.arange(len(rank))
        at = some.argmax(axis=1)
        if turn:
            later = some[:, turn:].argmax(axis=1) + turn
            at = np.where(some[rows, later], later, at)
        return at + part.start, offered[rows, at]

    def _steps(self) -> Steps:
        size = [len(rank) for _, _, rank, _ in self.made]
        whole = sum(size)
        return Steps(
            round=np.repeat(np.array([now for now, *_ in self.made], np.int32), size),
            source=np.concatenate([source for _, source, _, _ in self.made]),
            target=np.concatenate([rank for _, _, rank, _ in self.made]),
            chunk=np.concatenate([chunk for *_, chunk in self.made]),
            op=np.zeros(whole, np.int8),
            channel=np.zeros(whole, np.int8),
        )


def _random_bit(word: Bits, turn: int) -> Bits:
    """The number of a set bit of each word: the first one from a place on, round and round."""
    if turn:
        word = (word >> np.uint64(turn)) | (word << np.uint64(64 - turn))
    low = word & (~word + ONE)
    bit = np.frexp(low.astype(np.float64))[1] - 1
    return ((bit + turn) % 64).astype(np.uint64)
