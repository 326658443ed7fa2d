"""Turn spans into edges: work of chips (bodies, streams, launches), calls of hosts, and what ranks do together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.graph.edges import (
    BODY,
    CALL,
    CLOSE_NS,
    COLLECTIVE,
    CROSS,
    DEVICE_SYNC,
    EVENT,
    HAND_OVER,
    LAUNCH,
    MOST,
    ORDER,
    POLLING,
    QUEUE,
    RECEIVE,
    SEND,
    STREAM,
    SYNC,
    WAITS,
    Edges,
    Points,
    Rows,
    edges_of,
    host_waits,
)
from ridgeline.trace.graph.match_collectives import MatchedCollective, MatchedCollectives
from ridgeline.trace.timeline import MEMCPY, RUNTIME, Longs

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


QUICK_NS = 5_000  # what a call that waits takes when there is nothing to wait for
LONG_CALL_NS = 20_000  # a launch that takes longer was held up
FULL = 900  # spans queued from which on a queue may be full: CUDA's holds 1,024
SILENT_NS = 100_000  # a thread that makes no call for so long may have waited for another
PAGEABLE = re.compile("pageable", re.IGNORECASE)
DEVICE_WAIT = re.compile(r"(Device|Ctx)Synchronize", re.IGNORECASE)


def host_edges(points: Points) -> Iterator[Edges]:
    """Calls of a thread in order, and hand-overs between threads."""
    calls = points.calls
    if not len(calls):
        return
    call_points = np.sort(np.concatenate([points.start(calls), points.end(calls)]))
    rows = points.rows[call_points // 2]
    order = np.lexsort((call_points, points.at[call_points], points.track(rows)))
    call_points, rows = call_points[order], rows[order]
    same = points.track(rows[1:]) == points.track(rows[:-1])
    src, dst = call_points[:-1][same], call_points[1:][same]
    same_call = (src // 2 == dst // 2) & (dst % 2 == 1)
    over = _hand_overs(points, call_points, rows)
    handed_over = np.isin(dst, over.dst) & ~same_call
    lag = np.where(handed_over, 0, points.at[dst] - points.at[src])
    waits, silent = _polling_edges(points, src, dst)
    lag = np.where(same_call, lag, np.maximum(lag - silent, 0))
    lag = np.where(same_call & _waiting(points, dst), np.minimum(lag, QUICK_NS), lag)
    for chosen, kind in ((same_call, CALL), (~same_call, ORDER)):
        yield edges_of(points, src[chosen], dst[chosen], lag[chosen], kind)
    yield over
    yield waits


def _polling_edges(points: Points, src: Longs, dst: Longs) -> tuple[Edges, Longs]:
    """Waits that nothing names: edges from what was waited for to the next call, and how long each thread was silent.

    ``src`` and ``dst`` are neighbours on a thread, threads behind each other.
    """
    waits = host_waits(points.line, points.work)
    silent = np.zeros(len(src), np.int64)
    if not len(waits):
        none = np.zeros(0, np.int64)
        return Edges(src=none, dst=none, lag=none, kind=POLLING), silent
    shift = points.line.start_ns[points.rows[dst // 2]] - points.at[2 * (dst // 2)]  # between the clocks
    track, before, after = points.track(points.rows[dst // 2]), points.at[src] + shift, points.at[dst] + shift
    begun, wait_ends = [], []
    for thread, start, end, row in zip(
        *(column.tolist() for column in (waits.track, waits.start_ns, waits.end_ns, waits.awaited)), strict=True
    ):
        at = np.flatnonzero((track == thread) & (before <= start) & (after >= end))
        if not len(at) or points.place[row] < 0:
            continue
        silent[at[0]] += end - start
        point = int(dst[at[0]])
        done = int(points.end(np.array([row]))[0])
        begun.append(done if points.at[done] <= points.at[point] else done - 1)  # seen before its kernel ended
        wait_ends.append(point)
    sources, targets = np.array(begun, np.int64), np.array(wait_ends, np.int64)
    forward = points.at[sources] <= points.at[targets] if len(sources) else np.zeros(0, np.bool_)
    return edges_of(points, sources[forward], targets[forward], MOST, POLLING), silent


def _hand_overs(points: Points, both: Longs, rows: Rows) -> Edges:
    """Where a thread goes on after a silence in which another of its rank was the last to do anything."""
    rank, track, at = points.line.rank[rows], points.track(rows), points.at[both]
    silent = np.zeros(len(both), np.int64)
    for number in np.unique(rank).tolist():  # a thread is silent before its first call
        silent[rank == number] = at[rank == number] - at[rank == number].min()
    silent[1:] = np.where(track[1:] == track[:-1], at[1:] - at[:-1], silent[1:])
    order = np.lexsort((both, at, rank))
    before = np.full(len(both), -1, np.int64)
    before[order[1:]] = np.where(rank[order[1:]] == rank[order[:-1]], order[:-1], -1)
    last = np.maximum(before, 0)
    hand_overs = (
        (before >= 0) & (silent > SILENT_NS) & (both % 2 == 0) & (track[last] != track)
        & (at - at[last] < silent // 4) & (both[last] % 2 == 1)
    )  # fmt: skip
    return edges_of(points, both[last[hand_overs]], both[hand_overs], MOST, HAND_OVER)


def _waiting(points: Points, ends: Longs) -> NDArray[np.bool_]:
    """Which of these ends of calls wait for work: by name, as a copy that blocks, or in a full queue."""
    in_wait = np.zeros(len(points.at), np.bool_)
    for edges in sync_edges(points):
        in_wait[edges.dst] = True
    return in_wait[ends]


def sync_edges(points: Points) -> Iterator[Edges]:
    """Calls that end after work: synchronisation, copies that block, launches into a full queue."""
    line, calls = points.line, points.calls
    if not len(points.work) or not len(calls):
        return
    waits, device_waits = line.named(WAITS, calls), line.named(DEVICE_WAIT, calls)
    for chosen, kind in ((waits & device_waits, DEVICE_SYNC), (waits & ~device_waits, SYNC)):
        yield _after_last(points, calls[chosen], kind)
    launched_rows = points.work[line.launch[points.work] >= 0]
    copies = launched_rows[line.of_kind(MEMCPY)[launched_rows]]
    blocking_copies = copies[_blocking(points, copies)]
    yield edges_of(points, points.end(blocking_copies), points.end(line.launch[blocking_copies]), MOST, SYNC)
    yield _after_last(points, _held_up(points, launched_rows), QUEUE)


def _blocking(points: Points, copies: Rows) -> NDArray[np.bool_]:
    """Which copies held their call until they ended: those that the call outlasts.

    From pageable memory the call stages the bytes, and returns a little before the last of them have arrived.
    """
    call = points.line.launch[copies]
    begun, copy_end = points.at[points.start(copies)], points.at[points.end(copies)]
    remaining_ns = copy_end - points.at[points.end(call)]
    staged_copies = points.line.named(PAGEABLE, copies) & (remaining_ns * 10 <= copy_end - begun)
    return np.asarray((remaining_ns <= 0) | staged_copies)


def _held_up(points: Points, linked: Rows) -> Rows:
    """Launches that took long while the queue was full."""
    line, edges = points.line, []
    for process in np.unique(line.process[linked]).tolist():
        process_rows = linked[line.process[linked] == process]
        call = np.unique(line.launch[process_rows]).astype(np.intp)
        took = points.at[points.end(call)] - points.at[points.start(call)]
        launch_start = points.at[points.start(line.launch[process_rows])]
        depth = np.searchsorted(np.sort(launch_start), points.at[points.start(call)], side="right")
        depth -= np.searchsorted(
            np.sort(points.at[points.start(process_rows)]), points.at[points.end(call)], side="right"
        )
        edges.append(call[(took > LONG_CALL_NS) & (depth >= FULL)])
    return np.concatenate([*edges, np.zeros(0, np.intp)]).astype(np.intp)


def _after_last(points: Points, calls: Rows, kind: int) -> Edges:
    """Each call ends after the work of its rank that ended last before it did, if that was launched before."""
    line, work = points.line, points.work
    src, dst = [], []
    for rank in np.unique(line.rank[calls]).tolist():
        rank_work, chosen = work[line.rank[work] == rank], calls[line.rank[calls] == rank]
        if not len(rank_work):
            continue
        rank_work = rank_work[np.argsort(points.at[points.end(rank_work)], kind="stable")]
        work_end = points.at[points.end(rank_work)]
        launch_start = np.where(
            line.launch[rank_work] >= 0, points.at[points.start(np.maximum(line.launch[rank_work], 0))], 0
        )
        last = np.searchsorted(work_end, points.at[points.end(chosen)], side="right") - 1
        begun = points.at[points.start(chosen)]
        for _ in range(8):  # spans another thread launched meanwhile are not waited for
            late = (
                (last >= 0) & (launch_start[np.maximum(last, 0)] > begun)
                if kind != QUEUE
                else np.zeros(len(last), bool)
            )
            last = np.where(late, last - 1, last)
        good = (last >= 0) & ((launch_start[np.maximum(last, 0)] <= begun) | (kind == QUEUE))
        src.append(points.end(rank_work[last[good]]))
        dst.append(points.end(chosen[good]))
    empty = np.zeros(0, np.int64)
    return edges_of(points, np.concatenate([*src, empty]), np.concatenate([*dst, empty]), MOST, kind)


def collective_edges(points: Points, given: MatchedCollectives) -> tuple[Longs, list[Edges]]:
    """Last arrivals at matched collectives as points, and the edges into and out of them: no transfer begins before
    them. Matches that the clocks deny are left out."""
    times, collective_edges_ = _arrivals(points, given.found, COLLECTIVE, len(points.at))
    more, pair_edges = _arrivals(points, given.pairs, RECEIVE, len(points.at) + len(times))
    return np.concatenate([times, more]), [collective_edges_, pair_edges, _sent_early(points, given.pairs)]


def _arrivals(points: Points, found: Sequence[MatchedCollective], kind: int, next_point: int) -> tuple[Longs, Edges]:
    """A point for each, when the last of its parts began, between the starts and the ends of its parts."""
    if not found:
        empty = np.zeros(0, np.int64)
        return empty, Edges(src=empty, dst=empty, lag=empty, kind=kind)
    size = np.array([len(match.rows) for match in found])
    rows = np.concatenate([np.array(match.rows, np.int64) for match in found])
    first = np.concatenate([[0], np.cumsum(size)[:-1]])
    start, end = points.start(rows), points.end(rows)
    last = np.maximum.reduceat(points.at[start], first)
    good = (np.minimum.reduceat(points.at[end], first) >= last) & (np.minimum.reduceat(points.place[rows], first) >= 0)
    in_good = np.repeat(good, size)
    arrival = np.repeat(next_point + np.cumsum(good) - 1, size)[in_good]
    start, end, begun = start[in_good], end[in_good], np.repeat(last, size)[in_good]
    return last[good], Edges(
        src=np.concatenate([start, arrival]),
        dst=np.concatenate([arrival, end]),
        lag=np.concatenate([np.zeros(len(start), np.int64), points.at[end] - begun]),
        kind=kind,
    )


def _sent_early(points: Points, pairs: Sequence[MatchedCollective]) -> Edges:
    """Sends that ended before their receive began: the receive ends after them, however early it begins."""
    rows = np.array([pair.rows for pair in pairs], np.int64).reshape(-1, 2)
    rows = rows[(points.place[rows] >= 0).all(axis=1)]
    early = points.at[points.end(rows[:, 0])] < points.at[points.start(rows[:, 1])]
    return edges_of(points, points.end(rows[early, 0]), points.end(rows[early, 1]), 0, RECEIVE)


def send_edges(points: Points) -> Iterator[Edges]:
    """A predicted send ends before the step it feeds begins: all that starts next on the stage it goes to."""
    line, work = points.line, points.work
    if not line.predicted or not len(work):
        return
    records = line.detail.collective.at(work)
    goes_to = np.array([collective.to_rank for collective in line.detail.collectives] or [-1], np.int64)
    receiver = np.where(records >= 0, goes_to[np.maximum(records, 0)], -1)
    for rank in np.unique(receiver[receiver >= 0]).tolist():
        rank_work = work[line.rank[work] == rank]
        receives = work[receiver == rank]
        if not len(rank_work):
            continue
        start = points.at[points.start(rank_work)]  # rows of work are in order of their starts
        until = points.at[points.end(receives)]
        place = np.minimum(np.searchsorted(start, until), len(rank_work) - 1)
        near = (start[place] >= until) & (start[place] - until <= CLOSE_NS)
        first, receives = place[near], receives[near]
        many = np.searchsorted(start, start[first], side="right") - first
        fed = np.repeat(first - np.cumsum(many) + many, many) + np.arange(int(many.sum()))
        yield edges_of(points, points.end(np.repeat(receives, many)), points.start(rank_work[fed]), MOST, SEND)
