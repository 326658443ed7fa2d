"""Turn points and edges into a topological order: one in which every edge goes forward.

Nearly all edges go forward in time, so the measured times are the order. What remains:

    spans that overlap     an edge may go back in time: its target is moved to its source's time, and so on behind it
    equal times            among points of one instant, each stands behind those it waits for

Both are settled by repeating one step over all edges at once until nothing moves; a few rounds are enough. Where they
are not, because hundreds of points of one instant wait for each other, edges are followed one by one; that also finds
circles.
"""

from __future__ import annotations

import numpy as np

from ridgeline.trace.arrays import Longs

ROUNDS = 64


def ranks_in(order: Longs) -> Longs:
    """The place of every point in an order."""
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank


def forward_order(at: Longs, src: Longs, dst: Longs) -> Longs | None:
    """Points so that every edge goes forward; None when there is a circle.

    >>> forward_order(np.array([5, 5, 3]), np.array([1, 2]), np.array([0, 1])).tolist()
    [2, 1, 0]
    """
    time = _relax_values(at.copy(), src, dst, 0)
    if time is not None:
        tied = time[src] == time[dst]
        level = _relax_values(np.zeros(len(at), np.int64), src[tied], dst[tied], 1)
        if level is not None:
            return np.lexsort((level, time))
    return one_by_one(len(at), src, dst)


def _relax_values(value: Longs, src: Longs, dst: Longs, step: int) -> Longs | None:
    """Values raised until each target's is at least its source's and a step more; None when that takes too long."""
    for _ in range(ROUNDS):
        low = value[src] + step > value[dst]
        if not low.any():
            return value
        np.maximum.at(value, dst[low], value[src[low]] + step)
    return None


def one_by_one(count: int, src: Longs, dst: Longs) -> Longs | None:
    """The same by taking points nothing is in front of, one after the other."""
    by_source = np.argsort(src, kind="stable")
    targets = dst[by_source].tolist()
    first = np.searchsorted(src[by_source], np.arange(count + 1)).tolist()
    missing = np.bincount(dst, minlength=count).tolist()
    ready = [point for point in range(count) if not missing[point]]
    for point in ready:  # grows while it is walked
        for edge in range(first[point], first[point + 1]):
            target = targets[edge]
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    return np.array(ready, np.int64) if len(ready) == count else None
