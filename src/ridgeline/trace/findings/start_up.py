"""Rule about what happens once or should not happen: loading code, first use of libraries, allocation, compilation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.analysis.host_activity import short
from ridgeline.trace.analysis.idle import BEGINS, COMPILES
from ridgeline.trace.call_stack import parents
from ridgeline.trace.findings.finding import Facts, Finding, Gain, count
from ridgeline.trace.intervals import cover, covered_ns
from ridgeline.trace.timeline import PYTHON

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
    if not facts.worth(int(facts.gaps.length[places].sum())):
        return
    line = facts.line
    python = np.flatnonzero(line.of_kind(PYTHON))
    calls = np.union1d(np.flatnonzero(line.named(BEGINS) & ~line.of_kind(PYTHON)), python[line.named(COMPILES, python)])
    end = line.start_ns[facts.gaps.ended[places]]
    start = end - facts.gaps.length[places]
    kind = _kinds(facts, calls)
    inside = np.array(
        [_main_kind(line.start_ns, line.end_ns, calls, kind, span) for span in zip(start, end, strict=True)]
    )
    for code in dict.fromkeys(inside.tolist()):
        kind_places = places[inside == code]
        lost = int(facts.gaps.length[kind_places].sum())
        kind_calls = calls[kind == code]
        kind_calls = kind_calls[
            covered_ns(
                cover(start[inside == code], end[inside == code]), line.start_ns[kind_calls], line.end_ns[kind_calls]
            )
            > 0
        ]
        if facts.worth(lost) and len(kind_calls):
            yield _start_up_finding(facts, int(code), kind_places, kind_calls, lost)


def _kinds(facts: Facts, calls: NDArray[np.intp]) -> NDArray[np.int64]:
    """Which sort of start-up each call is; one that frees for very long makes a library's context."""
    line = facts.line
    names = [
        next((code for code, (_, pattern, _) in enumerate(STARTS) if pattern.search(name[:200])), len(STARTS) - 1)
        for name in line.names
    ]
    kind = np.array(names)[line.name[calls]]
    frees = line.named(re.compile("free", re.IGNORECASE), calls) & (line.durations_ns(calls) > CONTEXT_NS)
    return np.where(frees, len(STARTS) - 1, kind)


def _main_kind(
    start: NDArray[np.int64], end: NDArray[np.int64], calls: NDArray[np.intp], kind: NDArray[np.int64],
    span: tuple[int, int],
) -> int:  # fmt: skip
    """The sort that fills most of a gap."""
    time = np.maximum(0, np.minimum(end[calls], span[1]) - np.maximum(start[calls], span[0]))
    return int(np.bincount(kind, weights=time, minlength=len(STARTS)).argmax())


def _start_up_finding(facts: Facts, code: int, places: NDArray[np.intp], seen: NDArray[np.intp], lost: int) -> Finding:
    line = facts.line
    what, _, action = STARTS[code]
    by: dict[str, int] = {}
    for row in seen.tolist():
        text = short(line.names[int(line.name[row])])
        by[text] = by.get(text, 0) + int(line.end_ns[row] - line.start_ns[row])
    name = max(by, key=lambda one: by[one])
    steps = np.unique(line.step[facts.gaps.ended[places]])
    every = {row.step for row in facts.parts.steps}
    once = len(every) > 1 and len(steps) * 3 <= len(every) + 1
    when = f"; only in {count(len(steps), 'step')} of {len(every)}" if once else ""
    steady_remark = (
        "; it is no part of a steady step: leave these steps out, and read the other findings" if once else ""
    )
    finding = facts.finding(
        f"idle, start-up: {what} inside the measured time ({count(len(places), 'gap')}; "
        f"{name}{_enclosing_frame(facts, seen)}){when}",
        [*facts.longest(seen), *facts.gaps.ended[places].tolist()], lost, Gain(lost),
        (action or facts.software.says("compile")) + steady_remark,
    )  # fmt: skip
    return replace(finding, gap=facts.gap(places))


def _enclosing_frame(facts: Facts, seen: NDArray[np.intp]) -> str:
    """The outermost op around the longest of these calls."""
    line, above = facts.line, parents(facts.line)
    at = call = int(seen[int(line.durations_ns(seen).argmax())])
    while above[at] >= 0:
        at = int(above[at])
    return f" of {short(line.names[int(line.name[at])])}" if at != call else ""
