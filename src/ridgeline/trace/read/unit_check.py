"""Turn durations that cannot be what they say into a doubt about the unit of a trace's times.

Chrome traces count microseconds, whatever `displayTimeUnit` says: that is the unit of the viewer. Some programs write
milliseconds, seconds or nanoseconds all the same. Two things hardly vary between machines and give them away:

    launches    a call that launches a kernel takes 0.3 us to 300 us at the median
    kernels     no chip runs kernels of less than 0.3 us at the median, and few run one of 0.1 s

A doubt is a warning; `--unit` decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ridgeline.core.errors import InputError, not_among
from ridgeline.trace.arrays import Longs

UNITS: Mapping[str, int] = MappingProxyType({"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1})
"""Nanoseconds in each unit a user can name."""
WORDS = {1: "nanoseconds", 10**3: "microseconds", 10**6: "milliseconds", 10**9: "seconds"}
LAUNCH = re.compile(r"launch", re.IGNORECASE)
LAUNCHES = (300.0, 300_000.0)  # nanoseconds of a launching call, at the median
KERNELS = (300.0, 1e8)  # nanoseconds of a kernel, at the median
SHORTEST = 7e5  # nanoseconds: in a trace of many kernels at least one is shorter
ROUNDED = 0.1  # nanoseconds: what a duration was that was rounded to none
USUAL = 1_000_000  # nanoseconds: where a span of work lasts as long, times are not a thousand times too short
ENOUGH = 8  # launches or kernels from which a median says something
MANY = 50


def nanos_of(unit: str | None) -> int:
    """Nanoseconds in a unit that a user named, 0 for none.

    >>> nanos_of("ms")
    1000000
    """
    if unit is None:
        return 0
    if unit not in UNITS:
        raise InputError(not_among("unit", unit, UNITS))
    return UNITS[unit]


def doubt_unit(work: Longs, launches: Longs, nanos: int) -> str:
    """What to say about the unit, nothing when the times can be in it; durations are nanoseconds as read.

    >>> doubt_unit(np.full(9, 5), np.full(9, 4), 1000)
    'times look like milliseconds, read as microseconds half of the launches last less than 0.004 us: if so, --unit ms'
    """
    samples = [(launches, LAUNCHES, "launches"), (work, KERNELS, "kernels and copies")]
    medians = [
        (max(float(np.median(sample)), ROUNDED), range_, what)
        for sample, range_, what in samples
        if len(sample) >= ENOUGH
    ]
    if not medians:
        return ""
    median, (least, greatest), what = medians[0]
    short = median < least and int(work.max(initial=0)) < USUAL
    odd = short or median > greatest or _too_long(work, launches)
    if not odd:
        return ""
    for unit, unit_nanos in sorted(UNITS.items(), key=lambda item: abs(np.log10(item[1] / nanos))):
        fits = all(low <= value * unit_nanos / nanos <= high for value, (low, high), _ in medians)
        if fits and unit_nanos != nanos:
            return (
                f"times look like {WORDS[unit_nanos]}, read as {WORDS[nanos]} half of the {what} last "
                f"{'less' if median < least else 'more'} than {median / 1000:.3g} us: if so, --unit {unit}"
            )
    return f"half of the {what} last {_side(median, least)} {median / 1000:.3g} us: is their unit {WORDS[nanos]}?"


def _side(median: float, least: float) -> str:
    return "less than" if median < least else "more than"


def _too_long(work: Longs, launches: Longs) -> bool:
    """Many kernels and not one short, with no launches to say that this is so."""
    return len(launches) < ENOUGH and len(work) >= MANY and float(work.min(initial=0)) >= SHORTEST
