"""Turn columns of ops into seconds by section, phase and class: every op priced at the rates its row sustains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.collectives.links import Links, links_of
from ridgeline.cost.collectives.price import collective_seconds
from ridgeline.cost.kernels import flash_seconds, padded_flops
from ridgeline.cost.machine import PEAKS, SHARE, WIDE, Machines, ParameterColumns, at
from ridgeline.cost.op_table import AXES, PHASES, OpTable

Array = NDArray[np.float64]
Index = NDArray[np.int64]
BLOCK = 8192  # products tiled at once, so that what is tried of them stays in the cache
CLASSES = ("matmul", "attention", "memory", "kernel", *AXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedRates:
    """Sustained rates by row: data sheets times parameters, with what graphs and engines change."""

    machines: Machines
    rates: ParameterColumns
    peak: Array  # flops/s by peak key
    attention: Array
    attention_back: Array
    memory: Array
    links: Links
    kernel: Array
    host: Array
    wait: Array


def sustained_rates(machines: Machines, rates: ParameterColumns, *, graph: Array, xla: Array) -> SustainedRates:
    """What the chips sustain under the engines that run on them.

    graph, xla   share of kernels replayed from a CUDA graph; 1 where the step is one XLA program
    """
    share = np.stack([rates[SHARE.get(key, "matmul_wide")] for key in PEAKS], axis=1)
    share *= (machines.density ** -rates["power"])[:, None]  # clocks fall where flops are dense in power
    return SustainedRates(
        machines=machines,
        rates=rates,
        peak=machines.peak * share,
        attention=rates["attention"],
        attention_back=rates["attention"] * rates["attention_back"],
        memory=machines.memory * rates["memory"],
        links=links_of(machines, rates),
        kernel=rates["kernel"] * (1 - 0.7 * graph),
        host=rates["host"] * (1 - 0.9 * graph) * (1 - 0.9 * xla),
        wait=rates["wait"] * (1 - graph),
    )


def padded_products(batch: OpTable, machines: Machines) -> Array:
    """Padded flops of every product: they depend on sizes and cores alone, so that a fit works them out once."""
    cell, found = batch.slot_cell[batch.matmul_slot], np.empty(len(batch.matmul_slot))
    for start in range(0, len(found), BLOCK):
        own = slice(start, start + BLOCK)
        m, n, k, groups = batch.matmuls[:4, own]
        found[own] = padded_flops(m, n, k, groups, at(machines.cores, cell[own]))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionPrices:
    """Priced sections.

    seconds   by class, phase and section, nothing hidden yet
    issue_s   the host takes to issue its kernels
    cell, params, away   as in `OpTable`
    """

    cell: Index
    params: Array
    away: Array
    seconds: Array
    issue_s: Array


def price_sections(batch: OpTable, rows: SustainedRates, padded: Array | None = None) -> SectionPrices:
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
    return SectionPrices(
        cell=batch.cell,
        params=batch.params,
        away=batch.away,
        seconds=np.ascontiguousarray(table.reshape(len(CLASSES), -1, PHASES).swapaxes(1, 2)),
        issue_s=(kernels * at(rows.host, cell)).reshape(-1, PHASES).sum(1),
    )


def _matmuls(batch: OpTable, rows: SustainedRates, cell: Index, padded: Array | None) -> Array:
    m, n, k, groups, size_in, size_out = batch.matmuls
    own = cell[batch.matmul_slot]
    peak = rows.peak[0, batch.matmul_peak] if len(rows.peak) == 1 else rows.peak[own, batch.matmul_peak]
    rate = peak * np.where(groups > 1, at(rows.rates["experts"], own), 1.0)
    compute = (padded if padded is not None else padded_products(batch, rows.machines)) / rate
    moved = ((m * k + k * n) * size_in + m * n * size_out) * groups / at(rows.memory, own)
    slower: Array = np.maximum(compute, moved)
    return slower


def _attends(batch: OpTable, rows: SustainedRates, cell: Index) -> Array:
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
