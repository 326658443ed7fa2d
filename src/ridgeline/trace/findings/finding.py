"""What a finding is, and the facts its rules look at.

    share of step     time of the finding / span, mean over chips
    predicted gain    part of the span that would go: the timeline replayed with that one thing changed (`what_if`), and
                      not more than the formula each rule states, nor than the share; without a replay, the formula

A rule is a small function that yields findings; one that has nothing to say yields nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.arrays import Mask
from ridgeline.hardware.chip import Chip
from ridgeline.trace.analysis.breakdown import Breakdown
from ridgeline.trace.analysis.collectives import CollectiveSize, Talk
from ridgeline.trace.analysis.idle import Gaps
from ridgeline.trace.analysis.patterns import Patterns
from ridgeline.trace.analysis.roofline import OpRate
from ridgeline.trace.analysis.stragglers import RankReport
from ridgeline.trace.arrays import Codes
from ridgeline.trace.call_stack import parents
from ridgeline.trace.classes import Rules
from ridgeline.trace.findings.gains import Gains
from ridgeline.trace.findings.software import Software
from ridgeline.trace.intervals import cover
from ridgeline.trace.timeline import ANNOTATION, HOST, PYTHON, RUNTIME, Timeline

LEAST = 0.01  # of the span: less is not worth saying
MOST = 5  # spans named as evidence
STACK = 12  # host spans named over a gap
HIDDEN = 0.1  # of what a formula promises: a replay that gives less says that something else holds the step back
BEHIND = "; alone this gains little: the step waits for something else, or cannot do without it"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvidence:
    """One span that proves a finding."""

    row: int
    name: str
    start_ns: int
    duration_ns: int

    JSON = "span_id=row name start_us duration_us"


@dataclass(frozen=True, slots=True, kw_only=True)
class GapEvidence:
    """The longest gap of an idle finding: when the chip had nothing to do, and the host's stack meanwhile."""

    process: str
    start_ns: int
    end_ns: int
    host: tuple[SpanEvidence, ...]
    """Spans of the host that cover most of it, the outermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that limits the time."""

    what: str
    evidence: tuple[SpanEvidence, ...]
    share_of_step: float
    predicted_gain: float
    action: str
    rule: str = ""
    """Name of the rule that found it."""
    gap: GapEvidence | None = None
    """Of a finding about an idle chip."""
    capture: bool = False
    """Whether it is of how the trace was taken, not of the step: told behind findings that gain something."""

    JSON = "rule what evidence share_of_step predicted_gain action gap"


@dataclass(frozen=True, slots=True)
class Gain:
    """What a rule's formula promises, and what a replay gave, of all chips together; None without a replay."""

    formula_ns: float
    replayed_ns: float | None = None


def count(many: int, what: str) -> str:
    """A number of things.

    >>> count(1, "gap"), count(2345, "gap")
    ('1 gap', '2,345 gaps')
    """
    return f"{many:,} {what}{'' if many == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facts:
    """What the rules look at."""

    line: Timeline
    counted: Mask
    rules: Rules
    parts: Breakdown
    gaps: Gaps
    rates: tuple[OpRate, ...]
    ranks: RankReport
    chip: Chip | None
    gains: Gains | None = None
    """None where the timeline is too large to be replayed for each finding."""
    patterns: Patterns = field(default_factory=Patterns)
    software: Software = Software()
    talk: Talk | None = None
    sizes: tuple[CollectiveSize, ...] = ()
    outliers: tuple[int, ...] = ()
    """Steps that took far longer than the others; rates leave them out."""
    guessed: str = ""
    """The model whose sizes price kernels, where the trace gave it away and nobody named it."""

    @property
    def span_ns(self) -> int:
        """Spans of all chips together, so that sums over chips divide by it."""
        return max(1, sum(row.times.span_ns for row in self.parts.chips))

    @property
    def steps(self) -> int:
        """Steps of all chips together; 1 where none is marked."""
        return max(1, len(self.parts.steps))

    def worth(self, lost_ns: float) -> bool:
        """Whether so much time, of all chips together, is worth a finding, and a replay."""
        return lost_ns >= LEAST * self.span_ns

    def group(self, id: str) -> Mask:
        """Which rows count and are of a group: compute, communication, copy."""
        in_group = np.array([self.rules.group_of(class_) == id for class_ in self.line.classes], np.bool_)
        return np.asarray(self.counted & in_group[self.line.class_])

    def of_class(self, *ids: str) -> Mask:
        """Which rows count and are of these classes."""
        in_classes = np.array([class_ in ids for class_ in self.line.classes], np.bool_)
        return np.asarray(self.counted & in_classes[self.line.class_])

    def union_ns(self, rows: NDArray[np.intp]) -> int:
        """Time in which at least one of these spans is open, chip by chip, all chips together."""
        process = self.line.process[rows]
        parts = (rows[process == number] for number in np.unique(process).tolist())
        return sum(cover(self.line.start_ns[part], self.line.end_ns[part]).length for part in parts)

    @property
    def above(self) -> Codes:
        """The innermost host span around each."""
        return parents(self.line)

    @property
    def ranks_seen(self) -> int:
        """Ranks that have a chip; processes of one rank are not ranks."""
        return len({row.rank for row in self.parts.chips}) if self.line.is_work.any() else 1

    def longest(self, rows: NDArray[np.intp]) -> tuple[int, ...]:
        """The longest of some rows."""
        order = np.argsort(-self.line.durations_ns(rows), kind="stable")[:MOST]
        return tuple(rows[order].tolist())

    def gap(self, places: NDArray[np.intp]) -> GapEvidence | None:
        """The longest of some gaps."""
        if not len(places):
            return None
        line, place = self.line, int(places[int(self.gaps.length[places].argmax())])
        end_row = int(self.gaps.ended[place])
        end = int(line.start_ns[end_row])
        start = end - int(self.gaps.length[place])
        host = np.flatnonzero(line.of_kind(HOST, RUNTIME, PYTHON, ANNOTATION) & (line.rank == line.rank[end_row]))
        inside = np.minimum(line.end_ns[host], end) - np.maximum(line.start_ns[host], start)
        over = host[inside * 2 >= end - start]
        over = over[np.argsort(-line.durations_ns(over), kind="stable")]
        return GapEvidence(
            process=line.processes[int(line.process[end_row])], start_ns=start, end_ns=end,
            host=self.evidence(over[-STACK:].tolist()),
        )  # fmt: skip

    def evidence(self, rows: Iterable[int]) -> tuple[SpanEvidence, ...]:
        """Rows of the timeline as spans with their names and times."""
        line = self.line
        return tuple(
            SpanEvidence(
                row=row,
                name=line.names[int(line.name[row])],
                start_ns=int(line.start_ns[row]),
                duration_ns=int(line.end_ns[row] - line.start_ns[row]),
            )
            for row in rows
        )

    def finding(self, what: str, rows: Iterable[int], lost_ns: float, gain: Gain, action: str) -> Finding:
        """A finding with its spans looked up and its times made shares."""
        spans = self.evidence(list(rows)[:MOST])
        promised_ns = min(gain.formula_ns, lost_ns)
        real = promised_ns if gain.replayed_ns is None else max(0.0, min(gain.replayed_ns, promised_ns))
        return Finding(
            what=what,
            evidence=spans,
            share_of_step=min(1.0, lost_ns / self.span_ns),
            predicted_gain=min(1.0, max(0.0, real) / self.span_ns),
            action=action + (BEHIND if real < HIDDEN * promised_ns else ""),
        )


Rule = Callable[[Facts], Iterator[Finding]]
