"""Turn a model's distinct blocks and its two ends into sections: what one rank executes for one microbatch."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.ir.ops import MatMul, Op, Stream
from ridgeline.ir.program import SavedActivations, Section, SectionKey, SectionRole
from ridgeline.lowering.context import LoweringContext, input_gradient, plain_matmul, stream, weight_gradient
from ridgeline.lowering.ffn import lower_ffn
from ridgeline.lowering.mixers import gradient_bytes, lower_mixer
from ridgeline.lowering.sublayer import SublayerOps
from ridgeline.models.spec import Attention, Block, Moe, Vision
from ridgeline.plan.engine import RecomputeKind


def lower_block(ctx: LoweringContext, block: Block, kind: RecomputeKind) -> Section:
    """One layer with its norms and residuals, under one kind of recompute."""
    mixer = lower_mixer(ctx, block.mixer) if block.mixer else SublayerOps()
    ffn = lower_ffn(ctx, block.ffn) if block.ffn else SublayerOps()
    norms, norms_back = _norms(ctx, block)
    forward = (*norms, *mixer.forward, *ffn.forward)
    params = mixer.params + ffn.params + block.norms * ctx.model.hidden
    saved = _kept(ctx, mixer, ffn, block)
    section = Section(
        key=SectionKey(SectionRole.BLOCK),
        forward=forward,
        backward_input=(*ffn.backward_input, *mixer.backward_input, *norms_back),
        backward_weight=(*ffn.backward_weight, *mixer.backward_weight),
        params=params,
        expert_params=ffn.expert_params,
        trained=mixer.adapters + ffn.adapters
        if ctx.frozen
        else mixer.params + ffn.params + block.norms * ctx.model.hidden,
        saved=saved,
        saved_without_recompute=saved,
    )
    return _recomputed(ctx, section, mixer, ffn, kind, isinstance(block.ffn, Moe))


def _norms(ctx: LoweringContext, block: Block) -> tuple[list[Op], list[Op]]:
    """Norms and residual additions; where nothing fuses them they read and write more."""
    elements = ctx.split_tokens * ctx.model.hidden
    parts = (block.mixer is not None) + (block.ffn is not None)
    norm_fused = "norm" in ctx.fuses or "elementwise" in ctx.fuses
    add_fused = "bias-dropout-add" in ctx.fuses or "elementwise" in ctx.fuses
    norm, norm_back = (2.0, 4.0) if norm_fused else (6.0, 9.0)
    add = 3.0 if add_fused else 5.0
    forward: list[Op] = [
        stream(ctx, "norm", elements * block.norms, norm, block.norms * (1.0 if norm_fused else 5.0)),
        stream(ctx, "residual", elements * parts, add, parts * (1.0 if add_fused else 2.0)),
    ]
    backward: list[Op] = [
        stream(ctx, "norm dX", elements * block.norms, norm_back, block.norms * (2.0 if norm_fused else 6.0)),
        stream(ctx, "residual dX", elements * parts, add, float(parts)),
    ]
    return forward, backward


def _kept(ctx: LoweringContext, mixer: SublayerOps, ffn: SublayerOps, block: Block) -> SavedActivations:
    size = ctx.precision.activations.bytes_per_element
    elements = ctx.split_tokens * ctx.model.hidden
    parts = (block.mixer is not None) + (block.ffn is not None)
    return SavedActivations(
        inputs=elements * size, attention=mixer.saved, mlp=ffn.saved, norms=elements * size * (2 * parts - 1)
    )


def _recomputed(
    ctx: LoweringContext, section: Section, mixer: SublayerOps, ffn: SublayerOps, kind: RecomputeKind, experts: bool
) -> Section:
    """What runs again before the backward, and what is kept instead."""
    if kind == "full":
        return replace(section, recompute=section.forward, saved=SavedActivations(inputs=section.saved.inputs))
    if kind == "none":
        return section
    parts = ctx.recompute.parts
    again: tuple[Op, ...] = ()
    saved = section.saved
    if "attention" in parts or "mixer" in parts:
        whole = "mixer" in parts
        again += mixer.forward if whole else mixer.again
        saved = replace(saved, attention=0 if whole else mixer.saved_selective)
    if "latent-up" in parts and "mixer" not in parts:
        again += tuple(op for op in mixer.forward if isinstance(op, MatMul) and op.label.endswith(" up"))
    if ("moe" if experts else "mlp") in parts:
        again += ffn.forward
        saved = replace(saved, mlp=0)
    elif "activation" in parts:
        again += ffn.again
        saved = replace(saved, mlp=ffn.saved_selective)
    if "alternate" in parts:
        again += _alternate(section.forward)
        saved = replace(saved, attention=saved.attention / 2, mlp=saved.mlp / 2, norms=0)
    if "norm" in parts:
        again += section.forward[:1]
        saved = replace(saved, norms=0)
    return replace(section, recompute=again, saved=saved)


def _alternate(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Everything but communication, attention and every second product: what an op-level policy runs again."""
    again: list[Op] = []
    products = 0
    for op in ops:
        if isinstance(op, MatMul):
            products += 1
            if products % 2 == 0:
                again.append(op)
        elif isinstance(op, Stream):
            again.append(op)
    return tuple(again)


def lower_embedding(ctx: LoweringContext) -> Section:
    """Looking up token rows, and adding up their gradients."""
    model, tp = ctx.model, ctx.degrees.tp
    width = model.embedding.width or model.hidden
    elements = ctx.split_tokens * width
    rows = (model.vocab + model.embedding.positions) * width
    forward = (stream(ctx, "embedding", elements, 2.0, 2.0),)
    backward = () if ctx.frozen else (stream(ctx, "embedding dW", elements, 4.0, 3.0),)
    return Section(
        key=SectionKey(SectionRole.EMBEDDING),
        forward=forward,
        backward_input=(),
        backward_weight=backward,
        params=rows / tp,
        trained=0 if ctx.frozen else rows / tp,
        saved=SavedActivations(inputs=ctx.split_tokens * 8),
    )


def lower_head(ctx: LoweringContext) -> Section:
    """Final norm, logits and loss. Logits are worked on in 32 bits by the loss unless it is fused with the product."""
    model, tp, tokens = ctx.model, ctx.degrees.tp, ctx.tokens
    padded = -(-model.vocab // ctx.engine.vocab_multiple) * ctx.engine.vocab_multiple
    logits = plain_matmul(ctx, "logits", tokens, padded / tp, model.hidden)
    values = tokens * padded / tp
    fused = {"cross-entropy", "linear-cross-entropy", "elementwise"} & ctx.fuses
    passes = 3.0 if fused else 7.0
    loss = stream(ctx, "loss", values, 2 * passes, 2.0 if fused else 8.0)
    norm = stream(ctx, "final norm", ctx.split_tokens * model.hidden, 2.0)
    grad = gradient_bytes(ctx)
    chunked = "linear-cross-entropy" in ctx.fuses
    return Section(
        key=SectionKey(SectionRole.HEAD),
        forward=(norm, logits, loss),
        backward_input=(stream(ctx, "loss dX", values, 3.0), input_gradient(logits)),
        backward_weight=() if ctx.frozen else (weight_gradient(logits, grad),),
        params=0 if model.embedding.tied else model.vocab * model.hidden / tp,
        trained=0 if model.embedding.tied or ctx.frozen else model.vocab * model.hidden / tp,
        saved=SavedActivations(
            inputs=ctx.split_tokens * model.hidden * 2, logits=0 if chunked else values * (6 if fused else 10)
        ),
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
        queries=(vision.image // vision.patch) ** 2,
        keys=(vision.image // vision.patch) ** 2,
        causal=False,
        degrees=replace(ctx.degrees, microbatch=ctx.degrees.microbatch * ctx.images, cp=1),
    )
    kind = ctx.recompute.kind
    whole = replace(lower_block(inner, _unwindowed(vision.block), kind), key=SectionKey(SectionRole.VISION))
    windowed = replace(lower_block(inner, vision.block, kind), key=SectionKey(SectionRole.VISION_WINDOWED))
    return _vision_ends(inner, vision), whole, windowed


def _vision_ends(inner: LoweringContext, vision: Vision) -> Section:
    """Patch embedding before the encoder and projector behind it.

        patches * 2 * 3 p^2 e   and   image tokens * 2 * projector weights      flops forward

    p = pixels of a patch's side, e = encoder width. No tensor rank splits either. Pixels need no gradient.
    """
    patches, tokens = inner.tokens, inner.degrees.microbatch * vision.tokens
    embed = plain_matmul(inner, "patch embedding", patches, vision.hidden, 3 * vision.patch**2)
    project = plain_matmul(inner, "projector", tokens, vision.projector_params / vision.hidden, vision.hidden)
    products = [embed, project] if vision.projector_params else [embed]
    params = vision.projector_params + vision.other_params
    grad = gradient_bytes(inner)
    size = inner.precision.activations.bytes_per_element
    return Section(
        key=SectionKey(SectionRole.VISION_ENDS),
        forward=tuple(products),
        backward_input=tuple(input_gradient(op) for op in products[1:]),
        backward_weight=() if inner.frozen else tuple(weight_gradient(op, grad) for op in reversed(products)),
        params=params,
        trained=0 if inner.frozen else params,
        saved=SavedActivations(inputs=(patches * 3 * vision.patch**2 + tokens * vision.hidden) * size),
    )


def _unwindowed(block: Block) -> Block:
    return replace(block, mixer=replace(block.mixer, window=0)) if isinstance(block.mixer, Attention) else block
