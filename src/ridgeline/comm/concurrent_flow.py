"""Turn a graph and what must travel on it into a time that nothing beats: the dual of the maximum concurrent flow.

Give every link a length l. What a chunk needs travels at least the distance between the two of its ranks that are
farthest apart, and a second moves at most sum of rate x l:

    T >= sum over chunks of bytes x distance / sum over links of rate l        for any lengths

Lengths grow where shortest ways crowd (multiplicative weights), which brings the bound near the flow's optimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from ridgeline.comm.graph import Graph
from ridgeline.core.arrays import Array, Index

PASSES = 60
GROWTH = 2.0  # of the fullest link's length in a pass, falling


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trips:
    """Pairs of ranks between which a chunk must travel, chunk by chunk; `first` is where each chunk's pairs begin."""

    source: Index
    target: Index
    first: Index
    bytes: Array


def exchange_seconds(graph: Graph, passes: int = PASSES) -> float:
    """Seconds that no all-to-all of M = 1 byte a rank beats on a graph of direct links.

    >>> from ridgeline.comm.topologies import topology
    >>> round(exchange_seconds(topology("ring:8", 1.0)), 3)  # M p / 8 b
    1.0
    """
    n = graph.ranks
    source, target = np.nonzero(~np.eye(n, dtype=np.bool_))
    every = np.arange(len(source))
    return flow_seconds(
        graph, Trips(source=source, target=target, first=every, bytes=np.full(len(every), 1 / n)), passes
    )


def flow_seconds(graph: Graph, trips: Trips, passes: int = PASSES) -> float:
    """Seconds that nothing beats that makes these trips, through switches or not."""
    if not len(trips.first):
        return 0.0
    nodes, rate = graph.nodes, graph.bytes_per_s
    starts, row = np.unique(trips.source, return_inverse=True)
    at = np.full((nodes, nodes), -1, np.int64)
    at[graph.tail, graph.head] = np.arange(graph.links)
    length, best = 1 / rate, 0.0
    for step in range(passes):
        matrix = csr_array((length, (graph.tail, graph.head)), shape=(nodes, nodes))
        far, last = dijkstra(matrix, indices=starts, return_predecessors=True)
        apart = far[row, trips.target]
        longest = np.maximum.reduceat(apart, trips.first)
        best = max(best, float((trips.bytes * longest).sum() / (rate * length).sum()))
        sent = np.zeros(far.shape)
        chunk = np.repeat(np.arange(len(trips.first)), np.diff(np.append(trips.first, len(apart))))
        np.add.at(sent, (row, trips.target), np.where(apart >= longest[chunk], trips.bytes[chunk], 0.0))
        full = _loads(at, far, last.astype(np.int64), sent, graph.links) / rate
        length = length * np.exp(GROWTH / (1 + step / 4) * full / full.max())
        length /= length.max()
    return best


def _loads(at: Index, far: Array, last: Index, sent: Array, links: int) -> Array:
    """Bytes on each link when all go the shortest ways: by source and node what is sent there."""
    rows, below = np.arange(len(far)), sent.copy()
    load = np.zeros(links)
    known = np.where(np.isfinite(far), far, -1.0)
    for node in np.argsort(-known, axis=1).T:  # farthest first, of every source at once
        before = last[rows, node]
        goes = before >= 0
        carried = below[rows, node]
        np.add.at(below, (rows[goes], before[goes]), carried[goes])
        load += np.bincount(at[before[goes], node[goes]], carried[goes], links)
    return load
