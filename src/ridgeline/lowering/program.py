"""Turn a Scenario into the Program its ranks execute: distinct sections, and how often each stands in each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.ir.program import Program, Section
from ridgeline.lowering.context import LoweringContext, lowering_context
from ridgeline.lowering.mtp import lower_prediction
from ridgeline.lowering.sections import lower_block, lower_embedding, lower_head, lower_vision
from ridgeline.plan.engine import RecomputeKind
from ridgeline.plan.scenario import Scenario


def lower(scenario: Scenario) -> Program:
    """The program of one scenario. Cost grows with distinct blocks and virtual stages, never with layers or ranks."""
    ctx = lowering_context(scenario)
    sections = sections_of(ctx)
    return Program(sections=sections, stages=stages_of(ctx, scenario.placement, len(sections)))


def sections_of(ctx: LoweringContext) -> tuple[Section, ...]:
    """Embedding, head, distinct blocks, prediction blocks, image encoder.

    Where recompute stops after some layers each block stands twice: as recompute says, and as the rest runs.
    """
    model, plan = ctx.model, ctx.recompute
    made = [lower_embedding(ctx), lower_head(ctx)]
    for index, block in enumerate(model.blocks):
        kind: RecomputeKind = plan.blocks.get(str(index), plan.kind)
        made.append(replace(lower_block(ctx, block, kind), name=f"block {index}"))
        if plan.layers is not None:
            made.append(replace(lower_block(ctx, block, plan.rest), name=f"block {index}, rest"))
    if model.mtp is not None:
        same = next((2 + i for i, one in enumerate(model.blocks) if one == model.mtp.block), 0)
        alike = same and plan.layers is None and not plan.blocks
        layer = made[same] if alike else lower_block(ctx, model.mtp.block, plan.kind)
        made.append(lower_prediction(ctx, model.mtp, plan.kind, (made[0], made[1], layer)))
    if _sees(ctx):
        made += lower_vision(ctx)
    return tuple(made)


def _sees(ctx: LoweringContext) -> bool:
    return ctx.model.vision is not None and ctx.images > 0


def stages_of(ctx: LoweringContext, placement: Sequence[int], sections: int) -> tuple[tuple[int, ...], ...]:
    """How often each section stands in each virtual stage, for layers placed so many to a stage."""
    model, plan = ctx.model, ctx.recompute
    stages: list[tuple[int, ...]] = []
    layer, each, sees = 0, 1 if plan.layers is None else 2, _sees(ctx)
    for stage, held in enumerate(placement):
        counts = [0] * sections
        counts[0] = int(stage == 0)
        again = plan.layers_of(stage, held)
        for place in range(held):
            counts[2 + each * model.order[layer] + (place >= again)] += 1
            layer += 1
        if stage == len(placement) - 1:
            counts[1] = 1
            if model.mtp is not None:
                counts[-4 if sees else -1] += model.mtp.depth
        if stage == 0 and sees and model.vision is not None:
            whole = model.vision.layers - model.vision.windowed
            counts[-3:] = [1, whole, model.vision.windowed]
        stages.append(tuple(counts))
    return tuple(stages)
