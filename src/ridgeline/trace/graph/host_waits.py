"""Turn silences of a host's thread into waits that the trace does not name: polling, mapped memory, blocking reads.

A thread that launches a kernel, then calls nothing for a millisecond, and goes on when that kernel ends, has waited for
it: DeepEP spins on mapped memory until its counts of tokens are there, `.item()` reads through it.

    silence    no call of the runtime but queries, and no op, begins on the thread for 1 ms
    awaited    one of the last `LAST` spans the thread launched before; the thread goes on within 100 us of its end
               (5 % of a long silence, at most 200)

That the chip is busy proves nothing, for some kernel always ends; that the very last launched one does, is no accident.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.arrays import Longs
from ridgeline.trace.timeline import HOST, RUNTIME, Timeline

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
