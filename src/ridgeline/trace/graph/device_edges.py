"""Turn the work of chips into edges: bodies, the order of streams, launches, and waits between streams."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.arrays import Longs
from ridgeline.trace.graph.edges import (
    BODY,
    CLOSE_NS,
    CROSS,
    EVENT,
    LAUNCH,
    MOST,
    STREAM,
    Edges,
    Points,
    Rows,
    edges_of,
)
from ridgeline.trace.timeline import RUNTIME

LONGEST_DELAY_NS = 50_000  # from a call to its work where nothing else is in the way
MOST_STREAMS = 512  # of a chip, beyond which waits between them are not searched for
LOOKED_AT = 4  # spans that ended last, among which the one waited for is sought
LONG_WAIT, FAR_NS = 50, 200_000  # a stream that was idle 50 times as long waited for what ended so much before
TIE_NS = 1_000  # apart at most, ends of which either may have been waited for
EVENT_WAIT = re.compile(r"StreamWaitEvent|StreamWaitValue", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Queued:
    """Work with what came before it on its stream (-1 for none) and the call that launched it (-1)."""

    rows: Rows
    before: Longs
    call: Longs
    gap_ns: int
    """Between spans of one stream that were launched in time: the median of those of at most 10 us."""
    delay_ns: int
    """From a call's start to the start of what it launched on an idle stream: the shortest tenth."""


def queue_order(points: Points) -> Queued:
    """The work in the order of its streams, with typical gaps."""
    line = points.line
    order = np.lexsort((points.work, points.at[points.start(points.work)], points.track(points.work)))
    rows = points.work[order]
    before = np.full(len(rows), -1, np.int64)
    same = points.track(rows[1:]) == points.track(rows[:-1])
    before[1:] = np.where(same, rows[:-1], -1)
    call = line.launch[rows].astype(np.int64)
    start = points.at[points.start(rows)]
    previous_end = np.where(before >= 0, points.at[points.end(np.maximum(before, 0))], np.iinfo(np.int64).min)
    launch_start = np.where(call >= 0, points.at[points.start(np.maximum(call, 0))], 0)
    gap = start - np.maximum(previous_end, -(2**62))
    idle_before = (call >= 0) & (launch_start >= previous_end) & (start >= launch_start)
    delay = (
        min(LONGEST_DELAY_NS, int(np.quantile((start - launch_start)[idle_before], 0.1))) if idle_before.any() else 0
    )
    in_time = (before >= 0) & (gap >= 0) & (gap <= CLOSE_NS) & (launch_start + delay < previous_end)
    return Queued(
        rows=rows,
        before=before,
        call=call,
        gap_ns=int(np.median(gap[in_time])) if in_time.any() else 0,
        delay_ns=delay,
    )


def device_edges(points: Points, given: Queued) -> Iterator[Edges]:
    """Bodies, order of streams, launches."""
    rows = given.rows
    yield edges_of(points, points.start(rows), points.end(rows), MOST, BODY)
    behind = given.before >= 0
    after, before = rows[behind], given.before[behind]
    gap = points.at[points.start(after)] - points.at[points.end(before)]
    overlaps = -gap > (points.at[points.end(before)] - points.at[points.start(before)]) // 2
    serial = ~overlaps
    yield edges_of(points, points.end(before[serial]), points.start(after[serial]), given.gap_ns, STREAM)
    yield edges_of(points, points.start(before[overlaps]), points.start(after[overlaps]), MOST, STREAM)
    early = serial & (gap < 0)  # begun before the end of the one before, yet never before its start
    yield edges_of(points, points.start(before[early]), points.start(after[early]), 0, STREAM)
    has_launch = given.call >= 0
    after, call = rows[has_launch], given.call[has_launch]
    forward = points.at[points.start(after)] >= points.at[points.start(call)]
    yield edges_of(points, points.start(call[forward]), points.start(after[forward]), given.delay_ns, LAUNCH)


def stream_edges(points: Points, given: Queued) -> Iterator[Edges]:
    """Waits between streams of a chip: by calls that order them, and by times that leave no other reason."""
    line = points.line
    for process in np.unique(line.process[given.rows]).tolist():
        of_process = line.process[given.rows] == process
        if not 1 < len(np.unique(line.stream[given.rows[of_process]])) <= MOST_STREAMS:
            continue
        yield _by_times(points, given, np.flatnonzero(of_process))
        yield _by_calls(points, given.rows[of_process])


def _by_times(points: Points, given: Queued, own: Rows) -> Edges:
    rows = given.rows[own]
    start, end = points.at[points.start(rows)], points.at[points.end(rows)]
    ready = np.full(len(rows), -(2**62), np.int64)
    for predecessor, delay, point in (
        (given.before[own], 0, points.end),
        (given.call[own], given.delay_ns, points.start),
    ):
        exists = predecessor >= 0
        ready[exists] = np.maximum(ready[exists], points.at[point(predecessor[exists])] + delay)
    previous = _ended_before(points, rows, start, end)
    near = start - end[np.maximum(previous, 0)]
    idle = start - ready
    close = np.clip(idle // LONG_WAIT, CLOSE_NS, FAR_NS)
    late = (previous >= 0) & (idle > CLOSE_NS) & (near <= close) & (near < idle // 2)
    return edges_of(points, points.end(rows[previous[late]]), points.start(rows[late]), MOST, CROSS)


def _ended_before(points: Points, rows: Rows, start: Longs, end: Longs) -> Longs:
    """For each the last of another stream that ended before it starts, -1 for none.

    Of several that ended at about the same time it is one of the other sort: communication waits for work, work for
    communication.
    """
    by_end = np.argsort(end, kind="stable")
    last = np.searchsorted(end[by_end], start, side="right") - 1
    stream, talks = points.line.stream[rows], points.talks[rows]
    previous, other_sort = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
    for back in range(LOOKED_AT):
        at = last - back
        candidate = by_end[np.maximum(at, 0)]
        good = (at >= 0) & (stream[candidate] != stream) & (rows[candidate] < rows)
        previous = np.where(good & (previous < 0), candidate, previous)
        other_sort = np.where(good & (other_sort < 0) & (talks[candidate] != talks), candidate, other_sort)
    tied = (other_sort >= 0) & (end[np.maximum(previous, 0)] - end[np.maximum(other_sort, 0)] <= TIE_NS)
    return np.where(tied, other_sort, previous)


def _by_calls(points: Points, rows: Rows) -> Edges:
    """The first span launched behind a wait call waits for the last span launched elsewhere before that call."""
    line = points.line
    waits = np.flatnonzero(line.of_kind(RUNTIME) & line.named(EVENT_WAIT) & (line.rank == line.rank[rows[0]]))
    launched_rows = rows[line.launch[rows] >= 0]
    src, dst = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    if len(waits) and len(launched_rows):
        track = points.track(np.arange(len(line)))
        call = line.launch[launched_rows]
        for thread in np.unique(track[waits]).tolist():
            thread_rows = launched_rows[track[call] == thread]
            thread_rows = thread_rows[np.argsort(line.launch[thread_rows], kind="stable")]
            thread_waits = waits[track[waits] == thread]
            place = np.searchsorted(line.launch[thread_rows], thread_waits)
            thread_waits, place = thread_waits[place < len(thread_rows)], place[place < len(thread_rows)]
            _pair_up(points, launched_rows, (thread_waits, thread_rows[place]), (src, dst))
    return edges_of(points, np.concatenate(src), np.concatenate(dst), 0, EVENT)


def _pair_up(points: Points, linked: Rows, given: tuple[Rows, Rows], into: tuple[list[Longs], list[Longs]]) -> None:
    line = points.line
    waits, waiting = given
    for stream in np.unique(line.stream[waiting]).tolist():
        other_streams = linked[line.stream[linked] != stream]
        other_streams = other_streams[np.argsort(line.launch[other_streams], kind="stable")]
        of_stream = line.stream[waiting] == stream
        if not len(other_streams):
            continue
        place = np.searchsorted(line.launch[other_streams], waits[of_stream]) - 1
        first, second = other_streams[np.maximum(place, 0)], waiting[of_stream]
        good = (place >= 0) & (points.at[points.end(first)] <= points.at[points.start(second)])
        into[0].append(points.end(first[good]))
        into[1].append(points.start(second[good]))
