"""The sheets of `ridgeline characterize --json` and `ridgeline preflight --json`; seconds, rates and shares."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class BestMeasuredSheet(TypedDict):
    """The best that was measured of one kind.

    what     product, copy, read, write, host to device, device to host, launch, graph node, energy
    dtype    of a product, empty otherwise
    value    in `unit`
    at       the row it was measured at, in words
    """

    what: str
    dtype: str
    value: float
    unit: str
    at: str


class FailureSheet(TypedDict):
    """What the device lacks, computes wrong or dies of.

    rows    cases of this op, impl and dtype that failed so
    """

    op: str
    impl: str
    dtype: str
    why: str
    rows: int


class CharacterizationSheet(TypedDict):
    """What a run of `characterize` brought.

    output             the profile it wrote
    device, software   as the profile's head has them
    rows               measurements that are right, by op
    left               cases that the time box left out
    waited             rows whose every run was disturbed: a thread waited for a core that other work had
    """

    kind: Literal["characterization"]
    output: str
    chip: str | None
    device: dict[str, Any]
    software: dict[str, Any]
    minutes: float
    rows: dict[str, int]
    ceilings: list[BestMeasuredSheet]
    failures: list[FailureSheet]
    left: int
    waited: int


class StandaloneSheet(TypedDict):
    """The file that measures where Ridgeline cannot be installed.

    bytes    its size
    """

    kind: Literal["standalone"]
    output: str
    bytes: int


class FigureSheet(TypedDict):
    """One figure of all ranks.

    name        what was measured, in `unit`
    median      of the ranks
    spread      median absolute deviation of the ranks over their median
    worst       the slowest rank or pair of ranks
    value       what it measured
    reference   what was handed in, where it was
    """

    name: str
    unit: str
    median: float
    spread: float
    worst: str
    value: float
    reference: NotRequired[float]


class OutlierSheet(TypedDict):
    """A chip, link or setting that is wrong.

    who      rank and host, a pair of them, or every rank
    what     the figure or the setting
    value    what it is, and what is `expected`: the peers' median, the reference, or the peers' setting
    gap      value over expected, less one, as a slowdown; absent for settings
    score    gap in robust standard deviations of the peers; absent for settings and references
    """

    kind: Literal["chip", "link", "setting", "reference"]
    who: str
    what: str
    value: float | str
    expected: float | str
    gap: NotRequired[float]
    score: NotRequired[float]
    advice: str


class PreflightSheet(TypedDict):
    """What `preflight` found.

    ok         nothing is wrong
    warnings   settings worth a look that do not stop a run
    """

    kind: Literal["preflight"]
    ok: bool
    ranks: int
    nodes: int
    device: str
    seconds: float
    figures: list[FigureSheet]
    outliers: list[OutlierSheet]
    warnings: list[str]
