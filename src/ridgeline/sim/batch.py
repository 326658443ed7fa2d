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

from ridgeline.cost.rates import PEAKS
from ridgeline.ir.ops import Attend, Collective, MatMul, Op, Stream
from ridgeline.ir.program import Program

Array = NDArray[np.float64]
Index = NDArray[np.int64]
PHASES = 4  # forward, backward input, backward weight, recompute
KINDS = {"all-reduce": 0, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 2, "send": 3}
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
    kept: Array  # by section
    stage_row: Index  # virtual stages, all rows
    held_stage: Index  # sparse counts: stage, section, how often
    held_section: Index
    held_count: Array
    rows: int


def batch_of(programs: Sequence[Program]) -> Batch:
    """The columns of several programs."""
    ops: dict[type, tuple[list[tuple[float, ...]], list[int]]] = {
        kind: ([], []) for kind in (MatMul, Attend, Stream, Collective)
    }
    peaks: list[int] = []
    section_row: list[int] = []
    params: list[tuple[float, ...]] = []
    kept: list[float] = []
    stage_row: list[int] = []
    held: list[tuple[int, int, float]] = []
    for row, program in enumerate(programs):
        used = [index for index, counts in enumerate(zip(*program.stages, strict=True)) if any(counts)]
        place = {index: len(section_row) + order for order, index in enumerate(used)}
        for section in (program.sections[index] for index in used):
            slot = len(section_row) * PHASES
            section_row.append(row)
            trained = float(section.trained)
            params.append(
                (
                    float(section.params),
                    float(section.expert_params),
                    trained,
                    float(section.expert_params) * (trained >= float(section.params)),
                )
            )
            kept.append(float(section.kept.total))
            passes = (section.forward, section.backward_input, section.backward_weight, section.recompute)
            for phase, listed in enumerate(passes):
                for op in listed:
                    values, slots = ops[type(op)]
                    values.append(_values(op))
                    slots.append(slot + phase)
                    if isinstance(op, MatMul):
                        peaks.append(PEAKS.index(op.peak))
        for counts in program.stages:
            held.extend((len(stage_row), place[index], float(count)) for index, count in enumerate(counts) if count)
            stage_row.append(row)
    return Batch(
        matmuls=_columns(ops[MatMul][0], 6),
        matmul_peak=np.array(peaks, dtype=np.int64),
        matmul_slot=np.array(ops[MatMul][1], dtype=np.int64),
        attends=_columns(ops[Attend][0], 7),
        attend_slot=np.array(ops[Attend][1], dtype=np.int64),
        streams=_columns(ops[Stream][0], 3),
        stream_slot=np.array(ops[Stream][1], dtype=np.int64),
        collectives=_columns(ops[Collective][0], 6),
        collective_slot=np.array(ops[Collective][1], dtype=np.int64),
        slot_row=np.repeat(np.array(section_row, dtype=np.int64), PHASES),
        section_row=np.array(section_row, dtype=np.int64),
        params=_columns(params, 4),
        kept=np.array(kept),
        stage_row=np.array(stage_row, dtype=np.int64),
        held_stage=np.array([entry[0] for entry in held], dtype=np.int64),
        held_section=np.array([entry[1] for entry in held], dtype=np.int64),
        held_count=np.array([entry[2] for entry in held]),
        rows=len(programs),
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
