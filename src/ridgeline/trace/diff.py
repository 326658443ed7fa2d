"""Turn two timelines into the causes of the difference between their steps, which sum to it.

Both steps are written as exclusive time (each nanosecond in one place) and compared place by place: by phase, class and
kernel name. A and B are the two sides, n calls, m own share of a call's time, D durations, h = hidden / D:

    slower kernels     same name on both sides:            min(nA, nB) (mB - mA) (1 - hA)
    different kernels  more, fewer or other names:         the rest of (DB - DA) (1 - hA)
    missing overlap    less of it hidden than before:      (hA - hB) DB, and gaps behind communication
    launch gaps        nothing runs: the host was late, or one kernel after another
    extra copies       memcpy and memset that nothing hides, and gaps behind them
    imbalance          waiting in collectives for the rank that came last; predicted waiting for the slowest node
    other              gaps nothing in the trace explains

Times are of one step and one chip: the mean over steps and chips of each side. Between a prediction and a trace kernels
have no common names, so they are compared by class: what a class takes more is `slower kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.errors import InputError
from ridgeline.trace.analysis.exclusive_time import ExclusiveTime, exclusive_time
from ridgeline.trace.analysis.idle import CAUSES as IDLE
from ridgeline.trace.classes import COMMUNICATION, COPY, GROUPS, WAITING, Rules, built_in
from ridgeline.trace.policy import ALL
from ridgeline.trace.timeline import NO_LAYER, PHASES, Timeline

SLOWER, DIFFERENT, OVERLAP, GAPS, COPIES, IMBALANCE, OTHER = CAUSES = (
    "slower kernels", "different kernels", "missing overlap", "launch gaps", "extra copies", "imbalance", "other",
)  # fmt: skip
MEANING = {
    SLOWER: "the same kernels took longer or shorter",
    DIFFERENT: "other kernels, more or fewer of them: fused, replaced, added",
    OVERLAP: "communication and copies that less, or more, work hides",
    GAPS: "the chip idles: launches came late, or between one kernel and the next",
    COPIES: "copies of the runtime that nothing hides",
    IMBALANCE: "waiting for the rank or node that came last",
    OTHER: "idle for reasons the trace does not show",
}
BUBBLE = "pipeline bubble"
GAP_CAUSES = {BUBBLE: IMBALANCE, "communication": OVERLAP, "copy": COPIES, "dependency": OTHER, "unlinked": OTHER}
COARSE = {
    "matmul": "matmul", "convolution": "matmul", "attention": "attention", "optimizer": "optimizer",
    "per-kernel": "per-kernel", "waiting": "waiting",
}  # fmt: skip
MEMORY_BOUND = "memory-bound"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One difference of one cause at one place; times per step."""

    cause: str
    phase: str
    class_: str
    name: str
    before_ns: float
    after_ns: float
    calls_before: float
    calls_after: float
    delta_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseTime:
    """One cause and what it adds to a step; its items, largest first."""

    cause: str
    delta_ns: float
    items: tuple[Item, ...]

    @property
    def meaning(self) -> str:
        return MEANING[self.cause]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The same difference seen by phase, layer or class."""

    id: str
    before_ns: float
    after_ns: float

    @property
    def delta_ns(self) -> float:
        return self.after_ns - self.before_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffSide:
    """One of the two: what it is, its steps, the time of one."""

    label: str
    predicted: bool
    steps: int
    chips: int
    step_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Why B's step takes longer than A's. `causes`, `phases`, `layers` and `classes` each sum to `delta_ns`."""

    before: DiffSide
    after: DiffSide
    by_name: bool
    """Whether kernels were matched by name, or by class only."""
    causes: tuple[CauseTime, ...]
    """Largest first, whichever sign."""
    phases: tuple[Place, ...]
    layers: tuple[Place, ...]
    classes: tuple[Place, ...]

    @property
    def delta_ns(self) -> float:
        return self.after.step_ns - self.before.step_ns


def diff_timelines(
    before: Timeline,
    after: Timeline,
    rules: Rules | None = None,
    policy: str = ALL,
    labels: tuple[str, str] = ("A", "B"),
) -> Diff:
    """Compare two classified timelines.

    >>> from ridgeline.trace import Span
    >>> from ridgeline.trace.classes import classify
    >>> def line(us): return classify(Timeline.of([
    ...     Span(process="chip 0", stream="7", name="gemm", kind="kernel", start_ns=0, duration_ns=1000 * us)]))
    >>> found = diff_timelines(line(3), line(5))
    >>> found.delta_ns, found.causes[0].cause, found.causes[0].delta_ns
    (2000.0, 'slower kernels', 2000.0)
    """
    rules = rules or built_in()
    sides = [exclusive_time(one, rules, policy) for one in (before, after)]
    if any(not len(one.rows) for one in sides):
        raise InputError("a side without any work cannot be compared")
    drawn = [one.line.predicted for one in sides]
    by_name = drawn[0] == drawn[1]
    entries = [{(e.phase, e.class_, e.name): e for e in entries_of(one, by_name=by_name)} for one in sides]
    keys = dict.fromkeys([*entries[0], *entries[1]])
    items = [item for key in keys for item in _items(entries[0].get(key), entries[1].get(key), by_name)]
    return Diff(
        before=_side(sides[0], labels[0]),
        after=_side(sides[1], labels[1]),
        by_name=by_name,
        causes=_causes(items),
        phases=_places(entries, lambda entry: entry.phase),
        layers=_by_layer(sides),
        classes=_places(entries, lambda entry: entry.class_),
    )


def _side(one: ExclusiveTime, label: str) -> DiffSide:
    return DiffSide(
        label=label, predicted=one.line.predicted, steps=max(1, len(one.steps)), chips=one.chips, step_ns=one.step_ns
    )


# -- exclusive time as entries -----------------------------------------------------------------------------------------


def entries_of(one: ExclusiveTime, *, by_name: bool = True) -> Iterator[TimeEntry]:
    """Exclusive time by place, per step and chip; it sums to the step. Without names, classes are coarse."""
    line, kept = one.line, one.counts
    ids = np.array([line.classes[code] if by_name else coarse(line, code) for code in range(len(line.classes))])
    codes = {id: place for place, id in enumerate(dict.fromkeys(ids.tolist()))}
    class_ = np.array([codes[id] for id in ids.tolist()])[line.class_[one.rows]]
    name = line.name[one.rows] if by_name else np.zeros(len(one.rows), np.int32)
    key = (one.phase.astype(np.int64) * (len(codes) + 1) + class_) * (len(line.names) + 1) + name
    table = list(codes)
    for place in _groups(key, kept):
        first = place[0]
        text = table[int(class_[first])]
        yield TimeEntry(
            phase=PHASES[int(one.phase[first])], class_=text or "host",
            name=line.names[int(line.name[one.rows[first]])] if by_name else text,
            group=GROUPS[int(one.group[first])], calls=len(place) / one.shares,
            duration_ns=int(one.duration_ns[place].sum()) / one.shares,
            own_ns=int(one.own_ns[place].sum()) / one.shares,
            late_ns=int(one.late_ns[place].sum()) / one.shares,
        )  # fmt: skip
    yield from _gap_entries(one, kept)


def coarse(line: Timeline, code: int) -> str:
    """The class a prediction would put a class in."""
    id = line.classes[code]
    group = built_in().group_of(id)
    if group in (COMMUNICATION, COPY):
        return group
    return COARSE.get(id, MEMORY_BOUND)


def _gap_entries(one: ExclusiveTime, kept: NDArray[np.bool_]) -> Iterator[TimeEntry]:
    inside = kept[one.gap_row]
    cause = np.zeros_like(one.gap_cause) if one.line.predicted else one.gap_cause  # a predicted gap has one name
    key = one.phase[one.gap_row].astype(np.int64) * len(IDLE) + cause
    for place in _groups(key, inside):
        total = int(one.gap_ns[place].sum()) / one.shares
        yield TimeEntry(
            phase=PHASES[int(one.phase[one.gap_row[place[0]]])], class_="idle",
            name=_gap_name(one, int(one.gap_cause[place[0]])),
            group="idle", calls=len(place) / one.shares, duration_ns=total, own_ns=total, late_ns=0.0,
        )  # fmt: skip


def _gap_name(one: ExclusiveTime, cause: int) -> str:
    """The cause of a gap; a predicted stage that idles waits for the others."""
    return BUBBLE if one.line.predicted else IDLE[cause]


def _groups(key: NDArray[np.int64], kept: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    rows = np.flatnonzero(kept)
    order = rows[np.argsort(key[rows], kind="stable")]
    return [part for part in np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(part)]


# -- two entries as causes ---------------------------------------------------------------------------------------------


def _items(before: TimeEntry | None, after: TimeEntry | None, by_name: bool) -> Iterator[Item]:
    """The causes by which one place differs; they sum to the difference of own times."""
    some = after or before
    assert some is not None
    if some.group == "idle":
        cause = GAP_CAUSES.get(some.name, GAPS)
        yield _item(cause, before, after, _own(after) - _own(before))
        return
    if some.group == WAITING:
        yield _item(IMBALANCE, before, after, _own(after) - _own(before))
        return
    late = (after.late_ns if after else 0.0) - (before.late_ns if before else 0.0)
    slower, other, overlap = _split(before, after, by_name)
    if late:
        yield _item(IMBALANCE, before, after, late)
    if overlap:
        yield _item(OVERLAP, before, after, overlap)
    if some.group == COPY:
        yield _item(COPIES, before, after, slower + other)
        return
    if slower:
        yield _item(SLOWER, before, after, slower)
    if other:
        yield _item(DIFFERENT, before, after, other)


def _split(before: TimeEntry | None, after: TimeEntry | None, by_name: bool) -> tuple[float, float, float]:
    """Slower calls, other calls, less hidden: the three terms of this module's head."""
    dA, xA = (before.duration_ns, before.own_ns - before.late_ns) if before else (0.0, 0.0)
    dB, xB = (after.duration_ns, after.own_ns - after.late_ns) if after else (0.0, 0.0)
    shown_a = xA / dA if dA > 0 else xB / dB if dB > 0 else 1.0
    whole = xB - xA
    body = shown_a * (dB - dA)
    if before is None or after is None or not before.calls or not after.calls:
        return 0.0, body, whole - body
    if not by_name:
        return body, 0.0, whole - body
    slower = shown_a * min(before.calls, after.calls) * (dB / after.calls - dA / before.calls)
    return slower, body - slower, whole - body


def _own(entry: TimeEntry | None) -> float:
    return entry.own_ns if entry else 0.0


def _item(cause: str, before: TimeEntry | None, after: TimeEntry | None, delta: float) -> Item:
    some = after or before
    assert some is not None
    return Item(
        cause=cause, phase=some.phase, class_=some.class_, name=some.name, before_ns=_own(before), after_ns=_own(after),
        calls_before=before.calls if before else 0.0, calls_after=after.calls if after else 0.0, delta_ns=delta,
    )  # fmt: skip


def _causes(items: Iterable[Item]) -> tuple[CauseTime, ...]:
    held: dict[str, list[Item]] = {}
    for item in items:
        if item.delta_ns:
            held.setdefault(item.cause, []).append(item)
    found = [
        CauseTime(
            cause=cause,
            delta_ns=sum(item.delta_ns for item in own),
            items=tuple(sorted(own, key=lambda item: -abs(item.delta_ns))),
        )
        for cause, own in held.items()
    ]
    return tuple(sorted(found, key=lambda one: -abs(one.delta_ns)))


def _places(entries: list[dict[tuple[str, str, str], TimeEntry]], of: Callable[[TimeEntry], str]) -> tuple[Place, ...]:
    totals: dict[str, list[float]] = {}
    for side, held in enumerate(entries):
        for entry in held.values():
            totals.setdefault(of(entry), [0.0, 0.0])[side] += entry.own_ns
    found = [Place(id=id, before_ns=before, after_ns=after) for id, (before, after) in totals.items()]
    return tuple(sorted(found, key=lambda one: -abs(one.delta_ns)))


def _by_layer(sides: list[ExclusiveTime]) -> tuple[Place, ...]:
    """By layer, in order; what belongs to none is called so. Empty where a side's layers cannot be told."""
    totals: dict[int, list[float]] = {}
    for place, one in enumerate(sides):
        if not (one.layer >= 0).any():
            return ()
        kept = one.counts
        for layer in np.unique(one.layer[kept]).tolist():
            own = kept & (one.layer == layer)
            gaps = own[one.gap_row]
            time = (int(one.own_ns[own].sum()) + int(one.gap_ns[gaps].sum())) / one.shares
            totals.setdefault(layer, [0.0, 0.0])[place] += time
    return tuple(
        Place(id="outside layers" if layer == NO_LAYER else f"layer {layer}", before_ns=before, after_ns=after)
        for layer, (before, after) in sorted(totals.items())
    )
