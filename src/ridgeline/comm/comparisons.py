"""Turn a collective and a graph into a selector by size: which algorithm is fastest where, and where two cross.

Algorithms are made once. Those whose floor is above the fastest so far are not timed, so that selectors of a thousand
ranks, whose algorithms have millions of steps, take a minute and leave nobody out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import cast

import numpy as np

from ridgeline.comm.algorithm import Algorithm, Candidate, finished_candidate
from ridgeline.comm.bounds import lower_bound, time_bound
from ridgeline.comm.contract import PLAIN_COLLECTIVES, Collective
from ridgeline.comm.graph import Graph, bytes_of, refusal
from ridgeline.comm.select import EXCHANGES, MOST_STEPS, beaten, candidates, exchange_candidates
from ridgeline.comm.synthesis.synthesize import synthesize
from ridgeline.comm.timing import time_algorithm
from ridgeline.comm.verify import verify_algorithm

SIZES = (1e3, 1e10)  # bytes
GRID, HALVINGS = 29, 12  # sizes looked at, four a decade; between two winners the crossing is searched
MANY_STEPS, COARSE_GRID, COARSE_HALVINGS = 300_000, 8, 4  # the same from so many steps on
SYNTHESIZED_AT = (1e5, 1e7, 1e9)  # sizes that algorithms are made for


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRange:
    """Sizes for which one algorithm of the library is the fastest; seconds and bound at both ends."""

    algorithm: str
    chunks: int
    min_bytes: float
    max_bytes: float
    min_seconds: float
    max_seconds: float
    min_bound_seconds: float
    max_bound_seconds: float


def crossings(
    collective: Collective, graph: Graph, root: int = 0, *, synthesized: bool = False
) -> tuple[SizeRange, ...]:
    """Ranges of sizes from 1 kB to 10 GB, in order, each with its fastest algorithm, of the library or made here.

    >>> from ridgeline.comm.topologies import topology
    >>> found = crossings("allreduce", topology("ring:8", 50e9, 5e-6))
    >>> found[0].algorithm != found[-1].algorithm, found[-1].algorithm
    (True, 'two-way-ring')
    """
    racing = [candidate for candidate in candidates(collective, graph, root) if candidate.steps <= MOST_STEPS]
    if synthesized:
        made = (synthesize(collective, graph, size, root=root) for size in SYNTHESIZED_AT)
        racing += map(finished_candidate, made)  # those of the library that won there are in the race anyway
    if not racing:
        raise refusal("by-size", f"{graph.ranks} ranks", f"algorithms of at most {MOST_STEPS:,} steps")
    many = max(candidate.steps for candidate in racing) > MANY_STEPS
    race = _Race(racing, graph)
    grid = np.geomspace(*SIZES, COARSE_GRID if many else GRID)
    best = [race.winner(float(size)) for size in grid]
    edges, winners = [float(grid[0])], [best[0]]
    for low, high, before, after in zip(grid[:-1], grid[1:], best[:-1], best[1:], strict=True):
        if before != after:
            halvings = COARSE_HALVINGS if many else HALVINGS
            edges.append(_crossing(race.seconds, (before, after), (float(low), float(high)), halvings))
            winners.append(after)
    edges.append(float(grid[-1]))
    size_ranges = []
    for winner, low, high in zip(winners, edges[:-1], edges[1:], strict=True):
        algorithm = race.made(winner)
        size_ranges.append(
            SizeRange(
                algorithm=algorithm.name,
                chunks=algorithm.contract.chunks,
                min_bytes=low,
                max_bytes=high,
                min_seconds=race.seconds(winner, low),
                max_seconds=race.seconds(winner, high),
                min_bound_seconds=lower_bound(graph, collective, low, root).seconds,
                max_bound_seconds=lower_bound(graph, collective, high, root).seconds,
            )
        )
    return tuple(size_ranges)


class _Race:
    """Candidates by number, each made at most once and timed at most once for a size."""

    def __init__(self, known: list[Candidate], graph: Graph) -> None:
        self.known = known
        self.made: Callable[[int], Algorithm] = cache(lambda row: known[row].make())
        self.seconds: Callable[[int, float], float] = cache(
            lambda row, size: time_algorithm(self.made(row), graph, size).seconds
        )

    def winner(self, size: float) -> int:
        """The number of the fastest for a size."""
        best, seconds = -1, float("inf")
        for floor, row in sorted((candidate.floor(size), row) for row, candidate in enumerate(self.known)):
            if floor * (1 - 1e-9) >= seconds:
                break
            if self.seconds(row, size) < seconds:
                best, seconds = row, self.seconds(row, size)
        return best


def _crossing(
    seconds: Callable[[int, float], float], pair: tuple[int, int], ends: tuple[float, float], halvings: int
) -> float:
    """The size from which the second of two algorithms is the faster one."""
    low, high = ends
    for _ in range(halvings):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if seconds(pair[0], middle) <= seconds(pair[1], middle) else (low, middle)
    return high


MOST_RANKS = 512  # every algorithm is made: beyond, one is asked for by name


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAlgorithm:
    """An algorithm's best form for a collective.

    over_bound   seconds over what nothing beats
    """

    algorithm: str
    collective: str
    seconds: float
    over_bound: float
    rounds: int
    steps: int
    verified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmList:
    """What `ridgeline collective list` says: every algorithm of the library, for each collective it can do."""

    JSON = "kind='collective-library' *"
    topology: str
    ranks: int
    size_bytes: float
    algorithms: tuple[ListedAlgorithm, ...]


def list_algorithms(graph: Graph, size: str | float) -> AlgorithmList:
    """Every algorithm of the library on a graph, collective by collective."""
    size_bytes = bytes_of(size)
    if graph.ranks > MOST_RANKS:
        raise refusal("topology", f"{graph.ranks} ranks", f"at most {MOST_RANKS} for the whole library")
    algorithms = tuple(_entries(graph, size_bytes))
    return AlgorithmList(topology=graph.name, ranks=graph.ranks, size_bytes=size_bytes, algorithms=algorithms)


def _entries(graph: Graph, size_bytes: float) -> Iterator[ListedAlgorithm]:
    for kind in (*PLAIN_COLLECTIVES, *EXCHANGES):
        if kind in EXCHANGES:
            known_candidates = exchange_candidates(kind, graph.ranks, {}, graph.domain)
        else:
            known_candidates = candidates(cast(Collective, kind), graph)
        forms: dict[str, list[Candidate]] = {}
        for candidate in known_candidates:
            forms.setdefault(candidate.name, []).append(candidate)
        for name, some in forms.items():
            best = beaten(some, graph, size_bytes, float("inf"))
            if best is None:
                continue
            algorithm, timing = best
            bound = time_bound(graph, algorithm.contract, size_bytes)
            yield ListedAlgorithm(
                algorithm=name,
                collective=kind,
                seconds=timing.seconds,
                over_bound=timing.seconds / (bound.seconds or timing.seconds or 1.0),
                rounds=algorithm.rounds,
                steps=len(algorithm.steps),
                verified=verify_algorithm(algorithm).ok,
            )
