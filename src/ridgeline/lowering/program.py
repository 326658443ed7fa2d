"""Turn a Scenario into the Program its ranks execute: distinct sections, and how often each stands in each stage."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.ir.program import Program, Section
from ridgeline.lowering.sections import lower_block, lower_embedding, lower_head, lower_vision
from ridgeline.lowering.shape import Shape, shape_of
from ridgeline.plan.engine import RecomputeKind
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train


def lower(scenario: Scenario) -> Program:
    """The program of one scenario. Cost grows with distinct blocks and virtual stages, never with layers or ranks."""
    shape = shape_of(scenario)
    sections = sections_of(shape)
    return Program(sections=sections, stages=stages_of(scenario, len(sections)))


def sections_of(shape: Shape) -> tuple[Section, ...]:
    """Embedding, head, distinct blocks, prediction blocks, image encoder.

    Where recompute stops after some layers each block
    stands twice: as recompute says, and as it runs without.
    """
    model, plan = shape.model, shape.recompute
    made = [lower_embedding(shape), lower_head(shape)]
    for index, block in enumerate(model.blocks):
        kind: RecomputeKind = plan.blocks.get(str(index), plan.kind)
        made.append(replace(lower_block(shape, block, kind), name=f"block {index}"))
        if plan.layers is not None:
            made.append(replace(lower_block(shape, block, "none"), name=f"block {index}, kept"))
    if model.mtp is not None:
        made.append(replace(lower_block(shape, model.mtp.block, plan.kind), name="prediction block"))
    if _sees(shape):
        made += lower_vision(shape)
    return tuple(made)


def _sees(shape: Shape) -> bool:
    return shape.model.vision is not None and shape.images > 0


def stages_of(scenario: Scenario, sections: int) -> tuple[tuple[int, ...], ...]:
    """How often each section stands in each virtual stage."""
    model, limit = scenario.model, scenario.plan.recompute.layers
    stages: list[tuple[int, ...]] = []
    layer, each = 0, 1 if limit is None else 2
    sees = model.vision is not None and isinstance(scenario.workload, Train) and scenario.workload.images > 0
    held_by_stage = scenario.placement
    for stage, held in enumerate(held_by_stage):
        counts = [0] * sections
        counts[0] = int(stage == 0)
        for place in range(held):
            again = limit is None or place < limit
            counts[2 + each * model.order[layer] + (0 if again else 1)] += 1
            layer += 1
        if stage == len(held_by_stage) - 1:
            depth = model.mtp.depth if model.mtp else 0
            counts[1] = 1 + depth
            if depth:
                counts[-4 if sees else -1] += depth
        if stage == 0 and sees and model.vision is not None:
            whole = model.vision.layers - model.vision.windowed
            counts[-3:] = [1, whole, model.vision.windowed]
        stages.append(tuple(counts))
    return tuple(stages)
