"""All-gather on any graph of direct links, heterogeneous or degraded: a free link takes what came first to its sender.

Every rank keeps a list of its chunks in the order in which they came. A link goes along its sender's list, passes by
what its rank has or was promised, and takes the first that is left: it looks at every chunk once, whatever the size.
What came first is farthest from where it is still new, so that links to ranks with few of them seldom go idle: on
meshes and random graphs of equal links the rounds are as few as the smallest degree allows.
"""

from __future__ import annotations

import numpy as np

from ridgeline.comm.algorithm import Algorithm, Steps
from ridgeline.comm.contract import Ints, contract
from ridgeline.comm.graph import Graph
from ridgeline.comm.synthesis.matching import SYNTHESIZED, steps_made, ticks_of
from ridgeline.core.arrays import Index, Mask


def arrival_allgather(graph: Graph, per_rank: int, size_bytes: float, seed: int = 0) -> Algorithm:
    """An all-gather of `per_rank` chunks each by order of arrival; the same seed gives the same one."""
    chunks = graph.ranks * per_rank
    search = _Arrivals(graph, per_rank, size_bytes / chunks, np.random.default_rng(seed))
    made = contract("allgather", graph.ranks, chunks)
    return Algorithm(name=SYNTHESIZED, contract=made, nodes=graph.ranks, steps=search.run())


class _Arrivals:
    """Lists of chunks, how far each link has gone along its sender's, and what is under way.

    Links are kept as (places, ranks): the first, second, ... link of each rank; a rank's own number where it has none.
    """

    def __init__(self, graph: Graph, per_rank: int, chunk_bytes: float, random: np.random.Generator) -> None:
        n, self.chunks, self.random = graph.ranks, graph.ranks * per_rank, random
        order = np.lexsort((random.random(graph.links), graph.head))
        degree = np.bincount(graph.head, minlength=n)
        rank = graph.head[order]
        place = np.arange(graph.links) - (np.cumsum(degree) - degree)[rank]
        self.source = np.tile(np.arange(n), (int(degree.max()), 1))
        self.source[place, rank] = graph.tail[order]
        self.ticks = np.ones(self.source.shape, np.int64)
        self.ticks[place, rank] = ticks_of(chunk_bytes / graph.bytes_per_s + graph.latency_s)[order]
        self.even = bool((self.ticks == 1).all())
        self.busy = np.zeros(self.source.shape, np.int64)
        self.first = np.arange(n) * self.chunks
        own = np.arange(n * per_rank)
        self.list = np.zeros(n * self.chunks + 1, np.int32)
        self.list[np.repeat(self.first, per_rank) + own % per_rank] = own
        self.end = self.first + per_rank
        self.at = self.first[self.source]
        self.promised = np.zeros(n * self.chunks, np.bool_)
        self.promised[np.repeat(self.first, per_rank) + own] = True
        self.lacks = np.full(n, self.chunks - per_rank)
        self.under_way: dict[int, list[tuple[Index, Ints]]] = {}
        self.made: list[tuple[int, Ints, Ints, Ints]] = []

    def run(self) -> Steps:
        now = 0
        while True:
            for rank, chunk in self.under_way.pop(now, ()):
                end = self.end[rank]
                self.list[end] = chunk
                self.end[rank] = end + 1
            if not self.lacks.any():
                return steps_made(self.made)
            open_ = np.flatnonzero(self.lacks)
            able = (self.busy[:, open_] <= now) & (self.at[:, open_] < self.end[self.source[:, open_]])
            some: Mask = np.asarray(able.any(axis=1))
            for place in self.random.permutation(len(self.source)):
                if some[place]:
                    self._take(now, int(place), open_[able[place]])
            now = min(self.under_way)

    def _take(self, now: int, place: int, rank: Index) -> None:
        """Let each of these ranks take a chunk over one of its links, if there is one for it."""
        at, end = self.at[place], self.end[self.source[place]]
        while len(rank):
            here = at[rank]
            chunk = self.list[here]
            at[rank] = here + 1
            key = self.first[rank] + chunk
            passed = self.promised[key]
            taken = np.flatnonzero(~passed)
            if len(taken):
                self._promise(now, place, rank[taken], chunk[taken], key[taken])
                rank = rank[passed]
            rank = rank[at[rank] < end[rank]]

    def _promise(self, now: int, place: int, rank: Index, chunk: Ints, key: Index) -> None:
        self.promised[key] = True
        self.lacks[rank] -= 1
        self.made.append((now, self.source[place, rank].astype(np.int32), rank.astype(np.int32), chunk))
        if self.even:
            self.under_way.setdefault(now + 1, []).append((rank, chunk))
            return
        there = now + self.ticks[place, rank]
        self.busy[place, rank] = there
        for late in np.unique(there):
            mine = there == late
            self.under_way.setdefault(int(late), []).append((rank[mine], chunk[mine]))
