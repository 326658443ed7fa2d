"""Turn what runs before a model's own layers, the encoder of a source and that of images, into sections."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.ir.ops import Attend, MatMul, Op, Stream
from ridgeline.ir.program import SavedActivations, Section, SectionKey, SectionRole
from ridgeline.lowering.context import (
    ForwardWork,
    LoweringContext,
    input_gradient,
    plain_matmul,
    stream,
    weight_gradient,
)
from ridgeline.lowering.sections import lower_block
from ridgeline.models.spec import Attention, Block, Encoder, Vision


def lower_encoder(ctx: LoweringContext, encoder: Encoder) -> tuple[Section, Section]:
    """The encoder over the sources of a microbatch, or of the prompts that begin in a step: its ends and a layer."""
    inner = replace(
        ctx,
        model=replace(ctx.model, hidden=encoder.hidden),
        queries=ctx.source,
        keys=ctx.source,
        causal=False,
        document=0,
        forward=_begun(ctx),
    )
    layer = replace(lower_block(inner, encoder.block, ctx.recompute.kind), key=SectionKey(SectionRole.ENCODER))
    ends = _encoder_ends(inner, encoder)
    return (ends, layer) if inner.forward is None else (_where_begun(inner, ends), _where_begun(inner, layer))


def _where_begun(inner: LoweringContext, section: Section) -> Section:
    """A section whose ops run in the steps in which a request begins; a decode does not read the source again."""
    assert inner.forward is not None
    steps = inner.forward.steps
    there = np.where(steps.prefills > 0, 1.0, 0.0)
    if not there.any():
        return replace(section, forward=())
    made: list[Op] = []
    for op in section.forward:
        match op:
            case MatMul():
                made.append(
                    replace(op, m=np.maximum(op.m, 1.0), groups=op.groups * there, launches=op.launches * there)
                )
            case Stream() | Attend():
                made.append(replace(op, kernels=op.kernels * there))
            case _:
                made.append(op)
    return replace(section, forward=tuple(made))


def _begun(ctx: LoweringContext) -> ForwardWork | None:
    """Steps whose prompts are the sources of requests that begin; their pairs are half of all, as a chunk's are."""
    if ctx.forward is None:
        return None
    steps = ctx.forward.steps
    tokens = steps.prefills * ctx.source
    none = 0.0 * tokens
    own = replace(
        steps, prefill_tokens=tokens, prefill_pairs=tokens * ctx.source / 2, decodes=none, kv_tokens=none
    )  # fmt: skip
    return ForwardWork(steps=own, tokens=tokens, dp=ctx.forward.dp)


def _encoder_ends(inner: LoweringContext, encoder: Encoder) -> Section:
    """What stands around the encoder's layers: rows looked up, or convolutions over sound, and a norm at the end.

    Convolutions are products of a position with all of `front`; sound needs no gradient.
    """
    tokens, size = inner.tokens, inner.precision.activations.bytes_per_element
    elements = tokens * encoder.hidden
    products: list[MatMul] = []
    forward: list[Op] = [stream(inner, "encoder norm", elements, 2.0)]
    if encoder.front:
        products = [plain_matmul(inner, "convolutions", tokens, encoder.hidden, encoder.front / encoder.hidden)]
    else:
        forward.insert(0, stream(inner, "source embedding", elements, 2.0, 2.0))
    weights: list[Op] = [] if inner.frozen else [weight_gradient(op, inner.gradient_bytes) for op in products]
    if not encoder.front and not inner.frozen:
        weights.append(stream(inner, "source embedding dW", elements, 4.0, 3.0))
    return Section(
        key=SectionKey(SectionRole.ENCODER_ENDS),
        forward=(*products, *forward),
        backward_input=(stream(inner, "encoder norm dX", elements, 4.0, 2.0),),
        backward_weight=tuple(weights),
        params=encoder.other_params,
        trained=0 if inner.frozen else encoder.other_params,
        saved=SavedActivations(inputs=elements * 2 * size),
    )


def lower_vision(ctx: LoweringContext) -> tuple[Section, Section, Section]:
    """The image encoder over the images of a microbatch, on the first stage: its ends, a layer that sees the whole
    image, and one that stays inside its window. Patches see each other both ways."""
    vision = ctx.model.vision
    if vision is None:
        raise ValueError("the model has no image encoder")
    inner = replace(
        ctx,
        model=replace(ctx.model, hidden=vision.hidden),
        queries=vision.patches,
        keys=vision.patches,
        causal=False,
        document=0,
        degrees=replace(ctx.degrees, microbatch=ctx.degrees.microbatch * ctx.images, cp=1),
        forward=_shown(ctx, vision),
    )
    kind, block = ctx.recompute.kind, _both_ways(vision.block)
    whole = replace(lower_block(inner, _unwindowed(block), kind), key=SectionKey(SectionRole.VISION))
    windowed = replace(lower_block(inner, block, kind), key=SectionKey(SectionRole.VISION_WINDOWED))
    if ctx.seen_frozen:
        whole, windowed = _forward_alone(whole), _forward_alone(windowed)
    return _vision_ends(inner, vision), whole, windowed


def _forward_alone(section: Section) -> Section:
    """A layer that is not trained and that no gradient passes: nothing is saved for one."""
    return Section(
        key=section.key, forward=section.forward, backward_input=(), backward_weight=(), params=section.params
    )  # fmt: skip


def _shown(ctx: LoweringContext, vision: Vision) -> ForwardWork | None:
    """Steps whose prompts are the patches of the images in them, which come with the prompts' tokens."""
    if ctx.forward is None:
        return None
    steps = ctx.forward.steps
    tokens = steps.prefill_tokens * ctx.images * vision.patches
    none = 0.0 * tokens
    own = replace(
        steps, prefill_tokens=tokens, prefill_pairs=tokens * vision.patches / 2, decodes=none, kv_tokens=none
    )  # fmt: skip
    return ForwardWork(steps=own, tokens=np.maximum(tokens, 1.0), dp=ctx.forward.dp)


def _both_ways(block: Block) -> Block:
    return replace(block, mixer=replace(block.mixer, causal=False)) if isinstance(block.mixer, Attention) else block


def _vision_ends(inner: LoweringContext, vision: Vision) -> Section:
    """Patch embedding before the encoder and projector behind it.

        patches * 2 * 3 p^2 e   and   image tokens * 2 * projector weights      flops forward

    p = pixels of a patch's side, e = encoder width. No tensor rank splits either. Pixels need no gradient.
    """
    patches = inner.tokens
    tokens = patches / max(1, vision.patches) * vision.tokens
    embed = plain_matmul(inner, "patch embedding", patches, vision.hidden, 3 * vision.patch**2)
    project = plain_matmul(inner, "projector", tokens, vision.projector_params / vision.hidden, vision.hidden)
    products = [embed, project] if vision.projector_params else [embed]
    params = vision.projector_params + vision.other_params
    learns = products[1:] if inner.seen_frozen else products
    grad = inner.gradient_bytes
    size = inner.precision.activations.bytes_per_element
    return Section(
        key=SectionKey(SectionRole.VISION_ENDS),
        forward=tuple(products),
        backward_input=() if inner.seen_frozen else tuple(input_gradient(op) for op in products[1:]),
        backward_weight=() if inner.frozen else tuple(weight_gradient(op, grad) for op in reversed(learns)),
        params=params,
        trained=0 if inner.frozen else vision.projector_params if inner.seen_frozen else params,
        saved=SavedActivations(inputs=(patches * 3 * vision.patch**2 + tokens * vision.hidden) * size),
    )


def _unwindowed(block: Block) -> Block:
    return replace(block, mixer=replace(block.mixer, window=0)) if isinstance(block.mixer, Attention) else block
