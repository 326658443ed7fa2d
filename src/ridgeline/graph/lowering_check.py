"""Hold the flops of a recorded graph against what `lowering` says of the same model, part by part.

Products count two flops a multiply-add. Attention counts the pairs that a mask leaves: lowering adds masked parts of
tiles, which kernels compute and no graph shows, so they are taken off before both are compared. Work bound by memory
has no flops here. A row is one kind of op, in one pass, of one distinct layer or of the ends of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ridgeline.core.documents import JsonObject
from ridgeline.core.records import dataclass
from ridgeline.hardware.load import system
from ridgeline.ir.kernel import FLASH_BACKWARD
from ridgeline.ir.op_graph import GraphOp, OpGraph
from ridgeline.ir.ops import Attend, MatMul
from ridgeline.ir.program import Program, Section, SectionRole
from ridgeline.lowering.plan_columns import plan_columns
from ridgeline.lowering.program import lower
from ridgeline.models.facts import mean_visible
from ridgeline.models.spec import Attention, LatentAttention, ModelSpec
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import scenario as assemble

TOLERANCE = 0.005  # within which flops agree
NEUTRAL = "1xh100-sxm"  # a system whose software has flash attention; flops of one chip depend on none
PASSES = ("forward", "backward")
ENDS = "ends"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopRow:
    """Flops of a step: one kind of op in one pass of one part of the model."""

    part: str
    kind: str
    phase: str
    recorded_flops: float
    lowered_flops: float

    JSON = "part kind phase recorded=recorded_flops lowered=lowered_flops share agrees"

    @property
    def share(self) -> float:
        """recorded / lowered - 1; 1 where lowering has none."""
        if self.lowered_flops == 0:
            return float(self.recorded_flops != 0)
        return self.recorded_flops / self.lowered_flops - 1

    @property
    def agrees(self) -> bool:
        """Whether both count the same."""
        return abs(self.share) <= TOLERANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweringCheck:
    """Rows of both, and how far they lie apart together."""

    rows: tuple[FlopRow, ...]

    JSON = "recorded=recorded_flops lowered=lowered_flops share agrees rows"

    @property
    def recorded_flops(self) -> float:
        """Flops that the graph has."""
        return sum(row.recorded_flops for row in self.rows)

    @property
    def lowered_flops(self) -> float:
        """Flops that lowering has."""
        return sum(row.lowered_flops for row in self.rows)

    @property
    def share(self) -> float:
        """recorded / lowered - 1."""
        return self.recorded_flops / self.lowered_flops - 1 if self.lowered_flops else float(self.recorded_flops != 0)

    @property
    def agrees(self) -> bool:
        """Whether both count the same, all parts together."""
        return abs(self.share) <= TOLERANCE

    @property
    def differences(self) -> tuple[FlopRow, ...]:
        """Rows that differ, most flops first."""
        distant_rows = [row for row in self.rows if not row.agrees]
        return tuple(sorted(distant_rows, key=lambda row: -abs(row.recorded_flops - row.lowered_flops)))


def training_scenario(model: ModelSpec, seq: int, batch: int) -> Scenario:
    """A step of a model on one chip, nothing split, recomputed or joined."""
    workload: JsonObject = {"kind": "train", "seq": seq, "global_batch": batch}
    plan: JsonObject = {"microbatch": batch, "recompute": "none"}
    built = assemble({"model": "llama3-8b", "system": system(NEUTRAL).name, "workload": workload, "plan": plan}, ())
    return replace(built, model=model)


def check_lowering(graph: OpGraph, model: ModelSpec, *, seq: int, batch: int) -> LoweringCheck:
    """The flops of a graph beside those that lowering gives the same step."""
    built = training_scenario(model, seq, batch)
    program = lower(built, plan_columns([built]), tensors=False)
    lowered_flops = _program_flops(program, model, (seq, batch))
    recorded_flops = _graph_flops(
        graph, [part for part in dict.fromkeys(key[0] for key in lowered_flops) if part != ENDS]
    )
    keys = sorted(dict.fromkeys((*lowered_flops, *recorded_flops)))
    return LoweringCheck(
        rows=tuple(
            FlopRow(
                part=part, kind=kind, phase=phase, recorded_flops=recorded_flops.get((part, kind, phase), 0.0),
                lowered_flops=lowered_flops.get((part, kind, phase), 0.0),
            )
            for part, kind, phase in keys
        )
    )  # fmt: skip


Key = tuple[str, str, str]
"""Part of the model, kind of op, pass."""


def _program_flops(program: Program, model: ModelSpec, tokens: tuple[int, int]) -> dict[Key, float]:
    runs = np.array(program.stages).sum(0)
    table: dict[Key, float] = {}
    for section, times in zip(program.sections, runs, strict=True):
        part = f"layer {section.key.block}" if section.role is SectionRole.BLOCK else ENDS
        for phase, kind, flops in _section_flops(section, model, tokens):
            key = (part, kind, phase)
            table[key] = table.get(key, 0.0) + flops * float(times)
    return {key: flops for key, flops in table.items() if flops}


def _section_flops(section: Section, model: ModelSpec, tokens: tuple[int, int]) -> Iterator[tuple[str, str, float]]:
    passes = zip(("forward", "backward", "backward"), section.passes[:3], strict=True)
    for phase, ops in passes:
        for op in ops:
            if isinstance(op, MatMul):
                yield phase, "product", float(np.asarray(op.flops).max())
            elif isinstance(op, Attend):
                yield phase, "attention", _visible_flops(op, section, model, tokens)


def _visible_flops(op: Attend, section: Section, model: ModelSpec, tokens: tuple[int, int]) -> float:
    """Flops of the pairs that an attention's mask leaves, heads as wide as they are: kernels pad both."""
    seq, batch = tokens
    mixer = model.blocks[section.key.block].mixer if section.role is SectionRole.BLOCK else None
    if isinstance(mixer, Attention):
        widths, mask_window = mixer.head_dim + (mixer.v_head_dim or mixer.head_dim), (mixer.window, mixer.chunked)
    elif isinstance(mixer, LatentAttention):
        widths, mask_window = mixer.nope_dim + mixer.rope_dim + mixer.v_dim, (0, False)
    else:
        return float(np.asarray(op.flops).max())
    pairs = mixer.heads * batch * seq * mean_visible(seq, *mask_window, model.causal)
    return 2 * pairs * widths * (FLASH_BACKWARD if op.backward else 1.0)


def _graph_flops(graph: OpGraph, parts: Sequence[str]) -> dict[Key, float]:
    """Flops of the graph by the same parts: its layers in their order are lowering's blocks."""
    table: dict[Key, float] = {}
    is_whole = len(parts) != len(graph.layers)
    for op in graph.ops:
        if op.flops and op.phase in PASSES:
            key = (_part(graph, op, parts, is_whole), op.kind, op.phase)
            table[key] = table.get(key, 0.0) + op.flops * op.count
    return table


def _part(graph: OpGraph, op: GraphOp, parts: Sequence[str], is_whole: bool) -> str:
    for place, layer in enumerate(graph.layers):
        if f"{op.module}.".startswith(f"{layer.path}."):
            return "layers" if is_whole else parts[place]
    return ENDS
