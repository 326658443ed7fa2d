"""Trees: broadcast, reduce and all-reduce in chunks that follow each other, on one tree or several.

A chunk starts a round after the one before. On the way up a node sends its sum to its parent one round after
its deepest child could have; on the way down one round after it got the chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.comm.algorithm import COPY, REDUCE, Algorithm, Steps, merge_steps, steps_of
from ridgeline.comm.contract import contract
from ridgeline.core.arrays import Index


def binary_tree(n: int) -> Index:
    """Parents in NCCL's binary tree: rank 0 is the root, odd ranks are leaves; -1 for the root.

    >>> binary_tree(8).tolist()
    [-1, 2, 4, 2, 0, 6, 4, 6]
    """
    rank = np.arange(n)
    bit = rank & -rank
    up = (rank ^ bit) | (bit << 1)
    return np.where(rank == 0, -1, np.where(up >= n, rank ^ bit, up))


def double_tree(n: int) -> tuple[Index, Index]:
    """The binary tree and its complement, mirrored or shifted by one: inner ranks of one are leaves of the other."""
    first = binary_tree(n)
    rank = np.arange(n)
    twin = (n - 1 - rank) if n % 2 == 0 else (rank - 1) % n  # the place of a rank in the first tree
    parent = first[twin]
    back = np.argsort(twin)
    return first, np.where(parent < 0, -1, back[parent])


def chain(order: Index) -> Index:
    """Parents of a line of ranks, the first one its root."""
    parent = np.full(len(order), -1, np.int64)
    parent[order[1:]] = order[:-1]
    return parent


def depths(parent: Index) -> Index:
    """How many links each node is away from its root."""
    depth, here = np.zeros(len(parent), np.int64), parent.copy()
    for _ in range(len(parent)):
        if not (here >= 0).any():
            return depth
        depth += here >= 0
        here = np.where(here >= 0, parent[here], -1)
    raise ValueError("parents that run in a circle")


def tree_up(parent: Index, chunks: Index, first: Index) -> Steps:
    """Sums towards the root: `chunks[j]` leaves the deepest leaves in round `first[j]`."""
    depth = depths(parent)
    child = np.flatnonzero(parent >= 0)
    begin = depth.max(initial=0) - depth[child]
    return _tree_steps(child, parent[child], begin, chunks, first, REDUCE)


def tree_down(parent: Index, chunks: Index, first: Index) -> Steps:
    """Copies from the root: `chunks[j]` leaves the root in round `first[j]`."""
    child = np.flatnonzero(parent >= 0)
    return _tree_steps(parent[child], child, depths(parent)[child] - 1, chunks, first, COPY)


def _tree_steps(source: Index, target: Index, begin: Index, chunks: Index, first: Index, op: int) -> Steps:
    shape = (len(chunks), len(source))
    return steps_of(
        (first[:, None] + begin).ravel(),
        np.broadcast_to(source, shape).ravel(),
        np.broadcast_to(target, shape).ravel(),
        np.broadcast_to(chunks[:, None], shape).ravel(),
        op,
    )


def tree_allreduce(parents: Sequence[Index], pieces: int, name: str) -> Algorithm:
    """All-reduce: tree i sums and spreads its own part of the vector in `pieces` chunks that follow each other."""
    n = len(parents[0])
    parts = []
    for index, parent in enumerate(parents):
        chunks = np.arange(pieces) + index * pieces
        first = np.arange(pieces)
        deep = int(depths(parent).max(initial=0))
        parts += [tree_up(parent, chunks, first), tree_down(parent, chunks, first + deep)]
    return Algorithm(
        name=name, contract=contract("allreduce", n, pieces * len(parents)), nodes=n, steps=merge_steps(parts)
    )


def tree_broadcast(parents: Sequence[Index], pieces: int, name: str) -> Algorithm:
    """Broadcast from the one root of all the trees, each with its part of the message in `pieces` chunks."""
    root = int(np.flatnonzero(parents[0] < 0)[0])
    n = len(parents[0])
    parts = [
        tree_down(parent, np.arange(pieces) + index * pieces, np.arange(pieces)) for index, parent in enumerate(parents)
    ]
    outcome = contract("broadcast", n, pieces * len(parents), root)
    return Algorithm(name=name, contract=outcome, nodes=n, steps=merge_steps(parts))


def reroot(parent: Index, root: int) -> Index:
    """The same tree with another root: the links from there to the old root are turned round."""
    new_parent = parent.copy()
    here, before = root, -1
    while here >= 0:
        new_parent[here] = before
        before, here = here, int(parent[here])
    return new_parent


def in_switch_allreduce(n: int, switch: int, pieces: int) -> Algorithm:
    """All-reduce by a switch that adds: every chunk up once, its sum down once (NVLS, SHARP)."""
    parent = np.full(switch + 1, -1, np.int64)
    parent[:n] = switch
    chunks, first = np.arange(pieces), np.arange(pieces)
    steps = merge_steps([tree_up(parent, chunks, first), tree_down(parent, chunks, first + 1)])
    return Algorithm(name="in-switch", contract=contract("allreduce", n, pieces), nodes=switch + 1, steps=steps)


def in_switch_allgather(n: int, switch: int, pieces: int) -> Algorithm:
    """All-gather by a switch that copies one message to all (multicast): a rank sends its part once."""
    rank, piece = (part.ravel() for part in np.indices((n, pieces)))
    chunk = rank * pieces + piece
    up = steps_of(piece, rank, np.full(len(rank), switch), chunk)
    source, target = (part.ravel() for part in np.nonzero(~np.eye(n, dtype=bool)))
    piece_down = np.repeat(np.arange(pieces), len(source))
    many = np.tile(source, pieces) * pieces + piece_down
    down = steps_of(piece_down + 1, np.full(len(piece_down), switch), np.tile(target, pieces), many)
    outcome = contract("allgather", n, n * pieces)
    return Algorithm(name="in-switch", contract=outcome, nodes=switch + 1, steps=merge_steps([up, down]))
