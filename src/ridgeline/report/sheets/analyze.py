"""The sheet of `ridgeline analyze --json`: where the time of a trace went; times in microseconds, as traces count.

`span_id` and `span_ids` are rows of the timeline, which the page of `--html` shows.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

_Classed = TypedDict("_Classed", {"class": str})  # a key that is a word of Python


class TimesSheet(TypedDict):
    """How a stretch of time divides; a mean over chips where it covers several.

    span                    first start to last end = busy + idle
    exposed_communication   not under any compute kernel
    overlap_fraction        of communication under compute; null without communication
    """

    span_us: float
    busy_us: float
    idle_us: float
    compute_us: float
    communication_us: float
    copy_us: float
    exposed_communication_us: float
    overlap_fraction: float | None


class PartSheet(TypedDict):
    """The part of a chip's time that is meant; all of it where neither is named."""

    stream: NotRequired[str]
    step: NotRequired[int]


class RowTimesSheet(TimesSheet, PartSheet):
    """The times of a chip, of a step on it, or of a stream."""

    rank: int
    process: str
    spans: int


class ClassTimesSheet(_Classed):
    """Spans of one class.

    total, union   their durations added up; the time when any of them ran
    """

    group: str
    what: str
    spans: int
    total_us: float
    union_us: float
    share_of_busy: float


class OpTimesSheet(_Classed):
    """Spans of one name."""

    name: str
    spans: int
    total_us: float
    longest_us: float
    share_of_busy: float
    span_ids: list[int]


class IdleCauseSheet(TypedDict):
    """Why chips were idle; a mean over chips."""

    cause: str
    meaning: str
    idle_us: float
    share_of_span: float
    gaps: int
    longest_us: float
    span_ids: list[int]


class EvidenceSheet(TypedDict):
    """A span that proves a finding."""

    span_id: int
    name: str
    start_us: float
    duration_us: float


class FindingSheet(TypedDict):
    """Something that costs time, and what to do.

    predicted_gain   share of the step it could gain at most
    """

    what: str
    evidence: list[EvidenceSheet]
    share_of_step: float
    predicted_gain: float
    action: str


class OpRateSheet(_Classed):
    """Rates of an op with recorded operands, against the roofline.

    efficiency   over the peak that bounds it; null where no chip is known
    """

    op: str
    operands: str
    dtype: str
    calls: int
    total_us: float
    tflops_per_s: float
    gbytes_per_s: float
    flops: float
    bytes: float
    bound: str | None
    efficiency: float | None
    span_ids: list[int]


class LaunchesSheet(TypedDict):
    """How a chip's work was launched.

    call_us             median of a launch call
    delay_us            median from call to start; `delay_p99_us` the 99th percentile
    empty_queue_share   of spans that found nothing queued before them
    short               spans shorter than their launch
    """

    rank: int
    process: str
    spans: int
    calls: int
    unlinked: int
    call_us: float
    calls_total_us: float
    delay_us: float
    delay_p99_us: float
    queue_depth: float
    empty_queue_share: float
    graph_replays: int
    graph_spans: int
    short_spans: int
    short_us: float


class PathPartSheet(TypedDict):
    """A part of the critical path."""

    part: str
    where: str
    us: float
    share: float


class PathStreamSheet(TypedDict):
    """A stream of the critical path."""

    stream: str
    us: float
    share: float


class PathSpanSheet(TypedDict):
    """A span of the critical path, the longest first."""

    span_id: int
    name: str
    us: float


class PathSheet(TypedDict):
    """A chain of dependencies as long as the time it covers."""

    step: NotRequired[int]
    length_us: float
    spans_on_it: int
    parts: list[PathPartSheet]
    streams: list[PathStreamSheet]
    spans: list[PathSpanSheet]


class SlackSheet(_Classed):
    """How much later spans of a class could have ended."""

    spans: int
    critical: int
    median_us: float


class EdgesSheet(TypedDict):
    """Dependencies of one kind, recorded in the trace or inferred."""

    kind: str
    recorded: bool
    edges: int


class CriticalPathSheet(PathSheet):
    """The critical path of the whole and of each step."""

    steps: list[PathSheet]
    slack: list[SlackSheet]
    dependencies: list[EdgesSheet]


class ArrivalSheet(TypedDict):
    """A collective matched across ranks.

    skew_us   from the first to the last rank's arrival; `wait_us` by rank
    """

    group: str
    name: str
    sequence: int
    skew_us: float
    last_rank: int
    ranks: list[int]
    wait_us: list[float]
    transfer_us: float
    span_ids: list[int]


class CollectivesSheet(TypedDict):
    """Collectives and sends whose other ranks are in the trace, and those that are alone."""

    matched: int
    unmatched_parts: int
    sends_matched: int
    sends_unmatched: int
    by_skew: list[ArrivalSheet]


class StragglerSheet(TypedDict):
    """A rank that came last, and the waiting it caused; `clock_us` its clock's lead, taken off."""

    rank: int
    last: int
    caused_us: float
    waited_us: float
    clock_us: float


class StageWaitSheet(TypedDict):
    """How long a stage waited for another."""

    rank: int
    waiting_us: float
    transfer_us: float


class BubbleSheet(TypedDict):
    """The pipeline bubble of a stage."""

    process: str
    rank: int
    window_us: float
    bubble_us: float
    bubble_share: float
    warm_up_us: float
    cool_down_us: float
    waits: list[StageWaitSheet]
    other_us: float


class StepPeakSheet(TypedDict):
    """The peak of a step."""

    step: int
    peak_bytes: float


class MemoryPeakSheet(TypedDict):
    """The peak of a chip's memory, and what had grown until then."""

    process: str
    rank: int
    changes: int
    first_bytes: float
    peak_bytes: float
    peak_us: float
    reserved_bytes: float | None
    step: int | None
    phase: str
    op: str
    span_id: int | None
    growth_by_phase: dict[str, float]
    growth_by_op: dict[str, float]
    steps: list[StepPeakSheet]


class StepAnswerSheet(TypedDict):
    """A step as it was, and as it would be."""

    step: int
    measured_us: float
    us: float


class WhatIfSheet(TypedDict):
    """A question, and what a replay of the dependencies answers.

    gain   share of the span
    """

    what_if: str
    meaning: str
    spans: int
    span_us: float
    measured_span_us: float
    gain: float
    steps: list[StepAnswerSheet]


class DependenciesSheet(TypedDict):
    """What rests on dependencies between spans and ranks."""

    critical_path: CriticalPathSheet | None
    collectives: CollectivesSheet
    stragglers: list[StragglerSheet]
    pipeline: list[BubbleSheet]
    memory: list[MemoryPeakSheet]
    what_if: list[WhatIfSheet]


class KernelCountersSheet(TypedDict):
    """What Nsight Compute or msprof measured of a kernel; shares of the peak."""

    name: str
    launches: int
    duration_us: float
    compute_share: float | None
    memory_share: float | None
    dram_share: float | None
    occupancy: float | None
    gbytes_per_s: float | None
    tflops_per_s: float | None
    registers: int | None
    launch: str


class JoinedCountersSheet(KernelCountersSheet, _Classed):
    """The same beside the spans of that kernel."""

    spans: int
    total_us: float
    span_ids: list[int]


class MeasuredSheet(TypedDict):
    """Counters beside a trace; absent without them."""

    kernel_counters: NotRequired[list[JoinedCountersSheet]]
    counters_not_in_trace: NotRequired[list[str]]


class AnalysisSheet(TimesSheet, DependenciesSheet, MeasuredSheet):
    """A trace: where the time went, and what to do about it.

    policy           which spans are counted; `policy_statement` says it in words
    top_ops          names with the most time; `unknown_ops` those of no class
    kept, dropped    events of the files, by kind
    """

    kind: Literal["analysis"]
    sources: list[str]
    format: str
    chip_name: str | None
    chip: str | None
    ranks: list[int]
    policy: str
    policy_statement: str
    counted_spans: int
    classes: list[ClassTimesSheet]
    top_ops: list[OpTimesSheet]
    idle_causes: list[IdleCauseSheet]
    findings: list[FindingSheet]
    op_rates: list[OpRateSheet]
    launches: list[LaunchesSheet]
    unknown_ops: list[OpTimesSheet]
    chips: list[RowTimesSheet]
    steps: list[RowTimesSheet]
    streams: list[RowTimesSheet]
    kept: dict[str, int]
    dropped: dict[str, int]
    warnings: list[str]


class CountersSheet(TypedDict):
    """A file of counters without a timeline."""

    kind: Literal["kernel-counters"]
    sources: list[str]
    format: str
    launches: int
    kernel_counters: list[KernelCountersSheet]
    names: int
