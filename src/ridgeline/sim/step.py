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

from ridgeline.sim.batch import Batch
from ridgeline.sim.beside import BUSY, BY_CLASS, PHASED, TIMES, beside
from ridgeline.sim.exchange import Settling, exchange_seconds, settling_of
from ridgeline.sim.lines import Lines
from ridgeline.sim.pace import Pace, paced, sends_of, trained_of
from ridgeline.sim.run import Runs
from ridgeline.sim.slots import Rows, price_slots

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Step times by row, with parts that sum to them."""

    step_s: Array
    parts: dict[str, Array]


def step_seconds(
    batch: Batch, lines: Sequence[Lines], runs: Runs, rows: Rows, padded: Array | None = None, *, by_class: bool = True
) -> Steps:
    """The time of one step of every row, where cells, rows and plans are the same; its compute by class, or in one."""
    sections = price_slots(batch, rows, padded)
    pace = paced(lines, beside(sections, runs, rows, by_class=by_class), sends_of(runs, rows.links), runs)
    return step_of(pace, settling_of(trained_of(lines, sections.params[2:]), runs, rows), runs, rows)


def step_of(pace: Pace, settling: Settling, runs: Runs, rows: Rows) -> Steps:
    """The step of every plan from its row's pace: exchange, optimizer and waiting come on top."""
    many, columns = runs.microbatches, pace.columns
    parts = {"bubble": pace.bubble_s, "pp": pace.sends_s}
    parts["dp"] = exchange_seconds(settling, runs, rows.rates, columns[PHASED])
    parts["optimizer"] = settling.optimizer_s
    step = sum(parts.values(), start=many * columns[BUSY])
    parts |= {name: many * column for name, column in zip(TIMES, columns[BY_CLASS:], strict=False)}
    parts["waiting"] = step * (rows.rates["jitter"] * np.log2(runs.nodes)) + rows.rates["fixed"]
    return Steps(step_s=step + parts["waiting"], parts=parts)
