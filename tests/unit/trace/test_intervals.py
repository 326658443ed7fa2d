"""Unions, overlaps and gaps of intervals, against a bitmap."""

from __future__ import annotations

import numpy as np

from ridgeline.trace.intervals import cover, covered_ns, union


def test_intervals_against_a_bitmap() -> None:
    random = np.random.default_rng(7)
    for _ in range(200):
        sets = []
        for _ in range(2):
            start = random.integers(0, 60, random.integers(0, 9))
            end = start + random.integers(0, 12, len(start))
            bits = np.zeros(100, bool)
            for one, other in zip(start, end, strict=True):
                bits[one:other] = True
            sets.append((cover(start, end), bits))
        (one, a), (other, b) = sets
        assert one.length == a.sum()
        assert one.length + other.length - union(one, other).length == (a & b).sum()
        assert covered_ns(one, np.array([10, 20]), np.array([30, 20])).tolist() == [a[10:30].sum(), 0]
