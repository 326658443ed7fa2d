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
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import dijkstra

        self.graph, self.weight = graph, hop_weights(graph)
        self.targets = np.unique(targets)
        shape = (graph.nodes, graph.nodes)
        back = coo_array((self.weight, (graph.head, graph.tail)), shape=shape).tocsr()
        self.distance = dijkstra(back, indices=self.targets)
        self.order = np.argsort(graph.tail, kind="stable")
        count = np.bincount(graph.tail, minlength=graph.nodes)
        self.count, self.first = count, np.cumsum(count) - count
        keys = graph.tail * graph.nodes + graph.head
        self.by_key = np.argsort(keys)
        self.keys = keys[self.by_key]

    def straight(self, here: Index, target: Index) -> Index:
        """The link from a node to a target, -1 where there is none."""
        key = here * self.graph.nodes + target
        at = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return np.where(self.keys[at] == key, self.by_key[at], -1)

    def nearer(self, here: Index, target: Index) -> tuple[Index, Index]:
        """Every link that brings a flow at `here` nearer to its target: row of the flow, and link."""
        column = np.searchsorted(self.targets, target)
        direct = self.straight(here, target)
        rows, links = [np.flatnonzero(direct >= 0)], [direct[direct >= 0]]
        rest = np.flatnonzero(direct < 0)
        width = max(1, int(self.count[here[rest]].max(initial=1)))
        for low in range(0, len(rest), max(1, MOST_EXPANDED // width)):
            part = rest[low : low + max(1, MOST_EXPANDED // width)]
            count = self.count[here[part]]
            row = np.repeat(part, count)
            place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
            link = self.order[np.repeat(self.first[here[part]], count) + place]
            left = self.distance[column[row], self.graph.head[link]] + self.weight[link]
            good = left == self.distance[column[row], here[row]]
            rows.append(row[good])
            links.append(link[good])
        found = np.concatenate(rows)
        order = np.argsort(found, kind="stable")
        return found[order], np.concatenate(links)[order]


def walked(
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
    number = number.copy()
    while True:
        going = np.flatnonzero(here != targets)
        if not len(going):
            break
        row, link = table.nearer(here[going], targets[going])
        count = np.bincount(row, minlength=len(going))
        if (count == 0).any():
            lost = int(targets[going[np.flatnonzero(count == 0)[0]]])
            given = f"no path to node {lost}"
            raise InputError(Problem(path="topology", given=given, expected="a connected graph"))
        mine, many = number[going], count.astype(number.dtype)
        pick = (mine if turned is None else turned(mine ^ here[going].astype(number.dtype))) % many
        number[going] = mine if turned is not None else mine // many
        taken = np.full(len(sources), -1, np.int64)
        taken[going] = link[np.cumsum(count) - count + pick.astype(np.int64)]
        columns.append(taken)
        here[going] = graph.head[taken[going]]
    return np.stack(columns, axis=1) if columns else np.full((len(sources), 1), -1, np.int64)
