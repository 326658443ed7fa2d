"""The values of a library's choice: what each algorithm and protocol would take, and which one wins at which size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

SMALLEST, LARGEST = 256, 2**36  # bytes that a sweep covers


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One algorithm with one protocol, as a library prices it for itself.

    latency_s     what is paid whatever the size: launch and hops
    bytes_per_s   algbw without latency: size over the time of its bytes
    channels      rings, trees or thread blocks at once; 0: not the library's to choose
    """

    algorithm: str
    protocol: str
    latency_s: float
    bytes_per_s: float
    size_bytes: float
    channels: int = 0

    @property
    def bytes_s(self) -> float:
        return self.size_bytes / self.bytes_per_s

    @property
    def seconds(self) -> float:
        return self.latency_s + self.bytes_s

    @property
    def name(self) -> str:
        return f"{self.algorithm}/{self.protocol}" if self.protocol else self.algorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class NotOffered:
    """An algorithm that the library does not consider here, and why."""

    algorithm: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Sizes for which one option wins; `max_bytes` is the last of them."""

    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    channels: int


Priced = Callable[[float], Sequence[Option]]


def ranges_of(priced: Priced) -> tuple[Range, ...]:
    """Which option wins at which size: powers of two are tried, and borders halved to the byte."""
    sizes = [2**power for power in range(SMALLEST.bit_length() - 1, LARGEST.bit_length())]
    ranges: list[Range] = []
    low, current = SMALLEST, best(priced(SMALLEST))
    for before, after in pairwise(sizes):
        there = best(priced(after))
        while there.name != current.name:
            border = _border(priced, before, after, current.name)
            ranges.append(_range(low, border - 1, priced))
            low, current, before = border, best(priced(border)), border
    ranges.append(_range(low, LARGEST, priced))
    return tuple(ranges)


def _border(priced: Priced, low: int, high: int, name: str) -> int:
    """The first size at which another option wins."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if best(priced(middle)).name == name else (low, middle)
    return high


def _range(low: int, high: int, priced: Priced) -> Range:
    winner = best(priced(high))
    return Range(
        min_bytes=low, max_bytes=high, algorithm=winner.algorithm, protocol=winner.protocol, channels=winner.channels
    )


def best(options: Sequence[Option]) -> Option:
    """The fastest by the library's own estimate; the first of equals, as libraries take it."""
    return min(options, key=lambda option: option.seconds)
