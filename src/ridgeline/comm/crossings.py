"""Turn a collective and a graph into a selector by size: which algorithm of the library is fastest where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ridgeline.comm.algorithm import Algorithm
from ridgeline.comm.bounds import lower_bound
from ridgeline.comm.contract import Collective
from ridgeline.comm.graph import Graph
from ridgeline.comm.select import candidates
from ridgeline.comm.timing import time_algorithm
from ridgeline.core.errors import InputError, Problem

SIZES = (1e3, 1e10)  # bytes
GRID = 29  # sizes looked at, four a decade; between two winners the crossing is searched
HALVINGS = 12
MOST_STEPS = 300_000  # of an algorithm that takes part


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRange:
    """An algorithm and the sizes for which nothing else of the library wins; times and bound at both ends."""

    algorithm: str
    chunks: int
    min_bytes: float
    max_bytes: float
    seconds: tuple[float, float]
    bound_s: tuple[float, float]


def crossings(collective: Collective, graph: Graph, root: int = 0) -> tuple[SizeRange, ...]:
    """Ranges of sizes from 1 kB to 10 GB, in order, each with its fastest algorithm.

    >>> from ridgeline.comm.topologies import topology
    >>> found = crossings("allreduce", topology("ring:8", 50e9, 5e-6))
    >>> found[0].algorithm != found[-1].algorithm, found[-1].algorithm
    (True, 'two-way-ring')
    """
    made = [one.make() for one in candidates(collective, graph, root) if one.steps <= MOST_STEPS]
    if not made:
        given = f"{graph.ranks} ranks"
        raise InputError(Problem(path="by-size", given=given, expected=f"algorithms of at most {MOST_STEPS:,} steps"))

    def seconds(one: Algorithm, size: float) -> float:
        return time_algorithm(one, graph, size).seconds

    grid = np.geomspace(*SIZES, GRID)
    best = [min(made, key=lambda one: seconds(one, size)) for size in grid]
    edges, winners = [float(grid[0])], [best[0]]
    for low, high, before, after in zip(grid[:-1], grid[1:], best[:-1], best[1:], strict=True):
        if before is not after:
            edges.append(_crossing(seconds, (before, after), float(low), float(high)))
            winners.append(after)
    edges.append(float(grid[-1]))
    found = []
    for one, low, high in zip(winners, edges[:-1], edges[1:], strict=True):
        ends = (low, high)
        found.append(
            SizeRange(
                algorithm=one.name,
                chunks=one.contract.chunks,
                min_bytes=low,
                max_bytes=high,
                seconds=(seconds(one, low), seconds(one, high)),
                bound_s=tuple(lower_bound(graph, collective, size, root).seconds for size in ends),  # type: ignore[arg-type]
            )
        )
    return tuple(found)


def _crossing(
    seconds: Callable[[Algorithm, float], float], pair: tuple[Algorithm, Algorithm], low: float, high: float
) -> float:
    """The size from which the second of two algorithms is the faster one."""
    for _ in range(HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if seconds(pair[0], middle) <= seconds(pair[1], middle) else (low, middle)
    return high
