"""Turn matched collectives into the compute of each rank between two of them: what is even in sum may not be so here.

    c[k, r]     compute of rank r between collectives k - 1 and k, both of all ranks
    uneven      mean over k of max over r of c[k, r]  /  mean over k and r of c[k, r]  -  1

Where c differs, all wait at k for whoever has most. Work that were even at every k would take mean over r of c[k, r].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.arrays import Mask
from ridgeline.trace.classes import COMPUTE, Rules
from ridgeline.trace.graph.match_collectives import MatchedCollective
from ridgeline.trace.timeline import Timeline

FEWEST = 4  # collectives to speak of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Between:
    """Compute between collectives of all ranks."""

    compute_ns: NDArray[np.float64]
    """By collective and rank."""
    rows: NDArray[np.intp]
    """Spans of compute that stand before one of them."""
    at: NDArray[np.int64]
    """Which collective each stands before."""
    rank: NDArray[np.int64]
    """Whose each is, as a column."""

    @property
    def uneven(self) -> float:
        """How much longer the longest rank computes than the mean, from one collective to the next."""
        return float(self.compute_ns.max(axis=1).sum() / max(1.0, self.compute_ns.mean(axis=1).sum()) - 1)

    @property
    def even(self) -> float:
        """The same for the sums of ranks."""
        total = self.compute_ns.sum(axis=0)
        return float(total.max() / max(1.0, total.mean()) - 1)

    @property
    def shares(self) -> NDArray[np.float64]:
        """Of each row: how long it would be if all ranks computed as long before each collective."""
        share = self.compute_ns.mean(axis=1, keepdims=True) / np.maximum(1.0, self.compute_ns)
        return np.asarray(share[self.at, self.rank])


def compute_between(
    line: Timeline, rules: Rules, counted: Mask, found: Sequence[MatchedCollective]
) -> Between | None:  # fmt: skip
    """The compute between collectives that every rank takes part in, in the order of their starts."""
    world = max((len(match.ranks) for match in found), default=0)
    world_matches = [match for match in found if len(match.ranks) == world]
    if world < 2 or len(world_matches) < FEWEST or len({match.ranks for match in world_matches}) != 1:
        return None
    world_matches.sort(key=lambda one: int(line.start_ns[one.rows[0]]))
    groups = np.array([rules.group_of(id) == COMPUTE for id in line.classes], np.bool_)
    time = np.zeros((len(world_matches), world))
    rows, at, rank = [], [], []
    for column in range(world):
        ends = np.array([line.start_ns[match.rows[column]] for match in world_matches])
        if (np.diff(ends) < 0).any():
            return None  # ranks disagree about the order
        process = line.process[world_matches[0].rows[column]]
        compute_rows = np.flatnonzero(counted & groups[line.class_] & (line.process == process))
        place = np.searchsorted(ends, line.start_ns[compute_rows], side="right")
        compute_rows, place = compute_rows[place < len(world_matches)], place[place < len(world_matches)]
        np.add.at(time[:, column], place, line.durations_ns(compute_rows))
        rows.append(compute_rows)
        at.append(place)
        rank.append(np.full(len(compute_rows), column))
    return Between(
        compute_ns=time, rows=np.concatenate(rows), at=np.concatenate(at).astype(np.int64),
        rank=np.concatenate(rank).astype(np.int64),
    )  # fmt: skip
