"""Turn a collective and a graph into the algorithms of the library that fit both, and choose the fastest for a size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ridgeline.comm.algorithm import Algorithm, beside, turned
from ridgeline.comm.contract import Collective, contract
from ridgeline.comm.graph import Graph
from ridgeline.comm.library.exchanges import bruck_alltoall, forwarded_alltoall, pairwise
from ridgeline.comm.library.gathers import allgather_by_axes, allgather_over, reduce_then_gather
from ridgeline.comm.library.levels import rings_allgather, split_rail_allgather, two_level_allreduce
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
from ridgeline.comm.timing import Timing, time_algorithm
from ridgeline.core.arrays import Index
from ridgeline.core.errors import InputError, Problem, not_among

MOST_STEPS = 10_000_000
PIECES = (1, 4, 16, 64)  # chunks that follow each other through a tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An algorithm that could run: its name, how many steps it has, and how it is made."""

    name: str
    steps: int
    make: Callable[[], Algorithm]


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
            return list(_gathers(graph))
        case "reducescatter":
            return [_changed(one, turned, 1) for one in _gathers(graph)]
        case "allreduce":
            return [_changed(one, reduce_then_gather, 2) for one in _gathers(graph)] + list(_sums(graph))
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
    return Candidate(name=one.name, steps=one.steps * times, make=lambda: change(one.make()))


def _gathers(graph: Graph) -> Iterator[Candidate]:
    n = graph.ranks
    order = ring_order(graph)
    whole = n * (n - 1)
    names = ["ring", "nhr", "nb", "all-pairs"] + (["halving-doubling", "swing"] if n & (n - 1) == 0 else [])
    for name in names:
        yield Candidate(name=name, steps=whole, make=lambda name=name: allgather_over(order, name))  # type: ignore[misc]
    if graph.direct:
        yield Candidate(name="two-way-ring", steps=2 * whole, make=lambda: two_way_ring(order))
    if len(graph.shape) > 1 and min(graph.shape) > 1:
        ways = 2 * len(graph.shape)
        yield Candidate(name="bucket", steps=ways * whole, make=lambda: bucket(graph))
    if graph.domain and n % graph.domain == 0:
        g = graph.domain
        rings = min(g, 8)
        yield Candidate(name="split-rail", steps=whole, make=lambda: split_rail_allgather(n, g))
        yield Candidate(name="rings", steps=rings * whole, make=lambda: rings_allgather(n, g, rings))
    if graph.reducing >= 0:
        yield Candidate(name="in-switch", steps=8 * n * n, make=lambda: in_switch_allgather(n, graph.reducing, 8))


def _sums(graph: Graph) -> Iterator[Candidate]:
    n = graph.ranks
    trees = double_tree(n)
    for pieces in PIECES:
        steps = 4 * n * pieces
        yield Candidate(
            name="double-tree",
            steps=steps,
            make=lambda pieces=pieces: tree_allreduce(trees, pieces, "double-tree"),  # type: ignore[misc]
        )
        if graph.reducing >= 0:
            yield Candidate(
                name="in-switch",
                steps=steps,
                make=lambda pieces=pieces: in_switch_allreduce(n, graph.reducing, pieces),  # type: ignore[misc]
            )
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
    yield Candidate(name="pairwise", steps=n * n, make=lambda: pairwise(n))
    yield Candidate(name="all-pairs", steps=n * n, make=lambda: pairwise(n, at_once=True))
    yield Candidate(name="bruck", steps=n * n * (n - 1).bit_length(), make=lambda: bruck_alltoall(n))
    if graph.domain and n % graph.domain == 0:
        yield Candidate(name="forwarded", steps=2 * n * n, make=lambda: forwarded_alltoall(n, graph.domain))


def two_way_ring(order: Index) -> Algorithm:
    """A ring in each direction, half the data on each."""
    n = len(order)
    parts = [allgather_over(order, "ring"), allgather_over(order[::-1].copy(), "ring")]
    chunk_of = [np.arange(n) * 2, np.arange(n) * 2 + 1]
    return beside(parts, contract("allgather", n, 2 * n), "two-way-ring", chunk_of)


def bucket(graph: Graph) -> Algorithm:
    """The bucket algorithm of a torus: rings along one axis after the other; every axis and direction begins a part."""
    axes = len(graph.shape)
    grid = np.arange(graph.ranks).reshape(graph.shape)
    parts = []
    for first in range(axes):
        turn = tuple((first + step) % axes for step in range(axes))
        parts += [allgather_by_axes(side, turn, ("ring",) * axes, "bucket") for side in (grid, np.flip(grid))]
    count = len(parts)
    chunk_of = [np.arange(graph.ranks) * count + index for index in range(count)]
    whole = contract("allgather", graph.ranks, graph.ranks * count)
    return beside(parts, whole, "bucket", chunk_of)


def fastest(
    collective: Collective, graph: Graph, size_bytes: float, *, name: str = "", root: int = 0
) -> tuple[Algorithm, Timing]:
    """The library's fastest algorithm for a size, or the best form of the one named."""
    known = candidates(collective, graph, root)
    if name and name not in {one.name for one in known}:
        raise InputError(not_among("algorithm", name, dict.fromkeys(one.name for one in known)))
    tried = [one for one in known if one.name == name or not name]
    small = [one for one in tried if one.steps <= MOST_STEPS]
    if not small:
        least = min(one.steps for one in tried)
        expected = f"at most {MOST_STEPS:,} steps"
        raise InputError(
            Problem(path="algorithm", given=f"{least:,} steps", expected=expected, todo="take fewer ranks")
        )
    best: tuple[Algorithm, Timing] | None = None
    for one in small:
        made = one.make()
        timed = time_algorithm(made, graph, size_bytes)
        if best is None or timed.seconds < best[1].seconds:
            best = made, timed
    assert best is not None
    return best
