"""Turn a Timeline into edges: what had to happen before what, as recorded, as its calls mean, or as times suggest.

Every chosen span has two points, start and end. An edge says: not before that point plus a lag.

    recorded    call         a call of the host runs from its start to its end
                host order   a thread makes one call after the other; the time between is host work
                body         work runs from its start to its end
                stream       work of one stream runs in order
                launch       work starts after the call that launched it
                device sync  a call that waits for the whole device ends after all that was launched before it
    inferred    sync         the same for one stream or event, whose name the trace does not keep: the last work that
                             ended before the call did
                queue full   a launch that takes long while about a thousand spans are queued ends when work has ended
                hand-over    a thread goes on where another of its rank fell silent (forward thread, autograd thread)
                event        a span behind a call that makes its stream wait: for the last work launched elsewhere
                streams      a span that starts right after work of another stream, launched long before, its own idle
                collective   parts of a collective on several ranks: transfer begins with the last arrival
                send         a predicted send and the step it feeds
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.collectives import PREDICTED, Meetings
from ridgeline.trace.idle import WAITS
from ridgeline.trace.timeline import HOST, MEMCPY, RUNTIME, Timeline

Longs = NDArray[np.int64]
Rows = NDArray[np.intp]

EDGES = (
    "body", "stream", "call", "host order", "launch", "device sync", "sync", "queue full", "hand-over", "event",
    "streams", "collective", "send",
)  # fmt: skip
BODY, STREAM, CALL, ORDER, LAUNCH, DEVICE_SYNC, SYNC, QUEUE, HAND_OVER, EVENT, CROSS, MEET, SEND = range(len(EDGES))
RECORDED = frozenset({BODY, STREAM, CALL, ORDER, LAUNCH, DEVICE_SYNC})

MOST = np.iinfo(np.int64).max
CLOSE_NS = 10_000  # one span follows another
QUICK_NS = 5_000  # what a call that waits takes when there is nothing to wait for
LONG_CALL_NS = 20_000  # a launch that takes longer was held up
LONGEST_DELAY_NS = 50_000  # from a call to its work where nothing else is in the way
MOST_STREAMS = 512  # of a chip, beyond which waits between them are not searched for
FULL = 900  # spans queued from which on a queue may be full: CUDA's holds 1,024
SILENT_NS = 100_000  # a thread that makes no call for so long may have waited for another
DEVICE_WAIT = re.compile(r"(Device|Ctx)Synchronize", re.IGNORECASE)
EVENT_WAIT = re.compile(r"StreamWaitEvent|StreamWaitValue", re.IGNORECASE)
TO_STAGE = re.compile(r"^(?P<action>\S+) to stage (?P<stage>\d+)$")


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

    ``place[row]`` is i, -1 for rows without points. Points behind those of the rows are meetings of collectives.
    """

    line: Timeline
    rows: Rows
    place: Longs
    at: Longs
    work: Rows
    """Rows of work, ascending."""
    calls: Rows
    """Rows of host calls (or, without a device, host ops), ascending."""

    def start(self, rows: NDArray[np.integer]) -> Longs:
        """Points of the starts of these rows."""
        found: Longs = 2 * self.place[rows]
        return found

    def end(self, rows: NDArray[np.integer]) -> Longs:
        found: Longs = 2 * self.place[rows] + 1
        return found

    def track(self, rows: Rows) -> Longs:
        """One number per stream of a process, or thread of a host."""
        found: Longs = (
            self.line.process[rows].astype(np.int64) * max(1, len(self.line.streams)) + self.line.stream[rows]
        )
        return found


def points_of(line: Timeline, counted: NDArray[np.bool_], shift: Longs) -> Points:
    """Points for the counted work, the calls that launched it and those that wait; ``shift`` is taken off each row."""
    work = np.flatnonzero(counted & line.is_work)
    if len(work):
        calling = np.zeros(len(line), np.bool_)
        launch = line.launch[work]
        calling[launch[launch >= 0]] = True
        waits = np.array([bool(WAITS.search(name[:200])) for name in line.names], np.bool_)
        calls = np.flatnonzero(calling | (line.of_kind(RUNTIME) & waits[line.name]))
    else:
        calls = np.flatnonzero(counted & line.of_kind(HOST))
    rows = np.union1d(work, calls)
    place = np.full(len(line) + 1, -1, np.int64)
    place[rows] = np.arange(len(rows))
    at = np.empty(2 * len(rows), np.int64)
    at[0::2] = (line.start_ns - shift)[rows]
    at[1::2] = (line.end_ns - shift)[rows]
    return Points(line=line, rows=rows, place=place[:-1], at=at, work=work, calls=calls)


def _edges(points: Points, src: Longs, dst: Longs, lag: Longs | int, kind: int) -> Edges:
    """Edges of a kind, the lag at most what was measured between the points."""
    measured = points.at[dst] - points.at[src]
    return Edges(src=src, dst=dst, lag=np.minimum(measured, lag), kind=kind)


# -- the host ----------------------------------------------------------------------------------------------------------


def host_edges(points: Points) -> Iterator[Edges]:
    """Calls of a thread in order, and hand-overs between threads."""
    calls = points.calls
    if not len(calls):
        return
    both = np.sort(np.concatenate([points.start(calls), points.end(calls)]))
    rows = points.rows[both // 2]
    order = np.lexsort((both, points.at[both], points.track(rows)))
    both, rows = both[order], rows[order]
    same = points.track(rows[1:]) == points.track(rows[:-1])
    src, dst = both[:-1][same], both[1:][same]
    own = (src // 2 == dst // 2) & (dst % 2 == 1)
    over = _hand_overs(points, both, rows)
    handed = np.isin(dst, over.dst) & ~own
    lag = np.where(handed, 0, points.at[dst] - points.at[src])
    lag = np.where(own & _waiting(points, dst), np.minimum(lag, QUICK_NS), lag)
    for chosen, kind in ((own, CALL), (~own, ORDER)):
        yield _edges(points, src[chosen], dst[chosen], lag[chosen], kind)
    yield over


def _hand_overs(points: Points, both: Longs, rows: Rows) -> Edges:
    """Where a thread goes on after a silence in which another of its rank was the last to do anything."""
    rank, track, at = points.line.rank[rows], points.track(rows), points.at[both]
    silent = np.zeros(len(both), np.int64)
    for one in np.unique(rank).tolist():  # a thread is silent before its first call
        silent[rank == one] = at[rank == one] - at[rank == one].min()
    silent[1:] = np.where(track[1:] == track[:-1], at[1:] - at[:-1], silent[1:])
    order = np.lexsort((both, at, rank))
    before = np.full(len(both), -1, np.int64)
    before[order[1:]] = np.where(rank[order[1:]] == rank[order[:-1]], order[:-1], -1)
    last = np.maximum(before, 0)
    found = (
        (before >= 0) & (silent > SILENT_NS) & (both % 2 == 0) & (track[last] != track)
        & (at - at[last] < silent // 4) & (both[last] % 2 == 1)
    )  # fmt: skip
    return _edges(points, both[last[found]], both[found], MOST, HAND_OVER)


def _waiting(points: Points, ends: Longs) -> NDArray[np.bool_]:
    """Which of these ends of calls wait for work: by name, as a copy that blocks, or in a full queue."""
    held = np.zeros(len(points.at), np.bool_)
    for edges in sync_edges(points):
        held[edges.dst] = True
    return held[ends]


def sync_edges(points: Points) -> Iterator[Edges]:
    """Calls that end after work: synchronisation, copies that block, launches into a full queue."""
    line, calls = points.line, points.calls
    if not len(points.work) or not len(calls):
        return
    names = line.name[calls]
    waits = np.array([bool(WAITS.search(name[:200])) for name in line.names], np.bool_)[names]
    whole = np.array([bool(DEVICE_WAIT.search(name[:200])) for name in line.names], np.bool_)[names]
    for chosen, kind in ((waits & whole, DEVICE_SYNC), (waits & ~whole, SYNC)):
        yield _after_last(points, calls[chosen], kind)
    linked = points.work[line.launch[points.work] >= 0]
    copies = linked[line.of_kind(MEMCPY)[linked]]
    blocked = copies[points.at[points.end(line.launch[copies])] >= points.at[points.end(copies)]]
    yield _edges(points, points.end(blocked), points.end(line.launch[blocked]), MOST, SYNC)
    yield _after_last(points, _held_up(points, linked), QUEUE)


def _held_up(points: Points, linked: Rows) -> Rows:
    """Launches that took long while the queue was full."""
    line, found = points.line, []
    for process in np.unique(line.process[linked]).tolist():
        own = linked[line.process[linked] == process]
        call = np.unique(line.launch[own]).astype(np.intp)
        took = points.at[points.end(call)] - points.at[points.start(call)]
        launched = points.at[points.start(line.launch[own])]
        depth = np.searchsorted(np.sort(launched), points.at[points.start(call)], side="right")
        depth -= np.searchsorted(np.sort(points.at[points.start(own)]), points.at[points.end(call)], side="right")
        found.append(call[(took > LONG_CALL_NS) & (depth >= FULL)])
    return np.concatenate([*found, np.zeros(0, np.intp)]).astype(np.intp)


def _after_last(points: Points, calls: Rows, kind: int) -> Edges:
    """Each call ends after the work of its rank that ended last before it did, if that was launched before."""
    line, work = points.line, points.work
    src, dst = [], []
    for rank in np.unique(line.rank[calls]).tolist():
        own, chosen = work[line.rank[work] == rank], calls[line.rank[calls] == rank]
        if not len(own):
            continue
        own = own[np.argsort(points.at[points.end(own)], kind="stable")]
        ended = points.at[points.end(own)]
        launched = np.where(line.launch[own] >= 0, points.at[points.start(np.maximum(line.launch[own], 0))], 0)
        last = np.searchsorted(ended, points.at[points.end(chosen)], side="right") - 1
        begun = points.at[points.start(chosen)]
        for _ in range(8):  # spans another thread launched meanwhile are not waited for
            late = (last >= 0) & (launched[np.maximum(last, 0)] > begun) if kind != QUEUE else np.zeros(len(last), bool)
            last = np.where(late, last - 1, last)
        good = (last >= 0) & ((launched[np.maximum(last, 0)] <= begun) | (kind == QUEUE))
        src.append(points.end(own[last[good]]))
        dst.append(points.end(chosen[good]))
    empty = np.zeros(0, np.int64)
    return _edges(points, np.concatenate([*src, empty]), np.concatenate([*dst, empty]), MOST, kind)


# -- the device --------------------------------------------------------------------------------------------------------


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


def queued(points: Points) -> Queued:
    """The work in the order of its streams, with typical gaps."""
    line = points.line
    order = np.lexsort((points.work, points.at[points.start(points.work)], points.track(points.work)))
    rows = points.work[order]
    before = np.full(len(rows), -1, np.int64)
    same = points.track(rows[1:]) == points.track(rows[:-1])
    before[1:] = np.where(same, rows[:-1], -1)
    call = line.launch[rows].astype(np.int64)
    start = points.at[points.start(rows)]
    ended = np.where(before >= 0, points.at[points.end(np.maximum(before, 0))], np.iinfo(np.int64).min)
    launched = np.where(call >= 0, points.at[points.start(np.maximum(call, 0))], 0)
    gap = start - np.maximum(ended, -(2**62))
    in_time = (before >= 0) & (gap >= 0) & (gap <= CLOSE_NS) & (launched < ended)
    alone = (call >= 0) & (launched >= ended) & (start >= launched)
    return Queued(
        rows=rows,
        before=before,
        call=call,
        gap_ns=int(np.median(gap[in_time])) if in_time.any() else 0,
        delay_ns=min(LONGEST_DELAY_NS, int(np.quantile((start - launched)[alone], 0.1))) if alone.any() else 0,
    )


def device_edges(points: Points, given: Queued) -> Iterator[Edges]:
    """Bodies, order of streams, launches."""
    rows = given.rows
    yield _edges(points, points.start(rows), points.end(rows), MOST, BODY)
    behind = given.before >= 0
    after, before = rows[behind], given.before[behind]
    gap = points.at[points.start(after)] - points.at[points.end(before)]
    overlapped = -gap > (points.at[points.end(before)] - points.at[points.start(before)]) // 2
    serial = ~overlapped
    yield _edges(points, points.end(before[serial]), points.start(after[serial]), given.gap_ns, STREAM)
    yield _edges(points, points.start(before[overlapped]), points.start(after[overlapped]), MOST, STREAM)
    early = serial & (gap < 0)  # begun before the end of the one before, yet never before its start
    yield _edges(points, points.start(before[early]), points.start(after[early]), 0, STREAM)
    linked = given.call >= 0
    after, call = rows[linked], given.call[linked]
    forward = points.at[points.start(after)] >= points.at[points.start(call)]
    yield _edges(points, points.start(call[forward]), points.start(after[forward]), given.delay_ns, LAUNCH)


def stream_edges(points: Points, given: Queued) -> Iterator[Edges]:
    """Waits between streams of a chip: by calls that order them, and by times that leave no other reason."""
    line = points.line
    for process in np.unique(line.process[given.rows]).tolist():
        own = line.process[given.rows] == process
        if not 1 < len(np.unique(line.stream[given.rows[own]])) <= MOST_STREAMS:
            continue
        yield _by_times(points, given, np.flatnonzero(own))
        yield _by_calls(points, given.rows[own])


def _by_times(points: Points, given: Queued, own: Rows) -> Edges:
    rows = given.rows[own]
    start, end = points.at[points.start(rows)], points.at[points.end(rows)]
    ready = np.full(len(rows), -(2**62), np.int64)
    for other, delay, point in ((given.before[own], 0, points.end), (given.call[own], given.delay_ns, points.start)):
        known = other >= 0
        ready[known] = np.maximum(ready[known], points.at[point(other[known])] + delay)
    by_end = np.argsort(end, kind="stable")
    last = np.searchsorted(end[by_end], start, side="right") - 1
    stream = points.line.stream[rows]
    found = np.full(len(rows), -1, np.int64)
    for back in range(4):  # the last few that ended, the nearest of another stream
        at = last - back
        other = by_end[np.maximum(at, 0)]
        good = (found < 0) & (at >= 0) & (stream[other] != stream) & (rows[other] < rows)
        found = np.where(good, other, found)
    near = start - end[np.maximum(found, 0)]
    late = (found >= 0) & (start - ready > CLOSE_NS) & (near <= CLOSE_NS) & (near < (start - ready) // 2)
    return _edges(points, points.end(rows[found[late]]), points.start(rows[late]), MOST, CROSS)


def _by_calls(points: Points, rows: Rows) -> Edges:
    """The first span launched behind a wait call waits for the last span launched elsewhere before that call."""
    line = points.line
    named = np.array([bool(EVENT_WAIT.search(name[:200])) for name in line.names], np.bool_)
    waits = np.flatnonzero(line.of_kind(RUNTIME) & named[line.name] & (line.rank == line.rank[rows[0]]))
    linked = rows[line.launch[rows] >= 0]
    src, dst = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    if len(waits) and len(linked):
        track = points.track(np.arange(len(line)))
        call = line.launch[linked]
        for thread in np.unique(track[waits]).tolist():
            mine = linked[track[call] == thread]
            mine = mine[np.argsort(line.launch[mine], kind="stable")]
            own = waits[track[waits] == thread]
            place = np.searchsorted(line.launch[mine], own)
            own, place = own[place < len(mine)], place[place < len(mine)]
            _pair_up(points, linked, (own, mine[place]), (src, dst))
    return _edges(points, np.concatenate(src), np.concatenate(dst), 0, EVENT)


def _pair_up(points: Points, linked: Rows, given: tuple[Rows, Rows], into: tuple[list[Longs], list[Longs]]) -> None:
    line = points.line
    waits, waiting = given
    for stream in np.unique(line.stream[waiting]).tolist():
        others = linked[line.stream[linked] != stream]
        others = others[np.argsort(line.launch[others], kind="stable")]
        own = line.stream[waiting] == stream
        if not len(others):
            continue
        place = np.searchsorted(line.launch[others], waits[own]) - 1
        first, second = others[np.maximum(place, 0)], waiting[own]
        good = (place >= 0) & (points.at[points.end(first)] <= points.at[points.start(second)])
        into[0].append(points.end(first[good]))
        into[1].append(points.start(second[good]))


# -- across ranks ------------------------------------------------------------------------------------------------------


def meeting_edges(points: Points, given: Meetings) -> tuple[Longs, list[Edges]]:
    """Times of the points where ranks meet, and the edges into and out of them; meetings that clocks deny are left."""
    at: list[int] = []
    src: list[int] = []
    dst: list[int] = []
    lag: list[int] = []
    for one in given.found:
        rows = np.array(one.rows)
        if (points.place[rows] < 0).any():
            continue
        starts, ends = points.at[points.start(rows)], points.at[points.end(rows)]
        last = int(starts.max())
        if int(ends.min()) < last:
            continue
        meet = len(points.at) + len(at)
        at.append(last)
        for start, end, until in zip(
            points.start(rows).tolist(), points.end(rows).tolist(), ends.tolist(), strict=True
        ):
            src += [start, meet]
            dst += [meet, end]
            lag += [0, until - last]
    made = Edges(src=np.array(src, np.int64), dst=np.array(dst, np.int64), lag=np.array(lag, np.int64), kind=MEET)
    return np.array(at, np.int64), [made]


def send_edges(points: Points) -> Iterator[Edges]:
    """A predicted send ends before the step it feeds begins: `F3 to stage 1` and the first work of F3 on stage 1."""
    line = points.line
    if line.about.format not in PREDICTED or not len(points.work):
        return
    names = {code: found for code, name in enumerate(line.names) if (found := TO_STAGE.match(name))}
    sends = points.work[np.isin(line.name[points.work], list(names))]
    src, dst = [], []
    start, end = points.at[points.start(points.work)], points.at[points.end(sends)]
    for row, until in zip(sends.tolist(), end.tolist(), strict=True):
        process = f"stage {names[int(line.name[row])]['stage']}"
        if process not in line.processes:
            continue
        own = line.process[points.work] == line.processes.index(process)
        fed = np.flatnonzero(own & (start >= until))
        if len(fed) and start[fed[0]] - until <= CLOSE_NS:
            src.append(int(points.end(np.array([row]))[0]))
            dst.append(int(points.start(points.work[fed[:1]])[0]))
    yield _edges(points, np.array(src, np.int64), np.array(dst, np.int64), MOST, SEND)
