"""Turn a graph into ports: over what ranks get chunks, and who sends over each of them, turn by turn.

A direct link is a port with one sender. A switch is a port of each of its ranks, behind which all others stand in line:
a turn is a matching of them, so that each sends once and each receives once, at the full rate of its link. Matchings
are made of pairs whose way goes through the switch, as `routes` has it. Switches that join their ranks only together
(leaves and spines) are one hub.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching

from ridgeline.comm.graph import Graph
from ridgeline.comm.routes import shortest_routes
from ridgeline.core.arrays import Array, Index, Mask

TURNS = 9  # matchings of a hub
SHIFTS = 64  # distances in a hub's line of which matchings are made
SLOWER = 1.5  # times slower than a rank's fastest port: leads out of its domain
FULL = 0.9  # of the first matching's pairs that a later one must have
FABRIC_SHIFTS = 4  # the same where leaves share links to spines


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ports:
    """By port its rank and its hub (-1: a direct link); by turn and port who sends (-1: nobody), and at what cost."""

    rank: Index
    hub: Index
    source: Index
    bytes_per_s: Array
    latency_s: Array

    def seconds(self, chunk_bytes: float) -> Array:
        """What a chunk takes, by turn and port."""
        return chunk_bytes / self.bytes_per_s + self.latency_s


def ports_of(graph: Graph, seed: int = 0) -> Ports:
    """The ports of a graph's ranks."""
    between = np.flatnonzero((graph.tail < graph.ranks) & (graph.head < graph.ranks))
    parts = [_direct(graph, between)] if len(between) else []
    if not graph.direct:
        random = np.random.default_rng(seed)
        hubs = _hubs(graph)
        lines = [_line(hub) for hub in hubs]
        ends = [np.concatenate([pairs[end] for pairs in lines]) for end in (0, 1)]
        ways = np.split(shortest_routes(graph, *ends), np.cumsum([len(source) for source, _ in lines])[:-1])
        parts += [
            _hub(graph, number, hub, random, hub_ways)
            for number, (hub, hub_ways) in enumerate(zip(hubs, ways, strict=True))
        ]
    turns = max(len(part.source) for part in parts)

    def by_turn(name: str) -> np.ndarray:
        columns = [getattr(part, name) for part in parts]
        return np.concatenate([column[np.arange(turns) % len(column)] for column in columns], axis=1)

    return Ports(
        rank=np.concatenate([part.rank for part in parts]),
        hub=np.concatenate([part.hub for part in parts]),
        source=by_turn("source"),
        bytes_per_s=by_turn("bytes_per_s"),
        latency_s=by_turn("latency_s"),
    )


def domains_of(ports: Ports, ranks: int) -> tuple[Index, Mask]:
    """The domain of each rank, joined by its faster ports, and which ports lead out of one at a slower rate.

    All direct links of a rank count together. One domain and no such port where rates differ by less than SLOWER, or
    where fast ports alone join all ranks.
    """
    there = ports.source >= 0
    rate = np.where(there, ports.bytes_per_s, 0.0).max(axis=0)
    key = ports.rank * (int(ports.hub.max()) + 2) + ports.hub + 1
    rate = np.bincount(key, rate)[key]
    best = np.zeros(ranks)
    np.maximum.at(best, ports.rank, rate)
    fast = rate * SLOWER >= best[ports.rank]
    turn, port = np.nonzero(there & fast)
    ends = (ports.source[turn, port], ports.rank[port])
    matrix = coo_array((np.ones(len(port)), ends), shape=(ranks, ranks))
    count, label = connected_components(matrix, directed=False)
    if count == 1:
        return np.zeros(ranks, np.int64), np.zeros(len(ports.rank), np.bool_)
    across = (there & (label[np.maximum(ports.source, 0)] != label[ports.rank])).any(axis=0)
    return label.astype(np.int64), across & ~fast


def _direct(graph: Graph, links: Index) -> Ports:
    return Ports(
        rank=graph.head[links],
        hub=np.full(len(links), -1),
        source=graph.tail[links][None],
        bytes_per_s=graph.bytes_per_s[links][None],
        latency_s=graph.latency_s[links][None],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Hub:
    """Ranks in line and the switches that join them."""

    members: Index
    switches: Index
    fabric: bool


def _hubs(graph: Graph) -> list[_Hub]:
    """Each switch with its ranks; all switches that are joined, where single ones do not join the ranks."""
    up = (graph.tail < graph.ranks) & (graph.head >= graph.ranks)
    rank, switch = graph.tail[up], graph.head[up]
    if len(np.unique(_labels(graph, graph.tail < graph.ranks)[: graph.ranks])) == 1:
        return [
            _Hub(members=_in_line(graph, rank[switch == switch_id]), switches=np.array([switch_id]), fabric=False)
            for switch_id in np.unique(switch)
        ]
    hubs = []
    fabric = _labels(graph, (graph.tail >= graph.ranks) & (graph.head >= graph.ranks))
    for fabric_id in np.unique(fabric[switch]):
        members = np.unique(rank[fabric[switch] == fabric_id])
        hubs.append(_Hub(members=members, switches=np.flatnonzero(fabric == fabric_id), fabric=True))
    return hubs


def _labels(graph: Graph, links: Mask) -> Index:
    """The part that each node is in when only these links join nodes."""
    ends = (graph.tail[links], graph.head[links])
    matrix = coo_array((np.ones(int(links.sum())), ends), shape=(graph.nodes, graph.nodes))
    _, label = connected_components(matrix, directed=False)
    return label.astype(np.int64)


def _in_line(graph: Graph, members: Index) -> Index:
    """A switch's ranks so that neighbours in line are of different domains where it joins several."""
    if not graph.domain or len(np.unique(members // graph.domain)) == 1:
        return np.sort(members)
    return members[np.lexsort((members // graph.domain, members % graph.domain))]


def _shift_ports(hub: _Hub) -> tuple[Index, Index]:
    """(shifts, places) who sends to whom, as places in the hub's line."""
    n = len(hub.members)
    shift_count = FABRIC_SHIFTS if hub.fabric else SHIFTS
    near = np.r_[np.arange(1, shift_count // 2 + 1), n - np.arange(1, shift_count // 2 + 1)]
    shifts = np.arange(1, n) if n - 1 <= shift_count else near
    source = np.tile(np.arange(n), (len(shifts), 1))
    return source, (source + shifts[:, None]) % max(n, 1)


def _line(hub: _Hub) -> tuple[Index, Index]:
    """The same as ranks, one pair after the other."""
    source, target = _shift_ports(hub)
    return hub.members[source.ravel()], hub.members[target.ravel()]


def _hub(graph: Graph, number: int, hub: _Hub, random: np.random.Generator, ways: Index) -> Ports:
    """Matchings of the ranks of one hub, and what each pair's way costs."""
    n, members = len(hub.members), hub.members
    if n < 2:
        none = np.full((1, n), -1)
        return Ports(rank=members, hub=np.full(n, number), source=none, bytes_per_s=none + 2.0, latency_s=none + 1.0)
    source, target = _shift_ports(hub)
    some, real = ways >= 0, np.maximum(ways, 0)
    through = (some & (graph.head[real] < graph.ranks)).sum(axis=1) == 1  # through no other rank
    good = (through & np.isin(graph.head[ways[:, 0]], hub.switches)).reshape(source.shape)
    rate = np.where(some, graph.bytes_per_s[real], np.inf).min(axis=1).reshape(source.shape)
    latency = np.where(some, graph.latency_s[real], 0.0).sum(axis=1).reshape(source.shape)
    cells = _matchings(good, source, target, random)
    port_columns = np.full((len(cells), n), -1), np.ones((len(cells), n)), np.zeros((len(cells), n))
    for turn, (row, column) in enumerate(cells):
        at = target[row, column]
        port_columns[0][turn, at] = members[source[row, column]]
        port_columns[1][turn, at], port_columns[2][turn, at] = rate[row, column], latency[row, column]
    return Ports(
        rank=members,
        hub=np.full(n, number),
        source=port_columns[0],
        bytes_per_s=port_columns[1],
        latency_s=port_columns[2],
    )


def _matchings(good: Mask, source: Index, target: Index, random: np.random.Generator) -> list[tuple[Index, Index]]:
    """Cells (shift, place) of each turn: whole shifts where all their pairs are good, else matchings of what is."""
    n = good.shape[1]
    full_shifts = random.permutation(np.flatnonzero(good.all(axis=1)))[:TURNS]
    if len(full_shifts) >= min(TURNS, n - 1):
        return [(np.full(n, shift), np.arange(n)) for shift in full_shifts]
    open_pairs = good.copy()
    matchings: list[tuple[Index, Index]] = []
    for _ in range(TURNS):
        rows, columns = np.nonzero(open_pairs)
        if not len(rows):
            break
        deal = random.permutation(n)  # matching takes the first that fits: another order, another matching
        cell = csr_array((rows + 1, (source[rows, columns], deal[target[rows, columns]])), shape=(n, n))
        mate = maximum_bipartite_matching(cell, perm_type="column")
        places = np.flatnonzero(mate >= 0)
        if matchings and len(places) < FULL * len(matchings[0][1]):
            break
        row = np.asarray(cell[places, mate[places]]).ravel() - 1
        open_pairs[row, places] = False
        matchings.append((row, places))
    return matchings
