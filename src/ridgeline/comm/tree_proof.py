"""Turn an algorithm that first adds and then copies into a proof by the shape of its steps, without following sums.

    adding      every place is sent at most once, and after all that is added to it: what a rank contributes moves on
                along one path and ends in one place. A chunk that has one such end holds every contribution once there
    copying     every place is written at most once, from such an end or from a place that was written before

A place is a chunk's memory on one node. Library and synthesis make nothing else; whatever is neither, or wrong, is left
to `verify`'s replay, which says what breaks. A few passes over all steps, not one over the rounds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ridgeline.comm.algorithm import REDUCE, Algorithm
from ridgeline.comm.contract import Contract
from ridgeline.core.arrays import Index, Mask

MOST_PLACES = 1 << 27
BLOCK = 1 << 18  # steps that are looked at together, to stay in a cache
NEVER = np.iinfo(np.int32).max

Rounds = NDArray[np.int32]


def proved(algorithm: Algorithm) -> bool:
    """Whether the steps' shape proves that every output holds every contribution exactly once, without races.

    False says only that this proof does not hold. Numbers of steps must be inside their ranges.
    """
    steps, contract = algorithm.steps, algorithm.contract
    places = algorithm.nodes * contract.chunks
    first_copy = int(np.count_nonzero(steps.op == REDUCE))
    if places > MOST_PLACES or (steps.op[:first_copy] != REDUCE).any():
        return False
    if 0 < first_copy < len(steps) and steps.round[first_copy - 1] == steps.round[first_copy]:
        return False
    roots = _added(algorithm, first_copy, places)
    if roots is None:
        return False
    many = roots.reshape(algorithm.nodes, -1).sum(axis=0) != 1
    if many.any() and many[contract.end_places() % contract.chunks].any():
        return False
    whole = _copied(algorithm, first_copy, roots)
    return whole is not None and bool(_at_ends(whole, contract).all())


def _at_ends(whole: Mask, contract: Contract) -> Mask:
    return whole[: contract.ranks * contract.chunks] if contract.ends is None else whole[contract.end_places()]


def _added(algorithm: Algorithm, stop: int, places: int) -> Mask | None:
    """Where contributions end: places that hold something and are not sent while sums are made."""
    begins = algorithm.contract.begin_places()
    since = np.full(places, NEVER, np.int32)  # the last round that added to a place, -1 of what it begins with
    since[begins] = -1
    if np.count_nonzero(since == -1) != len(begins):
        return None
    for _, write, round in _blocks(algorithm, 0, stop):
        since[write] = round
    sent = np.zeros(places, np.bool_)
    for read, _, round in _blocks(algorithm, 0, stop):
        if not (since[read] < round).all():
            return None
        sent[read] = True
    return None if np.count_nonzero(sent) != stop else (since != NEVER) & ~sent


def _copied(algorithm: Algorithm, start: int, roots: Mask) -> Mask | None:
    """The places that hold whole chunks in the end."""
    since = np.where(roots, np.int32(-1), np.int32(NEVER))
    for _, write, round in _blocks(algorithm, start, len(algorithm.steps)):
        since[write] = round
    whole: Mask = since != NEVER
    if np.count_nonzero(whole) != np.count_nonzero(roots) + len(algorithm.steps) - start:
        return None
    for read, _, round in _blocks(algorithm, start, len(algorithm.steps)):
        if not (since[read] < round).all():
            return None
    return whole


def _blocks(algorithm: Algorithm, start: int, stop: int) -> Iterator[tuple[Index, Index, Rounds]]:
    """Places that steps read and write, and their rounds, some steps at a time."""
    steps, chunks = algorithm.steps, np.int64(algorithm.contract.chunks)
    for low in range(start, stop, BLOCK):
        rows = slice(low, min(low + BLOCK, stop))
        chunk = steps.chunk[rows]
        yield steps.source[rows] * chunks + chunk, steps.target[rows] * chunks + chunk, steps.round[rows]
