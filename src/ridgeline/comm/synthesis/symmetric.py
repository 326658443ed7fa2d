"""All-gather on a torus or ring: one rank's schedule, shifted to all.

Every rank of a torus sees the same network. Let a rank get the chunk of the rank at offset d in round t over port i. If
all ranks do so with their own offsets, every link carries one chunk a round. What is left is to deal N - 1 offsets to
ports and rounds so that the neighbour behind port i has offset d - step(i) before: a list to fill, not a graph to
search.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ridgeline.comm.algorithm import Algorithm, copies_of
from ridgeline.comm.contract import contract
from ridgeline.comm.graph import Graph
from ridgeline.core.arrays import Index


def is_symmetric(graph: Graph) -> bool:
    """Whether all ranks see the same network: a torus, a ring, all axes closed or of at most two, equal links."""
    is_closed = all(closes or size <= 2 for size, closes in zip(graph.shape, graph.wraps, strict=True))
    return bool(graph.shape) and is_closed and graph.uniform and graph.direct


def ports(shape: tuple[int, ...]) -> Index:
    """(ports, axes) steps to the neighbours that send to a rank: one of an axis of two, else two."""
    port_list = []
    for axis, size in enumerate(shape):
        for sign in (1, -1)[: min(size - 1, 2)]:
            step = np.zeros(len(shape), np.int64)
            step[axis] = sign
            port_list.append(step)
    return np.array(port_list)


def dealt(shape: tuple[int, ...]) -> tuple[Index, Index, Index]:
    """Round, port and offset of every chunk that a rank gets, over as few rounds as the ports allow.

    A port takes the waiting offset that fewest other ports could take; ports with fewest choices go first.
    """
    steps, size = ports(shape), prod(shape)
    place = np.stack(np.unravel_index(np.arange(size), shape), axis=1)
    count = len(steps)
    ahead = np.stack([np.ravel_multi_index(((place + step) % shape).T, shape) for step in steps])
    hops = np.minimum(place, np.array(shape) - place).sum(axis=1)
    is_taken = np.zeros(size, np.bool_)
    is_taken[0] = True
    waiting: list[set[int]] = [set() for _ in range(count)]
    for port in range(count):
        waiting[port].add(int(ahead[port][0]))
    rows: list[tuple[int, int, int]] = []
    round = 0
    while len(rows) < size - 1:
        new = []
        for port in sorted(range(count), key=lambda one: len(waiting[one])):
            if waiting[port]:
                best = min(waiting[port], key=lambda one: (int(hops[one]), sum(one in queue for queue in waiting), one))
                new.append((port, best))
                for queue in waiting:
                    queue.discard(best)
                is_taken[best] = True
        for port, offset in new:
            rows.append((round, port, offset))
        for _, offset in new:
            for port in range(count):
                onward = int(ahead[port][offset])
                if not is_taken[onward]:
                    waiting[port].add(onward)
        round += 1
    table = np.array(rows, np.int64)
    return table[:, 0], table[:, 1], table[:, 2]


def symmetric_allgather(graph: Graph) -> Algorithm:
    """All-gather on a torus or ring in ceil((N - 1) / ports) rounds, or very nearly."""
    shape = graph.shape
    round, port, offset = dealt(shape)
    n = graph.ranks
    place = np.stack(np.unravel_index(np.arange(n), shape), axis=1)
    behind = [np.ravel_multi_index(((place - step) % shape).T, shape).astype(np.int32) for step in ports(shape)]
    far = np.stack(np.unravel_index(offset, shape), axis=1)
    chunk = np.zeros((len(round), n), np.int32)
    for axis, size in enumerate(shape):  # the rank at offset d behind a rank, axis by axis
        stride = prod(shape[axis + 1 :])
        chunk += (((place[:, axis][None] - far[:, axis][:, None]) % size) * stride).astype(np.int32)
    target = np.tile(np.arange(n, dtype=np.int32), len(round))
    steps = copies_of(np.repeat(round.astype(np.int32), n), np.stack(behind)[port].ravel(), target, chunk.ravel())
    return Algorithm(name="synthesized", contract=contract("allgather", n, n), nodes=n, steps=steps)
