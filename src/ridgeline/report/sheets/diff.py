"""The sheets of `ridgeline diff --json` and `ridgeline explain --json`; times of one step and chip, in microseconds."""

from __future__ import annotations

from typing import Literal, TypedDict

_Classed = TypedDict("_Classed", {"class": str})  # a key that is a word of Python


class SideSheet(TypedDict):
    """One of the two steps: predicted, or the mean of so many steps and chips."""

    label: str
    predicted: bool
    steps: int
    chips: int
    step_us: float
    chip_name: str | None


class DiffItemSheet(_Classed):
    """What one kernel, op or class contributes to a cause; of an op, the kernels that ran for it on each side."""

    phase: str
    name: str
    before_us: float
    after_us: float
    calls_before: float
    calls_after: float
    us: float
    kernels_before: list[str]
    kernels_after: list[str]


class CauseSheet(TypedDict):
    """A cause of the difference; causes sum to it.

    more   items beyond those listed
    """

    cause: str
    meaning: str
    us: float
    items: list[DiffItemSheet]
    more: int


class PlaceSheet(TypedDict):
    """The difference in one phase, layer or class."""

    id: str
    before_us: float
    after_us: float
    us: float


class DiffSheet(TypedDict):
    """Why the step of B differs from that of A.

    difference_share   of A's step
    matched_by         kernel name, op and shape, or class: what has most time in common
    """

    kind: Literal["diff"]
    before: SideSheet
    after: SideSheet
    difference_us: float
    difference_share: float
    matched_by: str
    causes: list[CauseSheet]
    phases: list[PlaceSheet]
    layers: list[PlaceSheet]
    classes: list[PlaceSheet]


class DiffsSheet(TypedDict):
    """Several runs, each compared with the first."""

    kind: Literal["diffs"]
    runs: list[DiffSheet]


class GapPartSheet(_Classed):
    """The gap in one phase and class, and who should change: model, machine, unclear or nothing.

    efficiency   measured rate over the peak; null where it is not known
    """

    phase: str
    predicted_us: float
    measured_us: float
    gap_us: float
    share_of_gap: float
    residual: float | None
    efficiency: float | None
    bound: str | None
    change: str
    why: str
    action: str


class GapClassSheet(_Classed):
    """The gap in one class; the gaps of classes sum to the whole."""

    predicted_us: float
    measured_us: float
    gap_us: float


class ExplanationSheet(TypedDict):
    """What accounts for the gap between a prediction and a trace.

    residual    predicted / measured - 1
    by_change   the gap by who should change
    """

    kind: Literal["explanation"]
    scenario: str
    model: str
    system: str
    engine: str
    trace: list[str]
    predicted_us: float
    measured_us: float
    gap_us: float
    residual: float | None
    interval_us: list[float]
    inside_interval: bool
    parts: list[GapPartSheet]
    classes: list[GapClassSheet]
    by_change: dict[str, float]
    doubts: list[str]
    causes: list[CauseSheet]
