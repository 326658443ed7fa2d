"""Turn ops into seconds at the rates their rows sustain: op by op with what bounds each, and summed up by section.

MatMul       max(padded flops / rate, operands / memory)            compute or memory
             where a profile reaches: roof x measured efficiency, as for flash attention
Attend       flash: max(kernel, operands / memory); unfused: one after the other
Stream       bytes x traffic / memory                               memory
Collective   the fastest algorithm on its links                     network
HostCopy     bytes / host link                                      network

Turn a priced table of ops back into the ops: each with its seconds, what bounds it, and what the price rests on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Protocol, assert_never

import numpy as np

from ridgeline.comm.closed_form import Links, Routing
from ridgeline.core.arrays import Array, Index, Mask, at
from ridgeline.core.dtype import PEAKS
from ridgeline.core.evidence import Evidence
from ridgeline.core.records import dataclass
from ridgeline.cost.calibration import Calibration
from ridgeline.cost.collectives import KINDS, collective_seconds, links_of
from ridgeline.cost.kernels import flash_seconds, unaligned_rate
from ridgeline.cost.machine import Machines, ParameterColumns, product_parameter
from ridgeline.cost.op_table import OpTable, columns_over, section_columns
from ridgeline.cost.profile_prices import MeasuredOps
from ridgeline.cost.step_part import AXES, COMPUTE, SECTION_PARTS, Bound
from ridgeline.ir.kernel import product_bytes
from ridgeline.ir.ops import ALIGNED, Attend, Collective, MatMul, Op, Stream
from ridgeline.ir.program import PASSES, PHASES, Section
from ridgeline.plan.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The price of one op: seconds alone on its stream, what limits it, and how well that is known."""

    seconds: float
    bound: Bound
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class OpEstimate:
    """One op of one pass of a section, priced for one microbatch."""

    section: str
    phase: str
    op: Op
    estimate: Estimate


Kernels = Iterator[tuple[float, bool, bool]]
"""Seconds, whether memory limits it, whether it was measured."""


def _kernel_prices(seconds: Array, memory: Mask, fitted: Array | None) -> Kernels:
    is_timed = [False] * len(seconds) if fitted is None else (fitted == 0).tolist()
    return zip(seconds.tolist(), memory.tolist(), is_timed, strict=True)


def _next(
    op: Op, products: Kernels, attention: Kernels, streams: Iterator[float], collectives: Iterator[float]
) -> tuple[float, Bound, bool]:
    match op:
        case MatMul():
            seconds, memory, is_timed = next(products)
            return seconds, "memory" if memory else "compute", is_timed
        case Attend():
            seconds, memory, is_timed = next(attention)
            return seconds, "memory" if memory else "compute", is_timed
        case Stream():
            return next(streams), "memory", False
        case Collective():
            return next(collectives), "network", False
        case _:
            assert_never(op)


# of a peak, however little power its flops take: the best share that any chip's large products were fitted at (0.92),
# and what tiles, their prologues and write-backs leave of it at best
REACHABLE = 0.95
UNFUSED = 0.5  # of a product's rate, for score matrices that go through memory
TINY = 1e-30  # seconds


class Launched(Protocol):
    """How work reaches the chips, by row.

    graph       share of kernels replayed from a CUDA graph
    xla         1 where the step is one XLA program
    attention   the peak that attention runs at: place in `PEAKS`
    """

    @property
    def graph(self) -> Array: ...
    @property
    def xla(self) -> Array: ...
    @property
    def attention(self) -> Array: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _BareLaunches:
    graph: Array
    xla: Array
    attention: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedRates:
    """What chips sustain, by row: data sheets times parameters, with what graphs and engines change."""

    machines: Machines
    rates: ParameterColumns
    peak: Array  # flops/s by peak key
    attention_peak: Array  # flops/s that attention's format has on paper
    unfused: Array  # flops/s of attention that is not one kernel
    attention: Array
    attention_back: Array
    memory: Array
    update: Array  # bytes/s of memory that an optimizer gets
    traffic_s: Array  # seconds of a byte that an op moves, with what the software moves beyond it
    links: Links
    kernel: Array
    host: Array
    wait: Array

    @classmethod
    def of(cls, machines: Machines, rates: ParameterColumns, *, plans: Launched) -> SustainedRates:
        """What the chips sustain under the engines that run on them."""
        graph, xla, attention_peak = plans.graph, plans.xla, plans.attention.astype(np.int64)
        rows = np.arange(len(machines.peak))
        share = np.stack([rates[product_parameter(key)] for key in PEAKS], axis=1)
        share = share * machines.density ** -rates["power"][:, None]  # clocks fall where flops are dense in power
        peak = machines.peak * np.minimum(share, REACHABLE)
        return cls(
            machines=machines,
            rates=rates,
            peak=peak,
            attention_peak=machines.peak[rows, attention_peak],
            unfused=peak[rows, attention_peak] * UNFUSED,
            attention=np.minimum(rates["attention"], REACHABLE),
            attention_back=np.minimum(rates["attention"] * rates["attention_back"], REACHABLE),
            memory=machines.memory * rates["memory"],
            update=machines.memory * rates.update,
            traffic_s=np.maximum(rates["traffic"] / rates["memory"], 1.0) / machines.memory,
            links=links_of(machines, rates),
            kernel=rates["kernel"] * (1 - 0.7 * graph),
            host=rates["host"] * machines.crowding * (1 - 0.9 * graph) * (1 - 0.9 * xla),
            wait=rates["wait"] * (1 - graph),
        )

    @classmethod
    def bare(cls, machines: Machines, rates: ParameterColumns, attention: Array) -> SustainedRates:
        """The same of kernels that are launched by themselves, without a graph or a compiled program.

        attention   the peak that attention runs at: place in `PEAKS`
        """
        none = np.zeros(len(attention))
        return cls.of(machines, rates, plans=_BareLaunches(graph=none, xla=none, attention=attention))

    @classmethod
    def of_scenario(cls, calibration: Calibration, scenario: Scenario, plans: Launched) -> SustainedRates:
        """What a scenario's chips sustain: one row."""
        return cls.of(Machines.of([scenario.system]), ParameterColumns.of(calibration, [scenario]), plans=plans)

    def price_ops(self, table: OpTable, padded: Array | None = None, measured: MeasuredOps | None = None) -> OpPrices:
        """Every op priced; `padded` where the padded flops of products are at hand, `measured` where a profile is."""
        cell = table.slot_cell
        matmul_s, matmul_bound = _matmuls(table, self, cell, padded)
        attend_s, attend_bound = _attends(table, self, cell)
        if measured is not None:
            experts = np.where(table.matmuls[3] > 1, at(self.rates["experts"], cell[table.matmul_slot]), 1.0)
            matmul_s = _toward(measured.matmul_s / experts, matmul_s, measured.matmul_fitted)
            attend_s = _toward(measured.attend_s, attend_s, measured.attend_fitted)
        cells = cell[table.stream_slot]
        return OpPrices(
            matmul_s=matmul_s,
            matmul_memory_bound=matmul_bound,
            attend_s=attend_s,
            attend_memory_bound=attend_bound,
            stream_s=np.maximum(
                table.streams[0] * at(self.traffic_s, cells), table.streams[3] / at(self.machines.exponentials, cells)
            ),
            collective_s=_collectives(table, self.links.at(cell[table.collective_slot])),
        )

    def price_sections(
        self, table: OpTable, padded: Array | None = None, measured: MeasuredOps | None = None
    ) -> SectionPrices:
        """Every op priced, summed up by section, phase and part."""
        return self.sum_sections(table, self.price_ops(table, padded, measured))

    def sum_sections(self, table: OpTable, prices: OpPrices) -> SectionPrices:
        """Priced ops summed up by section, phase and part."""
        cell = table.slot_cell
        slots = len(cell)
        seconds = np.zeros((len(SECTION_PARTS), slots))
        seconds[0] = np.bincount(table.matmul_slot, prices.matmul_s, slots)
        seconds[1] = np.bincount(table.attend_slot, prices.attend_s, slots)
        seconds[2] = np.bincount(table.stream_slot, prices.stream_s, slots)
        pauses = np.bincount(table.stream_slot, table.streams[2] * at(self.wait, cell[table.stream_slot]), slots)
        kernels = np.bincount(table.matmul_slot, table.matmuls[7], slots)
        kernels += np.bincount(table.stream_slot, table.streams[1], slots)
        kernels += np.bincount(table.attend_slot, table.attends[5], slots)
        if table.collectives.size:
            axis = table.collectives[4]
            for place in range(len(AXES)):
                on_axis = axis == place
                seconds[len(COMPUTE) + place] = np.bincount(
                    table.collective_slot[on_axis], prices.collective_s[on_axis], slots
                )
        seconds[3] = kernels * at(self.kernel, cell) + pauses
        beside_s = np.zeros(slots)
        if table.collectives.size:
            beside_s += np.bincount(table.collective_slot, prices.collective_s * table.collectives[8], slots)
        forward, inputs, weights, recompute = (kernels * at(self.host, cell)).reshape(-1, PHASES).T
        return SectionPrices(
            cell=table.cell,
            params=table.params,
            offloadable=table.offloadable,
            seconds=np.ascontiguousarray(seconds.reshape(len(SECTION_PARTS), -1, PHASES).swapaxes(1, 2)),
            issue_s=np.stack([forward, inputs + recompute, weights]),
            beside_s=beside_s.reshape(-1, PHASES).T,
        )

    def price_shared_ops(self, structures: Sequence[Sequence[Section]], cells: int) -> list[SectionPrices]:
        """Sections of structures with sizes over cells at the rates of one machine; an op is priced once, however many
        sections and phases it is in.

        Ways to recompute run the same ops again: structures that differ in nothing else share all of them.
        """
        sections = [section for structure in structures for section in structure]
        passes: list[tuple[Op, ...]] = [ops for section in sections for ops in section.passes]
        distinct = {id(op): op for ops in passes for op in ops}
        once = Section(key=sections[0].key, forward=tuple(distinct.values()), backward_input=(), backward_weight=())
        table = OpTable.over([once], cells)
        prices = self.price_ops(table)
        repeats = _op_repeats(passes, distinct)

        def summed(kind: type, values: Array) -> Array:
            """Values of the ops of a kind, added up by slot: slots x cells."""
            return repeats[kind] @ values.reshape(-1, cells) if kind in repeats else np.zeros((len(passes), cells))

        seconds = np.empty((len(SECTION_PARTS), len(passes), cells))
        seconds[0] = summed(MatMul, prices.matmul_s)
        seconds[1] = summed(Attend, prices.attend_s)
        seconds[2] = summed(Stream, prices.stream_s)
        kernels = summed(MatMul, table.matmuls[7]) + summed(Stream, table.streams[1]) + summed(Attend, table.attends[5])
        seconds[3] = kernels * self.kernel + summed(Stream, table.streams[2] * self.wait)
        for place in range(len(AXES)):
            on_axis = np.where(table.collectives[4] == place, prices.collective_s, 0.0)
            seconds[len(COMPUTE) + place] = summed(Collective, on_axis)
        beside_s = summed(Collective, prices.collective_s * table.collectives[8])
        forward, inputs, weights, recompute = (kernels * self.host).reshape(-1, PHASES, cells).swapaxes(0, 1)
        params, offloadable = section_columns(sections, columns_over(cells))
        prices_of_all = SectionPrices(
            cell=np.tile(np.arange(cells), len(sections)),
            params=params,
            offloadable=offloadable,
            seconds=seconds.reshape(len(SECTION_PARTS), -1, PHASES, cells).swapaxes(1, 2).reshape(*_FLAT),
            issue_s=np.stack([forward, inputs + recompute, weights]).reshape(3, -1),
            beside_s=beside_s.reshape(-1, PHASES, cells).swapaxes(0, 1).reshape(PHASES, -1),
        )
        ends = np.cumsum([len(structure) * cells for structure in structures]).tolist()
        return [prices_of_all.sections(slice(start, end)) for start, end in pairwise([0, *ends])]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPrices:
    """Seconds of every op of a table, in its order, and which products and attention kernels memory limits."""

    matmul_s: Array
    matmul_memory_bound: Mask
    attend_s: Array
    attend_memory_bound: Mask
    stream_s: Array
    collective_s: Array

    def estimates(
        self, sections: Sequence[Section], evidence: Evidence, measured: MeasuredOps | None = None
    ) -> Iterator[OpEstimate]:
        """Every op of sections whose table was priced as one cell, in the order of its section and pass.

        evidence   of what no profile prices
        """
        fitted_shares = (None, None) if measured is None else (measured.matmul_fitted, measured.attend_fitted)
        products = _kernel_prices(self.matmul_s, self.matmul_memory_bound, fitted_shares[0])
        attention = _kernel_prices(self.attend_s, self.attend_memory_bound, fitted_shares[1])
        streams, collectives = iter(self.stream_s.tolist()), iter(self.collective_s.tolist())
        for section in sections:
            for phase, ops in zip(PASSES, section.passes, strict=True):
                for op in ops:
                    seconds, bound, is_timed = _next(op, products, attention, streams, collectives)
                    estimate = Estimate(
                        seconds=seconds, bound=bound, evidence=Evidence.MEASURED if is_timed else evidence
                    )
                    yield OpEstimate(section=section.name, phase=phase.replace("_", "-"), op=op, estimate=estimate)


def _toward(measured_s: Array, fitted_s: Array, share: Array) -> Array:
    """Measured seconds, going over to the fitted ones by a share of their logarithm's distance."""
    log_ratio = np.log(np.maximum(fitted_s, TINY)) - np.log(measured_s)
    return np.where(share >= 1, fitted_s, measured_s * np.exp(share * log_ratio))


def collective_op_seconds(ops: Sequence[Collective], links: Links) -> Array:
    """Collectives that run one after the other, their sizes columns beside the links."""
    total: Array = np.zeros(1)
    for op in ops:
        sizes = (op.payload_bytes, op.ranks, op.stride)
        payload, ranks, stride = (np.asarray(size, dtype=np.float64) for size in sizes)
        routing = Routing(copies=op.token_copies, chosen=op.token_groups, groups=op.routing_groups)
        total = total + collective_seconds(KINDS[op.kind], payload, ranks, stride, links, routing)
    return total


def _matmuls(table: OpTable, rates: SustainedRates, cell: Index, padded: Array | None) -> tuple[Array, Mask]:
    m, n, k, groups, size_in, size_out, alignment, _, share, weights = table.matmuls
    cells = cell[table.matmul_slot]
    peak = rates.peak[0, table.matmul_peak] if len(rates.peak) == 1 else rates.peak[cells, table.matmul_peak]
    rate = peak * share * np.where(groups > 1, at(rates.rates["experts"], cells), 1.0)
    if (alignment < ALIGNED).any():
        rate = np.minimum(rate, unaligned_rate(alignment, at(rates.machines.cores, cells)))
    compute = (padded if padded is not None else table.padded_flops(rates.machines)) / rate
    memory_s = product_bytes((m, n, k), groups, size_in, size_out, weights) / at(rates.memory, cells)
    return np.maximum(compute, memory_s), memory_s > compute


def _attends(table: OpTable, rates: SustainedRates, cell: Index) -> tuple[Array, Mask]:
    """A flash kernel hides its traffic behind its products; unfused attention does one after the other."""
    flops, size, dim, back, flash, _, scan, _, _ = table.attends
    cells = cell[table.attend_slot]
    wide = at(rates.attention_peak, cells)
    share = np.where(back > 0, at(rates.attention_back, cells), at(rates.attention, cells))
    tile_s = flash_seconds(flops, dim, back, wide * share, at(rates.machines.exponentials, cells) * share)
    scan_s = flops / (wide * at(rates.rates["scan"], cells))
    through = size * np.where(flash > 0, 1 / at(rates.memory, cells), at(rates.traffic_s, cells))
    dense = np.where(scan > 0, scan_s, np.where(flash > 0, tile_s, flops / at(rates.unfused, cells)))
    return np.where(flash > 0, np.maximum(dense, through), dense + through), through > dense


def _collectives(table: OpTable, links: Links) -> Array:
    if not table.collectives.size:
        return np.zeros(0)
    kind, payload, ranks, stride, _, copies, chosen, groups, _, aligned = table.collectives
    routing = Routing(copies=copies, chosen=chosen, groups=groups)
    seconds = collective_seconds(kind.astype(np.int64), payload, ranks, stride, links, routing)
    meeting_s: Array = aligned * links.skew * np.log2(ranks)  # whoever has just met does not wait again
    return seconds - meeting_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionPrices:
    """Priced sections.

    seconds       by part of `SECTION_PARTS`, phase and section, nothing overlapped yet
    issue_s       the host takes to issue the kernels of forward, input gradient (with recompute) and weight gradient
    beside_s      tensor-parallel communication that software can run beside products, by phase and section
    cell, params, offloadable   as in `OpTable`
    """

    cell: Index
    params: Array
    offloadable: Array
    seconds: Array
    issue_s: Array
    beside_s: Array

    def sections(self, places: slice) -> SectionPrices:
        """Some of the sections."""
        return SectionPrices(**{item.name: getattr(self, item.name)[..., places] for item in fields(self)})


_FLAT = (len(SECTION_PARTS), PHASES, -1)


def _op_repeats(passes: Sequence[Sequence[Op]], distinct: Mapping[int, Op]) -> dict[type, Array]:
    """How often each op of a kind stands in each pass: passes x ops, in the order of the distinct ones."""
    row: dict[int, int] = {}
    rows: Counter[type] = Counter()
    for place, op in distinct.items():
        row[place] = rows[type(op)]
        rows[type(op)] += 1
    repeats = {kind: np.zeros((len(passes), number)) for kind, number in rows.items()}
    for slot, ops in enumerate(passes):
        for op in ops:
            repeats[type(op)][slot, row[id(op)]] += 1
    return repeats
