"""Turn a graph into its equal shortest ways: at each node the links that bring a target nearer, and one picked of them.

Ways through another rank count as longer than any through switches: ranks forward only where nothing else joins them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ridgeline.comm.contract import Ints
from ridgeline.comm.graph import Graph, link_matrix, links_between, number_keys, ranges, refusal
from ridgeline.core.arrays import Array, Index, Mask

MOST_EXPANDED = 1 << 22  # links looked at together


def hop_weights(graph: Graph) -> Array:
    """What a link adds to the length of a way: 1, and 8 more where a rank sends into a network of switches.

    Where ranks of a domain are linked to each other (slices of a torus, a full mesh), a hop between two ranks counts 8,
    and the network between domains is farther than any way inside one.
    """
    if graph.direct:
        return np.ones(graph.links)
    leaves, arrives = graph.tail < graph.ranks, graph.head < graph.ranks
    if not bool((leaves & arrives).any()):
        return np.where(leaves, 9.0, 1.0)
    return np.where(leaves & ~arrives, 1.0 + 8.0 * graph.ranks, np.where(leaves & arrives, 8.0, 1.0))


class PathTable:
    """The graph prepared for looking up equal ways: links by tail, and distances to the targets asked for."""

    def __init__(self, graph: Graph, targets: Index) -> None:
        self.graph, self.weight = graph, hop_weights(graph)
        is_target = np.zeros(graph.nodes, np.bool_)
        is_target[targets] = True
        self.targets = np.flatnonzero(is_target)
        self.distance = self._distances()
        self.order = np.argsort(graph.tail, kind="stable")
        count = np.bincount(graph.tail, minlength=graph.nodes)
        self.count, self.first = count, np.cumsum(count) - count
        self.kin = self._kin()
        self.lists: int | None = None  # where the compiled core keeps what it found

    def _distances(self) -> Array:
        """(targets, nodes) lengths of ways: to the nodes before a target, one search each, and its last link."""
        from scipy.sparse.csgraph import dijkstra

        graph = self.graph
        back = link_matrix(graph, self.weight, turned=True)
        last = np.flatnonzero(np.isin(graph.head, self.targets))
        last = last[np.argsort(graph.head[last], kind="stable")]
        before, place = np.unique(graph.tail[last], return_inverse=True)
        ends, first = np.unique(graph.head[last], return_index=True)
        if len(before) >= len(self.targets) or len(ends) < len(self.targets):
            distances: Array = dijkstra(back, indices=self.targets)
            return distances
        through = dijkstra(back, indices=before)[place] + self.weight[last][:, None]
        distances = np.minimum.reduceat(through, first, axis=0)
        distances[np.arange(len(ends)), ends] = 0.0
        return distances

    def _kin(self) -> Index:
        """By target node the class of targets that every other node sends towards by the same links.

        Of ranks behind switches those are the ranks as far from every switch; elsewhere each is its own.
        """
        kin = np.zeros(self.graph.nodes, np.int64)
        kin[self.targets] = np.arange(len(self.targets))
        graph = self.graph
        if not graph.direct and not bool(((graph.tail < graph.ranks) & (graph.head < graph.ranks)).any()):
            ranks = self.targets < graph.ranks
            _, kin_number = np.unique(self.distance[ranks, graph.ranks :], axis=0, return_inverse=True)
            kin[self.targets[ranks]] = kin_number.ravel()
            kin[self.targets[~ranks]] = int(kin_number.max(initial=-1)) + 1 + np.arange(int((~ranks).sum()))
        return kin

    def equal(self, here: Index, target: Index) -> tuple[Index, Index, Index]:
        """For each pair where its equal links begin in a list, how many they are, and the list."""
        direct = links_between(self.graph, here, target)
        indirect = np.flatnonzero(direct < 0)
        key = here[indirect] * (int(self.kin.max()) + 1) + self.kin[target[indirect]]
        first, number = firsts(key, self.graph.nodes * (int(self.kin.max()) + 1))
        row, link = self.nearer(here[indirect[first]], target[indirect[first]])
        count = np.bincount(row, minlength=len(first))
        begin, many = np.arange(len(here)), np.ones(len(here), np.int64)
        begin[indirect], many[indirect] = len(here) + (np.cumsum(count) - count)[number], count[number]
        return begin, many, np.concatenate([direct, link])

    def nearer(self, here: Index, target: Index) -> tuple[Index, Index]:
        """Every link that brings a flow at `here` nearer to its target: row of the flow, and link."""
        column = np.searchsorted(self.targets, target)
        direct = links_between(self.graph, here, target)
        rows, links = [np.flatnonzero(direct >= 0)], [direct[direct >= 0]]
        indirect = np.flatnonzero(direct < 0)
        width = max(1, int(self.count[here[indirect]].max(initial=1)))
        for low in range(0, len(indirect), max(1, MOST_EXPANDED // width)):
            part = indirect[low : low + max(1, MOST_EXPANDED // width)]
            count = self.count[here[part]]
            row = np.repeat(part, count)
            link = self.order[ranges(self.first[here[part]], count)]
            distance_left = self.distance[column[row], self.graph.head[link]] + self.weight[link]
            good = distance_left == self.distance[column[row], here[row]]
            rows.append(row[good])
            links.append(link[good])
        rows_found = np.concatenate(rows)
        order = np.argsort(rows_found, kind="stable")
        return rows_found[order], np.concatenate(links)[order]


def firsts(keys: Index, limit: int) -> tuple[Index, Ints]:
    """Where each distinct key stands first, by key, and the number of every entry's.

    >>> [part.tolist() for part in firsts(np.array([5, 3, 5]), 8)]
    [[1, 0], [1, 0, 1]]
    """
    distinct_keys, number = number_keys(keys, limit)
    first = np.empty(len(distinct_keys), np.int64)
    first[number[::-1]] = np.arange(len(keys))[::-1]
    return first, number


def follow_paths(
    table: PathTable,
    sources: Index,
    targets: Index,
    number: np.ndarray,
    turned: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Index:
    """(pairs, longest) links of one of the equal ways each, -1 after the last.

    Of c equal links a pair with number x takes x mod c, and goes on with x // c; with `turned` it takes the hash of x
    and the node, as a switch does.
    """
    graph, here, columns = table.graph, sources.copy(), []
    number, total = number.copy(), len(sources)
    while True:
        still = here != targets
        going: Index | slice = slice(None) if still.all() else np.flatnonzero(still)
        now, goal = here[going], targets[going]
        if not len(now):
            break
        begin, count, link = table.equal(now, goal)
        if (count == 0).any():
            lost = int(goal[np.flatnonzero(count == 0)[0]])
            raise refusal("topology", f"no path to node {lost}", "a connected graph")
        if int(count.max()) > 1:
            numbers, many = number[going], count.astype(number.dtype)
            pick = (numbers if turned is None else turned(numbers ^ now.astype(number.dtype))) % many
            if turned is None:
                number[going] = numbers // many
            begin = begin + pick.astype(np.int64)
        chosen = link[begin]
        if len(now) == total:
            links_taken = chosen
        else:
            links_taken = np.full(total, -1, np.int64)
            links_taken[going] = chosen
        columns.append(links_taken)
        here[going] = graph.head[chosen]
    return np.stack(columns, axis=1) if columns else np.full((total, 1), -1, np.int64)


BATCH = 256  # sources whose paths are searched together
KEPT_NODES = 1100  # up to which the paths from all nodes are kept
KEPT_PAIRS = 1 << 16  # up to which their ways are, on larger graphs


def shortest_routes(graph: Graph, sources: Index, targets: Index) -> Index:
    """(pairs, longest) link numbers from source to target, -1 after the last.

    Of equal ways through switches pairs take one by the sum of their numbers, so that an all-to-all loads all alike.
    """
    pair, index = np.unique(np.asarray(sources, np.int64) * graph.nodes + targets, return_inverse=True)
    direct = links_between(graph, pair // graph.nodes, pair % graph.nodes)
    indirect = np.flatnonzero(direct < 0)
    if not len(indirect):
        return direct[index][:, None]
    ends = pair[indirect] // graph.nodes, pair[indirect] % graph.nodes
    if graph.direct:
        ways = _by_axis(graph, *ends) if graph.shape else _search_routes(graph, *ends)
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


def _by_axis(graph: Graph, sources: Index, targets: Index) -> Index:
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
        links.append(links_between(graph, before, np.ravel_multi_index(tuple(here.T), graph.shape)))
    return np.stack(links, axis=1)


def _search_routes(graph: Graph, sources: Index, targets: Index) -> Index:
    """Shortest paths, a batch of sources at a time."""
    if graph.nodes <= KEPT_NODES:
        ways = follow_predecessors(graph, predecessors(graph), sources, targets)
    elif len(sources) <= KEPT_PAIRS:
        ways = _cached_routes(graph, sources.tobytes(), targets.tobytes())
    else:
        ways = _routes_in_batches(graph, sources, targets)
    lost = np.flatnonzero(ways[:, 0] < 0)
    if len(lost):
        raise refusal("topology", f"no path to node {int(targets[lost[0]])}", "a connected graph")
    return ways


@lru_cache(maxsize=2)
def _cached_routes(graph: Graph, sources: bytes, targets: bytes) -> Index:
    """The ways of pairs that are asked for again: a tree's, in other numbers of chunks."""
    return _routes_in_batches(graph, np.frombuffer(sources, np.int64), np.frombuffer(targets, np.int64))


def _routes_in_batches(graph: Graph, sources: Index, targets: Index) -> Index:
    starts = np.unique(sources)
    batches: list[tuple[Index, Index]] = []
    for low in range(0, len(starts), BATCH):
        batch = starts[low : low + BATCH]
        rows = np.flatnonzero(np.isin(sources, batch))
        place = np.searchsorted(batch, sources[rows])
        batches.append((rows, follow_predecessors(graph, _before(graph, batch), place, targets[rows])))
    all_links = np.full((len(sources), max(path.shape[1] for _, path in batches)), -1, np.int64)
    for rows, path in batches:
        all_links[rows, : path.shape[1]] = path
    return all_links


def _before(graph: Graph, sources: Index) -> Ints:
    """By source and node the node before it on a shortest path."""
    from scipy.sparse.csgraph import dijkstra

    return np.asarray(dijkstra(link_matrix(graph), indices=sources, return_predecessors=True)[1], np.int32)


@lru_cache(maxsize=2)
def predecessors(graph: Graph) -> Ints:
    return _before(graph, np.arange(graph.nodes))


def follow_predecessors(graph: Graph, before: Index | Ints, row: Index, targets: Index) -> Index:
    """Links of ways by the predecessors in these rows, -1 after the last: from the end on, and then turned round."""
    here = targets.copy()
    links: list[Index] = []
    while True:
        last = before[row, here].astype(np.int64)
        going = last >= 0
        if not going.any() and links:
            break
        link = np.full(len(here), -1, np.int64)
        link[going] = links_between(graph, last[going], here[going])
        links.append(link)
        here = np.where(going, last, here)
    back = np.stack(links, axis=1)
    turn = (back >= 0).sum(axis=1)[:, None] - 1 - np.arange(back.shape[1])
    return np.where(turn >= 0, np.take_along_axis(back, np.maximum(turn, 0), axis=1), -1)


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
    inner = np.arange(graph.nodes) >= graph.ranks  # switches that only switches are linked to
    inner[graph.head[graph.tail < graph.ranks]] = False
    inner[graph.tail[graph.head < graph.ranks]] = False
    if graph.reducing >= 0:
        inner[graph.reducing] = False
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


def _classes(graph: Graph, inner: Mask) -> Index:
    """New numbers of nodes, alike for inner switches that no links tell apart (the coarsest equitable partition)."""
    number = np.where(inner, graph.nodes, np.arange(graph.nodes)).astype(np.int64)
    weight = mix_bits(graph.bytes_per_s.view(np.uint64) ^ mix_bits(graph.latency_s.view(np.uint64)))
    count = 0
    while True:
        neighbour_hash = np.zeros(graph.nodes, np.uint64)
        for here, there, side in ((graph.tail, graph.head, 1), (graph.head, graph.tail, 2)):
            np.add.at(
                neighbour_hash,
                here,
                mix_bits(weight ^ mix_bits(number[there].astype(np.uint64) * np.uint64(4) + np.uint64(side))),
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


def mix_bits(key: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed_key: np.ndarray = key ^ (key >> np.uint64(31))
    return mixed_key
