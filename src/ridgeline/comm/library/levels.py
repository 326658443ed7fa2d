"""All-reduce in levels: domains, leaders, rails, and groups of unequal size.

split-rail   reduce-scatter inside each domain, all-reduce along each rail, all-gather inside: every port works
two-level    sum at a leader of each domain, all-reduce among leaders, copy back: fewest messages between domains
unequal      split-rail for groups of different sizes (2 + 3): slices dealt round each group, rings between owners
rings        one ring per exit of a domain, each leaving by another chip
"""

from __future__ import annotations

from itertools import pairwise
from math import lcm

import numpy as np

from ridgeline.comm.algorithm import COPY, REDUCE, Algorithm, Steps, merge_steps, parallel_parts, steps_of
from ridgeline.comm.contract import contract
from ridgeline.comm.library.gathers import PATTERNS, allgather_by_axes, allgather_over
from ridgeline.core.arrays import Index

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
    chunk_of = [np.arange(n) * rings + k for k in range(rings)]
    return parallel_parts(parts, contract("allgather", n, n * rings), "rings" if rings > 1 else "ring", chunk_of)


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
    cuts = np.cumsum([0, *sizes])
    groups = [np.arange(low, high) for low, high in pairwise(cuts)]
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
    inside = [_inside(group, holder[index]) for index, group in enumerate(groups)]
    member, slice_ = (np.concatenate([part[k] for part in inside]) for k in (0, 1))
    owners = np.concatenate([part[2] for part in inside])
    zero = np.zeros(len(member), np.int64)
    up = steps_of(zero, member, owners, slice_, REDUCE)
    between, rounds = _between(holder, count, slices)
    down = steps_of(zero + 1 + rounds, owners, member, slice_, COPY)
    outcome = contract("allreduce", n, slices)
    return Algorithm(name=name, contract=outcome, nodes=n, steps=merge_steps([up, between, down]))


def _inside(group: Index, holder: Index) -> tuple[Index, Index, Index]:
    """Every member and every slice that another one of the group owns."""
    member, slice_ = (part.ravel() for part in np.meshgrid(group, np.arange(len(holder)), indexing="ij"))
    is_other = member != holder[slice_]
    return member[is_other], slice_[is_other], holder[slice_][is_other]


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
