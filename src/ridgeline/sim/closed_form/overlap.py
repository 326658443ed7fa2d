"""Turn priced sections into what they take of a microbatch: compute, and the communication that it does not hide.

Nothing here knows a pipeline. Only weights that are gathered layer by layer know how many ranks share them, so that a
search works out the rest once and adds those for every shard degree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.comm.closed_form import Links
from ridgeline.core.arrays import Array, Mask, at
from ridgeline.core.records import dataclass
from ridgeline.cost import StepPart
from ridgeline.cost.pricing import COMPUTE, SECTION_PARTS, SectionPrices, SustainedRates, collective_op_seconds
from ridgeline.lowering.plan_columns import PlanColumns
from ridgeline.lowering.step_ops import layer_gather, layer_scatter
from ridgeline.sim.closed_form.stage_times import StageTimes

HIDDEN_COPY = 0.95  # share of copies to the host that can hide behind compute, where the plan overlaps them
HIDDEN_RING = 0.85  # share of a ring of keys and values that can hide behind attention, where the plan overlaps it
_ATTENTION, _TP, _CP, _EP = (
    SECTION_PARTS.index(part) for part in (StepPart.ATTENTION, StepPart.TP, StepPart.CP, StepPart.EP)
)


def exposed_seconds(spent: Array, window: Array, hidden: Array | float, contention: Array) -> Array:
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
    copies    saved activations take to the host, and as long back: what can hide of it, and what cannot
    issue_s   the host takes to issue the kernels of each pass
    """

    parts: Array
    phases: Array
    copies: Array
    issue_s: Array

    @property
    def passes(self) -> tuple[Array, Array, Array]:
        """Forward, input gradient with what is recomputed for it, weight gradient."""
        forward, inputs, weights, again = self.phases
        return forward, inputs + again, weights


def section_times(sections: SectionPrices, plans: PlanColumns, rates: SustainedRates) -> SectionTimes:
    """Compute, and what of communication it does not hide."""
    cell = sections.cell
    contention = at(rates.rates["contention"], cell)
    table = sections.seconds.copy()
    table[_CP] = exposed_seconds(table[_CP], table[_ATTENTION], HIDDEN_RING * at(plans.overlap_cp, cell), contention)
    window = table[: len(COMPUTE)].sum(0) + table[_CP]
    for axis, switch, share in ((_EP, plans.overlap_moe, "hidden_moe"), (_TP, plans.overlap_tp, "hidden_tp")):
        hidden = at(switch, cell) * at(rates.rates[share], cell)
        table[axis] = exposed_seconds(table[axis], window, hidden, contention)
        window = window + table[axis]
    phases = table.sum(0)
    one_way = sections.offloadable * at(plans.offload / rates.machines.host, cell)
    hidden = HIDDEN_COPY * at(plans.overlap_offload, cell)
    copies = np.stack([one_way * hidden, one_way * (1 - hidden)])
    return SectionTimes(parts=table, phases=phases, copies=copies, issue_s=sections.issue_s)


def gather_seconds(params: Array, plans: PlanColumns, links: Links) -> Array:
    """Seconds by section that zero3 gathers weights for the forward, again for the backward, and scatters gradients.

    params = dense and expert parameters by section; `plans` and `links` beside them.
    """
    gather = collective_op_seconds(layer_gather(params, plans), links)
    return np.stack([gather, gather, collective_op_seconds(layer_scatter(params, plans), links)])


def exposed_gathers(spent: Array, sections: SectionTimes, hidden: Array, contention: Array, apart: Mask) -> Array:
    """What of that the passes do not hide, by pass.

    A backward in one piece hides both of its collectives behind all of itself. Where weight gradients run apart from
    input gradients, weights are gathered for the one and gradients scattered after the other.
    """
    forward, inputs, weights = sections.passes
    before = exposed_seconds(spent[0], forward, hidden, contention)
    backward = exposed_seconds(spent[1] + spent[2], inputs + weights, hidden, contention)
    own = [
        exposed_seconds(spent[1], inputs, hidden, contention),
        exposed_seconds(spent[2], weights, hidden, contention),
    ]
    return np.stack([before, *_backward(backward, own, (inputs, weights), apart)])


def exposed_copies(copies: Array, passes: Array, apart: Mask) -> Array:
    """What passes do not hide of copies to the host and back, by pass; copy engines take no cores.

    Out beside the forward, back beside the backward, or beside the input gradient where weight gradients run apart.
    `passes` with the gathers they wait for, since the same compute cannot hide both.
    """
    if not copies.any():
        return np.zeros((3, *[1] * (passes.ndim - 1)))
    (able, waited), (forward, inputs, weights) = copies, passes
    before, backward, alone = (
        waited + np.maximum(able - window, 0.0) for window in (forward, inputs + weights, inputs)
    )
    return np.stack([before, *_backward(backward, [alone, np.zeros_like(alone)], (inputs, weights), apart)])


def _backward(whole: Array, own: Sequence[Array], passes: tuple[Array, Array], apart: Mask) -> list[Array]:
    """What input and weight gradient wait: each for its own where they run apart, else the whole, by their length."""
    total = np.maximum(passes[0] + passes[1], 1e-30)
    return [np.where(apart, each, whole * length / total) for each, length in zip(own, passes, strict=True)]


def stage_times(sections: SectionTimes, gathers: Array, apart: Mask) -> tuple[StageTimes, Array]:
    """What sections take, and what of it is exposed copies; `gathers` of sharded weights as far as exposed, by pass."""
    passes = np.stack(sections.passes) + gathers
    copies = exposed_copies(sections.copies, passes, apart)
    return StageTimes.of(passes + copies, sections.issue_s), copies


def exposed_stage_times(
    sections: SectionPrices, plans: PlanColumns, rates: SustainedRates, *, by_part: bool = True
) -> StageTimes:
    """What sections take with all that runs beside them; told apart by part, or not."""
    cell = sections.cell
    times, gathers = section_times(sections, plans, rates), np.zeros((3, 1))
    three, apart = at(plans.layer_by_layer, cell), at(plans.weights_apart, cell)
    if three.any():
        spent = gather_seconds(sections.params[:2], plans.at(cell), rates.links.at(cell))
        hidden = at(rates.rates["hidden_shard"] * (1 - plans.blocking), cell)
        contention = at(rates.rates["contention"], cell)
        gathers = np.where(three, exposed_gathers(spent, times, hidden, contention, apart), 0.0)
    made, copies = stage_times(times, gathers, apart)
    if not by_part:
        return made
    others = [np.broadcast_to(column, made.busy.shape) for column in (gathers.sum(0), copies.sum(0))]
    return made.with_parts(np.concatenate([times.parts.sum(1), others]))
