"""When the chunks of an all-to-all move on over their ways: one at a time on a link, or all that wait for it.

A link that is free takes, of the chunks that wait for it, one with the longest way ahead. Waiting chunks lie on stacks,
one for each link and number of hops ahead, so that a turn looks at links and not at chunks.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ridgeline.comm.algorithm import Algorithm, steps_of
from ridgeline.comm.contract import Contract, contract
from ridgeline.comm.graph import Graph
from ridgeline.comm.synthesis.matching import SYNTHESIZED
from ridgeline.core.arrays import Index

TICKS = 4  # of the fastest link's time, where links differ


def by_hops(graph: Graph, ways: Index, whole: Contract | None = None) -> Algorithm:
    """All first hops in one round, all second ones in the next: fewest messages."""
    chunk, hop = np.nonzero(ways >= 0)
    return _made(graph, hop, ways[chunk, hop], chunk, whole)


def one_by_one(graph: Graph, ways: Index, chunk_bytes: float, whole: Contract | None = None) -> Algorithm:
    """A link carries one chunk at a time, of those that wait the one with the longest way ahead.

    whole   what the chunks are of, by row of `ways`; absent: an all-to-all of all pairs
    """
    ticks = _ticks(graph, chunk_bytes)
    length = (ways >= 0).sum(axis=1)
    waiting = _Stacks(graph.links, ways.shape[1], len(ways))
    at, free = np.zeros(len(ways), np.int64), np.zeros(graph.links, np.int64)
    coming: dict[int, list[Index]] = defaultdict(list, {0: [np.flatnonzero(length > 0)]})
    rows: list[tuple[Index, Index]] = []
    now = 0
    while coming or waiting.count:
        for chunk in coming.pop(now, ()):
            waiting.push(ways[chunk, at[chunk]], length[chunk] - at[chunk], chunk)
        link, chunk = waiting.pop(free <= now)
        now += 1
        if not len(link):
            continue
        rows.append((link, chunk))
        free[link] = now - 1 + ticks[link]
        at[chunk] += 1
        onward = at[chunk] < length[chunk]
        for ended in np.unique(free[link[onward]]):
            coming[int(ended)].append(chunk[onward & (free[link] == ended)])
    rounds = np.repeat(np.arange(len(rows)), [len(link) for link, _ in rows])
    links, chunks = (np.concatenate([row[part] for row in rows]) for part in (0, 1))
    return _made(graph, rounds, links, chunks, whole)


def _ticks(graph: Graph, chunk_bytes: float) -> Index:
    """Turns that a chunk takes on each link: one where all links are alike."""
    each = chunk_bytes / graph.bytes_per_s + graph.latency_s
    if np.ptp(each) <= 1e-12 * each.max():
        return np.ones(graph.links, np.int64)
    ticks: Index = np.ceil(each / each.min() * TICKS - 1e-6).astype(np.int64)
    return ticks


class _Stacks:
    """Chunks that wait, by link and hops ahead."""

    def __init__(self, links: int, hops: int, chunks: int) -> None:
        self.count = 0
        self._top = np.full((links, hops + 1), -1, np.int64)
        self._under = np.full(chunks, -1, np.int64)

    def push(self, link: Index, ahead: Index, chunk: Index) -> None:
        stack = link * self._top.shape[1] + ahead
        order = np.argsort(stack, kind="stable")
        stack, chunk = stack[order], chunk[order]
        first = np.flatnonzero(np.diff(stack, prepend=-1))
        tops = self._top.reshape(-1)
        self._under[chunk[1:]] = chunk[:-1]  # each on the one before it,
        self._under[chunk[first]] = tops[stack[first]]  # and the first of a stack on what was there
        tops[stack] = chunk  # the last one of a stack stays
        self.count += len(chunk)

    def pop(self, ready: np.ndarray) -> tuple[Index, Index]:
        """Of each link that is ready one chunk, if any waits; links and chunks."""
        there = self._top >= 0
        link = np.flatnonzero(there.any(axis=1) & ready)
        ahead = there.shape[1] - 1 - there[link, ::-1].argmax(axis=1)
        chunk = self._top[link, ahead]
        self._top[link, ahead] = self._under[chunk]
        self.count -= len(chunk)
        return link, chunk


def _made(graph: Graph, round: Index, link: Index, chunk: Index, whole: Contract | None = None) -> Algorithm:
    n = graph.ranks
    steps = steps_of(round, graph.tail[link], graph.head[link], chunk)
    return Algorithm(name=SYNTHESIZED, contract=whole or contract("alltoall", n, n * n), nodes=n, steps=steps)
