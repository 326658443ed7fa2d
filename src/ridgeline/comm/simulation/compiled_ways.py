"""Turn connections into one of their equal ways each by the compiled core, as `equal_ways.walked` does in columns."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from ridgeline.comm.equal_ways import DENSE, PathTable
from ridgeline.comm.simulation.compiled import core
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
    library, graph = core(), table.graph
    kins = int(table.kin.max(initial=0)) + 1
    if library is None or graph.direct or not len(table.table) or graph.nodes * kins > DENSE:
        return None
    column = np.zeros(graph.nodes, np.int64)
    column[table.targets] = np.arange(len(table.targets))
    whole = [np.ascontiguousarray(one, np.int64) for one in (graph.head, table.order, table.first, table.count)]
    whole += [column, np.ascontiguousarray(table.kin, np.int64)]
    real = [np.ascontiguousarray(one, np.float64) for one in (table.distance, table.weight, graph.latency_s)]
    straight = np.ascontiguousarray(table.table, np.int32)
    ends = [np.ascontiguousarray(one, np.int64) for one in (sources, targets)]
    numbers = np.ascontiguousarray(number).astype(np.uint64, copy=False)
    both: list[np.ndarray] = [*ends, numbers]
    columns: list[np.ndarray] = [*whole, *real, straight]
    lists = _lists(table, library, graph.nodes * kins)
    if not lists:
        return None
    given = _Table(graph.nodes, graph.links, kins, *(one.ctypes.data for one in columns))
    latency = np.empty(len(sources))
    for wide in LONGEST:
        links = np.empty((len(sources), wide), np.int64)
        longest = library.choose_ways(
            ctypes.byref(given), _P(lists), _N(len(sources)), *(_P(one.ctypes.data) for one in both),
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
