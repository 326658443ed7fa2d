"""Spanning trees that share the links of a graph evenly: an all-reduce in M / tau, below reduce-scatter and all-gather.

An all-reduce over a spanning tree sums towards the root and copies back: every link of the tree carries the data once
in each direction. K trees with 1/K of the vector each take max over links of (trees on it / rate) M / K. By
Nash-Williams and Tutte the best packing reaches tau = min over partitions P of (rate between parts) / (|P| - 1).

Trees start as shortest ways from many roots, and then give up crowded links for less crowded ones of the same cut.

Trees of an all-reduce through switches: what a slow port or a lost rail costs is paid once, not twice.

A reduce-scatter and an all-gather take every part of the vector into every rank and out of it again, one after the
other. Over trees both go at the same time, and a rank that is a leaf of all of them sends and gets the vector once. A
tree grows from its root by the pair of ranks whose ways other trees crowd least, two children a rank: slow ports and
those that had children before come last and get none.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, dijkstra, minimum_spanning_tree

from ridgeline.comm.algorithm import COPY, REDUCE, Algorithm, algorithm_of, steps_of
from ridgeline.comm.graph import Graph
from ridgeline.comm.routes import shortest_routes
from ridgeline.core.arrays import Array, Index, Mask

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
            yield switched_allreduce(graph, ways, trees, pieces)


def switched_allreduce(graph: Graph, ways: Index, trees: list[Index], pieces: int) -> Algorithm:
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
        while coming and coming[0][0] == now:  # what arrives leaves its links free, and lets others go
            _, pair, (piece, _, tree, op) = heapq.heappop(coming)
            busy.difference_update(links[pair])
            tree_arrivals(ready, plans[tree], (tree, piece, pair[1], op), waiting[tree * pieces + piece])
    return allreduce_of(rows, graph.ranks, pieces * len(trees))


def _all_ways(graph: Graph) -> Index:
    """(ranks, ranks, longest) links from one rank to another, -1 after the last."""
    n = graph.ranks
    source, target = np.indices((n, n)).reshape(2, -1)
    is_pair = source != target
    ways_found = shortest_routes(graph, source[is_pair], target[is_pair])
    ways = np.full((n * n, ways_found.shape[1]), -1)
    ways[is_pair] = ways_found
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
        open_, outside = np.flatnonzero(inside & (children < CHILDREN)), np.flatnonzero(~inside)
        place = crowd[np.ix_(open_, outside)] + SHALLOW * depth[open_][:, None]
        at, which = np.unravel_index(int(place.argmin()), place.shape)
        up, child = int(open_[at]), int(outside[which])
        parent[child], depth[child], inside[child] = up, depth[up] + 1, True
        children[up] += 1
        for way in (ways[up, child], ways[child, up]):
            load[way[way >= 0]] += 1
    load[-1] = 0
    return parent


EXCHANGES = 6000  # links given up for others, at most
IDLE = 300  # tries in a row that find none
STEEP = 4.0  # a link twice as full as the mean is e**STEEP as long
TIES = 0.2  # of a link's length, at random

# By source and target the chunks that can go: piece, urgency, tree, op.
Ready = dict[tuple[int, int], list[tuple[int, int, int, int]]]


def packed_trees(graph: Graph, count: int, seed: int = 0) -> list[Index]:
    """Parents of `count` spanning trees, each rooted at its centre, that load links evenly for their rates.

    Where links are equal each is a tree of shortest ways from another root, a link the longer the more it carries:
    shallow trees fill sooner than minimum spanning trees, which are twice as deep on a random graph.
    """
    once = np.flatnonzero(graph.tail < graph.head)
    u, v = graph.tail[once], graph.head[once]
    rate = graph.bytes_per_s[once] / graph.bytes_per_s.max()
    random = np.random.default_rng(seed)
    used = np.zeros((count, len(once)), np.bool_)
    load = np.zeros(len(once))
    at = np.full((graph.ranks, graph.ranks), -1, np.int64)
    at[u, v] = at[v, u] = np.arange(len(once))
    even = bool((rate == 1).all())
    roots = np.resize(random.permutation(graph.ranks) if even else 0, count)
    for tree in range(count):
        if even:
            rows = at[_shortest(graph, (u, v), load, int(roots[tree]), random)]
        else:  # a minimum spanning tree: where rates differ it keeps off slow links
            weight = 1.0 + (load + 1) / rate + 0.5 * random.random(len(load))
            spanning = minimum_spanning_tree(csr_array((weight, (u, v)), shape=(graph.ranks, graph.ranks))).tocoo()
            rows = at[spanning.row, spanning.col]
        used[tree, rows] = True
        load[rows] += 1
    _even_out(used, load, (u, v, rate), graph.ranks, random)
    return [_root_at_centre(u[row], v[row], graph.ranks) for row in used]


def _shortest(
    graph: Graph, ends: tuple[Index, Index], load: Array, root: int, random: np.random.Generator
) -> tuple[Index, Index]:
    """Links, as ends, of a tree of shortest ways from a root; full links are long."""
    weight = np.exp(STEEP * (load / max(float(load.mean()), 1.0) - 1)) + TIES * random.random(len(load))
    both_ends = (np.concatenate(ends), np.concatenate(ends[::-1]))
    matrix = csr_array((np.tile(weight, 2), both_ends), shape=(graph.ranks, graph.ranks))
    before = dijkstra(matrix, indices=np.array([root]), return_predecessors=True)[1][0].astype(np.int64)
    below = np.flatnonzero(before >= 0)
    return before[below], below


def _even_out(
    used: Mask, load: Array, links: tuple[Index, Index, Array], ranks: int, random: np.random.Generator
) -> None:
    """Move trees off the most crowded links while that helps."""
    u, v, rate = links
    ideal = len(used) * (ranks - 1) / rate.sum()
    idle = 0
    for _ in range(EXCHANGES):
        crowd = load / rate
        worst = float(crowd.max())
        if worst <= ideal + 1e-9 or (worst < np.ceil(ideal) + 1e-9 and bool((rate == 1).all())):
            return
        top = np.flatnonzero(crowd >= worst - 1e-9)
        link = int(random.choice(top))
        tree = int(random.choice(np.flatnonzero(used[:, link])))
        inside = used[tree].copy()
        inside[link] = False
        matrix = csr_array((np.ones(int(inside.sum())), (u[inside], v[inside])), shape=(ranks, ranks))
        _, label = connected_components(matrix, directed=False)
        across = np.flatnonzero(label[u] != label[v])
        after = (load[across] + 1) / rate[across] + 1e-3 * random.random(len(across))
        replacement = int(across[np.argmin(after)])
        if replacement != link and (load[replacement] + 1) / rate[replacement] <= worst + 1e-9:
            used[tree, link], used[tree, replacement] = False, True
            load[link] -= 1
            load[replacement] += 1
            idle = 0
        idle += 1
        if idle > IDLE:
            return


def _root_at_centre(u: Index, v: Index, ranks: int) -> Index:
    """Parents of a tree rooted in the middle of its longest path."""
    adjacency = csr_array((np.ones(2 * len(u)), (np.concatenate([u, v]), np.concatenate([v, u]))), shape=(ranks, ranks))
    far = int(breadth_first_order(adjacency, 0)[0][-1])
    order, before = breadth_first_order(adjacency, far)
    path = [int(order[-1])]
    while path[-1] != far:
        path.append(int(before[path[-1]]))
    _, parent = breadth_first_order(adjacency, path[len(path) // 2])
    return np.where(parent < 0, -1, parent).astype(np.int64)


def scheduled_allreduce(trees: list[Index], pieces: int) -> Algorithm:
    """All-reduce over the trees, each part in `pieces` chunks; a link carries the most urgent chunk that is ready.

    Urgent are early chunks, and of these the ones with the longest way ahead.
    """
    plans, ready, waiting = begun(trees, pieces)
    rows: list[tuple[int, int, int, int, int]] = []
    round = 0
    while ready:
        sent = [(link, heapq.heappop(queue)) for link, queue in ready.items()]
        ready = {link: queue for link, queue in ready.items() if queue}
        for (source, target), (piece, _, tree, op) in sent:
            chunk = tree * pieces + piece
            rows.append((round, source, target, chunk, op))
            tree_arrivals(ready, plans[tree], (tree, piece, target, op), waiting[chunk])
        round += 1
    return allreduce_of(rows, len(trees[0]), pieces * len(trees))


def timed_allreduce(trees: list[Index], pieces: int, seconds: dict[tuple[int, int], float]) -> Algorithm:
    """The same over links of unequal rates: a link takes the most urgent chunk that is ready when it is free.

    seconds   what a chunk takes on each link. A round is the first after what a step needs: what its chunk is made of,
              and the link's step before.
    """
    plans, ready, waiting = begun(trees, pieces)
    rows: list[tuple[int, int, int, int, int]] = []
    level: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    ends: list[tuple[float, int, tuple[int, int], tuple[int, int, int, int], int]] = []
    busy: set[tuple[int, int]] = set()
    now, free = 0.0, list(ready)
    while free or ends:
        for link in free:
            queue = ready.get(link)
            if link in busy or not queue:
                continue
            piece, urgency, tree, op = heapq.heappop(queue)
            chunk = tree * pieces + piece
            round = 1 + max(level.get((link[0], chunk), -1), last.get(link, -1))
            last[link] = round
            rows.append((round, *link, chunk, op))
            busy.add(link)
            heapq.heappush(ends, (now + seconds[link], len(rows), link, (piece, urgency, tree, op), round))
        if not ends:
            break
        now, _, link, (piece, _, tree, op), round = heapq.heappop(ends)
        chunk, node = tree * pieces + piece, link[1]
        level[node, chunk] = max(level.get((node, chunk), -1), round)
        busy.discard(link)
        free = [link, *tree_arrivals(ready, plans[tree], (tree, piece, node, op), waiting[chunk])]
    return allreduce_of(rows, len(trees[0]), pieces * len(trees))


def begun(trees: list[Index], pieces: int) -> tuple[list[TreePlan], Ready, list[list[int]]]:
    """The trees as plans, what their leaves can send, and by chunk and rank how many children are awaited."""
    ready: Ready = {}
    plans = [TreePlan(parent, index * pieces) for index, parent in enumerate(trees)]
    for index, plan in enumerate(plans):
        for piece in range(pieces):
            for leaf in plan.leaves:
                plan.offer(ready, index, piece, leaf, REDUCE)
    return plans, ready, np.concatenate([np.tile(plan.children, (pieces, 1)) for plan in plans]).tolist()


def allreduce_of(rows: list[tuple[int, int, int, int, int]], ranks: int, chunks: int) -> Algorithm:
    """The all-reduce of rows (round, source, target, chunk, op)."""
    round_, source_, target_, chunk_, op_ = np.array(rows, np.int64).T
    steps = steps_of(round_, source_, target_, chunk_, op_.astype(np.int8))
    return algorithm_of("tree-packing", "allreduce", ranks, chunks, steps)


def tree_arrivals(
    ready: Ready,
    plan: TreePlan,
    what: tuple[int, int, int, int],
    waiting: list[int],
) -> list[tuple[int, int]]:
    """The links that a chunk's arrival gives something to send: its sum up, or the whole down."""
    tree, piece, node, op = what
    if op == REDUCE:
        waiting[node] -= 1
        if waiting[node]:
            return []
        if plan.parent[node] >= 0:
            return [plan.offer(ready, tree, piece, node, REDUCE)]
    return [plan.offer(ready, tree, piece, child, COPY) for child in plan.below[node]]


class TreePlan:
    """A tree as lists: parents, children, and how long the way of a chunk still is."""

    def __init__(self, parent: Index, first: int) -> None:
        n = len(parent)
        self.first = first
        self.parent: list[int] = parent.tolist()
        self.below: list[list[int]] = [[] for _ in range(n)]
        for node, up in enumerate(self.parent):
            if up >= 0:
                self.below[up].append(node)
        self.children = np.array([len(children) for children in self.below], np.int64)
        self.leaves = [node for node in range(n) if not self.below[node] and self.parent[node] >= 0]
        self.depth, self.height = [0] * n, [0] * n
        order = [node for node in range(n) if self.parent[node] < 0]
        for node in order:
            for child in self.below[node]:
                self.depth[child] = self.depth[node] + 1
                order.append(child)
        for node in reversed(order):
            self.height[node] = max((self.height[child] + 1 for child in self.below[node]), default=0)
        self.deep = max(self.depth)

    def offer(self, ready: Ready, tree: int, piece: int, node: int, op: int) -> tuple[int, int]:
        """Queue the chunk on the link between a node and its parent, upwards to add or downwards to copy."""
        up = self.parent[node]
        link = (node, up) if op == REDUCE else (up, node)
        ahead = self.depth[node] + self.deep if op == REDUCE else self.height[node] + 1
        heapq.heappush(ready.setdefault(link, []), (piece, -ahead, tree, op))
        return link
