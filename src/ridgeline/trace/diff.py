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
have no common names, so they are compared by class: what a class takes more is `slower kernels`. Between chips,
compilers and versions kernels have other names for the same work: where ops and shapes of both sides have more time in
common than kernel names have, places are ops with their operands, and each says which kernels ran for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.core.errors import InputError
from ridgeline.trace.analysis.exclusive_time import (
    BUBBLE,
    ExclusiveTime,
    TimeEntry,
    exclusive_time,
    op_labels,
)
from ridgeline.trace.classes import ALL, COPY, WAITING, Rules, built_in
from ridgeline.trace.timeline import NO_LAYER, Timeline

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
GAP_CAUSES = {BUBBLE: IMBALANCE, "communication": OVERLAP, "copy": COPIES, "dependency": OTHER, "unlinked": OTHER}
BY_NAME, BY_OP, BY_CLASS = "kernel name", "op and shape", "class"


Entries = dict[tuple[str, str, str], TimeEntry]
"""By phase, class and name."""


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
    kernels_before: tuple[str, ...] = ()
    kernels_after: tuple[str, ...] = ()

    JSON = "* -cause -delta_ns us=delta_ns"


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseTime:
    """One cause and what it adds to a step; its items, largest first."""

    cause: str
    delta_ns: float
    items: tuple[Item, ...]

    JSON = "cause meaning us=delta_ns items[:40] more"

    @property
    def more(self) -> int:
        """Items beyond those that are printed."""
        return max(0, len(self.items) - 40)

    @property
    def meaning(self) -> str:
        return MEANING[self.cause]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The same difference seen by phase, layer or class."""

    id: str
    before_ns: float
    after_ns: float

    JSON = "* us=delta_ns"

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
    chip_name: str | None = None
    """As the trace gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Why B's step takes longer than A's. `causes`, `phases`, `layers` and `classes` each sum to `delta_ns`."""

    before: DiffSide
    after: DiffSide
    by: str
    """What places were matched by: kernel name, op and shape, or class."""
    causes: tuple[CauseTime, ...]
    """Largest first, whichever sign."""
    phases: tuple[Place, ...]
    layers: tuple[Place, ...]
    classes: tuple[Place, ...]

    JSON = """
        kind='diff' before after difference_us=delta_ns difference_share=slower matched_by=by causes phases layers
        classes
    """

    @property
    def delta_ns(self) -> float:
        return self.after.step_ns - self.before.step_ns

    @property
    def places(self) -> dict[str, tuple[Place, ...]]:
        """Where the difference lies: by phase, class and layer."""
        return {"phase": self.phases, "class": self.classes, "layer": self.layers}

    @property
    def by_name(self) -> bool:
        """Whether work was told apart more finely than by class."""
        return self.by != BY_CLASS

    @property
    def slower(self) -> float:
        """How much longer B's step takes than A's, as a share of A's; negative where it is faster."""
        return self.delta_ns / self.before.step_ns if self.before.step_ns else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRuns:
    """Several runs, each compared with the first."""

    runs: tuple[Diff, ...]

    JSON = "kind='diffs' runs"


def diff_timelines(
    before: Timeline,
    after: Timeline,
    rules: Rules | None = None,
    policy: str = ALL,
    labels: tuple[str, str] = ("A", "B"),
) -> Diff:
    """Compare two classified timelines.

    >>> from ridgeline.trace.timeline import Span
    >>> from ridgeline.trace.classes import classify
    >>> def line(us): return classify(Timeline.of([
    ...     Span(process="chip 0", stream="7", name="gemm", kind="kernel", start_ns=0, duration_ns=1000 * us)]))
    >>> found = diff_timelines(line(3), line(5))
    >>> found.delta_ns, found.causes[0].cause, found.causes[0].delta_ns
    (2000.0, 'slower kernels', 2000.0)
    """
    rules = rules or built_in()
    sides = [exclusive_time(line, rules, policy) for line in (before, after)]
    if any(not len(side.rows) for side in sides):
        raise InputError("a side without any work cannot be compared")
    by, entries = _match_sides(sides)
    same_chip = sides[0].line.about.chips[:1] == sides[1].line.about.chips[:1]
    by_name = by != BY_CLASS
    items = [
        _item(cause, *pair, delta)
        for pair in _pairs(*entries)
        for cause, delta in _causes_of(*pair, by_name, same_chip)
    ]
    return Diff(
        before=_side(sides[0], labels[0]),
        after=_side(sides[1], labels[1]),
        by=by,
        causes=_causes(items),
        phases=_places(entries, lambda entry: entry.phase),
        layers=_by_layer(sides),
        classes=_places(entries, lambda entry: entry.class_),
    )


def _side(one: ExclusiveTime, label: str) -> DiffSide:
    return DiffSide(
        label=label, predicted=one.line.predicted, steps=max(1, len(one.steps)), chips=one.chips, step_ns=one.step_ns,
        chip_name=next(iter(one.line.about.chips), None),
    )  # fmt: skip


def _match_sides(sides: Sequence[ExclusiveTime]) -> tuple[str, list[Entries]]:
    """What both sides are compared by, and their entries: by what has most time in common."""
    if sides[0].line.predicted != sides[1].line.predicted:
        return BY_CLASS, [_entries_by_key(side.entries(by_name=False)) for side in sides]
    by_name = [_entries_by_key(side.entries()) for side in sides]
    if any(side.line.predicted or not (side.line.launch >= 0).any() for side in sides):
        return BY_NAME, by_name
    by_op = [_entries_by_key(side.entries(labels=op_labels(side.line, side.rows))) for side in sides]
    return (BY_OP, by_op) if _common(by_op) > 1.05 * _common(by_name) else (BY_NAME, by_name)


def _entries_by_key(entries: Iterable[TimeEntry]) -> Entries:
    return {(entry.phase, entry.class_, entry.name): entry for entry in entries}


def _common(sides: Sequence[Entries]) -> float:
    shared = [(entry, sides[1][key]) for key, entry in sides[0].items() if key in sides[1] and entry.group != "idle"]
    return sum(min(before.own_ns, after.own_ns) for before, after in shared)


def _pairs(before: Entries, after: Entries) -> Iterator[tuple[TimeEntry, TimeEntry]]:
    """Entries of every place; a side that has none has one without calls and time."""
    for key in dict.fromkeys([*before, *after]):
        some = after.get(key) or before[key]
        none = replace(some, calls=0.0, duration_ns=0.0, own_ns=0.0, late_ns=0.0, kernels=())
        yield before.get(key, none), after.get(key, none)


# -- two entries as causes ---------------------------------------------------------------------------------------------


def _causes_of(before: TimeEntry, after: TimeEntry, by_name: bool, same_chip: bool) -> Iterator[tuple[str, float]]:
    """The causes by which one place differs; they sum to the difference of own times.

    An op that another kernel does on the same chip is `different kernels`; on another chip there is no other way.
    """
    if after.group in ("idle", WAITING):
        cause = GAP_CAUSES.get(after.name, GAPS) if after.group == "idle" else IMBALANCE
        yield cause, after.own_ns - before.own_ns
        return
    late = after.late_ns - before.late_ns
    slower, further, overlap = _split(before, after, by_name)
    if same_chip and before.calls and after.calls and before.kernels != after.kernels:
        slower, further = 0.0, slower + further
    if late:
        yield IMBALANCE, late
    if overlap:
        yield OVERLAP, overlap
    if after.group == COPY:
        yield COPIES, slower + further
        return
    if slower:
        yield SLOWER, slower
    if further:
        yield DIFFERENT, further


def _split(before: TimeEntry, after: TimeEntry, by_name: bool) -> tuple[float, float, float]:
    """Slower calls, other calls, less hidden: the three terms of this module's head."""
    dA, xA = before.duration_ns, before.own_ns - before.late_ns
    dB, xB = after.duration_ns, after.own_ns - after.late_ns
    shown_a = xA / dA if dA > 0 else xB / dB if dB > 0 else 1.0
    difference = xB - xA
    body = shown_a * (dB - dA)
    if not before.calls or not after.calls:
        return 0.0, body, difference - body
    if not by_name:
        return body, 0.0, difference - body
    slower = shown_a * min(before.calls, after.calls) * (dB / after.calls - dA / before.calls)
    return slower, body - slower, difference - body


def _item(cause: str, before: TimeEntry, after: TimeEntry, delta: float) -> Item:
    return Item(
        cause=cause,
        phase=after.phase,
        class_=after.class_,
        name=after.name,
        before_ns=before.own_ns,
        after_ns=after.own_ns,
        calls_before=before.calls,
        calls_after=after.calls,
        delta_ns=delta,
        kernels_before=before.kernels,
        kernels_after=after.kernels,
    )


def _causes(items: Iterable[Item]) -> tuple[CauseTime, ...]:
    items_of: dict[str, list[Item]] = {}
    for item in items:
        if item.delta_ns:
            items_of.setdefault(item.cause, []).append(item)
    causes = []
    for cause, own_items in items_of.items():
        by_size = tuple(sorted(own_items, key=lambda item: -abs(item.delta_ns)))
        causes.append(CauseTime(cause=cause, delta_ns=sum(item.delta_ns for item in own_items), items=by_size))
    return tuple(sorted(causes, key=lambda one: -abs(one.delta_ns)))


def _places(entries: list[Entries], of: Callable[[TimeEntry], str]) -> tuple[Place, ...]:
    totals: dict[str, list[float]] = {}
    for side, side_entries in enumerate(entries):
        for entry in side_entries.values():
            totals.setdefault(of(entry), [0.0, 0.0])[side] += entry.own_ns
    places = [Place(id=id, before_ns=before, after_ns=after) for id, (before, after) in totals.items()]
    return tuple(sorted(places, key=lambda one: -abs(one.delta_ns)))


def _by_layer(sides: list[ExclusiveTime]) -> tuple[Place, ...]:
    """By layer, in order; what belongs to none is called so. Empty where a side's layers cannot be told."""
    totals: dict[int, list[float]] = {}
    for place, exclusive in enumerate(sides):
        if not (exclusive.layer >= 0).any():
            return ()
        counted_rows = exclusive.counts
        for layer in np.unique(exclusive.layer[counted_rows]).tolist():
            of_layer = counted_rows & (exclusive.layer == layer)
            gaps = of_layer[exclusive.gap_row]
            time = (int(exclusive.own_ns[of_layer].sum()) + int(exclusive.gap_ns[gaps].sum())) / exclusive.shares
            totals.setdefault(layer, [0.0, 0.0])[place] += time
    return tuple(
        Place(id="outside layers" if layer == NO_LAYER else f"layer {layer}", before_ns=before, after_ns=after)
        for layer, (before, after) in sorted(totals.items())
    )
