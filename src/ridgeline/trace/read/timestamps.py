"""Turn timestamps as traces write them into whole nanoseconds, without losing any.

Traces count microseconds: whole, with a fraction, or as text. Below 2^43 microseconds (three months) a float holds a
nanosecond exactly when it is taken apart at the point; above, fractions must be read as decimals.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

NANOS = 1000  # in the unit of a trace, the microsecond
EXACT = float(2**53)  # nanoseconds below which a float in any unit is good to the nanosecond
LARGEST = 2**61  # nanoseconds, 73 years: anything beyond is no time, and sums of a few still fit in 64 bits
MISSING = np.iinfo(np.int64).min
"""What stands for a time that cannot be read."""


def nanoseconds(values: Sequence[Any], nanos: int = NANOS) -> NDArray[np.int64]:
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
        nanoseconds_: NDArray[np.int64] = integral.astype(np.int64) * nanos + np.rint(
            (array - integral) * nanos
        ).astype(np.int64)
        return nanoseconds_
    return _one_by_one(values, nanos)


def _one_by_one(values: Sequence[Any], nanos: int) -> NDArray[np.int64]:
    return np.array([_exactly(value, nanos) for value in values], np.int64).reshape(len(values))


def _exactly(value: Any, nanos: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        return int(MISSING)
    try:
        number = Decimal(value.strip()[:64]) if isinstance(value, str) else Decimal(value)
        if not number.is_finite() or abs(number) >= LARGEST // nanos:
            return int(MISSING)
        return int((number * nanos).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError):
        return int(MISSING)


def needs_decimals(values: Sequence[Any], nanos: int = NANOS) -> bool:
    """Whether floats among these are too large to hold nanoseconds; ``nanos`` is their unit.

    >>> needs_decimals([1704161511420306.5]), needs_decimals([4458676522709.059]), needs_decimals([1704161511420306])
    (True, False, False)
    """
    return any(isinstance(value, float) and abs(value) >= EXACT / nanos and not value.is_integer() for value in values)


def unit_of(values: Sequence[Any]) -> int:
    """Nanoseconds in the unit of these times: 1 when only nanoseconds since 1970 can be meant, else a microsecond.

    >>> unit_of([1704161511420306491]), unit_of([1704161511420306.5])
    (1, 1000)
    """
    known: list[Any] = [value for value in values if isinstance(value, (int, float, Decimal))]
    numbers = [abs(float(value)) for value in known if abs(value) < 2**63]
    return 1 if numbers and sorted(numbers)[len(numbers) // 2] > LARGEST // 20 else NANOS
