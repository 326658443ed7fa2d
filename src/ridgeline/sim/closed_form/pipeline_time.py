"""Turn what sections take into the pace of a pipeline: the busiest rank, and what the schedule makes it wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.collectives.links import Links
from ridgeline.cost.collectives.price import SEND, collective_seconds
from ridgeline.cost.price import CLASSES
from ridgeline.sim.closed_form.grad_sync import SPLIT
from ridgeline.sim.closed_form.overlap import BUSY, BY_CLASS, FORWARD, INPUTS, ISSUE, PHASED, WEIGHTS
from ridgeline.sim.closed_form.schedule_time import PathWork, PhaseSeconds, closed_form
from ridgeline.sim.closed_form.stage_mix import StageMix
from ridgeline.sim.plan_columns import NAMES, PlanColumns

Array = NDArray[np.float64]
Index = NDArray[np.int64]
SMOOTH = 10.0  # how sharply the slower of host and chip wins
EQUAL = 1e-12  # relative difference that means nothing: the first of equals is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTime:
    """A pipeline without its ends, by row.

    columns     those of the rank that has most to do, for one microbatch, waiting for the host included
    bubble_s    what the schedule adds to that rank's work; `sends_s` what sends between stages add, where compute is
                told apart by class: otherwise they are part of the bubble
    """

    columns: Array
    bubble_s: Array
    sends_s: Array


def send_seconds(plans: PlanColumns, links: Links) -> Array:
    """Seconds of one send between stages."""
    return collective_seconds(SEND, plans.boundary_bytes, plans.pp, plans.tp * plans.replicas, links)


def most_trained(lines: Sequence[StageMix], params: Array) -> Array:
    """Dense and expert parameters of the rank that trains most; `params` those of every section."""
    if len(lines) == 1:
        return _trained(lines[0], params)
    found = np.empty((2, sum(len(group.rows) for group in lines)))
    for group in lines:
        found[:, group.rows] = _trained(group, params)
    return found


def _trained(lines: StageMix, params: Array) -> Array:
    held = lines.summed(params)
    return _most(held, held.sum(0), lines.roles.whole)


def pipeline_time(lines: Sequence[StageMix], parts: Array, send_s: Array, plans: PlanColumns) -> PipelineTime:
    """The busiest rank of every row, and what the schedule makes it wait."""
    if len(lines) == 1:
        return _paced(lines[0], parts, send_s, plans)
    many = sum(len(group.rows) for group in lines)
    made = PipelineTime(columns=np.empty((len(parts), many)), bubble_s=np.empty(many), sends_s=np.empty(many))
    for group in lines:
        own = _paced(group, parts, send_s[group.rows], plans.at(group.rows))
        for field in fields(PipelineTime):
            getattr(made, field.name)[..., group.rows] = getattr(own, field.name)
    return made


def _paced(lines: StageMix, parts: Array, send: Array, plans: PlanColumns) -> PipelineTime:
    """The same for rows whose lines have the same roles."""
    summed, roles, many = lines.summed(parts), lines.roles, plans.microbatches
    _stall(summed, plans)
    columns = _most(summed, summed[BUSY], roles.whole)
    if plans.pp.max() == 1:
        nothing = np.zeros(columns.shape[1])
        return PipelineTime(columns=columns, bubble_s=nothing, sends_s=nothing)
    ends = summed[:, roles.ends]
    first, middle, last, slowest = (
        PhaseSeconds(forward_s=end[FORWARD], backward_input_s=end[INPUTS], backward_weight_s=end[WEIGHTS])
        for end in (*ends.swapaxes(0, 1), _most(summed, summed[BUSY], roles.inner))
    )
    work = PathWork(first=first, inner=middle, last=last, slowest=slowest, send_s=send)
    apart = len(parts) > BY_CLASS
    still, moving = _schedules(work, plans, apart=apart)
    around, passed = _around(roles.number, (ends[:, 0], ends[:, 1]), plans)
    around += many * summed[BUSY, roles.whole]
    moving = np.maximum(moving, (around + passed * send).max(0))
    still = np.maximum(still, around.max(0)) if apart else moving
    return PipelineTime(
        columns=columns,
        bubble_s=np.maximum(still - many * columns[BUSY], 0.0),
        sends_s=np.maximum(moving - still, 0.0) if apart else np.zeros(1),
    )


def _around(number: Index, ends: tuple[Array, Array], plans: PlanColumns) -> tuple[Array, Array]:
    """Seconds before a rank's first and after its last step, as far as others must run then; and sends on that way.

    A microbatch comes down through the ranks before; where a rank's last step is a backward its gradient goes back up.
    Paths through equal stages know this; of stages that differ they know the mean, so every rank is asked by itself.
    `ends` are the columns of the first and of the mean inner stage.
    """
    split = np.isin(plans.schedule, SPLIT)
    first, inner = (np.where(split, end[FORWARD], end[BUSY]) for end in ends)
    way = first + np.maximum(number - 1.0, 0.0) * inner
    return np.where(number > 0, way, 0.0), np.where(split, 1.0, 2.0) * number


def _stall(summed: Array, plans: PlanColumns) -> None:
    """Add what the chip waits for the host: where issuing kernels takes longer than running them.

    together = (running^10 + issue^10)^(1/10)           the longer of the two, a little more where they are equal
    """
    running, issue = summed[BUSY], summed[ISSUE]
    most = np.maximum(np.maximum(running, issue), 1e-30)
    share = np.minimum(running, issue)
    share /= most
    share *= share
    share *= (share * share) ** 2
    np.log1p(share, out=share)
    share /= SMOOTH
    most *= np.exp(share, out=share)
    stall = most - running
    if plans.blocking.any():
        stall = np.where(plans.blocking > 0, issue, stall)
    # what runs beside compute has the stalls to hide in, too
    summed[PHASED] *= 1 + stall / np.maximum(running, 1e-30)
    summed[BUSY] += stall
    if len(summed) > BY_CLASS:
        summed[BY_CLASS + CLASSES.index("kernel")] += stall


def _most(summed: Array, values: Array, lines: Index) -> Array:
    """Columns of that one of some lines that has the largest value, by row; the first of equals."""
    first, *others = lines.tolist()
    columns, most = summed[:, first], values[first]
    for line in others:
        more = values[line] > most * (1 + EQUAL)
        columns, most = np.where(more, summed[:, line], columns), np.where(more, values[line], most)
    return columns


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
    for kind in np.unique(kinds):
        own = np.flatnonzero(kinds == kind)
        seconds[:, own] = _schedule(NAMES[kind], _part(path, own), plans.at(own))
    return seconds[0], seconds[-1]


def _schedule(name: str, work: PathWork, plans: PlanColumns) -> Array:
    return closed_form(
        name, stages=plans.pp, chunks=plans.chunks, microbatches=plans.microbatches, work=work,
        send_blocks=plans.overlap_pp == 0,
    )  # fmt: skip


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
