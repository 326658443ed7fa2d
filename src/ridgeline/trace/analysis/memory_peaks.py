"""Turn recorded allocations into a memory timeline: the peak, where it was reached, and what had grown until then.

The profiler records bytes held after every allocation (`profile_memory=True`), a prediction draws the same. Growth is
booked on the host op and the phase that were open at each change; what is freed is booked where it is freed, so growth
by op is net, and it sums, with what was held before the first record, to the peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.trace.analysis.phases import phases_at
from ridgeline.trace.classes import parents
from ridgeline.trace.timeline import HOST, NOT_WORK, PHASES, Counter, Longs, Timeline

NAMES = ("allocated bytes", "memory")
RESERVED = "reserved bytes"
OUTSIDE = "outside any op"
LISTED = 12
DEEPEST = 512  # calls inside calls that are followed


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPeak:
    """The most bytes of one step."""

    step: int
    peak_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The memory timeline of one chip, at its peak."""

    process: str
    rank: int
    changes: int
    first_bytes: float
    """Held at the first record."""
    peak_bytes: float
    peak_ns: int
    reserved_bytes: float | None
    """Most that the allocator had taken from the chip, where recorded."""
    step: int | None
    phase: str
    op: str
    """The innermost host op open when the peak was reached; for a prediction, the span that ran."""
    row: int
    """Of that op, -1 for none."""
    growth_by_phase: Mapping[str, float]
    """Net bytes booked on each from the first record to the peak; with `first_bytes` they sum to the peak."""
    growth_by_op: Mapping[str, float]
    """The same by outermost op: the largest, and the rest as one."""
    steps: tuple[StepPeak, ...]
    """Peak of every step."""

    JSON = """
        process rank changes first_bytes peak_bytes peak_us reserved_bytes step phase op span_id growth_by_phase
        growth_by_op steps
    """

    @property
    def span_id(self) -> int | None:
        """Row of the op at the peak; None for none."""
        return self.row if self.row >= 0 else None


def memory_peaks(line: Timeline) -> tuple[MemoryPeak, ...]:
    """The peak of every chip whose memory was recorded."""
    memory_counters = [counter for counter in line.counters if counter.name in NAMES and len(counter.values)]
    if not memory_counters:
        return ()
    kinds = (HOST,) if line.of_kind(HOST).any() else tuple(kind for kind in line.kinds if kind not in NOT_WORK)
    ops = _Ops(chosen=line.of_kind(*kinds), above=parents(line, *kinds).astype(np.int64), end=line.end_ns)
    return tuple(_peak(line, ops, counter) for counter in memory_counters)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ops:
    """Host ops of all ranks: which rows they are, the op around each, and when rows end."""

    chosen: Mask
    above: Longs
    end: Longs


def _peak(line: Timeline, ops: _Ops, counter: Counter) -> MemoryPeak:
    owner = dict(zip(line.processes, line.tables.ranks, strict=True))
    rank = owner.get(counter.process, min(line.tables.ranks, default=0))
    at = int(counter.values.argmax())
    times = counter.times_ns
    inner, outer = _open_at(line, ops, rank, times[: at + 1])
    phase = phases_at(line, rank, times)
    change = np.diff(counter.values[: at + 1], prepend=counter.values[0])
    row = int(inner[at])
    step = _steps(line, rank, times)
    reserved = (other for other in line.counters if other.process == counter.process and other.name == RESERVED)

    def op_name(op_row: int) -> str:
        return line.names[int(line.name[op_row])] if op_row >= 0 else OUTSIDE

    return MemoryPeak(
        process=counter.process,
        rank=rank,
        changes=len(counter.values),
        first_bytes=float(counter.values[0]),
        peak_bytes=float(counter.values[at]),
        peak_ns=int(times[at]),
        reserved_bytes=next((other.peak for other in reserved), None),
        step=int(step[at]) if step[at] >= 0 else None,
        phase=PHASES[int(phase[at])],
        op=op_name(row),
        row=row,
        growth_by_phase=_growth_by_id([PHASES[int(code)] for code in phase[: at + 1]], change),
        growth_by_op=_growth_by_id([op_name(op_row) for op_row in outer.tolist()], change),
        steps=tuple(
            StepPeak(step=number, peak_bytes=float(counter.values[step == number].max()))
            for number in np.unique(step).tolist()
            if number >= 0
        ),
    )


def _open_at(line: Timeline, ops: _Ops, rank: int, times: Longs) -> tuple[Longs, Longs]:
    """The innermost and the outermost host op of a rank open at each instant, -1 for none; of threads the latest."""
    rows = np.flatnonzero(ops.chosen & (line.rank == rank))
    above, end = ops.above, ops.end
    inner = np.full(len(times), -1, np.int64)
    track = line.tracks(rows)
    for number in np.unique(track).tolist():
        track_rows = rows[track == number]
        place = np.searchsorted(line.start_ns[track_rows], times, side="right") - 1
        at = np.where(place >= 0, track_rows[np.maximum(place, 0)], -1)
        for _ in range(DEEPEST):
            over = (at >= 0) & (end[np.maximum(at, 0)] <= times)
            if not over.any():
                break
            at[over] = above[at[over]]
        at[(at >= 0) & (end[np.maximum(at, 0)] <= times)] = -1
        inner = np.where(at > inner, at, inner)
    outer = inner.copy()
    for _ in range(DEEPEST):
        higher = (outer >= 0) & (above[np.maximum(outer, 0)] >= 0)
        if not higher.any():
            break
        outer[higher] = above[outer[higher]]
    return inner, outer


def _steps(line: Timeline, rank: int, times: Longs) -> Longs:
    """The step open at each instant: that of the host span that began last before it."""
    rows = np.flatnonzero((line.step >= 0) & (line.rank == rank) & ~line.is_work)
    if not len(rows):
        return np.full(len(times), -1, np.int64)
    place = np.searchsorted(line.start_ns[rows], times, side="right") - 1
    return np.where(place >= 0, line.step[rows[np.maximum(place, 0)]], -1).astype(np.int64)


def _growth_by_id(ids: list[str], change: Array) -> Mapping[str, float]:
    totals: dict[str, float] = {}
    for id, size in zip(ids, change.tolist(), strict=True):
        totals[id] = totals.get(id, 0.0) + size
    by_size = sorted(totals.items(), key=lambda entry: -abs(entry[1]))
    growth = {id: size for id, size in by_size[:LISTED] if size}
    unlisted_bytes = sum(size for _, size in by_size[LISTED:])
    return growth | ({"the rest": unlisted_bytes} if unlisted_bytes else {})
