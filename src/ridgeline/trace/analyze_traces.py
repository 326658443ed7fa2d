"""Turn trace files, or a Timeline, into an Analysis: where the time went, why, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.core.encode import NANOSECONDS_PER_US
from ridgeline.hardware.chip import Chip
from ridgeline.trace.analysis.breakdown import Breakdown, breakdown
from ridgeline.trace.analysis.collectives import CollectiveSize, RankReport, collective_sizes, rank_report, talk_of
from ridgeline.trace.analysis.critical_path import CriticalPaths, critical_path
from ridgeline.trace.analysis.exclusive_time import coarse
from ridgeline.trace.analysis.idle import CAUSES, Gaps, IdleCause, Launches, gaps_of, idle_causes, launches
from ridgeline.trace.analysis.inference import (
    Inference,
    PricedSpan,
    ServedModel,
    captures,
    inference,
    priced_spans,
    replayed_spans,
)
from ridgeline.trace.analysis.memory_peaks import MemoryPeak, memory_peaks
from ridgeline.trace.analysis.phases import patterns_of
from ridgeline.trace.analysis.roofline import (
    ClassRate,
    JoinedCounters,
    OpRate,
    bytes_bound_ns,
    chip_of,
    join_counters,
    op_rates,
)
from ridgeline.trace.analysis.what_if import WhatIfAnswer, answer_questions
from ridgeline.trace.classes import ALL, Rules, classify, counted_rows
from ridgeline.trace.findings.finding import LARGEST, Facts, Finding, software_of
from ridgeline.trace.findings.idle import outlier_numbers
from ridgeline.trace.findings.rules import findings
from ridgeline.trace.graph.dependency_graph import DependencyGraph, graph_of
from ridgeline.trace.graph.match_collectives import communication_rows, match_collectives
from ridgeline.trace.read.folder import files_of, tables_of
from ridgeline.trace.read.kernel_counters import KernelCounters, read_counters
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.read.source import Progress
from ridgeline.trace.timeline import Timeline

Sizes = ServedModel | Callable[[Timeline, Inference | None], ServedModel | None] | None
"""The sizes of a served model, or who tells them of a timeline."""
UNREPLAYED = f"more than {LARGEST:,} starts and ends: predicted gains are upper bounds by their formulas, not replays"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleShare:
    """One cause of idle time as a chip sees it on average."""

    idle: IdleCause
    idle_us: float
    share_of_span: float

    JSON = """
        cause=idle.cause meaning=idle.meaning idle_us share_of_span gaps=idle.gaps longest_us=idle.longest_ns
        span_ids=idle.rows
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveReport:
    """Collectives of a trace: by type and size, and those whose ranks arrive furthest apart.

    matched           collectives whose parts on all ranks were put together
    unmatched_parts   parts that belong to none of them
    """

    sizes: tuple[CollectiveSize, ...]
    ranks: RankReport

    JSON = """
        by_size=sizes[:100] matched=ranks.collectives unmatched_parts=ranks.unmatched sends_matched=ranks.pairs
        sends_unmatched=ranks.alone by_skew=ranks.arrivals
    """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Analysis:
    """What a timeline says about itself."""

    timeline: Timeline
    rules: Rules
    breakdown: Breakdown
    idle: tuple[IdleCause, ...]
    launches: tuple[Launches, ...]
    rates: tuple[OpRate, ...]
    chip: Chip | None
    findings: tuple[Finding, ...]
    critical: CriticalPaths | None
    """None where nothing counts."""
    ranks: RankReport
    collectives: tuple[CollectiveSize, ...]
    """By type and size, most time first."""
    memory: tuple[MemoryPeak, ...]
    what_if: tuple[WhatIfAnswer, ...]
    measured: JoinedCounters = JoinedCounters()
    """Kernels with counters, where there are any."""
    inference: Inference | None = None
    """Steps of an inference engine, None where no annotation names one."""
    model: ServedModel | None = None
    """The model whose sizes tell what kernels without recorded operands compute, None where none does."""
    left_out: tuple[str, ...] = ()
    """What was not worked out because the timeline is too large, and what stands in its place."""
    gaps: Gaps | None = field(default=None, repr=False)
    graph: DependencyGraph | None = field(default=None, repr=False)
    """What idle causes and replays rest on; a page draws them."""

    JSON = """
        kind='analysis' sources=timeline.about.sources format=timeline.about.format chip_name chip=chip.id
        ranks=rank_numbers *breakdown.total policy=breakdown.policy.name policy_statement=breakdown.policy.statement
        counted_spans=breakdown.policy.counted classes=breakdown.classes top_ops=breakdown.names[:20] idle_causes
        findings critical_path=critical collectives=collective_report stragglers=ranks.stragglers
        pipeline=ranks.bubbles memory what_if inference model=model.name op_rates=rates[:200] *joined_counters
        launches unknown_ops=breakdown.unknown[:20] chips=breakdown.chips steps=breakdown.steps
        streams=breakdown.streams kept=timeline.about.kept dropped=timeline.about.dropped warnings
    """

    @property
    def chip_name(self) -> str | None:
        """The chip as the trace names it."""
        return self.timeline.about.chips[0] if self.timeline.about.chips else None

    @property
    def ran_on(self) -> Chip | None:
        """The chip of the catalog that the trace says it ran on, whichever it was analysed for."""
        return chip_of(self.timeline.about)

    @property
    def counted_mask(self) -> Mask:
        """Rows of the timeline that the policy counts."""
        return counted_rows(self.timeline, self.breakdown.policy.name)

    @property
    def gap_causes(self) -> tuple[str, ...]:
        """What the codes of `gaps.cause` mean."""
        return CAUSES

    @property
    def class_rates(self) -> dict[str, ClassRate]:
        """By the class a prediction has: time the roofline allows over time taken, of all ops with recorded shapes."""
        line = self.timeline
        rates: dict[str, list[OpRate]] = {}
        for rate in self.rates:
            if rate.roof_ns is not None and rate.bound is not None:
                rates.setdefault(coarse(line, line.classes.index(rate.class_)), []).append(rate)
        return {class_: ClassRate.of(parts) for class_, parts in rates.items()}

    @property
    def rank_numbers(self) -> list[int]:
        """Ranks whose chips have work."""
        return sorted({row.rank for row in self.breakdown.chips})

    @property
    def idle_causes(self) -> tuple[IdleShare, ...]:
        """Idle time by cause, the mean over chips."""
        chips = self.breakdown.chips
        span_ns = sum(row.times.span_ns for row in chips) or 1
        return tuple(
            IdleShare(
                idle=cause,
                idle_us=cause.idle_ns / NANOSECONDS_PER_US / len(chips),
                share_of_span=cause.idle_ns / span_ns,
            )
            for cause in self.idle
        )

    @property
    def collective_report(self) -> CollectiveReport:
        """Collectives by size and by skew."""
        return CollectiveReport(sizes=self.collectives, ranks=self.ranks)

    @property
    def joined_counters(self) -> JoinedCounters | None:
        """Kernels with counters; None where no file had any."""
        return self.measured if self.measured.kernels or self.measured.absent else None

    @property
    def warnings(self) -> list[str]:
        """What is doubtful about the trace, and what was not worked out."""
        return [*self.timeline.about.warnings, *self.left_out]


def analyze(
    *traces: Path | str | Timeline,
    policy: str = ALL,
    chip: str | Chip | None = None,
    classes: Path | None = None,
    counters: Path | str | None = None,
    unit: str | None = None,
    what_if: Sequence[str] = (),
    model: Sizes = None,
    capture: Path | str | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Analyse traces: files, folders of ranks, or one timeline that is already there.

    ``chip`` names the chip of the roofline where the trace does not say it; ``classes`` is a file of further classes.
    ``counters`` is a file of counters for each kernel, see `read.kernel_counters`; ``unit`` is that of the times, see
    `read_timeline`.
    ``capture`` is a trace of the capture of graphs that the traces replay, ``model`` are the sizes of the model that an
    engine served, or who tells them of a timeline; both tell what the kernels of a replayed graph compute.
    ``what_if`` are questions that a replay answers: "matmul x2", "overlap nccl", "no launch gaps", "fuse elementwise".

    >>> from ridgeline.trace.timeline import Span
    >>> a = Span(process="chip 0", stream="7", name="gemm", kind="kernel", start_ns=0, duration_ns=2000)
    >>> b = Span(process="chip 0", stream="9", name="ncclAllReduce", kind="kernel", start_ns=1000, duration_ns=3000)
    >>> found = analyze(Timeline.of([a, b])).breakdown.total
    >>> found.communication_ns, found.exposed_communication_ns
    (3000, 2000)
    """
    rules = Rules.read(classes)
    lines = [trace for trace in traces if isinstance(trace, Timeline)]
    files = [trace for trace in traces if not isinstance(trace, Timeline)]
    line = classify(lines[0], rules) if lines else read_timeline(*files, rules=rules, unit=unit, progress=progress)
    tables = [Path(counters)] if counters is not None else tables_of([Path(file) for file in files])
    kernels = [kernel for table in tables for kernel in read_counters(table)]
    return _analyze_timeline(line, rules, policy, chip_of(line.about, chip), kernels, what_if, (model, capture))


def _analyze_timeline(
    line: Timeline,
    rules: Rules,
    policy: str,
    found: Chip | None,
    counters: Sequence[KernelCounters],
    questions: Sequence[str],
    replays: tuple[Sizes, Path | str | None],
) -> Analysis:
    parts = breakdown(line, rules, policy)
    counted_mask = counted_rows(line, policy)
    gaps = gaps_of(line, rules, counted_mask)
    engine = inference(line, counted_mask)
    sizes, priced_spans_ = _behind_graphs(line, counted_mask, engine, *replays)
    rates = op_rates(line, counted_mask, found, priced_spans_)
    graph = graph_of(line, rules, policy)
    has_replay = len(graph.at) <= LARGEST
    collectives = match_collectives(line, rules, counted_mask) if graph.left_out else graph.matched
    ranks = rank_report(line, rules, counted_mask, collectives)
    outliers = outlier_numbers(parts.steps)
    talk = talk_of(line, communication_rows(line, rules, counted_mask), collectives)
    exchange_sizes = collective_sizes(line, talk, collectives, found)
    facts = Facts(
        line=line, counted=counted_mask, rules=rules, parts=parts, gaps=gaps, ranks=ranks, chip=found,
        graph=graph if has_replay else None,
        rates=op_rates(line, counted_mask & ~np.isin(line.step, outliers), found, priced_spans_) if outliers else rates,
        patterns=patterns_of(line, counted_mask, max(1, len(parts.steps))),
        software=software_of(line, found), talk=talk, sizes=exchange_sizes, outliers=outliers,
        guessed=sizes.name if sizes is not None and callable(replays[0]) else "",
    )  # fmt: skip
    return Analysis(
        timeline=line,
        rules=rules,
        breakdown=parts,
        idle=idle_causes(gaps),
        launches=launches(line, counted_mask),
        rates=rates,
        chip=found,
        findings=findings(facts),
        measured=join_counters(line, counted_mask, counters),
        critical=critical_path(graph),
        ranks=ranks,
        collectives=exchange_sizes,
        memory=memory_peaks(line),
        what_if=answer_questions(graph, rules, questions, lambda rows: bytes_bound_ns(line, rows, found)),
        inference=engine,
        model=sizes,
        left_out=tuple(text for text in (graph.left_out, "" if has_replay else UNREPLAYED) if text),
        gaps=gaps,
        graph=graph,
    )


def _behind_graphs(
    line: Timeline, counted: Mask, engine: Inference | None, model: Sizes, capture: Path | str | None
) -> tuple[ServedModel | None, tuple[PricedSpan, ...]]:
    """The model, and what spans without an op of their own compute, by the capture of their graph, else by it."""
    paths = [file.path for file in files_of([Path(capture)])] if capture is not None else []
    known_captures = [capture for path in paths for capture in captures(read_timeline(path))] or captures(line)
    replay = replayed_spans(line, counted, known_captures, engine)
    sizes = model(line, engine) if callable(model) else model
    priced_rows = {span.row for span in replay}
    more = priced_spans(line, counted, engine, sizes) if sizes is not None else ()
    return sizes if more else None, (*replay, *(span for span in more if span.row not in priced_rows))
