"""Turn programs into columns: every op of every section, ready to be priced at once.

    op        belongs to a slot: one phase of one section
    section   belongs to a cell: a scenario, or one choice of degrees of a structure whose sizes are arrays

What ranks and virtual stages run are sums of sections: ``lines``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask, at
from ridgeline.core.dtype import PEAKS
from ridgeline.core.records import dataclass
from ridgeline.cost.collectives import ALL_REDUCE, KINDS
from ridgeline.cost.kernels import SERVED_TILES, TILES, padded_flops
from ridgeline.cost.machine import Machines
from ridgeline.cost.step_part import AXES
from ridgeline.ir.ops import Attend, Collective, MatMul, Num, Op, Stream
from ridgeline.ir.program import PHASES, Program, Section

Fields = Sequence[tuple[Num, ...]]  # of ops of one type
Table = Callable[[Fields, int], Array]
BLOCK = 8192  # products tiled at once, so that what is tried of them stays in the cache
_PLACE = {str(axis): place for place, axis in enumerate(AXES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """Columns of ops by type (one array per field, in the order the builders append), and where they belong."""

    matmuls: Array  # m, n, k, groups, in_bytes, out_bytes, alignment, launches, share, weight_bytes
    matmul_peak: Index
    matmul_slot: Index
    attends: Array  # flops, bytes, head_dim, backward, flash, kernels, scan, caches, sharing
    attend_slot: Index
    streams: Array  # bytes, kernels, waits, exponentials
    stream_slot: Index
    collectives: (
        Array  # kind, payload, ranks, stride, axis; token copies, groups they go to, of how many; beside, aligned
    )
    collective_slot: Index
    cell: Index  # of every section
    params: Array  # dense, expert, trained dense, trained expert: by section
    offloadable: Array  # bytes by section that can travel to the host between forward and backward
    cells: int

    @property
    def slot_cell(self) -> Index:
        """The cell of every slot."""
        return np.repeat(self.cell, PHASES)

    @property
    def is_all_reduce(self) -> Mask:
        """Which of the collectives are all-reduces."""
        return np.asarray(self.collectives[0] == ALL_REDUCE)

    @classmethod
    def of(cls, programs: Sequence[Program]) -> OpTable:
        """The columns of several programs, a cell each; their sections one after the other."""
        sections = [section for program in programs for section in program.sections]
        cells = np.repeat(np.arange(len(programs)), [len(program.sections) for program in programs])
        return _gather_columns(sections, 1, cells, _numbers)

    @classmethod
    def over(cls, sections: Sequence[Section], cells: int) -> OpTable:
        """Columns of sections whose sizes are numbers or arrays over cells; section s of cell c at s cells + c."""
        return _gather_columns(sections, cells, np.tile(np.arange(cells), len(sections)), columns_over(cells))

    def padded_flops(self, machines: Machines, *, served: bool = False) -> Array:
        """Padded flops of every product, which depend on sizes and cores alone; `served`: engines swap few rows."""
        tiled = SERVED_TILES if served else TILES
        cell, flops = self.slot_cell[self.matmul_slot], np.empty(len(self.matmul_slot))
        for start in range(0, len(flops), BLOCK):
            block = slice(start, start + BLOCK)
            m, n, k, groups = self.matmuls[:4, block]
            flops[block] = padded_flops(m, n, k, groups, at(machines.cores, cell[block]), tiled)
        return flops


def _gather_columns(sections: Sequence[Section], many: int, cell: Index, table: Table) -> OpTable:
    """The columns of sections that stand `many` times each."""
    ops: dict[type, tuple[list[tuple[Num, ...]], list[int]]] = {
        kind: ([], []) for kind in (MatMul, Attend, Stream, Collective)
    }
    peaks: list[int] = []
    for place, section in enumerate(sections):
        for phase, phase_ops in enumerate(section.passes):
            for op in phase_ops:
                values, slots = ops[type(op)]
                values.append(_values(op))
                slots.append(place * many * PHASES + phase)
                if isinstance(op, MatMul):
                    peaks.append(PEAKS.index(op.peak))
    copies = np.arange(many) * PHASES  # of an op, a section apart
    slots_of = {kind: (np.array(slots, np.int64)[:, None] + copies).ravel() for kind, (_, slots) in ops.items()}
    params, offloadable = section_columns(sections, table)
    return OpTable(
        matmuls=table(ops[MatMul][0], 10),
        matmul_peak=np.repeat(np.array(peaks, dtype=np.int64), many),
        matmul_slot=slots_of[MatMul],
        attends=table(ops[Attend][0], 9),
        attend_slot=slots_of[Attend],
        streams=table(ops[Stream][0], 4),
        stream_slot=slots_of[Stream],
        collectives=table(ops[Collective][0], 10),
        collective_slot=slots_of[Collective],
        cell=cell,
        params=params,
        offloadable=offloadable,
        cells=int(cell.max(initial=-1)) + 1,
    )


def section_columns(sections: Sequence[Section], table: Table) -> tuple[Array, Array]:
    """Parameters and bytes that can travel to the host, by section, as `OpTable` has them."""
    dense, expert, trained = table([(item.params, item.expert_params, item.trained) for item in sections], 3)
    params = np.stack([dense, expert, trained, np.where(trained >= dense, expert, 0.0)])  # where all is trained
    return params, table([(item.offloadable,) for item in sections], 1)[0]


def columns_over(cells: int) -> Table:
    """The maker of columns for sizes that are numbers or arrays over cells."""
    return partial(_columns, many=cells)


def _numbers(values: Fields, width: int) -> Array:
    """One row per field, for ops whose sizes are numbers."""
    return np.array(values, dtype=np.float64).reshape(-1, width).T.copy()


def _columns(values: Fields, width: int, many: int) -> Array:
    """One row per field, for ops whose sizes are numbers or arrays; the entries of each op stand side by side."""
    table = np.empty((width, len(values), many))
    for place, fields in enumerate(values):
        for row, value in enumerate(fields):
            table[row, place] = value
    return table.reshape(width, -1)


def _values(op: Op) -> tuple[Num, ...]:
    match op:
        case MatMul():
            sizes = (op.m, op.n, op.k, op.groups, op.in_bytes, op.out_bytes)
            return (*sizes, op.alignment, op.launches, op.share, op.weight_bytes)
        case Attend():
            kind = (op.backward, op.flash, op.kernels, op.scan)
            return (op.flops, op.stream_bytes, op.head_dim, *kind, op.caches, op.sharing)
        case Stream():
            return (op.stream_bytes, op.kernels, op.waits, op.exponentials)
        case Collective():
            routing = (op.token_copies, op.token_groups, op.routing_groups)
            place = (op.ranks, op.stride, _PLACE[op.axis])
            return (KINDS[op.kind], op.payload_bytes, *place, *routing, op.beside, op.aligned)
        case _:
            assert_never(op)
