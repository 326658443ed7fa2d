"""Exchanges on any direct graph, heterogeneous or degraded, over ways that load links evenly.

All-to-all: every rank sends over a tree of ways to all others. Trees are laid one after the other, where others have
left links free (several at a time where there are many ranks); each is taken up and laid again a few times (a
concurrent flow, by rip-up and re-route), and single ways are led off the fullest link.

Pairs that send and unequal parts go over several ways at once: what a pair sends is cut into pieces of about one size.
Each piece is laid along the links that are least full with it, and laid again once all the others lie: a single pair
comes to use every way that adds rate, as maximum flow does, and pairs that meet go round each other.

Chunks move on over their ways one at a time on a link, or all that wait for it. A link that is free takes, of the
chunks that wait for it, one with the longest way ahead. Waiting chunks lie on stacks, one for each link and number of
hops ahead, so that a turn looks at links and not at chunks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.sparse.csgraph import dijkstra

from ridgeline.comm.algorithm import Algorithm, steps_of
from ridgeline.comm.contract import Contract, contract
from ridgeline.comm.graph import Graph, link_matrix, links_between
from ridgeline.comm.routes import follow_predecessors
from ridgeline.comm.synthesis.matching import SYNTHESIZED, ticks_of
from ridgeline.core.arrays import Array, Index


def by_hops(graph: Graph, ways: Index, whole: Contract | None = None) -> Algorithm:
    """All first hops in one round, all second ones in the next: fewest messages."""
    chunk, hop = np.nonzero(ways >= 0)
    return _exchange_algorithm(graph, hop, ways[chunk, hop], chunk, whole)


def one_by_one(graph: Graph, ways: Index, chunk_bytes: float, whole: Contract | None = None) -> Algorithm:
    """A link carries one chunk at a time, of those that wait the one with the longest way ahead.

    whole   what the chunks are of, by row of `ways`; absent: an all-to-all of all pairs
    """
    ticks = ticks_of(chunk_bytes / graph.bytes_per_s + graph.latency_s)
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
        for free_s in np.unique(free[link[onward]]):
            coming[int(free_s)].append(chunk[onward & (free[link] == free_s)])
    rounds = np.repeat(np.arange(len(rows)), [len(link) for link, _ in rows])
    links, chunks = (np.concatenate([row[part] for row in rows]) for part in (0, 1))
    return _exchange_algorithm(graph, rounds, links, chunks, whole)


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


def _exchange_algorithm(
    graph: Graph, round: Index, link: Index, chunk: Index, whole: Contract | None = None
) -> Algorithm:
    n = graph.ranks
    steps = steps_of(round, graph.tail[link], graph.head[link], chunk)
    return Algorithm(name=SYNTHESIZED, contract=whole or contract("alltoall", n, n * n), nodes=n, steps=steps)


PIECES = (32, 128, 512)  # in all, at least one a pair
MOST_PIECES = 4096
MULTIPATH_SWEEPS = 3
STEEP = 6.0  # a link as full as the fullest is avoided by e**STEEP


def multipath_exchanges(graph: Graph, asked: Contract, size_bytes: float) -> Iterator[Algorithm]:
    """Algorithms for the contract, whose chunks each go from one rank to another, in pieces of several sizes."""
    assert asked.begins is not None
    assert asked.ends is not None
    source, target = np.zeros(asked.chunks, np.int64), np.full(asked.chunks, -1, np.int64)
    source[asked.begins[:, 1]], target[asked.ends[:, 1]] = asked.begins[:, 0], asked.ends[:, 0]
    share = np.array(asked.shares(), np.float64)
    sent = np.flatnonzero((target >= 0) & (source != target) & (share > 0))
    before = 0
    for pieces in PIECES:
        piece_share = share[sent].sum() / pieces
        count = np.maximum(1, np.ceil(share[sent] / piece_share - 1e-9).astype(np.int64))
        if count.sum() > MOST_PIECES or count.sum() == before:
            continue
        before = int(count.sum())
        cut_contract = _cut(asked, (source[sent], target[sent], share[sent]), count)
        ways = _ways(graph, cut_contract)
        yield one_by_one(graph, ways, float(cut_contract.shares().max()) * size_bytes, cut_contract)
        yield by_hops(graph, ways, cut_contract)


def _cut(asked: Contract, pairs: tuple[Index, Index, Array], count: Index) -> Contract:
    """The contract with a chunk for each piece."""
    source, target = (np.repeat(column, count) for column in pairs[:2])
    share: Array = np.repeat(pairs[2] / count, count)
    ids = np.arange(len(source))
    begins, ends = np.stack([source, ids], axis=1), np.stack([target, ids], axis=1)
    return replace(asked, chunks=len(ids), begins=begins, ends=ends, chunk_share=share)


def _ways(graph: Graph, whole: Contract, seed: int = 0) -> Index:
    """(pieces, longest) links of each piece's way, -1 after the last."""
    assert whole.begins is not None
    assert whole.ends is not None
    source, target, size = whole.begins[:, 0], whole.ends[:, 0], whole.shares()
    cost = float(graph.bytes_per_s.max()) / graph.bytes_per_s
    load, routes_found = np.zeros(graph.links), [np.zeros(0, np.int64)] * len(source)
    random = np.random.default_rng(seed)
    for _ in range(MULTIPATH_SWEEPS):
        for piece in random.permutation(len(source)):
            load[routes_found[piece]] -= size[piece]
            full = (load + size[piece]) * cost
            weight = cost * np.exp(STEEP * full / full.max())
            last = dijkstra(link_matrix(graph, weight), indices=source[piece : piece + 1], return_predecessors=True)[1][
                0
            ]
            routes_found[piece] = links_back(graph, last, int(target[piece]))
            load[routes_found[piece]] += size[piece]
    ways = np.full((len(source), max(len(route) for route in routes_found)), -1, np.int64)
    for piece, route in enumerate(routes_found):
        ways[piece, : len(route)] = route
    return ways


SWEEPS = 4  # times that every tree is laid
STEEPS = (1.0, 3.0, 6.0)  # how much a link as full as the fullest is avoided: e**steep, tried one after the other
MANY = 128  # ranks from which on trees are laid by groups, and with one steepness only
GROUPS = 256  # of ranks whose trees are laid together
MANY_STEEP = (3.0,)
MOVES, MANY_MOVES = 1500, 600  # single ways led off the fullest link, at most
IDLE = 60  # tries in a row that find none


def balanced_ways(graph: Graph, seed: int = 0) -> Index:
    """(ranks * ranks, longest) links from rank i to rank j in row i * ranks + j, -1 after the last."""
    cost = float(graph.bytes_per_s.max()) / graph.bytes_per_s
    best, best_before = np.inf, np.zeros((0, 0), np.int64)
    for steep in STEEPS if graph.ranks <= MANY else MANY_STEEP:
        fullest, before = _trees(graph, cost, steep, np.random.default_rng(seed))
        if fullest < best:
            best, best_before = fullest, before
    return _ease_crowded(graph, cost, _tree_ways(graph, best_before), np.random.default_rng(seed))


def _trees(graph: Graph, cost: Array, steep: float, random: np.random.Generator) -> tuple[float, Index]:
    """How full the fullest link is at best, and by source and target the rank before the target."""
    n = graph.ranks
    together = 1 if n <= MANY else -(-n // GROUPS)
    load = np.zeros(graph.links)
    groups = -(-n // together)
    used = np.zeros((groups, graph.links))
    before = np.zeros((n, n), np.int64)
    best, best_before = np.inf, before
    members = np.array_split(random.permutation(n), groups)
    for _ in range(SWEEPS):
        for group in random.permutation(groups):
            load -= used[group]
            full = max(float((load * cost).max()), 1.0)
            matrix = link_matrix(graph, cost * np.exp(steep * (load + 1) * cost / full))
            sources = members[group]
            before[sources] = dijkstra(matrix, indices=sources, return_predecessors=True)[1]
            used[group] = _loads(_tree_ways(graph, before[sources]), graph.links)
            load += used[group]
        if float((load * cost).max()) < best:
            best, best_before = float((load * cost).max()), before.copy()
    return best, best_before


def _loads(ways: Index, links: int) -> Array:
    """How many ways lead over each link."""
    return np.bincount(ways[ways >= 0], minlength=links).astype(np.float64)


def _ease_crowded(graph: Graph, cost: Array, ways: Index, random: np.random.Generator) -> Index:
    """Lead single ways off the fullest link while that helps."""
    load = _loads(ways, graph.links)
    over: dict[int, list[int]] = {}  # ways over a link as they were when it was first the fullest
    idle = 0
    for _ in range(MOVES if graph.ranks <= MANY else MANY_MOVES):
        full = load * cost
        worst = int(full.argmax())
        if not over.get(worst):
            over[worst] = np.flatnonzero((ways == worst).any(axis=1)).tolist()
        pair = over[worst][int(random.integers(len(over[worst])))]
        old = ways[pair][ways[pair] >= 0]
        if worst not in old:
            over[worst].remove(pair)
            continue
        load[old] -= 1
        weight = cost * np.exp(STEEPS[-1] * np.minimum((load + 1) * cost / full[worst], 2.0))
        source = np.array([pair // graph.ranks])
        last = dijkstra(link_matrix(graph, weight), indices=source, return_predecessors=True)[1][0]
        new = links_back(graph, last, pair % graph.ranks)
        idle += 1
        if len(new) <= ways.shape[1] and ((load[new] + 1) * cost[new]).max() < full[worst] - 1e-9:
            ways[pair] = -1
            ways[pair, : len(new)] = old = new
            idle = 0
        load[old] += 1
        if idle >= IDLE:
            break
    return ways


def links_back(graph: Graph, last: Index, target: int) -> Index:
    """The links of one way, from predecessors."""
    nodes = [target]
    while last[nodes[-1]] >= 0:
        nodes.append(int(last[nodes[-1]]))
    ends = np.array(nodes[::-1])
    return links_between(graph, ends[:-1], ends[1:])


def _tree_ways(graph: Graph, before: Index) -> Index:
    """Ways from each source to all ranks, by predecessors."""
    row, target = (part.ravel() for part in np.indices(before.shape))
    return follow_predecessors(graph, before, row, target)
