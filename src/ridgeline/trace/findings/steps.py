"""Rule about steps that took far longer than the others: an average over them would hide what happened in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ridgeline.trace.analysis.breakdown import BreakdownRow
from ridgeline.trace.analysis.host_activity import host_activity
from ridgeline.trace.analysis.idle import CAUSES
from ridgeline.trace.findings.finding import Facts, Finding, Gain

FEWEST = 3  # steps to know what is usual
LONGER = 1.35  # than the median


def outlier_numbers(steps: Sequence[BreakdownRow]) -> tuple[int, ...]:
    """Steps far longer than the median one on their chip, as numbers; few of many, or none is usual.

    >>> from types import SimpleNamespace as S
    >>> rows = [S(step=n, process="0", times=S(span_ns=length)) for n, length in enumerate((5, 5, 12, 5))]
    >>> outlier_numbers(rows)
    (2,)
    """
    times: dict[int, list[int]] = {}
    for row in steps:
        if row.step is not None:
            times.setdefault(row.step, []).append(row.times.span_ns)
    if len(times) < FEWEST:
        return ()
    mean = {step: float(np.mean(values)) for step, values in times.items()}
    usual = float(np.median(list(mean.values())))
    outliers = tuple(step for step, length in mean.items() if length > LONGER * usual)
    return outliers if 3 * len(outliers) <= len(times) else ()


def outlier_steps(facts: Facts) -> Iterator[Finding]:
    """Gain: outlier steps as long as the median one. Where one idle cause makes most of it, that rule says it."""
    line, chosen = facts.line, facts.outliers
    if not chosen:
        return
    inside = np.isin(line.step, chosen)
    work = np.flatnonzero(facts.counted & inside)
    steps = {row.step for row in facts.parts.steps}
    usual, took = _spans(facts, chosen)
    over = took - usual * len(chosen)
    if not facts.worth(over * len(facts.parts.chips)):
        return
    why, part = _why(facts, chosen, len(steps))
    if part > 0.6 * over and why in CAUSES:
        return
    replayed_gain = None
    if facts.gains is not None and why not in CAUSES:
        replayed_gain = facts.gains.faster_rows(work, took / max(1.0, usual * len(chosen)))
    numbers = ", ".join(map(str, chosen[:5]))
    finding = facts.finding(
        f"outlier steps: {numbers} of {len(steps)} took {took / max(1.0, usual * len(chosen)):.1f} times the median"
        f"{f'; most more in {why}' if why else ''}{_prefills(facts, chosen)}",
        facts.longest(work), over * len(facts.parts.chips), Gain(over * len(facts.parts.chips), replayed_gain),
        _advice(facts),
    )  # fmt: skip
    first = min((step for step in steps if step is not None), default=0)
    yield replace(finding, capture=chosen == (first,))  # the first of a capture is often longer: ranks begin apart


def _spans(facts: Facts, chosen: Sequence[int]) -> tuple[float, float]:
    """The median step, and all chosen ones together; mean over chips."""
    rows = [row for row in facts.parts.steps if row.step is not None]
    chips = max(1, len(facts.parts.chips))
    usual = float(np.median([row.times.span_ns for row in rows if row.step not in chosen]))
    return usual, sum(row.times.span_ns for row in rows if row.step in chosen) / chips


def _why(facts: Facts, chosen: Sequence[int], steps: int) -> tuple[str, float]:
    """The class of work, or cause of idle time, of which outlier steps have most more than the others, and how much."""
    line = facts.line
    usual_steps = max(1, steps - len(chosen))
    more: dict[str, float] = {}
    for of, names, rows, weights in (
        (line.class_, line.classes, np.flatnonzero(facts.counted), None),
        (None, CAUSES, facts.gaps.ended, facts.gaps.length),
    ):
        codes = of[rows] if of is not None else facts.gaps.cause
        time = line.durations_ns(rows) if weights is None else weights
        step = line.step[rows]
        for code in np.unique(codes).tolist():
            of_class = codes == code
            outlier_ns = float(time[of_class & np.isin(step, chosen)].sum())
            usual_ns = float(time[of_class & (step >= 0) & ~np.isin(step, chosen)].sum())
            more[names[code]] = outlier_ns - usual_ns / usual_steps * len(chosen)
    name = max(more, key=lambda one: more[one], default="")
    return name, more.get(name, 0.0) / max(1, len(facts.parts.chips))


def _prefills(facts: Facts, chosen: Sequence[int]) -> str:
    """What the host says of an outlier step, where it says something."""
    line = facts.line
    rows = np.flatnonzero(facts.counted & (line.step == chosen[0]))
    if not len(rows):
        return ""
    start, end = line.start_ns[rows].min(), line.end_ns[rows].max()
    activity = host_activity(line, np.array([start]), np.array([end]), int(line.rank[rows[0]]))
    name = next(iter(activity), "")
    return f"; the host was in {name}" if name and "Synchronize" not in name else ""


def _advice(facts: Facts) -> str:
    if facts.software.engine:
        return (
            "steps with long prompts hold up those that decode: chunk them (max_num_batched_tokens), or prefill apart"
        )
    return (
        "look at what differs in them: clocks (throttling), another program, longer sequences; leave them out of rates"
    )
