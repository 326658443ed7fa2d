"""Ways of an all-to-all on any direct graph, heterogeneous or degraded, that load links evenly.

Every rank sends over a tree of ways to all others. Trees are laid one after the other, where others have left links
free (several at a time where there are many ranks); each is taken up and laid again a few times (a concurrent flow, by
rip-up and re-route), and single ways are led off the fullest link. `exchange_turns` says when each chunk moves on.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from ridgeline.comm.graph import Graph
from ridgeline.core.arrays import Array, Index

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
    at = np.full((graph.ranks, graph.ranks), -1, np.int64)
    at[graph.tail, graph.head] = np.arange(graph.links)
    best, best_before = np.inf, np.zeros((0, 0), np.int64)
    for steep in STEEPS if graph.ranks <= MANY else MANY_STEEP:
        fullest, before = _trees(graph, cost, at, steep, np.random.default_rng(seed))
        if fullest < best:
            best, best_before = fullest, before
    sources = np.arange(graph.ranks)
    return _eased(graph, cost, at, _walked(at, best_before, sources), np.random.default_rng(seed))


def _trees(graph: Graph, cost: Array, at: Index, steep: float, random: np.random.Generator) -> tuple[float, Index]:
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
            matrix = weighted(graph, cost * np.exp(steep * (load + 1) * cost / full))
            sources = members[group]
            before[sources] = dijkstra(matrix, indices=sources, return_predecessors=True)[1]
            used[group] = _loads(_walked(at, before[sources], sources), graph.links)
            load += used[group]
        if float((load * cost).max()) < best:
            best, best_before = float((load * cost).max()), before.copy()
    return best, best_before


def weighted(graph: Graph, weight: Array) -> csr_array:
    """The graph as a matrix of lengths."""
    return csr_array((weight, (graph.tail, graph.head)), shape=(graph.ranks, graph.ranks))


def _loads(ways: Index, links: int) -> Array:
    """How many ways lead over each link."""
    return np.bincount(ways[ways >= 0], minlength=links).astype(np.float64)


def _eased(graph: Graph, cost: Array, at: Index, ways: Index, random: np.random.Generator) -> Index:
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
        last = dijkstra(weighted(graph, weight), indices=source, return_predecessors=True)[1][0]
        new = links_back(at, last, pair % graph.ranks)
        idle += 1
        if len(new) <= ways.shape[1] and ((load[new] + 1) * cost[new]).max() < full[worst] - 1e-9:
            ways[pair] = -1
            ways[pair, : len(new)] = old = new
            idle = 0
        load[old] += 1
        if idle >= IDLE:
            break
    return ways


def links_back(at: Index, last: Index, target: int) -> Index:
    """The links of one way, from predecessors."""
    nodes = [target]
    while last[nodes[-1]] >= 0:
        nodes.append(int(last[nodes[-1]]))
    ends = np.array(nodes[::-1])
    found: Index = at[ends[:-1], ends[1:]]
    return found


def _walked(at: Index, before: Index, sources: Index) -> Index:
    """Ways from each source to all ranks, by predecessors, turned round to begin at their source."""
    n = before.shape[1]
    row, here = (part.ravel().copy() for part in np.indices(before.shape))
    source = np.repeat(sources, n)
    links = []
    while (here != source).any():
        last = before[row, here]
        going = here != source
        link = np.full(len(here), -1)
        link[going] = at[last[going], here[going]]
        links.append(link)
        here = np.where(going, last, here)
    back = np.stack(links, axis=1)
    turn = (back >= 0).sum(axis=1)[:, None] - 1 - np.arange(back.shape[1])
    return np.where(turn >= 0, np.take_along_axis(back, np.maximum(turn, 0), axis=1), -1)
