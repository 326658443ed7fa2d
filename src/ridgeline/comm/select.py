"""Turn a collective and a graph into the algorithms of the library that fit both, and choose the fastest for a size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm

import numpy as np

from ridgeline.comm.algorithm import Algorithm, beside, turned
from ridgeline.comm.block_timing import bucket_time
from ridgeline.comm.bounds import lower_bound
from ridgeline.comm.contract import Collective, contract
from ridgeline.comm.everyone_loads import everyone_floor
from ridgeline.comm.graph import Graph
from ridgeline.comm.library.exchanges import bruck_alltoall, forwarded_alltoall, pairwise
from ridgeline.comm.library.gathers import allgather_by_axes, allgather_over, reduce_then_gather
from ridgeline.comm.library.levels import (
    exit_ring,
    rings_allgather,
    split_rail_allgather,
    two_level_allreduce,
    unequal_allreduce,
)
from ridgeline.comm.library.trees import (
    binary_tree,
    chain,
    double_tree,
    in_switch_allgather,
    in_switch_allreduce,
    rooted,
    tree_allreduce,
    tree_broadcast,
)
from ridgeline.comm.routes import KEPT_NODES
from ridgeline.comm.timing import Timing, time_algorithm
from ridgeline.comm.traffic import (
    Traffic,
    bruck_traffic,
    bucket_seconds,
    closes_evenly,
    floor_seconds,
    grid_traffic,
    line_traffic,
    pairs_seconds,
    quick_floor,
    tree_traffic,
)
from ridgeline.core.arrays import Index
from ridgeline.core.errors import InputError, Problem, not_among

MOST_STEPS = 10_000_000
ALIASES = {
    "bruck": "nb", "recursive-halving-doubling": "halving-doubling", "rhd": "halving-doubling",
    "h-d_r": "halving-doubling",
    "tree": "double-tree", "mesh": "all-pairs", "nvls": "in-switch", "sharp": "in-switch", "hierarchical": "two-level",
    "ahc": "unequal-groups", "unequal": "unequal-groups", "blueconnect": "split-rail",
}  # fmt: skip
"""Other names that an algorithm goes by, where the collective has none of that very name."""
NEEDS = {
    "halving-doubling": "it needs a power of two of ranks",
    "swing": "it needs a power of two of ranks",
    "bucket": "it needs a whole mesh or torus of two axes or more, and all-gather, reduce-scatter or all-reduce",
    "split-rail": "it needs domains of equal size, as domains:4x8",
    "two-level": "it needs domains of equal size, as domains:4x8, and all-reduce",
    "rings": "it needs domains of equal size, as domains:4x8",
    "forwarded": "it needs domains of equal size, as domains:4x8, and all-to-all, dispatch or combine",
    "unequal-groups": "it needs --groups 2+3 or domains that lost ranks, and all-reduce",
    "in-switch": "it needs a switch that adds up, as sharp:8 or 8xh100-sxm",
    "two-way-ring": "it needs ranks that are linked directly",
}
PIECES = (1, 4, 16, 64)  # chunks that follow each other through a tree


def _unknown(_size_bytes: float) -> float:
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An algorithm that could run: its name, how many steps it has, how it is made, and what it cannot beat.

    floor   a lower bound of its seconds for a size; 0 where nothing is known without making it
    quick   the same, sooner known and lower
    exact   the floor is its time
    """

    name: str
    steps: int
    make: Callable[[], Algorithm]
    floor: Callable[[float], float] = _unknown
    quick: Callable[[float], float] = _unknown
    exact: bool = False


def ring_order(graph: Graph) -> Index:
    """Ranks in an order whose neighbours are near: back and forth through a grid, else as numbered."""
    if len(graph.shape) < 2:
        return np.arange(graph.ranks)
    order = np.arange(graph.ranks).reshape(graph.shape)
    for axis in range(len(graph.shape) - 1, 0, -1):
        flat = order.reshape(-1, graph.shape[axis - 1], int(np.prod(graph.shape[axis:])))
        flat[:, 1::2] = flat[:, 1::2, ::-1]
        order = flat
    return order.ravel()


def candidates(collective: Collective, graph: Graph, root: int = 0) -> list[Candidate]:
    """Every algorithm of the library for this collective on this graph."""
    match collective:
        case "allgather":
            return list(_gathers(graph, "allgather"))
        case "reducescatter":
            return [_changed(one, turned, 1) for one in _gathers(graph, "reducescatter")]
        case "allreduce":
            gathers = _gathers(graph, "allreduce")
            return [_changed(one, reduce_then_gather, 2) for one in gathers] + list(_sums(graph))
        case "broadcast":
            return list(_broadcasts(graph, root))
        case "reduce":
            return [_changed(one, turned, 1) for one in _broadcasts(graph, root)]
        case "alltoall":
            return list(_alltoalls(graph))
        case _:
            raise InputError(not_among("collective", collective, ("allreduce", "allgather", "reducescatter",
                                       "broadcast", "reduce", "alltoall")))  # fmt: skip


def _changed(one: Candidate, change: Callable[[Algorithm], Algorithm], times: int) -> Candidate:
    return replace(one, steps=one.steps * times, make=lambda: change(one.make()))


def _gathers(graph: Graph, collective: Collective) -> Iterator[Candidate]:
    """All-gathers; floors are those of the collective that is made of them."""
    n = graph.ranks
    order = ring_order(graph)
    whole = n * (n - 1)

    forth = {"allgather": (False,), "reducescatter": (True,), "allreduce": (False, True)}[collective]

    def sent(make: Callable[[], list[Traffic]]) -> list[Traffic]:
        return [one.turned() if back else one for back in forth for one in make()]

    def at_least(make: Callable[[], list[Traffic]]) -> Callable[[float], float]:
        return lambda size: floor_seconds(graph, sent(make), size)

    def soon(make: Callable[[], list[Traffic]]) -> Callable[[float], float]:
        return lambda size: quick_floor(graph, sent(make), size)

    def crossed(size: float) -> float:  # everyone to everyone: what an all-to-all of that size takes, each way
        return (2 if collective == "allreduce" else 1) * everyone_seconds(graph, size)

    names = ["ring", "nhr", "nb"] + (["halving-doubling", "swing"] if n & (n - 1) == 0 else [])
    for name in names:
        yield Candidate(
            name=name,
            steps=whole,
            make=lambda name=name: allgather_over(order, name),  # type: ignore[misc]
            floor=at_least(lambda name=name: line_traffic(order, name)),  # type: ignore[misc]
            quick=soon(lambda name=name: line_traffic(order, name)),  # type: ignore[misc]
        )
    yield Candidate(name="all-pairs", steps=whole, make=lambda: allgather_over(order, "all-pairs"), floor=crossed)
    if graph.direct:
        both = (order, order[::-1].copy())
        floor = at_least(lambda: [row for one in both for row in line_traffic(one, "ring", 2)])
        yield Candidate(name="two-way-ring", steps=2 * whole, make=lambda: two_way_ring(order), floor=floor)
    if len(graph.shape) > 1 and min(graph.shape) > 1:
        ways = 2 * len(graph.shape)
        passes = 2 if collective == "allreduce" else 1

        def exact(size: float) -> float:
            even = closes_evenly(graph)
            return bucket_seconds(graph, size, passes) if even else bucket_time(graph, _turns(graph), collective, size)

        yield Candidate(name="bucket", steps=ways * whole, make=lambda: bucket(graph), floor=exact, exact=True)
    yield from _domain_gathers(graph, at_least)
    if graph.reducing >= 0:
        yield Candidate(name="in-switch", steps=8 * n * n, make=lambda: in_switch_allgather(n, graph.reducing, 8))


def _domain_gathers(
    graph: Graph, at_least: Callable[[Callable[[], list[Traffic]]], Callable[[float], float]]
) -> Iterator[Candidate]:
    n, g = graph.ranks, graph.domain
    if not g or n % g:
        return
    whole, rings = n * (n - 1), min(g, 8)
    rails = at_least(lambda: grid_traffic(np.arange(n).reshape(-1, g), (0,), 1))
    yield Candidate(name="split-rail", steps=whole, make=lambda: split_rail_allgather(n, g), floor=rails)
    side = at_least(lambda: [row for k in range(rings) for row in line_traffic(exit_ring(n, g, k), "ring", rings)])
    yield Candidate(name="rings", steps=rings * whole, make=lambda: rings_allgather(n, g, rings), floor=side)


def _sums(graph: Graph) -> Iterator[Candidate]:
    n = graph.ranks
    trees = double_tree(n)
    for pieces in PIECES:
        steps = 4 * n * pieces
        yield Candidate(
            name="double-tree",
            steps=steps,
            make=lambda pieces=pieces: tree_allreduce(trees, pieces, "double-tree"),  # type: ignore[misc]
            floor=lambda size: floor_seconds(graph, tree_traffic(trees), size),
            quick=lambda size: quick_floor(graph, tree_traffic(trees), size),
        )
        if graph.reducing >= 0:
            yield Candidate(
                name="in-switch",
                steps=steps,
                make=lambda pieces=pieces: in_switch_allreduce(n, graph.reducing, pieces),  # type: ignore[misc]
            )
    if len(graph.groups) > 1:
        slices = lcm(*graph.groups) * len(graph.groups)
        make = lambda: unequal_allreduce(graph.groups)  # noqa: E731
        yield Candidate(name="unequal-groups", steps=2 * slices * (n + len(graph.groups)), make=make)
    if graph.domain and n % graph.domain == 0:
        yield Candidate(
            name="two-level", steps=4 * n * (n // graph.domain), make=lambda: two_level_allreduce(n, graph.domain)
        )


def _broadcasts(graph: Graph, root: int) -> Iterator[Candidate]:
    n = graph.ranks
    order = ring_order(graph)
    line = np.roll(order, -int(np.flatnonzero(order == root)[0]))
    double = [rooted(parent, root) for parent in double_tree(n)]
    trees = {"chain": [chain(line)], "tree": [rooted(binary_tree(n), root)], "double-tree": double}
    for name, parents in trees.items():
        for pieces in PIECES:
            yield Candidate(
                name=name,
                steps=len(parents) * pieces * n,
                make=lambda name=name, parents=parents, pieces=pieces: tree_broadcast(parents, pieces, name),  # type: ignore[misc]
            )


def _alltoalls(graph: Graph) -> Iterator[Candidate]:
    n = graph.ranks

    def least(size: float) -> float:
        return everyone_seconds(graph, size)

    def by_bits(size: float) -> float:
        return floor_seconds(graph, bruck_traffic(n), size)

    yield Candidate(name="all-pairs", steps=n * n, make=lambda: pairwise(n, at_once=True), floor=least)
    yield Candidate(name="pairwise", steps=n * n, make=lambda: pairwise(n), floor=least)
    if graph.domain and n % graph.domain == 0:
        make = lambda: forwarded_alltoall(n, graph.domain)  # noqa: E731
        yield Candidate(name="forwarded", steps=2 * n * n, make=make, floor=least)
    steps = n * n * (n - 1).bit_length() // 2
    yield Candidate(name="bruck", steps=steps, make=lambda: bruck_alltoall(n), floor=by_bits)


def everyone_seconds(graph: Graph, size_bytes: float) -> float:
    """What an all-to-all of that size takes at least, from everyone to everyone."""
    least = max(lower_bound(graph, "alltoall", size_bytes).bandwidth_s, pairs_seconds(graph, size_bytes))
    if graph.direct and not graph.shape and graph.ranks <= KEPT_NODES:
        return max(least, everyone_floor(graph, size_bytes))
    return least


def two_way_ring(order: Index) -> Algorithm:
    """A ring in each direction, half the data on each."""
    n = len(order)
    parts = [allgather_over(order, "ring"), allgather_over(order[::-1].copy(), "ring")]
    chunk_of = [np.arange(n) * 2, np.arange(n) * 2 + 1]
    return beside(parts, contract("allgather", n, 2 * n), "two-way-ring", chunk_of)


def _turns(graph: Graph) -> Iterator[tuple[Index, tuple[int, ...]]]:
    """The parts of the bucket algorithm: the grid in one direction or the other, and the order of its axes."""
    axes = len(graph.shape)
    grid = np.arange(graph.ranks).reshape(graph.shape)
    for first in range(axes):
        turn = tuple((first + step) % axes for step in range(axes))
        yield grid, turn
        yield np.flip(grid), turn


def bucket(graph: Graph) -> Algorithm:
    """The bucket algorithm of a torus: rings along one axis after the other; every axis and direction begins a part."""
    axes = len(graph.shape)
    parts = [allgather_by_axes(grid, turn, ("ring",) * axes, "bucket") for grid, turn in _turns(graph)]
    count = len(parts)
    chunk_of = [np.arange(graph.ranks) * count + index for index in range(count)]
    whole = contract("allgather", graph.ranks, graph.ranks * count)
    return beside(parts, whole, "bucket", chunk_of)


def fastest(
    collective: Collective, graph: Graph, size_bytes: float, *, name: str = "", root: int = 0
) -> tuple[Algorithm, Timing]:
    """The library's fastest algorithm for a size, or the best form of the one named."""
    tried = named(candidates(collective, graph, root), name)
    if all(one.steps > MOST_STEPS for one in tried):
        least = min(one.steps for one in tried)
        expected = f"at most {MOST_STEPS:,} steps"
        raise InputError(
            Problem(path="algorithm", given=f"{least:,} steps", expected=expected, todo="take fewer ranks")
        )
    found = beaten(tried, graph, size_bytes, np.inf)
    assert found is not None
    return found


def named(known: Sequence[Candidate], name: str) -> list[Candidate]:
    """The forms of the algorithm of that name, or all where none is named."""
    if not name:
        return list(known)
    names = {one.name for one in known}
    meant = name if name in names else ALIASES.get(name, name)
    if meant not in names:
        if meant in NEEDS:
            here = ", ".join(dict.fromkeys(one.name for one in known))
            raise InputError(Problem(path="algorithm", given=name, expected=f"one of {here}", todo=NEEDS[meant]))
        raise InputError(not_among("algorithm", name, dict.fromkeys(one.name for one in known)))
    return [one for one in known if one.name == meant]


def beaten(
    known: Sequence[Candidate], graph: Graph, size_bytes: float, seconds: float
) -> tuple[Algorithm, Timing] | None:
    """The fastest of those that take less than so many seconds; those whose floor is above are not made."""
    best: tuple[Algorithm, Timing] | None = None
    for floor, one in by_floor(known, size_bytes, seconds):
        if floor * (1 - 1e-9) >= seconds:
            break
        made = one.make()
        timed = time_algorithm(made, graph, size_bytes)
        if timed.seconds < seconds:
            best, seconds = (made, timed), timed.seconds
    return best


def by_floor(known: Sequence[Candidate], size_bytes: float, seconds: float) -> list[tuple[float, Candidate]]:
    """Those that can be held as steps, with their floors, the lowest first; of a single one it is not looked for.

    Whose quick floor is not below so many seconds keeps that.
    """
    small = [one for one in known if one.steps <= MOST_STEPS]

    def floor(one: Candidate) -> float:
        soon = one.quick(size_bytes)
        return soon if soon * (1 - 1e-9) >= seconds else max(soon, one.floor(size_bytes))

    floors = [(floor(one) if len(small) > 1 else 0.0, row) for row, one in enumerate(small)]
    return [(least, small[row]) for least, row in sorted(floors)]


def unbeaten(known: Sequence[Candidate], graph: Graph, size_bytes: float, seconds: float) -> Algorithm | None:
    """As `beaten` without the times: one whose floor is its time is not timed, and made only if it wins."""
    best: Candidate | Algorithm | None = None
    for floor, one in by_floor(known, size_bytes, seconds):
        if floor * (1 - 1e-9) >= seconds:
            break
        if one.exact and floor:
            best, seconds = one, floor
            continue
        made = one.make()
        spent = time_algorithm(made, graph, size_bytes).seconds
        if spent < seconds:
            best, seconds = made, spent
    return best.make() if isinstance(best, Candidate) else best
