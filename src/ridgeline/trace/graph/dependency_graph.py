"""Turn a Timeline into a graph of dependencies that can be replayed.

    t(p) = max over edges into p of (t(source) + lag) + delay(p)

A point p is the start or the end of a span. The lag of an edge is what the dependency itself needs: the duration of a
body, the host's time between two calls, the shortest launch delay, the usual gap between kernels. The delay of a point
is what was measured beyond that, so a replay without changes gives back the measured times exactly, in whole
nanoseconds. Points are put in an order in which every edge goes forward (`forward_order`). What a graph cannot know
stays as it was: work launched before the trace began, other programs, waits for disks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.trace.classes import ALL, Rules, counted_rows
from ridgeline.trace.graph.edges import (
    BODY,
    CALL,
    COLLECTIVE,
    EDGES,
    HAND_OVER,
    LAUNCH,
    ORDER,
    RECEIVE,
    RECORDED,
    Edges,
    Points,
    collective_edges,
    device_edges,
    host_edges,
    points_of,
    queue_order,
    send_edges,
    stream_edges,
    sync_edges,
)
from ridgeline.trace.graph.match_collectives import MatchedCollectives, communication_rows, match_collectives
from ridgeline.trace.timeline import Bytes, Longs, Timeline

ROUNDS = 64


def ranks_in(order: Longs) -> Longs:
    """The place of every point in an order."""
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank


def forward_order(at: Longs, src: Longs, dst: Longs) -> Longs | None:
    """Points so that every edge goes forward; None when there is a circle.

    >>> forward_order(np.array([5, 5, 3]), np.array([1, 2]), np.array([0, 1])).tolist()
    [2, 1, 0]
    """
    time = _relax_values(at.copy(), src, dst, 0)
    if time is not None:
        tied = time[src] == time[dst]
        level = _relax_values(np.zeros(len(at), np.int64), src[tied], dst[tied], 1)
        if level is not None:
            return np.lexsort((level, time))
    return one_by_one(len(at), src, dst)


def _relax_values(value: Longs, src: Longs, dst: Longs, step: int) -> Longs | None:
    """Values raised until each target's is at least its source's and a step more; None when that takes too long."""
    for _ in range(ROUNDS):
        low = value[src] + step > value[dst]
        if not low.any():
            return value
        np.maximum.at(value, dst[low], value[src[low]] + step)
    return None


def one_by_one(count: int, src: Longs, dst: Longs) -> Longs | None:
    """The same by taking points nothing is in front of, one after the other."""
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


NEVER = -(2**60)
"""Lag of an edge that no longer holds."""
FOLLOWED = 2_000_000  # spans of work whose dependencies fit in a gigabyte and a half
AT_A_TIME = 1 << 16  # edges turned into numbers of Python at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeCount:
    """How many dependencies of one kind a graph has, and whether the trace records them."""

    kind: str
    recorded: bool
    edges: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DependencyGraph:
    """Dependencies between the points of a timeline; edges stand in the order of their targets' places in `order`."""

    points: Points
    at: Longs
    """Measured time of every point, on the common clock."""
    src: Longs
    dst: Longs
    lag: Longs
    kind: Bytes
    order: Longs
    delay: Longs
    matched: MatchedCollectives
    gap_ns: int
    delay_ns: int
    left_out: str = ""
    """What of the timeline is not in the graph, because it is too large."""

    @property
    def line(self) -> Timeline:
        return self.points.line

    @property
    def counts(self) -> tuple[EdgeCount, ...]:
        """Edges by kind, most first."""
        many = np.bincount(self.kind, minlength=len(EDGES)).tolist()
        codes = sorted((code for code, count in enumerate(many) if count), key=lambda code: -many[code])
        return tuple(EdgeCount(kind=EDGES[code], recorded=code in RECORDED, edges=many[code]) for code in codes)

    @property
    def is_body(self) -> Mask:
        """Which edges are time that work itself takes, or the transfer of a collective."""
        return np.isin(self.kind, (BODY, COLLECTIVE, RECEIVE))

    @property
    def is_host(self) -> Mask:
        """Which edges are time of a host: calls, what lies between them, launches."""
        return np.isin(self.kind, (CALL, ORDER, HAND_OVER, LAUNCH))

    def row_of(self, points: Longs) -> Longs:
        """The span each point belongs to, -1 for the last arrival at a collective."""
        rows = np.full(len(points), -1, np.int64)
        of_spans = points < 2 * len(self.points.rows)
        rows[of_spans] = self.points.rows[points[of_spans] // 2]
        return rows

    def with_edges(self, more: Edges) -> DependencyGraph:
        """The same with further edges; those that go against the order (spans that overlap) are left out."""
        src, dst, lag = (
            np.concatenate([getattr(edges, name) for edges in (self, more)]) for name in ("src", "dst", "lag")
        )
        kind = np.concatenate([self.kind, np.full(len(more.src), more.kind, np.int8)])
        rank = ranks_in(self.order)
        chosen = np.flatnonzero(rank[src] < rank[dst])
        chosen = chosen[np.argsort(rank[dst[chosen]], kind="stable")]
        return replace(self, src=src[chosen], dst=dst[chosen], lag=lag[chosen], kind=kind[chosen])


def graph_of(line: Timeline, rules: Rules, policy: str = ALL) -> DependencyGraph:
    """The dependencies of a timeline, counted under a policy."""
    counted_mask, left_out = _followed_rows(line, counted_rows(line, policy))
    collectives = match_collectives(line, rules, counted_mask)
    points = points_of(line, counted_mask, collectives.row_shifts(line), communication_rows(line, rules, counted_mask))
    queues = queue_order(points)
    times, together = collective_edges(points, collectives)
    edge_sets: list[Edges] = [
        *device_edges(points, queues),
        *stream_edges(points, queues),
        *together,
        *send_edges(points),
        *host_edges(points),
        *sync_edges(points),
    ]
    at = np.concatenate([points.at, times])
    graph = _assemble_graph(points, at, edge_sets, collectives)
    return replace(graph, gap_ns=queues.gap_ns, delay_ns=queues.delay_ns, left_out=left_out)


def _followed_rows(line: Timeline, counted: Mask) -> tuple[Mask, str]:
    """The rows whose dependencies are followed: all, or as many whole steps at the end as fit; and what is left out."""
    rows = np.flatnonzero(counted)
    if len(rows) <= FOLLOWED:
        return counted, ""
    last_rows, first = rows[-FOLLOWED:], int(line.step[rows[-FOLLOWED - 1]])
    later = last_rows[line.step[last_rows] > first]
    chosen = later if len(later) else last_rows
    steps = f", steps {int(line.step[later].min())} to {int(line.step[later].max())}" if len(later) else ""
    return line.mask(chosen), (
        f"dependencies are followed for the last {len(chosen):,} of {len(rows):,} spans of work{steps}: "
        "critical path, what-ifs and predicted gains are of these"
    )


def _assemble_graph(points: Points, at: Longs, every: Sequence[Edges], matched: MatchedCollectives) -> DependencyGraph:
    src, dst, lag = (
        np.concatenate([*(getattr(edges, name) for edges in every), np.zeros(0, np.int64)])
        for name in ("src", "dst", "lag")
    )
    kind = np.concatenate([*(np.full(len(edges.src), edges.kind, np.int8) for edges in every), np.zeros(0, np.int8)])
    matched_ends = np.zeros(len(at), np.bool_)
    matched_ends[dst[((kind == COLLECTIVE) | (kind == RECEIVE)) & (src >= len(points.at))]] = True
    lag[(kind == BODY) & matched_ends[dst]] = 0  # such a part ends a transfer behind the last arrival
    order = forward_order(at, src, dst)
    if order is None:  # zero-length spans and odd clocks can make a circle: keep what goes forward in time
        place = np.argsort(np.argsort(at, kind="stable"), kind="stable")
        forward = place[src] < place[dst]
        src, dst, lag, kind = src[forward], dst[forward], lag[forward], kind[forward]
        order = np.argsort(at, kind="stable")
    by_target = np.argsort(ranks_in(order)[dst], kind="stable")
    src, dst, lag, kind = src[by_target], dst[by_target], lag[by_target], kind[by_target]
    ready = np.full(len(at), NEVER, np.int64)
    np.maximum.at(ready, dst, at[src] + lag)
    return DependencyGraph(
        points=points, at=at, src=src, dst=dst, lag=lag, kind=kind, order=order,
        delay=np.where(ready == NEVER, at, at - ready), matched=matched, gap_ns=0, delay_ns=0,
    )  # fmt: skip


def replay(graph: DependencyGraph, lag: Longs | None = None, delay: Longs | None = None) -> Longs:
    """Times of all points with other lags and delays; without any, the measured ones.

    Points nothing precedes stay where they were.
    """
    lags = graph.lag if lag is None else lag
    waits = graph.delay if delay is None else delay
    begin = int(graph.at.min(initial=0))
    time = array("q", bytes(8 * len(graph.at)))
    edges = by_parts(graph.src, graph.dst, lags, waits[graph.dst])
    is_root = np.ones(len(graph.at), np.bool_)
    is_root[graph.dst] = False
    for point in np.flatnonzero(is_root).tolist():
        time[point] = int(waits[point])
    last, ready, wait = -1, NEVER, 0
    for source, target, need, more in edges:  # edges of one target stand together, its sources before it
        if target != last:
            if last >= 0:  # with every edge gone nothing holds a point back: it happens when the graph begins
                time[last] = ready + wait if ready > NEVER // 2 else begin
            last, ready, wait = target, NEVER, more
        at = time[source] + need
        if at > ready:
            ready = at
    if last >= 0:
        time[last] = ready + wait if ready > NEVER // 2 else begin
    return np.frombuffer(time, np.int64).copy() if len(time) else np.zeros(0, np.int64)


def by_parts(*columns: Longs) -> Iterator[tuple[int, ...]]:
    """Columns side by side as numbers of Python, made a part at a time so that only few are held."""
    parts = (
        zip(*(column[begin : begin + AT_A_TIME].tolist() for column in columns), strict=True)
        for begin in range(0, len(columns[0]), AT_A_TIME)
    )
    return chain.from_iterable(parts)


def deviation_ns(graph: DependencyGraph) -> int:
    """The worst difference between measured times and a replay without changes: 0."""
    return int(np.abs(replay(graph) - graph.at).max(initial=0))
