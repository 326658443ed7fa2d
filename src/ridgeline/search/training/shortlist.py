"""Turn priced chunks into a shortlist: the fastest plans, the Pareto front of time and memory, the best at each choice.

The best plan at a choice is the best of all that share it: tp = 4, or the schedule zbv. What it loses against the
winner is what that choice costs. Of plans that are equally fast the one with the fewest moving parts is chosen.

The order of plans is total (`ordered`), so that it does not matter in which chunks they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.records import dataclass
from ridgeline.core.units import DECIMAL
from ridgeline.ir.ops import Num
from ridgeline.lowering.plan_columns import SHARDS
from ridgeline.plan.plan import Offload, Plan, Schedule
from ridgeline.search.training.space import choice
from ridgeline.search.training.sweep import DegreeGrid, PlanChunk

# axes of choices: in a chunk all plans share the first, the second differ by cell, the third by its structure
SHARED = ("pp", "schedule", "shard", "offload")
BY_CELL = ("tp", "cp", "ep", "etp", "microbatch")
BY_STRUCTURE = ("recompute", "precision", "switches")
PARALLEL = ("pp", "cp", "tp", "ep", "etp")


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedEntry:
    """A plan the sweep priced: its step and the peak of its fullest rank."""

    plan: Plan
    step_s: float
    peak_bytes: float

    @property
    def takes(self) -> tuple[float, float]:
        """Time, then memory."""
        return self.step_s, self.peak_bytes


PLAIN = Plan()
EQUAL = 0.001  # of a step: steps of one run differ by more, and predictions err by more than ten times that
PART = DECIMAL["M"]  # weight of a moving part: more than degrees and chunks can sum to


def fixed_parts(plan: Plan) -> int:
    """Moving parts of a plan that neither degrees nor its schedule nor its sharding tell: each choice unlike the usual.

    >>> from ridgeline.plan.plan import Recompute
    >>> fixed_parts(Plan()), fixed_parts(Plan(recompute=Recompute(kind="full")))
    (0, 1)
    """
    pairs = [(plan.precision, PLAIN.precision), (plan.mesh.order, PLAIN.mesh.order)]
    pairs += [(getattr(plan.switches, name), getattr(PLAIN.switches, name)) for name in PLAIN.switches.__slots__]
    return (plan.recompute.kind != "none") + sum(choice != usual for choice, usual in pairs)


def _parts_weight(sizes: Sequence[Num], schedule: Schedule, offload: Offload, sharding: Num, fixed: Num) -> Array:
    """One for every degree above 1, stage of ZeRO, kind of offload, schedule beyond 1f1b and fixed part; of as many the
    smaller degrees and the fewer chunks."""
    parts = sum((size > 1) * 1 for size in sizes) + sharding + fixed + (schedule != Schedule())
    parts = parts + (offload.activations > 0) + (offload.optimizer > 0)
    return np.asarray(parts * PART + sum(sizes) + schedule.chunks, dtype=np.float64)


def moving_parts(plan: Plan) -> float:
    """How many moving parts a plan has: of plans that are equally fast the one with fewer is chosen.

    >>> from ridgeline.plan.mesh import Mesh
    >>> from ridgeline.plan.plan import Sharding
    >>> sharded = Plan(mesh=Mesh(dp=8), sharding=Sharding(shard="zero3"))
    >>> [int(moving_parts(plan) // PART) for plan in (Plan(mesh=Mesh(dp=8)), Plan(mesh=Mesh(dp=4, tp=2)), sharded)]
    [0, 1, 3]
    """
    sizes = [getattr(plan.mesh, axis) for axis in PARALLEL]
    sharding = SHARDS.index(plan.sharding.shard) + (plan.sharding.shard_degree is not None)
    return float(_parts_weight(sizes, plan.schedule, plan.offload, sharding, fixed_parts(plan)))


def in_order(entries: Iterable[PricedEntry]) -> Iterator[PricedEntry]:
    """The faster first, then the smaller, then the one with fewer moving parts, then the first in the alphabet.

    >>> entries = [PricedEntry(plan=Plan(), step_s=step_s, peak_bytes=1.0) for step_s in (2.0, 1.0)]
    >>> [entry.step_s for entry in in_order(entries)]
    [1.0, 2.0]
    """
    for _, group in groupby(sorted(entries, key=lambda one: one.takes), key=lambda one: one.takes):
        equal = list(group)
        yield from equal if len(equal) == 1 else sorted(equal, key=lambda one: (moving_parts(one.plan), str(one.plan)))


def first(*entries: PricedEntry) -> PricedEntry:
    """The first in order."""
    return next(in_order(entries))


def entry(chunk: PlanChunk, place: int) -> PricedEntry:
    """One plan of a chunk."""
    return PricedEntry(
        plan=chunk.plan(place), step_s=float(chunk.step_s[place]), peak_bytes=float(chunk.peak_bytes[place])
    )


def least(chunk: PlanChunk, column: Array, then: Array) -> PricedEntry:
    """The plan with the least of one column, of equal ones that with the least of the other, then the first."""
    places = np.flatnonzero(column == column.min())
    places = places[then[places] == then[places].min()]
    return first(*(entry(chunk, int(place)) for place in places))


def pareto_front(step: Array, peak: Array) -> Index:
    """Index of the plans that none dominates: none is at least as good in both and better in one.

    >>> pareto_front(np.array([1.0, 2.0, 3.0, 3.0]), np.array([5.0, 6.0, 4.0, 4.0]))
    array([0, 2, 3])
    """
    order = np.lexsort((peak, step))
    step, peak = step[order], peak[order]
    fresh = np.concatenate([[True], (step[1:] != step[:-1]) | (peak[1:] != peak[:-1])])
    unbeaten = np.concatenate([[True], peak[1:] < np.minimum.accumulate(peak)[:-1]])
    heads = np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))
    return np.asarray(order[unbeaten[heads]])


class Candidates:
    """Plans that may be in the answer while the space is swept, by chunk and place in it."""

    def __init__(self) -> None:
        self._from: list[tuple[PlanChunk, int]] = []
        self._step = np.zeros(0)
        self._peak = np.zeros(0)

    @property
    def best_s(self) -> float:
        """The fastest step so far."""
        return float(self._step.min()) if len(self._step) else float("inf")

    def _add(self, chunk: PlanChunk, places: Index) -> None:
        current = chunk.taken(places)
        self._from += [(current, place) for place in range(len(places))]
        self._step = np.concatenate([self._step, current.step_s])
        self._peak = np.concatenate([self._peak, current.peak_bytes])

    def _take(self, places: Index) -> None:
        self._from = [self._from[place] for place in places]
        self._step, self._peak = self._step[places], self._peak[places]

    def _order(self, most: int) -> Index:
        """Index of the first so many in order; which of equal ones are among them their names decide."""
        order = np.lexsort((self._peak, self._step))
        if len(order) <= most:
            return order
        last = order[most - 1]
        equal = np.flatnonzero((self._step == self._step[last]) & (self._peak == self._peak[last]))
        if len(equal) > 1:
            before = np.flatnonzero(order == equal[0])[0]
            ties = [(entry(*self._from[place]), place) for place in equal]
            names = {id(tie): place for tie, place in ties}
            order[before : before + len(equal)] = [names[id(item)] for item in in_order(item for item, _ in ties)]
        return order[:most]

    def entries(self) -> tuple[PricedEntry, ...]:
        """The plans, best first."""
        return tuple(in_order(entry(*current) for current in self._from))


class Fastest(Candidates):
    """The shortlist: so many of the fastest plans."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._slowest = np.inf

    def add(self, chunk: PlanChunk) -> None:
        """Those of a chunk's plans that may be among them."""
        may = np.flatnonzero(chunk.step_s <= self._slowest)
        if len(may) > self._most:
            last = np.partition(chunk.step_s[may], self._most - 1)[self._most - 1]
            may = may[chunk.step_s[may] <= last]
        if len(may):
            self._add(chunk, may)
        if len(self._step) > 8 * self._most:
            self._settle()

    def _settle(self) -> None:
        self._take(self._order(self._most))
        if len(self._step) == self._most:
            self._slowest = float(self._step.max())

    def entries(self) -> tuple[PricedEntry, ...]:
        """The fastest, best first."""
        self._settle()
        return super().entries()


class ParetoFront(Candidates):
    """The Pareto front of time and memory: plans that none dominates, fastest first; of equal ones one."""

    def add(self, chunk: PlanChunk) -> None:
        """Those of a chunk's plans that are on it."""
        may = np.flatnonzero(~self._is_dominated(chunk.step_s, chunk.peak_bytes))
        if len(may):
            self._add(chunk, may[pareto_front(chunk.step_s[may], chunk.peak_bytes[may])])
            self._take(pareto_front(self._step, self._peak))

    def _is_dominated(self, step: Array, peak: Array) -> Mask:
        """Whether a plan on the front dominates each of these: at least as good in one and better in the other."""
        if not len(self._step):
            return np.zeros(len(step), dtype=np.bool_)
        place = np.searchsorted(self._step, step, side="right") - 1
        rival = self._peak[place]
        return np.asarray((place >= 0) & ((rival < peak) | ((rival == peak) & (self._step[place] < step))))

    def entries(self) -> tuple[PricedEntry, ...]:
        """The front, fastest first."""
        return tuple({(item.step_s, item.peak_bytes): item for item in reversed(super().entries())}.values())[::-1]


class EqualPlans:
    """Plans as fast as the fastest but for `EQUAL`, as far as none is both faster and has fewer moving parts."""

    def __init__(self) -> None:
        self._from: list[tuple[PlanChunk, int]] = []
        self._step = self._parts = np.zeros(0)
        self._fastest = np.inf
        self._fixed: dict[int, Array] = {}

    def add(self, chunk: PlanChunk) -> None:
        """Those of a chunk's plans that may be chosen."""
        self._fastest = min(self._fastest, float(chunk.step_s.min()))
        may = np.flatnonzero(chunk.step_s <= self._fastest * (1 + EQUAL))
        if not len(may):
            return
        current = chunk.taken(may)
        self._from += [(current, place) for place in range(len(may))]
        step, parts = (
            np.concatenate(pair) for pair in ((self._step, current.step_s), (self._parts, self.weigh(current)))
        )
        front = pareto_front(step, parts)
        front = front[step[front] <= self._fastest * (1 + EQUAL)]
        self._from, self._step, self._parts = [self._from[place] for place in front], step[front], parts[front]

    def weigh(self, chunk: PlanChunk) -> Array:
        """`moving_parts` of the plans of a chunk."""
        grid, cell = chunk.grid, chunk.cell
        if id(grid) not in self._fixed:
            self._fixed[id(grid)] = np.array([fixed_parts(item.plan) for item in grid.scenarios])
        sizes = {name: np.asarray(getattr(grid.degrees, name))[cell] for name in PARALLEL if name != "pp"}
        hybrid = (chunk.shard != "none") & (chunk.degree != chunk.dp * sizes["cp"])
        sharding, fixed = SHARDS.index(chunk.shard) + hybrid, self._fixed[id(grid)][grid.structure[cell]]
        return _parts_weight([chunk.pp, *sizes.values()], chunk.schedule, chunk.offload, sharding, fixed)

    def simplest(self) -> PricedEntry | None:
        """The one with the fewest moving parts; None before there is any."""
        if not len(self._parts):
            return None
        return first(*(entry(*self._from[place]) for place in np.flatnonzero(self._parts == self._parts.min())))


class BestWithMoreMemory:
    """The fastest plan if a chip had so many times the memory: what the capacity keeps out."""

    def __init__(self, capacity: float, factors: tuple[float, ...]) -> None:
        self._limits = {factor: capacity * factor for factor in factors}
        self._best: dict[float, PricedEntry] = {}

    def add(self, chunk: PlanChunk) -> None:
        """Look at all plans of a chunk."""
        for factor, limit in self._limits.items():
            bar = self._best[factor].step_s if factor in self._best else np.inf
            may = np.flatnonzero((chunk.step_s <= bar) & (chunk.peak_bytes <= limit))
            if len(may):
                current = chunk.taken(may)
                best = least(current, current.step_s, current.peak_bytes)
                self._best[factor] = first(best, self._best.get(factor, best))

    def entries(self) -> Mapping[float, PricedEntry]:
        """The fastest by factor; nothing where none fits."""
        return MappingProxyType(self._best)


class BestByChoice:
    """The best plan at each choice of each axis while the space is swept."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, object], PricedEntry] = {}
        self._cells: dict[int, _ByCell] = {}

    def add(self, chunk: PlanChunk) -> None:
        """The plans of a chunk that fit."""
        bars = {(axis, getattr(chunk, axis)): np.inf for axis in SHARED}
        bars |= {key: self._shared[key].step_s for key in bars if key in self._shared}
        if chunk.step_s.min() <= max(bars.values()):
            best = least(chunk, chunk.step_s, chunk.peak_bytes)
            self._shared |= {key: first(best, self._shared.get(key, best)) for key in bars}
        table = self._cells.get(id(chunk.grid))
        if table is None:
            table = self._cells[id(chunk.grid)] = _ByCell(chunk.grid)
        table.add(chunk)

    def entries(self) -> Mapping[str, tuple[PricedEntry, ...]]:
        """By axis, the best plan at each of its choices, fastest first; axes with one choice are left out."""
        entries: dict[str, list[PricedEntry]] = {}
        shared = ((axis, item) for (axis, _), item in self._shared.items())
        for axis, item in chain(shared, *(table.entries() for table in self._cells.values())):
            entries.setdefault(axis, []).append(item)
        best = {axis: _best_of(axis, some) for axis, some in entries.items()}
        return MappingProxyType({axis: some for axis, some in best.items() if len(some) > 1})


def _best_of(axis: str, entries: list[PricedEntry]) -> tuple[PricedEntry, ...]:
    """The fastest of each choice, fastest first."""
    best: list[PricedEntry] = []
    for item in in_order(entries):
        if all(choice(item.plan, axis) != choice(faster.plan, axis) for faster in best):
            best.append(item)
    return tuple(best)


class _ByCell:
    """The best plan of every cell: a column for what a chunk says of it."""

    def __init__(self, cells: DegreeGrid) -> None:
        many = len(cells)
        self._cells = cells
        self._step = np.full(many, np.inf)
        self._rest = np.full((3, many), np.inf)  # peak, dp, degree
        self._head = np.zeros(many, dtype=np.int64)
        self._heads: list[PlanChunk] = []

    def add(self, chunk: PlanChunk) -> None:
        """Plans of a chunk; no cell occurs twice in it, and those of a cell always come in the same order."""
        best_s, peak = self._step.take(chunk.cell), chunk.peak_bytes
        better = np.flatnonzero(chunk.step_s <= best_s)
        better = better[(chunk.step_s[better] < best_s[better]) | (peak[better] < self._rest[0, chunk.cell[better]])]
        if not len(better):
            return
        at = chunk.cell[better]
        self._step[at] = chunk.step_s[better]
        self._rest[:, at] = peak[better], chunk.dp[better], chunk.degree[better]
        self._head[at] = len(self._heads)
        self._heads.append(chunk.taken(np.zeros(0, dtype=np.int64)))

    def entries(self) -> Iterator[tuple[str, PricedEntry]]:
        """The best cell at each choice along each axis."""
        priced = np.flatnonzero(np.isfinite(self._step))
        for axis in BY_CELL:
            yield from self._best(axis, priced, np.asarray(getattr(self._cells.degrees, axis)))
        for axis in BY_STRUCTURE:
            yield from self._best(axis, priced, self._cells.structure)

    def _best(self, axis: str, known: Index, column: Array | Index) -> Iterator[tuple[str, PricedEntry]]:
        for value in np.unique(column[known]):
            current = known[column[known] == value]
            current = current[self._step[current] == self._step[current].min()]
            current = current[self._rest[0, current] == self._rest[0, current].min()]
            yield axis, first(*(self._entry(int(cell)) for cell in current))

    def _entry(self, cell: int) -> PricedEntry:
        peak, dp, degree = self._rest[:, cell]
        item = replace(
            self._heads[self._head[cell]],
            cell=np.array([cell]),
            dp=np.array([dp]),
            degree=np.array([degree]),
            step_s=self._step[cell : cell + 1],
            peak_bytes=np.array([peak]),
        )
        return entry(item, 0)
