"""Turn priced sections into the time of a step: compute, exposed communication, bubble, optimizer, host.

    step = microbatches * busiest rank + bubble + exposed gradient exchange + optimizer + waiting for the slowest node

Everything is a column over scenarios, so that one scenario and a thousand run through the same lines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.collectives import ALL_GATHER, ALL_REDUCE, SEND, Links, collective_seconds
from ridgeline.cost.price import flash_seconds, padded_flops
from ridgeline.cost.rates import PEAKS, SHARE, WIDE, Machines, Rates
from ridgeline.sim.batch import AXES, PHASES, Batch
from ridgeline.sim.run import Runs

Array = NDArray[np.float64]
HIDDEN_COPY = np.array(0.95)  # share of copies to the host that can hide behind compute
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


def links_of(machines: Machines, rates: Rates) -> Links:
    """What the links sustain."""
    return Links(
        near=machines.near * rates["near"],
        far=machines.far * rates["far"],
        domain=machines.domain,
        near_step=rates["near_step"],
        far_step=rates["far_step"],
    )


def padded_of(batch: Batch, machines: Machines) -> Array:
    """Padded flops of every product: they depend on sizes and cores alone, so that a fit works them out once."""
    m, n, k, groups, _, _ = batch.matmuls
    return padded_flops(m, n, k, groups, machines.cores[batch.slot_row[batch.matmul_slot]])


def price_slots(batch: Batch, rows: Rows, padded: Array | None = None) -> tuple[Array, Array]:
    """Seconds by slot and class, and kernels by slot."""
    slots = len(batch.slot_row)
    table = np.zeros((slots, len(CLASSES)))
    kernels = np.zeros(slots)
    m, n, k, groups, size_in, size_out = batch.matmuls
    row = batch.slot_row[batch.matmul_slot]
    rate = rows.peak[row, batch.matmul_peak] * np.where(groups > 1, rows.rates["experts"][row], 1.0)
    compute = (padded if padded is not None else padded_of(batch, rows.machines)) / rate
    moved = ((m * k + k * n) * size_in + m * n * size_out) * groups / rows.memory[row]
    table[:, 0] = np.bincount(batch.matmul_slot, np.maximum(compute, moved), slots)
    kernels += np.bincount(batch.matmul_slot, minlength=slots)
    flops, size, dim, back, flash, count, scan = batch.attends
    row = batch.slot_row[batch.attend_slot]
    share = np.where(back > 0, rows.attention_back[row], rows.attention[row])
    peak = rows.machines.peak[row, WIDE]
    tiled = flash_seconds(flops, dim, back, peak * share, rows.machines.exponentials[row] * share)
    scanned = flops / (peak * rows.rates["scan"][row])
    through = size * np.where(flash > 0, 1.0, rows.rates["traffic"][row]) / rows.memory[row]
    dense = np.where(scan > 0, scanned, np.where(flash > 0, tiled, flops / (rows.peak[row, WIDE] * 0.5)))
    table[:, 1] = np.bincount(
        batch.attend_slot, np.where(flash > 0, np.maximum(dense, through), dense + through), slots
    )
    kernels += np.bincount(batch.attend_slot, count, slots)
    size, count, waits = batch.streams
    row = batch.slot_row[batch.stream_slot]
    table[:, 2] = np.bincount(batch.stream_slot, size * rows.rates["traffic"][row] / rows.memory[row], slots)
    kernels += np.bincount(batch.stream_slot, count, slots)
    pauses = np.bincount(batch.stream_slot, waits * rows.wait[row], slots)
    if batch.collectives.size:
        kind, payload, ranks, stride, axis, spread = batch.collectives
        links = rows.links.at(batch.slot_row[batch.collective_slot])
        spent = collective_seconds(kind.astype(np.int64), payload, ranks, stride, links, spread)
        for index in range(len(AXES)):
            mine = axis == index
            table[:, 4 + index] = np.bincount(batch.collective_slot[mine], spent[mine], slots)
    table[:, 3] = kernels * rows.kernel[batch.slot_row] + pauses
    return table, kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Step times by row, with parts that sum to them."""

    step_s: Array
    parts: dict[str, Array]


def step_seconds(batch: Batch, runs: Runs, rows: Rows, padded: Array | None = None) -> Steps:
    """The time of one step of every row."""
    table, kernels = price_slots(batch, rows, padded)
    table = table.reshape(-1, PHASES, len(CLASSES)).copy()
    srow = batch.section_row
    tp, cp, ep = 4, 5, 6
    table[:, :, tp] *= (1 - runs.overlap_tp * rows.rates["hidden_tp"])[srow][:, None]
    table[:, :, ep] *= (1 - runs.overlap_moe * rows.rates["hidden_moe"])[srow][:, None]
    table[:, :, cp] = np.maximum(0.15 * table[:, :, cp], table[:, :, cp] - table[:, :, 1])
    busy = table.sum(2)
    issue = (kernels * rows.host[batch.slot_row]).reshape(-1, PHASES).sum(1)
    sharded = _gather_exposed(batch, runs, rows, busy)
    away = batch.kept * runs.offload[srow] / rows.machines.host[srow]
    copies = exposed(2 * away, busy.sum(1), HIDDEN_COPY)  # out and back, beside whatever runs meanwhile
    forward = table[:, 0]
    backward = table[:, 1] + table[:, 2] + table[:, 3]
    ends = [busy[:, 0:1], busy[:, 1:2] + busy[:, 3:4], busy[:, 2:3]]  # forward, input gradient, weight gradient
    parts = np.concatenate([forward + backward, sharded[:, None], copies[:, None], issue[:, None], *ends], axis=1)
    firsts = np.searchsorted(batch.held_stage, np.arange(len(batch.stage_row)))
    stages = np.add.reduceat(parts[batch.held_section] * batch.held_count[:, None], firsts)
    params = np.add.reduceat(batch.params.T[batch.held_section] * batch.held_count[:, None], firsts)
    return _assembled(batch, runs, rows, stages, params)


def _gather_exposed(batch: Batch, runs: Runs, rows: Rows, busy: Array) -> Array:
    """Seconds by section that gathering and scattering sharded weights takes beyond what compute hides."""
    row = batch.section_row
    three = runs.shard[row] == 3
    if not three.any():
        return np.zeros(len(row))
    dense, expert = batch.params[:2]
    links = rows.links.at(row)

    def spent(size: Array) -> Array:
        whole = collective_seconds(ALL_GATHER, dense * size, runs.shard_degree[row], runs.tp[row], links)
        ranks = np.minimum(runs.edp[row], runs.shard_degree[row])
        return whole + collective_seconds(ALL_GATHER, expert * size, ranks, runs.expert_stride[row], links)

    gather, scatter = spent(runs.weight_bytes[row]), spent(runs.gradient_bytes[row])
    hidden = rows.rates["hidden_shard"][row]
    forward = exposed(gather, busy[:, 0], hidden)
    backward = exposed(gather + scatter, busy[:, 1:].sum(1), hidden)
    return np.where(three, forward + backward, 0.0)


def _assembled(batch: Batch, runs: Runs, rows: Rows, stages: Array, params: Array) -> Steps:
    """Row totals from virtual stages: the busiest rank paces, the others fill and drain."""
    starts = np.searchsorted(batch.stage_row, np.arange(batch.rows))
    order = np.arange(len(batch.stage_row)) - starts[batch.stage_row]
    stages_of = runs.pp[batch.stage_row]
    vee = np.minimum(order, 2 * stages_of - 1 - order)  # down and back up; otherwise round and round
    rank = np.where(runs.schedule[batch.stage_row] >= 2, vee, order % stages_of).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(runs.pp).astype(np.int64)[:-1]])
    key = offsets[batch.stage_row] + rank
    total_ranks = int(runs.pp.sum())
    ranks = _summed(stages, key, total_ranks)
    rank_row = np.repeat(np.arange(batch.rows), runs.pp.astype(np.int64))
    # the host issues kernels: where that takes longer than running them, the chip waits
    running, issue = ranks[:, : len(CLASSES) + 2].sum(1), ranks[:, len(CLASSES) + 2]
    together = (running**SMOOTH + issue**SMOOTH) ** (1 / SMOOTH)
    stall = np.where(runs.blocking[rank_row] > 0, issue, together - running)
    ranks[:, 3] += stall
    ranks[:, -3:] *= (1 + stall / running)[:, None]  # what runs beside compute has the stalls to hide in, too
    held = _summed(params, key, total_ranks)
    total = ranks[:, : len(CLASSES) + 2].sum(1)
    slowest = np.maximum.reduceat(total, offsets)
    first = np.flatnonzero(total >= slowest[rank_row] * (1 - 1e-12))
    pick = np.full(batch.rows, -1)
    pick[rank_row[first[::-1]]] = first[::-1]
    mean = np.add.reduceat(total, offsets) / runs.pp
    many = runs.microbatches
    send = collective_seconds(SEND, runs.boundary_bytes, runs.pp, batch_stride(runs), rows.links)
    sends = np.where(runs.pp > 1, 2 * send, 0.0)
    exposed_send = many * runs.chunks * sends * np.where(runs.overlap_pp > 0, 0.1, 1.0)
    bubble = _bubble(runs, mean, ranks[pick, -3:], sends) * rows.rates["bubble"]
    dense, expert = held[pick].T[2:]
    exchange = _exchange(runs, rows, dense, expert, ranks[pick])
    degree = np.where(runs.shard > 0, runs.shard_degree, 1.0)
    expert_degree = np.where(runs.shard > 0, np.minimum(runs.edp, runs.shard_degree), 1.0)
    states = (dense / degree + expert / expert_degree) * runs.optimizer_bytes
    optimizer = states * (1 - runs.offload_optimizer) / rows.memory
    optimizer += 2 * states * runs.offload_optimizer / rows.machines.host
    parts = {name: many * ranks[pick, index] for index, name in enumerate(CLASSES)}
    parts |= {"shard": many * ranks[pick, len(CLASSES)], "host": many * ranks[pick, len(CLASSES) + 1]}
    parts |= {"pp": exposed_send, "dp": exchange}
    parts |= {"bubble": bubble, "optimizer": optimizer}
    step = sum(parts.values(), start=np.zeros(batch.rows))
    parts["waiting"] = step * rows.rates["jitter"] * np.log2(runs.nodes) + rows.rates["fixed"]
    return Steps(step_s=step + parts["waiting"], parts=parts)


def _bubble(runs: Runs, mean: Array, phases: Array, sends: Array) -> Array:
    """Seconds a rank waits for others to fill and drain the pipeline.

        gpipe, 1f1b, interleaved    (p-1) (F + I + W) / v
        zero-bubble-h1              (p-1) (F + I - min(F, I, W))
        zbv                         (p-1) (f + max(0, i - w))              f, i, w = half of F, I, W: one of two chunks
        dualpipe-v                  (p-1) (f + 2 i - w)

    p = stages, v = chunks, F, I, W = forward, input and weight gradient of a rank for one microbatch. A send each way
    per stage is added. Uneven stages enter by their mean.
    """
    forward, inputs, weights = phases.T
    split = forward + inputs - np.minimum(np.minimum(forward, inputs), weights)
    vee = (forward + np.maximum(0.0, inputs - weights)) / 2
    dual = np.maximum(0.0, forward + 2 * inputs - weights) / 2
    each = np.choose(runs.schedule.astype(np.int64), [mean / runs.chunks, split, vee, dual])
    return (runs.pp - 1) * (each + sends)


def _summed(values: Array, key: NDArray[np.int64], size: int) -> Array:
    """Rows of `values` added up by key."""
    return np.stack([np.bincount(key, column, size) for column in values.T], axis=1)


def exposed(spent: Array, window: Array, hidden: Array) -> Array:
    """What is left of communication beside compute: a share is never hidden, the rest as far as the window is short."""
    return (1 - hidden) * spent + np.maximum(hidden * spent - window, 0.0)


def batch_stride(runs: Runs) -> Array:
    """Distance in rank numbers between pipeline neighbours."""
    return runs.tp * runs.replicas


def _exchange(runs: Runs, rows: Rows, dense: Array, expert: Array, busiest: Array) -> Array:
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
    forward, backward = busiest[:, -3], busiest[:, -2] + busiest[:, -1]
    hidden = rows.rates["hidden_dp"]

    def left(spent: Array, window: Array, overlapped: Array) -> Array:
        return np.where(overlapped > 0, exposed(spent, window, hidden), spent)

    none = left(plain, backward, runs.overlap_grad)
    one = left(reduce, backward, runs.overlap_grad) + left(gather, forward, runs.overlap_gather)
    three = left(partial, backward, runs.overlap_grad)
    return np.select([runs.shard == 0, runs.shard < 3], [none, one], three)
