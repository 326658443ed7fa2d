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
from ridgeline.comm.routes import routes
from ridgeline.core.arrays import Index

MANY_RANKS = 1100  # from which on ways are not looked up, only counted
FEW_RANKS = 512  # the same on whole grids; up to it bounds of an all-to-all are sharper than bytes times hops


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Pairs that each send `share` of M in each of `times` rounds.

    alone   in rounds that nothing else is in
    chain   the part of M that some chunk's own chain of `times` hops, one after the other, carries: 1 over the parts
            that go on at once; 0 where no chunk makes all hops
    """

    source: Index
    target: Index
    share: float
    times: int = 1
    alone: bool = True
    chain: float = 0.0

    def reversed(self) -> Traffic:
        """What the reversed algorithm sends."""
        return replace(self, source=self.target, target=self.source)


def quick_floor(graph: Graph, traffic: Iterable[Traffic], size_bytes: float) -> float:
    """A floor that needs no ways: bytes into and out of each rank, hops one after the other, bytes times hops."""
    rows = [one for one in traffic if len(one.source)]
    if graph.ranks < 2 or not rows:
        return 0.0
    least = max(_chained(graph, rows, size_bytes), _own_links(graph, rows, size_bytes))
    return least if not graph.direct or graph.ranks > MANY_RANKS else max(least, _volume(graph, rows, size_bytes))


def floor_seconds(graph: Graph, traffic: Iterable[Traffic], size_bytes: float) -> float:
    """Seconds that no algorithm with this traffic beats."""
    if graph.ranks < 2:
        return 0.0
    rows = [one for one in traffic if len(one.source)]
    if not rows:
        return 0.0
    graph = merge_switches(graph).graph
    if graph.ranks > (FEW_RANKS if graph.shape else MANY_RANKS):
        return max(_chained(graph, rows, size_bytes), _volume(graph, rows, size_bytes))
    ways = routes(graph, np.concatenate([one.source for one in rows]), np.concatenate([one.target for one in rows]))
    total, first = np.zeros(graph.links), 0
    for one in rows:
        mine = ways[first : first + len(one.source)]
        first += len(one.source)
        count = np.bincount(mine[mine >= 0], minlength=graph.links)
        spent = count * (one.share * size_bytes) / graph.bytes_per_s
        total += one.times * (spent + (np.where(count > 0, graph.latency_s, 0.0) if one.alone else 0.0))
    return max(float(total.max(initial=0.0)), _chained(graph, rows, size_bytes))


def _chained(graph: Graph, rows: list[Traffic], size_bytes: float) -> float:
    """The hops that some chunk makes one after the other, each as quick as the quickest link."""
    rate, latency = float(graph.bytes_per_s.max()), float(graph.latency_s.min())
    return sum(one.chain * one.times * (one.share * size_bytes / rate + latency) for one in rows)


def _own_links(graph: Graph, rows: list[Traffic], size_bytes: float) -> float:
    """What a rank sends and gets, over all its links."""
    out, into = np.zeros(graph.nodes), np.zeros(graph.nodes)
    for one in rows:
        out += np.bincount(one.source, minlength=graph.nodes) * (one.share * one.times)
        into += np.bincount(one.target, minlength=graph.nodes) * (one.share * one.times)
    with np.errstate(divide="ignore", invalid="ignore"):
        spent = np.maximum(out / graph.out_bytes_per_s(), into / graph.in_bytes_per_s())
    return float(np.nanmax(spent[: graph.ranks], initial=0.0)) * size_bytes


def _volume(graph: Graph, rows: list[Traffic], size_bytes: float) -> float:
    """Bytes times hops over all links' rate."""
    far = _hops(graph)
    crossed = sum(one.times * one.share * float(far[one.source, one.target].sum()) for one in rows)
    return crossed * size_bytes / float(graph.bytes_per_s.sum())


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
            apart = np.abs(place[axis][:, None] - place[axis])
            total += np.minimum(apart, size - apart) if closes else apart
        return total
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

    matrix = coo_array((np.ones(graph.links), (graph.tail, graph.head)), shape=(graph.nodes, graph.nodes)).tocsr()
    return np.asarray(dijkstra(matrix, unweighted=True, indices=np.arange(n))[:, :n], np.float32)


def line_traffic(order: Index, pattern: str, parts: int = 1) -> list[Traffic]:
    """An all-gather pattern over ranks in line (see `library.gathers`), with one of `parts` parts of the data."""
    n = len(order)
    share, alone = 1.0 / (n * parts), parts == 1
    rounds = max(n - 1, 0).bit_length()
    if pattern == "ring":
        return [replace(_shifted(order, 1, share, n - 1, alone), chain=1 / parts)]
    if pattern == "nhr":
        far = [1 << (rounds - 1 - step) for step in range(rounds)]
        return [_shifted(order, one, share * len(range(one, n, 2 * one)), 1, alone) for one in far]
    if pattern == "nb":
        near = [1 << step for step in range(rounds)]
        return [_shifted(order, one, share * min(one, n - one), 1, alone) for one in near]
    place = np.arange(n)
    sign = np.where(place % 2 == 0, 1, -1)
    made = []
    for step in range(rounds):  # halving-doubling and swing: the last exchange is with the nearest peer
        peer = place ^ (1 << step) if pattern == "halving-doubling" else place + sign * ((1 - (-2) ** (step + 1)) // 3)
        blocks = 1 << (rounds - 1 - step)
        made.append(Traffic(source=order, target=order[peer % n], share=share * blocks, alone=alone))
    return made


def _shifted(order: Index, shift: int, share: float, times: int, alone: bool) -> Traffic:
    return Traffic(source=order, target=np.roll(order, -shift), share=share, times=times, alone=alone)


def grid_traffic(grid: Index, axes: tuple[int, ...], parts: int) -> list[Traffic]:
    """Rings along one axis of a grid after the other; `parts` such go on at once, each with its part of the data."""
    held, made = 1, []
    for axis in axes:
        size = grid.shape[axis]
        onward = np.roll(grid, -1, axis=axis)
        share = held / (prod(grid.shape) * parts)
        made.append(Traffic(source=grid.ravel(), target=onward.ravel(), share=share, times=size - 1, alone=parts == 1))
        held *= size
    return made


def tree_traffic(parents: Sequence[Index]) -> list[Traffic]:
    """Sums up and copies down each of some trees with its part of the vector."""
    made = []
    for parent in parents:
        child = np.flatnonzero(parent >= 0)
        made.append(Traffic(source=child, target=parent[child], share=1 / len(parents), alone=False))
    return [*made, *(one.reversed() for one in made)]


def bruck_traffic(n: int) -> list[Traffic]:
    """The all-to-all by the bits of the distance."""
    ranks, distance = np.arange(n), np.arange(n)
    steps = range((n - 1).bit_length())
    return [_shifted(ranks, 1 << step, int((distance >> step & 1).sum()) / n, 1, True) for step in steps]


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
