"""Known algorithms: each a function from ranks, and their place on a graph, to an Algorithm.

A pattern is an all-gather of n blocks on n positions as columns (round, source, target, block). All else follows: a
line of ranks with any number of chunks per block; several lines at once (the rows of a grid); axis after axis; the
reverse (reduce-scatter); and both in sequence (all-reduce).

    ring         n - 1 rounds to the next neighbour                     all_pairs   one round, everyone to everyone
    nhr, bruck   ceil(log2 n) rounds, any n; NHR goes far first, and the nonuniform Bruck (NB) near first
    halving      recursive halving-doubling, n a power of two           swing       the same with peers near on a ring

All-reduce in levels:

    split-rail   reduce-scatter inside each domain, all-reduce along each rail, all-gather inside: every port works
    two-level    sum at a leader of each domain, all-reduce among leaders, copy back: fewest messages between domains
    unequal      split-rail for groups of different sizes (2 + 3): slices dealt round each group, rings between owners
    rings        one ring per exit of a domain, each leaving by another chip

All-to-all and the exchanges of mixture-of-experts layers:

    pairwise     n - 1 rounds, in round t rank i sends to i + t        all-pairs   the same in one round
    bruck        ceil(log2 n) rounds, a chunk moves by the bits of its distance
    forwarded    inside the domain to the chip of the target's rail, then along the rail: one message a domain
                 dispatch: along the rail to every domain that has an expert of the token, then inside it

Trees in chunks that follow each other: on the way up a node sends its sum to its parent one round after its deepest
child could have; on the way down one round after it got the chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import lcm
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.comm.algorithm import (
    COPY,
    REDUCE,
    Algorithm,
    Steps,
    algorithm_of,
    merge_steps,
    parallel_gathers,
    steps_of,
)
from ridgeline.comm.contract import Contract, contract, dispatch, exchange, point_to_point
from ridgeline.core.arrays import Array, Index

Pattern = tuple[Index, Index, Index, Index]


class Shift(NamedTuple):
    """A round in which positions each send to the one `distance` on: blocks so many places behind their own."""

    source: Index
    distance: int
    behind: range


def shift_rounds(pattern: str, n: int) -> list[Shift]:
    """Rounds of ring, nhr and nb.

    ring   round t: position i passes block i - t on to i + 1
    nhr    nonuniform hierarchical ring: distances 2**(L-1), ..., 2, 1; a round sends the odd multiples of its distance
    nb     nonuniform Bruck: distances 1, 2, 4, ...; a round doubles the blocks held, the last one sends the rest
    """
    place, powers = np.arange(n), [1 << step for step in range((n - 1).bit_length())]
    if pattern == "ring":
        return [Shift(place, 1, range(step, step + 1)) for step in range(n - 1)]
    if pattern == "nhr":
        return [Shift(np.roll(place, power), power, range(0, n - power, 2 * power)) for power in reversed(powers)]
    return [Shift(place, power, range(min(power, n - power))) for power in powers]


def peers_of(pattern: str, n: int) -> list[Index]:
    """Who exchanges with whom, nearest first, of a power of two of positions.

    halving-doubling   peer i xor 2**s: near peers exchange most
    swing              peers at distance (1 - (-2)**(s+1)) / 3, even positions forward and odd ones back
    """
    if n & (n - 1):
        raise ValueError(f"{n} positions are no power of two")
    place, steps = np.arange(n), range(n.bit_length() - 1)
    if pattern == "halving-doubling":
        return [place ^ (1 << step) for step in steps]
    sign = np.where(place % 2 == 0, 1, -1)
    return [(place + sign * ((1 - (-2) ** (step + 1)) // 3)) % n for step in steps]


def _by_shifts(pattern: str, n: int) -> Pattern:
    parts = []
    for step, (source, distance, behind) in enumerate(shift_rounds(pattern, n)):
        i, back = (part.ravel() for part in np.meshgrid(source, np.array(behind), indexing="ij"))
        parts.append((np.full(len(i), step), i, (i + distance) % n, (i - back) % n))
    return _stack_patterns(parts)


def _by_peers(pattern: str, n: int) -> Pattern:
    """The all-gather whose last exchange is with the nearest peer: whoever met before shares what both know."""
    known_blocks = np.eye(n, dtype=bool)
    parts = []
    for step, peer in enumerate(reversed(peers_of(pattern, n))):
        source, block = np.nonzero(known_blocks)
        parts.append((np.full(len(source), step), source, peer[source], block))
        known_blocks = known_blocks | known_blocks[peer]
    return _stack_patterns(parts)


def _all_pairs(n: int) -> Pattern:
    """Everyone sends its block to everyone in one round."""
    i, j = np.nonzero(~np.eye(n, dtype=bool))
    return np.zeros(len(i), np.int64), i, j, i


def _stack_patterns(parts: list[Pattern]) -> Pattern:
    none = np.zeros(0, np.int64)
    return tuple(np.concatenate(column) for column in zip((none,) * 4, *parts, strict=True))  # type: ignore[return-value]


PATTERNS: Mapping[str, Callable[[int], Pattern]] = MappingProxyType(
    {pattern: partial(_by_shifts, pattern) for pattern in ("ring", "nhr", "nb")}
    | {pattern: partial(_by_peers, pattern) for pattern in ("halving-doubling", "swing")}
    | {"all-pairs": _all_pairs}
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
    return algorithm_of(pattern, "allgather", n, n * per_rank, steps)


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
    return algorithm_of(name, "allgather", n, n, merge_steps(parts))


MOST_RINGS = 8


def split_rail_allgather(n: int, domain: int, *, outer: str = "ring", inner: str = "all-pairs") -> Algorithm:
    """All-gather along the rails, then inside the domains; with its reverse the split-rail all-reduce."""
    grid = np.arange(n).reshape(-1, domain)
    return allgather_by_axes(grid, (0, 1), (outer, inner), "split-rail")


def rings_allgather(n: int, domain: int, rings: int) -> Algorithm:
    """Rings side by side, ring k leaving domains by chip k and, going the other way round, by chip k + 1.

    So a ring enters a domain on the rail on which it left the one before; of an odd number of domains once on another.
    """
    rings = max(1, min(rings, domain, MOST_RINGS))
    parts = [allgather_over(exit_ring(n, domain, k), "ring") for k in range(rings)]
    return parallel_gathers(parts, "rings" if rings > 1 else "ring")


def exit_ring(n: int, domain: int, k: int) -> Index:
    """The order of ranks on ring k."""
    order = np.roll(np.arange(n).reshape(-1, domain), -1 - k, axis=1)
    order[1::2] = order[1::2, ::-1].copy()
    return order.ravel()


def two_level_allreduce(n: int, domain: int) -> Algorithm:
    """All-reduce through a leader of each domain, with a ring among leaders."""
    groups = [np.arange(low, low + domain) for low in range(0, n, domain)]
    return _through_owners(groups, np.zeros((len(groups), len(groups)), np.int64), "two-level")


def unequal_allreduce(sizes: tuple[int, ...]) -> Algorithm:
    """All-reduce on groups of any sizes: slice s belongs to member s % size of each group."""
    groups = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    slices = lcm(*sizes) * len(sizes)
    owner = np.stack([np.arange(slices) // len(sizes) % size for size in sizes])
    return _through_owners(groups, owner, "unequal-groups")


def _through_owners(groups: list[Index], owner: Index, name: str) -> Algorithm:
    """Sum each slice at its owner in every group, all-reduce among the owners by rings, copy back.

    `owner[g, s]` is the place in group g of who owns slice s there; slices come in runs of one per group.
    """
    count, slices = owner.shape
    n = sum(len(group) for group in groups)
    holder = np.stack([group[owner[index]] for index, group in enumerate(groups)])
    member, slice_ = np.meshgrid(np.arange(n), np.arange(slices), indexing="ij")
    owners = np.repeat(holder, [len(group) for group in groups], axis=0)  # of each member's group
    is_other = member != owners
    member, slice_, owners = member[is_other], slice_[is_other], owners[is_other]
    zero = np.zeros(len(member), np.int64)
    up = steps_of(zero, member, owners, slice_, REDUCE)
    between, rounds = _between(holder, count, slices)
    down = steps_of(zero + 1 + rounds, owners, member, slice_, COPY)
    return algorithm_of(name, "allreduce", n, slices, merge_steps([up, between, down]))


def _between(holder: Index, count: int, slices: int) -> tuple[Steps, int]:
    """Rings among the owners of each slice; in a run of `count` slices each starts in another group."""
    t, i, j, block = PATTERNS["ring"](count)
    shape = (slices // count, len(t))
    slice_ = (np.arange(slices // count)[:, None] * count + block).ravel()
    near, far = np.broadcast_to(i, shape).ravel(), np.broadcast_to(j, shape).ravel()
    wide = np.broadcast_to(t, shape).ravel()
    last = count - 2
    back = steps_of(1 + last - wide, holder[far, slice_], holder[near, slice_], slice_, REDUCE)
    on = steps_of(1 + last + 1 + wide, holder[near, slice_], holder[far, slice_], slice_, COPY)
    return merge_steps([back, on]), 2 * (count - 1)


def pairwise(n: int, made: Contract | None = None, *, at_once: bool = False) -> Algorithm:
    """All-to-all, every chunk straight to its target; `at_once`: all in one round."""
    t, i = (part.ravel() for part in np.indices((n - 1, n)))
    j = (i + t + 1) % n
    rounds = np.zeros_like(t) if at_once else t
    name = "all-pairs" if at_once else "pairwise"
    outcome = made or contract("alltoall", n, n * n)
    return Algorithm(name=name, contract=outcome, nodes=n, steps=steps_of(rounds, i, j, i * n + j))


def alltoallv(sizes: Array, *, at_once: bool = False) -> Algorithm:
    """All-to-all of unequal sizes: `sizes[i][j]` from rank i to rank j; nothing is sent where it is 0."""
    outcome = exchange(sizes)
    full = pairwise(len(sizes), outcome, at_once=at_once)
    sent = full.steps.take(np.flatnonzero(outcome.chunk_share[full.steps.chunk] > 0))
    assert outcome.ends is not None
    nonzero_contract = replace(outcome, ends=outcome.ends[outcome.chunk_share > 0])
    return replace(full, contract=nonzero_contract, steps=sent)


def bruck_alltoall(n: int) -> Algorithm:
    """Bruck: in round s every chunk whose distance has bit s moves on by 2**s."""
    i, j = (part.ravel() for part in np.indices((n, n)))
    distance = (j - i) % n
    parts = []
    for step in range((n - 1).bit_length()):
        moves = np.flatnonzero(distance >> step & 1)
        here = (i + (distance & ((1 << step) - 1))) % n
        parts.append(
            steps_of(np.full(len(moves), step), here[moves], ((here + (1 << step)) % n)[moves], (i * n + j)[moves])
        )
    return algorithm_of("bruck", "alltoall", n, n * n, merge_steps(parts))


def forwarded_alltoall(n: int, domain: int) -> Algorithm:
    """Two-level all-to-all: to the chip of one's own domain on the target's rail, then to the target's domain."""
    i, j = (part.ravel() for part in np.indices((n, n)))
    chunk = i * n + j
    relay = i // domain * domain + j % domain
    hops = ((i, relay), (relay, j))
    moves = [np.flatnonzero(here != there) for here, there in hops]
    parts = [
        steps_of(np.full(len(rows), step), here[rows], there[rows], chunk[rows])
        for step, (rows, (here, there)) in enumerate(zip(moves, hops, strict=True))
    ]
    return algorithm_of("forwarded", "alltoall", n, n * n, merge_steps(parts))


def sends(n: int, sources: Index, targets: Index) -> Algorithm:
    """Pairs that send at once: a permutation, an incast."""
    ids = np.arange(len(sources), dtype=np.int64)
    steps = steps_of(np.zeros_like(ids), sources, targets, ids)
    return Algorithm(name="direct", contract=point_to_point(n, sources, targets), nodes=n, steps=steps)


def moe_dispatch(experts: NDArray[np.int64], ranks: int, experts_per_rank: int, *, at_once: bool = False) -> Algorithm:
    """MoE dispatch: token t of `experts` (tokens, top_k) goes once to every rank that holds one of its experts.

    Tokens are dealt to ranks in equal shares. Reversed it is the combine, which adds up what the experts made of a
    token: see `algorithm.reversed_algorithm`.
    """
    outcome, token, source, target = _dispatch_routes(experts, ranks, experts_per_rank)
    distance = (target - source) % ranks
    steps = steps_of(distance * 0 if at_once else distance - 1, source, target, token)
    name = "all-pairs" if at_once else "pairwise"
    return Algorithm(name=name, contract=outcome, nodes=ranks, steps=steps)


def forwarded_dispatch(experts: NDArray[np.int64], ranks: int, experts_per_rank: int, domain: int) -> Algorithm:
    """MoE dispatch as DeepEP's normal kernels do it: a token leaves once for every other domain, on its own rail.

    There the rank of that rail hands it on to those that hold its experts.
    """
    outcome, token, source, target = _dispatch_routes(experts, ranks, experts_per_rank)
    relay = np.where(source // domain == target // domain, source, target // domain * domain + source % domain)
    out = np.flatnonzero(relay != source)
    leaving = np.unique(token[out] * ranks + relay[out])
    onward = relay != target
    rounds = np.where(relay == source, 0, 1)[onward]
    sender = leaving // ranks // (len(experts) // ranks)
    steps = steps_of(
        np.concatenate([np.zeros_like(leaving), rounds]),
        np.concatenate([sender, relay[onward]]),
        np.concatenate([leaving % ranks, target[onward]]),
        np.concatenate([leaving // ranks, token[onward]]),
    )
    return Algorithm(name="forwarded", contract=outcome, nodes=ranks, steps=steps)


def _dispatch_routes(
    experts: NDArray[np.int64], ranks: int, experts_per_rank: int
) -> tuple[Contract, Index, Index, Index]:
    """The contract, and each token that leaves its rank with where it is and where it must go."""
    tokens = len(experts)
    sends = np.zeros((tokens, ranks), np.bool_)
    sends[np.arange(tokens)[:, None], experts // experts_per_rank] = True
    outcome = dispatch(sends, tokens // ranks)
    token, target = np.nonzero(sends)
    source = token // (tokens // ranks)
    leaves = source != target
    return outcome, token[leaves], source[leaves], target[leaves]


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
    return algorithm_of(name, "allreduce", n, pieces * len(parents), merge_steps(parts))


def tree_broadcast(parents: Sequence[Index], pieces: int, name: str) -> Algorithm:
    """Broadcast from the one root of all the trees, each with its part of the message in `pieces` chunks."""
    root = int(np.flatnonzero(parents[0] < 0)[0])
    n = len(parents[0])
    parts = [
        tree_down(parent, np.arange(pieces) + index * pieces, np.arange(pieces)) for index, parent in enumerate(parents)
    ]
    return algorithm_of(name, "broadcast", n, pieces * len(parents), merge_steps(parts), root=root)


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
    over_switch = tree_allreduce([parent], pieces, "in-switch")
    return replace(over_switch, contract=contract("allreduce", n, pieces))


def in_switch_allgather(n: int, switch: int, pieces: int) -> Algorithm:
    """All-gather by a switch that copies one message to all (multicast): a rank sends its part once."""
    rank, piece = (part.ravel() for part in np.indices((n, pieces)))
    chunk = rank * pieces + piece
    up = steps_of(piece, rank, np.full(len(rank), switch), chunk)
    source, target = (part.ravel() for part in np.nonzero(~np.eye(n, dtype=bool)))
    piece_down = np.repeat(np.arange(pieces), len(source))
    many = np.tile(source, pieces) * pieces + piece_down
    down = steps_of(piece_down + 1, np.full(len(piece_down), switch), np.tile(target, pieces), many)
    over_switch = algorithm_of("in-switch", "allgather", n, n * pieces, merge_steps([up, down]))
    return replace(over_switch, nodes=switch + 1)
