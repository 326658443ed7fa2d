"""Turn the time of every chip into exclusive time: each nanosecond belongs to one span or one gap, none to two.

    own time of compute          not under a compute span that began before it
    own time of communication    not under compute, nor under communication that began before it
    own time of a copy           not under compute, communication or a copy that began before it
    own time of waiting          (of predictions) not under anything else
    gap                          nothing runs; its cause as `idle` tells it, its place that of the span that ended it

Own times and gaps of a chip sum to its span exactly. hidden = duration - own time. Entries of a step, one a phase,
class and name, and one a cause of gaps, sum to it. Names are those of kernels, or of what does not depend on chip or
library: ops with their operands (`op_labels`); without names, classes are as coarse as a prediction's (`coarse`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.trace.analysis.idle import CAUSES as IDLE
from ridgeline.trace.analysis.idle import gaps_of_chip
from ridgeline.trace.analysis.phases import mark_phases
from ridgeline.trace.classes import ALL, COMMUNICATION, COPY, GROUPS, Rules, built_in, counted_rows, launching_ops
from ridgeline.trace.graph.match_collectives import match_collectives
from ridgeline.trace.intervals import Cover, cover, covered_ns, group_rows, union
from ridgeline.trace.timeline import PHASES, Bytes, Layers, Longs, Rows, Timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExclusiveTime:
    """Own time of spans and gaps between them. Gaps have the phase, layer and step of the span that ended them."""

    line: Timeline
    rows: Rows
    own_ns: Longs
    late_ns: Longs
    """Of the own time of communication: what would not show had nobody been late; 0 where one rank is all there is."""
    duration_ns: Longs
    """Without the waiting for the last rank."""
    group: Bytes
    """Into `classes.GROUPS`."""
    gap_ns: Longs
    gap_cause: Longs
    """Into `idle.CAUSES`."""
    gap_row: Rows
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
    def counts(self) -> Mask:
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

    def entries(
        self, *, by_name: bool = True, labels: tuple[Longs, tuple[str, ...]] | None = None
    ) -> Iterator[TimeEntry]:
        """Exclusive time by place, per step and chip; it sums to the step. Without names, classes are coarse.

        ``labels`` are other names of the rows: codes, and the texts behind them.
        """
        line, counts = self.line, self.counts
        ids = np.array([line.classes[code] if by_name else coarse(line, code) for code in range(len(line.classes))])
        codes = {id: place for place, id in enumerate(dict.fromkeys(ids.tolist()))}
        class_ = np.array([codes[id] for id in ids.tolist()])[line.class_[self.rows]]
        label_codes = labels[0] if labels else line.name[self.rows].astype(np.int64)
        texts = labels[1] if labels else line.names
        name = label_codes if by_name else np.zeros(len(self.rows), np.int64)
        key = (self.phase.astype(np.int64) * (len(codes) + 1) + class_) * (len(texts) + 1) + name
        table = list(codes)
        for place in group_rows(key, counts):
            first = place[0]
            text = table[int(class_[first])]
            yield TimeEntry(
                phase=PHASES[int(self.phase[first])], class_=text or "host",
                name=texts[int(label_codes[first])] if by_name else text,
                group=GROUPS[int(self.group[first])], calls=len(place) / self.shares,
                duration_ns=int(self.duration_ns[place].sum()) / self.shares,
                own_ns=int(self.own_ns[place].sum()) / self.shares,
                late_ns=int(self.late_ns[place].sum()) / self.shares,
                kernels=_kernels(line, self.rows[place]) if labels else (),
            )  # fmt: skip
        yield from _gap_entries(self, counts)


def exclusive_time(line: Timeline, rules: Rules, policy: str = ALL) -> ExclusiveTime:
    """Exclusive time of the spans of a classified timeline, and the gaps between them."""
    counted_mask = counted_rows(line, policy)
    rows = np.flatnonzero(counted_mask)
    group = rules.groups(line)[rows]
    own_ns = np.zeros(len(rows), np.int64)
    late = np.zeros(len(rows), np.int64)
    lengths, causes, after = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.intp)]
    arrival = match_collectives(line, rules, counted_mask).arrivals(line)[0][rows]
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


def _exclusive_spans(line: Timeline, rows: Rows, group: Bytes, arrival: Longs) -> tuple[Longs, Longs]:
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


BUBBLE = "pipeline bubble"
COARSE = {
    "matmul": "matmul", "convolution": "matmul", "attention": "attention", "optimizer": "optimizer",
    "per-kernel": "per-kernel", "waiting": "waiting",
}  # fmt: skip
MEMORY_BOUND = "memory-bound"
KERNELS, OPERANDS = 3, 4  # named of an op
VENDOR = re.compile(r"(?<=aten::)(cudnn_|miopen_|mkldnn_|_cudnn_)")
"""What an op is called by one vendor's library only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEntry:
    """One place: all spans of a phase, class and name, per step and chip; or the gaps of a cause."""

    phase: str
    class_: str
    name: str
    group: str
    calls: float
    duration_ns: float
    own_ns: float
    late_ns: float
    kernels: tuple[str, ...] = ()
    """Kernels of an op, the longest first, where places are ops."""


def _kernels(line: Timeline, rows: Rows) -> tuple[str, ...]:
    codes, place = np.unique(line.name[rows], return_inverse=True)
    time = np.bincount(place, weights=line.durations_ns(rows))
    return tuple(line.names[int(codes[at])] for at in np.argsort(-time, kind="stable")[:KERNELS].tolist())


def op_labels(line: Timeline, rows: Rows) -> tuple[Longs, tuple[str, ...]]:
    """For each row a name that does not depend on chip or library: its op and operands, or its kernel's name.

    The op is the outermost of the framework around the launch whose operands were recorded, below autograd's.
    """
    op = launching_ops(line, rows)
    shape = np.where(op >= 0, line.detail.shape.at(np.maximum(op, 0)), -1)
    texts: dict[str, int] = {}
    code_of_op: dict[tuple[int, int, int], int] = {}
    codes = np.zeros(len(rows), np.int64)
    keys = (np.where(op >= 0, line.name[np.maximum(op, 0)], -1), shape, np.where(op >= 0, -1, line.name[rows]))
    for place, key in enumerate(zip(*(part.tolist() for part in keys), strict=True)):
        code = code_of_op.get(key)
        if code is None:
            text = _op_text(line, *key)
            code = code_of_op[key] = texts.setdefault(text, len(texts))
        codes[place] = code
    return codes, tuple(texts)


def _op_text(line: Timeline, op: int, shape: int, kernel: int) -> str:
    if op < 0:
        return line.names[kernel]
    name = VENDOR.sub("", line.names[op])
    return f"{name} {line.detail.shapes[shape].words(OPERANDS)}".rstrip() if shape >= 0 else name


def coarse(line: Timeline, code: int) -> str:
    """The class a prediction would put a class in."""
    id = line.classes[code]
    group = built_in().group_of(id)
    if group in (COMMUNICATION, COPY):
        return group
    return COARSE.get(id, MEMORY_BOUND)


def _gap_entries(one: ExclusiveTime, kept: Mask) -> Iterator[TimeEntry]:
    inside = kept[one.gap_row]
    cause = np.zeros_like(one.gap_cause) if one.line.predicted else one.gap_cause  # a predicted gap has one name
    key = one.phase[one.gap_row].astype(np.int64) * len(IDLE) + cause
    for place in group_rows(key, inside):
        total = int(one.gap_ns[place].sum()) / one.shares
        yield TimeEntry(
            phase=PHASES[int(one.phase[one.gap_row[place[0]]])], class_="idle",
            name=BUBBLE if one.line.predicted else IDLE[int(one.gap_cause[place[0]])],  # stages wait for the others
            group="idle", calls=len(place) / one.shares, duration_ns=total, own_ns=total, late_ns=0.0,
        )  # fmt: skip
