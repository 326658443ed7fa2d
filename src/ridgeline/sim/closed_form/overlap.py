"""Turn priced sections into what they take of a microbatch: compute, and the communication that it does not hide.

Nothing here knows a pipeline. Only weights that are gathered layer by layer know how many ranks share them, so that a
search works out the rest once and adds those for every shard degree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.core.arrays import Array, at
from ridgeline.cost.collectives.links import Links
from ridgeline.cost.price import SectionPrices, SustainedRates, collective_op_seconds
from ridgeline.cost.step_part import COMPUTE, SECTION_PARTS, StepPart
from ridgeline.lowering.plan_columns import PlanColumns
from ridgeline.lowering.step_ops import layer_gather, layer_scatter
from ridgeline.sim.closed_form.stage_times import StageTimes

HIDDEN_COPY = 0.95  # share of copies to the host that can hide behind compute
HIDDEN_RING = 0.85  # share of a ring of keys and values that can hide behind attention
_ATTENTION, _TP, _CP, _EP = (
    SECTION_PARTS.index(part) for part in (StepPart.ATTENTION, StepPart.TP, StepPart.CP, StepPart.EP)
)


def exposed(spent: Array, window: Array, hidden: Array | float, contention: Array) -> Array:
    """What is left of communication beside compute.

        (1 - h) t  +  max(c h t, h t - w)

    t = spent, h = share that can hide, w = compute it can hide behind, c = what compute loses while both run. Compute
    that is slowed by 1 - c gets h t (1 - c) done meanwhile: the rest of it is late by c h t, unless the communication
    is later still.
    """
    able = hidden * spent
    return spent - able + np.maximum(contention * able, able - window)


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionTimes:
    """Seconds by section while weights are whole.

    parts     by part and phase: communication as far as compute does not hide it
    phases    all parts together
    copies    what exposed copies to the host and back add
    issue_s   the host takes to issue the kernels
    """

    parts: Array
    phases: Array
    copies: Array
    issue_s: Array


def section_times(sections: SectionPrices, plans: PlanColumns, rates: SustainedRates) -> SectionTimes:
    """Compute, and what of communication and copies it does not hide."""
    cell = sections.cell
    contention = at(rates.rates["contention"], cell)
    table = sections.seconds.copy()
    table[_CP] = exposed(table[_CP], table[_ATTENTION], HIDDEN_RING, contention)
    window = table[: len(COMPUTE)].sum(0) + table[_CP]
    for axis, switch, share in ((_EP, plans.overlap_moe, "hidden_moe"), (_TP, plans.overlap_tp, "hidden_tp")):
        hidden = at(switch, cell) * at(rates.rates[share], cell)
        table[axis] = exposed(table[axis], window, hidden, contention)
        window = window + table[axis]
    phases = table.sum(0)
    one_way = sections.offloadable * at(plans.offload / rates.machines.host, cell)
    copies = exposed(2 * one_way, phases.sum(0), HIDDEN_COPY, np.zeros(1))  # out and back; copy engines take no cores
    return SectionTimes(parts=table, phases=phases, copies=copies, issue_s=sections.issue_s)


def gather_seconds(params: Array, plans: PlanColumns, links: Links) -> Array:
    """Seconds by section, forward and backward, that zero3 gathers weights and scatters gradients.

    params = dense and expert parameters by section; `plans` and `links` beside them.
    """
    gather = collective_op_seconds(layer_gather(params, plans), links)
    return np.stack([gather, gather + collective_op_seconds(layer_scatter(params, plans), links)])


def exposed_gathers(spent: Array, phases: Array, hidden: Array, contention: Array) -> Array:
    """What of that compute does not hide, forward and backward."""
    return np.stack(
        [exposed(spent[0], phases[0], hidden, contention), exposed(spent[1], phases[1:].sum(0), hidden, contention)]
    )


def stage_times(sections: SectionTimes, gathers: Array) -> StageTimes:
    """What sections take; `gathers` are exposed gathers of sharded weights, forward and backward.

    Copies are spread over all passes, what is gathered for the backward over its own, by their length.
    """
    forward, inputs, weights, again = sections.phases
    inputs = inputs + again
    backward = np.maximum(inputs + weights, 1e-30)
    longer = 1 + sections.copies / (forward + backward)
    before = forward * longer + gathers[0]
    longer = longer + gathers[1] / backward
    return StageTimes.of((before, inputs * longer, weights * longer), sections.issue_s)


def exposed_stage_times(
    sections: SectionPrices, plans: PlanColumns, rates: SustainedRates, *, by_part: bool = True
) -> StageTimes:
    """What sections take with all that runs beside them; told apart by part, or not."""
    cell = sections.cell
    times, gathers = section_times(sections, plans, rates), np.zeros((2, 1))
    three = at(plans.shard, cell) == 3
    if three.any():
        spent = gather_seconds(sections.params[:2], plans.at(cell), rates.links.at(cell))
        hidden, contention = (at(rates.rates[name], cell) for name in ("hidden_shard", "contention"))
        gathers = np.where(three, exposed_gathers(spent, times.phases, hidden, contention), 0.0)
    made = stage_times(times, gathers)
    if not by_part:
        return made
    others = [np.broadcast_to(column, made.busy.shape) for column in (gathers.sum(0), times.copies)]
    return made.with_parts(np.concatenate([times.parts.sum(1), others]))
