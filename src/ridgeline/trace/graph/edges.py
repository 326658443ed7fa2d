"""Turn a Timeline into points, and name what can hold between them: what had to happen before what, and who says so.

Every chosen span has two points, start and end. An edge says: not before that point plus a lag.

    recorded    call         a call of the host runs from its start to its end
                host order   a thread makes one call after the other; the time between is host work
                body         work runs from its start to its end
                stream       work of one stream runs in order
                launch       work starts after the call that launched it
                device sync  a call that waits for the whole device ends after all that was launched before it
    inferred    sync         the same for one stream or event, whose name the trace does not keep: the last work that
                             ended before the call did
                polling      a thread that fell silent behind a launch goes on when that work ends, see `host_waits`
                queue full   a launch that takes long while about a thousand spans are queued ends when work has ended
                hand-over    a thread goes on where another of its rank fell silent (forward thread, autograd thread)
                event        a span behind a call that makes its stream wait: for the last work launched elsewhere
                streams      a span that starts right after work of another stream, launched long before, its own idle
                collective   parts of a collective on several ranks: transfer begins with the last arrival
                receive      a send and its receive on another rank: likewise; what was sent early waits to be received
                send         a predicted send and the step it feeds

`device_edges`, `stream_edges`, `host_edges`, `sync_edges`, `collective_edges` and `send_edges` find them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.arrays import Mask
from ridgeline.trace.graph.match_collectives import MatchedCollective, MatchedCollectives
from ridgeline.trace.timeline import HOST, MEMCPY, RUNTIME, Longs, Rows, Timeline

EDGES = (
    "body", "stream", "call", "host order", "launch", "device sync", "sync", "queue full", "hand-over", "event",
    "streams", "collective", "send", "receive", "polling",
)  # fmt: skip
(
    BODY, STREAM, CALL, ORDER, LAUNCH, DEVICE_SYNC, SYNC, QUEUE, HAND_OVER, EVENT, CROSS, COLLECTIVE, SEND, RECEIVE,
    POLLING,
) = range(len(EDGES))  # fmt: skip
RECORDED = frozenset({BODY, STREAM, CALL, ORDER, LAUNCH, DEVICE_SYNC})

WAITS = re.compile(r"synchronize|cuMemcpyDtoH|^(cuda|hip)(Memcpy|Free)$", re.IGNORECASE)
"""Calls of the runtime that block the host until the device has caught up."""
MOST = np.iinfo(np.int64).max
CLOSE_NS = 10_000  # one span follows another


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edges:
    """Some edges of one kind: point to point, not before so many nanoseconds."""

    src: Longs
    dst: Longs
    lag: Longs
    kind: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Points:
    """The chosen spans and their times on the common clock. Point 2i is the start of `rows[i]`, 2i+1 its end.

    ``place[row]`` is i, -1 for rows without points. Points behind those of the rows are last arrivals at matched
    collectives.
    """

    line: Timeline
    rows: Rows
    place: Longs
    at: Longs
    work: Rows
    """Rows of work, ascending."""
    calls: Rows
    """Rows of host calls (or, without a device, host ops), ascending."""
    talks: Mask
    """Which rows of the timeline are communication."""

    def start(self, rows: NDArray[np.integer]) -> Longs:
        """Points of the starts of these rows."""
        points: Longs = 2 * self.place[rows]
        return points

    def end(self, rows: NDArray[np.integer]) -> Longs:
        points: Longs = 2 * self.place[rows] + 1
        return points

    @property
    def counted_rows(self) -> Rows:
        """Rows of work, or, without a device, of host ops."""
        return self.work if len(self.work) else self.calls

    def in_order(self, at: Longs) -> Rows:
        """Rows of work stream by stream, in the order of their starts at given times of the points."""
        return self.work[np.lexsort((self.work, at[self.start(self.work)], self.line.tracks(self.work)))]


def points_of(line: Timeline, counted: Mask, shift: Longs, talks: Rows) -> Points:
    """Points for the counted work, the calls that launched it and those that wait; ``shift`` is taken off each row.

    ``talks`` are the rows of communication.
    """
    work = np.flatnonzero(counted & line.is_work)
    if len(work):
        launch = line.launch[work]
        calls = np.flatnonzero(line.mask(launch[launch >= 0]) | (line.of_kind(RUNTIME) & line.match_names(WAITS)))
    else:
        calls = np.flatnonzero(counted & line.of_kind(HOST))
    rows = np.union1d(work, calls)
    place = np.full(len(line) + 1, -1, np.int64)
    place[rows] = np.arange(len(rows))
    at = np.empty(2 * len(rows), np.int64)
    at[0::2] = line.start_ns[rows] - shift[rows]
    at[1::2] = line.end_ns[rows] - shift[rows]
    return Points(line=line, rows=rows, place=place[:-1], at=at, work=work, calls=calls, talks=line.mask(talks))


def edges_of(points: Points, src: Longs, dst: Longs, lag: Longs | int, kind: int) -> Edges:
    """Edges of a kind, the lag at most what was measured between the points."""
    recorded_lag = points.at[dst] - points.at[src]
    return Edges(src=src, dst=dst, lag=np.minimum(recorded_lag, lag), kind=kind)


SILENT_NS = 1_000_000
NEAR_NS, FAR_NS, SHARE = 100_000, 200_000, 0.05
LAST = 3
PASSIVE = re.compile(r"Query|PeekAtLastError|GetLastError|GetDevice|IsCapturing|GetAttribute", re.IGNORECASE)
"""Calls that a thread makes while it waits."""


def _none() -> Longs:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostWaits:
    """Silences that were waits: the thread, from when to when, and the row that was waited for."""

    track: Longs = field(default_factory=_none)
    start_ns: Longs = field(default_factory=_none)
    end_ns: Longs = field(default_factory=_none)
    awaited: Longs = field(default_factory=_none)

    def __len__(self) -> int:
        return len(self.track)


def host_waits(line: Timeline, work: NDArray[np.integer]) -> HostWaits:
    """Waits of the threads that launched this work which the trace does not name: polling, mapped memory.

    A thread that launches a kernel, then calls nothing for a millisecond, and goes on when that kernel ends, has waited
    for it: DeepEP spins on mapped memory until its counts of tokens are there, `.item()` reads through it.

        silence    no call of the runtime but queries, and no op, begins on the thread for 1 ms
        awaited    one of the last `LAST` spans the thread launched before; the thread goes on within 100 us of its end
                   (5 % of a long silence, at most 200)

    That the chip is busy proves nothing, for some kernel always ends; that the very last launched one does, is no
    accident.
    """
    launched_rows = work[line.launch[work] >= 0]
    if not len(launched_rows):
        return HostWaits()
    calls = line.of_kind(RUNTIME)
    calls &= ~line.match_names(PASSIVE)
    active = np.flatnonzero(calls | line.of_kind(HOST))
    tracks, launch_tracks = line.tracks(active), line.tracks(line.launch[launched_rows])
    waits: list[tuple[int, int, int, int]] = []
    for track in np.unique(launch_tracks).tolist():
        track_launches = launched_rows[launch_tracks == track]
        order = np.argsort(line.start_ns[line.launch[track_launches]], kind="stable")
        waits += _of_thread(line, track, active[tracks == track], track_launches[order])
    if not waits:
        return HostWaits()
    track_, start, end, awaited_rows = np.array(waits, np.int64).T
    return HostWaits(track=track_, start_ns=start, end_ns=end, awaited=awaited_rows)


def _of_thread(
    line: Timeline, track: int, rows: Rows, launched: NDArray[np.integer]
) -> list[tuple[int, int, int, int]]:
    """Waits of one thread: its calls and ops in order, and its work in the order of the launches."""
    begins = line.start_ns[rows]
    calls = line.of_kind(RUNTIME)[rows]
    # an op that encloses the wait is no activity, its start is
    latest_ns = np.maximum.accumulate(np.where(calls, line.end_ns[rows], begins))
    gaps = np.flatnonzero(begins[1:] - latest_ns[:-1] >= SILENT_NS)
    if not len(gaps):
        return []
    at = line.start_ns[line.launch[launched]]
    waits = []
    for gap in gaps.tolist():
        begin, until = int(latest_ns[gap]), int(begins[gap + 1])
        near = min(FAR_NS, max(NEAR_NS, round(SHARE * (until - begin))))
        place = int(np.searchsorted(at, begin, side="right"))
        last = launched[max(0, place - LAST) : place]
        distance_ns = np.abs(line.end_ns[last] - until)
        good = (distance_ns <= near) & (line.end_ns[last] > begin)
        if good.any():
            waits.append((track, begin, until, int(last[good][np.argmin(distance_ns[good])])))
    return waits


LONGEST_DELAY_NS = 50_000  # from a call to its work where nothing else is in the way
MOST_STREAMS = 512  # of a chip, beyond which waits between them are not searched for
LOOKED_AT = 4  # spans that ended last, among which the one waited for is sought
LONG_WAIT = 50  # a stream that was idle so many times as long waited for what ended up to `FAR_NS` before
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
    rows = points.in_order(points.at)
    before = np.full(len(rows), -1, np.int64)
    same = points.line.tracks(rows[1:]) == points.line.tracks(rows[:-1])
    before[1:] = np.where(same, rows[:-1], -1)
    call = line.launch[rows].astype(np.int64)
    start = points.at[points.start(rows)]
    previous_end = np.where(before >= 0, points.at[points.end(np.maximum(before, 0))], np.iinfo(np.int64).min)
    launch_start = np.where(call >= 0, points.at[points.start(np.maximum(call, 0))], 0)
    gap = start - np.maximum(previous_end, -(2**62))
    idle_before = (call >= 0) & (launch_start >= previous_end) & (start >= launch_start)
    delays = (start - launch_start)[idle_before]
    delay = min(LONGEST_DELAY_NS, int(np.quantile(delays, 0.1))) if len(delays) else 0
    in_time = (before >= 0) & (gap >= 0) & (gap <= CLOSE_NS) & (launch_start + delay < previous_end)
    gap_ns = int(np.median(gap[in_time])) if in_time.any() else 0
    return Queued(rows=rows, before=before, call=call, gap_ns=gap_ns, delay_ns=delay)


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
    waits = np.flatnonzero(line.of_kind(RUNTIME) & line.match_names(EVENT_WAIT) & (line.rank == line.rank[rows[0]]))
    launched_rows = rows[line.launch[rows] >= 0]
    src, dst = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    if len(waits) and len(launched_rows):
        track = points.line.tracks(np.arange(len(line)))
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
IDLE_THREAD_NS = 100_000  # a thread that makes no call for so long may have waited for another
PAGEABLE = re.compile("pageable", re.IGNORECASE)
DEVICE_WAIT = re.compile(r"(Device|Ctx)Synchronize", re.IGNORECASE)


def host_edges(points: Points) -> Iterator[Edges]:
    """Calls of a thread in order, and hand-overs between threads."""
    calls = points.calls
    if not len(calls):
        return
    call_points = np.sort(np.concatenate([points.start(calls), points.end(calls)]))
    rows = points.rows[call_points // 2]
    order = np.lexsort((call_points, points.at[call_points], points.line.tracks(rows)))
    call_points, rows = call_points[order], rows[order]
    same = points.line.tracks(rows[1:]) == points.line.tracks(rows[:-1])
    src, dst = call_points[:-1][same], call_points[1:][same]
    same_call = (src // 2 == dst // 2) & (dst % 2 == 1)
    over = _hand_overs(points, call_points, rows)
    handed_over = np.isin(dst, over.dst) & ~same_call
    lag = np.where(handed_over, 0, points.at[dst] - points.at[src])
    waits, silent = _polling_edges(points, src, dst)
    lag = np.where(same_call, lag, np.maximum(lag - silent, 0))
    in_wait = np.zeros(len(points.at), np.bool_)  # calls that wait by name, for a copy, or in a full queue
    for edges in sync_edges(points):
        in_wait[edges.dst] = True
    lag = np.where(same_call & in_wait[dst], np.minimum(lag, QUICK_NS), lag)
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
    track, before, after = points.line.tracks(points.rows[dst // 2]), points.at[src] + shift, points.at[dst] + shift
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
    rank, track, at = points.line.rank[rows], points.line.tracks(rows), points.at[both]
    silent = np.zeros(len(both), np.int64)
    for number in np.unique(rank).tolist():  # a thread is silent before its first call
        silent[rank == number] = at[rank == number] - at[rank == number].min()
    silent[1:] = np.where(track[1:] == track[:-1], at[1:] - at[:-1], silent[1:])
    order = np.lexsort((both, at, rank))
    before = np.full(len(both), -1, np.int64)
    before[order[1:]] = np.where(rank[order[1:]] == rank[order[:-1]], order[:-1], -1)
    last = np.maximum(before, 0)
    hand_overs = (
        (before >= 0) & (silent > IDLE_THREAD_NS) & (both % 2 == 0) & (track[last] != track)
        & (at - at[last] < silent // 4) & (both[last] % 2 == 1)
    )  # fmt: skip
    return edges_of(points, both[last[hand_overs]], both[hand_overs], MOST, HAND_OVER)


def sync_edges(points: Points) -> Iterator[Edges]:
    """Calls that end after work: synchronisation, copies that block, launches into a full queue."""
    line, calls = points.line, points.calls
    if not len(points.work) or not len(calls):
        return
    waits, device_waits = line.match_names(WAITS, calls), line.match_names(DEVICE_WAIT, calls)
    for chosen, kind in ((waits & device_waits, DEVICE_SYNC), (waits & ~device_waits, SYNC)):
        yield _after_last(points, calls[chosen], kind)
    launched_rows = points.work[line.launch[points.work] >= 0]
    copies = launched_rows[line.of_kind(MEMCPY)[launched_rows]]
    blocking_copies = copies[_blocking(points, copies)]
    yield edges_of(points, points.end(blocking_copies), points.end(line.launch[blocking_copies]), MOST, SYNC)
    yield _after_last(points, _held_up(points, launched_rows), QUEUE)


def _blocking(points: Points, copies: Rows) -> Mask:
    """Which copies held their call until they ended: those that the call outlasts.

    From pageable memory the call stages the bytes, and returns a little before the last of them have arrived.
    """
    call = points.line.launch[copies]
    begun, copy_end = points.at[points.start(copies)], points.at[points.end(copies)]
    remaining_ns = copy_end - points.at[points.end(call)]
    staged_copies = points.line.match_names(PAGEABLE, copies) & (remaining_ns * 10 <= copy_end - begun)
    return np.asarray((remaining_ns <= 0) | staged_copies)


def _held_up(points: Points, linked: Rows) -> Rows:
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
            late = (last >= 0) & (launch_start[np.maximum(last, 0)] > begun) & (kind != QUEUE)
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
