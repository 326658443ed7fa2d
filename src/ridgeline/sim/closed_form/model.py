"""Turn priced sections of many cells into the step times of the plans that use them: what a search asks, in one value.

    cell    one choice of the degrees that size ops: tp, cp, ep, etp, microbatch
    row     a cell on a pipeline: its stages, the sends between them
    plan    a row with its state sharded one way or another

Each level is worked out once for everything above it. `closed_form.step` runs the same functions where cells, rows and
plans are one and the same.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ridgeline.core.arrays import Array, Index, at
from ridgeline.cost.price import SectionPrices, SustainedRates
from ridgeline.lowering.plan_columns import PlanColumns
from ridgeline.sim.closed_form.grad_sync import EndOfStep, end_of_step
from ridgeline.sim.closed_form.overlap import (
    SectionTimes,
    exposed_gathers,
    gather_seconds,
    section_times,
    stage_times,
)
from ridgeline.sim.closed_form.pipeline_time import PipelineTime, most_trained, pipeline_time, send_seconds
from ridgeline.sim.closed_form.stage_mix import PlacementMix, StageMix
from ridgeline.sim.closed_form.stage_times import StageTimes
from ridgeline.sim.closed_form.step import step_times


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGroups:
    """Which rows hold the same weights on the same ranks: what shards them is priced once for each group.

    group    of every row
    firsts   the first row of each group
    """

    group: Index
    firsts: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """Step times of all plans of priced cells; section s of cell c stands at s cells + c.

    kinds   sections of a cell
    """

    prices: SectionPrices
    rates: SustainedRates
    kinds: int

    @property
    def cells(self) -> int:
        """How many cells there are."""
        return len(self.prices.cell) // self.kinds

    def taken(self, columns: Array, cells: Index) -> Array:
        """Columns by section of these cells: section by section, cells beside each other."""
        return columns.reshape(*columns.shape[:-1], self.kinds, self.cells).take(cells, axis=-1)

    def section_times(self, plans: PlanColumns) -> SectionTimes:
        """What sections of all cells take; communication as far as it is exposed, no weights gathered."""
        return section_times(self.prices, plans, self.rates)

    def rows(
        self, sections: SectionTimes, cell: Index, plans: PlanColumns, groups: WeightGroups, *, apart: bool
    ) -> StageTimes:
        """What sections take in rows of these cells; weights that zero3 shards are gathered at each row's degree.

        apart   under schedules that run weight gradients apart from input gradients
        """
        split = np.array([apart])
        if plans.shard[0] < 3:
            return StageTimes(rows=self.taken(stage_times(sections, np.zeros((3, 1)), split)[0].rows, cell))
        rates, params = self.rates.rates, self.taken(self.prices.params[:2], cell[groups.firsts])
        spent = gather_seconds(params, plans.at(groups.firsts), self.rates.links)
        taken = SectionTimes(
            **{item.name: self.taken(getattr(sections, item.name), cell) for item in fields(SectionTimes)}
        )
        spent = spent.take(groups.group, axis=-1)
        gathers = exposed_gathers(spent, taken, rates["hidden_shard"], rates["contention"], split)
        return stage_times(taken, gathers, split)[0]

    def send_s(self, plans: PlanColumns) -> Array:
        """Seconds of one send between stages."""
        return send_seconds(plans, self.rates.links)

    def pipeline(
        self, placement: PlacementMix, times: StageTimes, send_s: Array, plans: PlanColumns, own: slice
    ) -> PipelineTime:
        """The bottleneck rank and the bubble of some rows of one placement; `plans` are those of the rows alone."""
        mix = _mix(placement, own.stop - own.start)
        return pipeline_time([mix], StageTimes(rows=times.rows[:, :, own]), at(send_s, own), plans)

    def trained(self, placement: PlacementMix, cell: Index) -> Array:
        """Dense and expert parameters of the rank that trains most, of these cells."""
        return most_trained([_mix(placement, len(cell))], self.taken(self.prices.params[2:], cell))

    def end_of_step(self, trained: Array, plans: PlanColumns) -> EndOfStep:
        """Gradient sync and optimizer of so many parameters under one way of sharding."""
        return end_of_step(trained, plans, self.rates)

    def step_s(self, pipeline: PipelineTime, ends: EndOfStep, plans: PlanColumns) -> Array:
        """Seconds of the step of every plan."""
        return step_times(pipeline, ends, plans, self.rates).step_s


def _mix(placement: PlacementMix, rows: int) -> StageMix:
    return StageMix(rows=np.arange(rows), counts=placement.counts, roles=placement.roles)
