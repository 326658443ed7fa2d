"""Turn the bucket algorithm on a grid into its exact time without making its steps: block by block instead of chunks.

A rank passes on whole blocks, and what a block waits for is its last chunk. So 64 rounds of 4096 messages give the time
that `timing` finds in four million steps (a test compares them).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ridgeline.comm.contract import Collective
from ridgeline.comm.graph import Graph
from ridgeline.comm.merge_switches import MergedFabric, merge_switches
from ridgeline.comm.routes import shortest_routes
from ridgeline.core.arrays import Array, Index

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
