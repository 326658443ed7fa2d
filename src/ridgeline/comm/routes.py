"""Turn pairs of nodes into the links of their way: the direct link, else a shortest path, always the same one.

On a whole mesh or torus a way goes axis by axis. Pairs begin with different axes, and where both ways round are equally
long half of them go each way, so that an all-to-all loads links evenly.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ridgeline.comm.ecmp_paths import PathTable, follow_paths
from ridgeline.comm.graph import Graph
from ridgeline.core.arrays import Index
from ridgeline.core.errors import InputError, Problem

BATCH = 256  # sources whose paths are searched together
KEPT_NODES = 1100  # up to which the paths from all nodes are kept
KEPT_PAIRS = 1 << 16  # up to which their ways are, on larger graphs


def shortest_routes(graph: Graph, sources: Index, targets: Index) -> Index:
    """(pairs, longest) link numbers from source to target, -1 after the last.

    Of equal ways through switches pairs take one by the sum of their numbers, so that an all-to-all loads all alike.
    """
    pair, index = np.unique(np.asarray(sources, np.int64) * graph.nodes + targets, return_inverse=True)
    keys = graph.tail * graph.nodes + graph.head
    order = np.argsort(keys)
    place = np.minimum(np.searchsorted(keys[order], pair), max(graph.links - 1, 0))
    is_direct = keys[order][place] == pair if graph.links else np.zeros(len(pair), np.bool_)
    direct = np.where(is_direct, order[place], -1) if graph.links else np.full(len(pair), -1)
    if is_direct.all():
        return direct[index][:, None]
    indirect = np.flatnonzero(~is_direct)
    ends = pair[indirect] // graph.nodes, pair[indirect] % graph.nodes
    if graph.direct:
        search = _by_axis if graph.shape else _search_routes
        ways = search(graph, *ends, keys[order], order)
    else:
        ways = follow_paths(_table(graph, ends[1]), *ends, ends[0] + ends[1])
    all_links = np.full((len(pair), max(ways.shape[1], 1)), -1, np.int64)
    all_links[:, 0] = direct
    all_links[indirect, : ways.shape[1]] = ways
    return all_links[index]


def _table(graph: Graph, targets: Index) -> PathTable:
    """Distances to the targets; of graphs that are not large to all ranks, and kept."""
    if graph.nodes <= 2 * KEPT_NODES and (targets < graph.ranks).all():
        return _whole_table(graph)
    return PathTable(graph, targets)


@lru_cache(maxsize=2)
def _whole_table(graph: Graph) -> PathTable:
    return PathTable(graph, np.arange(graph.ranks))


def _by_axis(graph: Graph, sources: Index, targets: Index, keys: Index, order: Index) -> Index:
    """Ways along one axis of the grid after the other."""
    shape, axes = np.array(graph.shape), len(graph.shape)
    here = np.stack(np.unravel_index(sources, graph.shape), axis=1)
    ahead = np.stack(np.unravel_index(targets, graph.shape), axis=1) - here
    half = 2 * np.abs(ahead)
    closes = np.array(graph.wraps)
    ahead = np.where(closes & (half > shape), ahead - np.sign(ahead) * shape, ahead)
    ahead = np.where(closes & (half == shape), np.where(here % 2 == 0, 1, -1) * (shape // 2), ahead)
    turn = ((sources + targets) % axes)[:, None] + np.arange(axes)
    rows, links = np.arange(len(sources)), []
    while ahead.any():
        moves_left = np.take_along_axis(ahead, turn % axes, axis=1) != 0
        going = moves_left.any(axis=1)
        axis = (turn % axes)[rows, moves_left.argmax(axis=1)]
        step = np.where(going, np.sign(ahead[rows, axis]), 0)
        before = np.ravel_multi_index(tuple(here.T), graph.shape)
        here[rows, axis] = (here[rows, axis] + step) % shape[axis]
        ahead[rows, axis] -= step
        key = before * graph.nodes + np.ravel_multi_index(tuple(here.T), graph.shape)
        links.append(np.where(going, order[np.minimum(np.searchsorted(keys, key), len(keys) - 1)], -1))
    return np.stack(links, axis=1)


def _search_routes(graph: Graph, sources: Index, targets: Index, keys: Index, order: Index) -> Index:
    """Shortest paths, a batch of sources at a time."""
    if graph.nodes <= KEPT_NODES:
        return _follow_predecessors(predecessors(graph), sources, targets, keys, order, graph)
    if len(sources) <= KEPT_PAIRS:
        return _cached_routes(graph, sources.tobytes(), targets.tobytes())
    return _routes_in_batches(graph, sources, targets, keys, order)


@lru_cache(maxsize=2)
def _cached_routes(graph: Graph, sources: bytes, targets: bytes) -> Index:
    """The ways of pairs that are asked for again: a tree's, in other numbers of chunks."""
    keys = graph.tail * graph.nodes + graph.head
    order = np.argsort(keys)
    return _routes_in_batches(
        graph, np.frombuffer(sources, np.int64), np.frombuffer(targets, np.int64), keys[order], order
    )


def _routes_in_batches(graph: Graph, sources: Index, targets: Index, keys: Index, order: Index) -> Index:
    starts = np.unique(sources)
    batches: list[tuple[Index, Index]] = []
    for low in range(0, len(starts), BATCH):
        batch = starts[low : low + BATCH]
        before = _before(graph, batch)
        rows = np.flatnonzero(np.isin(sources, batch))
        batches.append(
            (
                rows,
                _follow_predecessors(before, np.searchsorted(batch, sources[rows]), targets[rows], keys, order, graph),
            )
        )
    longest = max(path.shape[1] for _, path in batches)
    all_links = np.full((len(sources), longest), -1, np.int64)
    for rows, path in batches:
        all_links[rows, : path.shape[1]] = path
    return all_links


def _before(graph: Graph, sources: Index) -> NDArray[np.int32]:
    """By source and node the node before it on a shortest path."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

    shape = (graph.nodes, graph.nodes)
    matrix = coo_array((np.ones(graph.links), (graph.tail, graph.head)), shape=shape).tocsr()
    return np.asarray(dijkstra(matrix, indices=sources, return_predecessors=True)[1], np.int32)


@lru_cache(maxsize=2)
def predecessors(graph: Graph) -> NDArray[np.int32]:
    return _before(graph, np.arange(graph.nodes))


def _follow_predecessors(
    before: NDArray[np.int32], row: Index, targets: Index, keys: Index, order: Index, graph: Graph
) -> Index:
    """Paths from predecessors, last link first and then turned round."""
    here = targets.copy()
    links = []
    while True:
        last = before[row, here].astype(np.int64)
        going = last >= 0
        if not going.any():
            break
        link = np.full(len(here), -1, np.int64)
        link[going] = order[np.searchsorted(keys, last[going] * graph.nodes + here[going])]
        links.append(link)
        here = np.where(going, last, here)
    if not links or (links[0] < 0).any():
        lost = int(np.flatnonzero(links[0] < 0)[0]) if links else 0
        raise InputError(
            Problem(path="topology", given=f"no path to node {int(targets[lost])}", expected="a connected graph")
        )
    back = np.stack(links, axis=1)
    length = (back >= 0).sum(axis=1)
    turn = length[:, None] - 1 - np.arange(back.shape[1])
    return np.where(turn >= 0, np.take_along_axis(back, np.maximum(turn, 0), axis=1), -1)
