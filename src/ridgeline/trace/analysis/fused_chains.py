"""Turn spans that follow each other on a stream into chains, and a chain into the time one kernel of them all takes.

by bytes      what the bytes of its spans need together
to longest    as long as its longest span: nothing in between is moved, and rows stay on the chip
passes        and what further reductions add: rows are written and read again around each of them
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.arrays import Longs
from ridgeline.trace.graph.dependency_graph import Graph
from ridgeline.trace.timeline import Timeline

Rows = NDArray[np.intp]
PASSES = {"reduction": 2, "norm": 1, "softmax": 1, "loss": 1}  # times of its own that another one of a chain adds
Sizes = Callable[[Rows], Longs]
"""Nanoseconds the bytes of spans need at full bandwidth, 0 where they are not known."""


def unknown_sizes(rows: Rows) -> Longs:
    """No span's bytes are known."""
    return np.zeros(len(rows), np.int64)


Passes = Callable[[Timeline, Rows, Longs], Longs]
"""Nanoseconds of the passes over memory that spans of so long a time make inside a fused kernel."""


def no_passes(_: Timeline, rows: Rows, __: Longs) -> Longs:
    """A fused kernel goes over its operands once."""
    return np.zeros(len(rows), np.int64)


def reduction_passes(line: Timeline, rows: Rows, took: Longs) -> Longs:
    """What another reduction in a chain costs: what follows needs its result, so rows are written and read again.

    a reduction       2 t        it read the tensor once in t
    norm, softmax     t          it read and wrote
    """
    weight = np.array([PASSES.get(id, 0) for id in line.classes], np.int64)
    return np.asarray(weight[line.class_[rows]] * took)


def further_passes(chain: Longs, pass_ns: Longs, chains: int) -> Longs:
    """Of each chain the passes but its longest: rows stay on the chip for one reduction."""
    total, largest = np.zeros(chains, np.int64), np.zeros(chains, np.int64)
    np.add.at(total, chain, pass_ns)
    np.maximum.at(largest, chain, pass_ns)
    return total - largest


def chains(
    graph: Graph, rows: Rows, longest: bool, sizes: Sizes, passes: Passes
) -> tuple[Rows, Rows, Longs]:  # fmt: skip
    """First spans of chains of at least two, the others of them, and how long each chain takes as one."""
    points = graph.points
    order = np.lexsort((points.work, graph.at[points.start(points.work)], points.track(points.work)))
    ordered_work = points.work[order]
    small = np.isin(ordered_work, rows)
    track = points.track(ordered_work)
    continues = (
        small[1:]
        & small[:-1]
        & (track[1:] == track[:-1])
        & (graph.line.step[ordered_work[1:]] == graph.line.step[ordered_work[:-1]])
    )
    chain = np.concatenate([[0], np.cumsum(~continues)]) if len(ordered_work) else np.zeros(0, np.int64)
    count = np.bincount(chain)
    many = count[chain] > 1
    chain, ordered_work, joined_to = chain[many], ordered_work[many], np.concatenate([[False], continues])[many]
    took = graph.at[points.end(ordered_work)] - graph.at[points.start(ordered_work)]
    sizes_ = sizes(ordered_work)
    took = took if longest else np.where(sizes_ > 0, np.minimum(sizes_, took), took)
    total = np.zeros(len(count), np.int64)
    (np.maximum if longest else np.add).at(total, chain, took)
    total += further_passes(chain, passes(graph.line, ordered_work, took), len(count))
    first = ordered_work[~joined_to]
    return first, ordered_work[joined_to], total[chain[~joined_to]]
