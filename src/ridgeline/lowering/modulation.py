"""Turn what a diffusion transformer has instead of words into ops: patches of latents, text, timestep, modulation.

patches, text     products of every token       timestep, pooled text, modulation      products of one row a sequence
"""

from __future__ import annotations

from ridgeline.ir.ops import MatMul, Op
from ridgeline.ir.program import SavedActivations, Section, SectionKey, SectionRole
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.op_builders import (
    SublayerOps,
    input_gradient,
    plain_matmul,
    pointwise,
    pointwise_back,
    stream,
    weight_gradient,
)
from ridgeline.models.params import modulation_inputs, modulation_params
from ridgeline.models.spec import Block, LatentSpace


def modulated(ctx: LoweringContext, block: Block) -> SublayerOps:
    """A layer's vectors made of the timestep, whole on every tensor rank, and what they do to its tokens."""
    rows, hidden = ctx.sequences, ctx.model.hidden
    width = modulation_inputs(block, hidden)
    products = [plain_matmul(ctx, "modulation", rows, block.streams * block.modulation * hidden, width)]
    products = products if width else []
    elements = ctx.split_tokens * hidden * block.modulation
    forward = pointwise(ctx, "modulation", elements, label="modulate", modules=block.modulation)
    back = pointwise_back(ctx, "modulation", elements, label="modulate dX", modules=block.modulation)
    kept = ctx.split_tokens * hidden * block.modulation / 3
    return SublayerOps(
        forward=(*products, forward),
        backward_input=(back, *map(input_gradient, products)),
        backward_weight=() if ctx.frozen else tuple(weight_gradient(op, ctx.gradient_bytes) for op in products),
        saved=kept * ctx.precision.activations.bytes_per_element,
        params=block.streams * modulation_params(block, hidden),
    )


def lower_latents(ctx: LoweringContext, space: LatentSpace) -> Section:
    """Patches of latents, text and timestep on their way into the layers; noise and text need no gradient."""
    hidden, rows = ctx.model.hidden, ctx.sequences
    products: list[MatMul] = [plain_matmul(ctx, "patches", ctx.split_tokens, hidden, space.inputs)]
    if space.text and space.per_text:
        products.append(plain_matmul(ctx, "text", rows * space.text, hidden, space.per_text / hidden))
    if space.per_step:
        products.append(plain_matmul(ctx, "timestep", rows, hidden, space.per_step / hidden))
    noise: Op = stream(ctx, "noise", ctx.split_tokens * space.inputs, 6.0, 6.0)
    size = ctx.precision.activations.bytes_per_element
    return Section(
        key=SectionKey(SectionRole.EMBEDDING),
        forward=(noise, *products),
        backward_input=(),
        backward_weight=() if ctx.frozen else tuple(weight_gradient(op, ctx.gradient_bytes) for op in products),
        params=space.other_params,
        trained=0 if ctx.frozen else space.other_params,
        saved=SavedActivations(inputs=sum(op.m * op.k for op in products) * size),
    )
