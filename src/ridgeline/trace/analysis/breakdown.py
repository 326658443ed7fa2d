"""Turn a Timeline into where its time went: busy and idle, compute, communication and copies, overlapped and exposed.

    span      from the first start of any counted span to the last end
    busy      time in which at least one counted span is open;             idle = span - busy
    compute, communication, copy: the same for the spans of the group, so that they overlap and do not add up to busy
    exposed communication = communication not under any compute kernel = |comm or compute| - |compute|
    overlap fraction      = 1 - exposed communication / communication

There is no number without a policy, see `policy`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.core.errors import InputError
from ridgeline.trace.classes import (
    ALL,
    COMMUNICATION,
    COMPUTE,
    COPY,
    GROUPS,
    CountingPolicy,
    Rules,
    built_in,
    counted_rows,
    policy_of,
)
from ridgeline.trace.intervals import cover, union
from ridgeline.trace.timeline import Rows, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyTimes:
    """The times of one set of spans, in nanoseconds."""

    spans: int
    span_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    exposed_communication_ns: int

    JSON = "span_us busy_us idle_us compute_us communication_us copy_us exposed_communication_us overlap_fraction"

    @property
    def idle_ns(self) -> int:
        return self.span_ns - self.busy_ns

    @property
    def overlap_fraction(self) -> float | None:
        """Share of communication hidden under compute; None where there is no communication."""
        if not self.communication_ns:
            return None
        return 1 - self.exposed_communication_ns / self.communication_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakdownRow:
    """Times of one chip, one stream of it, or one step on it."""

    rank: int
    process: str
    times: BusyTimes
    stream: str = ""
    step: int | None = None

    JSON = "rank process stream? step? spans=times.spans *times"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTime:
    """One class of work on all chips: added up, and counted once where its spans overlap."""

    id: str
    group: str
    what: str
    """The class in words."""
    spans: int
    total_ns: int
    union_ns: int
    share: float
    """Of the busy time."""

    JSON = "class=id group what spans total_us union_us share_of_busy=share"


@dataclass(frozen=True, slots=True, kw_only=True)
class NameTime:
    """One kernel name, all its spans."""

    name: str
    class_: str
    spans: int
    total_ns: int
    longest_ns: int
    share: float
    """Of the busy time."""
    rows: tuple[int, ...]
    """The longest spans, as rows of the timeline."""

    JSON = "name class spans total_us longest_us share_of_busy=share span_ids=rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Where the time of a timeline went. ``total`` is the mean over chips when there are several."""

    policy: CountingPolicy
    total: BusyTimes
    chips: tuple[BreakdownRow, ...]
    steps: tuple[BreakdownRow, ...]
    streams: tuple[BreakdownRow, ...]
    classes: tuple[ClassTime, ...]
    names: tuple[NameTime, ...]
    unknown: tuple[NameTime, ...]
    """Work no class matched, by name: listed, not hidden."""


def breakdown(line: Timeline, rules: Rules | None = None, policy: str = ALL) -> Breakdown:
    """Where the time went, over all and by chip, step, stream, class and name."""
    rules = rules or built_in()
    policy_ = policy_of(line, policy)
    sets = _Sets(line, rules, np.flatnonzero(counted_rows(line, policy)))
    if not len(sets.rows):
        raise InputError("nothing in the trace counts as work under policy " + policy)
    chips = tuple(sets.chips())
    busy = sum(row.times.busy_ns for row in chips)
    names = sets.names(busy)
    return Breakdown(
        policy=policy_,
        total=_mean([row.times for row in chips]),
        chips=chips,
        steps=tuple(sets.steps()),
        streams=tuple(sets.streams()),
        classes=tuple(sorted(sets.classes(busy), key=lambda one: -one.total_ns)),
        names=tuple(names),
        unknown=tuple(name for name in names if name.class_ == "unknown"),
    )


class _Sets:
    def __init__(self, line: Timeline, rules: Rules, rows: Rows) -> None:
        self.line, self.rows, self.rules = line, rows, rules
        self.start, self.end = line.start_ns[rows], line.end_ns[rows]
        self.group = rules.groups(line)[rows]
        self.process, self.stream = line.process[rows], line.stream[rows]

    def times(self, chosen: Mask) -> BusyTimes:
        start, end, group = self.start[chosen], self.end[chosen], self.group[chosen]
        busy = cover(start, end)
        in_group = {name: group == GROUPS.index(name) for name in (COMPUTE, COMMUNICATION, COPY)}
        parts = {name: cover(start[mask], end[mask]) for name, mask in in_group.items()}
        either = union(parts[COMPUTE], parts[COMMUNICATION])
        return BusyTimes(
            spans=int(chosen.sum()),
            span_ns=busy.last - busy.first,
            busy_ns=busy.length,
            compute_ns=parts[COMPUTE].length,
            communication_ns=parts[COMMUNICATION].length,
            copy_ns=parts[COPY].length,
            exposed_communication_ns=either.length - parts[COMPUTE].length,
        )

    def _row(self, process: int, chosen: Mask, stream: str = "", step: int | None = None) -> BreakdownRow:
        tables = self.line.tables
        rank, name = tables.ranks[process], tables.processes[process]
        return BreakdownRow(rank=rank, process=name, times=self.times(chosen), stream=stream, step=step)

    def chips(self) -> Iterator[BreakdownRow]:
        for process in np.unique(self.process).tolist():
            yield self._row(process, self.process == process)

    def streams(self) -> Iterator[BreakdownRow]:
        pairs = np.unique(np.stack([self.process, self.stream]), axis=1).T.tolist()
        for process, stream in pairs:
            chosen = (self.process == process) & (self.stream == stream)
            yield self._row(process, chosen, stream=self.line.streams[stream])

    def steps(self) -> Iterator[BreakdownRow]:
        step = self.line.step[self.rows]
        pairs = np.unique(np.stack([self.process, step]), axis=1).T.tolist()
        for process, number in pairs:
            if number >= 0:
                yield self._row(process, (self.process == process) & (step == number), step=number)

    def classes(self, busy: int) -> Iterator[ClassTime]:
        codes = self.line.class_[self.rows]
        duration = self.end - self.start
        for code in np.unique(codes).tolist():
            id, of_class = self.line.classes[code] or "host", codes == code
            joint = sum(
                cover(self.start[of_class & (self.process == chip)], self.end[of_class & (self.process == chip)]).length
                for chip in np.unique(self.process[of_class]).tolist()
            )
            yield ClassTime(
                id=id,
                group=self.rules.group_of(self.line.classes[code]),
                what=self.rules.what(id) or ("no class matches these names" if id == "unknown" else ""),
                spans=int(of_class.sum()),
                total_ns=int(duration[of_class].sum()),
                union_ns=joint,
                share=joint / max(1, busy),
            )

    def names(self, busy: int) -> list[NameTime]:
        """Names by total time, longest first."""
        names, duration = self.line.name[self.rows], self.end - self.start
        distinct, inverse, counts = np.unique(names, return_inverse=True, return_counts=True)
        totals = np.zeros(len(distinct), np.int64)
        np.add.at(totals, inverse, duration)
        order = np.lexsort((-duration, inverse))
        firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        rows_by_name = []
        for place in np.argsort(-totals, kind="stable").tolist():
            examples = order[firsts[place] : firsts[place] + min(3, int(counts[place]))]
            rows_by_name.append(
                NameTime(
                    name=self.line.names[int(distinct[place])],
                    class_=self.line.classes[int(self.line.class_[self.rows[examples[0]]])] or "host",
                    spans=int(counts[place]),
                    total_ns=int(totals[place]),
                    longest_ns=int(duration[examples[0]]),
                    share=int(totals[place]) / max(1, busy),
                    rows=tuple(self.rows[examples].tolist()),
                )
            )
        return rows_by_name


def _mean(parts: list[BusyTimes]) -> BusyTimes:
    names = [field.name for field in fields(BusyTimes)]
    return BusyTimes(**{name: round(sum(getattr(part, name) for part in parts) / len(parts)) for name in names})
