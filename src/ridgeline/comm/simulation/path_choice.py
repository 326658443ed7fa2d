"""Turn connections into ways through a graph: one of the equal shortest ways, or all of them with a share each.

A way is found link by link: at each node the links that bring the target nearer are equal, and the rule picks one (a
hash of connection, node and seed; the sender's place in its domain) or takes all in equal parts. Ways through another
rank count as longer than any through switches, as in `routes`.

Turn connections into one of their equal ways each by the compiled core, as `ecmp_paths.follow_paths` does in columns.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass

import numpy as np

from ridgeline.comm.graph import DENSE_PAIRS, Graph, link_table, ranges
from ridgeline.comm.routes import PathTable, follow_paths, mix_bits, shortest_routes
from ridgeline.comm.simulation.compiled import core
from ridgeline.comm.simulation.conditions import PathChoice
from ridgeline.core.arrays import Array, Index

LONGEST = (4, 8)  # links of a way, tried in turn; longer ones, on meshes and tori, are walked in columns
_P, _N = ctypes.c_void_p, ctypes.c_int64


class _Table(ctypes.Structure):
    _fields_ = [
        *((name, _N) for name in ("nodes", "links", "kins")),
        *((name, _P) for name in ("head", "order", "first", "count", "column", "kin")),
        *((name, _P) for name in ("distance", "weight", "latency_s", "straight")),
    ]


def chosen_ways(
    table: PathTable, sources: Index, targets: Index, number: np.ndarray, hashed: bool
) -> tuple[Index, Array] | None:
    """(pairs, longest) links of each pair's way, `graph.links` after the last, and its latency.

    None where there is no core, or no short path.
    """
    library, graph, straight = core(), table.graph, link_table(table.graph)
    kins = int(table.kin.max(initial=0)) + 1
    if library is None or graph.direct or not len(straight) or graph.nodes * kins > DENSE_PAIRS:
        return None
    column = np.zeros(graph.nodes, np.int64)
    column[table.targets] = np.arange(len(table.targets))
    whole = (graph.head, table.order, table.first, table.count, column, table.kin)
    real = (table.distance, table.weight, graph.latency_s)
    columns: list[np.ndarray] = [
        *(np.ascontiguousarray(values, np.int64) for values in whole),
        *(np.ascontiguousarray(values, np.float64) for values in real),
        straight,
    ]
    ends = [np.ascontiguousarray(values, np.int64) for values in (sources, targets)]
    pair_columns = [*ends, np.ascontiguousarray(number).astype(np.uint64, copy=False)]
    lists = _lists(table, library, graph.nodes * kins)
    if not lists:
        return None
    path_table = _Table(graph.nodes, graph.links, kins, *(column.ctypes.data for column in columns))
    latency = np.empty(len(sources))
    for wide in LONGEST:
        links = np.empty((len(sources), wide), np.int64)
        longest = library.choose_ways(
            ctypes.byref(path_table), _P(lists), _N(len(sources)), *(_P(column.ctypes.data) for column in pair_columns),
            ctypes.c_int(hashed), _N(wide), _P(links.ctypes.data), _P(latency.ctypes.data),
        )  # fmt: skip
        if longest >= 0:
            return links[:, : max(longest, 1)], latency
    return None


def _lists(table: PathTable, library: ctypes.CDLL, pairs: int) -> int | None:
    """The core's lists of equal links, made with the first seed and freed with the table."""
    if table.lists is None:
        library.make_lists.restype = _P
        table.lists = library.make_lists(_N(pairs))
        if table.lists:
            weakref.finalize(table, library.free_lists, _P(table.lists))
    return table.lists


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ways:
    """Links of each connection's way; `share` is the part of its bytes on each, 0 beside the last.

    links       (connections, most links); a link number `graph.links` stands for none
    share       the same; None where each connection takes one way, with all its bytes on each link
    latency_s   of the way, of the slowest where there are several
    """

    links: Index
    share: Array | None
    latency_s: Array


def ways(
    graph: Graph,
    connections: tuple[Index, Index, Index],
    paths: PathChoice,
    seed: int,
    table: PathTable | None = None,
) -> Ways:
    """The way of each connection (sources, targets, channels); without a table, distances are worked out anew."""
    sources, targets, channels = connections
    if paths == "shortest" or not len(sources):
        return _single(graph, shortest_routes(graph, sources, targets))
    path_table = table or PathTable(graph, targets)
    if paths == "spray":
        return _spray_ways(graph, *_all_ways(path_table, sources, targets))
    is_hashed = paths == "ecmp"
    number = _hash_connections(sources, targets, channels, seed) if is_hashed else sources
    quick = chosen_ways(path_table, sources, targets, number, is_hashed)
    if quick is not None:
        return Ways(links=quick[0], share=None, latency_s=quick[1])
    return _single(graph, follow_paths(path_table, sources, targets, number, mix_bits if is_hashed else None))


def _single(graph: Graph, links: Index) -> Ways:
    """One way each, -1 after the last link."""
    latency = np.append(graph.latency_s, 0.0)[links].sum(axis=1)
    return Ways(links=np.where(links < 0, graph.links, links), share=None, latency_s=latency)


def _spray_ways(graph: Graph, links: Index, share: Array) -> Ways:
    """All ways; latency is the mean over them, weighted by their parts."""
    through = np.append(graph.latency_s, 0.0)[links]
    is_single = share >= 1 - 1e-9
    latency = np.where(is_single, through, 0.0).sum(axis=1) + np.where(is_single, 0.0, through * share).sum(axis=1)
    single = bool(((share == 0) | (share == 1)).all())
    return Ways(links=np.where(links < 0, graph.links, links), share=None if single else share, latency_s=latency)


def _all_ways(table: PathTable, sources: Index, targets: Index) -> tuple[Index, Array]:
    """All equal ways at once, parts divided evenly at every node."""
    graph, n = table.graph, len(sources)
    flow, here, part = np.arange(n), sources.copy(), np.ones(n)
    batches: list[tuple[Index, Index, Array]] = []
    while len(flow):
        going = here != targets[flow]
        flow, here, part = flow[going], here[going], part[going]
        if not len(flow):
            break
        row, link = table.nearer(here, targets[flow])
        share = (part / np.bincount(row, minlength=len(flow)))[row]
        batches.append((flow[row], link, share))
        key, index = np.unique(flow[row] * graph.nodes + graph.head[link], return_inverse=True)
        flow, here, part = key // graph.nodes, key % graph.nodes, np.bincount(index, share).astype(np.float64)
    flows, links, shares = (np.concatenate([batch[k] for batch in batches]) for k in range(3))
    key, index = np.unique(flows * graph.links + links, return_inverse=True)
    flows, links, shares = key // graph.links, key % graph.links, np.bincount(index, shares)
    count = np.bincount(flows, minlength=n)
    place = ranges(np.zeros_like(count), count)
    wide_links, wide_share = np.full((n, int(count.max())), -1, np.int64), np.zeros((n, int(count.max())))
    wide_links[flows, place], wide_share[flows, place] = links, shares
    return wide_links, wide_share


def _hash_connections(sources: Index, targets: Index, channels: Index, seed: int) -> np.ndarray:
    """A hash of each connection, as a switch's of the five fields of a flow."""
    start = np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    key = mix_bits(sources.astype(np.uint64) + start)
    key = mix_bits(key + targets.astype(np.uint64))
    return mix_bits(key + channels.astype(np.uint64))
