"""Turn a graph into one whose interchangeable switches are one: equal ways through a fabric carry equal parts.

Spines of a leaf-spine network, or middle and top switches of a fat tree, stand for each other: every one of them has
links of the same rates to the same neighbours, or to neighbours that stand for each other. An alpha-beta time asks what
the fabric carries when its ways are used alike, so there they count as one switch with the rate of all their links;
what collides when each message takes one way, by a fixed rule or a hash, the simulation says. A joined link is taken by
a round for its own bytes; a message that is slow elsewhere does not hold up the others there.

Switches that ranks are linked to stay as they are: a message leaves its rank through one port. Where a leaf's switches
above it differ (a lost or slow link), none are joined, and ways are those of `routes`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ridgeline.comm.graph import Graph
from ridgeline.core.arrays import Array, Index, Mask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MergedFabric:
    """The graph with switches joined.

    link   for each link of the graph before, its number here; None: nothing to join
    wide   links here that stand for several
    """

    graph: Graph
    link: Index | None
    wide: Mask

    def spread_load(self, carried: Array, before: Graph) -> Array:
        """Bytes of each link of the graph before: equal parts of what the joined ones carried."""
        if self.link is None:
            return carried
        parts: Array = carried[self.link] * before.bytes_per_s / self.graph.bytes_per_s[self.link]
        return parts


@lru_cache(maxsize=4)
def merge_switches(graph: Graph) -> MergedFabric:
    """The graph with interchangeable switches as one.

    >>> from ridgeline.comm.topologies import topology
    >>> merge_switches(topology("leafspine:4x8x8", 50e9)).graph.nodes, 4 * 8 + 4 + 1
    (37, 37)
    """
    inner = _inner(graph)
    number = _classes(graph, inner) if int(inner.sum()) > 1 else np.arange(graph.nodes)
    if int(number.max()) + 1 == graph.nodes or _leaves_choose(graph, inner, number):
        return MergedFabric(graph=graph, link=None, wide=np.zeros(graph.links, np.bool_))
    tail, head = number[graph.tail], number[graph.head]
    nodes = int(number.max()) + 1
    keys, first, link = np.unique(tail * nodes + head, return_index=True, return_inverse=True)
    latency = np.zeros(len(keys))
    np.maximum.at(latency, link, graph.latency_s)
    merged_graph = replace(
        graph,
        nodes=nodes,
        tail=tail[first],
        head=head[first],
        bytes_per_s=np.bincount(link, graph.bytes_per_s).astype(np.float64),
        latency_s=latency,
        reducing=-1 if graph.reducing < 0 else int(number[graph.reducing]),
    )
    return MergedFabric(graph=merged_graph, link=link, wide=np.bincount(link) > 1)


def _inner(graph: Graph) -> Mask:
    """Switches that only switches are linked to."""
    inner = np.arange(graph.nodes) >= graph.ranks
    inner[graph.head[graph.tail < graph.ranks]] = False
    inner[graph.tail[graph.head < graph.ranks]] = False
    if graph.reducing >= 0:
        inner[graph.reducing] = False
    return inner


def _classes(graph: Graph, inner: Mask) -> Index:
    """New numbers of nodes, alike for inner switches that no links tell apart (the coarsest equitable partition)."""
    number = np.where(inner, graph.nodes, np.arange(graph.nodes)).astype(np.int64)
    weight = _mix(graph.bytes_per_s.view(np.uint64) ^ _mix(graph.latency_s.view(np.uint64)))
    count = 0
    while True:
        neighbour_hash = np.zeros(graph.nodes, np.uint64)
        for here, there, side in ((graph.tail, graph.head, 1), (graph.head, graph.tail, 2)):
            np.add.at(
                neighbour_hash,
                here,
                _mix(weight ^ _mix(number[there].astype(np.uint64) * np.uint64(4) + np.uint64(side))),
            )
        _, class_number = np.unique(
            np.stack([number[inner].astype(np.uint64), neighbour_hash[inner]]), axis=1, return_inverse=True
        )
        class_count = int(class_number.max()) + 1
        number[inner] = graph.nodes + class_number.ravel()
        if class_count == count:
            break
        count = class_count
    _, first, place = np.unique(number, return_index=True, return_inverse=True)
    turn = np.argsort(np.argsort(first))  # classes in the order of their first nodes
    return turn[place.ravel()].astype(np.int64)


def _leaves_choose(graph: Graph, inner: Mask, number: Index) -> bool:
    """Whether some switch of ranks is linked to inner switches of two classes."""
    up = ~inner[graph.tail] & inner[graph.head]
    pairs = np.unique(np.stack([graph.tail[up], number[graph.head[up]]]), axis=1)
    return bool((np.bincount(pairs[0]) > 1).any()) if pairs.size else True


def _mix(key: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed_key: np.ndarray = key ^ (key >> np.uint64(31))
    return mixed_key
