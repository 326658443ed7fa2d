"""Turn a collective, a graph and a size into an algorithm for that very graph, never slower than the library's."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from ridgeline.comm.algorithm import Algorithm, turned
from ridgeline.comm.bounds import chunked_bound, lower_bound, sequence_bound
from ridgeline.comm.contract import Collective
from ridgeline.comm.graph import Graph
from ridgeline.comm.library.gathers import reduce_then_gather
from ridgeline.comm.select import candidates, fastest
from ridgeline.comm.synthesis.matching import SYNTHESIZED, matched_allgather, matched_broadcast
from ridgeline.comm.synthesis.packing import packed_trees, scheduled_allreduce
from ridgeline.comm.synthesis.symmetric import is_symmetric, symmetric_allgather
from ridgeline.comm.timing import time_algorithm
from ridgeline.core.errors import InputError, Problem

TREES = 32
PACKED_RANKS = 256  # ranks up to which trees are packed
LIBRARY_STEPS = 300_000  # steps of library algorithms that are tried beside
KNOWN_STEPS = 10_000_000  # the same of the bucket algorithm of a torus, which sends fewest messages of all
BROADCAST_CHUNKS = (1, 8, 32, 128, 512)
BROADCAST_STEPS = 600_000
MOST_STEPS = 40_000_000
MANY_STEPS = 1_000_000
SMALL = 1 << 16  # places (rank, chunk) up to which many seeds are tried
WORTH = 1.1  # the sequence over the bound from which trees are packed
GOOD = 1.005  # times the chunked bound: no other seed is tried


def synthesize(
    collective: Collective, graph: Graph, size_bytes: float, *, chunks: int | None = None, root: int = 0
) -> Algorithm:
    """The fastest of: all-gather by matching (and its reverse, and both), packed trees, and the library.

    Broadcast and reduce are matched too. Through switches the library alone answers; so it does for all-to-all.
    """
    if not graph.direct or collective == "alltoall" or graph.ranks < 2:
        return fastest(collective, graph, size_bytes, root=root)[0]
    if collective in ("broadcast", "reduce"):
        return _rooted(collective, graph, size_bytes, chunks, root)
    per_rank = chunks or _chunks(graph.ranks)
    if per_rank < 1 or graph.ranks * (graph.ranks - 1) * per_rank > MOST_STEPS:
        given = f"{per_rank} chunks on each of {graph.ranks} ranks"
        raise InputError(Problem(path="chunks", given=given, expected=f"1 or more, and {MOST_STEPS} steps at most"))
    made = _made(collective, graph, size_bytes, per_rank)
    return min(made, key=lambda one: _seconds(one, graph, size_bytes))


def _rooted(collective: Collective, graph: Graph, size_bytes: float, chunks: int | None, root: int) -> Algorithm:
    """A broadcast by matching in some numbers of chunks, turned for a reduce, or the library's."""
    known, timed = fastest(collective, graph, size_bytes, root=root)
    made = [(timed.seconds, known)]
    for count in (chunks,) if chunks else BROADCAST_CHUNKS:
        if count * graph.ranks <= BROADCAST_STEPS:
            one = matched_broadcast(graph, root, count, size_bytes)
            one = turned(one) if collective == "reduce" else one
            made.append((time_algorithm(one, graph, size_bytes).seconds, one))
    return min(made, key=lambda pair: pair[0])[1]


def _seconds(made: Algorithm, graph: Graph, size_bytes: float) -> float:
    """The time of an algorithm; of a large one, whose links carry a chunk a round, by its rounds: not less."""
    if made.name == SYNTHESIZED and graph.uniform and len(made.steps) > MANY_STEPS:
        each = size_bytes / made.contract.chunks / float(graph.bytes_per_s[0]) + float(graph.latency_s[0])
        return made.rounds * each
    if made.name == "bucket" and len(made.steps) > MANY_STEPS and len(set(graph.shape)) == 1 and graph.uniform:
        return _bucket_seconds(made, graph, size_bytes)
    return time_algorithm(made, graph, size_bytes).seconds


def _bucket_seconds(made: Algorithm, graph: Graph, size_bytes: float) -> float:
    """The bucket algorithm on a torus of equal sides, where its parts never meet.

    passes (axes (side - 1) alpha + (N - 1) / N M / (2 axes b))       passes: 2 of an all-reduce, else 1
    """
    axes, side, n = len(graph.shape), graph.shape[0], graph.ranks
    passes = 2 if made.contract.collective == "allreduce" else 1
    rate, alpha = float(graph.bytes_per_s[0]), float(graph.latency_s[0])
    return passes * (axes * (side - 1) * alpha + (n - 1) / n * size_bytes / (2 * axes * rate))


def _chunks(ranks: int) -> int:
    """Chunks a rank's part is cut into: few ranks need several for links to share evenly."""
    return 4 if ranks <= 64 else 1


def _made(collective: Collective, graph: Graph, size_bytes: float, per_rank: int) -> Iterator[Algorithm]:
    gather = gathered(graph, per_rank, size_bytes)
    match collective:
        case "allgather":
            yield gather
        case "reducescatter":
            yield turned(gather)
        case _:
            sequence = reduce_then_gather(gather)
            yield sequence
            least = lower_bound(graph, "allreduce", size_bytes).bandwidth_s
            if graph.ranks <= PACKED_RANKS and least * WORTH < sequence_bound(
                graph, size_bytes, sequence.contract.chunks
            ):
                yield packed_allreduce(graph, size_bytes)
    for one in candidates(collective, graph):
        if one.steps <= LIBRARY_STEPS or (one.name == "bucket" and one.steps <= KNOWN_STEPS and all(graph.wraps)):
            yield one.make()


def gathered(graph: Graph, per_rank: int, size_bytes: float) -> Algorithm:
    """An all-gather for the graph: by symmetry on a torus, else the best of a few matchings."""
    if per_rank == 1 and is_symmetric(graph):
        return symmetric_allgather(graph)
    least = chunked_bound(graph, "allgather", size_bytes, graph.ranks * per_rank)
    best, best_s = None, float("inf")
    for seed in range(12 if graph.ranks**2 * per_rank <= SMALL else 4 if graph.ranks <= 512 else 1):
        made = matched_allgather(graph, per_rank, size_bytes, seed)
        seconds = time_algorithm(made, graph, size_bytes).seconds if graph.ranks <= 512 else 0.0
        if seconds < best_s:
            best, best_s = made, seconds
        if best_s <= GOOD * least:
            break
    assert best is not None
    return best


def packed_allreduce(graph: Graph, size_bytes: float) -> Algorithm:
    """All-reduce over packed trees, cut into as many chunks as balance filling the trees against latency.

    Of X chunks, D rounds of filling cost D/X M/b and latency costs share X alpha; the sum is least at the root.
    """
    trees = packed_trees(graph, TREES)
    rate, alpha = float(graph.bytes_per_s.mean()), max(float(graph.latency_s.mean()), 1e-9)
    share = (graph.ranks - 1) / (graph.links / 2)
    filling = 4 * sqrt(graph.ranks)
    total = sqrt(filling * size_bytes / rate / (share * alpha))
    most = 300_000 / (2 * graph.ranks)
    pieces = max(1, round(min(total, most) / TREES))
    return scheduled_allreduce(trees, pieces)
