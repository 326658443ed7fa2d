"""Turn a fitted calibration into one under which no chip is slower than another that it surpasses in every number.

Runs of an H200 and an H100 are of different software and sizes, so that each chip's own offsets carry some of that: a
fit may end with the better chip at a share of its peak a hair below the lesser one's. Where a chip of the same family
is as good in every number of its data sheet, and both were measured, its offsets are raised until its sustained rates
are as good, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, MissingNumber
from ridgeline.cost.calibration import PARAMETERS, Calibration
from ridgeline.cost.machine import PEAKS, SHARE, Machines, machines_of
from ridgeline.hardware.load import CHIPS, system
from ridgeline.hardware.topology import Topology
from ridgeline.plan.engine import ENGINES

SIZES = (64, 8)  # chips of the systems in which two are compared: some have no network beyond their node
RATES = ("matmul_wide", "matmul_8", "matmul_4", "attention", "memory", "near", "far")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """The numbers a chip is priced by in a system of so many, and how that is wired."""

    machine: Machines
    wired: tuple[tuple[int, Topology], ...]


@cache
def sheet_of(chip: str, chips: int) -> Sheet | None:
    """What is known of a chip; None where a number is missing that every step on so many of them needs."""
    try:
        found = system(f"{chips}x{chip}")
        return Sheet(machine=machines_of([found]), wired=tuple((tier.chips, tier.topology) for tier in found.tiers))
    except (MissingNumber, InputError):
        return None


def surpasses(one: str, other: str) -> bool:
    """Whether a chip is as good as another of its family in every number that prices it, wired alike.

    As many cores, too: the waves in which tiles fill them are whole, so that more of them are no better for every size.

    >>> surpasses("h200-sxm", "h100-sxm"), surpasses("h100-sxm", "h200-sxm"), surpasses("h200-sxm", "a100-80-sxm")
    (True, False, False)
    """
    first, second = CHIPS[one], CHIPS[other]
    if one == other or not first.family or first.family != second.family:
        return False
    known = ((sheet_of(one, chips), sheet_of(other, chips)) for chips in SIZES)
    return any(_as_good(mine, theirs) for mine, theirs in known if mine is not None and theirs is not None)


def _as_good(one: Sheet, other: Sheet) -> bool:
    mine, theirs = one.machine, other.machine
    if one.wired != other.wired or mine.cores[0] != theirs.cores[0]:
        return False
    stated = mine.peak > 0  # a format without a peak is not slower: it is not there
    peaks = (mine.peak >= theirs.peak) & (mine.peak / mine.density >= theirs.peak / theirs.density)
    columns = ("memory", "scale_up", "scale_out", "host", "exponentials")
    return bool(peaks[stated].all()) and all((getattr(mine, name) >= getattr(theirs, name)).all() for name in columns)


def measured_pairs(offsets: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Chips with offsets of their own and those that they surpass, lesser ones first."""
    known = [id for id in CHIPS if any(key.endswith(f"/{id}") for key in offsets)]
    pairs = [(one, other) for one in known for other in known if surpasses(one, other)]
    return iter(sorted(pairs, key=lambda pair: sum(first == pair[0] for first, _ in pairs)))


def never_slower(calibration: Calibration) -> Calibration:
    """The calibration with offsets of chips raised to those of the chips they surpass, where their rates ask for it."""
    made = dict(calibration.offsets)
    for one, other in measured_pairs(frozenset(made)):
        for name in RATES:
            keys = [f"{name}/{_owner(name, chip)}" for chip in (one, other)]
            mine, theirs = (made.get(key, 0.0) for key in keys)
            if mine < theirs and _slower(name, one, other, Calibration(offsets=made)):
                made[keys[0]] = theirs
    return Calibration(offsets=MappingProxyType(made), source=calibration.source)


def _owner(name: str, chip: str) -> str:
    """Under whose id a parameter of a chip is fitted: what cores sustain under that of its die."""
    found = CHIPS[chip]
    return found.fitted_die if "die" in PARAMETERS[name].per else found.fitted_id


def _slower(name: str, one: str, other: str, calibration: Calibration) -> bool:
    """Whether the chip that surpasses the other sustains less of anything that a parameter is a share of."""
    power = calibration.value("power", CHIPS[one], ENGINES["megatron-core"])
    mine, theirs = (_bare(name, chip, power) for chip in (one, other))
    train = [engine for engine in ENGINES.values() if engine.serves is None]
    shares = [[calibration.value(name, CHIPS[chip], engine) for engine in train] for chip in (one, other)]
    return any(bool((a * mine < b * theirs)[mine > 0].any()) for a, b in zip(*shares, strict=True))


def _bare(name: str, chip: str, power: float) -> Array:
    """What a parameter is a share of."""
    own = next(sheet for chips in SIZES if (sheet := sheet_of(chip, chips)) is not None).machine
    if name.startswith("matmul"):
        peaks = [place for place, key in enumerate(PEAKS) if SHARE.get(key, "matmul_wide") == name]
        return np.asarray((own.peak * own.density**-power)[0, peaks])
    column = {"attention": own.peak[0], "memory": own.memory, "near": own.scale_up, "far": own.scale_out}[name]
    return np.asarray(column)
