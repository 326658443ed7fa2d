"""The columns that many plans, rows or spans are worked on in, by name."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Index: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Entry = TypeVar("Entry", bound=np.generic)


def at(column: NDArray[Entry], rows: Index | slice) -> NDArray[Entry]:
    """Entries of a column by row; a column of one entry is the same for all rows."""
    return column if len(column) == 1 else column[rows]


def distinct(column: Array | Index) -> list[int]:
    """Different whole numbers of a column, none below zero, in rising order; cheaper than `np.unique` of few kinds.

    >>> distinct(np.array([3.0, 0.0, 3.0]))
    [0, 3]
    """
    values: list[int] = np.flatnonzero(np.bincount(column.astype(np.int64))).tolist()
    return values


LAST_BITS = 12  # of a number's 52 that depend on where in a column it was worked out


def round_digits(values: Array) -> Array:
    """Numbers to twelve digits, so that plans which take the same are equal however they were worked out.

    >>> round_digits(np.array([0.1 + 0.2, 0.3, np.inf])).tolist()
    [0.2999999999999545, 0.2999999999999545, inf]
    """
    bits = values.view(np.int64) + (1 << (LAST_BITS - 1))
    bits &= -(1 << LAST_BITS)
    return bits.view(np.float64)
