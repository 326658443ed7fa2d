"""Turn overlapping intervals into disjoint ones, and those into lengths; all of it on whole nanoseconds, so exact."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.trace.timeline import Longs, Rows


def _empty() -> Longs:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cover:
    """Disjoint intervals in ascending order; intervals that touch are one."""

    start: Longs = field(default_factory=_empty)
    end: Longs = field(default_factory=_empty)

    @property
    def length(self) -> int:
        """Time covered."""
        return int((self.end - self.start).sum())

    @property
    def first(self) -> int:
        return int(self.start[0]) if len(self.start) else 0

    @property
    def last(self) -> int:
        return int(self.end[-1]) if len(self.end) else 0

    def __len__(self) -> int:
        return len(self.start)


def cover(start: Longs, end: Longs) -> Cover:
    """The union of intervals given in any order.

    >>> both = cover(np.array([5, 0, 1]), np.array([6, 3, 4]))
    >>> both.start.tolist(), both.end.tolist(), both.length
    ([0, 5], [4, 6], 5)
    """
    if not len(start):
        return Cover()
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    fresh = np.concatenate([[True], start[1:] > reach[:-1]])
    first = np.flatnonzero(fresh)
    last = np.concatenate([first[1:] - 1, [len(start) - 1]])
    return Cover(start=start[first], end=reach[last])


def union(one: Cover, other: Cover) -> Cover:
    """What either covers."""
    return cover(np.concatenate([one.start, other.start]), np.concatenate([one.end, other.end]))


def gaps(busy: Cover) -> Cover:
    """The time between the intervals of a cover.

    >>> between = gaps(cover(np.array([0, 5]), np.array([2, 6])))
    >>> between.start.tolist(), between.end.tolist()
    ([2], [5])
    """
    return Cover(start=busy.end[:-1], end=busy.start[1:])


def covered_ns(at: Cover, start: Longs, end: Longs) -> Longs:
    """How much of each given interval a cover covers.

    >>> covered_ns(cover(np.array([0, 5]), np.array([2, 6])), np.array([1, 3]), np.array([6, 4])).tolist()
    [2, 0]
    """
    if not len(at):
        return np.zeros(len(start), np.int64)
    below = np.concatenate([[0], np.cumsum(at.end - at.start)])

    def up_to(times: Longs) -> Longs:
        place = np.searchsorted(at.start, times, side="right")
        inside = np.minimum(times - at.start[np.maximum(place - 1, 0)], (at.end - at.start)[np.maximum(place - 1, 0)])
        covered_until: Longs = below[np.maximum(place - 1, 0)] + np.where(place > 0, inside, 0)
        return covered_until

    return up_to(end) - up_to(start)


def group_rows(key: Longs, chosen: Mask | None = None) -> list[Rows]:
    """Places of equal keys together, in the order of the keys; of the chosen places where some are."""
    rows = np.arange(len(key)) if chosen is None else np.flatnonzero(chosen)
    order = rows[np.argsort(key[rows], kind="stable")]
    return [part for part in np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(part)]
