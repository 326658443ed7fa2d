"""Turn what sections take into the time of a step: bottleneck rank, bubble, gradient sync, param gather, optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask, at, distinct
from ridgeline.core.records import dataclass
from ridgeline.cost.pricing import ParameterColumns, SectionPrices, SustainedRates, collective_op_seconds
from ridgeline.cost.step_part import StepPart
from ridgeline.ir.ops import HostCopy, Stream
from ridgeline.lowering.plan_columns import NAMES, PlanColumns, facts_of
from ridgeline.lowering.step_ops import (
    accumulate,
    accumulations,
    boundary_send,
    embedding_reduce,
    grad_reduce,
    optimizer,
    param_gather,
)
from ridgeline.sim.closed_form.schedule_time import PathWork, PhaseSeconds, closed_form
from ridgeline.sim.closed_form.stage_mix import StageMix
from ridgeline.sim.closed_form.stage_times import PARTS, StageTimes, exposed_stage_times


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
        optimizer_s=updated_seconds(*optimizer(trained, plans), plans, rates),
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


def updated_seconds(states: Stream, copied: HostCopy, plans: PlanColumns, rates: SustainedRates) -> Array:
    """Updating states on the chip, and those that come from the host and go back there.

        one after the other   u + c        overlapped   max(u, c / 2)

    u = update, c = copies both ways. Overlapped, one bucket arrives while another is updated and a third leaves: the
    host's link carries both ways at once.
    """
    update, copies = states.stream_bytes / rates.update, rates.machines.copy_seconds(copied)
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
        reduce = [np.where(apart, one * chunk, reduce[0]), np.where(apart, one * (2 - chunk), reduce[1])]
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


EQUAL = 1e-12  # relative difference that means nothing: the first of equals is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTime:
    """A pipeline without what ends a step, by row.

    bottleneck   the rank that has most to do, for one microbatch, waiting for the host included
    bubble_s     what the schedule adds to that rank's work
    sends_s      what sends between stages add, where compute is told apart by part: otherwise they are in the bubble
    window       behind what gradient sync can hide
    """

    bottleneck: StageTimes
    bubble_s: Array
    sends_s: Array
    window: SyncWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Sends:
    """One send between stages, by row.

    seconds   until it has arrived
    shown     of those, what the rank that sends loses although it goes on computing: copies between buffers, cores that
              run the send, and the calls of a chunk's end; nothing where sends block, which lose all of it elsewhere
    """

    seconds: Array
    shown: Array

    def at(self, rows: Index | slice) -> Sends:
        """These rows; a column of one entry stays as it is."""
        return Sends(seconds=at(self.seconds, rows), shown=at(self.shown, rows))


def send_seconds(plans: PlanColumns, rates: SustainedRates) -> Sends:
    """Seconds of one send between stages, and what is shown of an overlapped one: t (1 - hidden_pp)."""
    seconds = collective_op_seconds((boundary_send(plans),), rates.links)
    return Sends(seconds=seconds, shown=seconds * (1 - rates.rates["hidden_pp"]) * plans.overlap_pp)


def most_trained(mixes: Sequence[StageMix], params: Array) -> Array:
    """Dense and expert parameters of the rank that trains most; `params` those of every section."""
    if len(mixes) == 1:
        return _trained_stages(mixes[0], params)
    found = np.empty((2, sum(len(group.rows) for group in mixes)))
    for group in mixes:
        found[:, group.rows] = _trained_stages(group, params)
    return found


def _trained_stages(mix: StageMix, params: Array) -> Array:
    held = mix.summed(params)
    return _of_slowest_rank(held, held.sum(0), mix.roles.ranks)


def pipeline_time(mixes: Sequence[StageMix], times: StageTimes, sends: Sends, plans: PlanColumns) -> PipelineTime:
    """The bottleneck rank of every row, and what the schedule makes it wait; `times` by section."""
    if len(mixes) == 1:
        return _pipeline_time(mixes[0], times, sends, plans)
    many = sum(len(group.rows) for group in mixes)
    told = times if times.by_part else times.without_issues()
    rows, bubble, sent = np.empty((len(told.rows), many)), np.empty(many), np.empty(many)
    window = SyncWindow(reduce=np.empty((2, many)), gather=np.empty((2, many)))
    for group in mixes:
        own = _pipeline_time(group, times, sends.at(group.rows), plans.at(group.rows))
        rows[:, group.rows] = own.bottleneck.rows
        bubble[group.rows], sent[group.rows] = own.bubble_s, own.sends_s
        window.reduce[:, group.rows], window.gather[:, group.rows] = own.window.reduce, own.window.gather
    return PipelineTime(bottleneck=StageTimes(rows=rows), bubble_s=bubble, sends_s=sent, window=window)


def _pipeline_time(mix: StageMix, times: StageTimes, sends: Sends, plans: PlanColumns) -> PipelineTime:
    """The same for rows whose mixes have the same roles."""
    stages, roles, many = StageTimes(rows=mix.summed(times.rows)), mix.roles, plans.microbatches
    stages.add_stalls(plans.weights_apart, plans.blocking)
    told = stages if times.by_part else stages.without_issues()
    bottleneck = StageTimes(rows=_of_slowest_rank(told.rows, stages.busy, roles.ranks))
    if plans.pp.max() == 1:
        nothing = np.zeros(bottleneck.rows.shape[1])
        window = sync_window(many * bottleneck.busy, bottleneck.phases, plans)
        return PipelineTime(bottleneck=bottleneck, bubble_s=nothing, sends_s=nothing, window=window)
    first, middle, last = (stages.at(int(place)) for place in roles.ends)
    slowest = _slowest(stages.phases[:, roles.inner], plans.weights_apart)
    work = PathWork(
        first=_phases(first), inner=_phases(middle), last=_phases(last), slowest=slowest, send_s=sends.seconds
    )  # fmt: skip
    still, moving = _schedules(work, plans, apart=times.by_part)
    around, passed = _fill_and_drain(roles.number, (first, middle), plans)
    around += many * stages.at(roles.ranks).busy
    moving = np.maximum(moving, (around + passed * sends.seconds).max(0))
    moving = moving + exposed_send_seconds(sends.shown, plans)
    still = np.maximum(still, around.max(0)) if times.by_part else moving
    return PipelineTime(
        bottleneck=bottleneck,
        bubble_s=np.maximum(still - many * bottleneck.busy, 0.0),
        sends_s=np.maximum(moving - still, 0.0) if times.by_part else np.zeros(1),
        window=sync_window(moving, first.phases, plans),
    )


def exposed_send_seconds(shown: Array, plans: PlanColumns) -> Array:
    """What overlapped sends add to the schedule: every pass of a virtual stage ends in one.

        2 (m v + p - 1) t          t = what is shown of one send, m microbatches, v chunks, p stages

    So deep interleaving pays for its smaller bubble: v chunks send v times as often.
    """
    return np.where(plans.pp > 1, 2 * (plans.microbatches * plans.chunks + plans.pp - 1) * shown, 0.0)


def _phases(stage: StageTimes) -> PhaseSeconds:
    return PhaseSeconds(
        forward_s=stage.forward, backward_input_s=stage.backward_input, backward_weight_s=stage.backward_weight
    )


def _slowest(inner: Array, apart: Mask) -> PhaseSeconds:
    """The longest of each pass among the inner stages of ranks, so that none gets longer when another gets shorter.

    A backward in one piece has one length; how it is told apart in two means nothing, and it counts as the first.
    """
    forward, inputs, weights = inner.max(1)
    backward = (inner[1] + inner[2]).max(0)
    return PhaseSeconds(
        forward_s=forward,
        backward_input_s=np.where(apart, inputs, backward),
        backward_weight_s=np.where(apart, weights, 0.0),
    )


def _fill_and_drain(number: Index, ends: tuple[StageTimes, StageTimes], plans: PlanColumns) -> tuple[Array, Array]:
    """Warm-up and cool-down of each rank: seconds of other stages before its first and after its last step, and the
    sends on that way.

    A microbatch comes down through the ranks before; where a rank's last step is a backward its gradient goes back up.
    Paths through equal stages know this; of stages that differ they know the mean, so every rank is asked by itself.
    `ends` are the first and the mean inner stage.
    """
    split = facts_of(plans.schedule, "splits_backward")
    first, inner = (np.where(split, end.forward, end.busy) for end in ends)
    way = first + np.maximum(number - 1.0, 0.0) * inner
    return np.where(number > 0, way, 0.0), np.where(split, 1.0, 2.0) * number


def _of_slowest_rank(columns: Array, values: Array, lines: Index) -> Array:
    """Columns of that one of some lines that has the largest value, by row; the first of equals."""
    first, *others = lines.tolist()
    found, most = columns[:, first], values[first]
    for line in others:
        more = values[line] > most * (1 + EQUAL)
        found, most = np.where(more, columns[:, line], found), np.where(more, values[line], most)
    return found


def _schedules(work: PathWork, plans: PlanColumns, *, apart: bool) -> tuple[Array, Array]:
    """Seconds of the schedules with sends that take no time, where asked apart, and with sends as they are."""
    kinds = plans.schedule.astype(np.int64)
    many = len(np.atleast_1d(work.first.forward_s))
    send = np.broadcast_to(np.asarray(work.send_s, dtype=np.float64), many)
    path = replace(work, send_s=np.stack([np.zeros(many), send] if apart else [send]))
    if len(kinds) == 1:
        seconds = _schedule(NAMES[kinds[0]], path, plans)
        return seconds[0], seconds[-1]
    seconds = np.empty(np.shape(path.send_s))
    for kind in distinct(kinds):
        own = np.flatnonzero(kinds == kind)
        seconds[:, own] = _schedule(NAMES[kind], _part(path, own), plans.at(own))
    return seconds[0], seconds[-1]


def _schedule(name: str, work: PathWork, plans: PlanColumns) -> Array:
    sizes = {"stages": plans.pp, "chunks": plans.chunks, "microbatches": plans.microbatches}
    return closed_form(name, **sizes, work=work, send_blocks=plans.overlap_pp == 0)


def _part(work: PathWork, rows: Index) -> PathWork:
    """The work of some rows."""

    def taken(phases: PhaseSeconds) -> PhaseSeconds:
        return PhaseSeconds(**{name: np.asarray(getattr(phases, name))[rows] for name in PhaseSeconds.__slots__})

    return PathWork(
        first=taken(work.first),
        inner=taken(work.inner),
        last=taken(work.last),
        slowest=taken(work.slowest or work.inner),
        send_s=np.asarray(work.send_s)[:, rows],
    )


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


def least_step_s(busy_s: Array, plans: PlanColumns, rates: ParameterColumns) -> Array:
    """Seconds that no step takes less than whose ranks are busy for so long: waiting and fixed costs come on top.

    What differs between cells counts as in the least of them.
    """
    lost = np.min(rates["jitter"]) * np.log2(np.min(plans.nodes)) + np.min(rates["slack"])
    least_s: Array = busy_s * (1 + lost) + np.min(rates["fixed"])
    return least_s if rates.pace is None else least_s * np.min(rates.pace)
