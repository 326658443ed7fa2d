"""Rules about idle chips (launch-bound steps, pauses, synchronisation, start-up, held-back work) and outlier steps."""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.trace.analysis.breakdown import BreakdownRow
from ridgeline.trace.analysis.idle import BEGINS, CAUSES, COMPILES, MEANING, host_activity, scopes, short
from ridgeline.trace.analysis.what_if import faster, no_launch_gaps, no_waits
from ridgeline.trace.classes import GRAPH, parents
from ridgeline.trace.findings.finding import Facts, Finding, Gain, advise, count, time_text
from ridgeline.trace.graph.edges import WAITS
from ridgeline.trace.intervals import cover, covered_ns
from ridgeline.trace.timeline import PYTHON, RUNTIME, SYNC, Codes, Longs, Rows

REPLAY_GAP_NS = 1500  # what remains between kernels of a replayed graph
PAUSE_NS = 1_000_000  # no launch takes this long: the host did something else
ALONE = 0.1  # of the span: one gap longer than this and than all others together stands alone
FIRST, FEW_FIRST = 0.5, 3  # of the time of pauses, and pauses: kernels that ran for the first time behind them
MOSTLY = 0.2  # of a finding's time: a name for less is not worth saying
ACTIONS = {
    "data loading": "",
    "communication": "start the communication earlier, or the work that does not need it first",
    "copy": "pinned memory and non_blocking copies on a stream of their own; keep data on the chip",
    "dependency": "look for waits between streams and for other programs on the chip",
    "unlinked": "the trace holds no launches here: record the host as well (CPU activities, runtime calls) to see why",
}
RECORDED = {"record_shapes": "shapes", "profile_memory": "memory", "with_stack": "stacks"}  # what costs the host time
FUSED_STEP = re.compile(r"^aten::(_fused_(adam|sgd|adagrad)|_foreach_)")


def _start(facts: Facts, places: Rows) -> tuple[Longs, Longs]:
    end = facts.line.start_ns[facts.gaps.ended[places]]
    return end - facts.gaps.length[places], end


def profiler_remark(facts: Facts) -> str:
    """A warning where what was recorded slows the host: without a profiler launches may not be late at all."""
    properties = facts.line.about.properties
    recorded_kinds = [word for key, word in RECORDED.items() if properties.get(key)]
    if not recorded_kinds:
        return ""
    return f"; first time a step without the profiler: recording {' and '.join(recorded_kinds)} slows the host"


def launches_late(facts: Facts) -> Iterator[Finding]:
    """Gain: the gaps before kernels launched too late, but 1.5 us each, what a replayed graph still leaves.

    Gaps of an optimizer that launches tensor by tensor are left to the rule about it (`unfused_optimizer`).
    """
    host_gaps = facts.gaps.of("host")
    host_gaps = host_gaps[~np.isin(facts.gaps.ended[host_gaps], facts.patterns.optimizer)]
    places = host_gaps[facts.gaps.length[host_gaps] < PAUSE_NS]
    lost = facts.gaps.total_ns(places)
    if not facts.worth(lost):
        return
    replayed_gain = facts.replay_gain(no_launch_gaps)
    gain = Gain(lost - REPLAY_GAP_NS * len(places), replayed_gain)
    longest = time_text(float(facts.gaps.length[places[0]]))
    under = scopes(facts.line, *_start(facts, places))
    where = next(((name, time) for name, time in under.items() if time >= MOSTLY * lost and time < 0.95 * lost), None)
    where_text = f"; {where[1] / lost:.0%} of it in {where[0]}" if where else ""
    action = facts.software.says("launch")
    advice = advise("cures", where[0], "") if where else ""
    yield facts.idle_finding(
        f"idle, host: {MEANING['host']} ({count(len(places), 'gap')}, longest {longest}){where_text}",
        places, gain, (f"{action}; {advice}" if advice else action) + profiler_remark(facts),
    )  # fmt: skip


def pauses(facts: Facts) -> Iterator[Finding]:
    """Gain: gaps of a millisecond and more in which the host launched nothing, by what it was in, all of them."""
    host_gaps = facts.gaps.of("host")
    places = host_gaps[facts.gaps.length[host_gaps] >= PAUSE_NS]
    lost = facts.gaps.total_ns(places)
    if not facts.worth(lost):
        return
    activity_text, name = _host_activity_text(facts, places)
    first = _first_uses(facts, places)
    activity_text += f"; {first:.0%} of it before the first use of a kernel" if first > FIRST else ""
    gain = Gain(lost, facts.replay_gain(no_launch_gaps))
    action = _cure(facts, name) if name else facts.software.says("stacks")
    if first > FIRST:
        action = "kernels are loaded at their first use: warm up before measuring; it is no part of a steady step"
    yield facts.idle_finding(
        f"idle, pauses: the host launched nothing ({count(len(places), 'pause')} of 1 ms and more, "
        f"longest {facts.gaps.length[places[0]] / 1e6:,.1f} ms){activity_text}",
        places, gain, action,
    )  # fmt: skip


def _cure(facts: Facts, name: str) -> str:
    """What helps against a pause in something; no fused optimizer to who has one."""
    move_advice = "take it out of the step, or do it while the chip works: on another thread, or earlier"
    if re.search("optimizer", name, re.IGNORECASE) and any(
        FUSED_STEP.search(kernel[:80]) for kernel in facts.line.names
    ):
        return f"its kernels are fused, its Python is not: compile its step, or replay it as a graph; or {move_advice}"
    return advise("cures", name, move_advice)


def _first_uses(facts: Facts, places: Rows) -> float:
    """The share of some gaps that ended with a kernel which had not run before; 0 where steps say they are steady."""
    line = facts.line
    work = np.flatnonzero(facts.counted)
    first = work[np.unique(line.name[work], return_index=True)[1]]
    new = np.isin(facts.gaps.ended[places], first)
    length = facts.gaps.length[places]
    later = line.step[facts.gaps.ended[places]] > line.step[work].min(initial=-1)
    return float(length[new & ~later].sum() / max(1, length.sum())) if new.sum() >= FEW_FIRST else 0.0


def _inside_steps(facts: Facts, places: Rows) -> Mask:
    """Which gaps do not lie between two steps: captures of single steps leave nothing to say of what is between."""
    line = facts.line
    work = np.flatnonzero(facts.counted)
    order = work[np.lexsort((line.start_ns[work], line.process[work]))]
    before = np.full(len(line), -1, np.int64)
    before[order[1:]] = order[:-1]
    end_rows = facts.gaps.ended[places]
    return np.asarray(line.step[end_rows] == line.step[np.maximum(before[end_rows], 0)])


def _in_graphs(facts: Facts, places: Rows) -> float:
    """The share of some gaps that lie between two spans of one replayed graph."""
    line = facts.line
    end_rows = facts.gaps.ended[places]
    replays = line.match_names(GRAPH, np.maximum(line.launch[end_rows], 0)) & (line.launch[end_rows] >= 0)
    inside = np.zeros(len(places), np.bool_)
    for at in np.flatnonzero(replays).tolist():
        row = int(end_rows[at])
        same_launch = facts.counted & (line.launch == line.launch[row])
        inside[at] = bool((same_launch & (line.end_ns <= line.start_ns[row])).any())
    return float(facts.gaps.length[places][inside].sum() / max(1, facts.gaps.length[places].sum()))


def _host_activity_text(facts: Facts, places: Rows) -> tuple[str, str]:
    """What the host did in most of these gaps, in words and as a name."""
    line = facts.line
    start, end = _start(facts, places)
    rank = line.rank[facts.gaps.ended[places]]
    activity = host_activity(line, start[rank == rank[0]], end[rank == rank[0]], int(rank[0]))
    total_ns = sum(activity.values()) or 1
    name, time = next(iter(activity.items()))
    if time < MOSTLY * total_ns:
        return "", ""
    return (f"; {time / total_ns:.0%} of it in {name}", name) if name else ("; the trace does not show in what", "")


def waits(facts: Facts) -> Iterator[Finding]:
    """Gain: the middle of two bounds; names the calls that wait for the device, and their ops.

    at least    a replay without the waits, the host as slow as the profiler made it
    at most     all gaps behind them, but 1.5 us each: a host that is ahead of the chip once it does not wait
    """
    places = facts.gaps.of("synchronisation")
    lost = facts.gaps.total_ns(places)
    if not facts.worth(lost):
        return
    where, wait_rows = _wait_places(facts, places)
    gain, least = _without_waits(facts, lost - REPLAY_GAP_NS * len(places))
    finding = facts.idle_finding(
        f"idle, synchronisation: {MEANING['synchronisation']} "
        f"({count(len(places), 'gap')}, longest {time_text(float(facts.gaps.length[places[0]]))}){where}",
        places, gain, facts.software.says("synchronisation"), wait_rows,
    )  # fmt: skip
    if least is not None and least * 2 < finding.predicted_gain:
        slow = f"; a host as slow as recorded gains {max(0.0, least):.1%} by it: launches are late as well"
        finding = replace(finding, action=finding.action + slow)
    yield finding


def _wait_places(facts: Facts, places: Rows) -> tuple[str, list[int]]:
    """The call that most of some gaps lie behind, in words, and the calls before the longest of them."""
    line, above = facts.line, parents(facts.line)
    rows = np.flatnonzero(line.of_kind(RUNTIME, SYNC) & line.match_names(WAITS))
    rows = rows[np.argsort(line.end_ns[rows], kind="stable")]
    if not len(rows):
        return "", []
    ends = line.end_ns[rows]
    start, end = _start(facts, places)
    last = np.searchsorted(ends, end, side="right") - 1  # the wait that ended last before the gap did, or in it
    near = (last >= 0) & (ends[np.maximum(last, 0)] >= start - PAUSE_NS)
    wait_ns: Tally[str] = Tally()
    for place, length in zip(last[near].tolist(), facts.gaps.length[places[near]].tolist(), strict=True):
        wait_ns[_caller(facts, int(rows[place]), above)] += length
    lost = facts.gaps.total_ns(places)
    by = max(wait_ns.items(), key=lambda entry: entry[1], default=("", 0))
    where = f"; {by[1] / lost:.0%} of it by {by[0]}" if by[1] >= MOSTLY * lost else ""
    return where, list(dict.fromkeys(rows[last[near][:3]].tolist()))


def _without_waits(facts: Facts, most_ns: int) -> tuple[Gain, float | None]:
    """The middle of what a replay without waits gives and what a host ahead of the chip would; the first as a share."""
    least, without_gaps = facts.replay_gain(no_waits), facts.replay_gain(no_launch_gaps)
    if least is None or without_gaps is None:
        return Gain(most_ns), None
    limit_ns = min(most_ns, without_gaps)
    return Gain(most_ns, max(limit_ns, least) if least >= limit_ns else (least + limit_ns) / 2), least / facts.span_ns


def _caller(facts: Facts, call: int, above: Codes) -> str:
    """A waiting call and the outermost op around it, which is what a program would recognise."""
    line, at = facts.line, call
    while above[at] >= 0 and "aten::" in line.names[int(line.name[above[at]])]:
        at = int(above[at])
    name = short(line.names[int(line.name[call])])
    return name if at == call else f"{name} of {short(line.names[int(line.name[at])])}"


def held_back(facts: Facts) -> Iterator[Finding]:
    """Gain: all gaps before work that was launched in time and waited: for a loader, communication, a copy, unknown."""
    for cause, action in ACTIONS.items():
        places = facts.gaps.of(cause)
        places = places[_inside_steps(facts, places)] if cause == "unlinked" else places
        lost = facts.gaps.total_ns(places)
        if not facts.worth(lost):
            continue
        longest = int(facts.gaps.length[places[0]])
        action = action or facts.software.says("loader")
        single_gap = cause == "dependency" and longest * 2 > lost and longest > ALONE * facts.span_ns
        if single_gap:
            action = (
                "one wait: record again to see whether it returns (code loaded late, a profiler starting, a neighbour)"
            )
        graph = _in_graphs(facts, places) if cause == "dependency" else 0.0
        if graph > MOSTLY and not single_gap:
            action = (
                "something inside replayed graphs was not recorded: kernels the profiler dropped, a node of the host"
            )
        activity_text = _host_activity_text(facts, places)[0] if cause == "dependency" else ""
        activity_text = activity_text.replace("; ", "; the host was meanwhile ", 1)
        activity_text = activity_text.replace(" of it in ", " of the time in ")
        finding = facts.idle_finding(
            f"idle, {cause}: {MEANING[cause]} ({count(len(places), 'gap')}, longest {time_text(longest)})"
            f"{f'; {graph:.0%} of it inside a replayed graph' if graph > MOSTLY else ''}"
            f"{'' if 'does not show' in activity_text else activity_text}",
            places, Gain(lost - REPLAY_GAP_NS * len(places)), action,
        )  # fmt: skip
        yield replace(finding, capture=single_gap)


CONTEXT_NS = 50_000_000  # a call that frees nothing takes this long only where it makes a context first
STARTS = (
    ("compilation", re.compile(r"compile(?!d)|inductor|dynamo|autotune", re.IGNORECASE), ""),
    ("instantiating graphs", re.compile("graphinstantiate", re.IGNORECASE), "capture once, replay often"),
    ("allocation", re.compile("malloc|hostalloc|memcreate|memaddress|free", re.IGNORECASE),
     "the allocator asks the driver for memory, or gives it back and asks again (retries; empty_cache): "
     "keep memory below the limit, expandable_segments:True, equal shapes in every step"),
    ("first use", re.compile("module|library|funcgetattr|lazy|kernelgetattr", re.IGNORECASE),
     "code is loaded at a kernel's first use: warm up before measuring, or CUDA_MODULE_LOADING=EAGER"),
)  # fmt: skip


def start_up(facts: Facts) -> Iterator[Finding]:
    """Gain: all gaps spent loading code, allocating memory or compiling, each of them apart."""
    places = facts.gaps.of("start-up")
    if not facts.worth(facts.gaps.total_ns(places)):
        return
    line = facts.line
    python = np.flatnonzero(line.of_kind(PYTHON))
    calls = np.union1d(
        np.flatnonzero(line.match_names(BEGINS) & ~line.of_kind(PYTHON)), python[line.match_names(COMPILES, python)]
    )
    start, end = _start(facts, places)
    kind = _kinds(facts, calls)
    times = (
        np.maximum(0, np.minimum(line.end_ns[calls], until) - np.maximum(line.start_ns[calls], begin))
        for begin, until in zip(start, end, strict=True)
    )
    inside = np.array([int(np.bincount(kind, weights=time, minlength=len(STARTS)).argmax()) for time in times])
    for code in dict.fromkeys(inside.tolist()):
        kind_places, kind_calls = places[inside == code], calls[kind == code]
        gaps = cover(start[inside == code], end[inside == code])
        kind_calls = kind_calls[covered_ns(gaps, line.start_ns[kind_calls], line.end_ns[kind_calls]) > 0]
        if facts.worth(facts.gaps.total_ns(kind_places)) and len(kind_calls):
            yield _start_up_finding(facts, int(code), kind_places, kind_calls)


def _kinds(facts: Facts, calls: Rows) -> Longs:
    """Which sort of start-up each call is; one that frees for very long makes a library's context."""
    line = facts.line
    names = [
        next((code for code, (_, pattern, _) in enumerate(STARTS) if pattern.search(name[:200])), len(STARTS) - 1)
        for name in line.names
    ]
    kind = np.array(names)[line.name[calls]]
    frees = line.match_names(re.compile("free", re.IGNORECASE), calls) & (line.durations_ns(calls) > CONTEXT_NS)
    return np.where(frees, len(STARTS) - 1, kind)


def _start_up_finding(facts: Facts, code: int, places: Rows, seen: Rows) -> Finding:
    line = facts.line
    what, _, action = STARTS[code]
    by: Tally[str] = Tally()
    for row in seen.tolist():
        by[short(line.names[int(line.name[row])])] += int(line.end_ns[row] - line.start_ns[row])
    name = by.most_common(1)[0][0]
    steps = np.unique(line.step[facts.gaps.ended[places]])
    every = {row.step for row in facts.parts.steps}
    once = len(every) > 1 and len(steps) * 3 <= len(every) + 1
    when = f"; only in {count(len(steps), 'step')} of {len(every)}" if once else ""
    steady = "; it is no part of a steady step: leave these steps out, and read the other findings" if once else ""
    return facts.idle_finding(
        f"idle, start-up: {what} inside the measured time ({count(len(places), 'gap')}; "
        f"{name}{_enclosing_frame(facts, seen)}){when}",
        places, Gain(facts.gaps.total_ns(places)), (action or facts.software.says("compile")) + steady,
        facts.longest(seen),
    )  # fmt: skip


def _enclosing_frame(facts: Facts, seen: Rows) -> str:
    line, above = facts.line, parents(facts.line)
    at = call = int(seen[int(line.durations_ns(seen).argmax())])
    while above[at] >= 0:
        at = int(above[at])
    return f" of {short(line.names[int(line.name[at])])}" if at != call else ""


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
    factor = took / max(1.0, usual * len(chosen))
    replayed_gain = facts.replay_gain(faster, work, factor) if why not in CAUSES else None
    numbers = ", ".join(map(str, chosen[:5]))
    finding = facts.finding(
        f"outlier steps: {numbers} of {len(steps)} took {factor:.1f} times the median"
        f"{f'; most more in {why}' if why else ''}{_prefills(facts, chosen)}",
        facts.longest(work), over * len(facts.parts.chips), Gain(over * len(facts.parts.chips), replayed_gain),
        _advice(facts),
    )  # fmt: skip
    first = min((step for step in steps if step is not None), default=0)
    yield replace(finding, capture=chosen == (first,))  # the first of a capture is often longer: ranks begin apart


def _spans(facts: Facts, chosen: Sequence[int]) -> tuple[float, float]:
    rows = [row for row in facts.parts.steps if row.step is not None]
    chips = max(1, len(facts.parts.chips))
    usual = float(np.median([row.times.span_ns for row in rows if row.step not in chosen]))
    return usual, sum(row.times.span_ns for row in rows if row.step in chosen) / chips


def _why(facts: Facts, chosen: Sequence[int], steps: int) -> tuple[str, float]:
    """The class of work, or cause of idle time, of which outlier steps have most more than the others, and how much."""
    line = facts.line
    usual_steps = max(1, steps - len(chosen))
    more: dict[str, float] = {}
    work = np.flatnonzero(facts.counted)
    for codes, names, time, step in (
        (line.class_[work], line.classes, line.durations_ns(work), line.step[work]),
        (facts.gaps.cause, CAUSES, facts.gaps.length, line.step[facts.gaps.ended]),
    ):
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
