"""Turn priced sections into the time of a step: compute, exposed communication, bubble, grad sync, optimizer, waiting.

    step = the pipeline's schedule + exposed gradient sync + optimizer + waiting for the slowest node
           all of it times the pace, where the calibration was anchored

    price_sections       ops -> seconds by phase and part                     per cell
    exposed_stage_times  what compute does not hide of what runs beside it    per cell
    pipeline_time        the bottleneck rank, and the schedule around it      per row: a cell placed on a pipeline
    end_of_step          gradient sync and optimizer                          per weights on their ranks, and sharding
    step_times           all of it, and waiting                               per plan

Everything is a column, so that one scenario and a hundred thousand plans run through the same lines. A fit and a single
prediction have as many cells as rows and plans; a search has few cells, more rows and many plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.records import dataclass
from ridgeline.cost import StepPart
from ridgeline.cost.pricing import SectionPrices, SustainedRates
from ridgeline.lowering.plan_columns import PlanColumns
from ridgeline.lowering.step_ops import accumulations
from ridgeline.sim.closed_form.grad_sync import EndOfStep, end_of_step, exposed_sync
from ridgeline.sim.closed_form.pipeline_time import PipelineTime, most_trained, pipeline_time, send_seconds
from ridgeline.sim.closed_form.stage_mix import StageMix
from ridgeline.sim.closed_form.stage_times import PARTS, exposed_stage_times


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Step times by row, with parts that sum to them."""

    step_s: Array
    parts: Mapping[StepPart, Array]


def step_seconds(
    sections: SectionPrices,
    mixes: Sequence[StageMix],
    plans: PlanColumns,
    rates: SustainedRates,
    *,
    by_part: bool = True,
) -> StepTimes:
    """The time of one step of every row, where cells, rows and plans are the same; its compute by part, or in one."""
    times = exposed_stage_times(sections, plans, rates, by_part=by_part)
    pipeline = pipeline_time(mixes, times, send_seconds(plans, rates), plans)
    return step_times(pipeline, end_of_step(most_trained(mixes, sections.params[2:]), plans, rates), plans, rates)


def step_times(pipeline: PipelineTime, ends: EndOfStep, plans: PlanColumns, rates: SustainedRates) -> StepTimes:
    """The step of every plan from its row's pipeline: gradient sync, optimizer and waiting come on top."""
    many, rank = plans.microbatches, pipeline.bottleneck
    added = ends.accumulate_s * accumulations(plans)
    parts = {StepPart.BUBBLE: pipeline.bubble_s, StepPart.PP: pipeline.sends_s}
    parts[StepPart.DP] = exposed_sync(ends, plans, rates.rates, pipeline.window) + ends.embedding_s
    parts[StepPart.OPTIMIZER] = ends.optimizer_s
    step = sum(parts.values(), start=many * rank.busy)
    parts |= {part: many * column for part, column in zip(PARTS, rank.parts, strict=False)}
    if added.any():
        step = step + added
        parts[StepPart.MEMORY] = parts.get(StepPart.MEMORY, 0.0) + added
    lost = rates.rates["jitter"] * np.log2(plans.nodes) + rates.rates["slack"]
    parts[StepPart.WAITING] = step * lost + rates.rates["fixed"]
    step, pace = step + parts[StepPart.WAITING], rates.rates.pace
    if pace is not None:
        step, parts = step * pace, {part: seconds * pace for part, seconds in parts.items()}
    return StepTimes(step_s=step, parts=MappingProxyType(parts))
