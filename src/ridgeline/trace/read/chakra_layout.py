"""Turn durations, streams and dependencies into start times: every node as early as both allow."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from ridgeline.trace.arrays import Longs


def earliest(duration: Longs, lanes: Longs, rows: Longs, after: Longs) -> tuple[Longs, int]:
    """Starts, and how many nodes had to ignore a dependency because they waited for each other.

        start(i) = max(end of what i waits for, end of what its stream did before)

    ``rows[k]`` waits for ``after[k]``. Of what could start at the same instant, what stands first goes first.

    >>> start, circular = earliest(np.array([5, 3, 2]), np.array([0, 1, 0]), np.array([1, 2]), np.array([0, 1]))
    >>> start.tolist(), circular
    ([0, 5, 8], 0)
    """
    count = len(duration)
    waits = np.bincount(rows, minlength=count).tolist()
    order = np.argsort(after, kind="stable")
    followers, first = rows[order].tolist(), np.searchsorted(after[order], np.arange(count + 1)).tolist()
    ready = [0] * count
    start = [0] * count
    done = [False] * count
    lengths, lane = duration.tolist(), lanes.tolist()
    free: dict[int, int] = {}
    heap = [(0, row) for row in range(count) if not waits[row]]
    circular = unplaced_nodes = 0
    while True:
        if not heap:
            while unplaced_nodes < count and done[unplaced_nodes]:
                unplaced_nodes += 1
            if unplaced_nodes == count:
                return np.array(start, np.int64), circular
            circular += 1
            heappush(heap, (ready[unplaced_nodes], unplaced_nodes))
        at, row = heappop(heap)
        if done[row]:
            continue
        begin = max(at, free.get(lane[row], 0))
        if heap and begin > heap[0][0]:  # its stream is busy: what can start earlier goes first
            heappush(heap, (begin, row))
            continue
        start[row], done[row] = begin, True
        free[lane[row]] = end = begin + lengths[row]
        for follower in followers[first[row] : first[row + 1]]:
            ready[follower] = max(ready[follower], end)
            waits[follower] -= 1
            if waits[follower] == 0:
                heappush(heap, (ready[follower], follower))
