"""Turn timestamps as traces write them into whole nanoseconds, without losing any; and doubt units that cannot be.

Traces count microseconds: whole, with a fraction, or as text. Below 2^43 microseconds (three months) a float holds a
nanosecond exactly when it is taken apart at the point; above, fractions must be read as decimals. Programs that write
another unit are given away by launches, which take 0.3 us to 300 us at the median, and by kernels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from types import MappingProxyType

import numpy as np

from ridgeline.core.errors import InputError, not_among
from ridgeline.trace.timeline import Longs

NANOS = 1000  # in the unit of a trace, the microsecond
EXACT = float(2**53)  # nanoseconds below which a float in any unit is good to the nanosecond
LARGEST = 2**61  # nanoseconds, 73 years: anything beyond is no time, and sums of a few still fit in 64 bits
MISSING = np.iinfo(np.int64).min
"""What stands for a time that cannot be read."""


def nanoseconds(values: Sequence[object], nanos: int = NANOS) -> Longs:
    """Whole nanoseconds of times given as int, float, text or Decimal; `MISSING` for what is no number.

    ``nanos`` is the unit, in nanoseconds.

    >>> nanoseconds([1, 2.5, "1704161511420306.491", None]).tolist()[:3]
    [1000, 2500, 1704161511420306491]
    """
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        return _one_by_one(values, nanos)
    if array.dtype.kind == "i" and array.size:
        if abs(int(array.max())) < LARGEST // nanos and abs(int(array.min())) < LARGEST // nanos:
            return array.astype(np.int64) * nanos
    elif array.dtype.kind == "f" and bool((np.abs(array) < LARGEST // nanos).all()):
        integral = np.floor(array)
        return np.asarray(integral.astype(np.int64) * nanos + np.rint((array - integral) * nanos).astype(np.int64))
    return _one_by_one(values, nanos)


def _one_by_one(values: Sequence[object], nanos: int) -> Longs:
    return np.array([_exactly(value, nanos) for value in values], np.int64).reshape(len(values))


def _exactly(value: object, nanos: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        return int(MISSING)
    try:
        number = Decimal(value.strip()[:64]) if isinstance(value, str) else Decimal(value)
        if not number.is_finite() or abs(number) >= LARGEST // nanos:
            return int(MISSING)
        return int((number * nanos).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError):
        return int(MISSING)


def needs_decimals(values: Sequence[object], nanos: int = NANOS) -> bool:
    """Whether floats among these are too large to hold nanoseconds; ``nanos`` is their unit.

    >>> needs_decimals([1704161511420306.5]), needs_decimals([4458676522709.059]), needs_decimals([1704161511420306])
    (True, False, False)
    """
    return any(isinstance(value, float) and abs(value) >= EXACT / nanos and not value.is_integer() for value in values)


def unit_of(values: Sequence[object]) -> int:
    """Nanoseconds in the unit of these times: 1 when only nanoseconds since 1970 can be meant, else a microsecond.

    >>> unit_of([1704161511420306491]), unit_of([1704161511420306.5])
    (1, 1000)
    """
    known = [value for value in values if isinstance(value, (int, float, Decimal))]
    numbers = [abs(float(value)) for value in known if -(2**63) < value < 2**63]
    return 1 if numbers and sorted(numbers)[len(numbers) // 2] > LARGEST // 20 else NANOS


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
    # many kernels and not one short, with no launches to say that this is so
    no_short = len(launches) < ENOUGH and len(work) >= MANY and float(work.min(initial=0)) >= SHORTEST
    if not (short or median > greatest or no_short):
        return ""
    side = "less" if median < least else "more"
    for unit, unit_nanos in sorted(UNITS.items(), key=lambda item: abs(np.log10(item[1] / nanos))):
        fits = all(low <= value * unit_nanos / nanos <= high for value, (low, high), _ in medians)
        if fits and unit_nanos != nanos:
            return (
                f"times look like {WORDS[unit_nanos]}, read as {WORDS[nanos]} half of the {what} last "
                f"{side} than {median / 1000:.3g} us: if so, --unit {unit}"
            )
    return f"half of the {what} last {side} than {median / 1000:.3g} us: is their unit {WORDS[nanos]}?"
