"""Turn an algorithm, a graph and a size into seconds: alpha-beta on every link, shared by the steps of a round.

A step takes the latency of its way and the time of the busiest link on it, which carries the bytes of all steps of the
round that use it:

    end = start + sum of latencies + max over its links of (bytes of the round on the link / rate)

It starts when its chunk is there and its links are done with the rounds before; nobody waits for a whole round. On
direct links and one chunk a link and round this is rounds x (chunk / b + alpha). A link is busy for the latency too.
Switches that stand for each other (spines) count as one: their ways carry equal parts, see `merge_switches`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ridgeline.comm.algorithm import Algorithm
from ridgeline.comm.contract import Collective, Ints
from ridgeline.comm.graph import Graph
from ridgeline.comm.routes import MergedFabric, merge_switches, shortest_routes
from ridgeline.core.arrays import Array, Index, Mask

DENSE = 1 << 27  # places (node, chunk) that are kept as one array
CROWD = 2  # steps of a round on a way, on average, from which on they are looked at together


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveTiming:
    """Seconds of a collective, when each round was over, bytes of each link, the most steps on a link in a round."""

    seconds: float
    round_ends: Array
    link_bytes: Array
    crowding: int


def time_algorithm(algorithm: Algorithm, graph: Graph, size_bytes: float) -> CollectiveTiming:
    """Seconds of an algorithm on a graph.

    >>> from ridgeline.comm.library.algorithms import ring_allgather
    >>> from ridgeline.comm.topologies import topology
    >>> round(time_algorithm(ring_allgather(8), topology("ring:8", 50e9, 1e-6), 8e6).seconds * 1e6, 3)
    147.0
    """
    steps = algorithm.steps
    if not len(steps):
        return CollectiveTiming(seconds=0.0, round_ends=np.zeros(0), link_bytes=np.zeros(graph.links), crowding=0)
    if algorithm.nodes <= graph.ranks:  # no switch has steps of its own
        fabric = merge_switches(graph)
        if fabric.link is not None:
            timing = _time_rounds(algorithm, fabric.graph, size_bytes, fabric.wide)
            return replace(timing, link_bytes=fabric.spread_load(timing.link_bytes, graph))
    return _time_rounds(algorithm, graph, size_bytes)


def _time_rounds(algorithm: Algorithm, graph: Graph, size_bytes: float, wide: Mask | None = None) -> CollectiveTiming:
    """The same on a graph as it is; `wide` links are taken for a round's own bytes, others until its steps end."""
    steps = algorithm.steps
    ways, way_of = _ways(algorithm, graph)
    read, write, places = _places(algorithm)
    shares = algorithm.contract.chunk_share * size_bytes
    there, free = np.zeros(places), np.zeros(graph.links)
    total, ends = np.zeros(graph.links), []
    last, crowding = 0.0, 0
    for low, high in pairwise(steps.starts()):
        chunk = steps.chunk[low:high]
        sizes = np.broadcast_to(shares, chunk.shape) if len(shares) == 1 else shares[chunk]
        used, row, count, sent = _messages(way_of[low:high], sizes, len(ways.count))
        step_rows: Index | slice = slice(None) if row is None else row
        over = ways.links(used)
        load = np.bincount(over.link, over.for_links(sent), graph.links)
        crowding = max(crowding, int(np.bincount(over.link, None if count is None else over.for_links(count)).max()))
        total += load
        busy = load / graph.bytes_per_s
        lasts = ways.latency_s[used] + over.largest(busy)
        end = np.maximum(there[read[low:high]], over.largest(free)[step_rows]) + lasts[step_rows]
        np.maximum.at(there, write[low:high], end)
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
        last = max(last, float(end.max()))
        ends.append(last)
    return CollectiveTiming(seconds=last, round_ends=np.array(ends), link_bytes=total, crowding=crowding)


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
        begin = np.cumsum(count) - count
        rows = np.repeat(self.first[used] - begin, count) + np.arange(int(count.sum()))
        return _Over(link=self.link[rows], first=begin, count=count)


def _ways(algorithm: Algorithm, graph: Graph) -> tuple[_Ways, Index | Ints]:
    """The routes of all pairs that send, and which one each step takes."""
    key = algorithm.steps.source.astype(np.int64) * graph.nodes + algorithm.steps.target
    if graph.nodes > 1 << 13:
        pairs, way_of = np.unique(key, return_inverse=True)
    else:
        is_used = np.zeros(graph.nodes * graph.nodes, np.bool_)
        is_used[key] = True
        pairs = np.flatnonzero(is_used)
        number = np.zeros(len(is_used), np.int32)
        number[pairs] = np.arange(len(pairs), dtype=np.int32)
        way_of = number[key]
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


def bucket_time(graph: Graph, parts: Iterable[Part], collective: Collective, size_bytes: float) -> float:
    """Seconds of rings along one axis of a grid after the other, several parts at once."""
    clock = _Clock(merge_switches(graph), list(parts), size_bytes)
    if collective != "allgather":
        clock.scatter()
    if collective != "reducescatter":
        clock.gather()
    return clock.last


class _Clock:
    """When links are free, and when each part's next block is ready at each rank."""

    def __init__(self, fabric: MergedFabric, parts: list[Part], size_bytes: float) -> None:
        graph = fabric.graph
        self.graph, self.parts, self.last = graph, parts, 0.0
        self.wide = np.append(fabric.wide, False)
        self.rate = np.append(graph.bytes_per_s, np.inf)
        self.free = np.zeros(graph.links + 1)
        self.ready = np.zeros((len(parts), graph.ranks))
        self.phases = [self._phases(grid, axes, size_bytes) for grid, axes in parts]
        self.known: dict[tuple[int, ...], Index] = {}
        self.rounds = sum(times for times, *_ in self.phases[0])

    def _phases(self, grid: Index, axes: tuple[int, ...], size_bytes: float) -> list[tuple[int, Index, float]]:
        """Rounds of each phase, who gets what each rank sends, and bytes of a message."""
        block_chunks, phases = 1, []
        for axis in axes:
            target = np.empty(self.graph.ranks, np.int64)
            target[grid.ravel()] = np.roll(grid, -1, axis=axis).ravel()
            phases.append(
                (grid.shape[axis] - 1, target, block_chunks * size_bytes / (self.graph.ranks * len(self.parts)))
            )
            block_chunks *= grid.shape[axis]
        return phases

    def gather(self) -> None:
        """Each phase: pass on what came last; the next phase begins with all that came."""
        arrivals = self.ready.copy()
        for round in range(self.rounds):
            at = [self._at(part, round) for part in range(len(self.parts))]
            begins = np.stack([arrivals[part] if step == 0 else self.ready[part] for part, (_, step) in enumerate(at)])
            sent = [self.phases[part][phase][1:] for part, (phase, _) in enumerate(at)]
            ends = self._round([target for target, _ in sent], [size for _, size in sent], begins, back=False)
            for part, (target, _) in enumerate(sent):
                self.ready[part, target] = ends[part]
                arrivals[part] = np.maximum(arrivals[part], self.ready[part])

    def scatter(self) -> None:
        """The reverse: last phase first, receivers send, and a rank adds its own to what it passes on."""
        arrivals = self.ready.copy()
        for round in reversed(range(self.rounds)):
            at = [self._at(part, round) for part in range(len(self.parts))]
            begins = []
            for part, (phase, step) in enumerate(at):
                if step == self.phases[part][phase][0] - 1:  # the first of its phase in this direction
                    arrivals[part] = np.maximum(arrivals[part], self.ready[part])
                    begins.append(arrivals[part])
                else:
                    begins.append(np.maximum(arrivals[part], self.ready[part]))
            sent = [self.phases[part][phase][1:] for part, (phase, _) in enumerate(at)]
            ends = self._round([target for target, _ in sent], [size for _, size in sent], np.stack(begins), back=True)
            self.ready = ends
        self.ready = np.maximum(arrivals, self.ready)

    def _at(self, part: int, round: int) -> tuple[int, int]:
        """Phase and step in it of a round."""
        for phase, (times, *_) in enumerate(self.phases[part]):
            if round < times:
                return phase, round
            round -= times
        raise ValueError("a round after the last")

    def _ways(self, targets: list[Index], back: bool) -> Index:
        """Ways of all messages of a round; the same ones all through a phase."""
        key = (back, *map(id, targets))
        if key not in self.known:
            here, there = np.tile(np.arange(self.graph.ranks), len(targets)), np.concatenate(targets)
            self.known[key] = (
                shortest_routes(self.graph, there, here) if back else shortest_routes(self.graph, here, there)
            )
        return self.known[key]

    def _round(self, targets: list[Index], sizes: list[float], begins: Array, *, back: bool) -> Array:
        """Ends of all messages of a round, by part and by the rank that would send in the all-gather."""
        n, graph = self.graph.ranks, self.graph
        ways = self._ways(targets, back)
        weight = np.repeat(sizes, n)
        load = np.zeros(graph.links + 1)
        for hop in range(ways.shape[1]):
            load += np.bincount(np.where(ways[:, hop] < 0, graph.links, ways[:, hop]), weight, graph.links + 1)
        load[-1] = 0.0
        alpha = np.where(ways >= 0, graph.latency_s[ways], 0.0).sum(axis=1)
        ready = np.take_along_axis(begins, np.stack(targets), axis=1).ravel() if back else begins.ravel()
        busy = load / self.rate
        lasts = busy[ways].max(axis=1)
        end = np.maximum(ready, self.free[ways].max(axis=1)) + alpha + lasts
        for hop in range(ways.shape[1]):
            over = ways[:, hop]
            np.maximum.at(self.free, over, end - np.where(self.wide[over], lasts - busy[over], 0.0))
        self.free[-1] = 0.0
        self.last = max(self.last, float(end.max()))
        ends_by_target: Array = end.reshape(len(targets), n)
        return ends_by_target
