"""What a finding is, the facts its rules look at, and the advice that fits what ran.

    share of step     time of the finding / span, mean over chips
    predicted gain    part of the span that would go: the timeline replayed with that one thing changed (`what_if`), and
                      not more than the formula each rule states, nor than the share; without a replay, the formula

A rule is a small function that yields findings; one that has nothing to say yields nothing. Advice is a table
(`advice.toml`): a topic, and for each software or vendor the words for it; the most particular entry wins, in the order
engine, framework, vendor, anybody.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Concatenate, ParamSpec

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.core.files import read_table
from ridgeline.core.units import DECIMAL, format_quantity
from ridgeline.hardware.chip import Chip
from ridgeline.trace.analysis.breakdown import Breakdown
from ridgeline.trace.analysis.collectives import CollectiveSize, RankReport, Talk
from ridgeline.trace.analysis.idle import Gaps
from ridgeline.trace.analysis.phases import Patterns
from ridgeline.trace.analysis.roofline import OpRate
from ridgeline.trace.analysis.what_if import GraphChange, span_ns
from ridgeline.trace.classes import Rules
from ridgeline.trace.graph.dependency_graph import DependencyGraph, replay
from ridgeline.trace.intervals import cover
from ridgeline.trace.timeline import ANNOTATION, HOST, PYTHON, RUNTIME, Rows, Timeline

LONG_US = 1000  # microseconds from which a time is in milliseconds
VLLM = re.compile(r"\bvllm::|_C_cache_ops::|gpu_model_runner|vllm/|execute_(new|context)_\d+", re.IGNORECASE)
SGLANG = re.compile(r"\bsgl_kernel\b|sglang|sgl_hip|TpModelWorker|ScheduleBatch", re.IGNORECASE)
ROCM = re.compile(r"^hip[A-Z]|\bCijk_|__amd_rocclr|ck_tile::|MIOpen|rccl", re.MULTILINE)
COMPILED = re.compile(r"Torch-Compiled Region|CompiledFxGraph|torchinductor|^triton_(poi|red|per|tem)_", re.MULTILINE)
JAX = re.compile(r"\bPjitFunction|\bjit_\w+|XlaModule|hlo_module|PjRt", re.IGNORECASE)
ASCEND = re.compile(r"ascend|msprof|cann", re.IGNORECASE)
NO_BF16 = re.compile(r"V100|\bT4\b|RTX 20\d\d|2080|TITAN V|P100|P40|GTX", re.IGNORECASE)
NVIDIA, AMD, HUAWEI = "nvidia", "amd", "huawei"


@cache
def advice() -> Mapping[str, Mapping[str, str]]:
    """What to do, by topic and by software or vendor, or by a pattern."""
    return read_table(Path(__file__).parent / "advice.toml").data


def advise(topic: str, name: str, otherwise: str) -> str:
    """What helps against something, by the first pattern of a topic that its name has.

    >>> advise("cures", "Optimizer.zero_grad#SGD.zero_grad", "less of it")
    'zero_grad(set_to_none=True)'
    """
    patterns = advice()[topic].items()
    return next((text for pattern, text in patterns if re.search(pattern, name, re.IGNORECASE)), otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What ran: each field empty where nothing says."""

    vendor: str = ""
    framework: str = ""
    engine: str = ""
    compiled: bool = False
    """Whether torch.compile made some of the kernels."""
    bf16: bool = True
    """Whether the chip's matrix unit takes bf16; TF32 came with it."""

    def says(self, topic: str) -> str:
        """The advice on a topic that fits this software best."""
        words = advice()[topic]
        keys = (self.engine, self.framework + "+compiled" * self.compiled, self.framework, self.vendor)
        return next((words[key] for key in keys if key and key in words), words[""])


def software_of(line: Timeline, chip: Chip | None) -> Software:
    """What a timeline was recorded of, by its format, its chips and the names in it."""
    names = "\n".join(name[:200] for name in line.names)
    about = line.about
    recorder = " ".join((about.format, *about.chips))
    vendor = (chip.vendor.lower() if chip else "") or _vendor(recorder, names)
    framework = "pytorch"
    if "xla" in about.format.lower() or "xplane" in about.format.lower() or JAX.search(names):
        framework = "jax"
    elif "mindspore" in about.format.lower() or re.search(r"^Default/\w", names, re.MULTILINE):
        framework = "mindspore"
    engine = "vllm" if VLLM.search(names) else "sglang" if SGLANG.search(names) else ""
    return Software(
        vendor=vendor, framework=framework, engine=engine, compiled=bool(COMPILED.search(names)),
        bf16=not NO_BF16.search(recorder) and not re.search(r"^(volta|turing)_", names, re.MULTILINE),
    )  # fmt: skip


def _vendor(told: str, names: str) -> str:
    if re.search(r"\bAMD|Instinct|MI\d{3}|Radeon", told) or ROCM.search(names):
        return AMD
    if ASCEND.search(told):
        return HUAWEI
    return NVIDIA if re.search(r"NVIDIA|Tesla|GeForce|RTX|\bcuda", told + names, re.IGNORECASE) else ""


LARGEST = 1_000_000  # points of a graph that is replayed for every finding


P = ParamSpec("P")
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


def time_text(nanoseconds: float) -> str:
    """A time in the words of a finding: microseconds up to a millisecond, then milliseconds and seconds.

    >>> time_text(45_200), time_text(1_405_408_000)
    ('45 us', '1.41 s')
    """
    microseconds = nanoseconds / 1000
    return f"{microseconds:,.0f} us" if microseconds < LONG_US else format_quantity(microseconds * DECIMAL["u"], "s", 3)


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
    graph: DependencyGraph | None = None
    """What is replayed for gains; None where the timeline is too large to be replayed for each finding."""
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

    def replay_gain(
        self, change: Callable[Concatenate[GraphChange, P], GraphChange], *given: P.args, **named: P.kwargs
    ) -> int | None:
        """Nanoseconds of all chips together that a change of the timeline saves; None without a replay."""
        if self.graph is None:
            return None
        changed = change(GraphChange.none(self.graph), *given, **named)
        after = replay(changed.graph, changed.lag, changed.delay)
        return (span_ns(self.graph, self.graph.at) - span_ns(self.graph, after)) * len(self.parts.chips)

    def group(self, id: str) -> Mask:
        """Which rows count and are of a group: compute, communication, copy."""
        return np.asarray(self.counted & self.rules.in_group(self.line, id))

    def of_class(self, *ids: str) -> Mask:
        """Which rows count and are of these classes."""
        return np.asarray(self.counted & self.line.of_class(*ids))

    def union_ns(self, rows: Rows) -> int:
        """Time in which at least one of these spans is open, chip by chip, all chips together."""
        process = self.line.process[rows]
        parts = (rows[process == number] for number in np.unique(process).tolist())
        return sum(cover(self.line.start_ns[part], self.line.end_ns[part]).length for part in parts)

    @property
    def ranks_seen(self) -> int:
        """Ranks that have a chip; processes of one rank are not ranks."""
        return len({row.rank for row in self.parts.chips}) if self.line.is_work.any() else 1

    def longest(self, rows: Rows) -> tuple[int, ...]:
        """The longest of some rows."""
        return tuple(self.line.longest(rows, MOST).tolist())

    def gap(self, places: Rows) -> GapEvidence | None:
        """The longest of some gaps."""
        if not len(places):
            return None
        line, place = self.line, int(places[int(self.gaps.length[places].argmax())])
        end_row = int(self.gaps.ended[place])
        end = int(line.start_ns[end_row])
        start = end - int(self.gaps.length[place])
        host = np.flatnonzero(line.of_kind(HOST, RUNTIME, PYTHON, ANNOTATION) & (line.rank == line.rank[end_row]))
        inside = np.minimum(line.end_ns[host], end) - np.maximum(line.start_ns[host], start)
        over = line.longest(host[inside * 2 >= end - start])
        return GapEvidence(
            process=line.processes[int(line.process[end_row])], start_ns=start, end_ns=end,
            host=self.evidence(over[-STACK:].tolist()),
        )  # fmt: skip

    def evidence(self, rows: Iterable[int]) -> tuple[SpanEvidence, ...]:
        """Rows of the timeline as spans with their names and times."""
        line, spans = self.line, []
        for row in rows:
            name, start, end = line.names[int(line.name[row])], int(line.start_ns[row]), int(line.end_ns[row])
            spans.append(SpanEvidence(row=row, name=name, start_ns=start, duration_ns=end - start))
        return tuple(spans)

    def idle_finding(self, what: str, places: Rows, gain: Gain, action: str, rows: Iterable[int] = ()) -> Finding:
        """A finding about some gaps: its time is theirs, its spans are ``rows`` and those that ended them."""
        end_rows = self.gaps.ended[places].tolist()
        finding = self.finding(what, [*rows, *end_rows], self.gaps.total_ns(places), gain, action)
        return replace(finding, gap=self.gap(places))

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
