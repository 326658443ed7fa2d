"""Turn what a rank trains into the seconds of gradient sync, param gather and optimizer, and what is exposed."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ridgeline.core.arrays import Array, Index, at
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


def exposed_sync(ends: EndOfStep, plans: PlanColumns, rates: ParameterColumns, phases: Array) -> Array:
    """Gradient reduction and param gather beyond what compute hides.

    phases = seconds of forward, input and weight gradient of a microbatch.
    """
    # a chunk's sync begins when its last gradient is made: the last one's hides behind its own gradients, that of
    # the others behind the chunks that follow, which interleaved runs for p microbatches each
    chunk, after = 1 / plans.chunks, 1 - 1 / plans.chunks
    often = np.where(facts_of(plans.schedule, "looped"), plans.pp, 1.0) * after
    split = facts_of(plans.schedule, "splits_backward")
    forward, inputs, weights = phases
    backward = inputs + weights
    own = np.where(split, weights, backward) if split.any() else backward

    def left(spent: Array, own: Array, others: Array, overlapped: Array) -> Array:
        if not spent.any() or not overlapped.any():
            return spent
        able = rates["hidden_dp"] * spent
        late = np.maximum((able - own) * chunk, able - own * chunk - others * often)
        shown = spent - able + np.maximum(rates["contention"] * able, late)
        return shown if overlapped.all() else np.where(overlapped > 0, shown, spent)

    return left(ends.reduce_s, own, backward, plans.overlap_grad) + left(
        ends.gather_s, forward, forward, plans.overlap_gather
    )
