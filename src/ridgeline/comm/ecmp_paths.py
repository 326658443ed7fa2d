"""Turn a graph into its equal shortest ways: at each node the links that bring a target nearer, and one picked of them.

Ways through another rank count as longer than any through switches: ranks forward only where nothing else joins them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ridgeline.comm.graph import Graph
from ridgeline.core.arrays import Array, Index
from ridgeline.core.errors import InputError, Problem

MOST_EXPANDED = 1 << 22  # links looked at together
DENSE = 1 << 24  # pairs of nodes for which a table is made


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
        keys = graph.tail * graph.nodes + graph.head
        self.by_key = np.argsort(keys)
        self.keys = keys[self.by_key]
        self.table = np.zeros(0, np.int32)
        if graph.nodes**2 <= DENSE:
            self.table = np.full(graph.nodes**2, -1, np.int32)
            self.table[self.keys[::-1]] = self.by_key[::-1]  # of parallel links the first, as a search finds it
        self.kin = self._kin()
        self.lists: int | None = None  # where the compiled core keeps what it found

    def _distances(self) -> Array:
        """(targets, nodes) lengths of ways: to the nodes before a target, one search each, and its last link."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import dijkstra

        graph = self.graph
        shape = (graph.nodes, graph.nodes)
        back = coo_array((self.weight, (graph.head, graph.tail)), shape=shape).tocsr()
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
        if not self.graph.direct and not bool(((self.graph.tail < self.graph.ranks) & self._to_ranks()).any()):
            ranks = self.targets < self.graph.ranks
            switches = self.distance[:, self.graph.ranks :]
            _, kin_number = np.unique(switches[ranks], axis=0, return_inverse=True)
            kin[self.targets[ranks]] = kin_number.ravel()
            kin[self.targets[~ranks]] = int(kin_number.max(initial=-1)) + 1 + np.arange(int((~ranks).sum()))
        return kin

    def _to_ranks(self) -> np.ndarray:
        return self.graph.head < self.graph.ranks

    def straight(self, here: Index, target: Index) -> Index:
        """The link from a node to a target, -1 where there is none."""
        key = here * self.graph.nodes + target
        if len(self.table):
            links: Index = self.table[key].astype(np.int64)
            return links
        at = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return np.where(self.keys[at] == key, self.by_key[at], -1)

    def equal(self, here: Index, target: Index) -> tuple[Index, Index, Index]:
        """For each pair where its equal links begin in a list, how many they are, and the list."""
        direct = self.straight(here, target)
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
        direct = self.straight(here, target)
        rows, links = [np.flatnonzero(direct >= 0)], [direct[direct >= 0]]
        indirect = np.flatnonzero(direct < 0)
        width = max(1, int(self.count[here[indirect]].max(initial=1)))
        for low in range(0, len(indirect), max(1, MOST_EXPANDED // width)):
            part = indirect[low : low + max(1, MOST_EXPANDED // width)]
            count = self.count[here[part]]
            row = np.repeat(part, count)
            place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
            link = self.order[np.repeat(self.first[here[part]], count) + place]
            distance_left = self.distance[column[row], self.graph.head[link]] + self.weight[link]
            good = distance_left == self.distance[column[row], here[row]]
            rows.append(row[good])
            links.append(link[good])
        rows_found = np.concatenate(rows)
        order = np.argsort(rows_found, kind="stable")
        return rows_found[order], np.concatenate(links)[order]


def firsts(keys: Index, limit: int) -> tuple[Index, Index]:
    """Where each distinct key stands first, by key, and the number of every entry's; by a table where that is small.

    >>> [part.tolist() for part in firsts(np.array([5, 3, 5]), 8)]
    [[1, 0], [1, 0, 1]]
    """
    if limit > DENSE or not len(keys):
        _, first, number = np.unique(keys, return_index=True, return_inverse=True)
        return first, number
    slot = np.full(limit, -1, np.int32)
    slot[keys[::-1]] = np.arange(len(keys) - 1, -1, -1, dtype=np.int32)
    filled_slots = np.flatnonzero(slot >= 0)
    first = slot[filled_slots].astype(np.int64)
    slot[filled_slots] = np.arange(len(filled_slots), dtype=np.int32)
    return first, slot[keys].astype(np.int64)


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
            given_text = f"no path to node {lost}"
            raise InputError(Problem(path="topology", given=given_text, expected="a connected graph"))
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
