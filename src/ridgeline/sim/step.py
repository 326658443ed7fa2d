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

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.collectives import ALL_GATHER, SEND, collective_seconds
from ridgeline.cost.links import Links, links_of
from ridgeline.cost.price import flash_seconds, padded_flops
from ridgeline.cost.rates import PEAKS, SHARE, WIDE, Machines, Rates, at
from ridgeline.sim.batch import AXES, PHASES, Batch
from ridgeline.sim.exchange import SPLIT, exchange_seconds, exposed, optimizer_seconds
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
    share *= (machines.density ** -rates["power"])[:, None]  # clocks fall where flops are dense in power
    return Rows(
        machines=machines,
        rates=rates,
        peak=machines.peak * share,
        attention=rates["attention"],
        attention_back=rates["attention"] * rates["attention_back"],
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """Priced sections.

    seconds   by class, phase and section, nothing hidden yet
    issue_s   the host takes to issue its kernels
    cell, params, away   as in `Batch`
    """

    cell: Index
    params: Array
    away: Array
    seconds: Array
    issue_s: Array


def price_slots(batch: Batch, rows: Rows, padded: Array | None = None) -> Sections:
    """Every op priced, summed up by section, phase and class."""
    cell = batch.slot_cell
    slots = len(cell)
    table = np.zeros((len(CLASSES), slots))
    table[0] = np.bincount(batch.matmul_slot, _matmuls(batch, rows, cell, padded), slots)
    table[1] = np.bincount(batch.attend_slot, _attends(batch, rows, cell), slots)
    size, count, waits = batch.streams
    own = cell[batch.stream_slot]
    moved = size * at(rows.rates["traffic"] / rows.memory, own)
    table[2] = np.bincount(batch.stream_slot, moved, slots)
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
            table[4 + index] = np.bincount(batch.collective_slot[mine], spent[mine], slots)
    table[3] = kernels * at(rows.kernel, cell) + pauses
    return Sections(
        cell=batch.cell,
        params=batch.params,
        away=batch.away,
        seconds=np.ascontiguousarray(table.reshape(len(CLASSES), -1, PHASES).swapaxes(1, 2)),
        issue_s=(kernels * at(rows.host, cell)).reshape(-1, PHASES).sum(1),
    )


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
    wide = at(rows.machines.peak[:, WIDE], own)
    share = np.where(back > 0, at(rows.attention_back, own), at(rows.attention, own))
    tiled = flash_seconds(flops, dim, back, wide * share, at(rows.machines.exponentials, own) * share)
    scanned = flops / (wide * at(rows.rates["scan"], own))
    through = size * np.where(flash > 0, 1.0, at(rows.rates["traffic"], own)) / at(rows.memory, own)
    dense = np.where(scan > 0, scanned, np.where(flash > 0, tiled, flops / (at(rows.peak[:, WIDE], own) * 0.5)))
    seconds: Array = np.where(flash > 0, np.maximum(dense, through), dense + through)
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Step times by row, with parts that sum to them."""

    step_s: Array
    parts: dict[str, Array]


# columns of what a section, a virtual stage or a rank does for one microbatch: all it does, what the host takes to
# issue that, forward, input gradient with what is recomputed, weight gradient, trained parameters; then by class
TIMES = (*CLASSES, "shard", "host")
BUSY, ISSUE, FORWARD, INPUTS, WEIGHTS, DENSE, EXPERT = range(7)
BY_CLASS = 7


def step_seconds(
    batch: Batch, lines: Sequence[Lines], runs: Runs, rows: Rows, padded: Array | None = None, *, by_class: bool = True
) -> Steps:
    """The time of one step of every row, where cells, rows and plans are the same; its compute by class, or in one."""
    parts = beside(price_slots(batch, rows, padded), runs, rows, by_class=by_class)
    return step_of(paced(lines, parts, runs, rows), runs, rows)


def beside(sections: Sections, runs: Runs, rows: Rows, *, by_class: bool = True) -> Array:
    """Columns by section: compute, and what of communication and copies compute does not hide."""
    cell = sections.cell
    tp, cp, ep = (4 + index for index in range(len(AXES)))
    contention = at(rows.rates["contention"], cell)
    table = sections.seconds.copy()
    table[cp] = exposed(table[cp], table[1], RING, contention)
    window = table[: len(CLASSES) - len(AXES)].sum(0) + table[cp]
    for axis, switch, share in ((ep, runs.overlap_moe, "hidden_moe"), (tp, runs.overlap_tp, "hidden_tp")):
        table[axis] = exposed(table[axis], window, at(switch, cell) * at(rows.rates[share], cell), contention)
        window = window + table[axis]
    busy = table.sum(0)
    gather = _gathered(sections, runs, rows, busy)
    away = sections.away * at(runs.offload / rows.machines.host, cell)
    copies = exposed(2 * away, busy.sum(0), HIDDEN_COPY, np.zeros(1))  # out and back; copy engines take no cores
    parts = np.empty((BY_CLASS + (len(TIMES) if by_class else 0), len(cell)))
    parts[ISSUE] = sections.issue_s
    # copies are spread over all passes, what is gathered for the backward over its own, by their length
    backward = np.maximum(busy[1:].sum(0), 1e-30)
    each, again = copies / (busy[0] + backward), gather[1] / backward
    parts[FORWARD] = busy[0] * (1 + each) + gather[0]
    parts[INPUTS] = (busy[1] + busy[3]) * (1 + each + again)
    parts[WEIGHTS] = busy[2] * (1 + each + again)
    parts[BUSY] = parts[FORWARD] + parts[INPUTS] + parts[WEIGHTS]
    parts[DENSE : EXPERT + 1] = sections.params[2:]
    if by_class:
        parts[BY_CLASS:-2] = table.sum(1)
        parts[-2] = gather.sum(0)
        parts[-1] = copies
    return parts


def _gathered(sections: Sections, runs: Runs, rows: Rows, busy: Array) -> Array:
    """Seconds by section, forward and backward, that gathering and scattering sharded weights takes beyond compute."""
    cell = sections.cell
    three = at(runs.shard, cell) == 3
    if not three.any():
        return np.zeros((2, 1))
    dense, expert = sections.params[:2]
    links = rows.links.at(cell)
    degree = at(runs.shard_degree, cell)

    def spent(size: Array) -> Array:
        whole = collective_seconds(ALL_GATHER, dense * size, degree, at(runs.tp, cell), links)
        if not expert.any():
            return whole
        ranks = np.minimum(at(runs.edp, cell), degree)
        beside = collective_seconds(ALL_GATHER, expert * size, ranks, at(runs.expert_stride, cell), links)
        return whole + np.where(expert > 0, beside, 0.0)

    gather, scatter = spent(at(runs.weight_bytes, cell)), spent(at(runs.gradient_bytes, cell))
    hidden, contention = at(rows.rates["hidden_shard"], cell), at(rows.rates["contention"], cell)
    forward = exposed(gather, busy[0], hidden, contention)
    backward = exposed(gather + scatter, busy[1:].sum(0), hidden, contention)
    return np.where(three, np.stack([forward, backward]), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A pipeline without its ends, by row.

    columns     those of the rank that has most to do, for one microbatch, waiting for the host included
    bubble_s    what the schedule adds to that rank's work; `sends_s` what sends between stages add, where told apart
    trained     dense and expert parameters of the rank that trains most
    """

    columns: Array
    bubble_s: Array
    sends_s: Array
    trained: Array

    def at(self, index: Index) -> Pace:
        """These rows, in this order."""
        return Pace(**{field.name: getattr(self, field.name)[..., index] for field in fields(self)})


def paced(lines: Sequence[Lines], parts: Array, runs: Runs, rows: Rows) -> Pace:
    """The busiest rank of every row, and what the schedule makes it wait."""
    if len(lines) == 1:
        return _paced(lines[0], parts, runs, rows.links)
    many = sum(len(group.rows) for group in lines)
    made = Pace(
        columns=np.empty((len(parts), many)),
        bubble_s=np.empty(many),
        sends_s=np.empty(many),
        trained=np.empty((2, many)),
    )
    for group in lines:
        own = _paced(group, parts, runs.at(group.rows), rows.links.at(group.rows))
        for field in fields(Pace):
            getattr(made, field.name)[..., group.rows] = getattr(own, field.name)
    return made


def _paced(lines: Lines, parts: Array, runs: Runs, links: Links) -> Pace:
    """The same for rows with equally many ranks."""
    summed, ranks = lines.summed(parts), lines.ranks
    _stall(summed, runs)
    held, many = summed[:, :ranks], np.arange(len(lines.rows))
    columns = held[:, _most(held[BUSY]), many]
    bubble, sends = np.zeros(len(many)), np.zeros(len(many))
    if ranks > 1 or runs.pp.max() > 1:
        inner = summed[:, ranks : 2 * ranks]
        ends = (summed[:, -3], summed[:, -2], summed[:, -1], inner[:, _most(inner[BUSY]), many])
        first, middle, last, slowest = (
            PhaseSeconds(forward_s=end[FORWARD], backward_input_s=end[INPUTS], backward_weight_s=end[WEIGHTS])
            for end in ends
        )
        send = collective_seconds(SEND, runs.boundary_bytes, runs.pp, runs.tp * runs.replicas, links)
        work = PathWork(first=first, inner=middle, last=last, slowest=slowest, send_s=send)
        still, moving = _schedules(work, runs, len(many), apart=len(parts) > BY_CLASS)
        around, passed = _around(lines.number[:, None], (summed[:, -3], summed[:, -2]), runs)
        alone = (around + runs.microbatches * held[BUSY]).max(0)
        still = np.maximum(still, alone)
        moving = np.maximum(moving, np.maximum(still, (passed * send + around + runs.microbatches * held[BUSY]).max(0)))
        bubble = np.maximum(still - runs.microbatches * columns[BUSY], 0.0)
        sends = np.maximum(moving - still, 0.0)
    trained = held[DENSE : EXPERT + 1]
    trained = trained[:, _most(trained[0] + trained[1]), many]
    return Pace(columns=columns, bubble_s=bubble, sends_s=sends, trained=trained)


def _around(number: Index, ends: tuple[Array, Array], runs: Runs) -> tuple[Array, Array]:
    """Seconds before a rank's first and after its last step, as far as others must run then; and sends on that way.

    A microbatch comes down through the ranks before; where a rank's last step is a backward its gradient goes back up.
    Paths through equal stages know this; of stages that differ they know the mean, so every rank is asked by itself.
    `ends` are the columns of the first and of the mean inner stage.
    """
    first, inner = ends
    way = first[FORWARD : WEIGHTS + 1, None] + np.maximum(number - 1.0, 0.0) * inner[FORWARD : WEIGHTS + 1, None]
    split = np.isin(runs.schedule, SPLIT)
    back = np.where(split, 0.0, way[1] + way[2])
    return np.where(number > 0, way[0] + back, 0.0), np.where(split, 1.0, 2.0) * number.astype(np.float64)


def _stall(summed: Array, runs: Runs) -> None:
    """Add what the chip waits for the host: where issuing kernels takes longer than running them.

    together = (running^10 + issue^10)^(1/10)           the longer of the two, a little more where they are equal
    """
    running, issue = summed[BUSY], summed[ISSUE]
    most = np.maximum(np.maximum(running, issue), 1e-30)
    share = np.minimum(running, issue) / most
    share *= share
    share *= (share * share) ** 2
    stall = most * np.exp(np.log1p(share) / SMOOTH) - running
    if runs.blocking.any():
        stall = np.where(runs.blocking > 0, issue, stall)
    # what runs beside compute has the stalls to hide in, too
    summed[FORWARD : WEIGHTS + 1] *= 1 + stall / np.maximum(running, 1e-30)
    summed[BUSY] += stall
    if len(summed) > BY_CLASS:
        summed[BY_CLASS + CLASSES.index("kernel")] += stall


def _most(values: Array) -> Index:
    """Which rank of every row has the largest value; the first of equals."""
    return np.asarray((values >= values.max(0) * (1 - 1e-12)).argmax(0))


def _schedules(work: PathWork, runs: Runs, many: int, *, apart: bool) -> tuple[Array, Array]:
    """Seconds of the schedules, with sends as they are and, apart, with sends that take no time."""
    kinds = runs.schedule.astype(np.int64)
    send = np.broadcast_to(np.asarray(work.send_s, dtype=np.float64), many)
    sends = np.stack([np.zeros(many), send] if apart else [send])
    path, seconds = replace(work, send_s=sends), np.empty(sends.shape)
    for kind in np.unique(kinds):
        own = slice(None) if len(kinds) == 1 else np.flatnonzero(kinds == kind)
        seconds[:, own] = closed_form(
            NAMES[kind], stages=runs.pp, chunks=runs.chunks, microbatches=runs.microbatches, work=path,
            send_blocks=runs.overlap_pp == 0,
        )[:, own]  # fmt: skip
    return seconds[0], seconds[-1]


def step_of(pace: Pace, runs: Runs, rows: Rows) -> Steps:
    """The step of every plan from its row's pace: exchange, optimizer and waiting come on top."""
    many, columns = runs.microbatches, pace.columns
    parts = {"bubble": pace.bubble_s, "pp": pace.sends_s}
    parts["dp"] = exchange_seconds(runs, rows.links, rows.rates, pace.trained, columns[FORWARD : WEIGHTS + 1])
    parts["optimizer"] = optimizer_seconds(runs, rows.memory, rows.machines.host, *pace.trained)
    step = sum(parts.values(), start=many * columns[BUSY])
    parts |= {name: many * column for name, column in zip(TIMES, columns[BY_CLASS:], strict=False)}
    parts["waiting"] = step * (rows.rates["jitter"] * np.log2(runs.nodes)) + rows.rates["fixed"]
    return Steps(step_s=step + parts["waiting"], parts=parts)
