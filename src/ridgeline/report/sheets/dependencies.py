"""The part of the sheet of `ridgeline analyze --json` that rests on dependencies between spans and ranks.

Critical path, collectives matched across ranks, stragglers, bubbles, memory, what-ifs; times in microseconds.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

_Classed = TypedDict("_Classed", {"class": str})  # a key that is a word of Python


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


class CollectiveSizeSheet(TypedDict):
    """Collectives of one type, payload and group; 0 where the trace does not record payload or group.

    transfer_us, fastest_us     median and least, from the last rank's arrival to the end
    wait_us                     of all ranks together, for the last to come; `last_ranks` how often each was that
    busbw_gbytes_per_s          bytes a rank sends over the median transfer, as nccl-tests count
    link_gbytes_per_s, bound_us what the link gives, and what it needs for the bytes; null where it is not known
    """

    name: str
    payload_bytes: int
    group_size: int
    calls: int
    total_us: float
    transfer_us: float
    fastest_us: float
    wait_us: float
    matched: bool
    last_ranks: dict[str, int]
    busbw_gbytes_per_s: float | None
    link_gbytes_per_s: float | None
    share_of_link: float | None
    bound_us: float | None
    span_ids: list[int]


class CollectivesSheet(TypedDict):
    """Collectives and sends whose other ranks are in the trace, and those that are alone."""

    by_size: list[CollectiveSizeSheet]

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
