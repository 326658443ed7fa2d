"""Turn a collective and a graph into the algorithms of the table that fit both, and choose the fastest for a size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.comm.algorithm import Algorithm, Candidate, CollectiveTask
from ridgeline.comm.algorithm_table import ALGORITHMS, ROWS, row_of_alias
from ridgeline.comm.contract import Collective
from ridgeline.comm.graph import Graph
from ridgeline.comm.timing import Timing, time_algorithm
from ridgeline.core.errors import InputError, Problem, not_among

MOST_STEPS = 10_000_000


def candidates(collective: Collective, graph: Graph, root: int = 0) -> list[Candidate]:
    """Every algorithm of the table for this collective on this graph."""
    builders = [row.steps for row in ROWS if row.steps is not None and collective in row.serves]
    if not builders:
        collectives = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")
        raise InputError(not_among("collective", collective, collectives))
    task = CollectiveTask(graph, collective, root)
    return [candidate for build in builders for candidate in build(task)]


def fastest(
    collective: Collective, graph: Graph, size_bytes: float, *, name: str = "", root: int = 0
) -> tuple[Algorithm, Timing]:
    """The library's fastest algorithm for a size, or the best form of the one named."""
    candidates_tried = candidates_named(candidates(collective, graph, root), name)
    if all(candidate.steps > MOST_STEPS for candidate in candidates_tried):
        least = min(candidate.steps for candidate in candidates_tried)
        expected_text = f"at most {MOST_STEPS:,} steps"
        raise InputError(
            Problem(path="algorithm", given=f"{least:,} steps", expected=expected_text, todo="take fewer ranks")
        )
    best = beaten(candidates_tried, graph, size_bytes, np.inf)
    assert best is not None
    return best


def candidates_named(known: Sequence[Candidate], name: str) -> list[Candidate]:
    """The forms of the algorithm of that name, or all where none is named."""
    if not name:
        return list(known)
    names = {candidate.name for candidate in known}
    row = ALGORITHMS.get(name) if name in names else row_of_alias(name) or ALGORITHMS.get(name)
    meant = row.name if row else name
    if meant not in names:
        if row and row.needs:
            here = ", ".join(dict.fromkeys(candidate.name for candidate in known))
            raise InputError(Problem(path="algorithm", given=name, expected=f"one of {here}", todo=row.needs))
        raise InputError(not_among("algorithm", name, dict.fromkeys(candidate.name for candidate in known)))
    return [candidate for candidate in known if candidate.name == meant]


def beaten(
    known: Sequence[Candidate], graph: Graph, size_bytes: float, seconds: float
) -> tuple[Algorithm, Timing] | None:
    """The fastest of those that take less than so many seconds; those whose floor is above are not made."""
    best: tuple[Algorithm, Timing] | None = None
    for floor, candidate in by_floor(known, size_bytes, seconds):
        if floor * (1 - 1e-9) >= seconds:
            break
        algorithm = candidate.make()
        timing = time_algorithm(algorithm, graph, size_bytes)
        if timing.seconds < seconds:
            best, seconds = (algorithm, timing), timing.seconds
    return best


def by_floor(known: Sequence[Candidate], size_bytes: float, seconds: float) -> list[tuple[float, Candidate]]:
    """Those that can be held as steps, with their floors, the lowest first; of a single one it is not looked for.

    Whose quick floor is not below so many seconds keeps that.
    """
    small = [candidate for candidate in known if candidate.steps <= MOST_STEPS]

    def floor(one: Candidate) -> float:
        soon = one.quick(size_bytes)
        return soon if soon * (1 - 1e-9) >= seconds else max(soon, one.floor(size_bytes))

    floors = [(floor(candidate) if len(small) > 1 else 0.0, row) for row, candidate in enumerate(small)]
    return [(least, small[row]) for least, row in sorted(floors)]


def unbeaten(known: Sequence[Candidate], graph: Graph, size_bytes: float, seconds: float) -> Algorithm | None:
    """As `beaten` without the times: one whose floor is its time is not timed, and made only if it wins."""
    best: Candidate | Algorithm | None = None
    for floor, candidate in by_floor(known, size_bytes, seconds):
        if floor * (1 - 1e-9) >= seconds:
            break
        if candidate.exact and floor:
            best, seconds = candidate, floor
            continue
        algorithm = candidate.make()
        spent = time_algorithm(algorithm, graph, size_bytes).seconds
        if spent < seconds:
            best, seconds = algorithm, spent
    return best.make() if isinstance(best, Candidate) else best
