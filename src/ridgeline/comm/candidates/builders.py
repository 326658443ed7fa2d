"""Turn a graph into the forms that an algorithm can take on it: candidates, each with a floor of its seconds.

A builder yields nothing where its algorithm does not fit the graph. All-gathers serve three collectives: as they are,
reversed as a reduce-scatter, and both in sequence as an all-reduce.

Turn a graph of direct links into what everyone sending to everyone puts on each link, path by path of `routes`.

The paths from a rank form a tree: a link of it carries a message for each rank behind it. Trees of all ranks are added
up at once, farthest ranks first, in as many passes as the longest path has links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import lcm

import numpy as np
from numpy.typing import NDArray

from ridgeline.comm.algorithm import Algorithm, Candidate, CollectiveTask, parallel_parts, reversed_algorithm
from ridgeline.comm.block_timing import bucket_time
from ridgeline.comm.bounds import lower_bound
from ridgeline.comm.contract import Collective, contract
from ridgeline.comm.graph import Graph
from ridgeline.comm.library import exchanges, gathers, levels, trees
from ridgeline.comm.routes import KEPT_NODES, predecessors
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
from ridgeline.core.arrays import Array, Index


def alltoall_floor(graph: Graph, size_bytes: float) -> float:
    """Seconds of the busiest link when every rank sends 1/N of the size to every other, all at once."""
    messages = _loads(graph)
    spent = graph.latency_s + messages * (size_bytes / graph.ranks) / graph.bytes_per_s
    return float(np.where(messages > 0, spent, 0.0).max(initial=0.0))


@lru_cache(maxsize=2)
def _loads(graph: Graph) -> Array:
    """Messages on each link."""
    n = graph.nodes
    before = predecessors(graph)
    source, node = np.nonzero(before >= 0)
    flat, up = source * n + node, source * n + before[source, node]
    far = _depths(before)[source, node]
    order = np.argsort(far, kind="stable")
    behind = np.ones(n * n, np.int64)  # ranks behind a node in a source's tree, itself counted
    first = np.searchsorted(far[order], np.arange(1, int(far.max(initial=0)) + 2))
    for low, high in zip(first[-2::-1], first[:0:-1], strict=True):
        rows = order[low:high]
        np.add.at(behind, up[rows], behind[flat[rows]])
    number = np.full(n * n, -1, np.int64)
    number[graph.tail * n + graph.head] = np.arange(graph.links)
    link = number[before[source, node].astype(np.int64) * n + node]
    return np.bincount(link, behind[flat], graph.links).astype(np.float64)


def _depths(before: NDArray[np.int32]) -> NDArray[np.int32]:
    """Links of the path from each source to each node, by doubling: a node's ancestors at 1, 2, 4, ... links."""
    n = len(before)
    here = np.where(before >= 0, before, np.arange(n)[:, None]).astype(np.int32)  # a source is its own ancestor
    depth = (before >= 0).astype(np.int32)
    rows = np.arange(n)[:, None]
    while True:
        more = depth[rows, here]
        if not more.any():
            return depth
        depth = depth + more
        here = here[rows, here]


PIECES = (1, 4, 16, 64)  # chunks that follow each other through a tree
MULTICAST_PIECES = 8
TrafficOf = Callable[[], list[Traffic]]


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


def _serve(collective: Collective, gather: Candidate) -> Candidate:
    """The all-gather itself, or the reduce-scatter or all-reduce that is made of it."""
    if collective == "reducescatter":
        return replace(gather, make=lambda: reversed_algorithm(gather.make()))
    if collective == "allreduce":
        return replace(gather, steps=2 * gather.steps, make=lambda: gathers.reduce_then_gather(gather.make()))
    return gather


def _directions(collective: Collective, make: TrafficOf) -> list[Traffic]:
    """What a collective sends that is made of an all-gather: its traffic, the reverse, or both."""
    backward = {"allgather": (False,), "reducescatter": (True,), "allreduce": (False, True)}[collective]
    return [traffic.reverse() if back else traffic for back in backward for traffic in make()]


def _traffic_floor(graph: Graph, collective: Collective, make: TrafficOf) -> Callable[[float], float]:
    return lambda size: floor_seconds(graph, _directions(collective, make), size)


def line_gather(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """An all-gather over a line of ranks: ring, nhr, nb; halving-doubling and swing for a power of two of ranks."""
    graph, collective = task.graph, task.collective
    n, order = graph.ranks, ring_order(graph)
    if name in ("halving-doubling", "swing") and n & (n - 1):
        return

    def traffic() -> list[Traffic]:
        return line_traffic(order, name)

    gather = Candidate(
        name=name,
        steps=n * (n - 1),
        make=lambda: gathers.allgather_over(order, name),
        floor=_traffic_floor(graph, collective, traffic),
        quick=lambda size: quick_floor(graph, _directions(collective, traffic), size),
    )
    yield _serve(collective, gather)


def all_pairs(task: CollectiveTask) -> Iterator[Candidate]:
    """Every rank sends to every other in one round."""
    graph, collective = task.graph, task.collective
    n, order = graph.ranks, ring_order(graph)
    if collective == "alltoall":
        make = lambda: exchanges.pairwise(n, at_once=True)  # noqa: E731
        yield Candidate(name="all-pairs", steps=n * n, make=make, floor=lambda size: exchange_floor(graph, size))
        return
    passes = 2 if collective == "allreduce" else 1
    gather = Candidate(
        name="all-pairs",
        steps=n * (n - 1),
        make=lambda: gathers.allgather_over(order, "all-pairs"),
        floor=lambda size: passes * exchange_floor(graph, size),
    )
    yield _serve(collective, gather)


def two_way_rings(task: CollectiveTask) -> Iterator[Candidate]:
    """A ring in each direction, where ranks are linked directly."""
    graph, collective = task.graph, task.collective
    if not graph.direct:
        return
    n, order = graph.ranks, ring_order(graph)
    directions = (order, order[::-1].copy())
    floor = _traffic_floor(
        graph, collective, lambda: [row for line in directions for row in line_traffic(line, "ring", 2)]
    )
    gather = Candidate(name="two-way-ring", steps=2 * n * (n - 1), make=lambda: two_way_ring(order), floor=floor)
    yield _serve(collective, gather)


def bucket(task: CollectiveTask) -> Iterator[Candidate]:
    """Rings along the axes of a mesh or torus, every axis and direction at once."""
    graph, collective = task.graph, task.collective
    if len(graph.shape) < 2 or min(graph.shape) < 2:
        return
    n, passes = graph.ranks, 2 if collective == "allreduce" else 1

    def exact(size: float) -> float:
        if closes_evenly(graph):
            return bucket_seconds(graph, size, passes)
        return bucket_time(graph, _bucket_parts(graph), collective, size)

    steps = 2 * len(graph.shape) * n * (n - 1)
    gather = Candidate(name="bucket", steps=steps, make=lambda: bucket_algorithm(graph), floor=exact, exact=True)
    yield _serve(collective, gather)


def _has_domains(graph: Graph) -> bool:
    return bool(graph.domain) and graph.ranks % graph.domain == 0


def split_rail(task: CollectiveTask) -> Iterator[Candidate]:
    """Along the rails, then inside the domains."""
    graph, collective = task.graph, task.collective
    if not _has_domains(graph):
        return
    n, g = graph.ranks, graph.domain
    floor = _traffic_floor(graph, collective, lambda: grid_traffic(np.arange(n).reshape(-1, g), (0,), 1))
    make = lambda: levels.split_rail_allgather(n, g)  # noqa: E731
    yield _serve(collective, Candidate(name="split-rail", steps=n * (n - 1), make=make, floor=floor))


def rings(task: CollectiveTask) -> Iterator[Candidate]:
    """Rings side by side, each leaving a domain by another chip."""
    graph, collective = task.graph, task.collective
    if not _has_domains(graph):
        return
    n, g = graph.ranks, graph.domain
    count = min(g, levels.MOST_RINGS)

    def traffic() -> list[Traffic]:
        return [row for k in range(count) for row in line_traffic(levels.exit_ring(n, g, k), "ring", count)]

    floor = _traffic_floor(graph, collective, traffic)
    make = lambda: levels.rings_allgather(n, g, count)  # noqa: E731
    yield _serve(collective, Candidate(name="rings", steps=count * n * (n - 1), make=make, floor=floor))


def in_switch(task: CollectiveTask) -> Iterator[Candidate]:
    """Switches that copy for an all-gather, and that add up for an all-reduce."""
    graph, collective = task.graph, task.collective
    n, switch = graph.ranks, graph.reducing
    if switch < 0:
        return
    make = lambda: trees.in_switch_allgather(n, switch, MULTICAST_PIECES)  # noqa: E731
    yield _serve(collective, Candidate(name="in-switch", steps=MULTICAST_PIECES * n * n, make=make))
    for pieces in PIECES if collective == "allreduce" else ():
        make = lambda pieces=pieces: trees.in_switch_allreduce(n, switch, pieces)  # type: ignore[misc] # noqa: E731
        yield Candidate(name="in-switch", steps=4 * n * pieces, make=make)


def double_trees(task: CollectiveTask) -> Iterator[Candidate]:
    """An all-reduce on two binary trees, half of the vector on each; a broadcast or reduce likewise."""
    graph = task.graph
    if task.collective != "allreduce":
        yield from broadcast_tree(task, "double-tree")
        return
    n, pair = graph.ranks, trees.double_tree(graph.ranks)
    for pieces in PIECES:
        yield Candidate(
            name="double-tree",
            steps=4 * n * pieces,
            make=lambda pieces=pieces: trees.tree_allreduce(pair, pieces, "double-tree"),  # type: ignore[misc]
            floor=lambda size: floor_seconds(graph, tree_traffic(pair), size),
            quick=lambda size: quick_floor(graph, tree_traffic(pair), size),
        )


def broadcast_tree(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """A broadcast down a chain, a binary tree or two of them; reversed a reduce."""
    graph, collective, root = task
    n, order = graph.ranks, ring_order(graph)
    if name == "chain":
        parents = [trees.chain(np.roll(order, -int(np.flatnonzero(order == root)[0])))]
    elif name == "tree":
        parents = [trees.reroot(trees.binary_tree(n), root)]
    else:
        parents = [trees.reroot(parent, root) for parent in trees.double_tree(n)]
    for pieces in PIECES:
        yield Candidate(
            name=name,
            steps=len(parents) * pieces * n,
            make=lambda pieces=pieces: _rooted_trees(parents, pieces, name, collective),  # type: ignore[misc]
        )


def _rooted_trees(parents: list[Index], pieces: int, name: str, collective: Collective) -> Algorithm:
    broadcast = trees.tree_broadcast(parents, pieces, name)
    return reversed_algorithm(broadcast) if collective == "reduce" else broadcast


def unequal_groups(task: CollectiveTask) -> Iterator[Candidate]:
    """An all-reduce over groups of different sizes."""
    graph = task.graph
    if len(graph.groups) > 1:
        slices = lcm(*graph.groups) * len(graph.groups)
        steps = 2 * slices * (graph.ranks + len(graph.groups))
        yield Candidate(name="unequal-groups", steps=steps, make=lambda: levels.unequal_allreduce(graph.groups))


def two_level(task: CollectiveTask) -> Iterator[Candidate]:
    """An all-reduce through a leader of each domain."""
    graph = task.graph
    n, g = graph.ranks, graph.domain
    if _has_domains(graph):
        make = lambda: levels.two_level_allreduce(n, g)  # noqa: E731
        yield Candidate(name="two-level", steps=4 * n * (n // g), make=make)


def pairwise(task: CollectiveTask) -> Iterator[Candidate]:
    """An all-to-all of n - 1 rounds, every chunk straight to its target."""
    graph = task.graph
    n = graph.ranks
    make = lambda: exchanges.pairwise(n)  # noqa: E731
    yield Candidate(name="pairwise", steps=n * n, make=make, floor=lambda size: exchange_floor(graph, size))


def forwarded_exchange(task: CollectiveTask) -> Iterator[Candidate]:
    """An all-to-all over the chip of one's domain on the target's rail."""
    graph = task.graph
    n = graph.ranks
    if _has_domains(graph):
        make = lambda: exchanges.forwarded_alltoall(n, graph.domain)  # noqa: E731
        yield Candidate(name="forwarded", steps=2 * n * n, make=make, floor=lambda size: exchange_floor(graph, size))


def bruck(task: CollectiveTask) -> Iterator[Candidate]:
    """An all-to-all of log2 n rounds, a chunk moving by the bits of its distance."""
    graph = task.graph
    n = graph.ranks
    floor = lambda size: floor_seconds(graph, bruck_traffic(n), size)  # noqa: E731
    steps = n * n * (n - 1).bit_length() // 2
    yield Candidate(name="bruck", steps=steps, make=lambda: exchanges.bruck_alltoall(n), floor=floor)


def exchange_floor(graph: Graph, size_bytes: float) -> float:
    """Seconds that an all-to-all of that size takes at least, from every rank to every other."""
    least = max(lower_bound(graph, "alltoall", size_bytes).bandwidth_s, pairs_seconds(graph, size_bytes))
    if graph.direct and not graph.shape and graph.ranks <= KEPT_NODES:
        return max(least, alltoall_floor(graph, size_bytes))
    return least


def two_way_ring(order: Index) -> Algorithm:
    """An all-gather on a ring in each direction, half the data on each."""
    n = len(order)
    parts = [gathers.allgather_over(order, "ring"), gathers.allgather_over(order[::-1].copy(), "ring")]
    chunk_of = [np.arange(n) * 2, np.arange(n) * 2 + 1]
    return parallel_parts(parts, contract("allgather", n, 2 * n), "two-way-ring", chunk_of)


def _bucket_parts(graph: Graph) -> Iterator[tuple[Index, tuple[int, ...]]]:
    """The parts of the bucket algorithm: the grid in one direction or the other, and the order of its axes."""
    axes = len(graph.shape)
    grid = np.arange(graph.ranks).reshape(graph.shape)
    for first in range(axes):
        turn = tuple((first + step) % axes for step in range(axes))
        yield grid, turn
        yield np.flip(grid), turn


def bucket_algorithm(graph: Graph) -> Algorithm:
    """The bucket algorithm of a torus: rings along one axis after the other; every axis and direction begins a part."""
    axes = len(graph.shape)
    parts = [gathers.allgather_by_axes(grid, turn, ("ring",) * axes, "bucket") for grid, turn in _bucket_parts(graph)]
    count = len(parts)
    chunk_of = [np.arange(graph.ranks) * count + index for index in range(count)]
    outcome = contract("allgather", graph.ranks, graph.ranks * count)
    return parallel_parts(parts, outcome, "bucket", chunk_of)
