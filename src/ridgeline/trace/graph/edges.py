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

`host_edges`, `device_edges` and `rank_edges` find them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.timeline import HOST, RUNTIME, Longs, Timeline

Rows = NDArray[np.intp]

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
    talks: NDArray[np.bool_]
    """Which rows of the timeline are communication."""

    def start(self, rows: NDArray[np.integer]) -> Longs:
        """Points of the starts of these rows."""
        points: Longs = 2 * self.place[rows]
        return points

    def end(self, rows: NDArray[np.integer]) -> Longs:
        points: Longs = 2 * self.place[rows] + 1
        return points

    def track(self, rows: Rows) -> Longs:
        """One number per stream of a process, or thread of a host."""
        return self.line.tracks(rows)


def points_of(line: Timeline, counted: NDArray[np.bool_], shift: Longs, talks: Rows) -> Points:
    """Points for the counted work, the calls that launched it and those that wait; ``shift`` is taken off each row.

    ``talks`` are the rows of communication.
    """
    work = np.flatnonzero(counted & line.is_work)
    if len(work):
        calling = np.zeros(len(line), np.bool_)
        launch = line.launch[work]
        calling[launch[launch >= 0]] = True
        calls = np.flatnonzero(calling | (line.of_kind(RUNTIME) & line.named(WAITS)))
    else:
        calls = np.flatnonzero(counted & line.of_kind(HOST))
    rows = np.union1d(work, calls)
    place = np.full(len(line) + 1, -1, np.int64)
    place[rows] = np.arange(len(rows))
    at = np.empty(2 * len(rows), np.int64)
    at[0::2] = line.start_ns[rows] - shift[rows]
    at[1::2] = line.end_ns[rows] - shift[rows]
    return Points(line=line, rows=rows, place=place[:-1], at=at, work=work, calls=calls, talks=mask_of(line, talks))


def mask_of(line: Timeline, rows: Rows) -> NDArray[np.bool_]:
    """Which rows of a timeline are among these."""
    mask = np.zeros(len(line), np.bool_)
    mask[rows] = True
    return mask


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
    """Waits of the threads that launched this work."""
    launched_rows = work[line.launch[work] >= 0]
    if not len(launched_rows):
        return HostWaits()
    calls = line.of_kind(RUNTIME)
    calls &= ~line.named(PASSIVE)
    active = np.flatnonzero(calls | line.of_kind(HOST))
    tracks, launch_tracks = line.tracks(active), line.tracks(line.launch[launched_rows])
    waits: list[tuple[int, int, int, int]] = []
    for track in np.unique(launch_tracks).tolist():
        rows, track_launches = active[tracks == track], launched_rows[launch_tracks == track]
        waits += _of_thread(
            line, track, rows, track_launches[np.argsort(line.start_ns[line.launch[track_launches]], kind="stable")]
        )
    if not waits:
        return HostWaits()
    track_, start, end, awaited_rows = np.array(waits, np.int64).T
    return HostWaits(track=track_, start_ns=start, end_ns=end, awaited=awaited_rows)


def _of_thread(
    line: Timeline, track: int, rows: NDArray[np.intp], launched: NDArray[np.integer]
) -> list[tuple[int, int, int, int]]:
    """Waits of one thread: its calls and ops in order, and its work in the order of the launches."""
    begins = line.start_ns[rows]
    calls = line.of_kind(RUNTIME)[rows]
    activity_ns = np.where(
        calls, line.end_ns[rows], begins
    )  # an op that encloses the wait is no activity, its start is
    latest_ns = np.maximum.accumulate(activity_ns)
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
