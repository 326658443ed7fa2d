"""Turn an algorithm, a graph and a size into seconds: alpha-beta on every link, shared by the steps of a round.

A step takes the latency of its way and the time of the busiest link on it, which carries the bytes of all steps of the
round that use it:

    end = start + sum of latencies + max over its links of (bytes of the round on the link / rate)

It starts when its chunk is there and its links are done with the rounds before; nobody waits for a whole round. On
direct links and one chunk a link and round this is rounds x (chunk / b + alpha). A link is busy for the latency too.
Switches that stand for each other (spines) count as one: their ways carry equal parts, see `merge_switches`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ridgeline.comm.algorithm import Algorithm
from ridgeline.comm.contract import Collective, Ints
from ridgeline.comm.graph import Graph, number_keys, ranges
from ridgeline.comm.routes import merge_switches, shortest_routes
from ridgeline.core.arrays import Array, Index, Mask

DENSE = 1 << 27  # places (node, chunk) that are kept as one array
CROWD = 2  # steps of a round on a way, on average, from which on they are looked at together


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveTiming:
    """Seconds of a collective, bytes of each link, the most steps on a link in a round, when each round is over."""

    seconds: float
    link_bytes: Array
    crowding: int
    round_ends_s: tuple[float, ...] = ()


def time_algorithm(algorithm: Algorithm, graph: Graph, size_bytes: float) -> CollectiveTiming:
    """Seconds of an algorithm on a graph.

    >>> from ridgeline.comm.library.algorithms import ring_allgather
    >>> from ridgeline.comm.topologies import topology
    >>> round(time_algorithm(ring_allgather(8), topology("ring:8", 50e9, 1e-6), 8e6).seconds * 1e6, 3)
    147.0
    """
    steps = algorithm.steps
    if not len(steps):
        return CollectiveTiming(seconds=0.0, link_bytes=np.zeros(graph.links), crowding=0)
    shares = algorithm.contract.chunk_share * size_bytes
    sizes = np.broadcast_to(shares, len(steps)) if len(shares) == 1 else shares[steps.chunk]
    sends = _Sends(steps.starts(), steps.source, steps.target, *_places(algorithm), sizes)
    if algorithm.nodes <= graph.ranks:  # no switch has steps of its own
        fabric = merge_switches(graph)
        if fabric.link is not None:
            timing = _time_sends(sends, fabric.graph, fabric.wide)
            return replace(timing, link_bytes=fabric.spread_load(timing.link_bytes, graph))
    return _time_sends(sends, graph)


class _Sends(NamedTuple):
    """What is sent, by round: rows where rounds begin; nodes, places (node, chunk) and bytes of each; all places."""

    starts: Index
    source: Index | Ints
    target: Index | Ints
    read: Index | Ints
    write: Index | Ints
    places: int
    sizes: Array


def _time_sends(sends: _Sends, graph: Graph, wide: Mask | None = None) -> CollectiveTiming:
    """The time on a graph as it is; `wide` links are taken for a round's own bytes, others until its steps end."""
    ways, way_of = _ways(sends, graph)
    there, free = np.zeros(sends.places), np.zeros(graph.links)
    total = np.zeros(graph.links)
    crowding, ends = 0, [0.0]
    for low, high in pairwise(sends.starts):
        used, row, count, sent = _messages(way_of[low:high], sends.sizes[low:high], len(ways.count))
        step_rows: Index | slice = slice(None) if row is None else row
        over = ways.links(used)
        load = np.bincount(over.link, over.for_links(sent), graph.links)
        crowding = max(crowding, int(np.bincount(over.link, None if count is None else over.for_links(count)).max()))
        total += load
        busy = load / graph.bytes_per_s
        lasts = ways.latency_s[used] + over.largest(busy)
        end = np.maximum(there[sends.read[low:high]], over.largest(free)[step_rows]) + lasts[step_rows]
        np.maximum.at(there, sends.write[low:high], end)
        done = end
        if row is not None:
            done = np.zeros(len(used))
            np.maximum.at(done, row, end)
        link_done_s = over.for_links(done)
        if wide is not None:
            link_done_s = link_done_s - np.where(
                wide[over.link], over.for_links(over.largest(busy)) - busy[over.link], 0.0
            )
        np.maximum.at(free, over.link, link_done_s)
        ends.append(max(ends[-1], float(end.max())))
    return CollectiveTiming(seconds=ends[-1], link_bytes=total, crowding=crowding, round_ends_s=tuple(ends[1:]))


def _messages(way: Index | Ints, size: Array, ways: int) -> tuple[Index | Ints, Index | None, Array | None, Array]:
    """Steps of a round by the way they take: the ways, each step's row of them, steps and bytes of each.

    Where many steps share few ways (whole blocks that move on together) links are looked at once a way, not once a
    step; elsewhere steps are their own rows (None) and not counted.
    """
    if len(way) <= CROWD * ways:
        return way, None, None, size
    count = np.bincount(way, minlength=ways).astype(np.float64)
    used: Index = np.flatnonzero(count)
    number = np.zeros(ways, np.int64)
    number[used] = np.arange(len(used))
    sent: Array = count * size[0] if size.strides == (0,) else np.bincount(way, size, ways).astype(np.float64)
    return used, number[way], count[used], sent[used]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Over:
    """The links of some ways one after the other; where each way's begin, and how many they are (None: one each)."""

    link: Index
    first: Index | None
    count: Index | None

    def for_links(self, values: Array) -> Array:
        """A way's value for each of its links."""
        return values if self.count is None else np.repeat(values, self.count)

    def largest(self, values: Array) -> Array:
        """The largest value of a link, of each way."""
        link_values = values[self.link]
        return link_values if self.first is None else np.maximum.reduceat(link_values, self.first)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ways:
    """Ways as their links one after the other, and the latency of each way."""

    link: Index
    first: Index
    count: Index
    latency_s: Array

    def links(self, used: Index | Ints) -> _Over:
        if len(self.link) == len(self.count):
            return _Over(link=self.link[used], first=None, count=None)
        count = self.count[used]
        return _Over(link=self.link[ranges(self.first[used], count)], first=np.cumsum(count) - count, count=count)


def _ways(sends: _Sends, graph: Graph) -> tuple[_Ways, Ints]:
    """The routes of all pairs that send, and which one each step takes."""
    pairs, way_of = number_keys(sends.source.astype(np.int64) * graph.nodes + sends.target, graph.nodes**2)
    links = shortest_routes(graph, pairs // graph.nodes, pairs % graph.nodes)
    there = links >= 0
    count = there.sum(axis=1)
    latency = np.where(there, graph.latency_s[links], 0.0).sum(axis=1)
    return _Ways(link=links[there], first=np.cumsum(count) - count, count=count, latency_s=latency), way_of


def _places(algorithm: Algorithm) -> tuple[Index | Ints, Index | Ints, int]:
    place_count = algorithm.nodes * algorithm.contract.chunks
    chunks = np.int32(algorithm.contract.chunks) if place_count < 2**31 else np.int64(algorithm.contract.chunks)
    read = algorithm.steps.source * chunks + algorithm.steps.chunk
    write = algorithm.steps.target * chunks + algorithm.steps.chunk
    if place_count <= DENSE:
        return read, write, place_count
    distinct_places, index = np.unique(np.concatenate([read, write]), return_inverse=True)
    return index[: len(read)], index[len(read) :], len(distinct_places)


Part = tuple[Index, tuple[int, ...]]


def bucket_time(graph: Graph, parts: Sequence[Part], collective: Collective, size_bytes: float) -> float:
    """Seconds of rings along one axis of a grid after the other, several parts at once.

    Blocks that a rank passes on together count as one message, which leaves when all that came is there.
    """
    n, target_rows, size_rows = graph.ranks, [], []
    for grid, axes in parts:
        targets, sizes, part_bytes = [], [], size_bytes / (n * len(parts))
        for axis in axes:
            target = np.empty(n, np.int64)
            target[grid.ravel()] = np.roll(grid, -1, axis=axis).ravel()
            targets += [target] * (grid.shape[axis] - 1)
            sizes += [part_bytes] * (grid.shape[axis] - 1)
            part_bytes *= grid.shape[axis]
        target_rows.append(targets)
        size_rows.append(sizes)
    target = np.stack(target_rows, axis=1)  # by round, part and rank
    source = np.broadcast_to(np.arange(n), target.shape)
    size = np.broadcast_to(np.array(size_rows).T[:, :, None], target.shape)
    passes = [] if collective == "allgather" else [(target[::-1], source, size[::-1])]
    passes += [] if collective == "reducescatter" else [(source, target, size)]
    source, target, size = (np.concatenate(column) for column in zip(*passes, strict=True))
    place = np.arange(len(parts))[:, None] * n
    starts = np.arange(len(source) + 1) * (len(parts) * n)
    read, write = (source + place).ravel(), (target + place).ravel()
    sends = _Sends(starts, source.ravel(), target.ravel(), read, write, len(parts) * n, size.ravel())
    return _time_sends(sends, graph).seconds
