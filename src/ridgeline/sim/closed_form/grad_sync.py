"""Turn what a rank trains into the seconds of gradient sync, param gather and optimizer, and what is exposed."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from ridgeline.core.arrays import Array, Index, at
from ridgeline.core.records import dataclass
from ridgeline.cost.pricing import ParameterColumns, SustainedRates, collective_op_seconds, copy_seconds
from ridgeline.ir.ops import HostCopy, Stream
from ridgeline.lowering.plan_columns import PlanColumns
from ridgeline.lowering.step_ops import accumulate, embedding_reduce, grad_reduce, optimizer, param_gather


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfStep:
    """What is left when all microbatches are done, in seconds by row, nothing overlapped yet.

    embedding_s          gradients of a tied embedding, summed between the two ends of a pipeline; nothing hides it
    reduce_s, gather_s   gradient reduction and param gather of the data-parallel ranks
    accumulate_s         adding the gradients of one microbatch to the buffer, where products do not
    optimizer_s          the optimizer step
    """

    accumulate_s: Array
    embedding_s: Array
    reduce_s: Array
    gather_s: Array
    optimizer_s: Array

    def at(self, rows: Index) -> EndOfStep:
        """These rows, in this order; a column of one entry stays as it is."""
        return EndOfStep(**{field.name: at(getattr(self, field.name), rows) for field in fields(self)})


def end_of_step(trained: Array, plans: PlanColumns, rates: SustainedRates) -> EndOfStep:
    """Gradient sync and optimizer of so many dense and expert parameters."""
    return EndOfStep(
        accumulate_s=accumulate_seconds(trained, plans, rates),
        embedding_s=embedding_seconds(plans, rates),
        reduce_s=collective_op_seconds(grad_reduce(trained, plans), rates.links),
        gather_s=collective_op_seconds(param_gather(trained, plans), rates.links),
        optimizer_s=optimizer_seconds(trained, plans, rates),
    )


def accumulate_seconds(trained: Array, plans: PlanColumns, rates: SustainedRates) -> Array:
    """Adding the gradients of one microbatch to the buffer at the rate of memory."""
    if not plans.accumulate_bytes.any():
        return np.zeros(1)
    return accumulate(trained, plans).stream_bytes / rates.memory


def embedding_seconds(plans: PlanColumns, rates: SustainedRates) -> Array:
    """Summing a tied embedding's gradient between the ends of a pipeline."""
    if not (plans.shared_rows.any() and (plans.pp > 1).any()):
        return np.zeros(1)
    return collective_op_seconds((embedding_reduce(plans),), rates.links)


def optimizer_seconds(trained: Array, plans: PlanColumns, rates: SustainedRates) -> Array:
    """States read and written at the rate of memory; those on the host go there and back."""
    return updated_seconds(*optimizer(trained, plans), plans, rates)


def updated_seconds(states: Stream, copied: HostCopy, plans: PlanColumns, rates: SustainedRates) -> Array:
    """Updating states on the chip, and those that come from the host and go back there.

        one after the other   u + c        overlapped   max(u, c / 2)

    u = update, c = copies both ways. Overlapped, one bucket arrives while another is updated and a third leaves: the
    host's link carries both ways at once.
    """
    update, copies = states.stream_bytes / rates.update, copy_seconds(copied, rates.machines)
    return np.where(plans.overlap_offload > 0, np.maximum(update, copies / 2), update + copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncWindow:
    """Behind what a rank's sync can hide, in seconds by row.

    reduce   what of the end of a step runs beside the gradient reduction of one of its chunks, and of all
    gather   what of its beginning runs beside the param gather of one chunk, and of all
    """

    reduce: Array
    gather: Array


def sync_window(done: Array, first: Array, plans: PlanColumns) -> SyncWindow:
    """The window of a step that is done at `done`, its sync left out.

    A chunk's sync begins when its last gradient is made: the last one's hides behind its own gradients, that of the
    others behind the chunks that follow. A pipeline begins and ends with its first virtual stage, whose forward, input
    and weight gradient are `first`; with v chunks a rank runs p microbatches of each in a row, so that the other chunks
    have p (v - 1) of the m v + p - 1 steps, a third of that for weights and two for gradients. Where weight gradients
    run apart, they come last: a third of a microbatch, and the same shares of the others.

    Every window is part of the step, whichever rank sets its pace: it shrinks by less than the step does.
    """
    forward, backward = first[0], first[1] + first[2]
    chunk, one = 1 / plans.chunks, done / plans.microbatches / 3
    steps = plans.microbatches * plans.chunks + plans.pp - 1
    between = (done - forward - backward) * (plans.pp * (plans.chunks - 1) / steps) / 3
    reduce, gather = [backward, backward + 2 * between], [forward, forward + between]
    if (apart := plans.weights_apart).any():
        reduce = [
            np.where(apart, one * chunk, reduce[0]), np.where(apart, one * (2 - chunk), reduce[1])
        ]  # fmt: skip
        gather = [np.where(apart, one * chunk, gather[0]), np.where(apart, one, gather[1])]
    return SyncWindow(reduce=np.stack(reduce), gather=np.stack(gather))


def exposed_sync(ends: EndOfStep, plans: PlanColumns, rates: ParameterColumns, window: SyncWindow) -> Array:
    """Gradient reduction and param gather beyond what their window hides."""

    def left(spent: Array, overlapped: Array, beside: Array) -> Array:
        if not spent.any() or not overlapped.any():
            return spent
        able = rates["hidden_dp"] * spent
        late = np.maximum(able / plans.chunks - beside[0], able - beside[1])
        shown = spent - able + np.maximum(rates["contention"] * able, late)
        return shown if overlapped.all() else np.where(overlapped > 0, shown, spent)

    return left(ends.reduce_s, plans.overlap_grad, window.reduce) + left(
        ends.gather_s, plans.overlap_gather, window.gather
    )
