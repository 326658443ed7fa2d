"""Turn a graph of any shape into sets of nodes that few links leave: sweeps over orders in which near nodes are near.

Nodes are put in order by an eigenvector of the graph's Laplacian (the Fiedler vector and the next), on large graphs
by what a random walk of many steps leaves of it, and by their distance from a node at the rim; every beginning of such
an order is a set. A network of two halves that one link joins shows that link. Each set is a cut like any other, so a
bound by it holds; only how tight it is depends on the order.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ridgeline.comm.graph import Graph
from ridgeline.core.arrays import Array, Index, Mask

MOST_NODES = 512  # eigenvectors of more take seconds
VECTORS = 4
WALKS, WALKED = 2, 80  # random walks on larger graphs, and their steps


def sweep_cuts(graph: Graph, root: int) -> tuple[Array, Array, Array, Mask]:
    """For each set: ranks in it, rate out of it and into it, and whether the root is in it.

    >>> from ridgeline.comm.graph import without
    >>> from ridgeline.comm.topologies import topology
    >>> bridged = without(topology("mesh:2x6", 1.0), ["link:2-3"])  # one link between halves is left
    >>> inside, out, _, _ = sweep_cuts(bridged, 0)
    >>> float((inside / out).max())
    6.0
    """
    if graph.nodes < 4:
        none = np.zeros(0)
        return none, none, none, none.astype(np.bool_)
    parts = [_swept(graph, order, root) for order in _orders(graph)]
    inside, out, into, rooted = (np.concatenate(column) for column in zip(*parts, strict=True))
    return inside, out, into, rooted


@lru_cache(maxsize=4)
def tight_sets(graph: Graph) -> list[Mask]:
    """Of each sweep the set with most ranks for the rate out of it, counted from its smaller side; none of one rank."""
    made: list[Mask] = []
    if graph.nodes < 4:
        return made
    for order in _orders(graph):
        inside, out, _, _ = _swept(graph, order, 0)
        ranks = np.minimum(inside, graph.ranks - inside)
        with np.errstate(divide="ignore", invalid="ignore"):
            tight = np.where(ranks > 1, ranks / out, 0.0)
        best = int(tight.argmax())
        if tight[best] > 0:
            mask = np.zeros(graph.nodes, np.bool_)
            mask[order[: best + 1]] = True
            made.append(mask)
    return made


@lru_cache(maxsize=4)
def _orders(graph: Graph) -> list[Index]:
    """Nodes in the order of the Laplacian's first eigenvectors after the constant one."""
    if graph.nodes > MOST_NODES:
        return _walk_orders(graph)
    weight = np.zeros((graph.nodes, graph.nodes))
    np.add.at(weight, (graph.tail, graph.head), graph.bytes_per_s / graph.bytes_per_s.max())
    weight = weight + weight.T
    laplacian = np.diag(weight.sum(axis=1)) - weight
    _, vectors = np.linalg.eigh(laplacian)
    return [np.argsort(vectors[:, one], kind="stable") for one in range(1, min(1 + VECTORS, graph.nodes))]


def _walk_orders(graph: Graph) -> list[Index]:
    """Nodes by what is slow to even out in a lazy random walk, and by their distance from a rim."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order

    ends = (np.concatenate([graph.tail, graph.head]), np.concatenate([graph.head, graph.tail]))
    weight = np.tile(graph.bytes_per_s / graph.bytes_per_s.max(), 2)
    matrix = coo_array((weight, ends), shape=(graph.nodes, graph.nodes)).tocsr()
    total = np.asarray(matrix.sum(axis=1)).ravel()
    left = np.random.default_rng(0).standard_normal((graph.nodes, WALKS))
    for _ in range(WALKED):
        left -= (total @ left) / total.sum()
        left = (left + (matrix @ left) / total[:, None]) / 2
    rim = int(breadth_first_order(matrix, 0, return_predecessors=False)[-1])
    by_distance = breadth_first_order(matrix, rim, return_predecessors=False).astype(np.int64)
    walks = [np.argsort(left[:, one], kind="stable") for one in range(WALKS)]
    return [*walks, by_distance] if len(by_distance) == graph.nodes else walks


def _swept(graph: Graph, order: Index, root: int) -> tuple[Array, Array, Array, Mask]:
    """The same for every beginning of an order, shortest first."""
    place = np.empty(graph.nodes, np.int64)
    place[order] = np.arange(graph.nodes)
    low, high = place[graph.tail], place[graph.head]
    inside = np.cumsum(order < graph.ranks)[:-1]
    out = _crossed(low, high, graph.bytes_per_s, graph.nodes)
    into = _crossed(high, low, graph.bytes_per_s, graph.nodes)
    return inside.astype(np.float64), out, into, np.arange(graph.nodes - 1) >= place[root]


def _crossed(begin: Index, end: Index, rate: Array, nodes: int) -> Array:
    """Rate of links that begin inside and end outside of each beginning."""
    leaves = begin < end
    opened = np.bincount(begin[leaves], rate[leaves], nodes)
    closed = np.bincount(end[leaves], rate[leaves], nodes)
    return np.maximum(np.cumsum(opened - closed)[:-1], 0.0)
