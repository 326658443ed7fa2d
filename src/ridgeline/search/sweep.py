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
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.machine import at
from ridgeline.lowering.program import stages_of
from ridgeline.plan.engine import Shard, overlaps
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Offload, Plan, Schedule, Sharding
from ridgeline.plan.scenario import default_placement
from ridgeline.plan.schedules import requirement
from ridgeline.search.degree_grid import DegreeGrid
from ridgeline.search.space import Space
from ridgeline.sim.closed_form.grad_sync import EndOfStep, end_of_step
from ridgeline.sim.closed_form.overlap import SectionTimes, columns_of, gathered, gathering_of, section_times
from ridgeline.sim.closed_form.pipeline_time import PipelineTime, most_trained, pipeline_time, send_seconds
from ridgeline.sim.closed_form.stage_mix import (
    PlacementMix,
    RankMix,
    StageMix,
    placement_mix,
    rank_mix,
    virtual_stages_by_rank,
)
from ridgeline.sim.closed_form.step import step_times
from ridgeline.sim.memory.footprint import BytesPerParam, SectionFootprint, rank_footprint, rank_params
from ridgeline.sim.memory.peak import ModelState, Transient, host_share, model_state, peak_bytes, transient
from ridgeline.sim.plan_columns import NAMES, SHARDS, PlanColumns, sized

Array = NDArray[np.float64]
Index = NDArray[np.int64]
CHUNK = 4096  # rows worked on at once, so that their columns stay in the cache
LAST_BITS = 12  # of a number's 52 that depend on where in a column it was worked out


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Plans that differ in their cells alone, with step times and peak memory."""

    cells: DegreeGrid
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
    """Cells on a pipeline: what is the same for all schedules of it.

    kin      which weights on which ranks a row has, `firsts` the first row of each, `widths` by kin
    parts    columns x sections x rows, as `sim.beside` makes them
    """

    cells: DegreeGrid
    cell: Index
    pp: int
    dp: Array
    offload: Offload
    three: bool
    degree: Array
    kin: Index
    firsts: Index
    plans: PlanColumns
    parts: Array
    needs: SectionFootprint
    widths: BytesPerParam


def sweep(cells: DegreeGrid, space: Space) -> Iterator[Chunk]:
    """Every plan of a space on these cells, priced; plans that cannot run are left out."""
    for offload in space.offload:
        busy = section_times(cells.sections, replace(cells.plans, offload=np.array([offload.activations])), cells.rows)
        for pp in space.pp:
            for rows in _rows(cells, space, busy, offload, pp):
                for schedule in _schedules(space, pp):
                    yield from _scheduled(rows, space, schedule)


def _schedules(space: Space, pp: int) -> tuple[Schedule, ...]:
    """All schedules of a pipeline; without one they are all the same, and one with a single chunk stands for them."""
    if pp > 1:
        return space.schedule
    single = [schedule for schedule in space.schedule if schedule.chunks == 1]
    return tuple(sorted(single, key=lambda schedule: (schedule != Schedule(), schedule.name))[:1])


def _dealt(cells: DegreeGrid, pp: int) -> tuple[Index, Array]:
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


def _rows(cells: DegreeGrid, space: Space, busy: SectionTimes, offload: Offload, pp: int) -> Iterator[_Rows]:
    """Rows whose weights are whole, and rows whose weights are sharded at every degree."""
    cell, dp = _dealt(cells, pp)
    if not len(cell):
        return
    if any(shard != "zero3" for shard in space.shard):
        yield _row(cells, busy, offload, pp, (cell, dp, None))
    if "zero3" in space.shard:
        replicas = dp * np.asarray(cells.degrees.cp)[cell]
        for size in space.shard_degree:
            degree = replicas if size == 0 else np.full(len(cell), float(size))
            own = np.flatnonzero(_splits(space, size, replicas))
            if len(own):
                yield _row(cells, busy, offload, pp, (cell[own], dp[own], degree[own]))


def _row(
    cells: DegreeGrid, busy: SectionTimes, offload: Offload, pp: int, dealt: tuple[Index, Array, Array | None]
) -> _Rows:
    cell, dp, degree = dealt
    three = degree is not None
    sizes = replace(
        cells.degrees,
        **{name: np.asarray(getattr(cells.degrees, name))[cell] for name in ("tp", "cp", "ep", "etp", "microbatch")},
    )
    columns = sized(cells.scenarios[0], sizes, pp, dp)
    columns["boundary_bytes"] = columns["boundary_bytes"] * _stored(cells)[cell]
    plans = replace(
        cells.plans.at(cell),
        **{name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in columns.items()},
        shard=np.array([3.0 if three else 0.0]),
        shard_degree=np.ones(1) if degree is None else degree,
        offload=np.array([offload.activations]),
        offload_optimizer=np.array([offload.optimizer]),
    )
    _, firsts, kin = np.unique(cells.kin[cell], return_index=True, return_inverse=True)
    return _Rows(
        cells=cells,
        cell=cell,
        pp=pp,
        dp=dp,
        offload=offload,
        three=three,
        degree=np.ones(len(cell)) if degree is None else degree,
        kin=kin,
        firsts=firsts,
        plans=plans,
        parts=_parts(cells, busy, cell, plans, (firsts, kin)),
        needs=cells.needs.at(cell),
        widths=cells.width(cell[firsts]),
    )


def _parts(cells: DegreeGrid, busy: SectionTimes, cell: Index, plans: PlanColumns, kin: tuple[Index, Index]) -> Array:
    """What sections take on these cells; weights that are sharded are gathered at the degree they are sharded at."""
    if plans.shard[0] < 3:
        return cells.taken(columns_of(busy, np.zeros((2, 1))), cell)
    firsts, own = kin
    rates = cells.rows.rates
    spent = gathering_of(cells.taken(cells.sections.params[:2], cell[firsts]), plans.at(firsts), cells.rows.links)
    taken = SectionTimes(**{item.name: cells.taken(getattr(busy, item.name), cell) for item in fields(SectionTimes)})
    shown = gathered(spent.take(own, axis=-1), taken.phases, rates["hidden_shard"], rates["contention"])
    return columns_of(taken, shown)


def _stored(cells: DegreeGrid) -> Array:
    """Bytes of a stored activation by cell, over those of the first structure, which `sized` counted with."""
    widths = [scenario.plan.precision.activations.bytes_per_element for scenario in cells.scenarios]
    return (np.array(widths) / widths[0])[cells.structure]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A way of sharding, priced for the weights of every kin; `degree` is not a number where it cannot be."""

    shard: Shard
    degree: Array
    settling: EndOfStep
    state: ModelState


def _scheduled(rows: _Rows, space: Space, schedule: Schedule) -> Iterator[Chunk]:
    """The rows under one schedule, as far as it takes them."""
    cells, pp = rows.cells, rows.pp
    if pp * schedule.chunks > cells.scenarios[0].model.layers + 2:
        return
    able = list(_able(schedule, pp, rows.plans.microbatches))
    if not able:
        return
    scenario = cells.scenarios[0]
    placement = scenario.plan.placement or default_placement(scenario.model, pp * schedule.chunks)
    stages, held = (
        stages_of(cells.shape, placement, cells.kinds),
        virtual_stages_by_rank(pp, schedule.chunks, schedule.name),
    )
    pattern, ranks = placement_mix(stages, held), rank_mix(stages, held, fullest=True)
    plans = replace(
        rows.plans,
        chunks=np.array([float(schedule.chunks)]),
        schedule=np.array([float(NAMES.index(schedule.name))]),
        overlap_pp=at(_sends_beside(cells, schedule), cells.structure[rows.cell]),
    )
    ways = _ways(rows, space, pattern, ranks)
    send = send_seconds(plans, cells.rows.links)
    for own in able:
        mine = plans.at(own)
        pace = pipeline_time([_lines(pattern, own.stop - own.start)], rows.parts[:, :, own], at(send, own), mine)
        moving = transient(rank_footprint(rows.needs.at(own), ranks), mine, cells.widths[0])
        yield from _plans(rows, schedule, ways, (pace, moving, mine), own)


def _lines(pattern: PlacementMix, rows: int) -> StageMix:
    return StageMix(rows=np.arange(rows), counts=pattern.counts, roles=pattern.roles)


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


def _ways(rows: _Rows, space: Space, pattern: PlacementMix, ranks: RankMix) -> list[_Way]:
    """All ways of sharding, with what they do to the weights of every kin."""
    cells, cell = rows.cells, rows.cell[rows.firsts]
    trained = most_trained([_lines(pattern, len(cell))], cells.taken(cells.sections.params[2:], cell))
    params = rank_params(cells.needs.at(cell), ranks)
    plans = rows.plans.at(rows.firsts)
    settled: dict[tuple[bool, int], EndOfStep] = {}
    ways = []
    for shard, size in _shardings(rows, space):
        degree = _degree(rows, space, (shard, size))
        if not np.isfinite(degree).any():
            continue
        own = replace(plans, shard=np.array([float(SHARDS.index(shard))]), shard_degree=degree)
        key = (shard == "none", size)  # sharded gradients take no longer than sharded states alone
        if key not in settled:
            settled[key] = end_of_step(trained, own, cells.rows)
        ways.append(
            _Way(shard=shard, degree=degree, settling=settled[key], state=model_state(params, own, rows.widths))
        )
    return ways


def _plans(
    rows: _Rows,
    schedule: Schedule,
    ways: Sequence[_Way],
    priced: tuple[PipelineTime, Transient, PlanColumns],
    own: slice,
) -> Iterator[Chunk]:
    """All ways of sharding on some rows."""
    pace, moving, plans = priced
    cells, kin = rows.cells, rows.kin[own]
    width, host = cells.widths[0], host_share(cells.scenarios[0])
    steps: dict[int, Array] = {}
    for way in ways:
        degree = way.degree.take(kin)
        fits = np.isfinite(degree)
        if not fits.any():
            continue
        if id(way.settling) not in steps:
            steps[id(way.settling)] = rounded(step_times(pace, way.settling.at(kin), plans, cells.rows).step_s)
        made = Chunk(
            cells=cells,
            cell=rows.cell[own],
            pp=rows.pp,
            dp=rows.dp[own],
            schedule=schedule,
            offload=rows.offload,
            shard=way.shard,
            degree=degree,
            step_s=steps[id(way.settling)],
            peak_bytes=rounded(peak_bytes(way.state.at(kin), moving, width, host)),
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


def _sends_beside(cells: DegreeGrid, schedule: Schedule) -> Array:
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


def _degree(rows: _Rows, space: Space, sharding: tuple[Shard, int]) -> Array:
    """Ranks a shard is split over, by kin; not a number where that cannot be."""
    shard, size = sharding
    if rows.three or shard == "none":
        return rows.degree[rows.firsts]
    replicas = rows.dp[rows.firsts] * np.asarray(rows.cells.degrees.cp)[rows.cell[rows.firsts]]
    return replicas if size == 0 else np.where(_splits(space, size, replicas), float(size), np.nan)


def _splits(space: Space, size: int, replicas: Array) -> NDArray[np.bool_]:
    """Whether so many replicas can share a shard, 0 being all of them; all by number only where 0 is no choice."""
    if size == 0:
        return np.ones(len(replicas), dtype=np.bool_)
    return np.asarray((replicas % size == 0) & ((size < replicas) | (0 not in space.shard_degree)))


def chunks_of(cells: Sequence[DegreeGrid], space: Space) -> Iterator[Chunk]:
    """The plans of all cells."""
    for group in cells:
        yield from sweep(group, space)
