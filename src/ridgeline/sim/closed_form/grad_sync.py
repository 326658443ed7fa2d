"""Turn what a rank trains into the seconds of gradient sync, param gather and optimizer, and what is exposed."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask, at
from ridgeline.cost.machine import ParameterColumns
from ridgeline.cost.price import SustainedRates, collective_op_seconds, copy_seconds
from ridgeline.lowering.plan_columns import PlanColumns, facts_of
from ridgeline.lowering.step_ops import grad_reduce, optimizer, param_gather


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfStep:
    """What is left when all microbatches are done, in seconds by row, nothing overlapped yet.

    reduce_s, gather_s   gradient reduction and param gather of the data-parallel ranks
    optimizer_s          the optimizer step
    """

    reduce_s: Array
    gather_s: Array
    optimizer_s: Array

    def at(self, rows: Index) -> EndOfStep:
        """These rows, in this order; a column of one entry stays as it is."""
        return EndOfStep(**{field.name: at(getattr(self, field.name), rows) for field in fields(self)})


def end_of_step(trained: Array, plans: PlanColumns, rates: SustainedRates) -> EndOfStep:
    """Gradient sync and optimizer of so many dense and expert parameters."""
    return EndOfStep(
        reduce_s=collective_op_seconds(grad_reduce(trained, plans), rates.links),
        gather_s=collective_op_seconds(param_gather(trained, plans), rates.links),
        optimizer_s=optimizer_seconds(trained, plans, rates),
    )


def optimizer_seconds(trained: Array, plans: PlanColumns, rates: SustainedRates) -> Array:
    """States read and written at the rate of memory; those on the host go there and back."""
    states, copied = optimizer(trained, plans)
    return np.asarray(states.stream_bytes / rates.memory + copy_seconds(copied, rates.machines))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncWindow:
    """When a rank has done its last microbatch, and behind what its sync can hide, in seconds by row.

    columns   the end; what runs beside the gradient reduction of one of its chunks, and of all; the same of the gather
    """

    columns: Array

    @property
    def end_s(self) -> Array:
        """When the rank has done its last microbatch."""
        return np.asarray(self.columns[0])

    @property
    def reduce(self) -> Array:
        """What of the end of the step runs beside the reduction of one chunk's gradients, and of all."""
        return np.asarray(self.columns[1:3])

    @property
    def gather(self) -> Array:
        """What of its beginning runs beside the gather of one chunk's weights, and of all."""
        return np.asarray(self.columns[3:5])


def _window(end_s: Array, *beside: Array) -> SyncWindow:
    columns = np.empty((5, len(end_s)))
    for place, column in enumerate((end_s, *beside)):
        columns[place] = column
    return SyncWindow(columns=columns)


def rank_window(end_s: Array, phases: Array, plans: PlanColumns) -> SyncWindow:
    """The windows of a rank by itself: what it does of its last, and first, microbatch.

    A chunk's sync begins when its last gradient is made: the last one's hides behind its own gradients, that of the
    others behind the chunks that follow. phases = seconds of forward, input and weight gradient of all its chunks.
    """
    forward, inputs, weights = phases
    backward, chunk = inputs + weights, 1 / plans.chunks
    own = np.where(facts_of(plans.schedule, "splits_backward"), weights, backward)
    return _window(end_s, own * chunk, own * chunk + backward * (1 - chunk), forward * chunk, forward)


def pipeline_window(end_s: Array, first: Array, plans: PlanColumns) -> SyncWindow:
    """The windows of a pipeline whose backwards are in one piece: it begins and ends with its first virtual stage.

    Where ranks have several chunks, each runs p microbatches in a row, so that the sync of all but one has p (v - 1) of
    the m v + p - 1 steps: two thirds of such a step for gradients, one third for weights. first = seconds of forward,
    input and weight gradient of that stage.
    """
    forward, backward = first[0], first[1] + first[2]
    steps = plans.microbatches * plans.chunks + plans.pp - 1
    between = (end_s - forward - backward) * (plans.pp * (plans.chunks - 1) / steps)
    return _window(end_s, backward, backward + between * (2 / 3), forward, forward + between / 3)


def either(mine: Mask, one: SyncWindow, other: SyncWindow) -> SyncWindow:
    """One of two, by row."""
    return SyncWindow(columns=np.where(mine, one.columns, other.columns))


def exposed_sync(
    ends: EndOfStep, plans: PlanColumns, rates: ParameterColumns, window: SyncWindow | None = None
) -> Array:
    """Gradient reduction and param gather beyond what a window hides; without one, what nothing could hide."""

    def left(spent: Array, overlapped: Array, beside: Array | None) -> Array:
        if not spent.any() or not overlapped.any():
            return spent
        able = rates["hidden_dp"] * spent
        shown = spent - able + rates["contention"] * able
        if beside is not None:
            late = np.maximum(able / plans.chunks - beside[0], able - beside[1])
            shown = spent - able + np.maximum(rates["contention"] * able, late)
        return shown if overlapped.all() else np.where(overlapped > 0, shown, spent)

    return left(ends.reduce_s, plans.overlap_grad, window.reduce if window else None) + left(
        ends.gather_s, plans.overlap_gather, window.gather if window else None
    )
