"""Turn values into positions along an axis, in cells or pixels: linear, or logarithmic where they span much."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ridgeline.core.records import dataclass

SPAN = 4.0  # largest over smallest value from which an axis is logarithmic


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis: the values `low` and `high` stand at the positions `start` and `end`, the others between or beyond."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def of(cls, values: Sequence[float], start: float, end: float) -> Scale:
        """The axis that just holds these values; logarithmic from a span of four times on."""
        low, high = min(values), max(values)
        return cls(low=low, high=high, start=start, end=end, log=low > 0 and high / low > SPAN)

    def __call__(self, value: float) -> float:
        """Where a value stands; in the middle where all are the same.

        >>> Scale.of([0, 10], 0, 100)(5), Scale.of([1, 100], 0, 100)(10), Scale.of([7], 0, 100)(7)
        (50.0, 50.0, 50.0)
        """
        low, high, at = (math.log(one) if self.log else one for one in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start) if high > low else self.middle

    @property
    def middle(self) -> float:
        """Half way."""
        return (self.start + self.end) / 2

    def ticks(self, parts: int = 4) -> list[float]:
        """Values at equal distances, the ends among them.

        >>> Scale.of([0, 8], 0, 1).ticks(), Scale.of([1, 16], 0, 1).ticks(2), Scale.of([3], 0, 1).ticks()
        ([0.0, 2.0, 4.0, 6.0, 8.0], [1.0, 4.0, 16.0], [3])
        """
        if self.high <= self.low:
            return [self.low]
        shares = [part / parts for part in range(parts + 1)]
        if self.log:
            return [self.low * (self.high / self.low) ** share for share in shares]
        return [self.low + (self.high - self.low) * share for share in shares]
