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
