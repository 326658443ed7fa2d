"""Turn a space into priced plans: every structure at every choice of degrees, then every pipeline and way of sharding.

    structure  which ops there are: recompute, formats, switches
    cell      structure x (tp, cp, ep, etp, microbatch)
    row       cell x pp x offload x schedule, and the shard degree where weights are sharded
    kin       (tp, cp, ep, etp, precision) x pp x schedule x sharding: weights, their exchange and their state
    plan      row x sharding of gradients and optimizer states

Layers are lowered once per structure, with arrays for sizes; each level is priced by a single prediction's formulas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, fields, replace
from itertools import pairwise, product

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask, at, round_digits
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration
from ridgeline.cost.pricing import Machines, ParameterColumns, SustainedRates
from ridgeline.lowering.context import Degrees, LoweringContext, lowering_context
from ridgeline.lowering.plan_columns import NAMES, SHARDS, PlanColumns, degree_columns, plan_columns, shares_boundary
from ridgeline.lowering.program import stages_of
from ridgeline.plan.capability import tells_expert_overlap
from ridgeline.plan.check import blocks, context, experts, precision, tensor
from ridgeline.plan.engine import Shard
from ridgeline.plan.mesh import DP_LAST, Mesh
from ridgeline.plan.plan import Offload, Plan, Schedule, Sharding
from ridgeline.plan.resolve import sends_overlap
from ridgeline.plan.scenario import Scenario, default_placement
from ridgeline.plan.schedules import SCHEDULES, requirement, virtual_stages_by_rank
from ridgeline.search.choices import has_experts
from ridgeline.search.training.space import Space
from ridgeline.sim import not_predictable
from ridgeline.sim.batches import EndOfStep, ModelState, Placement, PlanModel, RowModel, SectionTimes, join_models


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeGrid:
    """Priced cells of structures with as many sections, placed alike.

    structure     which of `scenarios` a cell belongs to; those carry everything but degrees
    degrees       tp, cp, ep, etp and microbatch by cell; those that make as many microbatches stand side by side
    weight_group  the same for cells that hold the same weights on the same ranks: their mesh and precision are equal
    plans         as `lowering` lays them out, by cell
    """

    scenarios: tuple[Scenario, ...]
    context: LoweringContext
    structure: Index
    degrees: Degrees
    weight_group: Index
    plans: PlanColumns
    model: PlanModel

    def __len__(self) -> int:
        return len(self.structure)


RULES = (precision, blocks, not_predictable)  # what a structure alone can get wrong
DEGREE_NAMES = ("tp", "cp", "ep", "etp", "microbatch")
BATCH = 4096  # cells of structures that are priced at once


def priced_grids(base: Scenario, space: Space, calibration: Calibration) -> list[DegreeGrid]:
    """The cells of a space, one value for all structures that stand in stages alike and run at the same rates."""
    machines, parameters = Machines.of([base.system]), ParameterColumns.of(calibration, [base])
    structures = [*_structures(base, space)]
    first_by_key = {structure.ops_key: structure for structure in reversed(structures)}
    models: dict[tuple[str, int], PlanModel] = {}
    for same_rates in _batches(sorted(first_by_key.values(), key=lambda structure: structure.layers)):
        rates = SustainedRates.of(machines, parameters, plans=same_rates[0].plans)
        batch_models = PlanModel.of(
            [(item.scenario, item.context) for item in same_rates], rates, len(same_rates[0].degrees),
            calibration.profiles,
        )  # fmt: skip
        models |= {item.ops_key: model for item, model in zip(same_rates, batch_models, strict=True)}
    groups: dict[tuple[int, object, str | None], list[tuple[_Structure, PlanModel]]] = {}
    for structure in structures:
        plan, model = structure.scenario.plan, models[structure.ops_key]
        groups.setdefault((model.kinds, plan.recompute.layers, plan.switches.graph), []).append((structure, model))
    return [_join_structures(group) for group in groups.values()]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Structure:
    """A structure to be priced at every choice of its degrees.

    ops_key  the plan without its overlaps, which change no op, and whose degrees: the same where the ops are
    layers   places of its switches and formats: what is lowered alike whatever is recomputed
    """

    scenario: Scenario
    context: LoweringContext
    degrees: Array
    plans: PlanColumns
    ops_key: tuple[str, int]
    layers: tuple[int, int]


def _structures(base: Scenario, space: Space) -> Iterator[_Structure]:
    """The structures of a space that can run somewhere, sizes as arrays over cells."""
    bases = [replace(base, plan=replace(base.plan, switches=switches)) for switches in space.switches]
    tables = [_degrees(scenario, space) for scenario in bases]
    first_equal = [
        next(place for place, other in enumerate(tables) if np.array_equal(table, other)) for table in tables
    ]
    sizes = [Degrees(**dict(zip(DEGREE_NAMES, table.T, strict=True))) for table in tables]
    for recompute, formats, switches in space.structures:
        place = first_equal[space.switches.index(switches)]
        plan = replace(base.plan, recompute=recompute, precision=formats, switches=switches)
        scenario = replace(base, plan=plan)
        possible = len(tables[place]) and not any(problem for rule in RULES for problem in rule(scenario))
        if recompute.kind == "full" and len(space.recompute) > 1 and "moe" in base.engine.supports.features.overlaps:
            possible = possible and not tells_expert_overlap(scenario)  # backward cannot begin with a forward then
        if possible:
            context = lowering_context(scenario)
            split = replace(context.resolved, sequence_parallel=switches.sequence_parallel is not False)
            yield _Structure(
                scenario=scenario,
                context=replace(context, degrees=sizes[place], resolved=split),
                degrees=tables[place],
                plans=plan_columns([_with(scenario, Mesh())]),
                ops_key=(str(replace(plan, switches=replace(switches, overlap={}))), place),
                layers=(space.switches.index(switches), space.precision.index(formats)),
            )


def _batches(structures: Sequence[_Structure]) -> Iterator[list[_Structure]]:
    """Structures of the same cells that run at the same rates, so few that their columns stay in the cache."""
    groups: dict[object, list[_Structure]] = {}
    for item in structures:
        plans = item.plans
        groups.setdefault((item.ops_key[1], *plans.graph, *plans.xla, *plans.attention), []).append(item)
    for group in groups.values():
        few = max(1, BATCH // len(group[0].degrees))
        yield from (group[start : start + few] for start in range(0, len(group), few))


def _degrees(scenario: Scenario, space: Space) -> Array:
    """tp, cp, ep, etp, microbatch of every cell that can run somewhere, one row each; judged by `plan.check`.

    Formats and recompute have no say in it.
    """
    plan, chips = scenario.plan, scenario.system.chips
    tps = [tp for tp in space.tp if not any(tensor(_with(scenario, Mesh(tp=tp))))]
    pairs = [
        (tp, cp)
        for tp, cp in product(tps, space.cp)
        if chips % (tp * cp) == 0
        and not _is_duplicate_cell(plan, space, tp, cp)
        and not any(context(_with(scenario, Mesh(tp=tp, cp=cp))))
    ]
    expert_pairs = [
        (ep, etp)
        for ep, etp in product(space.ep, space.etp)
        if chips % (ep * etp) == 0
        and not (ep * etp == 1 and _idle_overlap(plan, space))
        and not any(experts(_with(scenario, Mesh(dp=ep * etp, ep=ep, etp=etp))))
    ]
    cells = [(*pair, *fold, size) for pair, fold, size in product(pairs, expert_pairs, space.microbatch)]
    return np.array(cells, dtype=np.float64).reshape(-1, 5)


def _is_duplicate_cell(plan: Plan, space: Space, tp: int, cp: int) -> bool:
    """Whether another structure is the same at these degrees: a switch for ranks that are not there."""
    switches = plan.switches
    same = (
        (tp == 1 and switches.sequence_parallel is not None, replace(switches, sequence_parallel=None)),
        (cp == 1 and switches.cp_kind != "ring", replace(switches, cp_kind="ring")),
    )
    return any(idle and alternative in space.switches for idle, alternative in same)


def _idle_overlap(plan: Plan, space: Space) -> bool:
    """Whether another structure is the same while no expert is exchanged: one not told to overlap that."""
    switches = plan.switches
    remainder = {word: on for word, on in switches.overlap.items() if word != "moe"}
    return "moe" in switches.overlap and replace(switches, overlap=remainder) in space.switches


def _with(scenario: Scenario, mesh: Mesh) -> Scenario:
    return replace(scenario, plan=replace(scenario.plan, mesh=mesh))


def _join_structures(group: Sequence[tuple[_Structure, PlanModel]]) -> DegreeGrid:
    """Structures side by side, their sections in one table, sorted by how many microbatches they make."""
    parts = [structure for structure, _ in group]
    degrees = np.concatenate([part.degrees for part in parts])
    tp, cp, _, _, microbatch = degrees.T
    base = parts[0].scenario
    microbatches = base.workload.sequences * tp * cp / (base.system.chips * microbatch)  # microbatches for a stage
    order = np.lexsort((microbatches, microbatches % 1 > 0))  # loops take whole numbers of them
    model = join_models([part_model for _, part_model in group], order)
    columns = {item.name: [getattr(part.plans, item.name) for part in parts] for item in fields(PlanColumns)}
    precisions = [part.scenario.plan.precision for part in parts]
    formats = np.array([precisions.index(precision) for precision in precisions])[model.structure]
    groups = np.column_stack([degrees[order, :4], formats])  # a number for every mesh and precision
    return DegreeGrid(
        scenarios=tuple(part.scenario for part in parts),
        context=parts[0].context,
        structure=model.structure,
        degrees=Degrees(**dict(zip(DEGREE_NAMES, degrees[order].T, strict=True))),
        weight_group=np.unique(groups, axis=0, return_inverse=True)[1].ravel(),
        plans=PlanColumns(**{name: _column(values, model.structure) for name, values in columns.items()}),
        model=model,
    )


def _column(values: Sequence[Array], structure: Index) -> Array:
    """A column by cell of what structures have one entry of; one entry where that is the same for all."""
    column = np.concatenate(values)
    return column[:1] if (column == column[0]).all() else column[structure]


CHUNK = 16384  # rows worked on at once, so that their columns stay in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChunk:
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

    def taken(self, places: Index) -> PlanChunk:
        """Some of the plans."""
        columns = {name: getattr(self, name)[places] for name in ("cell", "dp", "degree", "step_s", "peak_bytes")}
        return replace(self, **columns)

    def plan(self, index: int) -> Plan:
        """One of the plans."""
        cell = int(self.cell[index])
        base, sizes = self.grid.scenarios[int(self.grid.structure[cell])].plan, self.grid.degrees
        tp, cp, ep, etp, microbatch = (int(np.asarray(getattr(sizes, name))[cell]) for name in DEGREE_NAMES)
        degree, dp = int(self.degree[index]), int(self.dp[index])
        total = self.shard == "none" or degree == dp * cp
        return replace(
            base,
            mesh=Mesh(pp=self.pp, dp=dp, cp=cp, tp=tp, ep=ep, etp=etp, order=base.mesh.order),
            microbatch=microbatch,
            schedule=self.schedule,
            sharding=Sharding(shard=self.shard, shard_degree=None if total else degree),
            offload=self.offload,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Cells on a pipeline: what is the same for all schedules of it.

    degree    ranks that zero3 shards weights over; 1 where weights are whole
    choices   ways of sharding by what ranks hold
    """

    grid: DegreeGrid
    cell: Index
    pp: int
    dp: Array
    offload: Offload
    zero3: bool
    degree: Array
    model: RowModel
    choices: dict[bytes, _ShardingChoices] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Incumbent:
    """The best plan so far of a search that asks for the best alone: what cannot beat it need not be priced.

    step_s           seconds to beat; whoever collects plans lowers it
    capacity_bytes   what a plan may take
    """

    step_s: float
    capacity_bytes: float


def sweep(grid: DegreeGrid, space: Space, incumbent: Incumbent | None = None) -> Iterator[PlanChunk]:
    """Every plan of a space on these cells, priced; plans that cannot run are left out.

    incumbent   plans that take as long as this or longer, or do not fit, are left out, too, where a bound shows it
    """
    pipelines: dict[int, list[_Pipeline]] = {}
    for offload in space.offload:
        sections = grid.model.section_times(replace(grid.plans, offload=np.array([offload.activations])))
        for pp, cell, dp in _depths(grid, space.pp, sections, incumbent):
            if pp not in pipelines:
                pipelines[pp] = [made for schedule in _schedules(space, pp) if (made := _pipeline(grid, pp, schedule))]
            for rows in _rows(grid, space, sections, offload, (pp, cell, dp)):
                for pipeline, least_s in _promising(rows, pipelines[pp], incumbent):
                    yield from _schedule_rows(rows, space, pipeline, incumbent, least_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pipeline:
    """What so many stages under a schedule make of a grid.

    sends_overlap   whether sends overlap compute, by structure
    """

    schedule: Schedule
    placement: Placement
    sends_overlap: Array


def _pipeline(grid: DegreeGrid, pp: int, schedule: Schedule) -> _Pipeline | None:
    """The pipeline of a schedule; None where it has more stages than layers."""
    scenario, stages = grid.scenarios[0], pp * schedule.chunks
    if stages > scenario.model.layers + 2:
        return None
    placed = scenario.plan.placement or default_placement(scenario.model, stages)
    by_rank = virtual_stages_by_rank(pp, schedule.chunks, schedule.name)
    placement = Placement.of(stages_of(grid.context, placed), by_rank)
    overlaps = [sends_overlap(item.plan.switches, item.engine, schedule.name) for item in grid.scenarios]
    return _Pipeline(schedule=schedule, placement=placement, sends_overlap=np.array(overlaps, dtype=np.float64))


def _promising(
    rows: _Rows, pipelines: Sequence[_Pipeline], incumbent: Incumbent | None
) -> Iterator[tuple[_Pipeline, Array | None]]:
    """Pipelines whose rows may beat the incumbent, with seconds that no plan of a row takes less than; without one all.

    The most promising come first: what they lower the incumbent to may spare the others.
    """
    if incumbent is None or not pipelines:
        yield from ((pipeline, None) for pipeline in pipelines)
        return
    bounds = rows.model.least_step_s([pipeline.placement for pipeline in pipelines])
    for place in sorted(range(len(pipelines)), key=lambda place: bounds[place].min()):
        if bounds[place].min() < incumbent.step_s:
            yield pipelines[place], bounds[place]


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
    if scenario.plan.mesh.order == DP_LAST and pp > 1 and has_experts(scenario):
        even &= (dp == 1) | (sizes.ep * sizes.etp == inner)
    cell = np.flatnonzero(even)
    return cell, dp[cell]


def _depths(
    grid: DegreeGrid, depths: Sequence[int], sections: SectionTimes, incumbent: Incumbent | None
) -> Iterator[tuple[int, Index, Array]]:
    """Stages, cells that can be dealt over them, and their dp.

    With an incumbent the most promising depths come first, and cells that cannot beat it by then are left out.
    """
    dealt = [(pp, *_dealt(grid, pp)) for pp in depths]
    if incumbent is None:
        yield from dealt
        return
    (counts,) = stages_of(grid.context, (grid.scenarios[0].model.layers,))
    busy_s = grid.model.least_seconds(sections, counts, grid.plans)
    sequences, sizes = grid.scenarios[0].workload.sequences, np.asarray(grid.degrees.microbatch)
    bounds = [
        grid.model.least_step_s(sequences / (dp * sizes[cell]) * busy_s[cell] / pp, grid.plans)
        for pp, cell, dp in dealt
    ]
    for place in sorted(range(len(dealt)), key=lambda place: bounds[place].min(initial=np.inf)):
        pp, cell, dp = dealt[place]
        faster = np.flatnonzero(bounds[place] < incumbent.step_s)
        yield pp, cell[faster], dp[faster]


def _rows(
    grid: DegreeGrid, space: Space, sections: SectionTimes, offload: Offload, dealt: tuple[int, Index, Array]
) -> Iterator[_Rows]:
    """Rows whose weights are whole, and rows whose weights are sharded at every degree."""
    pp, cell, dp = dealt
    if not len(cell):
        return
    if any(shard != "zero3" for shard in space.shard):
        yield _row(grid, space, sections, offload, pp, (cell, dp, None))
    if "zero3" in space.shard:
        replicas = dp * np.asarray(grid.degrees.cp)[cell]
        for size in space.shard_degree:
            degree = replicas if size == 0 else np.full(len(cell), float(size))
            current = np.flatnonzero(_splits(space, size, replicas))
            if len(current):
                yield _row(grid, space, sections, offload, pp, (cell[current], dp[current], degree[current]))


def _row(
    grid: DegreeGrid, space: Space, sections: SectionTimes, offload: Offload, pp: int,
    dealt: tuple[Index, Array, Array | None],
) -> _Rows:  # fmt: skip
    cell, dp, degree = dealt
    zero3 = degree is not None
    sizes = Degrees(**{name: np.asarray(getattr(grid.degrees, name))[cell] for name in DEGREE_NAMES})
    columns = degree_columns(grid.scenarios[0], sizes, pp, dp)
    columns["boundary_bytes"] *= _boundary_ratio(grid)[cell]
    plans = replace(
        grid.plans.at(cell),
        **{name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in columns.items()},
        shard=np.array([3.0 if zero3 else 0.0]),
        shard_degree=np.ones(1) if degree is None else degree,
        offload=np.array([offload.activations]),
        offload_optimizer=np.array([offload.optimizer]),
    )
    apart = any(SCHEDULES[schedule.name].splits_backward for schedule in space.schedule)
    return _Rows(
        grid=grid,
        cell=cell,
        pp=pp,
        dp=dp,
        offload=offload,
        zero3=zero3,
        degree=np.ones(len(cell)) if degree is None else degree,
        model=grid.model.rows(sections, cell, plans, grid.weight_group[cell], apart=pp > 1 and apart),
    )


def _boundary_ratio(grid: DegreeGrid) -> Array:
    """Bytes that a tensor rank sends to the next stage by cell, over those by the rules of the first structure."""
    widths = np.array([scenario.plan.precision.activations.bytes_per_element for scenario in grid.scenarios])
    shares = np.array([float(shares_boundary(scenario)) for scenario in grid.scenarios])
    powers = (shares[0] - shares)[grid.structure]
    return np.asarray((widths / widths[0])[grid.structure] * np.asarray(grid.degrees.tp) ** powers)


@dataclass(slots=True, kw_only=True)
class _ShardingChoices:
    """Every way of sharding what ranks hold, and what ends a step under each, by layers of ranks and v-shape."""

    ways: list[_ShardingChoice]
    ends: dict[tuple[bytes, bool], list[EndOfStep]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShardingChoice:
    """A way of sharding state, by weight group; `degree` is not a number where it cannot be.

    same   the place of an earlier choice that takes as long to sync, or its own place
    """

    shard: Shard
    degree: Array
    plans: PlanColumns
    state: ModelState
    same: int


def _schedule_rows(
    rows: _Rows, space: Space, pipeline: _Pipeline, incumbent: Incumbent | None, least_s: Array | None
) -> Iterator[PlanChunk]:
    """The rows under one schedule, as far as it takes them."""
    model, placement, schedule = rows.model, pipeline.placement, pipeline.schedule
    able = list(_able(schedule, rows.pp, model.plans.microbatches))
    if not able:
        return
    plans = replace(
        model.plans,
        chunks=np.array([float(schedule.chunks)]),
        schedule=np.array([float(NAMES.index(schedule.name))]),
        overlap_pp=at(pipeline.sends_overlap, rows.grid.structure[rows.cell]),
    )
    sharding = _sharding_choices(rows, space, placement)
    choices, ends = sharding.ways, sharding.ends
    ranks = placement.mix.counts[placement.mix.roles.ranks].tobytes(), SCHEDULES[schedule.name].v_shaped
    for rows_of_chunk in able:
        columns = plans if rows_of_chunk == slice(0, len(rows.cell)) else plans.at(rows_of_chunk)
        moving = model.transient(placement, columns, rows_of_chunk)
        peaks = [round_digits(model.peak_bytes(moving, choice.state, rows_of_chunk)) for choice in choices]
        if incumbent is not None and least_s is not None:
            fits = np.minimum.reduce(peaks) <= incumbent.capacity_bytes
            if not (fits & (least_s[rows_of_chunk] < incumbent.step_s)).any():
                continue
        if ranks not in ends:
            ways = [replace(choice.plans, schedule=plans.schedule) for choice in choices]
            ends[ranks] = model.ends(placement, ways, [choice.same for choice in choices])
        scheduled = model.scheduled(placement, columns, model.sends(plans), rows_of_chunk)
        steps: dict[int, Array] = {}
        for choice, end, peak in zip(choices, ends[ranks], peaks, strict=True):
            degree = choice.degree.take(scheduled.group)
            fits = np.isfinite(degree)
            if not fits.any():
                continue
            if choice.same not in steps:
                steps[choice.same] = round_digits(model.step_s(scheduled, end))
            chunk = PlanChunk(
                grid=rows.grid,
                cell=rows.cell[rows_of_chunk],
                pp=rows.pp,
                dp=rows.dp[rows_of_chunk],
                schedule=schedule,
                offload=rows.offload,
                shard=choice.shard,
                degree=degree,
                step_s=steps[choice.same],
                peak_bytes=peak,
            )
            yield chunk if fits.all() else chunk.taken(np.flatnonzero(fits))


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


def _sharding_choices(rows: _Rows, space: Space, placement: Placement) -> _ShardingChoices:
    """All ways of sharding, with what they do to the weights of every group."""
    ranks = placement.ranks
    rank_content = b"".join(column.tobytes() for column in (ranks.counts, ranks.first, ranks.last))
    if rank_content in rows.choices:
        return rows.choices[rank_content]
    attempt = [(shard, size, _degree(rows, space, (shard, size))) for shard, size in _shardings(rows, space)]
    attempt = [way for way in attempt if np.isfinite(way[2]).any()]
    keys = [(shard == "none", size) for shard, size, _ in attempt]  # sharded gradients sync like sharded states alone
    columns = [
        replace(rows.model.group_plans, shard=np.array([float(SHARDS.index(shard))]), shard_degree=degree)
        for shard, _, degree in attempt
    ]
    states = rows.model.states(placement, columns)
    rows.choices[rank_content] = _ShardingChoices(
        ways=[
            _ShardingChoice(shard=shard, degree=degree, plans=plans, state=state, same=keys.index(key))
            for (shard, _, degree), plans, state, key in zip(attempt, columns, states, keys, strict=True)
        ]
    )
    return rows.choices[rank_content]


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
        return rows.degree[rows.model.firsts]
    replicas = rows.dp[rows.model.firsts] * np.asarray(rows.grid.degrees.cp)[rows.cell[rows.model.firsts]]
    return replicas if size == 0 else np.where(_splits(space, size, replicas), float(size), np.nan)


def _splits(space: Space, size: int, replicas: Array) -> Mask:
    """Whether so many replicas can share a shard, 0 being all of them; all by number only where 0 is no choice."""
    if size == 0:
        return np.ones(len(replicas), dtype=np.bool_)
    return np.asarray((replicas % size == 0) & ((size < replicas) | (0 not in space.shard_degree)))


def chunks_of(grids: Sequence[DegreeGrid], space: Space, incumbent: Incumbent | None = None) -> Iterator[PlanChunk]:
    """The plans of all grids."""
    for grid in grids:
        yield from sweep(grid, space, incumbent)
