"""Turn trace files, or a Timeline, into an Analysis: where the time went, under a stated policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ridgeline.trace.breakdown import ALL, Breakdown, breakdown
from ridgeline.trace.classes import Rules, classify, read_rules
from ridgeline.trace.read import read_timeline
from ridgeline.trace.source import Progress
from ridgeline.trace.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Analysis:
    """What a timeline says about itself."""

    timeline: Timeline
    rules: Rules
    breakdown: Breakdown


def analyze(
    *traces: Path | str | Timeline,
    policy: str = ALL,
    classes: Path | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Analyse traces: files, folders of ranks, or one timeline that is already there.

    >>> from ridgeline.trace import Span
    >>> a = Span(process="chip 0", stream="7", name="gemm", kind="kernel", start_s=0, duration_s=2e-6)
    >>> b = Span(process="chip 0", stream="9", name="ncclAllReduce", kind="kernel", start_s=1e-6, duration_s=3e-6)
    >>> found = analyze(Timeline.of([a, b])).breakdown.total
    >>> found.communication_ns, found.exposed_communication_ns
    (3000, 2000)
    """
    rules = read_rules(classes)
    line = next((trace for trace in traces if isinstance(trace, Timeline)), None)
    if line is not None:
        line = classify(line, rules)
    else:
        line = read_timeline(
            *(trace for trace in traces if not isinstance(trace, Timeline)), rules=rules, progress=progress
        )
    return Analysis(timeline=line, rules=rules, breakdown=breakdown(line, rules, policy))
