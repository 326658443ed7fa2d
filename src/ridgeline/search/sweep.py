"""Turn priced cells into priced plans: every pipeline, schedule and way of sharding on every cell, a chunk at a time.

    cell      structure x (tp, cp, ep, etp, microbatch)
    row       cell x pp x offload x schedule, and the shard degree where weights are sharded
    plan      row x sharding of gradients and optimizer states

Each level is priced once; plans share what their rows and cells cost. The formulas are those of ``sim.step`` and
``sim.memory``: a single prediction runs through the same lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.lowering.program import stages_of
from ridgeline.plan.engine import Shard, overlaps
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Offload, Plan, Schedule, Sharding
from ridgeline.plan.scenario import Scenario, default_placement
from ridgeline.plan.schedules import requirement
from ridgeline.search.cells import Cells
from ridgeline.search.space import Space
from ridgeline.sim.holding import Needs, held_of
from ridgeline.sim.lines import Pattern, held_by_rank, lines_of, pattern_of
from ridgeline.sim.memory import host_share, peak_bytes
from ridgeline.sim.run import NAMES, SHARDS, Runs, sized
from ridgeline.sim.step import beside, paced, step_of

Array = NDArray[np.float64]
Index = NDArray[np.int64]
CHUNK = 4096  # rows worked on at once, so that their columns stay in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Plans that differ in their cells alone, with step times and peak memory."""

    cells: Cells
    cell: Index
    pp: int
    dp: Array
    schedule: Schedule
    offload: Offload
    shard: Shard
    degree: Array
    step_s: Array
    peak_bytes: Array

    @property
    def microbatch(self) -> Index:
        """Sequences of a microbatch, by plan."""
        return np.asarray(self.cells.degrees.microbatch)[self.cell]

    def taken(self, places: Index) -> Chunk:
        """Some of the plans."""
        names = ("cell", "dp", "degree", "step_s", "peak_bytes")
        return replace(self, **{name: getattr(self, name)[places] for name in names})

    def plan(self, index: int) -> Plan:
        """One of the plans."""
        cell = int(self.cell[index])
        base, sizes = self.cells.scenarios[int(self.cells.structure[cell])].plan, self.cells.degrees
        tp, cp, ep, etp, microbatch = (
            int(np.asarray(getattr(sizes, name))[cell]) for name in ("tp", "cp", "ep", "etp", "microbatch")
        )
        degree, dp = int(self.degree[index]), int(self.dp[index])
        whole = self.shard == "none" or degree == dp * cp
        return replace(
            base,
            mesh=Mesh(pp=self.pp, dp=dp, cp=cp, tp=tp, ep=ep, etp=etp),
            microbatch=microbatch,
            schedule=self.schedule,
            sharding=Sharding(shard=self.shard, shard_degree=None if whole else degree),
            offload=self.offload,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Cells on a pipeline: what is the same for all schedules of it."""

    cells: Cells
    cell: Index
    pp: int
    dp: Array
    offload: Offload
    three: bool
    degree: Array
    runs: Runs
    parts: Array
    needs: Needs


def sweep(cells: Cells, space: Space) -> Iterator[Chunk]:
    """Every plan of a space on these cells, priced; plans that cannot run are left out."""
    for pp in space.pp:
        cell, dp = _dealt(cells, pp)
        for offload in space.offload:
            for rows in _rows(cells, space, offload, pp, (cell, dp)):
                for schedule in _schedules(space, pp):
                    yield from _scheduled(rows, space, schedule)


def _schedules(space: Space, pp: int) -> tuple[Schedule, ...]:
    """All schedules of a pipeline; without one they are all the same, and one with a single chunk stands for them."""
    if pp > 1:
        return space.schedule
    single = [schedule for schedule in space.schedule if schedule.chunks == 1]
    return tuple(sorted(single, key=lambda schedule: (schedule != Schedule(), schedule.name))[:1])


def _dealt(cells: Cells, pp: int) -> tuple[Index, Array]:
    """Cells on which chips, experts and sequences can be dealt evenly with so many stages, and the dp that is left."""
    scenario, sizes = cells.scenarios[0], cells.degrees
    inner = np.asarray(sizes.tp * sizes.cp)
    dp = scenario.system.chips / (inner * pp)
    even = (dp == np.floor(dp)) & (dp >= 1)
    even &= (inner * dp) % (sizes.ep * sizes.etp) == 0
    even &= scenario.workload.sequences % np.maximum(dp * sizes.microbatch, 1) == 0
    even &= scenario.workload.sequences >= dp * sizes.microbatch
    cell = np.flatnonzero(even)
    return cell, dp[cell]


def _rows(cells: Cells, space: Space, offload: Offload, pp: int, dealt: tuple[Index, Array]) -> Iterator[_Rows]:
    """Rows whose weights are whole, and rows whose weights are sharded at every degree."""
    cell, dp = dealt
    if not len(cell):
        return
    if any(shard != "zero3" for shard in space.shard):
        yield _row(cells, offload, pp, (cell, dp), None)
    if "zero3" in space.shard:
        for size in space.shard_degree:
            replicas = dp * np.asarray(cells.degrees.cp)[cell]
            degree = replicas if size == 0 else np.full(len(cell), float(size))
            own = np.flatnonzero(_splits(space, size, replicas))
            if len(own):
                yield _row(cells, offload, pp, (cell[own], dp[own]), degree[own])


def _row(cells: Cells, offload: Offload, pp: int, dealt: tuple[Index, Array], degree: Array | None) -> _Rows:
    cell, dp = dealt
    scenario = cells.scenarios[0]
    sizes = replace(
        cells.degrees,
        **{name: np.asarray(getattr(cells.degrees, name))[cell] for name in ("tp", "cp", "ep", "etp", "microbatch")},
    )
    columns = sized(scenario, sizes, pp, dp)
    columns["boundary_bytes"] = columns["boundary_bytes"] * _stored(cells)[cell]
    three = degree is not None
    runs = replace(
        cells.runs.at(cell),
        **{name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in columns.items()},
        shard=np.array([3.0 if three else 0.0]),
        shard_degree=np.ones(1) if degree is None else degree,
        offload=np.array([offload.activations]),
        offload_optimizer=np.array([offload.optimizer]),
    )
    return _Rows(
        cells=cells,
        cell=cell,
        pp=pp,
        dp=dp,
        offload=offload,
        three=three,
        degree=np.ones(len(cell)) if degree is None else degree,
        runs=runs,
        parts=beside(cells.taken(cell), runs, cells.rows, by_class=False),
        needs=cells.needed(cell),
    )


def _stored(cells: Cells) -> Array:
    """Bytes of a stored activation by cell, over those of the first structure, which `sized` counted with."""
    widths = [scenario.plan.precision.activations.bytes_per_element for scenario in cells.scenarios]
    return (np.array(widths) / widths[0])[cells.structure]


def _scheduled(rows: _Rows, space: Space, schedule: Schedule) -> Iterator[Chunk]:
    """The rows under one schedule, as far as it takes them."""
    scenario, pp = rows.cells.scenarios[0], rows.pp
    virtual = pp * schedule.chunks
    if virtual > scenario.model.layers + 2:
        return
    able = _able(schedule, pp, rows.runs.microbatches)
    if not len(able):
        return
    pattern = _pattern(rows.cells, scenario, schedule, pp)
    for start in range(0, len(able), CHUNK):
        yield from _plans(rows, space, schedule, pattern, able[start : start + CHUNK])


def _able(schedule: Schedule, pp: int, microbatches: Array) -> Index:
    """Rows whose number of microbatches the schedule takes."""
    if pp == 1:
        return np.arange(len(microbatches))
    sizes, which = np.unique(microbatches, return_inverse=True)
    takes = [not requirement(schedule.name, pp, int(size), schedule.chunks) for size in sizes]
    return np.flatnonzero(np.array(takes)[which])


def _pattern(cells: Cells, scenario: Scenario, schedule: Schedule, pp: int) -> Pattern:
    placement = scenario.plan.placement or default_placement(scenario.model, pp * schedule.chunks)
    stages = stages_of(cells.shape, placement, cells.kinds)
    return pattern_of(stages, held_by_rank(pp, schedule.chunks, schedule.name), distinct=True)


def _plans(rows: _Rows, space: Space, schedule: Schedule, pattern: Pattern, own: Index) -> Iterator[Chunk]:
    """All ways of sharding on some rows."""
    cells, many = rows.cells, len(rows.cell)
    lines = lines_of(pattern, own, many)
    runs = replace(
        rows.runs.at(own),
        chunks=np.array([float(schedule.chunks)]),
        schedule=np.array([float(NAMES.index(schedule.name))]),
        overlap_pp=_sends_beside(cells, schedule)[cells.structure[rows.cell[own]]],
    )
    pace = paced([lines], rows.parts, runs, cells.rows)
    held = held_of(rows.needs, own, lines, pattern)
    width = cells.width(rows.cell[own])
    priced: dict[tuple[bool, int], Array] = {}
    for shard, size in _shardings(rows, space):
        degree = _degree(rows, space, own, (shard, size))
        fits = np.isfinite(degree)
        if not fits.any():
            continue
        sharded = replace(runs, shard=np.array([float(SHARDS.index(shard))]), shard_degree=degree)
        key = (shard == "none", size)  # sharded gradients take no longer than sharded states alone
        if key not in priced:
            priced[key] = step_of(pace, sharded, cells.rows).step_s
        made = Chunk(
            cells=cells,
            cell=rows.cell[own],
            pp=rows.pp,
            dp=rows.dp[own],
            schedule=schedule,
            offload=rows.offload,
            shard=shard,
            degree=degree,
            step_s=priced[key],
            peak_bytes=peak_bytes(held, sharded, width, host_share(cells.scenarios[0])),
        )
        yield made if fits.all() else made.taken(np.flatnonzero(fits))


def _sends_beside(cells: Cells, schedule: Schedule) -> Array:
    """Whether sends overlap compute under a schedule, by structure: as the plan says, or as the engine does."""
    habit = overlaps(cells.scenarios[0].engine, "pp", schedule.name)
    return np.array([float(scenario.plan.switches.overlap.get("pp", habit)) for scenario in cells.scenarios])


def _shardings(rows: _Rows, space: Space) -> Iterator[tuple[Shard, int]]:
    """What is sharded over how many ranks, 0 being all of them."""
    if rows.three:
        yield "zero3", 0
        return
    for shard in space.shard:
        if shard == "none":
            yield shard, 0
        elif shard != "zero3":
            yield from ((shard, size) for size in space.shard_degree)


def _degree(rows: _Rows, space: Space, own: Index, sharding: tuple[Shard, int]) -> Array:
    """Ranks a shard is split over; not a number where that cannot be."""
    shard, size = sharding
    if rows.three or shard == "none":
        return rows.degree[own]
    replicas = rows.dp[own] * np.asarray(rows.cells.degrees.cp)[rows.cell[own]]
    return replicas if size == 0 else np.where(_splits(space, size, replicas), float(size), np.nan)


def _splits(space: Space, size: int, replicas: Array) -> NDArray[np.bool_]:
    """Whether so many replicas can share a shard, 0 being all of them; all by number only where 0 is no choice."""
    if size == 0:
        return np.ones(len(replicas), dtype=np.bool_)
    return np.asarray((replicas % size == 0) & ((size < replicas) | (0 not in space.shard_degree)))


def chunks_of(cells: Sequence[Cells], space: Space) -> Iterator[Chunk]:
    """The plans of all cells."""
    for group in cells:
        yield from sweep(group, space)
