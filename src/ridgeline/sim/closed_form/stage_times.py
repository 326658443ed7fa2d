"""Turn priced sections into the seconds of a microbatch: communication as far as exposed, and waiting for the host.

together = (running^10 + issue^10)^(1/10)       the longer of chip and host, a little more where they are equal
blocking = running + 1.25 issue                 the host waits for every kernel before it issues the next
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.comm.closed_form import Links
from ridgeline.core.arrays import Array, Index, Mask, at
from ridgeline.core.records import dataclass
from ridgeline.cost.pricing import SectionPrices, SustainedRates, collective_op_seconds
from ridgeline.cost.step_part import COMPUTE, SECTION_PARTS, StepPart
from ridgeline.lowering.plan_columns import PlanColumns
from ridgeline.lowering.step_ops import layer_gather, layer_scatter

SHARPNESS = 10.0  # how sharply the slower of host and chip wins
# of issuing a kernel, where the host learns of its end before it issues the next. On one H200 eight layers that take
# the host 12.2 ms to issue and the chip 38.1 ms to run took 53.8 ms with CUDA_LAUNCH_BLOCKING=1
BLOCKING = 1.25


def host_stall(running: Array, issue: Array, blocking: Array) -> Array:
    """Seconds the chip waits because the host has not issued its kernels yet.

    `blocking` is 1 where every launch is waited for.

    >>> running, issue = np.array([2.0, 1.0]), np.array([1.0, 3.0])
    >>> host_stall(running, issue, np.ones(1)).tolist(), host_stall(running, issue, np.zeros(1)).round(3).tolist()
    ([1.25, 3.75], [0.0, 2.0])
    """
    most = np.maximum(np.maximum(running, issue), 1e-30)
    share = np.minimum(running, issue)
    share /= most
    share *= share
    share *= (share * share) ** 2
    np.log1p(share, out=share)
    share /= SHARPNESS
    most *= np.exp(share, out=share)
    stall: Array = most - running
    return np.where(blocking > 0, BLOCKING * issue, stall) if blocking.any() else stall


PARTS = (*SECTION_PARTS, StepPart.SHARD, StepPart.HOST)  # what the busy time of a microbatch consists of
_BUSY, _FORWARD, _BACKWARD_INPUT, _BACKWARD_WEIGHT = range(4)
_PHASES, _ISSUES = slice(1, 4), slice(4, 7)
NAMED = 7  # rows before the parts
_KERNEL = NAMED + PARTS.index(StepPart.KERNEL)
WITH_STALLS = _KERNEL + 1  # rows that it takes to tell pipeline sends and host stalls apart


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds of one microbatch; the first axis of `rows` is what they are, the others whose they are.

    busy       all a rank does, exposed communication included
    forward, backward_input, backward_weight   the passes of `busy`; what is recomputed belongs to the input gradient
    issues     what the host takes to issue the kernels of each pass
    parts      `busy` by part of `PARTS`, where it is told apart
    """

    rows: Array

    @classmethod
    def of(cls, phases: Array, issues: Array) -> StageTimes:
        """From the three passes and the time to issue each."""
        rows = np.empty((NAMED, *phases[0].shape))
        rows[_ISSUES] = issues
        rows[_PHASES] = phases
        rows[_BUSY] = rows[_PHASES].sum(0)
        return cls(rows=rows)

    @property
    def busy(self) -> Array:
        """All that a rank does."""
        return np.asarray(self.rows[_BUSY])

    @property
    def issues(self) -> Array:
        """Host seconds to issue the kernels of forward, input gradient and weight gradient."""
        return np.asarray(self.rows[_ISSUES])

    @property
    def forward(self) -> Array:
        """The forward pass."""
        return np.asarray(self.rows[_FORWARD])

    @property
    def backward_input(self) -> Array:
        """The input gradient, and before it what is recomputed."""
        return np.asarray(self.rows[_BACKWARD_INPUT])

    @property
    def backward_weight(self) -> Array:
        """The weight gradient."""
        return np.asarray(self.rows[_BACKWARD_WEIGHT])

    @property
    def phases(self) -> Array:
        """Forward, input gradient and weight gradient."""
        return np.asarray(self.rows[_PHASES])

    @property
    def parts(self) -> Array:
        """Seconds by part; empty where they are not told apart."""
        return np.asarray(self.rows[NAMED:])

    @property
    def by_part(self) -> bool:
        """Whether parts are told apart."""
        return len(self.rows) > NAMED

    def at(self, places: Index | slice | int) -> StageTimes:
        """Those of some stages: entries of the axis after the first."""
        return StageTimes(rows=self.rows[:, places])

    def first(self, rows: int) -> StageTimes:
        """Only the first rows."""
        return StageTimes(rows=self.rows[:rows])

    def without_issues(self) -> StageTimes:
        """Only what a rank does and its passes."""
        return StageTimes(rows=self.rows[: _ISSUES.start])

    def with_parts(self, parts: Array) -> StageTimes:
        """The same with its parts told apart."""
        return StageTimes(rows=np.concatenate([self.rows, parts]))

    def add_stalls(self, apart: Mask, blocking: Array) -> None:
        """Add what the chip waits for its host, in place; what is overlapped has the stalls to hide in, too.

        The host runs ahead within a forward and within a backward; where weight gradients run apart (`apart`), they
        are issued apart, too. A pass that gets shorter so never makes another one longer.
        """
        rows, (forward, inputs, weights), (issue, of_inputs, of_weights) = self.rows, self.phases, self.issues
        total = host_stall(forward, issue, blocking)
        forward += total  # the passes are views of the rows
        backward = inputs + weights
        stall = host_stall(backward, of_inputs + of_weights, blocking)
        longer = stall / np.maximum(backward, 1e-30)
        of_each = [inputs * longer, weights * longer]
        if apart.any():
            alone = host_stall(inputs, of_inputs, blocking), host_stall(weights, of_weights, blocking)
            of_each = [np.where(apart, own, shared) for own, shared in zip(alone, of_each, strict=True)]
            stall = of_each[0] + of_each[1]
        inputs += of_each[0]
        weights += of_each[1]
        total += stall
        rows[_BUSY] += total
        if len(rows) > _KERNEL:
            rows[_KERNEL] += total


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
    shares = (
        (_EP, at(plans.overlap_moe, cell) * at(rates.rates["hidden_moe"], cell)),
        (_TP, tensor_share(sections, plans) * at(rates.rates["hidden_tp"], cell)),
    )
    for axis, hidden in shares:
        table[axis] = exposed_seconds(table[axis], window, hidden, contention)
        window = window + table[axis]
    phases = table.sum(0)
    one_way = sections.offloadable * at(plans.offload / rates.machines.host, cell)
    hidden = HIDDEN_COPY * at(plans.overlap_offload, cell)
    copies = np.stack([one_way * hidden, one_way * (1 - hidden)])
    return SectionTimes(parts=table, phases=phases, copies=copies, issue_s=sections.issue_s)


def tensor_share(sections: SectionPrices, plans: PlanColumns) -> Array:
    """The share of tensor-parallel communication that runs beside compute, by phase and section: all of it where the
    plan overlaps it, else what the software runs beside products of the backward by itself.

    Megatron and Transformer Engine so hide four of ten collectives of a layer with sequence parallelism, and two of
    four without, whatever their user buffers are told.
    """
    spent = sections.seconds[_TP]
    if not spent.any():
        return np.zeros(1)
    beside = at(plans.beside_tp, sections.cell) * sections.beside_s / np.maximum(spent, 1e-30)
    return np.where(at(plans.overlap_tp, sections.cell) > 0, 1.0, beside)


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
