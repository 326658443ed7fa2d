"""Turn host spans into call stacks: the innermost span that encloses each, on its own thread."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.arrays import Codes
from ridgeline.trace.timeline import HOST, RUNTIME, Timeline

Rows = NDArray[np.intp]


def parents(line: Timeline, *kinds: str) -> Codes:
    """For every row of these kinds, the row of the innermost enclosing one of them on its thread; -1 for none.

    Without kinds: host ops and calls of the runtime, so that a launch has the op that made it. Spans that cross
    another's end without being inside it count as enclosed by whatever encloses both.
    """
    rows = np.flatnonzero(line.of_kind(*(kinds or (HOST, RUNTIME))))
    parent = np.full(len(line), -1, np.int32)
    if not len(rows):
        return parent
    track = line.tracks(rows)
    start, end = line.start_ns[rows], line.end_ns[rows]
    order = np.lexsort((-end, start, track))  # of two that start together the longer is outside
    rows, track, end = rows[order], track[order], end[order]
    above = _previous_reaching(track, end)
    parent[rows] = np.where(above >= 0, rows[above], -1)
    return parent


def _previous_reaching(track: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each entry the nearest earlier one of its track that ends no earlier: jumps double, so few rounds are needed.

    >>> _previous_reaching(np.zeros(4, np.int64), np.array([10, 4, 3, 9])).tolist()
    [-1, 0, 1, 0]
    """
    above = np.arange(len(end), dtype=np.int64) - 1
    first = np.concatenate([[True], track[1:] != track[:-1]])
    above[first] = -1
    short = np.flatnonzero((above >= 0) & (end[np.maximum(above, 0)] < end))
    while len(short):
        above[short] = above[above[short]]
        still = (above[short] >= 0) & (end[np.maximum(above[short], 0)] < end[short])
        short = short[still]
    return above


def launching_ops(line: Timeline, work: Rows, above: Codes | None = None) -> Codes:
    """For each row of work the host op whose call launched it: the innermost one around the call; -1 when unknown."""
    above = parents(line) if above is None else above
    call = line.launch[work]
    return np.where(call >= 0, above[np.maximum(call, 0)], -1).astype(np.int32)
