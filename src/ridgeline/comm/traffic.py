"""Turn what an algorithm sends, message by message, into a time that it cannot beat on a graph: a floor.

A link is taken by one round after the other, each for its latency and its bytes:

    floor = max over links of the sum over rounds of (latency of the link + bytes on it / rate)

and a chunk that goes round a ring makes one hop after the other. Messages instead of chunks: a ring of 1024 ranks is
one row of 1024 pairs, 1023 times. Who cannot win by its floor need not be made and timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from ridgeline.comm.graph import Graph
from ridgeline.comm.merge_switches import merge_switches
from ridgeline.comm.routes import shortest_routes
from ridgeline.core.arrays import Index

MANY_RANKS = 1100  # from which on ways are not looked up, only counted
FEW_RANKS = 512  # the same on whole grids; up to it bounds of an all-to-all are sharper than bytes times hops


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
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

    def reverse(self) -> Traffic:
        """What the reversed algorithm sends."""
        return replace(self, source=self.target, target=self.source)


def quick_floor(graph: Graph, traffic: Iterable[Traffic], size_bytes: float) -> float:
    """A floor that needs no ways: bytes into and out of each rank, hops one after the other, bytes times hops."""
    rows = [part for part in traffic if len(part.source)]
    if graph.ranks < 2 or not rows:
        return 0.0
    least = max(_chain_floor(graph, rows, size_bytes), _own_links(graph, rows, size_bytes))
    return least if not graph.direct or graph.ranks > MANY_RANKS else max(least, _volume(graph, rows, size_bytes))


def floor_seconds(graph: Graph, traffic: Iterable[Traffic], size_bytes: float) -> float:
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


def _chain_floor(graph: Graph, rows: list[Traffic], size_bytes: float) -> float:
    """The hops that some chunk makes one after the other, each as quick as the quickest link."""
    rate, latency = float(graph.bytes_per_s.max()), float(graph.latency_s.min())
    return sum(part.chain * part.times * (part.share * size_bytes / rate + latency) for part in rows)


def _own_links(graph: Graph, rows: list[Traffic], size_bytes: float) -> float:
    """What a rank sends and gets, over all its links."""
    out, into = np.zeros(graph.nodes), np.zeros(graph.nodes)
    for part in rows:
        out += np.bincount(part.source, minlength=graph.nodes) * (part.share * part.times)
        into += np.bincount(part.target, minlength=graph.nodes) * (part.share * part.times)
    with np.errstate(divide="ignore", invalid="ignore"):
        spent = np.maximum(out / graph.out_bytes_per_s(), into / graph.in_bytes_per_s())
    return float(np.nanmax(spent[: graph.ranks], initial=0.0)) * size_bytes


def _volume(graph: Graph, rows: list[Traffic], size_bytes: float) -> float:
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
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

    matrix = coo_array((np.ones(graph.links), (graph.tail, graph.head)), shape=(graph.nodes, graph.nodes)).tocsr()
    return np.asarray(dijkstra(matrix, unweighted=True, indices=np.arange(n))[:, :n], np.float32)


def line_traffic(order: Index, pattern: str, parts: int = 1) -> list[Traffic]:
    """An all-gather pattern over ranks in line (see `library.gathers`), with one of `parts` parts of the data."""
    n = len(order)
    share, exclusive = 1.0 / (n * parts), parts == 1
    rounds = max(n - 1, 0).bit_length()
    if pattern == "ring":
        return [replace(_shift_traffic(order, 1, share, n - 1, exclusive), chain=1 / parts)]
    if pattern == "nhr":
        far = [1 << (rounds - 1 - step) for step in range(rounds)]
        return [
            _shift_traffic(order, distance, share * len(range(distance, n, 2 * distance)), 1, exclusive)
            for distance in far
        ]
    if pattern == "nb":
        near = [1 << step for step in range(rounds)]
        return [_shift_traffic(order, distance, share * min(distance, n - distance), 1, exclusive) for distance in near]
    place = np.arange(n)
    sign = np.where(place % 2 == 0, 1, -1)
    exchanges = []
    for step in range(rounds):  # halving-doubling and swing: the last exchange is with the nearest peer
        peer = place ^ (1 << step) if pattern == "halving-doubling" else place + sign * ((1 - (-2) ** (step + 1)) // 3)
        blocks = 1 << (rounds - 1 - step)
        exchanges.append(Traffic(source=order, target=order[peer % n], share=share * blocks, exclusive=exclusive))
    return exchanges


def _shift_traffic(order: Index, shift: int, share: float, times: int, exclusive: bool) -> Traffic:
    return Traffic(source=order, target=np.roll(order, -shift), share=share, times=times, exclusive=exclusive)


def grid_traffic(grid: Index, axes: tuple[int, ...], parts: int) -> list[Traffic]:
    """Rings along one axis of a grid after the other; `parts` such go on at once, each with its part of the data."""
    blocks_held, phases = 1, []
    for axis in axes:
        size = grid.shape[axis]
        onward = np.roll(grid, -1, axis=axis)
        share = blocks_held / (prod(grid.shape) * parts)
        phases.append(
            Traffic(source=grid.ravel(), target=onward.ravel(), share=share, times=size - 1, exclusive=parts == 1)
        )
        blocks_held *= size
    return phases


def tree_traffic(parents: Sequence[Index]) -> list[Traffic]:
    """Sums up and copies down each of some trees with its part of the vector."""
    upward = []
    for parent in parents:
        child = np.flatnonzero(parent >= 0)
        upward.append(Traffic(source=child, target=parent[child], share=1 / len(parents), exclusive=False))
    return [*upward, *(part.reverse() for part in upward)]


def bruck_traffic(n: int) -> list[Traffic]:
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
