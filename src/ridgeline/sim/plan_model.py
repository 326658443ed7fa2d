"""Turn structures of a search into the step time and the peak memory of every plan that uses them.

    PlanModel       cells: structures at every choice of the degrees that size their ops
    RowModel        those cells on a pipeline of so many stages, weights whole or sharded by zero3
    ScheduledRows   rows under a schedule: bottleneck rank and bubble, activations in flight
    ModelState      resident bytes under a way of sharding state, and EndOfStep: its gradient sync and optimizer

Each is worked out once for everything below it in this list; a plan is one of the third with one of the fourth.
`closed_form.step` and `memory.peak` run the same functions for a single prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.records import dataclass
from ridgeline.cost import Profile
from ridgeline.cost.pricing import SectionPrices, SustainedRates, measured_ops, op_table_over, price_sections
from ridgeline.ir.program import Section
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.plan_columns import PlanColumns
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.closed_form.grad_sync import EndOfStep, end_of_step
from ridgeline.sim.closed_form.pipeline_time import PipelineTime, Sends, most_trained, pipeline_time, send_seconds
from ridgeline.sim.closed_form.stage_mix import PlacementMix, RankMix, StageMix, placement_mix, rank_mix, sum_by_count
from ridgeline.sim.closed_form.stage_times import (
    SectionTimes,
    StageTimes,
    exposed_gathers,
    gather_seconds,
    host_stall,
    section_times,
    stage_times,
)
from ridgeline.sim.closed_form.step import step_times
from ridgeline.sim.memory.footprint import (
    BytesPerParam,
    SectionFootprint,
    bytes_per_param,
    rank_footprint,
    rank_params,
    section_footprint,
)
from ridgeline.sim.memory.peak import ModelState, Transient, host_share, model_state, peak_bytes, transient

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
        scenario: Scenario,
        context: LoweringContext,
        sections: Sequence[Section],
        rates: SustainedRates,
        cells: int,
        profiles: Mapping[str, Profile],
    ) -> PlanModel:
        """One structure whose sections have sizes over so many cells."""
        table = op_table_over(sections, cells)
        measured = measured_ops(table, rates.machines, [scenario], profiles)
        return cls(
            prices=price_sections(table, rates, measured=measured),
            rates=rates,
            kinds=len(sections),
            footprint=section_footprint(context, sections, cells),
            per_param=_by_structure([bytes_per_param(context, scenario)]),
            structure=np.zeros(cells, dtype=np.int64),
            host=host_share(scenario),
        )

    @property
    def cells(self) -> int:
        """How many cells there are."""
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
        """Seconds that no step takes less than whose ranks are busy for so long: waiting and fixed costs come on top.

        What differs between cells counts as in the least of them.
        """
        rates = self.rates.rates
        lost = np.min(rates["jitter"]) * np.log2(np.min(plans.nodes)) + np.min(rates["slack"])
        least_s: Array = busy_s * (1 + lost) + np.min(rates["fixed"])
        return least_s if rates.pace is None else least_s * np.min(rates.pace)

    def rows(
        self, sections: SectionTimes, cell: Index, plans: PlanColumns, groups: Index, *, apart: bool = True
    ) -> RowModel:
        """These cells on a pipeline; `groups` tells which rows hold the same weights on the same ranks.

        apart   whether some schedule will run weight gradients apart from input gradients
        """
        _, firsts, group = np.unique(groups, return_index=True, return_inverse=True)
        times = self._times(sections, cell, plans, (firsts, group))
        same = not apart or not (plans.shard[0] == 3 or plans.offload.any())
        return RowModel(
            model=self,
            cell=cell,
            plans=plans,
            group=group,
            firsts=firsts,
            times=times,
            apart=times if same else self._times(sections, cell, plans, (firsts, group), apart=True),
            footprint=self.footprint.at(cell),
            group_footprint=self.footprint.at(cell[firsts]),
            per_param=_at(self.per_param, self.structure[cell[firsts]]),
        )

    def _times(
        self, sections: SectionTimes, cell: Index, plans: PlanColumns, groups: tuple[Index, Index], apart: bool = False
    ) -> StageTimes:
        """What sections take in rows of these cells; weights that zero3 shards are gathered at each row's degree."""
        (firsts, group), split = groups, np.array([apart])
        if plans.shard[0] < 3:
            return StageTimes(rows=self.taken(stage_times(sections, np.zeros((3, 1)), split)[0].rows, cell))
        rates, params = self.rates.rates, self.taken(self.prices.params[:2], cell[firsts])
        spent = gather_seconds(params, plans.at(firsts), self.rates.links).take(group, axis=-1)
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

    group, firsts   the weight group of every row, and the first row of each group
    times, apart    what sections take, sections x rows: in general, and where weight gradients run apart
    footprint       what sections need by row, and by weight group; `per_param` by weight group
    """

    model: PlanModel
    cell: Index
    plans: PlanColumns
    group: Index
    firsts: Index
    times: StageTimes
    apart: StageTimes
    footprint: SectionFootprint
    group_footprint: SectionFootprint
    per_param: BytesPerParam

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
        """One send between stages."""
        return send_seconds(plans, self.model.rates)

    def transient(self, placement: Placement, plans: PlanColumns, own: slice) -> Transient:
        """What comes and goes in some rows under the schedule that `plans` says, in bytes."""
        return transient(rank_footprint(self.footprint.at(own), placement.ranks), plans, self.model.per_param)

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


_BY_SECTION = ("params", "offloadable", "seconds", "issue_s")
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
    return _with(each[0], {name: np.concatenate(values) for name, values in columns.items()})


def _at(per_param: BytesPerParam, structure: Index) -> BytesPerParam:
    """Bytes of a parameter by cell or row."""
    return _with(per_param, {name: np.asarray(getattr(per_param, name))[structure] for name in _PER_PARAM})


def _with(one: BytesPerParam, columns: Mapping[str, Array]) -> BytesPerParam:
    return BytesPerParam(
        weights=columns["weights"],
        gradients=columns["gradients"],
        optimizer=columns["optimizer"],
        master=columns["master"],
        gathered=columns["gathered"],
        reduced=columns["reduced"],
        frozen=one.frozen,
        buffered=one.buffered,
        compiled=one.compiled,
        alone=one.alone,
    )
