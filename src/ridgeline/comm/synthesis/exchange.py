"""All-to-all on any direct graph, heterogeneous or degraded: ways that load links evenly, and when each chunk moves on.

Every rank sends over a tree of ways to all others. Trees are laid one after the other, where others have left links
free; each is taken up and laid again a few times (a concurrent flow, by rip-up and re-route), and single ways are led
off the fullest link. Then a link carries one
chunk after the other, first those that have the longest way ahead; or, for small messages, all that wait for it.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from ridgeline.comm.algorithm import Algorithm, steps_of
from ridgeline.comm.contract import contract
from ridgeline.comm.graph import Graph
from ridgeline.comm.synthesis.matching import SYNTHESIZED
from ridgeline.core.arrays import Array, Index

SWEEPS = 4  # times that every tree is laid
STEEPS = (1.0, 3.0, 6.0)  # how much a link as full as the fullest is avoided: e**steep, tried one after the other
MOVES = 1500  # single ways led off the fullest link, at most
IDLE = 60  # tries in a row that find none
TICKS = 4  # of the fastest link's time, where links differ


def balanced_ways(graph: Graph, seed: int = 0) -> Index:
    """(ranks * ranks, longest) links from rank i to rank j in row i * ranks + j, -1 after the last."""
    cost = float(graph.bytes_per_s.max()) / graph.bytes_per_s
    at = np.full((graph.ranks, graph.ranks), -1, np.int64)
    at[graph.tail, graph.head] = np.arange(graph.links)
    best, best_before = np.inf, np.zeros((0, 0), np.int64)
    for steep in STEEPS:
        fullest, before = _trees(graph, cost, at, steep, np.random.default_rng(seed))
        if fullest < best:
            best, best_before = fullest, before
    return _eased(graph, cost, _walked(at, best_before), np.random.default_rng(seed))


def _trees(graph: Graph, cost: Array, at: Index, steep: float, random: np.random.Generator) -> tuple[float, Index]:
    """How full the fullest link is at best, and by source and target the rank before the target."""
    n = graph.ranks
    load, used = np.zeros(graph.links), np.zeros((n, graph.links))
    before = np.zeros((n, n), np.int64)
    best, best_before = np.inf, before
    for _ in range(SWEEPS):
        for source in random.permutation(n):
            load -= used[source]
            full = max(float((load * cost).max()), 1.0)
            matrix = _matrix(graph, cost * np.exp(steep * (load + 1) * cost / full))
            far, last = dijkstra(matrix, indices=int(source), return_predecessors=True)
            used[source] = _tree_loads(at, far, last, graph.links)
            before[source] = last
            load += used[source]
        if float((load * cost).max()) < best:
            best, best_before = float((load * cost).max()), before.copy()
    return best, best_before


def _matrix(graph: Graph, weight: Array) -> csr_array:
    return csr_array((weight, (graph.tail, graph.head)), shape=(graph.ranks, graph.ranks))


def _eased(graph: Graph, cost: Array, ways: Index, random: np.random.Generator) -> Index:
    """Lead single ways off the fullest link while that helps."""
    load = np.bincount(ways[ways >= 0], minlength=graph.links).astype(np.float64)
    found = [way[way >= 0] for way in ways]
    idle = 0
    for _ in range(MOVES):
        full = load * cost
        worst = int(full.argmax())
        pair = int(random.choice([row for row in np.flatnonzero((ways == worst).any(axis=1)) if len(found[row])]))
        old = found[pair]
        load[old] -= 1
        weight = cost * np.exp(STEEPS[-1] * np.minimum((load + 1) * cost / full[worst], 2.0))
        _, last = dijkstra(_matrix(graph, weight), indices=pair // graph.ranks, return_predecessors=True)
        new = _links(graph, last, pair % graph.ranks)
        if ((load[new] + 1) * cost[new]).max() < full[worst] - 1e-9 and len(new) <= ways.shape[1]:
            found[pair], idle = new, 0
            ways[pair] = -1
            ways[pair, : len(new)] = new
        else:
            idle += 1
        load[found[pair]] += 1
        if idle >= IDLE:
            break
    return ways


def _links(graph: Graph, last: Index, target: int) -> Index:
    """The links of one way, from predecessors."""
    nodes = [target]
    while last[nodes[-1]] >= 0:
        nodes.append(int(last[nodes[-1]]))
    ends = np.array(nodes[::-1])
    key = graph.tail * graph.nodes + graph.head
    order = np.argsort(key)
    found: Index = order[np.searchsorted(key[order], ends[:-1] * graph.nodes + ends[1:])]
    return found


def _tree_loads(at: Index, far: Array, last: Index, links: int) -> Array:
    """How many targets lie behind each link of a tree of ways."""
    below = np.ones(len(far))
    for node in np.argsort(-far):
        if last[node] >= 0:
            below[last[node]] += below[node]
    nodes = np.flatnonzero(last >= 0)
    load = np.zeros(links)
    load[at[last[nodes], nodes]] = below[nodes]
    return load


def _walked(at: Index, before: Index) -> Index:
    """Ways from predecessors, turned round to begin at their source."""
    n = len(before)
    source, here = (part.ravel().copy() for part in np.indices((n, n)))
    links = []
    while (here != source).any():
        last = before[source, here]
        going = here != source
        link = np.full(n * n, -1)
        link[going] = at[last[going], here[going]]
        links.append(link)
        here = np.where(going, last, here)
    back = np.stack(links, axis=1)
    turn = (back >= 0).sum(axis=1)[:, None] - 1 - np.arange(back.shape[1])
    return np.where(turn >= 0, np.take_along_axis(back, np.maximum(turn, 0), axis=1), -1)


def by_hops(graph: Graph, ways: Index) -> Algorithm:
    """All first hops in one round, all second ones in the next: fewest messages."""
    chunk, hop = np.nonzero(ways >= 0)
    link = ways[chunk, hop]
    return _made(graph, hop, link, chunk)


def one_by_one(graph: Graph, ways: Index, size_bytes: float) -> Algorithm:
    """A link carries one chunk at a time, of those that wait the one with the longest way ahead."""
    each = size_bytes / graph.ranks / graph.bytes_per_s + graph.latency_s
    ticks = np.ones(graph.links, np.int64)
    if np.ptp(each) > 1e-12 * each.max():
        ticks = np.ceil(each / each.min() * TICKS - 1e-6).astype(np.int64)
    length = (ways >= 0).sum(axis=1)
    at = np.zeros(len(ways), np.int64)
    there, free = np.zeros(len(ways), np.int64), np.zeros(graph.links, np.int64)
    open_ = np.flatnonzero(length > 0)
    rows: list[tuple[int, Index, Index]] = []
    now = 0
    while len(open_):
        link = ways[open_, at[open_]]
        waits = np.flatnonzero((there[open_] <= now) & (free[link] <= now))
        chunk, link = open_[waits], link[waits]
        order = np.lexsort((-(length[chunk] - at[chunk]), link))
        first = order[np.flatnonzero(np.diff(link[order], prepend=-1))]
        chunk, link = chunk[first], link[first]
        rows.append((now, link, chunk))
        free[link] = there[chunk] = now + ticks[link]
        at[chunk] += 1
        open_ = open_[at[open_] < length[open_]]
        now += 1
    rows = [row for row in rows if len(row[1])]
    rounds = np.repeat(np.arange(len(rows)), [len(link) for _, link, _ in rows])
    links, chunks = (np.concatenate([row[part] for row in rows]) for part in (1, 2))
    return _made(graph, rounds, links, chunks)


def _made(graph: Graph, round: Index, link: Index, chunk: Index) -> Algorithm:
    n = graph.ranks
    steps = steps_of(round, graph.tail[link], graph.head[link], chunk)
    return Algorithm(name=SYNTHESIZED, contract=contract("alltoall", n, n * n), nodes=n, steps=steps)
