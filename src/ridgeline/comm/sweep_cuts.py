"""Turn a graph of any shape into sets of nodes that few links leave: sweeps over orders in which near nodes are near.

Nodes are put in order by an eigenvector of the graph's Laplacian (the Fiedler vector and the next ones); every
beginning of such an order is a set. A network of two halves that one link joins shows that link. Each set is a cut like
any other, so a bound by it holds; only how tight it is depends on the order.
"""

from __future__ import annotations

import numpy as np

from ridgeline.comm.graph import Graph
from ridgeline.core.arrays import Array, Index, Mask

MOST_NODES = 512  # eigenvectors of more take seconds
VECTORS = 4


def sweep_cuts(graph: Graph, root: int) -> tuple[Array, Array, Array, Mask]:
    """For each set: ranks in it, rate out of it and into it, and whether the root is in it.

    >>> from ridgeline.comm.graph import without
    >>> from ridgeline.comm.topologies import topology
    >>> bridged = without(topology("mesh:2x6", 1.0), ["link:2-3"])  # one link between halves is left
    >>> inside, out, _, _ = sweep_cuts(bridged, 0)
    >>> float((inside / out).max())
    6.0
    """
    if graph.nodes > MOST_NODES or graph.nodes < 4:
        none = np.zeros(0)
        return none, none, none, none.astype(np.bool_)
    parts = [_swept(graph, order, root) for order in _orders(graph)]
    inside, out, into, rooted = (np.concatenate(column) for column in zip(*parts, strict=True))
    return inside, out, into, rooted


def _orders(graph: Graph) -> list[Index]:
    """Nodes in the order of the Laplacian's first eigenvectors after the constant one."""
    weight = np.zeros((graph.nodes, graph.nodes))
    np.add.at(weight, (graph.tail, graph.head), graph.bytes_per_s / graph.bytes_per_s.max())
    weight = weight + weight.T
    laplacian = np.diag(weight.sum(axis=1)) - weight
    _, vectors = np.linalg.eigh(laplacian)
    return [np.argsort(vectors[:, one], kind="stable") for one in range(1, min(1 + VECTORS, graph.nodes))]


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
