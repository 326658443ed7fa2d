"""Turn priced chunks into the few plans worth keeping: the fastest, the frontier, and the best of every family.

A family is all plans that share one choice: tp = 4, or the schedule zbv. What a family's best plan loses against the
winner is what that choice costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.plan.plan import Plan
from ridgeline.search.cells import Cells
from ridgeline.search.sweep import Chunk

Array = NDArray[np.float64]
Places = NDArray[np.int64]
# what makes a family: in a chunk all plans share the first, the second differ by cell
SHARED = ("pp", "schedule", "shard", "offload")
BY_CELL = ("tp", "cp", "ep", "etp", "microbatch")
BY_STRUCTURE = ("recompute", "precision", "switches")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A plan the sweep priced: its step and the peak of its fullest rank."""

    plan: Plan
    step_s: float
    peak_bytes: float


def entry(chunk: Chunk, place: int) -> Entry:
    """One plan of a chunk."""
    return Entry(plan=chunk.plan(place), step_s=float(chunk.step_s[place]), peak_bytes=float(chunk.peak_bytes[place]))


def front(step: Array, peak: Array) -> Places:
    """Places of plans that no other beats in both.

    >>> front(np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, 4.0]))
    array([0, 2])
    """
    order = np.lexsort((peak, step))
    least = np.minimum.accumulate(peak[order])
    first = np.concatenate([[True], peak[order][1:] < least[:-1]])
    return np.asarray(order[first])


class Kept:
    """Plans worth keeping while the space is swept, by chunk and place in it."""

    def __init__(self) -> None:
        self._from: list[tuple[Chunk, int]] = []
        self._step = np.zeros(0)
        self._peak = np.zeros(0)
        self._slowest = np.inf

    @property
    def best_s(self) -> float:
        """The fastest step so far."""
        return float(self._step.min()) if len(self._step) else float("inf")

    def add(self, chunk: Chunk, places: Places) -> None:
        """Some plans of a chunk."""
        own = chunk.taken(places)
        self._from += [(own, place) for place in range(len(places))]
        self._step = np.concatenate([self._step, own.step_s])
        self._peak = np.concatenate([self._peak, own.peak_bytes])

    def fastest(self, chunk: Chunk, fits: Places, most: int) -> None:
        """Those of a chunk's plans that may be among the fastest of all; of equal ones those found first."""
        step = chunk.step_s[fits]
        may = fits[step < self._slowest]
        if not len(may):
            return
        self.add(chunk, may[np.argsort(chunk.step_s[may], kind="stable")[:most]])
        if len(self._step) > 8 * most:
            self._take(np.argsort(self._step, kind="stable")[:most])
            self._slowest = float(self._step.max())

    def settle(self) -> None:
        """Keep those that no other beats in both time and memory."""
        self._take(front(self._step, self._peak))

    def _take(self, places: Places) -> None:
        self._from = [self._from[place] for place in places]
        self._step, self._peak = self._step[places], self._peak[places]

    def entries(self, most: int | None = None) -> tuple[Entry, ...]:
        """What is kept, fastest first."""
        order = np.lexsort((self._peak, self._step))[:most]
        return tuple(entry(*self._from[place]) for place in order)


class Roomier:
    """The fastest plan if a chip had so many times the memory: what the capacity keeps out."""

    def __init__(self, capacity: float, factors: tuple[float, ...]) -> None:
        self._limits = {factor: capacity * factor for factor in factors}
        self._best: dict[float, Entry] = {}

    def add(self, chunk: Chunk) -> None:
        """Look at all plans of a chunk."""
        for factor, limit in self._limits.items():
            bar = self._best[factor].step_s if factor in self._best else np.inf
            step = np.where(chunk.peak_bytes <= limit, chunk.step_s, np.inf)
            place = int(step.argmin())
            if step[place] < bar:
                self._best[factor] = entry(chunk, place)

    def entries(self) -> Mapping[float, Entry]:
        """The fastest by factor; nothing where none fits."""
        return self._best


class Families:
    """The best plan of every family while the space is swept."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, Any], tuple[float, Chunk]] = {}
        self._cells: dict[int, _ByCell] = {}

    def add(self, chunk: Chunk, fits: Places) -> None:
        """The plans of a chunk that fit."""
        place = fits[int(chunk.step_s[fits].argmin())]
        step = float(chunk.step_s[place])
        for axis in SHARED:
            key = (axis, getattr(chunk, axis))
            if step < self._shared.get(key, (np.inf,))[0]:
                self._shared[key] = (step, chunk.taken(np.array([place])))
        table = self._cells.get(id(chunk.cells))
        if table is None:
            table = self._cells[id(chunk.cells)] = _ByCell(chunk.cells)
        table.add(chunk, fits)

    def entries(self) -> Mapping[str, tuple[Entry, ...]]:
        """By axis, the best plan at each of its choices, fastest first; axes with one choice are left out."""
        found: dict[str, list[Entry]] = {}
        for (axis, _), (_, chunk) in self._shared.items():
            found.setdefault(axis, []).append(entry(chunk, 0))
        for table in self._cells.values():
            for axis, one in table.entries():
                found.setdefault(axis, []).append(one)
        best = {axis: _best_of(axis, some) for axis, some in found.items()}
        return {axis: some for axis, some in best.items() if len(some) > 1}


def choice(plan: Plan, axis: str) -> Any:
    """What a plan has chosen along an axis."""
    if axis in ("pp", "tp", "cp", "ep", "etp"):
        return getattr(plan.mesh, axis)
    return plan.sharding.shard if axis == "shard" else getattr(plan, axis)


def _best_of(axis: str, entries: list[Entry]) -> tuple[Entry, ...]:
    """The fastest of each choice, fastest first."""
    kept: list[Entry] = []
    for one in sorted(entries, key=lambda entry: entry.step_s):
        if all(choice(one.plan, axis) != choice(other.plan, axis) for other in kept):
            kept.append(one)
    return tuple(kept)


class _ByCell:
    """The best plan of every cell: a column for what a chunk says of it."""

    def __init__(self, cells: Cells) -> None:
        many = len(cells)
        self._cells = cells
        self._step = np.full(many, np.inf)
        self._rest = np.zeros((3, many))  # peak, dp, degree
        self._head = np.zeros(many, dtype=np.int64)
        self._heads: list[Chunk] = []

    def add(self, chunk: Chunk, fits: Places) -> None:
        """Plans of a chunk; no cell occurs twice in it."""
        better = fits[chunk.step_s[fits] < self._step[chunk.cell[fits]]]
        if not len(better):
            return
        at = chunk.cell[better]
        self._step[at] = chunk.step_s[better]
        self._rest[:, at] = chunk.peak_bytes[better], chunk.dp[better], chunk.degree[better]
        self._head[at] = len(self._heads)
        self._heads.append(chunk.taken(np.zeros(0, dtype=np.int64)))

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """The best cell at each choice along each axis."""
        known = np.flatnonzero(np.isfinite(self._step))
        for axis in BY_CELL:
            yield from self._best(axis, known, np.asarray(getattr(self._cells.degrees, axis)))
        for axis in BY_STRUCTURE:
            yield from self._best(axis, known, self._cells.structure)

    def _best(self, axis: str, known: Places, column: NDArray[Any]) -> Iterator[tuple[str, Entry]]:
        for value in np.unique(column[known]):
            own = known[column[known] == value]
            yield axis, self._entry(int(own[self._step[own].argmin()]))

    def _entry(self, cell: int) -> Entry:
        peak, dp, degree = self._rest[:, cell]
        one = replace(
            self._heads[self._head[cell]],
            cell=np.array([cell]),
            dp=np.array([dp]),
            degree=np.array([degree]),
            step_s=self._step[cell : cell + 1],
            peak_bytes=np.array([peak]),
        )
        return entry(one, 0)
