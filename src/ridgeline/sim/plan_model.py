"""Turn structures of a search, and stage layouts of one plan, into step time and peak memory.

    PlanModel       cells: structures at every choice of the degrees that size their ops
    RowModel        those cells on a pipeline of so many stages, weights whole or sharded by zero3
    ScheduledRows   rows under a schedule: bottleneck rank and bubble, activations in flight
    ModelState      resident bytes under a way of sharding state, and EndOfStep: its gradient sync and optimizer

Each is worked out once for everything below it in this list; a plan is one of the third with one of the fourth.
`closed_form.step` and `memory.peak` run the same functions for a single prediction.

    LayoutModel     which layers each stage of one plan holds, and what they recompute

A policy is a way to recompute and a share of activations that is offloaded. Its sections are priced once; a layout is a
sum of them, so that a thousand layouts cost little more than one prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from itertools import product

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.documents import JsonObject
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration, Profile, profile_for
from ridgeline.cost.pricing import MeasuredOps, OpTable, SectionPrices, SustainedRates
from ridgeline.ir.program import Program, SectionKey, SectionRole
from ridgeline.lowering.context import LoweringContext, lowering_context
from ridgeline.lowering.plan_columns import PlanColumns, plan_columns
from ridgeline.lowering.program import section_keys, sections_of, stages_of
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import virtual_stages_by_rank
from ridgeline.sim.closed_form.stage_mix import PlacementMix, RankMix, StageMix, placement_mix, rank_mix, sum_by_count
from ridgeline.sim.closed_form.stage_times import (
    WITH_STALLS,
    SectionTimes,
    StageTimes,
    exposed_gathers,
    exposed_stage_times,
    gather_seconds,
    host_stall,
    section_times,
    stage_times,
)
from ridgeline.sim.closed_form.step import (
    EndOfStep,
    PipelineTime,
    Sends,
    end_of_step,
    least_step_s,
    most_trained,
    pipeline_time,
    send_seconds,
    step_times,
)
from ridgeline.sim.memory.footprint import (
    BytesPerParam,
    SectionFootprint,
    bytes_per_param,
    rank_footprint,
    rank_params,
    section_footprint,
)
from ridgeline.sim.memory.peak import (
    ModelState,
    PeakForm,
    Transient,
    host_share,
    model_state,
    peak_bytes,
    peak_form,
    transient,
)

Stages = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Sections by virtual stage and virtual stages by rank: what may be the bottleneck, and what may be the fullest."""

    mix: PlacementMix
    ranks: RankMix

    @classmethod
    def of(cls, stages: Stages, by_rank: Stages) -> Placement:
        """`stages` counts sections in each virtual stage, `by_rank` lists the virtual stages of each rank."""
        return cls(mix=placement_mix(stages, by_rank), ranks=rank_mix(stages, by_rank, fullest=True))

    def over(self, rows: int) -> StageMix:
        """The same placement of so many rows."""
        return StageMix(rows=np.arange(rows), counts=self.mix.counts, roles=self.mix.roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanModel:
    """Priced sections of cells, and what they hold; section s of cell c stands at s cells + c.

    kinds       sections of a cell
    per_param   bytes of a parameter, columns by structure; habits of the software are the same in all
    structure   of every cell
    host        bytes of host memory for each chip
    """

    prices: SectionPrices
    rates: SustainedRates
    kinds: int
    footprint: SectionFootprint
    per_param: BytesPerParam
    structure: Index
    host: float

    @classmethod
    def of(
        cls,
        structures: Sequence[tuple[Scenario, LoweringContext]],
        rates: SustainedRates,
        cells: int,
        profiles: Mapping[str, Profile],
    ) -> list[PlanModel]:
        """Structures whose sections have sizes over so many cells, priced at the same rates; a model for each."""
        by_structure = [sections_of(context) for _, context in structures]
        if profile_for(profiles, structures[0][0].system.chip.fitted_id):
            tables = [OpTable.over(sections, cells) for sections in by_structure]
            pairs = [(table, scenario) for table, (scenario, _) in zip(tables, structures, strict=True)]
            kernels = (MeasuredOps.of(table, rates.machines, [scenario], profiles) for table, scenario in pairs)
            prices = [rates.price_sections(table, measured=ops) for table, ops in zip(tables, kernels, strict=True)]
        else:
            prices = rates.price_shared_ops(by_structure, cells)
        return [
            cls(
                prices=section_prices,
                rates=rates,
                kinds=len(sections),
                footprint=section_footprint(context, sections, cells),
                per_param=_by_structure([bytes_per_param(context, scenario)]),
                structure=np.zeros(cells, dtype=np.int64),
                host=host_share(scenario),
            )
            for (scenario, context), sections, section_prices in zip(structures, by_structure, prices, strict=True)
        ]

    @property
    def cells(self) -> int:
        return len(self.structure)

    def section_times(self, plans: PlanColumns) -> SectionTimes:
        """What sections of all cells take; communication as far as it is exposed, no weights gathered."""
        return section_times(self.prices, plans, self.rates)

    def least_seconds(self, sections: SectionTimes, counts: Sequence[float], plans: PlanColumns) -> Array:
        """Seconds by cell that one microbatch takes on all ranks of a pipeline together.

        Waiting for the host is counted as if one rank ran everything: several ranks wait as long or longer, since
        (running^10 + issue^10)^(1/10) of a sum is at most the sum of the ranks' own. `counts` are of each section.
        """
        columns = np.stack([*sections.passes, *sections.issue_s]).reshape(6, self.kinds, self.cells)
        forward, inputs, weights, issue, of_inputs, of_weights = np.asarray(counts) @ columns
        backward = inputs + weights
        stalls = host_stall(forward, issue, plans.blocking)
        stalls += host_stall(backward, of_inputs + of_weights, plans.blocking)
        least_s: Array = forward + backward + stalls
        return least_s

    def least_step_s(self, busy_s: Array, plans: PlanColumns) -> Array:
        return least_step_s(busy_s, plans, self.rates.rates)

    def rows(
        self, sections: SectionTimes, cell: Index, plans: PlanColumns, groups: Index, *, apart: bool = True
    ) -> RowModel:
        """These cells on a pipeline; `groups` tells which rows hold the same weights on the same ranks.

        apart   whether some schedule will run weight gradients apart from input gradients
        """
        _, firsts, group = np.unique(groups, return_index=True, return_inverse=True)
        group_plans = plans.at(firsts)
        times = self._times(sections, cell, plans, (firsts, group, group_plans))
        same = not apart or not (plans.shard[0] == 3 or plans.offload.any())
        return RowModel(
            model=self,
            cell=cell,
            plans=plans,
            group=group,
            firsts=firsts,
            group_plans=group_plans,
            times=times,
            apart=times if same else self._times(sections, cell, plans, (firsts, group, group_plans), apart=True),
            footprint=self.footprint.at(cell),
            group_footprint=self.footprint.at(cell[firsts]),
            per_param=_at(self.per_param, self.structure[cell[firsts]]),
        )

    def _times(
        self, sections: SectionTimes, cell: Index, plans: PlanColumns, groups: tuple[Index, Index, PlanColumns],
        apart: bool = False,
    ) -> StageTimes:  # fmt: skip
        """What sections take in rows of these cells; weights that zero3 shards are gathered at each row's degree."""
        (firsts, group, group_plans), split = groups, np.array([apart])
        if plans.shard[0] < 3:
            return StageTimes(rows=self.taken(stage_times(sections, np.zeros((3, 1)), split)[0].rows, cell))
        rates, params = self.rates.rates, self.taken(self.prices.params[:2], cell[firsts])
        spent = gather_seconds(params, group_plans, self.rates.links).take(group, axis=-1)
        taken = SectionTimes(
            **{item.name: self.taken(getattr(sections, item.name), cell) for item in fields(SectionTimes)}
        )
        hidden = rates["hidden_shard"] * (1 - plans.blocking)
        gathers = exposed_gathers(spent, taken, hidden, rates["contention"], split)
        return stage_times(taken, gathers, split)[0]

    def taken(self, columns: Array, cells: Index) -> Array:
        """Columns by section of these cells: section by section, cells beside each other."""
        return columns.reshape(*columns.shape[:-1], self.kinds, self.cells).take(cells, axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRows:
    """Some rows under a schedule; `group` is the weight group of each."""

    plans: PlanColumns
    group: Index
    pipeline: PipelineTime


@dataclass(frozen=True, slots=True, kw_only=True)
class RowModel:
    """Cells on a pipeline: what is the same for all schedules of it.

    group, firsts   the weight group of every row, and the first row of each group; `group_plans` the columns of these
    times, apart    what sections take, sections x rows: in general, and where weight gradients run apart
    footprint       what sections need by row, and by weight group; `per_param` by weight group
    sent            sends that were worked out, by where they overlap compute
    """

    model: PlanModel
    cell: Index
    plans: PlanColumns
    group: Index
    firsts: Index
    group_plans: PlanColumns
    times: StageTimes
    apart: StageTimes
    footprint: SectionFootprint
    group_footprint: SectionFootprint
    per_param: BytesPerParam
    sent: dict[bytes, Sends] = field(default_factory=dict)

    def least_step_s(self, placements: Sequence[Placement]) -> list[Array]:
        """Seconds that no plan of a row takes less than under each placement: its bottleneck rank is busy so long."""
        phases = self.times.phases if self.apart is self.times else np.minimum(self.times.phases, self.apart.phases)
        lines = [placement.mix.counts[placement.mix.roles.ranks] for placement in placements]
        sections = StageTimes.of(phases, self.times.issues)
        ranks = StageTimes(rows=sum_by_count(np.concatenate(lines), sections.rows))
        ranks.add_stalls(np.zeros(1, dtype=np.bool_), self.plans.blocking)
        ends = np.cumsum([len(line) for line in lines])
        busiest = [busy.max(0) for busy in np.split(ranks.busy, ends[:-1])]
        return [self.model.least_step_s(self.plans.microbatches * busy, self.plans) for busy in busiest]

    def states(self, placement: Placement, ways: Sequence[PlanColumns]) -> list[ModelState]:
        """Resident bytes under ways of sharding, `ways` being the columns of each by weight group."""
        params = rank_params(self.group_footprint, placement.ranks)
        return [model_state(params, plans, self.per_param) for plans in ways]

    def ends(self, placement: Placement, ways: Sequence[PlanColumns], same: Sequence[int]) -> list[EndOfStep]:
        """Gradient sync and optimizer under these ways.

        same   the place of an earlier way that takes as long to sync, or a way's own place
        """
        model, cell = self.model, self.cell[self.firsts]
        trained = most_trained([placement.over(len(cell))], model.taken(model.prices.params[2:], cell))
        ends: list[EndOfStep] = []
        for place, plans in enumerate(ways):
            ends.append(ends[same[place]] if same[place] < place else end_of_step(trained, plans, model.rates))
        return ends

    def sends(self, plans: PlanColumns) -> Sends:
        """One send between stages; schedules that overlap it alike share it."""
        overlap = plans.overlap_pp.tobytes()
        if overlap not in self.sent:
            self.sent[overlap] = send_seconds(plans, self.model.rates)
        return self.sent[overlap]

    def transient(self, placement: Placement, plans: PlanColumns, own: slice) -> Transient:
        """What comes and goes in some rows under the schedule that `plans` says, in bytes."""
        all_rows = own.stop - own.start == len(self.cell)
        footprint = self.footprint if all_rows else self.footprint.at(own)
        return transient(rank_footprint(footprint, placement.ranks), plans, self.model.per_param)

    def scheduled(self, placement: Placement, plans: PlanColumns, sends: Sends, own: slice) -> ScheduledRows:
        """Some rows under the schedule that `plans` says; those are the columns of these rows alone."""
        sections = self.apart if plans.weights_apart.any() else self.times
        mix, times = placement.over(own.stop - own.start), StageTimes(rows=sections.rows[:, :, own])
        pipeline = pipeline_time([mix], times, sends.at(own), plans)
        return ScheduledRows(plans=plans, group=self.group[own], pipeline=pipeline)

    def step_s(self, rows: ScheduledRows, ends: EndOfStep) -> Array:
        """Seconds of the step of every plan."""
        return step_times(rows.pipeline, ends.at(rows.group), rows.plans, self.model.rates).step_s

    def peak_bytes(self, moving: Transient, state: ModelState, own: slice) -> Array:
        """The fullest rank of every plan; infinite where more is offloaded than a chip's share of its host."""
        return peak_bytes(state.at(self.group[own]), moving, self.model.per_param, self.model.host)


_BY_SECTION = ("params", "offloadable", "seconds", "issue_s", "beside_s")
_BY_CELL = ("layer", "loss", "sends", "crossing", "freed", "head", "widest", "shared")
_PER_PARAM = ("weights", "gradients", "optimizer", "master", "gathered", "reduced")


def join_models(parts: Sequence[PlanModel], order: Index) -> PlanModel:
    """Structures with as many sections as one, their cells in this order of all of them side by side."""
    kinds = parts[0].kinds

    def beside(columns: Sequence[Array], sections: int = kinds) -> Array:
        """Columns by section and cell of each part as one."""
        split = [column.reshape(*column.shape[:-1], sections, -1) for column in columns]
        made = np.concatenate(split, axis=-1).take(order, axis=-1)
        return made.reshape(*made.shape[:-2], -1)

    structure = np.repeat(np.arange(len(parts)), [part.cells for part in parts])[order]
    prices, footprints = [part.prices for part in parts], [part.footprint for part in parts]
    return PlanModel(
        prices=SectionPrices(
            cell=np.tile(np.arange(len(structure)), kinds),
            **{name: beside([getattr(part, name) for part in prices]) for name in _BY_SECTION},
        ),
        rates=parts[0].rates,
        kinds=kinds,
        footprint=SectionFootprint(
            columns=beside([_together(part.columns) for part in footprints], 1),
            norm=footprints[0].norm,
            **{name: beside([getattr(part, name) for part in footprints], 1) for name in _BY_CELL},
        ),
        per_param=_by_structure([part.per_param for part in parts]),
        structure=structure,
        host=parts[0].host,
    )


def _together(columns: Array) -> Array:
    """Columns of a footprint with the bytes saved by all parts in one."""
    return np.concatenate([columns[:3], columns[3:].sum(0, keepdims=True)])


def _by_structure(each: Sequence[BytesPerParam]) -> BytesPerParam:
    """Bytes of a parameter of several structures as one, in columns."""
    columns = {name: [np.atleast_1d(getattr(one, name)) for one in each] for name in _PER_PARAM}
    joined: JsonObject = {name: np.concatenate(values) for name, values in columns.items()}
    return replace(each[0], **joined)


def _at(per_param: BytesPerParam, structure: Index) -> BytesPerParam:
    """Bytes of a parameter by cell or row."""
    columns: JsonObject = {name: np.asarray(getattr(per_param, name))[structure] for name in _PER_PARAM}
    return replace(per_param, **columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSections:
    """Places of the sections of distinct blocks, by block: of a layer that recomputes, and of one of the rest.

    before   layers of the model x blocks: how many of each block stand before a layer
    order    the block of every layer
    """

    recomputed: Index
    rest: Index
    before: Index
    order: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySections:
    """What sections take under every policy: policy after policy, `many` sections each.

    times       of one microbatch
    trained     dense and expert parameters that get gradients
    footprint   dense, expert, trained parameters and bytes saved
    workspace   bytes the backward of a section takes for itself
    """

    many: int
    times: StageTimes
    trained: Array
    footprint: Array
    workspace: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutModel:
    """A plan's sections under every policy, priced, and how stages and ranks are made of them.

    policies  recompute and share of activations offloaded
    form      the linear forms of peaks, by rank and policy
    stages    virtual stages of every rank
    group     of every virtual stage: the first, the last, or those of one rank between, which are only ever added up
    fixed     groups x sections: what stands in stages whatever layers they hold
    adds      ranks x groups: what a rank holds
    mix       how the closed form adds groups up
    """

    policies: tuple[tuple[Recompute, float], ...]
    sections: PolicySections
    blocks: BlockSections
    form: PeakForm
    plans: PlanColumns
    rates: SustainedRates
    stages: tuple[tuple[int, ...], ...]
    group: Index
    fixed: Array
    adds: Array
    mix: PlacementMix

    def places(self, policy: Index) -> Index:
        """Where the sections of these policies stand."""
        return np.arange(self.sections.many)[:, None] + policy * self.sections.many

    def step_s(self, counts: Array, policy: Index) -> Array:
        """The predicted step of layouts: `counts` are groups x sections x layouts."""
        mix = StageMix(
            rows=np.arange(len(policy)),
            counts=_add_counts(self.mix.counts, counts),
            roles=self.mix.roles,
            sections=self.places(policy),
        )
        sends = send_seconds(self.plans, self.rates)
        pipeline = pipeline_time([mix], self.sections.times, sends, self.plans)
        ends = end_of_step(most_trained([mix], self.sections.trained), self.plans, self.rates)
        return step_times(pipeline, ends, self.plans, self.rates).step_s

    def quickest_s(self, policies: Index) -> Array:
        """Seconds of a microbatch by policy and block that no layer of it takes less than."""
        busy = self.sections.times.busy.reshape(-1, self.sections.many)[policies]
        return np.minimum(busy[:, self.blocks.recomputed], busy[:, self.blocks.rest])

    @property
    def least_step_s(self) -> float:
        """Seconds that no layout's step takes less than: the quickest of all layers, dealt so that no rank has much.

        A rank that holds k layers is busy for its ends and k times that: with L layers in all, some rank is busy as
        long as the L-th shortest of these.
        """
        busy, layers = self.sections.times.busy.reshape(-1, self.sections.many), len(self.blocks.order)
        layer_s = self.quickest_s(np.arange(len(busy))).min(1)
        ends_s = self.adds @ self.fixed @ busy.T
        held_s = ends_s[:, None] + np.arange(1, layers + 1)[:, None] * layer_s
        shortest = np.partition(held_s.reshape(-1, len(busy)), layers - 1, axis=0)[layers - 1]
        rank_s = np.maximum(shortest, ends_s.max(0)).min()
        return float(least_step_s(self.plans.microbatches * rank_s, self.plans, self.rates.rates)[0])

    def busy_s(self, counts: Array, policy: Index) -> Array:
        """Seconds of a microbatch by rank and layout, waiting for the host left out."""
        busy = self.sections.times.busy[None, self.places(policy)]
        return np.asarray(sum_by_count(_add_counts(self.adds, counts), busy)[0])

    def peaks(self, counts: Array, policy: Index) -> Array:
        """Peak bytes by rank and layout."""
        held, places = _add_counts(self.adds, counts), self.places(policy)
        workspace = np.zeros((len(self.stages), len(policy)))
        for section, size in enumerate(self.sections.workspace[places]):
            np.maximum(workspace, np.where(held[:, section] > 0, size, 0.0), out=workspace)
        sums = np.concatenate([sum_by_count(held, self.sections.footprint[:, places]), workspace[None]])
        return self.form.peak_bytes(sums, policy)


def price_layouts(
    scenario: Scenario, recomputes: Sequence[Recompute], shares: Sequence[float], calibration: Calibration
) -> LayoutModel:
    """The layouts of a plan under its own way to recompute and those of `recomputes` that save anything.

    shares   of activations offloaded; the plan's own alone where no rate to the host is published
    """
    plan, context, plans = scenario.plan, lowering_context(scenario), plan_columns([scenario])
    ways, rates = _useful_ways(context, recomputes), SustainedRates.of_scenario(calibration, scenario, plans)
    shares = shares if np.isfinite(rates.machines.host).all() else (plan.offload.activations,)
    policies = tuple((way.recompute, share) for share, way in product(shares, ways))
    by_policy = replace(plans, offload=np.array([share for _, share in policies]))
    needs = _side_by_side([way.needs for way in ways] * len(shares))
    table = OpTable.of([way.program for way in ways])
    measured = MeasuredOps.of(table, rates.machines, [scenario], calibration.profiles)
    priced = _repeat_sections(rates.price_sections(table, measured=measured), len(shares))
    stages = virtual_stages_by_rank(plan.mesh.pp, plan.schedule.chunks, plan.schedule.name)
    bare = stages_of(replace(context, recompute=ways[0].recompute), (0,) * plan.virtual_stages)
    group = _groups(stages)
    fixed = np.zeros((group.max() + 1, len(bare[0])))
    np.add.at(fixed, group, np.array(bare))
    each = tuple(map(tuple, np.eye(plan.virtual_stages, dtype=np.int64).tolist()))
    mix, one = placement_mix(each, stages), np.unique(group, return_index=True)[1]
    footprint = _together(needs.columns)
    return LayoutModel(
        policies=policies,
        sections=PolicySections(  # footprints are sections x policies; here they stand policy after policy
            many=footprint.shape[1],
            times=exposed_stage_times(priced, by_policy, rates).first(WITH_STALLS),
            trained=priced.params[2:],
            footprint=footprint.swapaxes(1, 2).reshape(len(footprint), -1),
            workspace=needs.layer.T.ravel(),
        ),
        blocks=block_sections(replace(context, recompute=ways[0].recompute)),
        form=peak_form(needs, rank_mix(bare, stages), by_policy, bytes_per_param(context, scenario)),
        plans=plans,
        rates=rates,
        stages=stages,
        group=group,
        fixed=fixed,
        adds=rank_mix(each, stages).counts[:, one],
        mix=replace(mix, counts=mix.counts[:, one]),
    )


def block_sections(context: LoweringContext) -> BlockSections:
    """Where the sections of blocks stand when recompute leaves its layers open."""
    place = {key: index for index, key in enumerate(section_keys(context))}
    blocks = range(len(context.model.blocks))
    recomputed, rest = (
        np.array([place[SectionKey(SectionRole.BLOCK, block, other)] for block in blocks]) for other in (False, True)
    )
    order = np.array(context.model.order, dtype=np.int64)
    before = np.zeros((len(order) + 1, len(blocks)), dtype=np.int64)
    before[1:] = np.cumsum(np.eye(len(blocks), dtype=np.int64)[order], axis=0)
    return BlockSections(recomputed=recomputed, rest=rest, before=before, order=order)


def _add_counts(adds: Array, counts: Array) -> Array:
    """Sections of virtual stages added up: mixes x sections x layouts."""
    return (adds @ counts.reshape(len(counts), -1)).reshape(len(adds), *counts.shape[1:])


def _groups(stages: Sequence[Sequence[int]]) -> Index:
    """
    >>> _groups([(0, 2), (1, 3)]).tolist()
    [0, 3, 2, 1]
    """
    found = np.empty(sum(map(len, stages)), dtype=np.int64)
    for rank, own in enumerate(stages):
        found[list(own)] = 2 + rank
    found[-1], found[0] = 1, 0
    return np.asarray(np.unique(found, return_inverse=True)[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeSections:
    """One way to recompute: the sections it makes, and what they need of memory."""

    recompute: Recompute
    program: Program
    needs: SectionFootprint

    def saved(self, sections: Index) -> Array:
        """Bytes some sections save for their backward."""
        saved: Array = self.needs.columns[3:, :, 0].sum(0)[sections]
        return saved


def _useful_ways(context: LoweringContext, recomputes: Sequence[Recompute]) -> tuple[RecomputeSections, ...]:
    """The first way to recompute, and those whose layers save less than the rest, and the rest less than all."""
    ways = []
    for recompute in recomputes:
        own = replace(context, recompute=recompute)
        sections = sections_of(own)
        needs = section_footprint(own, sections, 1)
        ways.append(RecomputeSections(recompute=recompute, program=Program(sections=sections, stages=()), needs=needs))
    blocks = block_sections(replace(context, recompute=recomputes[0]))
    everything = next(way for way in ways if way.recompute.rest == "none").saved(blocks.rest)

    def useful(way: RecomputeSections) -> bool:
        rest = way.saved(blocks.rest)
        less = way.recompute.rest == "none" or bool((rest < everything).any())
        return less and bool((way.saved(blocks.recomputed) < rest).any())

    return (ways[0], *filter(useful, ways[1:]))


def _side_by_side(needs: Sequence[SectionFootprint]) -> SectionFootprint:
    """Footprints of one cell each as cells of one."""
    names = (item.name for item in fields(SectionFootprint) if item.name != "norm")
    columns = {name: np.concatenate([getattr(need, name) for need in needs], axis=-1) for name in names}
    return SectionFootprint(norm=needs[0].norm, **columns)


def _repeat_sections(priced: SectionPrices, times: int) -> SectionPrices:
    """The same sections for every share of activations offloaded."""
    cells = int(priced.cell.max()) + 1
    return SectionPrices(
        cell=np.concatenate([priced.cell + cells * time for time in range(times)]),
        **{name: np.tile(getattr(priced, name), times) for name in _BY_SECTION},
    )
