"""Turn a graph of direct links into what no all-reduce beats: what spanning trees can share, by lengths of links.

By Nash-Williams and Tutte trees can carry tau = min over partitions P of (rate between parts) / (|P| - 1), and an
all-reduce takes M / tau at least. For any lengths of links

    tau <= (sum of rate x length) / (length of the shortest spanning tree)

so that every try is a bound. Lengths grow where shortest trees crowd, as multiplicative weights do. After some tens of
trees the most crowded links are those between the parts of the tightest partition: what is left without them, for each
degree of crowding, is a partition to try.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ridgeline.comm.graph import Graph
from ridgeline.core.arrays import Array, Index

MOST_RANKS = 256
TREES = 120
STEEP = 12.0  # the most crowded link is e**STEEP as long as an idle one
LEVELS = 40  # degrees of crowding that are tried


@lru_cache(maxsize=4)
def trees_seconds(graph: Graph) -> float:
    """Seconds of an all-reduce of one byte that no algorithm beats; 0 on large graphs and through switches.

    >>> from ridgeline.comm.topologies import topology
    >>> round(trees_seconds(topology("mesh:8x8", 1.0)), 3)
    0.562
    """
    if not graph.direct or not 1 < graph.ranks <= MOST_RANKS:
        return 0.0
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    low, high = np.minimum(graph.tail, graph.head), np.maximum(graph.tail, graph.head)
    pair, index = np.unique(low * graph.ranks + high, return_inverse=True)
    rate = np.bincount(index, graph.bytes_per_s) / 2  # of both directions
    ends, shape = (pair // graph.ranks, pair % graph.ranks), (graph.ranks, graph.ranks)
    load, best = np.zeros(len(pair)), 0.0
    for _ in range(TREES):
        crowd = load / rate
        length = np.exp(STEEP * (crowd / max(float(crowd.max()), 1e-300) - 1)) / (rate if not load.any() else 1.0)
        tree = minimum_spanning_tree(csr_array((length, ends), shape=shape)).tocoo()
        best = max(best, float(tree.data.sum() / (rate * length).sum()))
        load[np.searchsorted(pair, tree.row.astype(np.int64) * graph.ranks + tree.col)] += 1
    return max(best, _partitioned(ends, rate, load / rate, graph.ranks))


def _partitioned(ends: tuple[Index, Index], rate: Array, crowd: Array, ranks: int) -> float:
    """The tightest partition into what the less crowded links join."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    best = 0.0
    for most in np.unique(np.round(crowd / crowd.max(), 3))[-LEVELS:]:
        kept = crowd < most * crowd.max() * (1 - 1e-3)
        inside = (ends[0][kept], ends[1][kept])
        parts, label = connected_components(csr_array((np.ones(int(kept.sum())), inside), shape=(ranks, ranks)), False)
        across = float(rate[label[ends[0]] != label[ends[1]]].sum())
        if parts > 1:
            best = max(best, (parts - 1) / across)
    return best
