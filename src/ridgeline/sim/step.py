"""Turn priced sections into the time of a step: compute, exposed communication, bubble, optimizer, host.

    step = the pipeline's schedule + exposed gradient exchange + optimizer + waiting for the slowest node

    price_slots     ops -> seconds by phase and class                     per cell
    beside          what runs beside compute, as far as it shows          per cell
    paced           the busiest rank, and the schedule around it          per row: a cell placed on a pipeline
    step_of         exchange, optimizer and waiting                       per plan

Everything is a column, so that one scenario and a hundred thousand plans run through the same lines. A fit and a single
prediction have as many cells as rows and plans; a search has few cells, more rows and many plans.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.collectives import ALL_GATHER, ALL_REDUCE, SEND, collective_seconds
from ridgeline.cost.links import Links, links_of
from ridgeline.cost.price import padded_flops
from ridgeline.cost.rates import PEAKS, SHARE, WIDE, Machines, Rates, at
from ridgeline.sim.batch import AXES, PHASES, Batch
from ridgeline.sim.lines import Lines
from ridgeline.sim.pipeline_formula import PathWork, PhaseSeconds, closed_form
from ridgeline.sim.run import NAMES, Runs

Array = NDArray[np.float64]
Index = NDArray[np.int64]
HIDDEN_COPY = 0.95  # share of copies to the host that can hide behind compute
RING = 0.85  # share of a ring of keys and values that can hide behind attention
SMOOTH = 10.0  # how sharply the slower of host and chip wins
CLASSES = ("matmul", "attention", "memory", "kernel", *AXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Sustained rates by row: data sheets times parameters, with what graphs and engines change."""

    machines: Machines
    rates: Rates
    peak: Array  # flops/s by peak key
    attention: Array
    attention_back: Array
    memory: Array
    links: Links
    kernel: Array
    host: Array
    wait: Array


def rows_of(machines: Machines, rates: Rates, runs: Runs) -> Rows:
    """What the chips sustain under the engines that run on them."""
    share = np.stack([rates[SHARE.get(key, "matmul_wide")] for key in PEAKS], axis=1)
    attention = machines.peak[:, WIDE] * rates["attention"]
    return Rows(
        machines=machines,
        rates=rates,
        peak=machines.peak * share,
        attention=attention,
        attention_back=attention * rates["attention_back"],
        memory=machines.memory * rates["memory"],
        links=links_of(machines, rates),
        kernel=rates["kernel"] * (1 - 0.7 * runs.graph),
        host=rates["host"] * (1 - 0.9 * runs.graph) * (1 - 0.9 * runs.xla),
        wait=rates["wait"] * (1 - runs.graph),
    )


def padded_of(batch: Batch, machines: Machines) -> Array:
    """Padded flops of every product: they depend on sizes and cores alone, so that a fit works them out once."""
    m, n, k, groups, _, _ = batch.matmuls
    return padded_flops(m, n, k, groups, at(machines.cores, batch.slot_cell[batch.matmul_slot]))


def price_slots(batch: Batch, rows: Rows, padded: Array | None = None) -> tuple[Array, Array]:
    """Seconds by section, phase and class, and kernels by section and phase."""
    cell = batch.slot_cell
    slots = len(cell)
    table = np.zeros((slots, len(CLASSES)))
    table[:, 0] = np.bincount(batch.matmul_slot, _matmuls(batch, rows, cell, padded), slots)
    table[:, 1] = np.bincount(batch.attend_slot, _attends(batch, rows, cell), slots)
    size, count, waits = batch.streams
    own = cell[batch.stream_slot]
    moved = size * at(rows.rates["traffic"] / rows.memory, own)
    table[:, 2] = np.bincount(batch.stream_slot, moved, slots)
    pauses = np.bincount(batch.stream_slot, waits * at(rows.wait, own), slots)
    kernels = np.bincount(batch.matmul_slot, minlength=slots).astype(np.float64)
    kernels += np.bincount(batch.stream_slot, count, slots)
    kernels += np.bincount(batch.attend_slot, batch.attends[5], slots)
    if batch.collectives.size:
        kind, payload, ranks, stride, axis, spread = batch.collectives
        links = rows.links.at(cell[batch.collective_slot])
        spent = collective_seconds(kind.astype(np.int64), payload, ranks, stride, links, spread)
        for index in range(len(AXES)):
            mine = axis == index
            table[:, 4 + index] = np.bincount(batch.collective_slot[mine], spent[mine], slots)
    table[:, 3] = kernels * at(rows.kernel, cell) + pauses
    return table.reshape(-1, PHASES, len(CLASSES)), kernels.reshape(-1, PHASES)


def _matmuls(batch: Batch, rows: Rows, cell: Index, padded: Array | None) -> Array:
    m, n, k, groups, size_in, size_out = batch.matmuls
    own = cell[batch.matmul_slot]
    peak = rows.peak[0, batch.matmul_peak] if len(rows.peak) == 1 else rows.peak[own, batch.matmul_peak]
    rate = peak * np.where(groups > 1, at(rows.rates["experts"], own), 1.0)
    compute = (padded if padded is not None else padded_of(batch, rows.machines)) / rate
    moved = ((m * k + k * n) * size_in + m * n * size_out) * groups / at(rows.memory, own)
    slower: Array = np.maximum(compute, moved)
    return slower


def _attends(batch: Batch, rows: Rows, cell: Index) -> Array:
    """A flash kernel hides its traffic behind its products; unfused attention does one after the other."""
    flops, size, dim, back, flash, _, scan = batch.attends
    own = cell[batch.attend_slot]
    width = np.minimum(1.0, (dim / 128.0) ** 0.1)
    rate = np.where(back > 0, at(rows.attention_back, own), at(rows.attention, own)) * width
    wide = at(rows.machines.peak[:, WIDE], own)
    rate = np.where(scan > 0, wide * at(rows.rates["scan"], own), rate)
    through = size * np.where(flash > 0, 1.0, at(rows.rates["traffic"], own)) / at(rows.memory, own)
    dense = flops / np.where(flash > 0, rate, at(rows.peak[:, WIDE], own) * 0.5)
    seconds: Array = np.where(flash > 0, np.maximum(dense, through), dense + through)
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Step times by row, with parts that sum to them."""

    step_s: Array
    parts: dict[str, Array]


# columns of what a section, a virtual stage or a rank does for one microbatch
TIMES = (*CLASSES, "shard", "host")
ISSUE = len(TIMES)
PHASE = slice(ISSUE + 1, ISSUE + 4)  # forward, input gradient with what is recomputed, weight gradient; all of TIMES
PARAMS = slice(ISSUE + 4, ISSUE + 8)


def step_seconds(batch: Batch, lines: Lines, runs: Runs, rows: Rows, padded: Array | None = None) -> Steps:
    """The time of one step of every row, where cells, rows and plans are the same."""
    parts = beside(batch, *price_slots(batch, rows, padded), runs, rows)
    return step_of(paced(lines, parts, runs, rows), runs, rows)


def beside(batch: Batch, table: Array, kernels: Array, runs: Runs, rows: Rows) -> Array:
    """Columns by section: compute, and what of communication and copies compute does not hide."""
    cell = batch.section_cell
    table = table.copy()
    tp, cp, ep = 4, 5, 6
    contention = at(rows.rates["contention"], cell)
    for axis, switch, share in ((tp, runs.overlap_tp, "hidden_tp"), (ep, runs.overlap_moe, "hidden_moe")):
        hidden = at(switch, cell) * at(rows.rates[share], cell) * (1 - contention)
        table[:, :, axis] *= (1 - hidden)[:, None]
    ring = table[:, :, cp]
    table[:, :, cp] = exposed(ring, table[:, :, 1], RING, contention[:, None])
    busy = table.sum(2)
    gather = _gathered(batch, runs, rows, busy)
    away = batch.away * at(runs.offload / rows.machines.host, cell)
    copies = exposed(2 * away, busy.sum(1), HIDDEN_COPY, np.zeros(1))  # out and back; copy engines take no cores
    issue = (kernels * at(rows.host, cell)[:, None]).sum(1)
    parts = np.empty((len(cell), PARAMS.stop))
    parts[:, : len(CLASSES)] = table.sum(1)
    parts[:, len(CLASSES)] = gather.sum(0)
    parts[:, len(CLASSES) + 1] = copies
    parts[:, ISSUE] = issue
    parts[:, PHASE] = np.stack([busy[:, 0], busy[:, 1] + busy[:, 3], busy[:, 2]], axis=1)
    parts[:, PHASE.start] += gather[0] + copies / 2
    parts[:, PHASE.start + 1] += gather[1] + copies / 2
    parts[:, PARAMS] = batch.params.T
    return parts


def _gathered(batch: Batch, runs: Runs, rows: Rows, busy: Array) -> Array:
    """Seconds by section, forward and backward, that gathering and scattering sharded weights takes beyond compute."""
    cell = batch.section_cell
    three = at(runs.shard, cell) == 3
    if not three.any():
        return np.zeros((2, len(cell)))
    dense, expert = batch.params[:2]
    links = rows.links.at(cell)
    degree = at(runs.shard_degree, cell)

    def spent(size: Array) -> Array:
        whole = collective_seconds(ALL_GATHER, dense * size, degree, at(runs.tp, cell), links)
        ranks = np.minimum(at(runs.edp, cell), degree)
        return whole + collective_seconds(ALL_GATHER, expert * size, ranks, at(runs.expert_stride, cell), links)

    gather, scatter = spent(at(runs.weight_bytes, cell)), spent(at(runs.gradient_bytes, cell))
    hidden, contention = at(rows.rates["hidden_shard"], cell), at(rows.rates["contention"], cell)
    forward = exposed(gather, busy[:, 0], hidden, contention)
    backward = exposed(gather + scatter, busy[:, 1:].sum(1), hidden, contention)
    return np.where(three, np.stack([forward, backward]), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A pipeline without its ends, by row.

    columns     those of the rank that has most to do, for one microbatch, waiting for the host included
    bubble_s    what the schedule adds to that rank's work, `sends_s` what sends between stages add
    trained     dense and expert parameters of the rank that trains most
    """

    columns: Array
    bubble_s: Array
    sends_s: Array
    trained: Array

    def at(self, index: Index) -> Pace:
        """These rows, in this order."""
        return Pace(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


def paced(lines: Lines, parts: Array, runs: Runs, rows: Rows) -> Pace:
    """The busiest rank of every row, and what the schedule makes it wait."""
    summed = np.add.reduceat(parts[lines.section] * lines.count[:, None], lines.firsts)
    _stall(summed, lines, runs)
    held, begins = summed[lines.held], lines.begins
    pick = _most(held[:, : len(TIMES)].sum(1), lines.row, begins)
    trains = _most(held[:, PARAMS.start + 2 :].sum(1), lines.row, begins)
    columns = held[pick]
    many = runs.microbatches * np.ones(len(begins))
    busy = many * columns[:, : len(TIMES)].sum(1)
    bubble, sends = np.zeros(len(begins)), np.zeros(len(begins))
    piped = np.flatnonzero((runs.pp > 1) & np.ones(len(begins), dtype=bool))
    if piped.size:
        work = _path_work(summed, lines, begins)
        still, moving = _schedules(work, runs, rows, piped)
        bubble[piped] = np.maximum(still - busy[piped], 0.0)
        sends[piped] = np.maximum(moving - still, 0.0)
    return Pace(columns=columns, bubble_s=bubble, sends_s=sends, trained=held[trains, PARAMS.start + 2 :])


def _stall(summed: Array, lines: Lines, runs: Runs) -> None:
    """Add what the chip waits for the host: where issuing kernels takes longer than running them."""
    row = np.empty(len(summed), dtype=np.int64)
    row[lines.held] = row[lines.inner] = lines.row
    row[lines.first] = row[lines.middle] = row[lines.last] = np.arange(len(lines.first))
    running, issue = summed[:, : len(TIMES)].sum(1), summed[:, ISSUE]
    most = np.maximum(np.maximum(running, issue), 1e-30)
    together = most * ((running / most) ** SMOOTH + (issue / most) ** SMOOTH) ** (1 / SMOOTH)
    stall = np.where(at(runs.blocking, row) > 0, issue, together - running)
    summed[:, CLASSES.index("kernel")] += stall
    # what runs beside compute has the stalls to hide in, too
    summed[:, PHASE] *= (1 + stall / np.maximum(running, 1e-30))[:, None]


def _most(values: Array, row: Index, begins: Index) -> Index:
    """Which entry of each row is the largest; the first of equals."""
    largest = np.maximum.reduceat(values, begins)
    found = np.flatnonzero(values >= largest[row] * (1 - 1e-12))
    pick = np.zeros(len(begins), dtype=np.int64)
    pick[row[found[::-1]]] = found[::-1]
    return pick


def _path_work(summed: Array, lines: Lines, begins: Index) -> Array:
    """Forward, input and weight gradient seconds of the first, mean inner, last and slowest inner stage, by row."""
    inner = summed[lines.inner][:, PHASE]
    slowest = inner[_most(inner.sum(1), lines.row, begins)]
    ends = (lines.first, lines.middle, lines.last)
    return np.stack([*(summed[line][:, PHASE] for line in ends), slowest], axis=1)


def _schedules(work: Array, runs: Runs, rows: Rows, piped: Index) -> tuple[Array, Array]:
    """Seconds of the schedules of rows with a pipeline, with sends that take no time and with sends as they are."""
    send = collective_seconds(SEND, runs.boundary_bytes, runs.pp, runs.tp * runs.replicas, rows.links)
    send = at(send, piped)
    still, moving = np.empty(len(piped)), np.empty(len(piped))
    kinds = at(runs.schedule, piped).astype(np.int64)
    for kind in np.unique(kinds):
        own = np.flatnonzero(kinds == kind)
        place = piped[own]
        sizes = {"stages": at(runs.pp, place), "chunks": at(runs.chunks, place)}
        sizes["microbatches"] = at(runs.microbatches, place)
        phases = [_phases(work[place, end]) for end in range(4)]
        for into, seconds in ((still, np.zeros(len(own))), (moving, send[own])):
            ends = PathWork(first=phases[0], inner=phases[1], last=phases[2], slowest=phases[3], send_s=seconds)
            blocks = at(runs.overlap_pp, place) == 0
            into[own] = closed_form(NAMES[kind], **sizes, work=ends, send_blocks=blocks)
    return still, moving


def _phases(seconds: Array) -> PhaseSeconds:
    forward, inputs, weights = seconds.T
    return PhaseSeconds(forward_s=forward, backward_input_s=inputs, backward_weight_s=weights)


def step_of(pace: Pace, runs: Runs, rows: Rows) -> Steps:
    """The step of every plan from its row's pace: exchange, optimizer and waiting come on top."""
    many = runs.microbatches
    parts = {name: many * pace.columns[:, index] for index, name in enumerate(TIMES)}
    parts["bubble"] = pace.bubble_s
    parts["pp"] = pace.sends_s
    dense, expert = pace.trained.T
    parts["dp"] = _exchange(runs, rows, dense, expert, pace.columns[:, PHASE])
    degree = np.where(runs.shard > 0, runs.shard_degree, 1.0)
    expert_degree = np.where(runs.shard > 0, np.minimum(runs.edp, runs.shard_degree), 1.0)
    states = (dense / degree + expert / expert_degree) * runs.optimizer_bytes
    away = states * runs.offload_optimizer
    parts["optimizer"] = (states - away) / rows.memory + 2 * away / rows.machines.host
    step = sum(parts.values(), start=np.zeros(len(dense)))
    parts["waiting"] = step * rows.rates["jitter"] * np.log2(runs.nodes) + rows.rates["fixed"]
    return Steps(step_s=step + parts["waiting"], parts=parts)


def exposed(spent: Array, window: Array, hidden: Array | float, contention: Array) -> Array:
    """What is left of communication beside compute.

        (1 - h) t  +  max(h t - w, 0)  +  c min(h t, w)

    t = spent, h = share that can hide, w = compute it can hide behind, c = what compute loses while both run.
    """
    able = hidden * spent
    return spent - able + np.maximum(able - window, 0.0) + contention * np.minimum(able, window)


def _exchange(runs: Runs, rows: Rows, dense: Array, expert: Array, phases: Array) -> Array:
    """Gradient reduction and weight gathering of the data-parallel ranks beyond what compute hides."""
    grads, weights = runs.gradient_bytes, runs.weight_bytes

    def over(kind: int, size: Array) -> Array:
        spent = collective_seconds(kind, dense * size, runs.replicas, runs.tp, rows.links)
        return spent + collective_seconds(kind, expert * size, runs.edp, runs.expert_stride, rows.links)

    nothing = np.zeros(len(dense))
    some = {kind: bool((runs.shard == kind).any()) for kind in range(4)}  # only what some row needs is priced
    plain = over(ALL_REDUCE, grads) if some[0] else nothing
    reduce, gather = (over(ALL_GATHER, grads), over(ALL_GATHER, weights)) if some[1] or some[2] else (nothing, nothing)
    outside = (runs.replicas / runs.shard_degree, runs.tp * runs.shard_degree)
    sharded = dense * grads / runs.shard_degree
    partial = collective_seconds(ALL_REDUCE, sharded, *outside, rows.links) if some[3] else nothing
    forward, backward = phases[:, 0], phases[:, 1] + phases[:, 2]
    hidden, contention = rows.rates["hidden_dp"], rows.rates["contention"]

    def left(spent: Array, window: Array, overlapped: Array) -> Array:
        return np.where(overlapped > 0, exposed(spent, window, hidden, contention), spent)

    none = left(plain, backward, runs.overlap_grad)
    one = left(reduce, backward, runs.overlap_grad) + left(gather, forward, runs.overlap_gather)
    three = left(partial, backward, runs.overlap_grad)
    return np.select([runs.shard == 0, runs.shard < 3], [none, one], three)
