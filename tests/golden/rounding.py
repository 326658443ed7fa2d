"""Tell how this machine rounds: a word that differs where last digits of the same sums and products do.

Matrix products are rounded as the library behind numpy chooses for the processor, `sum` as the version of Python does,
and exponentials as the C library does. Answers recorded on a machine with the same word must agree to the last digit;
on another they agree to `CLOSE`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

STORED = Path(__file__).parent / "rounding.txt"
CLOSE = 1e-9  # relative, where machines round differently
SIZES = (1, 2, 3, 5, 8, 13, 21, 40, 97)


def rounding() -> str:
    """The word of this machine."""
    return hashlib.sha256("".join(value.hex() for value in _values()).encode()).hexdigest()[:16]


def recorded_here() -> bool:
    """Whether the stored answers must agree to the last digit."""
    return STORED.exists() and STORED.read_text(encoding="utf-8").strip() == rounding()


def _values() -> Iterator[float]:
    """Results whose last digits depend on the order of additions, on fused multiply-adds and on libraries."""
    for rows in SIZES:
        for inner in SIZES:
            left, right = _filled(rows, inner, 37), _filled(inner, 7, 53)
            yield from (left @ right).ravel().tolist()
            yield from (left @ right[:, 0]).tolist()
        yield float(_filled(rows, 97, 11).sum())
    numbers = [_filled(1, 97, 29)[0, place].item() for place in range(97)]
    yield sum(numbers)
    for value in numbers:
        yield from (math.exp(value), math.log(value), value**1.3, np.exp(value).item(), np.log(value).item())


def _filled(rows: int, columns: int, step: int) -> np.ndarray:
    """Numbers between 0.01 and 1.1 whose binary digits do not end."""
    return (np.arange(rows * columns, dtype=np.float64) * step % 101 + 1).reshape(rows, columns) / 97
