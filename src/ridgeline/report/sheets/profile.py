"""The sheets of `ridgeline profile`, of `ridgeline diff` of two profiles, and of `ridgeline roofline`."""

from __future__ import annotations

from typing import Literal, TypedDict


class BestRateSheet(TypedDict):
    """A rate that was measured, beside the data sheet's.

    unit        FLOP/s, B/s or s
    datasheet   null where nothing is published
    share       measured over the data sheet
    joules      of a flop or a byte, where the device told its power
    where       the kernel that reached it
    """

    name: str
    unit: str
    measured: float
    datasheet: float | None
    share: float | None
    joules: float | None
    where: str


class SlowChipSheet(TypedDict):
    """A rank that is slower than its peers.

    loses        median over its kernels of its time over the ranks' median, less 1
    deviations   robust standard deviations beyond the median rank
    kernels      compared
    worst        the kernel it loses most on; `worst_loses` is how much
    """

    rank: int
    loses: float
    deviations: float
    kernels: int
    worst: str
    worst_loses: float


class ProfileSheet(TypedDict):
    """What was measured of a machine.

    rows     measurements by op; `failed` those that did not run, with why
    device   as the profile describes it
    slow     ranks that lose more than their peers
    """

    kind: Literal["profile"]
    chip: str | None
    title: str
    device: dict[str, str | int | float | bool]
    software: dict[str, str | int | float | bool]
    taken: str
    rows: dict[str, int]
    failed: dict[str, str]
    ceilings: list[BestRateSheet]
    slow: list[SlowChipSheet]


class ProfileGroupSheet(TypedDict):
    """Kernels of one group in two profiles.

    ratio            geometric mean of after over before
    slower, faster   of these, beyond their spread
    """

    group: str
    rows: int
    ratio: float
    slower: int
    faster: int


class ProfileRowSheet(TypedDict):
    """A kernel whose time differs beyond its spread."""

    name: str
    before_s: float
    after_s: float
    ratio: float


class ProfileDiffSheet(TypedDict):
    """What differs between two profiles.

    facts    of device, host and software that differ: before and after
    failed   kernels that ran in one of them only
    only     rows that one of them alone has: before, after
    """

    kind: Literal["profile diff"]
    before: str
    after: str
    facts: dict[str, list[str]]
    groups: list[ProfileGroupSheet]
    rows: list[ProfileRowSheet]
    failed: list[str]
    only: list[int]


class RidgeSheet(TypedDict):
    """Where a roof bends: flops for a byte at which compute and a level of memory balance.

    level       of memory: hbm, or a cache
    intensity   by the data sheet; null where it states no rate of that level
    measured    the same of measured ceilings; null without a profile
    """

    dtype: str
    level: str
    intensity: float | None
    measured: float | None


class RoofOpSheet(TypedDict):
    """An op of the model on the roofline; flops, bytes and seconds of all its runs in a step on one chip.

    intensity   flops for a byte
    share       of the time of all ops
    roof        of its roof, what it reaches
    """

    op: str
    phase: str
    count: float
    flops: float
    bytes: float
    seconds: float
    intensity: float
    flops_per_s: float
    share: float
    bound: str
    roof: float
    evidence: str


class RooflineSheet(TypedDict):
    """Every op of a model on a chip's roofline.

    peaks       flops/s by format, as the data sheet says; `measured_peaks` the best measured
    memory      bytes/s by level; `measured_memory` large copies
    bounds      share of the time under each roof
    notes       what is not drawn, and what was assumed
    """

    kind: Literal["roofline"]
    model: str
    chip: str
    phase: str
    seconds: float
    peaks: dict[str, float]
    measured_peaks: dict[str, float]
    memory: dict[str, float]
    measured_memory: dict[str, float]
    ridges: list[RidgeSheet]
    bounds: dict[str, float]
    ops: list[RoofOpSheet]
    notes: list[str]
