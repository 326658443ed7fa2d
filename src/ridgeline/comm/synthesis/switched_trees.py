"""Trees of an all-reduce through switches: what a slow port or a lost rail costs is paid once, not twice.

A reduce-scatter and an all-gather take every part of the vector into every rank and out of it again, one after the
other. Over trees both go at the same time, and a rank that is a leaf of all of them sends and gets the vector once. A
tree grows from its root by the pair of ranks whose ways other trees crowd least, two children a rank: slow ports and
those that had children before come last and get none.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from ridgeline.comm.algorithm import Algorithm
from ridgeline.comm.graph import Graph
from ridgeline.comm.routes import routes
from ridgeline.comm.synthesis.packing import Ready, TreePlan, allreduce_of, arrived, begun
from ridgeline.core.arrays import Array, Index

TREED_RANKS = 128  # ranks up to which trees are grown
TREES = 8
CHILDREN = 2
PIECES = (1, 4, 24)  # chunks of a tree's part
STEPS = 24_000
TICKS = 4  # of the fastest way's time
SHALLOW = 1e-3  # of a link's time, for each hop from the root: of equal places the one nearer to it


def switched_allreduces(graph: Graph, seed: int = 0) -> Iterator[Algorithm]:
    """All-reduces over trees of the graph's ranks, in some numbers of chunks."""
    ways = _all_ways(graph)
    trees = grown_trees(graph, ways, TREES, seed)
    for pieces in PIECES:
        if 2 * graph.ranks * len(trees) * pieces <= STEPS:
            yield timed_allreduce(graph, ways, trees, pieces)


def timed_allreduce(graph: Graph, ways: Index, trees: list[Index], pieces: int) -> Algorithm:
    """All-reduce over the trees; a way is taken when all its links are free, for as long as its slowest link asks."""
    plans, ready, waiting = begun(trees, pieces)
    rate = np.append(graph.bytes_per_s, np.inf)[ways].min(axis=-1)
    ticks = np.ceil(float(graph.bytes_per_s.max()) / rate * TICKS - 1e-6).astype(np.int64)
    links: dict[tuple[int, int], list[int]] = {}
    busy: set[int] = set()
    coming: list[tuple[int, tuple[int, int], tuple[int, int, int, int]]] = []
    rows: list[tuple[int, int, int, int, int]] = []
    round = now = 0
    while ready or coming:
        for pair in sorted(ready, key=lambda pair: ready[pair][0]):
            if pair not in links:
                links[pair] = ways[pair][ways[pair] >= 0].tolist()
            if busy.isdisjoint(links[pair]):
                busy.update(links[pair])
                what = heapq.heappop(ready[pair])
                heapq.heappush(coming, (now + int(ticks[pair]), pair, what))
                rows.append((round, *pair, what[2] * pieces + what[0], what[3]))
        ready = {pair: queue for pair, queue in ready.items() if queue}
        round, now = round + 1, coming[0][0]
        _land(coming, now, ready, busy, links, (plans, pieces, waiting))
    return allreduce_of(rows, graph.ranks, graph.ranks, pieces * len(trees))


def _land(
    coming: list[tuple[int, tuple[int, int], tuple[int, int, int, int]]],
    now: int,
    ready: Ready,
    busy: set[int],
    links: dict[tuple[int, int], list[int]],
    state: tuple[list[TreePlan], int, list[list[int]]],
) -> None:
    """What arrives now leaves its links free, and lets others go."""
    plans, pieces, waiting = state
    while coming and coming[0][0] == now:
        _, pair, (piece, _, tree, op) = heapq.heappop(coming)
        busy.difference_update(links[pair])
        arrived(ready, plans[tree], (tree, piece, pair[1], op), waiting[tree * pieces + piece])


def _all_ways(graph: Graph) -> Index:
    """(ranks, ranks, longest) links from one rank to another, -1 after the last."""
    n = graph.ranks
    source, target = np.indices((n, n)).reshape(2, -1)
    apart = source != target
    found = routes(graph, source[apart], target[apart])
    ways = np.full((n * n, found.shape[1]), -1)
    ways[apart] = found
    return ways.reshape(n, n, -1)


def grown_trees(graph: Graph, ways: Index, count: int, seed: int = 0) -> list[Index]:
    """Parents of `count` trees over all ranks, which load links evenly for their rates in both directions."""
    cost = np.append(float(graph.bytes_per_s.max()) / graph.bytes_per_s, 0.0)
    load, random = np.zeros(graph.links + 1), np.random.default_rng(seed)
    return [_grown(ways, cost, load, random) for _ in range(count)]


def _grown(ways: Index, cost: Array, load: Array, random: np.random.Generator) -> Index:
    """One more tree, whose loads are added."""
    n = len(ways)
    parent, depth, children = np.full(n, -1), np.zeros(n), np.zeros(n, np.int64)
    crowd: Array = ((load + 1) * cost)[ways].max(axis=-1)
    crowd = np.maximum(crowd, crowd.T) + 1e-4 * random.random((n, n))
    root = int(np.median(crowd, axis=1).argmin())
    inside = np.zeros(n, np.bool_)
    inside[root] = True
    for _ in range(n - 1):
        open_, left = np.flatnonzero(inside & (children < CHILDREN)), np.flatnonzero(~inside)
        place = crowd[np.ix_(open_, left)] + SHALLOW * depth[open_][:, None]
        at, which = np.unravel_index(int(place.argmin()), place.shape)
        up, child = int(open_[at]), int(left[which])
        parent[child], depth[child], inside[child] = up, depth[up] + 1, True
        children[up] += 1
        for way in (ways[up, child], ways[child, up]):
            load[way[way >= 0]] += 1
    load[-1] = 0
    return parent
