"""Turn priced sections into the time of a step: compute, exposed communication, bubble, optimizer, host.

    step = the pipeline's schedule + exposed gradient exchange + optimizer + waiting for the slowest node

    slots           ops -> seconds by phase and class                     per cell
    beside          what runs beside compute, as far as it shows          per cell
    pace            the busiest rank, and the schedule around it          per row: a cell placed on a pipeline
    exchange        gradient exchange and optimizer                       per weights on their ranks, and sharding
    step_of         all of it, and waiting                                per plan

Everything is a column, so that one scenario and a hundred thousand plans run through the same lines. A fit and a single
prediction have as many cells as rows and plans; a search has few cells, more rows and many plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.op_table import OpTable
from ridgeline.cost.price import SustainedRates, price_sections
from ridgeline.sim.closed_form.grad_sync import EndOfStep, end_of_step, exchange_seconds
from ridgeline.sim.closed_form.overlap import BUSY, BY_CLASS, PHASED, TIMES, beside
from ridgeline.sim.closed_form.pipeline_time import PipelineTime, most_trained, pipeline_time, send_seconds
from ridgeline.sim.closed_form.stage_mix import StageMix
from ridgeline.sim.plan_columns import PlanColumns

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Step times by row, with parts that sum to them."""

    step_s: Array
    parts: dict[str, Array]


def step_seconds(
    batch: OpTable,
    lines: Sequence[StageMix],
    plans: PlanColumns,
    rows: SustainedRates,
    padded: Array | None = None,
    *,
    by_class: bool = True,
) -> StepTimes:
    """The time of one step of every row, where cells, rows and plans are the same; its compute by class, or in one."""
    sections = price_sections(batch, rows, padded)
    pace = pipeline_time(
        lines, beside(sections, plans, rows, by_class=by_class), send_seconds(plans, rows.links), plans
    )
    return step_times(pace, end_of_step(most_trained(lines, sections.params[2:]), plans, rows), plans, rows)


def step_times(pace: PipelineTime, settling: EndOfStep, plans: PlanColumns, rows: SustainedRates) -> StepTimes:
    """The step of every plan from its row's pace: exchange, optimizer and waiting come on top."""
    many, columns = plans.microbatches, pace.columns
    parts = {"bubble": pace.bubble_s, "pp": pace.sends_s}
    parts["dp"] = exchange_seconds(settling, plans, rows.rates, columns[PHASED])
    parts["optimizer"] = settling.optimizer_s
    step = sum(parts.values(), start=many * columns[BUSY])
    parts |= {name: many * column for name, column in zip(TIMES, columns[BY_CLASS:], strict=False)}
    parts["waiting"] = step * (rows.rates["jitter"] * np.log2(plans.nodes)) + rows.rates["fixed"]
    return StepTimes(step_s=step + parts["waiting"], parts=parts)
