"""Turn a collective, a graph and a size into an algorithm for that very graph, never slower than the library's.

What is made is timed, and every algorithm of the library whose floor is below that time is made and timed too: the
answer is the fastest of all, at any size and number of ranks that the library has algorithms for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import sqrt

from ridgeline.comm.algorithm import Algorithm, Candidate, reduce_then_gather, reversed_algorithm
from ridgeline.comm.bounds import chunked_bound, lower_bound
from ridgeline.comm.contract import Collective
from ridgeline.comm.graph import Graph, refusal
from ridgeline.comm.select import by_floor, candidates, fastest, unbeaten
from ridgeline.comm.synthesis.exchange import balanced_ways, by_hops, multipath_exchanges, one_by_one
from ridgeline.comm.synthesis.matching import (
    SYNTHESIZED,
    EventGather,
    cycle_allgather,
    has_cycle,
    has_event_core,
    is_symmetric,
    matched_allgather,
    matched_broadcast,
    symmetric_allgather,
)
from ridgeline.comm.synthesis.packing import (
    TREED_RANKS,
    packed_trees,
    scheduled_allreduce,
    switched_allreduces,
    timed_allreduce,
)
from ridgeline.comm.synthesis.ports import ports_of
from ridgeline.comm.timing import time_algorithm

TREES = 32
PACKED_RANKS, PACKED_STEPS = 256, 400_000  # up to which trees are packed
BROADCAST_CHUNKS = (1, 8, 32, 128, 512)
BROADCAST_STEPS = 600_000
SWITCHED_CHUNKS = (1, 2, 4, 8)  # a rank's part is cut into, through switches
SWITCHED_STEPS = 50_000
MANY_SWITCHED = 256  # ranks behind switches from which on nothing is made where the library reaches the bound
EXCHANGED_RANKS = 512  # ranks up to which ways of an all-to-all are searched
MOST_STEPS = 40_000_000
MANY_STEPS = 1_000_000
SMALL = 1 << 16  # places (rank, chunk) up to which many seeds are tried
WORTH = 1.05  # the sequence over the bound from which trees are packed
GOOD, GOOD_OF_MANY = 1.005, 1.03  # times the bound: nothing else is tried
FEW_RANKS = 512  # up to which seeds are tried until GOOD
SEEDS, FEW_SEEDS = 12, 2  # without the core
# chunks that are chosen among, and times of the bound by which all are to be there, of each search in the core
EVENT_TRIES = tuple((width, slack) for slack in (1.0, 1.05) for width in (4, 1 << 20) for _ in range(6))
FEW_EVENT_TRIES = ((1, 1.0), (4, 1.0), (4, 1.05))


def synthesize(
    collective: Collective, graph: Graph, size_bytes: float, *, chunks: int | None = None, root: int = 0
) -> Algorithm:
    """The fastest of what is made for the graph and of the library.

    All-gather by symmetry or matching, its reverse, and both; all-reduce by packed trees too; broadcast and reduce by
    matching; all-to-all over balanced ways.
    """
    if graph.ranks < 2:
        return fastest(collective, graph, size_bytes, root=root)[0]
    if not graph.direct and chunks is None and graph.ranks > MANY_SWITCHED:
        ready = _ready(collective, graph, size_bytes, root)
        if ready is not None:
            return ready
    built = _built_algorithms(collective, graph, size_bytes, chunks, root)
    best, seconds = _good_enough(((algorithm, _seconds(algorithm, graph, size_bytes)) for algorithm in built), 0.0)
    library_best = unbeaten(candidates(collective, graph, root), graph, size_bytes, seconds)
    return library_best or best or fastest(collective, graph, size_bytes, root=root)[0]


def _ready(collective: Collective, graph: Graph, size_bytes: float, root: int) -> Algorithm | None:
    """What the library has at the bound through switches: everyone to everyone, else what may be quickest."""
    enough = GOOD * lower_bound(graph, collective, size_bytes, root).seconds
    able = [
        candidate
        for floor, candidate in by_floor(candidates(collective, graph, root), size_bytes, enough)
        if floor <= enough
    ]
    for candidate in sorted(able, key=lambda one: one.name != "all-pairs")[:1]:
        algorithm = candidate.make()
        if time_algorithm(algorithm, graph, size_bytes).seconds <= enough:
            return algorithm
    return None


def synthesize_exchange(known: Sequence[Candidate], graph: Graph, size_bytes: float) -> Algorithm:
    """The fastest of an exchange's algorithms and, on direct graphs, of its pieces over several ways at once.

    What goes to several ranks (MoE dispatch and combine) has the library's alone.
    """
    first = known[0].make()
    built: Iterable[Algorithm] = ()
    if graph.direct and first.contract.collective in ("sendrecv", "alltoallv"):
        built = multipath_exchanges(graph, first.contract, size_bytes)
    timed = ((algorithm, time_algorithm(algorithm, graph, size_bytes).seconds) for algorithm in built)
    best, seconds = _good_enough(timed, 0.0)
    return unbeaten(known, graph, size_bytes, seconds) or best or first


def _built_algorithms(
    collective: Collective, graph: Graph, size_bytes: float, chunks: int | None, root: int
) -> Iterator[Algorithm]:
    """Algorithms for the graph: none where the library has what reaches the bound."""
    match collective:
        case "broadcast" | "reduce":
            yield from _rooted_algorithms(collective, graph, size_bytes, chunks, root)
        case "alltoall":
            if graph.direct and graph.ranks <= EXCHANGED_RANKS:
                ways = balanced_ways(graph)
                yield by_hops(graph, ways)
                yield one_by_one(graph, ways, size_bytes / graph.ranks)
        case _ if graph.direct:
            yield from _direct(collective, graph, size_bytes, _refuse_too_large(graph, chunks or _chunks(graph.ranks)))
            if chunks is None and _chunks(graph.ranks) > 1 and is_symmetric(graph):
                yield _serve_collective(collective, symmetric_allgather(graph))
        case _:
            yield from _switched_algorithms(collective, graph, size_bytes, chunks)


def _refuse_too_large(graph: Graph, per_rank: int) -> int:
    """The number of chunks, if it makes no more steps than can be held."""
    if per_rank < 1 or graph.ranks * (graph.ranks - 1) * per_rank > MOST_STEPS:
        raise refusal(
            "chunks", f"{per_rank} chunks on each of {graph.ranks} ranks", f"1 or more, and {MOST_STEPS} steps at most"
        )
    return per_rank


def _rooted_algorithms(
    collective: Collective, graph: Graph, size_bytes: float, chunks: int | None, root: int
) -> Iterator[Algorithm]:
    """Broadcasts by matching in some numbers of chunks, reversed_algorithm for a reduce."""
    ports = ports_of(graph)
    for count in (chunks,) if chunks else BROADCAST_CHUNKS:
        if count * graph.ranks <= BROADCAST_STEPS:
            broadcast = matched_broadcast(graph, root, count, size_bytes, ports=ports)
            yield reversed_algorithm(broadcast) if collective == "reduce" else broadcast


def _switched_algorithms(
    collective: Collective, graph: Graph, size_bytes: float, chunks: int | None
) -> Iterator[Algorithm]:
    """All-gathers through switches in some numbers of chunks, and what is made of them; all-reduces by trees."""
    ports, n = ports_of(graph), graph.ranks
    least = lower_bound(graph, "allgather", size_bytes).seconds
    gathered_s = float("inf")
    for per_rank in (_refuse_too_large(graph, chunks),) if chunks else SWITCHED_CHUNKS:
        if chunks or n * (n - 1) * per_rank <= SWITCHED_STEPS or per_rank == 1:
            gather = matched_allgather(graph, per_rank, size_bytes, ports=ports)
            yield _serve_collective(collective, gather)
            gathered_s = min(gathered_s, time_algorithm(gather, graph, size_bytes).seconds)
            if gathered_s <= GOOD * least:
                break
    if collective != "allreduce" or n > TREED_RANKS:
        return
    if lower_bound(graph, "allreduce", size_bytes).seconds * WORTH < 2 * gathered_s:
        yield from switched_allreduces(graph)


def _serve_collective(collective: Collective, gather: Algorithm) -> Algorithm:
    """An all-gather, its reverse, or both."""
    if collective == "allgather":
        return gather
    return reversed_algorithm(gather) if collective == "reducescatter" else reduce_then_gather(gather)


def _seconds(made: Algorithm, graph: Graph, size_bytes: float) -> float:
    """The time of an algorithm; of a large one, whose links carry a chunk a round, by its rounds: not less."""
    if made.name == SYNTHESIZED and graph.direct and graph.uniform and len(made.steps) > MANY_STEPS:
        chunk_s = size_bytes / made.contract.chunks / float(graph.bytes_per_s[0]) + float(graph.latency_s[0])
        return made.rounds * chunk_s
    return time_algorithm(made, graph, size_bytes).seconds


def _chunks(ranks: int) -> int:
    """Chunks a rank's part is cut into: few ranks need several for links to share evenly."""
    return 4 if ranks <= 64 else 1


def _direct(collective: Collective, graph: Graph, size_bytes: float, per_rank: int) -> Iterator[Algorithm]:
    gather = gather_algorithm(graph, per_rank, size_bytes)
    algorithm = _serve_collective(collective, gather)
    yield algorithm
    if collective == "allreduce" and graph.ranks <= PACKED_RANKS:
        least = lower_bound(graph, "allreduce", size_bytes).bandwidth_s
        if least * WORTH < _seconds(algorithm, graph, size_bytes):
            yield packed_allreduce(graph, size_bytes)


def gather_algorithm(graph: Graph, per_rank: int, size_bytes: float) -> Algorithm:
    """An all-gather: by symmetry on a torus, along a cycle on an even mesh, else the best of a few matchings."""
    if per_rank == 1 and is_symmetric(graph):
        return symmetric_allgather(graph)
    if per_rank == 1 and has_cycle(graph):
        return cycle_allgather(graph)
    times = GOOD if graph.ranks <= FEW_RANKS else GOOD_OF_MANY  # of the chunked bound: no other seed is tried
    tried: Iterable[tuple[Algorithm, float]]
    if has_event_core():  # many searches where they are short
        search = EventGather(graph, per_rank, size_bytes)
        bound, tries = search.bound, EVENT_TRIES if graph.ranks**2 * per_rank <= SMALL else FEW_EVENT_TRIES
        tried = (search.build(seed, width, slack) for seed, (width, slack) in enumerate(tries))
    else:
        bound = chunked_bound(graph, "allgather", size_bytes, graph.ranks * per_rank)
        seeds = SEEDS if graph.ranks**2 * per_rank <= SMALL else FEW_SEEDS if graph.ranks <= FEW_RANKS else 1
        attempts = (matched_allgather(graph, per_rank, size_bytes, seed) for seed in range(seeds))
        tried = ((gather, _seconds(gather, graph, size_bytes)) for gather in attempts)
    best, _ = _good_enough(tried, times * bound)
    assert best is not None
    return best


def _good_enough(tried: Iterable[tuple[Algorithm, float]], enough: float) -> tuple[Algorithm | None, float]:
    """The first that takes no more than is enough, in seconds; else the fastest of all, if any."""
    best, best_s = None, float("inf")
    for algorithm, seconds in tried:
        if seconds < best_s:
            best, best_s = algorithm, seconds
        if best_s <= enough:
            break
    return best, best_s


def packed_allreduce(graph: Graph, size_bytes: float) -> Algorithm:
    """All-reduce over packed trees, cut into as many chunks as balance filling the trees against latency.

    Of X chunks, D rounds of filling cost D/X M/b and latency costs share X alpha; the sum is least at the root.
    """
    trees = packed_trees(graph, TREES)
    rate, alpha = float(graph.bytes_per_s.mean()), max(float(graph.latency_s.mean()), 1e-9)
    share = (graph.ranks - 1) / (graph.links / 2)
    filling = 4 * sqrt(graph.ranks)
    total = sqrt(filling * size_bytes / rate / (share * alpha))
    most_pieces = PACKED_STEPS / (2 * graph.ranks)
    pieces = max(1, round(min(total, most_pieces) / TREES))
    if graph.uniform:
        return scheduled_allreduce(trees, pieces)
    piece_s = size_bytes / (TREES * pieces) / graph.bytes_per_s + graph.latency_s
    ends = zip(graph.tail.tolist(), graph.head.tolist(), strict=True)
    return timed_allreduce(trees, pieces, dict(zip(ends, piece_s.tolist(), strict=True)))
