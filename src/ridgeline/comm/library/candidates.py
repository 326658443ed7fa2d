"""Turn a graph into the forms that an algorithm can take on it: candidates, each with a floor of its seconds.

A builder yields nothing where its algorithm does not fit the graph. All-gathers serve three collectives: as they are,
reversed as a reduce-scatter, and both in sequence as an all-reduce.

A floor is what an algorithm's messages take at least. A link is taken by one round after the other, each for its
latency and its bytes, and a chunk that goes round a ring makes one hop after the other:

    floor = max over links of the sum over rounds of (latency of the link + bytes on it / rate)

Messages instead of chunks: a ring of 1024 ranks is one row of 1024 pairs, 1023 times. Who cannot win by its floor need
not be made and timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import lcm

import numpy as np
from numpy.typing import NDArray

from ridgeline.comm.algorithm import (
    Algorithm,
    Candidate,
    CollectiveTask,
    no_floor,
    parallel_gathers,
    reduce_then_gather,
    reversed_algorithm,
)
from ridgeline.comm.bounds import lower_bound
from ridgeline.comm.graph import Graph, link_matrix, links_between
from ridgeline.comm.library import algorithms
from ridgeline.comm.routes import KEPT_NODES, merge_switches, predecessors, shortest_routes
from ridgeline.comm.timing import bucket_time
from ridgeline.core.arrays import Array, Index

PIECES = (1, 4, 16, 64)  # chunks that follow each other through a tree
MULTICAST_PIECES = 8
Floor = Callable[[float], float]
TrafficOf = Callable[[], list["RoundTraffic"]]


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


def _serve(
    task: CollectiveTask, name: str, steps: int, make: Callable[[], Algorithm], floor: Floor = no_floor, *,
    quick: Floor = no_floor, exact: bool = False,
) -> Candidate:  # fmt: skip
    """An all-gather itself, or the reduce-scatter or all-reduce that is made of it."""
    candidates = {
        "reducescatter": lambda: reversed_algorithm(make()),
        "allreduce": lambda: reduce_then_gather(make()),
    }.get(task.collective, make)
    steps *= 2 if task.collective == "allreduce" else 1
    return Candidate(name=name, steps=steps, make=candidates, floor=floor, quick=quick, exact=exact)


def _traffic_floor(task: CollectiveTask, make: TrafficOf, *, quick: bool = False) -> Floor:
    """The floor of a collective that is made of an all-gather, by its traffic, the reverse, or both."""
    backward = {"allgather": (False,), "reducescatter": (True,), "allreduce": (False, True)}[task.collective]
    floor = quick_floor if quick else floor_seconds

    def seconds(size_bytes: float) -> float:
        rows = [traffic.reverse() if back else traffic for back in backward for traffic in make()]
        return floor(task.graph, rows, size_bytes)

    return seconds


def _exchange_floor_of(task: CollectiveTask, passes: int = 1) -> Floor:
    return lambda size: passes * exchange_floor(task.graph, size)


def line_gather(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """An all-gather over a line of ranks: ring, nhr, nb; halving-doubling and swing for a power of two of ranks."""
    n, order = task.graph.ranks, ring_order(task.graph)
    if name in ("halving-doubling", "swing") and n & (n - 1):
        return

    def traffic() -> list[RoundTraffic]:
        return line_traffic(order, name)

    floor, quick = _traffic_floor(task, traffic), _traffic_floor(task, traffic, quick=True)
    yield _serve(task, name, n * (n - 1), lambda: algorithms.allgather_over(order, name), floor, quick=quick)


def all_pairs(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """Every rank sends to every other in one round."""
    n, order = task.graph.ranks, ring_order(task.graph)
    if task.collective == "alltoall":
        yield from pairwise(task, name)
        return
    floor = _exchange_floor_of(task, 2 if task.collective == "allreduce" else 1)
    yield _serve(task, name, n * (n - 1), lambda: algorithms.allgather_over(order, name), floor)


def two_way_rings(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """A ring in each direction with half the data, where ranks are linked directly."""
    if not task.graph.direct:
        return
    n, order = task.graph.ranks, ring_order(task.graph)
    directions = (order, order[::-1].copy())

    def make() -> Algorithm:
        return parallel_gathers([algorithms.allgather_over(line, "ring") for line in directions], name)

    floor = _traffic_floor(task, lambda: [row for line in directions for row in line_traffic(line, "ring", 2)])
    yield _serve(task, name, 2 * n * (n - 1), make, floor)


def bucket(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """Rings along one axis of a mesh or torus after the other; every axis and direction begins a part."""
    graph, collective = task.graph, task.collective
    axes, n = len(graph.shape), graph.ranks
    if axes < 2 or min(graph.shape) < 2:
        return
    grid = np.arange(n).reshape(graph.shape)
    turns = [tuple((first + step) % axes for step in range(axes)) for first in range(axes)]
    grids = [(direction, turn) for turn in turns for direction in (grid, np.flip(grid))]

    def make() -> Algorithm:
        patterns = ("ring",) * axes
        return parallel_gathers([algorithms.allgather_by_axes(*grid, patterns, name) for grid in grids], name)

    def seconds(size: float) -> float:
        if closes_evenly(graph):
            return bucket_seconds(graph, size, 2 if collective == "allreduce" else 1)
        return bucket_time(graph, grids, collective, size)

    yield _serve(task, name, 2 * axes * n * (n - 1), make, seconds, exact=True)


def _has_domains(graph: Graph) -> bool:
    return bool(graph.domain) and graph.ranks % graph.domain == 0


def split_rail(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """Along the rails, then inside the domains."""
    if _has_domains(task.graph):
        n, g = task.graph.ranks, task.graph.domain
        floor = _traffic_floor(task, lambda: [_shift_traffic(np.arange(n), g, 1 / n, n // g - 1, True)])
        yield _serve(task, name, n * (n - 1), lambda: algorithms.split_rail_allgather(n, g), floor)


def rings(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """Rings side by side, each leaving a domain by another chip."""
    if not _has_domains(task.graph):
        return
    n, g = task.graph.ranks, task.graph.domain
    count = min(g, algorithms.MOST_RINGS)

    def traffic() -> list[RoundTraffic]:
        return [row for k in range(count) for row in line_traffic(algorithms.exit_ring(n, g, k), "ring", count)]

    floor = _traffic_floor(task, traffic)
    yield _serve(task, name, count * n * (n - 1), lambda: algorithms.rings_allgather(n, g, count), floor)


def in_switch(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """Switches that copy for an all-gather, and that add up for an all-reduce."""
    n, switch = task.graph.ranks, task.graph.reducing
    if switch < 0:
        return
    yield _serve(
        task, name, MULTICAST_PIECES * n * n, lambda: algorithms.in_switch_allgather(n, switch, MULTICAST_PIECES)
    )
    for pieces in PIECES if task.collective == "allreduce" else ():
        make = partial(algorithms.in_switch_allreduce, n, switch, pieces)
        yield Candidate(name=name, steps=4 * n * pieces, make=make)


def double_trees(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """An all-reduce on two binary trees, half of the vector on each; a broadcast or reduce likewise."""
    graph = task.graph
    if task.collective != "allreduce":
        yield from broadcast_tree(task, name)
        return
    n, pair = graph.ranks, algorithms.double_tree(graph.ranks)
    for pieces in PIECES:
        yield Candidate(
            name=name,
            steps=4 * n * pieces,
            make=partial(algorithms.tree_allreduce, pair, pieces, name),
            floor=lambda size: floor_seconds(graph, tree_traffic(pair), size),
            quick=lambda size: quick_floor(graph, tree_traffic(pair), size),
        )


def broadcast_tree(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """A broadcast down a chain, a binary tree or two of them; reversed a reduce."""
    graph, collective, root = task
    n, order = graph.ranks, ring_order(graph)
    if name == "chain":
        parents = [algorithms.chain(np.roll(order, -int(np.flatnonzero(order == root)[0])))]
    elif name == "tree":
        parents = [algorithms.reroot(algorithms.binary_tree(n), root)]
    else:
        parents = [algorithms.reroot(parent, root) for parent in algorithms.double_tree(n)]

    def make(pieces: int) -> Algorithm:
        broadcast = algorithms.tree_broadcast(parents, pieces, name)
        return reversed_algorithm(broadcast) if collective == "reduce" else broadcast

    for pieces in PIECES:
        yield Candidate(name=name, steps=len(parents) * pieces * n, make=partial(make, pieces))


def unequal_groups(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """An all-reduce over groups of different sizes."""
    groups = task.graph.groups
    if len(groups) > 1:
        steps = 2 * lcm(*groups) * len(groups) * (task.graph.ranks + len(groups))
        yield Candidate(name=name, steps=steps, make=lambda: algorithms.unequal_allreduce(groups))


def two_level(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """An all-reduce through a leader of each domain."""
    n, g = task.graph.ranks, task.graph.domain
    if _has_domains(task.graph):
        yield Candidate(name=name, steps=4 * n * (n // g), make=lambda: algorithms.two_level_allreduce(n, g))


def pairwise(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """An all-to-all of n - 1 rounds, every chunk straight to its target; all-pairs: in one round."""
    n = task.graph.ranks
    make = partial(algorithms.pairwise, n, at_once=name == "all-pairs")
    yield Candidate(name=name, steps=n * n, make=make, floor=_exchange_floor_of(task))


def forwarded_exchange(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """An all-to-all over the chip of one's domain on the target's rail."""
    n, g = task.graph.ranks, task.graph.domain
    if _has_domains(task.graph):
        make = partial(algorithms.forwarded_alltoall, n, g)
        yield Candidate(name=name, steps=2 * n * n, make=make, floor=_exchange_floor_of(task))


def bruck(task: CollectiveTask, name: str) -> Iterator[Candidate]:
    """An all-to-all of log2 n rounds, a chunk moving by the bits of its distance."""
    graph, n = task.graph, task.graph.ranks
    steps, make = n * n * (n - 1).bit_length() // 2, partial(algorithms.bruck_alltoall, n)
    yield Candidate(name=name, steps=steps, make=make, floor=lambda size: floor_seconds(graph, bruck_traffic(n), size))


def exchange_floor(graph: Graph, size_bytes: float) -> float:
    """Seconds that an all-to-all of that size takes at least, from every rank to every other: bounds, and the busiest
    link when every rank sends 1/N of the size to every other, all at once."""
    least = max(lower_bound(graph, "alltoall", size_bytes).bandwidth_s, pairs_seconds(graph, size_bytes))
    if not graph.direct or graph.shape or graph.ranks > KEPT_NODES:
        return least
    messages = _alltoall_loads(graph)
    spent = graph.latency_s + messages * (size_bytes / graph.ranks) / graph.bytes_per_s
    return max(least, float(np.where(messages > 0, spent, 0.0).max(initial=0.0)))


@lru_cache(maxsize=2)
def _alltoall_loads(graph: Graph) -> Array:
    """Messages on each direct link when everyone sends to everyone.

    The paths from a rank form a tree: a link of it carries a message for each rank behind it. Trees of all ranks are
    added up at once, farthest ranks first.
    """
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
    link = links_between(graph, before[source, node].astype(np.int64), node)
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


MANY_RANKS = 1100  # from which on ways are not looked up, only counted
FEW_RANKS = 512  # the same on whole grids; up to it bounds of an all-to-all are sharper than bytes times hops


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundTraffic:
    """Pairs that each send `share` of M in each of `times` rounds.

    exclusive   in rounds that nothing else is in
    chain   the part of M that some chunk's own chain of `times` hops, one after the other, carries: 1 over the parts
            that go on at once; 0 where no chunk makes all hops
    """

    source: Index
    target: Index
    share: float
    times: int = 1
    exclusive: bool = True
    chain: float = 0.0

    def reverse(self) -> RoundTraffic:
        """What the reversed algorithm sends."""
        return replace(self, source=self.target, target=self.source)


def quick_floor(graph: Graph, traffic: Iterable[RoundTraffic], size_bytes: float) -> float:
    """A floor that needs no ways: bytes into and out of each rank, hops one after the other, bytes times hops."""
    rows = [part for part in traffic if len(part.source)]
    if graph.ranks < 2 or not rows:
        return 0.0
    least = max(_chain_floor(graph, rows, size_bytes), _own_links(graph, rows, size_bytes))
    return least if not graph.direct or graph.ranks > MANY_RANKS else max(least, _volume(graph, rows, size_bytes))


def floor_seconds(graph: Graph, traffic: Iterable[RoundTraffic], size_bytes: float) -> float:
    """Seconds that no algorithm with this traffic beats."""
    if graph.ranks < 2:
        return 0.0
    rows = [part for part in traffic if len(part.source)]
    if not rows:
        return 0.0
    graph = merge_switches(graph).graph
    if graph.ranks > (FEW_RANKS if graph.shape else MANY_RANKS):
        return max(_chain_floor(graph, rows, size_bytes), _volume(graph, rows, size_bytes))
    ways = shortest_routes(
        graph, np.concatenate([part.source for part in rows]), np.concatenate([part.target for part in rows])
    )
    total, first = np.zeros(graph.links), 0
    for part in rows:
        part_ways = ways[first : first + len(part.source)]
        first += len(part.source)
        count = np.bincount(part_ways[part_ways >= 0], minlength=graph.links)
        spent = count * (part.share * size_bytes) / graph.bytes_per_s
        total += part.times * (spent + (np.where(count > 0, graph.latency_s, 0.0) if part.exclusive else 0.0))
    return max(float(total.max(initial=0.0)), _chain_floor(graph, rows, size_bytes))


def _chain_floor(graph: Graph, rows: list[RoundTraffic], size_bytes: float) -> float:
    """The hops that some chunk makes one after the other, each as quick as the quickest link."""
    rate, latency = float(graph.bytes_per_s.max()), float(graph.latency_s.min())
    return sum(part.chain * part.times * (part.share * size_bytes / rate + latency) for part in rows)


def _own_links(graph: Graph, rows: list[RoundTraffic], size_bytes: float) -> float:
    """What a rank sends and gets, over all its links."""
    out, into = np.zeros(graph.nodes), np.zeros(graph.nodes)
    for part in rows:
        out += np.bincount(part.source, minlength=graph.nodes) * (part.share * part.times)
        into += np.bincount(part.target, minlength=graph.nodes) * (part.share * part.times)
    with np.errstate(divide="ignore", invalid="ignore"):
        spent = np.maximum(out / graph.out_bytes_per_s(), into / graph.in_bytes_per_s())
    return float(np.nanmax(spent[: graph.ranks], initial=0.0)) * size_bytes


def _volume(graph: Graph, rows: list[RoundTraffic], size_bytes: float) -> float:
    """Bytes times hops over all links' rate."""
    far = _hops(graph)
    crossing_bytes = sum(part.times * part.share * float(far[part.source, part.target].sum()) for part in rows)
    return crossing_bytes * size_bytes / float(graph.bytes_per_s.sum())


def pairs_seconds(graph: Graph, size_bytes: float) -> float:
    """Everyone to everyone, M / N to each: bytes times hops over all links' rate; 0 on small graphs: not needed."""
    if graph.ranks <= FEW_RANKS:
        return 0.0
    return float(_hops(graph).sum(dtype=np.float64)) / graph.ranks * size_bytes / float(graph.bytes_per_s.sum())


@lru_cache(maxsize=2)
def _hops(graph: Graph) -> NDArray[np.float32]:
    """The fewest links between each two ranks."""
    n = graph.ranks
    if graph.shape:
        place = np.stack(np.unravel_index(np.arange(n), graph.shape))
        total = np.zeros((n, n), np.float32)
        for axis, (size, closes) in enumerate(zip(graph.shape, graph.wraps, strict=True)):
            distance = np.abs(place[axis][:, None] - place[axis])
            total += np.minimum(distance, size - distance) if closes else distance
        return total
    from scipy.sparse.csgraph import dijkstra

    return np.asarray(dijkstra(link_matrix(graph), unweighted=True, indices=np.arange(n))[:, :n], np.float32)


def line_traffic(order: Index, pattern: str, parts: int = 1) -> list[RoundTraffic]:
    """An all-gather pattern over ranks in line, with one of `parts` parts of the data."""
    n, exclusive = len(order), parts == 1
    share = 1.0 / (n * parts)
    if pattern in ("halving-doubling", "swing"):
        peers = algorithms.peers_of(pattern, n)
        return [
            RoundTraffic(source=order, target=order[peer], share=share * (n >> (step + 1)), exclusive=exclusive)
            for step, peer in enumerate(peers)
        ]
    if pattern == "ring":
        return [replace(_shift_traffic(order, 1, share, n - 1, exclusive), chain=1 / parts)]
    rounds = algorithms.shift_rounds(pattern, n)
    return [_shift_traffic(order, shift.distance, share * len(shift.behind), 1, exclusive) for shift in rounds]


def _shift_traffic(order: Index, shift: int, share: float, times: int, exclusive: bool) -> RoundTraffic:
    return RoundTraffic(source=order, target=np.roll(order, -shift), share=share, times=times, exclusive=exclusive)


def tree_traffic(parents: Sequence[Index]) -> list[RoundTraffic]:
    """Sums up and copies down each of some trees with its part of the vector."""
    upward = []
    for parent in parents:
        child = np.flatnonzero(parent >= 0)
        upward.append(RoundTraffic(source=child, target=parent[child], share=1 / len(parents), exclusive=False))
    return [*upward, *(part.reverse() for part in upward)]


def bruck_traffic(n: int) -> list[RoundTraffic]:
    """The all-to-all by the bits of the distance."""
    ranks, distance = np.arange(n), np.arange(n)
    steps = range((n - 1).bit_length())
    return [_shift_traffic(ranks, 1 << step, int((distance >> step & 1).sum()) / n, 1, True) for step in steps]


def bucket_seconds(graph: Graph, size_bytes: float, passes: int) -> float:
    """The bucket algorithm on a torus of equal sides and links, where its parts never meet.

    passes (axes (side - 1) alpha + (N - 1) / N M / (2 axes b))       passes: 2 of an all-reduce, else 1
    """
    axes, side, n = len(graph.shape), graph.shape[0], graph.ranks
    rate, alpha = float(graph.bytes_per_s[0]), float(graph.latency_s[0])
    return passes * (axes * (side - 1) * alpha + (n - 1) / n * size_bytes / (2 * axes * rate))


def closes_evenly(graph: Graph) -> bool:
    """Whether it is a torus of equal sides and links."""
    return bool(graph.shape) and all(graph.wraps) and len(set(graph.shape)) == 1 and graph.uniform
