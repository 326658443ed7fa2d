"""Turn calls of a host into edges: their order on a thread, hand-overs between threads, calls that wait for work."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.arrays import Longs
from ridgeline.trace.graph.edges import (
    CALL,
    DEVICE_SYNC,
    HAND_OVER,
    MOST,
    ORDER,
    POLLING,
    QUEUE,
    SYNC,
    WAITS,
    Edges,
    Points,
    Rows,
    edges_of,
)
from ridgeline.trace.graph.host_waits import host_waits
from ridgeline.trace.timeline import MEMCPY

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
    waits, silent = _polled(points, src, dst)
    lag = np.where(own, lag, np.maximum(lag - silent, 0))
    lag = np.where(own & _waiting(points, dst), np.minimum(lag, QUICK_NS), lag)
    for chosen, kind in ((own, CALL), (~own, ORDER)):
        yield edges_of(points, src[chosen], dst[chosen], lag[chosen], kind)
    yield over
    yield waits


def _polled(points: Points, src: Longs, dst: Longs) -> tuple[Edges, Longs]:
    """Waits that nothing names: edges from what was waited for to the next call, and how long each thread was silent.

    ``src`` and ``dst`` are neighbours on a thread, threads behind each other.
    """
    found = host_waits(points.line, points.work)
    silent = np.zeros(len(src), np.int64)
    if not len(found):
        none = np.zeros(0, np.int64)
        return Edges(src=none, dst=none, lag=none, kind=POLLING), silent
    shift = points.line.start_ns[points.rows[dst // 2]] - points.at[2 * (dst // 2)]  # between the clocks
    track, before, after = points.track(points.rows[dst // 2]), points.at[src] + shift, points.at[dst] + shift
    begun, ended = [], []
    for thread, start, end, row in zip(
        *(column.tolist() for column in (found.track, found.start_ns, found.end_ns, found.awaited)), strict=True
    ):
        at = np.flatnonzero((track == thread) & (before <= start) & (after >= end))
        if not len(at) or points.place[row] < 0:
            continue
        silent[at[0]] += end - start
        point = int(dst[at[0]])
        done = int(points.end(np.array([row]))[0])
        begun.append(done if points.at[done] <= points.at[point] else done - 1)  # seen before its kernel ended
        ended.append(point)
    sources, targets = np.array(begun, np.int64), np.array(ended, np.int64)
    forward = points.at[sources] <= points.at[targets] if len(sources) else np.zeros(0, np.bool_)
    return edges_of(points, sources[forward], targets[forward], MOST, POLLING), silent


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
    return edges_of(points, both[last[found]], both[found], MOST, HAND_OVER)


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
    waits, whole = line.named(WAITS, calls), line.named(DEVICE_WAIT, calls)
    for chosen, kind in ((waits & whole, DEVICE_SYNC), (waits & ~whole, SYNC)):
        yield _after_last(points, calls[chosen], kind)
    linked = points.work[line.launch[points.work] >= 0]
    copies = linked[line.of_kind(MEMCPY)[linked]]
    blocked = copies[_blocking(points, copies)]
    yield edges_of(points, points.end(blocked), points.end(line.launch[blocked]), MOST, SYNC)
    yield _after_last(points, _held_up(points, linked), QUEUE)


def _blocking(points: Points, copies: Rows) -> NDArray[np.bool_]:
    """Which copies held their call until they ended: those that the call outlasts.

    From pageable memory the call stages the bytes, and returns a little before the last of them have arrived.
    """
    call = points.line.launch[copies]
    begun, ended = points.at[points.start(copies)], points.at[points.end(copies)]
    left = ended - points.at[points.end(call)]
    staged = points.line.named(PAGEABLE, copies) & (left * 10 <= ended - begun)
    return np.asarray((left <= 0) | staged)


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
    return edges_of(points, np.concatenate([*src, empty]), np.concatenate([*dst, empty]), MOST, kind)
