"""All-gathers over positions of a line, and all-gathers, reduce-scatters and all-reduces over ranks made of them.

A pattern is an all-gather of n blocks on n positions as columns (round, source, target, block). All else follows: a
line of ranks with any number of chunks per block; several lines at once (the rows of a grid); axis after axis; the
reverse (reduce-scatter); and both in sequence (all-reduce).

    ring         n - 1 rounds to the next neighbour                     all_pairs   one round, everyone to everyone
    nhr, bruck   ceil(log2 n) rounds, any n; NHR goes far first, and the nonuniform Bruck (NB) near first
    halving      recursive halving-doubling, n a power of two           swing       the same with peers near on a ring
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from ridgeline.comm.algorithm import Algorithm, Steps, gather_both_ways, merge_steps, steps_of
from ridgeline.comm.contract import contract
from ridgeline.core.arrays import Index

Pattern = tuple[Index, Index, Index, Index]


def ring(n: int) -> Pattern:
    """Round t: position i passes block i - t on to i + 1."""
    t, i = (part.ravel() for part in np.indices((max(n - 1, 0), n)))
    return t, i, (i + 1) % n, (i - t) % n


def all_pairs(n: int) -> Pattern:
    """Everyone sends its block to everyone in one round."""
    i, j = (part.ravel() for part in np.nonzero(~np.eye(n, dtype=bool)))
    return np.zeros(len(i), np.int64), i, j, i


def nhr(n: int) -> Pattern:
    """Nonuniform hierarchical ring: distances 2**(L-1), ..., 2, 1; a round sends the odd multiples of its distance."""
    rounds = (n - 1).bit_length()
    return _by_distance(n, [1 << (rounds - 1 - step) for step in range(rounds)])


def _by_distance(n: int, distances: list[int]) -> Pattern:
    parts = []
    for step, distance in enumerate(distances):
        behind = np.arange(distance, n, 2 * distance)  # what the receiver gets, as distance from its own block
        i, d = (part.ravel() for part in np.meshgrid(np.arange(n), behind, indexing="ij"))
        parts.append((np.full(len(i), step), (i - distance) % n, i, (i - d) % n))
    return _stack_patterns(parts)


def bruck(n: int) -> Pattern:
    """Nonuniform Bruck (NB): distances 1, 2, 4, ...; a round doubles the blocks held, the last one sends the rest."""
    parts, blocks_held, step = [], 1, 0
    while blocks_held < n:
        i, d = (
            part.ravel()
            for part in np.meshgrid(np.arange(n), np.arange(min(blocks_held, n - blocks_held)), indexing="ij")
        )
        parts.append((np.full(len(i), step), i, (i + blocks_held) % n, (i - d) % n))
        blocks_held, step = 2 * blocks_held, step + 1
    return _stack_patterns(parts)


def halving(n: int) -> Pattern:
    """Recursive halving-doubling: peer i xor 2**s, near peers exchange most."""
    return _by_peer(n, [np.arange(n) ^ (1 << step) for step in range(n.bit_length() - 1)])


def swing(n: int) -> Pattern:
    """Swing: peers at distance (1 - (-2)**(s+1)) / 3, even positions forward and odd ones back."""
    i = np.arange(n)
    sign = np.where(i % 2 == 0, 1, -1)
    return _by_peer(n, [(i + sign * ((1 - (-2) ** (step + 1)) // 3)) % n for step in range(n.bit_length() - 1)])


def _by_peer(n: int, peers: list[Index]) -> Pattern:
    """The all-gather whose last exchange is with `peers[0]`: whoever met before shares what both know."""
    if n & (n - 1):
        raise ValueError(f"{n} positions are no power of two")
    known_blocks = np.eye(n, dtype=bool)
    parts = []
    for step, peer in enumerate(reversed(peers)):
        source, block = np.nonzero(known_blocks)
        parts.append((np.full(len(source), step), source, peer[source], block))
        known_blocks = known_blocks | known_blocks[peer]
    return _stack_patterns(parts)


def _stack_patterns(parts: list[Pattern]) -> Pattern:
    if not parts:
        none = np.zeros(0, np.int64)
        return none, none, none, none
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))  # type: ignore[return-value]


PATTERNS: Mapping[str, Callable[[int], Pattern]] = MappingProxyType(
    {
        "ring": ring,
        "nhr": nhr,
        "nb": bruck,
        "bruck": bruck,
        "halving-doubling": halving,
        "swing": swing,
        "all-pairs": all_pairs,
    }
)
"""All-gather patterns by the name of the algorithm."""


def along(lines: Index, blocks: Index, pattern: Pattern, first_round: int = 0) -> Steps:
    """A pattern on every line of ranks at once.

    lines   (lines, n) ranks; blocks  (lines, n, m) the chunks that each of them begins with
    """
    round, source, target, block = pattern
    m = blocks.shape[2]
    rows = np.arange(len(lines))[:, None, None]
    chunk = blocks[rows, block[None, :, None], np.arange(m)]
    wide = np.broadcast_to(round[None, :, None] + first_round, chunk.shape)
    sources = np.broadcast_to(lines[:, source][:, :, None], chunk.shape)
    targets = np.broadcast_to(lines[:, target][:, :, None], chunk.shape)
    return steps_of(wide.ravel(), sources.ravel(), targets.ravel(), chunk.ravel())


def allgather_over(order: Index, pattern: str, per_rank: int = 1) -> Algorithm:
    """All-gather on ranks in the given order of positions, `per_rank` chunks each."""
    n = len(order)
    blocks = (order[:, None] * per_rank + np.arange(per_rank))[None]
    steps = along(order[None], blocks, PATTERNS[pattern](n))
    return Algorithm(name=pattern, contract=contract("allgather", n, n * per_rank), nodes=n, steps=steps)


def ring_allgather(n: int) -> Algorithm:
    """All-gather on a ring of ranks 0, 1, ...: each round every rank passes on what it got in the last."""
    return allgather_over(np.arange(n), "ring")


def allgather_by_axes(grid: Index, axes: tuple[int, ...], patterns: tuple[str, ...], name: str) -> Algorithm:
    """All-gather along one axis of a grid of ranks after the other: with rings the bucket algorithm of a torus.

    `grid` holds rank numbers; along `axes[0]` a rank sends one chunk a block, along the next what it has by then.
    """
    n = grid.size
    chunks_held = grid[..., None]  # chunks each place of the grid holds
    parts, first = [], 0
    for axis, pattern in zip(axes, patterns, strict=True):
        size = grid.shape[axis]
        lines = np.moveaxis(grid, axis, -1).reshape(-1, size)
        blocks = np.moveaxis(chunks_held, axis, -2).reshape(len(lines), size, -1)
        columns = PATTERNS[pattern](size)
        parts.append(along(lines, blocks, columns, first))
        first += int(columns[0].max(initial=-1)) + 1
        together = blocks.reshape(len(lines), -1)
        gathered_chunks = np.broadcast_to(together[:, None], (len(lines), size, together.shape[1]))
        grid_shape = np.moveaxis(grid, axis, -1).shape
        chunks_held = np.moveaxis(gathered_chunks.reshape(*grid_shape, -1), -2, axis)
    return Algorithm(name=name, contract=contract("allgather", n, n), nodes=n, steps=merge_steps(parts))


def reduce_then_gather(gather: Algorithm) -> Algorithm:
    """The all-reduce whose halves are an all-gather and its reverse."""
    outcome = contract("allreduce", gather.ranks, gather.contract.chunks)
    return gather_both_ways(gather, outcome)
