"""All-gather on a mesh of two axes, one of them even: a ring both ways along a closed cycle through all ranks.

A corner has two links, so that no all-gather takes fewer than (N - 1) / 2 rounds of one chunk a link. A Hamiltonian
cycle gives every rank two links of its own: in round t it gets the chunk of the rank t + 1 places before it from the
one side, and of the rank t + 1 places behind it from the other. That is as few rounds, without a search.
"""

from __future__ import annotations

import numpy as np

from ridgeline.comm.algorithm import Algorithm, Steps
from ridgeline.comm.contract import contract
from ridgeline.comm.graph import Graph
from ridgeline.comm.synthesis.matching import SYNTHESIZED
from ridgeline.core.arrays import Index


def has_cycle(graph: Graph) -> bool:
    """Whether it is a whole mesh of two axes and equal links with an even number of ranks."""
    open_mesh = len(graph.shape) == 2 and min(graph.shape) > 1 and not any(graph.wraps)
    return open_mesh and graph.ranks % 2 == 0 and graph.uniform and graph.direct


def cycle_of(shape: tuple[int, int]) -> Index:
    """Ranks of a mesh in an order in which each is linked to the next, and the last to the first.

    Back and forth through all columns but the first, and home along that one.

    >>> cycle_of((2, 3)).tolist()
    [0, 1, 2, 5, 4, 3]
    """
    grid = np.arange(shape[0] * shape[1]).reshape(shape)
    if shape[0] % 2:
        grid = grid.T
    rows = grid[:, 1:].copy()
    rows[1::2] = rows[1::2, ::-1]
    return np.concatenate([grid[0, :1], rows.ravel(), grid[:0:-1, 0]])


def cycle_allgather(graph: Graph) -> Algorithm:
    """An all-gather in ceil((N - 1) / 2) rounds."""
    n, rounds = graph.ranks, graph.ranks // 2
    order = cycle_of((graph.shape[0], graph.shape[1])).astype(np.int32)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    again = np.tile(order, 3)  # places before the first and behind the last
    chunk = np.empty((rounds, 2, n), np.int32)
    for round in range(rounds):
        chunk[round, 0] = again[place + (n - 1 - round)]
        chunk[round, 1] = again[place + (n + 1 + round)]
    sides = np.concatenate([again[place + (n - 1)], again[place + (n + 1)]])
    steps = n * (n - 1)  # the rank opposite is n / 2 away from both sides: its chunk comes from one
    whole = Steps(
        round=np.repeat(np.arange(rounds, dtype=np.int32), 2 * n)[:steps],
        source=np.tile(sides, rounds)[:steps],
        target=np.tile(np.arange(n, dtype=np.int32), 2 * rounds)[:steps],
        chunk=chunk.ravel()[:steps],
        op=np.zeros(steps, np.int8),
        channel=np.zeros(steps, np.int8),
    )
    return Algorithm(name=SYNTHESIZED, contract=contract("allgather", n, n), nodes=n, steps=whole)
