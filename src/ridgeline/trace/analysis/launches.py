"""Turn launch links into statistics: what launches cost, how far the host ran ahead, what graphs replayed.

delay          from the start of a call to the start of the first span it launched
queue depth    spans launched but not started at the moment one starts, itself not counted: 0 = the chip was waiting
graph replay   a call that launched a captured graph: many spans, one launch
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.arrays import Mask
from ridgeline.trace.timeline import Timeline

GRAPH = re.compile(r"graph_?launch", re.IGNORECASE)
SHORT_NS = 10_000  # a span shorter than this costs about as much to launch as to run


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Launches of one chip, in nanoseconds."""

    process: str
    rank: int
    spans: int
    calls: int
    unlinked: int
    """Spans whose launch is not in the trace."""
    call_ns: int
    """Median time of a launching call on the host."""
    calls_total_ns: int
    delay_ns: int
    """Median."""
    delay_p99_ns: int
    queue_depth: float
    """Mean over the linked spans."""
    empty_queue: float
    """Share of linked spans that started when nothing else was queued."""
    graph_replays: int
    graph_spans: int
    short_spans: int
    short_ns: int
    """Spans shorter than 10 us, and their time together."""

    JSON = "* -empty_queue empty_queue_share=empty_queue"


def launches(line: Timeline, counted: Mask) -> tuple[Launches, ...]:
    """Statistics of every chip that has work; chips of a prediction have no launches and are left out."""
    graphs = np.array([bool(GRAPH.search(name)) for name in line.names], np.bool_)
    chips = []
    for process in np.unique(line.process[counted]).tolist():
        rows = np.flatnonzero(counted & (line.process == process))
        if (line.launch[rows] >= 0).any():
            chips.append(_of_chip(line, process, rows, graphs))
    return tuple(chips)


def _of_chip(line: Timeline, process: int, rows: NDArray[np.intp], graphs: NDArray[np.bool_]) -> Launches:
    launched_rows = rows[line.launch[rows] >= 0]
    calls, first = np.unique(line.launch[launched_rows], return_index=True)
    start_ns, end_ns = line.start_ns, line.end_ns
    cost = (end_ns - start_ns)[calls]
    delay = np.maximum(start_ns[launched_rows[first]] - start_ns[calls], 0)
    depth = queue_depth(start_ns[line.launch[launched_rows]], start_ns[launched_rows])
    replays = graphs[line.name[calls]]
    length = (end_ns - start_ns)[rows]
    return Launches(
        process=line.processes[process],
        rank=line.tables.ranks[process],
        spans=len(rows),
        calls=len(calls),
        unlinked=len(rows) - len(launched_rows),
        call_ns=int(np.median(cost)),
        calls_total_ns=int(cost.sum()),
        delay_ns=int(np.median(delay)),
        delay_p99_ns=int(np.quantile(delay, 0.99)),
        queue_depth=float(depth.mean()),
        empty_queue=float((depth == 0).mean()),
        graph_replays=int(replays.sum()),
        graph_spans=int(graphs[line.name[line.launch[launched_rows]]].sum()),
        short_spans=int((length < SHORT_NS).sum()),
        short_ns=int(length[length < SHORT_NS].sum()),
    )


def queue_depth(launched: NDArray[np.int64], started: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many others were launched and not started at each start.

    >>> queue_depth(np.array([0, 1, 2]), np.array([5, 6, 7])).tolist()
    [2, 1, 0]
    """
    before = np.searchsorted(np.sort(launched), started, side="right")
    begun = np.searchsorted(np.sort(started), started, side="right")
    depth: NDArray[np.int64] = np.maximum(before - begun, 0)
    return depth
