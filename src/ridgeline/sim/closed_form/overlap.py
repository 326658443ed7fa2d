"""Turn priced sections into what they take of a microbatch: compute, and what runs beside it as far as it shows.

Nothing here knows a pipeline. Only weights that are gathered layer by layer know how many ranks share them, so that a
search works out the rest once and adds those for every number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.collectives.links import Links
from ridgeline.cost.collectives.price import ALL_GATHER, collective_seconds
from ridgeline.cost.machine import at
from ridgeline.cost.op_table import AXES
from ridgeline.cost.price import CLASSES, SectionPrices, SustainedRates
from ridgeline.sim.closed_form.grad_sync import exposed
from ridgeline.sim.plan_columns import PlanColumns

Array = NDArray[np.float64]
HIDDEN_COPY = 0.95  # share of copies to the host that can hide behind compute
RING = 0.85  # share of a ring of keys and values that can hide behind attention
# columns of what a section, a virtual stage or a rank does for one microbatch: all it does, what the host takes to
# issue that, forward, input gradient with what is recomputed, weight gradient; then by class
TIMES = (*CLASSES, "shard", "host")
BUSY, ISSUE, FORWARD, INPUTS, WEIGHTS = range(5)
PHASED = slice(FORWARD, WEIGHTS + 1)
BY_CLASS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionTimes:
    """Seconds by section while weights are whole.

    classes   by class and phase: communication as far as compute does not hide it
    phases    all classes together
    copies    what copies to the host and back add
    issue_s   the host takes to issue the kernels
    """

    classes: Array
    phases: Array
    copies: Array
    issue_s: Array


def section_times(sections: SectionPrices, plans: PlanColumns, rows: SustainedRates) -> SectionTimes:
    """Compute, and what of communication and copies it does not hide."""
    cell = sections.cell
    tp, cp, ep = (4 + index for index in range(len(AXES)))
    contention = at(rows.rates["contention"], cell)
    table = sections.seconds.copy()
    table[cp] = exposed(table[cp], table[1], RING, contention)
    window = table[: len(CLASSES) - len(AXES)].sum(0) + table[cp]
    for axis, switch, share in ((ep, plans.overlap_moe, "hidden_moe"), (tp, plans.overlap_tp, "hidden_tp")):
        table[axis] = exposed(table[axis], window, at(switch, cell) * at(rows.rates[share], cell), contention)
        window = window + table[axis]
    phases = table.sum(0)
    away = sections.away * at(plans.offload / rows.machines.host, cell)
    copies = exposed(2 * away, phases.sum(0), HIDDEN_COPY, np.zeros(1))  # out and back; copy engines take no cores
    return SectionTimes(classes=table, phases=phases, copies=copies, issue_s=sections.issue_s)


def gathering_of(params: Array, plans: PlanColumns, links: Links) -> Array:
    """Seconds by section, forward and backward, that sharded weights are gathered and gradients scattered.

    params = dense and expert parameters by section; `runs` and `links` beside them.
    """
    dense, expert = params

    def spent(size: Array) -> Array:
        whole = collective_seconds(ALL_GATHER, dense * size, plans.shard_degree, plans.tp, links)
        if not expert.any():
            return whole
        ranks = np.minimum(plans.edp, plans.shard_degree)
        beside = collective_seconds(ALL_GATHER, expert * size, ranks, plans.expert_stride, links)
        return whole + np.where(expert > 0, beside, 0.0)

    gather = spent(plans.weight_bytes)
    return np.stack([gather, gather + spent(plans.gradient_bytes)])


def gathered(spent: Array, phases: Array, hidden: Array, contention: Array) -> Array:
    """What of that compute does not hide, forward and backward."""
    return np.stack(
        [exposed(spent[0], phases[0], hidden, contention), exposed(spent[1], phases[1:].sum(0), hidden, contention)]
    )


def columns_of(busy: SectionTimes, shown: Array) -> Array:
    """The first columns; `shown` is what gathering adds forward and backward.

    Copies are spread over all passes, what is gathered for the backward over its own, by their length.
    """
    forward, inputs, weights, again = busy.phases
    inputs = inputs + again
    backward = np.maximum(inputs + weights, 1e-30)
    longer = 1 + busy.copies / (forward + backward)
    parts = np.empty((BY_CLASS, *forward.shape))
    parts[ISSUE] = busy.issue_s
    parts[FORWARD] = forward * longer + shown[0]
    longer = longer + shown[1] / backward
    parts[INPUTS] = inputs * longer
    parts[WEIGHTS] = weights * longer
    parts[BUSY] = parts[PHASED].sum(0)
    return parts


def beside(sections: SectionPrices, plans: PlanColumns, rows: SustainedRates, *, by_class: bool = True) -> Array:
    """All columns by section; compute by class, or in one."""
    cell, rates = sections.cell, rows.rates
    busy, shown = section_times(sections, plans, rows), np.zeros((2, 1))
    three = at(plans.shard, cell) == 3
    if three.any():
        spent = gathering_of(sections.params[:2], plans.at(cell), rows.links.at(cell))
        hidden, contention = (at(rates[name], cell) for name in ("hidden_shard", "contention"))
        shown = np.where(three, gathered(spent, busy.phases, hidden, contention), 0.0)
    parts = columns_of(busy, shown)
    if not by_class:
        return parts
    others = [np.broadcast_to(column, parts[0].shape) for column in (shown.sum(0), busy.copies)]
    return np.concatenate([parts, busy.classes.sum(1), others])
