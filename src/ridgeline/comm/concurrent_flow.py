"""Turn a graph into what an all-to-all takes at least: the dual of the maximum concurrent flow.

Give every link a length l. All pairs' bytes travel at least their distance, and a second moves at most sum of rate x l:

    T >= (M / N) sum over pairs of distance / sum over links of rate l        for any lengths

Lengths grow where shortest ways crowd (multiplicative weights), which brings the bound near the flow's optimum.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from ridgeline.comm.graph import Graph
from ridgeline.core.arrays import Array, Index

PASSES = 60
GROWTH = 2.0  # of the fullest link's length in a pass, falling


def exchange_seconds(graph: Graph, passes: int = PASSES) -> float:
    """Seconds that no all-to-all of M = 1 byte a rank beats on a graph of direct links.

    >>> from ridgeline.comm.topologies import topology
    >>> round(exchange_seconds(topology("ring:8", 1.0)), 3)  # M p / 8 b
    1.0
    """
    n, rate = graph.ranks, graph.bytes_per_s
    length, best = 1 / rate, 0.0
    at = np.full((n, n), -1, np.int64)
    at[graph.tail, graph.head] = np.arange(graph.links)
    for step in range(passes):
        matrix = csr_array((length, (graph.tail, graph.head)), shape=(n, n))
        far, last = dijkstra(matrix, return_predecessors=True)
        best = max(best, float(far.sum() / n / (rate * length).sum()))
        full = _loads(at, far, last, graph.links) / rate
        length = length * np.exp(GROWTH / (1 + step / 4) * full / full.max())
        length /= length.max()
    return best


def _loads(at: Index, far: Array, last: Index, links: int) -> Array:
    """How many pairs' shortest ways cross each link."""
    n = len(far)
    rows, below = np.arange(n), np.ones((n, n))
    load = np.zeros(links)
    for node in np.argsort(-far, axis=1)[:, : n - 1].T:  # farthest first, of every source at once
        before = last[rows, node]
        carried = below[rows, node]
        below[rows, before] += carried
        load += np.bincount(at[before, node], carried, links)
    return load
