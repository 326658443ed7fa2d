"""The sheet of `ridgeline analyze --json`: where the time of a trace went; times in microseconds, as traces count.

`span_id` and `span_ids` are rows of the timeline, which the page of `--html` shows.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from ridgeline.report.sheets.dependencies import DependenciesSheet
from ridgeline.report.sheets.inference import InferenceSheet

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


class GapSheet(TypedDict):
    """The longest gap of a finding about an idle chip, and the host spans that cover most of it, outermost first."""

    process: str
    start_us: float
    end_us: float
    host: list[EvidenceSheet]


class FindingSheet(TypedDict):
    """Something that costs time, and what to do.

    rule             name of the rule that found it
    predicted_gain   share of the step it could gain at most
    gap              null where no chip idled for it
    """

    rule: str
    what: str
    evidence: list[EvidenceSheet]
    share_of_step: float
    predicted_gain: float
    action: str
    gap: GapSheet | None


class OpRateSheet(_Classed):
    """Rates of an op with recorded operands, against the roofline.

    efficiency   over the peak that bounds it; null where no chip is known
    by_model     operands come from a model's sizes or the capture of a graph; `span_ids` are then kernels
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
    by_model: bool


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
    inference        steps of an inference engine; null where no annotation names one
    model            whose sizes tell what kernels without recorded operands compute; null where none does
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
    inference: InferenceSheet | None
    model: str | None
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
