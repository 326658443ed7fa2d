"""Turn the time of every chip into exclusive time: each nanosecond belongs to one span or one gap, none to two.

    own time of compute          not under a compute span that began before it
    own time of communication    not under compute, nor under communication that began before it
    own time of a copy           not under compute, communication or a copy that began before it
    own time of waiting          (of predictions) not under anything else
    gap                          nothing runs; its cause as `idle` tells it, its place that of the span that ended it

Own times and gaps of a chip sum to its span exactly. hidden = duration - own time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.analysis.idle import gaps_of_chip
from ridgeline.trace.analysis.phases import mark_phases
from ridgeline.trace.arrays import Bytes, Layers, Longs
from ridgeline.trace.classes import GROUPS, Rules
from ridgeline.trace.graph.match_collectives import MatchedCollectives, match_collectives
from ridgeline.trace.intervals import Cover, cover, covered_ns, union
from ridgeline.trace.policy import ALL, counted_rows
from ridgeline.trace.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExclusiveTime:
    """Own time of spans and gaps between them. Gaps have the phase, layer and step of the span that ended them."""

    line: Timeline
    rows: NDArray[np.intp]
    own_ns: Longs
    late_ns: Longs
    """Of the own time of communication: what would not show had nobody been late; 0 where one rank is all there is."""
    duration_ns: Longs
    """Without the waiting for the last rank."""
    group: NDArray[np.int8]
    """Into `classes.GROUPS`."""
    gap_ns: Longs
    gap_cause: Longs
    """Into `idle.CAUSES`."""
    gap_row: NDArray[np.intp]
    """Place in `rows` of the span that ended the gap."""
    chips: int
    steps: tuple[int, ...]
    """Numbers of the steps that count; empty when the trace marks none, and then all of it is one step."""

    @property
    def phase(self) -> Bytes:
        """Phase of each of the rows, into `timeline.PHASES`."""
        return self.line.phase[self.rows]

    @property
    def layer(self) -> Layers:
        return self.line.layer[self.rows]

    @property
    def counts(self) -> NDArray[np.bool_]:
        """Which rows lie in a step that counts."""
        step = self.line.step[self.rows]
        return np.isin(step, self.steps) if self.steps else np.ones(len(self.rows), np.bool_)

    @property
    def shares(self) -> int:
        """By what totals are divided to be a step of a chip."""
        return self.chips * max(1, len(self.steps))

    @property
    def step_ns(self) -> float:
        """Time of a step, mean over steps and chips."""
        counts = self.counts
        return (int(self.own_ns[counts].sum()) + int(self.gap_ns[counts[self.gap_row]].sum())) / self.shares


def exclusive_time(line: Timeline, rules: Rules, policy: str = ALL) -> ExclusiveTime:
    """Exclusive time of the spans of a classified timeline, and the gaps between them."""
    counted_mask = counted_rows(line, policy)
    rows = np.flatnonzero(counted_mask)
    groups = np.array([GROUPS.index(rules.group_of(id)) for id in line.classes], np.int8)
    group = groups[line.class_[rows]]
    own_ns = np.zeros(len(rows), np.int64)
    late = np.zeros(len(rows), np.int64)
    lengths, causes, after = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.intp)]
    arrival = _arrivals(line, match_collectives(line, rules, counted_mask), rows)
    for process in np.unique(line.process[rows]).tolist():
        chosen = np.flatnonzero(line.process[rows] == process)
        own_ns[chosen], late[chosen] = _exclusive_spans(line, rows[chosen], group[chosen], arrival[chosen])
        length, cause, end_rows = gaps_of_chip(line, rules, rows[chosen])
        lengths.append(length)
        causes.append(cause)
        after.append(np.searchsorted(rows, end_rows))
    line = mark_phases(line)
    step = line.step[rows]
    return ExclusiveTime(
        line=line,
        rows=rows,
        own_ns=own_ns,
        late_ns=late,
        duration_ns=line.end_ns[rows] - arrival,
        group=group,
        gap_ns=np.concatenate(lengths),
        gap_cause=np.concatenate(causes),
        gap_row=np.concatenate(after),
        chips=len(np.unique(line.process[rows])),
        steps=tuple(sorted(set(step[step >= 0].tolist()))),
    )


def _arrivals(line: Timeline, matched: MatchedCollectives, rows: NDArray[np.intp]) -> Longs:
    """When the last rank arrived at each row's collective, on the row's own clock; its start where nobody else is."""
    at = line.start_ns.copy()
    for match in matched.found:
        parts = list(match.rows)
        shift = np.array([matched.shift.get(rank, 0) for rank in match.ranks])
        at[parts] = int((line.start_ns[parts] - shift).max()) + shift
    return np.clip(at[rows], line.start_ns[rows], line.end_ns[rows])


def _exclusive_spans(
    line: Timeline, rows: NDArray[np.intp], group: NDArray[np.int8], arrival: Longs
) -> tuple[Longs, Longs]:
    """Own time of each row, and how much of it was waiting for another rank."""
    own_ns, late = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    above = Cover()
    for code in range(len(GROUPS)):
        chosen = np.flatnonzero(group == code)
        if not len(chosen):
            continue
        start, end = line.start_ns[rows[chosen]], line.end_ns[rows[chosen]]
        reach = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]])
        begin = np.minimum(np.maximum(start, reach), np.maximum(end, start))
        begin = np.minimum(begin, end)
        own_ns[chosen] = end - begin - covered_ns(above, begin, end)
        prompt = np.maximum(begin, end - (arrival[chosen] - start))  # where it would have ended
        late[chosen] = end - prompt - covered_ns(above, prompt, end)
        above = union(above, cover(start, end))
    return own_ns, late
