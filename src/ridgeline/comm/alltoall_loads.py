"""Turn a graph of direct links into what everyone sending to everyone puts on each link, path by path of `routes`.

The paths from a rank form a tree: a link of it carries a message for each rank behind it. Trees of all ranks are added
up at once, farthest ranks first, in as many passes as the longest path has links.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ridgeline.comm.graph import Graph
from ridgeline.comm.routes import predecessors
from ridgeline.core.arrays import Array


def alltoall_floor(graph: Graph, size_bytes: float) -> float:
    """Seconds of the busiest link when every rank sends 1/N of the size to every other, all at once."""
    messages = _loads(graph)
    spent = graph.latency_s + messages * (size_bytes / graph.ranks) / graph.bytes_per_s
    return float(np.where(messages > 0, spent, 0.0).max(initial=0.0))


@lru_cache(maxsize=2)
def _loads(graph: Graph) -> Array:
    """Messages on each link."""
    n = graph.nodes
    before = predecessors(graph)
    source, node = np.nonzero(before >= 0)
    flat, up = source * n + node, source * n + before[source, node]
    far = _depths(before)[source, node]
    order = np.argsort(far, kind="stable")
    behind = np.ones(n * n, np.int64)  # ranks behind a node in a source's tree, itself counted
    first = np.searchsorted(far[order], np.arange(1, int(far.max(initial=0)) + 2))
    for low, high in zip(first[-2::-1], first[:0:-1], strict=True):
        rows = order[low:high]
        np.add.at(behind, up[rows], behind[flat[rows]])
    number = np.full(n * n, -1, np.int64)
    number[graph.tail * n + graph.head] = np.arange(graph.links)
    link = number[before[source, node].astype(np.int64) * n + node]
    return np.bincount(link, behind[flat], graph.links).astype(np.float64)


def _depths(before: NDArray[np.int32]) -> NDArray[np.int32]:
    """Links of the path from each source to each node, by doubling: a node's ancestors at 1, 2, 4, ... links."""
    n = len(before)
    here = np.where(before >= 0, before, np.arange(n)[:, None]).astype(np.int32)  # a source is its own ancestor
    depth = (before >= 0).astype(np.int32)
    rows = np.arange(n)[:, None]
    while True:
        more = depth[rows, here]
        if not more.any():
            return depth
        depth = depth + more
        here = here[rows, here]
