"""Turn programs into columns: every op of every section of every scenario, ready to be priced at once.

A slot is one phase of one section of one scenario; ops know their slot, slots know their row (the scenario). Stages are
rows of a sparse table that says how often each section stands in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.collectives import KINDS
from ridgeline.cost.rates import PEAKS
from ridgeline.ir.ops import Attend, Collective, MatMul, Op, Stream
from ridgeline.ir.program import Program, Section

Array = NDArray[np.float64]
Index = NDArray[np.int64]
PHASES = 4  # forward, backward input, backward weight, recompute
AXES = ("tp", "cp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Columns of ops by type (one array per field, in the order the builders append), and where they belong."""

    matmuls: Array  # m, n, k, groups, in_bytes, out_bytes
    matmul_peak: Index
    matmul_slot: Index
    attends: Array  # flops, bytes, head_dim, backward, flash, kernels, scan
    attend_slot: Index
    streams: Array  # bytes, kernels, waits
    stream_slot: Index
    collectives: Array  # kind, payload, ranks, stride, axis, spread
    collective_slot: Index
    slot_row: Index
    section_row: Index
    params: Array  # dense, expert, trained dense, trained expert: by section
    kept: Array  # bytes by section that could travel to the host between forward and backward
    stage_row: Index  # virtual stages, all rows
    held_stage: Index  # sparse counts: stage, section, how often
    held_section: Index
    held_count: Array
    rows: int


def batch_of(programs: Sequence[Program]) -> Batch:
    """The columns of several programs."""
    gathered = _Gathered()
    for row, program in enumerate(programs):
        gathered.add(row, program)
    return gathered.batch(len(programs))


class _Gathered:
    """Columns while they grow, one program after the other."""

    def __init__(self) -> None:
        self.ops: dict[type, tuple[list[tuple[float, ...]], list[int]]] = {
            kind: ([], []) for kind in (MatMul, Attend, Stream, Collective)
        }
        self.peaks: list[int] = []
        self.section_row: list[int] = []
        self.params: list[tuple[float, ...]] = []
        self.kept: list[float] = []
        self.stage_row: list[int] = []
        self.held: list[tuple[int, int, float]] = []

    def add(self, row: int, program: Program) -> None:
        """A program's sections, those that stand somewhere, and its stages."""
        used = [index for index, counts in enumerate(zip(*program.stages, strict=True)) if any(counts)]
        place = {index: len(self.section_row) + order for order, index in enumerate(used)}
        for index in used:
            self._section(row, program.sections[index])
        for counts in program.stages:
            stage = len(self.stage_row)
            self.held += [(stage, place[index], float(count)) for index, count in enumerate(counts) if count]
            self.stage_row.append(row)

    def _section(self, row: int, section: Section) -> None:
        slot = len(self.section_row) * PHASES
        self.section_row.append(row)
        dense, expert, trained = float(section.params), float(section.expert_params), float(section.trained)
        self.params.append((dense, expert, trained, expert if trained >= dense else 0.0))
        self.kept.append(float(section.kept.total - section.kept.logits))
        passes = (section.forward, section.backward_input, section.backward_weight, section.recompute)
        for phase, listed in enumerate(passes):
            for op in listed:
                values, slots = self.ops[type(op)]
                values.append(_values(op))
                slots.append(slot + phase)
                if isinstance(op, MatMul):
                    self.peaks.append(PEAKS.index(op.peak))

    def batch(self, rows: int) -> Batch:
        """The grown columns as arrays."""
        slots = {kind: np.array(places, dtype=np.int64) for kind, (_, places) in self.ops.items()}
        section_row = np.array(self.section_row, dtype=np.int64)
        stages, sections, counts = zip(*self.held, strict=True) if self.held else ((), (), ())
        return Batch(
            matmuls=_columns(self.ops[MatMul][0], 6),
            matmul_peak=np.array(self.peaks, dtype=np.int64),
            matmul_slot=slots[MatMul],
            attends=_columns(self.ops[Attend][0], 7),
            attend_slot=slots[Attend],
            streams=_columns(self.ops[Stream][0], 3),
            stream_slot=slots[Stream],
            collectives=_columns(self.ops[Collective][0], 6),
            collective_slot=slots[Collective],
            slot_row=np.repeat(section_row, PHASES),
            section_row=section_row,
            params=_columns(self.params, 4),
            kept=np.array(self.kept),
            stage_row=np.array(self.stage_row, dtype=np.int64),
            held_stage=np.array(stages, dtype=np.int64),
            held_section=np.array(sections, dtype=np.int64),
            held_count=np.array(counts),
            rows=rows,
        )


def _columns(values: Sequence[tuple[float, ...]], width: int) -> Array:
    return np.array(values, dtype=np.float64).reshape(-1, width).T.copy()


def _values(op: Op) -> tuple[float, ...]:
    match op:
        case MatMul():
            return (op.m, op.n, op.k, op.groups, op.in_bytes, op.out_bytes)  # type: ignore[return-value]
        case Attend():
            return (op.flops, op.stream_bytes, op.head_dim, op.backward, op.flash, op.kernels, op.scan)  # type: ignore[return-value]
        case Stream():
            return (op.stream_bytes, op.kernels, op.waits)  # type: ignore[return-value]
        case Collective():
            return (KINDS[op.kind], op.payload_bytes, op.ranks, op.stride, AXES.index(op.axis), op.spread)  # type: ignore[return-value]
        case _:
            assert_never(op)
