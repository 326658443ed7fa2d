"""Turn priced cells into priced plans: every pipeline, schedule and way of sharding on every cell, a chunk at a time.

    cell      structure x (tp, cp, ep, etp, microbatch)
    row       cell x pp x offload x schedule, and the shard degree where weights are sharded
    kin       (tp, cp, ep, etp, precision) x pp x schedule x sharding: weights, their exchange and their state
    plan      row x sharding of gradients and optimizer states

Each level is priced once; plans share what their rows and cells cost. The formulas are those of ``sim.step`` and
``sim.memory``: a single prediction runs through the same lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.arrays import Array, Index, at
from ridgeline.lowering.plan_columns import NAMES, SHARDS, PlanColumns, sized
from ridgeline.lowering.program import stages_of
from ridgeline.plan.engine import Shard
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Offload, Plan, Schedule, Sharding
from ridgeline.plan.resolve import sends_overlap
from ridgeline.plan.scenario import default_placement
from ridgeline.plan.schedules import SCHEDULES, requirement, virtual_stages_by_rank
from ridgeline.search.degree_grid import DegreeGrid
from ridgeline.search.space import Space
from ridgeline.sim.closed_form.grad_sync import EndOfStep
from ridgeline.sim.closed_form.model import WeightGroups
from ridgeline.sim.closed_form.overlap import SectionTimes
from ridgeline.sim.closed_form.pipeline_time import PipelineTime
from ridgeline.sim.closed_form.stage_mix import PlacementMix, RankMix, placement_mix, rank_mix
from ridgeline.sim.closed_form.stage_times import StageTimes
from ridgeline.sim.memory.model import MemoryModel
from ridgeline.sim.memory.peak import ModelState, Transient

CHUNK = 4096  # rows worked on at once, so that their columns stay in the cache
LAST_BITS = 12  # of a number's 52 that depend on where in a column it was worked out


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Plans that differ in their cells alone, with step times and peak memory."""

    grid: DegreeGrid
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
        return np.asarray(self.grid.degrees.microbatch)[self.cell]

    def taken(self, places: Index) -> Chunk:
        """Some of the plans."""
        names = ("cell", "dp", "degree", "step_s", "peak_bytes")
        return replace(self, **{name: getattr(self, name)[places] for name in names})

    def plan(self, index: int) -> Plan:
        """One of the plans."""
        cell = int(self.cell[index])
        base, sizes = self.grid.scenarios[int(self.grid.structure[cell])].plan, self.grid.degrees
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
    """Cells on a pipeline: what is the same for all schedules of it.

    degree   ranks that zero3 shards weights over; 1 where weights are whole
    times    what sections take, sections x rows
    apart    the same under schedules that run weight gradients apart from input gradients
    memory   of every row, and `state` of the first row of each weight group
    """

    grid: DegreeGrid
    cell: Index
    pp: int
    dp: Array
    offload: Offload
    zero3: bool
    degree: Array
    groups: WeightGroups
    plans: PlanColumns
    times: StageTimes
    apart: StageTimes
    memory: MemoryModel
    state: MemoryModel


def sweep(grid: DegreeGrid, space: Space) -> Iterator[Chunk]:
    """Every plan of a space on these cells, priced; plans that cannot run are left out."""
    for offload in space.offload:
        sections = grid.step.section_times(replace(grid.plans, offload=np.array([offload.activations])))
        for pp in space.pp:
            for rows in _rows(grid, space, sections, offload, pp):
                for schedule in _schedules(space, pp):
                    yield from _scheduled(rows, space, schedule)


def _schedules(space: Space, pp: int) -> tuple[Schedule, ...]:
    """All schedules of a pipeline; without one they are all the same, and one with a single chunk stands for them."""
    if pp > 1:
        return space.schedule
    single = [schedule for schedule in space.schedule if schedule.chunks == 1]
    return tuple(sorted(single, key=lambda schedule: (schedule != Schedule(), schedule.name))[:1])


def _dealt(grid: DegreeGrid, pp: int) -> tuple[Index, Array]:
    """Cells on which chips, experts and sequences can be dealt evenly with so many stages, and the dp that is left."""
    scenario, sizes = grid.scenarios[0], grid.degrees
    inner = np.asarray(sizes.tp * sizes.cp)
    dp = scenario.system.chips / (inner * pp)
    even = (dp == np.floor(dp)) & (dp >= 1)
    even &= (inner * dp) % (sizes.ep * sizes.etp) == 0
    even &= scenario.workload.sequences % np.maximum(dp * sizes.microbatch, 1) == 0
    even &= scenario.workload.sequences >= dp * sizes.microbatch
    cell = np.flatnonzero(even)
    return cell, dp[cell]


def _rows(grid: DegreeGrid, space: Space, sections: SectionTimes, offload: Offload, pp: int) -> Iterator[_Rows]:
    """Rows whose weights are whole, and rows whose weights are sharded at every degree."""
    cell, dp = _dealt(grid, pp)
    if not len(cell):
        return
    if any(shard != "zero3" for shard in space.shard):
        yield _row(grid, space, sections, offload, pp, (cell, dp, None))
    if "zero3" in space.shard:
        replicas = dp * np.asarray(grid.degrees.cp)[cell]
        for size in space.shard_degree:
            degree = replicas if size == 0 else np.full(len(cell), float(size))
            own = np.flatnonzero(_splits(space, size, replicas))
            if len(own):
                yield _row(grid, space, sections, offload, pp, (cell[own], dp[own], degree[own]))


def _row(
    grid: DegreeGrid, space: Space, sections: SectionTimes, offload: Offload, pp: int,
    dealt: tuple[Index, Array, Array | None],
) -> _Rows:  # fmt: skip
    cell, dp, degree = dealt
    zero3 = degree is not None
    sizes = replace(
        grid.degrees,
        **{name: np.asarray(getattr(grid.degrees, name))[cell] for name in ("tp", "cp", "ep", "etp", "microbatch")},
    )
    columns = sized(grid.scenarios[0], sizes, pp, dp)
    columns["boundary_bytes"] = columns["boundary_bytes"] * _stored(grid)[cell]
    plans = replace(
        grid.plans.at(cell),
        **{name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in columns.items()},
        shard=np.array([3.0 if zero3 else 0.0]),
        shard_degree=np.ones(1) if degree is None else degree,
        offload=np.array([offload.activations]),
        offload_optimizer=np.array([offload.optimizer]),
    )
    _, firsts, group = np.unique(grid.weight_group[cell], return_index=True, return_inverse=True)
    groups = WeightGroups(group=group, firsts=firsts)
    times = grid.step.rows(sections, cell, plans, groups, apart=False)
    whole = pp == 1 or not (zero3 or offload.activations) or not any(map(_apart, space.schedule))
    return _Rows(
        grid=grid,
        cell=cell,
        pp=pp,
        dp=dp,
        offload=offload,
        zero3=zero3,
        degree=np.ones(len(cell)) if degree is None else degree,
        groups=groups,
        plans=plans,
        times=times,
        apart=times if whole else grid.step.rows(sections, cell, plans, groups, apart=True),
        memory=grid.memory.at(cell),
        state=grid.memory.at(cell[firsts]),
    )


def _stored(grid: DegreeGrid) -> Array:
    """Bytes of a stored activation by cell, over those of the first structure, which `sized` counted with."""
    widths = [scenario.plan.precision.activations.bytes_per_element for scenario in grid.scenarios]
    return (np.array(widths) / widths[0])[grid.structure]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShardedWay:
    """A way of sharding state, priced for every weight group; `degree` is not a number where it cannot be."""

    shard: Shard
    degree: Array
    ends: EndOfStep
    state: ModelState


def _scheduled(rows: _Rows, space: Space, schedule: Schedule) -> Iterator[Chunk]:
    """The rows under one schedule, as far as it takes them."""
    grid, pp = rows.grid, rows.pp
    if pp * schedule.chunks > grid.scenarios[0].model.layers + 2:
        return
    able = list(_able(schedule, pp, rows.plans.microbatches))
    if not able:
        return
    scenario = grid.scenarios[0]
    placed = scenario.plan.placement or default_placement(scenario.model, pp * schedule.chunks)
    stages, held = stages_of(grid.context, placed), virtual_stages_by_rank(pp, schedule.chunks, schedule.name)
    placement, ranks = placement_mix(stages, held), rank_mix(stages, held, fullest=True)
    plans = replace(
        rows.plans,
        chunks=np.array([float(schedule.chunks)]),
        schedule=np.array([float(NAMES.index(schedule.name))]),
        overlap_pp=at(_sends_overlap(grid, schedule), grid.structure[rows.cell]),
    )
    ways = _ways(rows, space, placement, ranks)
    send_s = grid.step.send_s(plans)
    for own in able:
        mine = plans.at(own)
        pipeline = grid.step.pipeline(placement, rows.apart if _apart(schedule) else rows.times, send_s, mine, own)
        yield from _plans(rows, schedule, ways, (pipeline, rows.memory.transient(ranks, mine, own), mine), own)


def _apart(schedule: Schedule) -> bool:
    """Whether it runs weight gradients apart from input gradients."""
    return SCHEDULES[schedule.name].splits_backward


def _able(schedule: Schedule, pp: int, microbatches: Array) -> Iterator[slice]:
    """Rows that stand beside each other and whose number of microbatches the schedule takes, a chunk at a time."""
    cuts = [0, *(np.flatnonzero(np.diff(microbatches)) + 1).tolist(), len(microbatches)]
    start = 0
    for first, end in pairwise(cuts):
        if pp > 1 and requirement(schedule.name, pp, int(microbatches[first]), schedule.chunks):
            yield from _cut(start, first)
            start = end
    yield from _cut(start, len(microbatches))


def _cut(start: int, end: int) -> Iterator[slice]:
    """A stretch of rows in equal chunks."""
    many = -(-(end - start) // CHUNK)
    for place in range(many):
        yield slice(start + (end - start) * place // many, start + (end - start) * (place + 1) // many)


def _ways(rows: _Rows, space: Space, placement: PlacementMix, ranks: RankMix) -> list[_ShardedWay]:
    """All ways of sharding, with what they do to the weights of every group."""
    grid, cell = rows.grid, rows.cell[rows.groups.firsts]
    plans, trained, params = (
        rows.plans.at(rows.groups.firsts),
        grid.step.trained(placement, cell),
        rows.state.params(ranks),
    )
    priced: dict[tuple[bool, int], EndOfStep] = {}
    ways = []
    for shard, size in _shardings(rows, space):
        degree = _degree(rows, space, (shard, size))
        if not np.isfinite(degree).any():
            continue
        own = replace(plans, shard=np.array([float(SHARDS.index(shard))]), shard_degree=degree)
        key = (shard == "none", size)  # sharded gradients take no longer than sharded states alone
        if key not in priced:
            priced[key] = grid.step.end_of_step(trained, own)
        ways.append(_ShardedWay(shard=shard, degree=degree, ends=priced[key], state=rows.state.state(params, own)))
    return ways


def _plans(
    rows: _Rows,
    schedule: Schedule,
    ways: Sequence[_ShardedWay],
    priced: tuple[PipelineTime, Transient, PlanColumns],
    own: slice,
) -> Iterator[Chunk]:
    """All ways of sharding on some rows."""
    pipeline, transient, plans = priced
    grid, group = rows.grid, rows.groups.group[own]
    steps: dict[int, Array] = {}
    for way in ways:
        degree = way.degree.take(group)
        fits = np.isfinite(degree)
        if not fits.any():
            continue
        if id(way.ends) not in steps:
            steps[id(way.ends)] = rounded(grid.step.step_s(pipeline, way.ends.at(group), plans))
        made = Chunk(
            grid=grid,
            cell=rows.cell[own],
            pp=rows.pp,
            dp=rows.dp[own],
            schedule=schedule,
            offload=rows.offload,
            shard=way.shard,
            degree=degree,
            step_s=steps[id(way.ends)],
            peak_bytes=rounded(grid.memory.peak_bytes(way.state.at(group), transient)),
        )
        yield made if fits.all() else made.taken(np.flatnonzero(fits))


def rounded(values: Array) -> Array:
    """Numbers to twelve digits, so that plans which take the same are equal however they were worked out.

    >>> rounded(np.array([0.1 + 0.2, 0.3, np.inf])).tolist()
    [0.2999999999999545, 0.2999999999999545, inf]
    """
    bits = values.view(np.int64) + (1 << (LAST_BITS - 1))
    bits &= -(1 << LAST_BITS)
    return bits.view(np.float64)


def _sends_overlap(grid: DegreeGrid, schedule: Schedule) -> Array:
    """Whether sends overlap compute under a schedule, by structure: as the plan says, or as the engine does."""
    on = (sends_overlap(one.plan.switches, one.engine, schedule.name) for one in grid.scenarios)
    return np.array([float(overlapped) for overlapped in on])


def _shardings(rows: _Rows, space: Space) -> Iterator[tuple[Shard, int]]:
    """What is sharded over how many ranks, 0 being all of them."""
    if rows.zero3:
        yield "zero3", 0
        return
    for shard in space.shard:
        if shard == "none":
            yield shard, 0
        elif shard != "zero3":
            yield from ((shard, size) for size in space.shard_degree)


def _degree(rows: _Rows, space: Space, sharding: tuple[Shard, int]) -> Array:
    """Ranks a shard is split over, by weight group; not a number where that cannot be."""
    shard, size = sharding
    if rows.zero3 or shard == "none":
        return rows.degree[rows.groups.firsts]
    replicas = rows.dp[rows.groups.firsts] * np.asarray(rows.grid.degrees.cp)[rows.cell[rows.groups.firsts]]
    return replicas if size == 0 else np.where(_splits(space, size, replicas), float(size), np.nan)


def _splits(space: Space, size: int, replicas: Array) -> NDArray[np.bool_]:
    """Whether so many replicas can share a shard, 0 being all of them; all by number only where 0 is no choice."""
    if size == 0:
        return np.ones(len(replicas), dtype=np.bool_)
    return np.asarray((replicas % size == 0) & ((size < replicas) | (0 not in space.shard_degree)))


def chunks_of(grids: Sequence[DegreeGrid], space: Space) -> Iterator[Chunk]:
    """The plans of all grids."""
    for grid in grids:
        yield from sweep(grid, space)
