"""Turn a Timeline into a graph of dependencies that can be replayed.

    t(p) = max over edges into p of (t(source) + lag) + delay(p)

A point p is the start or the end of a span. The lag of an edge is what the dependency itself needs: the duration of a
body, the host's time between two calls, the shortest launch delay, the usual gap between kernels. The delay of a point
is what was measured beyond that, so a replay without changes gives back the measured times exactly, in whole
nanoseconds. `edges` says where each kind of edge comes from; counts of recorded and inferred ones stand beside a graph.

What a graph cannot know stays as it was: work launched before the trace began, other programs, waits for disks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.breakdown import ALL, counted_rows
from ridgeline.trace.classes import Rules
from ridgeline.trace.collectives import Meetings, meetings
from ridgeline.trace.edges import (
    BODY,
    EDGES,
    RECORDED,
    Edges,
    Points,
    device_edges,
    host_edges,
    meeting_edges,
    points_of,
    queued,
    send_edges,
    stream_edges,
    sync_edges,
)
from ridgeline.trace.timeline import Timeline

Longs = NDArray[np.int64]
NEVER = -(2**60)
"""Lag of an edge that no longer holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeCount:
    """How many dependencies of one kind a graph has, and whether the trace records them."""

    kind: str
    recorded: bool
    edges: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """Dependencies between the points of a timeline; edges stand in the order of their targets' places in `order`."""

    points: Points
    at: Longs
    """Measured time of every point, on the common clock."""
    src: Longs
    dst: Longs
    lag: Longs
    kind: NDArray[np.int8]
    order: Longs
    delay: Longs
    meetings: Meetings
    gap_ns: int
    delay_ns: int

    @property
    def line(self) -> Timeline:
        return self.points.line

    @property
    def counts(self) -> tuple[EdgeCount, ...]:
        """Edges by kind, most first."""
        many = np.bincount(self.kind, minlength=len(EDGES)).tolist()
        found = [
            EdgeCount(kind=EDGES[code], recorded=code in RECORDED, edges=count)
            for code, count in enumerate(many)
            if count
        ]
        return tuple(sorted(found, key=lambda one: -one.edges))

    def row_of(self, points: Longs) -> Longs:
        """The span each point belongs to, -1 for a meeting."""
        found = np.full(len(points), -1, np.int64)
        own = points < 2 * len(self.points.rows)
        found[own] = self.points.rows[points[own] // 2]
        return found

    def with_edges(self, more: Edges) -> Graph:
        """The same with further edges; those that go against the order (spans that overlap) are left out."""
        every = [
            Edges(src=self.src, dst=self.dst, lag=self.lag, kind=-1),
            more,
        ]
        kind = np.concatenate([self.kind, np.full(len(more.src), more.kind, np.int8)])
        src, dst, lag = (np.concatenate([getattr(one, name) for one in every]) for name in ("src", "dst", "lag"))
        rank = np.empty(len(self.at), np.int64)
        rank[self.order] = np.arange(len(self.order))
        forward = rank[src] < rank[dst]
        src, dst, lag, kind = src[forward], dst[forward], lag[forward], kind[forward]
        by_target = np.argsort(rank[dst], kind="stable")
        return replace(self, src=src[by_target], dst=dst[by_target], lag=lag[by_target], kind=kind[by_target])


def graph_of(line: Timeline, rules: Rules, policy: str = ALL) -> Graph:
    """The dependencies of a timeline, counted under a policy."""
    counted = counted_rows(line, policy)
    met = meetings(line, rules, counted)
    shift = np.array([met.shift.get(rank, 0) for rank in line.tables.ranks] or [0], np.int64)[line.process]
    points = points_of(line, counted, shift)
    given = queued(points)
    times, meeting = meeting_edges(points, met)
    every: list[Edges] = [
        *device_edges(points, given), *stream_edges(points, given), *meeting, *send_edges(points), *host_edges(points),
        *sync_edges(points),
    ]  # fmt: skip
    at = np.concatenate([points.at, times])
    made = _assembled(points, at, every, met)
    return replace(made, gap_ns=given.gap_ns, delay_ns=given.delay_ns)


def _assembled(points: Points, at: Longs, every: Sequence[Edges], met: Meetings) -> Graph:
    src, dst, lag = (
        np.concatenate([*(getattr(one, name) for one in every), np.zeros(0, np.int64)])
        for name in ("src", "dst", "lag")
    )
    kind = np.concatenate([*(np.full(len(one.src), one.kind, np.int8) for one in every), np.zeros(0, np.int8)])
    ends = np.unique(dst[kind == EDGES.index("collective")])
    lag[(kind == BODY) & np.isin(dst, ends)] = 0  # a part of a collective takes as long as its meeting says
    order = _order(len(at), src, dst)
    if order is None:  # zero-length spans and odd clocks can make a circle: keep what goes forward in time
        place = np.argsort(np.argsort(at, kind="stable"), kind="stable")
        kept = place[src] < place[dst]
        src, dst, lag, kind = src[kept], dst[kept], lag[kept], kind[kept]
        order = np.argsort(at, kind="stable")
    rank = np.empty(len(at), np.int64)
    rank[order] = np.arange(len(order))
    by_target = np.argsort(rank[dst], kind="stable")
    src, dst, lag, kind = src[by_target], dst[by_target], lag[by_target], kind[by_target]
    ready = np.full(len(at), NEVER, np.int64)
    np.maximum.at(ready, dst, at[src] + lag)
    rooted = np.ones(len(at), np.bool_)
    rooted[dst] = False
    return Graph(
        points=points, at=at, src=src, dst=dst, lag=lag, kind=kind, order=order,
        delay=np.where(rooted, at, at - ready), meetings=met, gap_ns=0, delay_ns=0,
    )  # fmt: skip


def _order(count: int, src: Longs, dst: Longs) -> Longs | None:
    """Points so that every edge goes forward; None when there is a circle."""
    by_source = np.argsort(src, kind="stable")
    targets = dst[by_source].tolist()
    first = np.searchsorted(src[by_source], np.arange(count + 1)).tolist()
    missing = np.bincount(dst, minlength=count).tolist()
    ready = [point for point in range(count) if not missing[point]]
    for point in ready:  # grows while it is walked
        for edge in range(first[point], first[point + 1]):
            target = targets[edge]
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    return np.array(ready, np.int64) if len(ready) == count else None


def replay(graph: Graph, lag: Longs | None = None, delay: Longs | None = None) -> Longs:
    """Times of all points with other lags and delays; without any, the measured ones.

    Points nothing precedes stay where they were.
    """
    lags = (graph.lag if lag is None else lag).tolist()
    waits = (graph.delay if delay is None else delay).tolist()
    rank = np.empty(len(graph.at), np.int64)
    rank[graph.order] = np.arange(len(graph.order))
    sources = graph.src.tolist()
    first = np.searchsorted(rank[graph.dst], np.arange(len(graph.at) + 1)).tolist()
    time = [0] * len(waits)
    for place, point in enumerate(graph.order.tolist()):
        begin, end = first[place], first[place + 1]
        ready = NEVER if begin < end else 0
        for edge in range(begin, end):
            at = time[sources[edge]] + lags[edge]
            if at > ready:
                ready = at
        # with every edge gone nothing holds a point back: it happens when the graph begins
        time[point] = ready + waits[point] if ready > NEVER // 2 else int(graph.at.min())
    return np.array(time, np.int64)


def deviation_ns(graph: Graph) -> int:
    """The worst difference between measured times and a replay without changes: 0."""
    return int(np.abs(replay(graph) - graph.at).max(initial=0))
