"""Turn what runs before a model's own layers, encoders of a source, of images and of sound, into sections."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.ir.ops import Attend, MatMul, Op, Stream
from ridgeline.ir.program import SavedActivations, Section, SectionKey, SectionRole
from ridgeline.lowering.context import ForwardWork, LoweringContext
from ridgeline.lowering.op_builders import input_gradient, plain_matmul, stream, weight_gradient
from ridgeline.lowering.sections import lower_block
from ridgeline.models.sizing import EncoderInput
from ridgeline.models.spec import Attention, Audio, Block, Encoder, Vision


def lower_encoder(ctx: LoweringContext, encoder: Encoder) -> tuple[Section, Section]:
    """The encoder over the sources of a microbatch, or of the prompts that begin in a step: its ends and a layer."""
    inner = replace(
        ctx,
        model=replace(ctx.model, hidden=encoder.hidden),
        queries=ctx.encoder_tokens,
        keys=ctx.encoder_tokens,
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
    ops: list[Op] = []
    for op in section.forward:
        match op:
            case MatMul():
                ops.append(replace(op, m=np.maximum(op.m, 1.0), groups=op.groups * there, launches=op.launches * there))
            case Stream() | Attend():
                ops.append(replace(op, kernels=op.kernels * there))
            case _:
                ops.append(op)
    return replace(section, forward=tuple(ops))


def _begun(ctx: LoweringContext) -> ForwardWork | None:
    """Steps whose prompts are the sources of requests that begin; their pairs are half of all, as a chunk's are."""
    if ctx.forward is None:
        return None
    steps = ctx.forward.steps
    tokens = steps.prefills * ctx.encoder_tokens
    none = 0.0 * tokens
    source_steps = replace(
        steps, prefill_tokens=tokens, prefill_pairs=tokens * ctx.encoder_tokens / 2, decodes=none, kv_tokens=none
    )  # fmt: skip
    return ForwardWork(steps=source_steps, tokens=tokens, dp=ctx.forward.dp)


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


def lower_vision(ctx: LoweringContext, vision: Vision) -> tuple[Section, Section, Section]:
    """The image encoder over the images of a microbatch, on the first stage: its ends, a layer that sees the whole
    view, and one that stays inside its window. Patches see each other both ways."""
    inner = _reading(ctx, vision, ctx.vision_input)
    kind, block = ctx.recompute.kind, _both_ways(vision.block)
    window = max(1, round(ctx.vision_input.window))
    full_view = replace(lower_block(inner, _with_window(block, 0), kind), key=SectionKey(SectionRole.VISION))
    inside = replace(lower_block(inner, _with_window(block, window), kind), key=SectionKey(SectionRole.VISION_WINDOWED))
    if ctx.towers_frozen:
        full_view, inside = _forward_alone(full_view), _forward_alone(inside)
    return _tower_ends(inner, SectionRole.VISION_ENDS, vision, ctx.vision_input), full_view, inside


def lower_audio(ctx: LoweringContext, audio: Audio) -> tuple[Section, Section]:
    """The audio encoder over the sound of a microbatch, on the first stage: its ends and a layer. Positions see
    those of their window both ways."""
    inner = _reading(ctx, audio, ctx.audio_input)
    layer = lower_block(inner, _with_window(_both_ways(audio.block), 0), ctx.recompute.kind)
    layer = replace(_forward_alone(layer) if ctx.towers_frozen else layer, key=SectionKey(SectionRole.AUDIO))
    return _tower_ends(inner, SectionRole.AUDIO_ENDS, audio, ctx.audio_input), layer


def _reading(ctx: LoweringContext, tower: Vision | Audio, read: EncoderInput) -> LoweringContext:
    """The context of an encoder's layers: views take the place of sequences."""
    return replace(
        ctx,
        model=replace(ctx.model, hidden=tower.hidden),
        queries=read.positions,
        keys=read.positions,
        causal=False,
        document=0,
        degrees=replace(ctx.degrees, microbatch=ctx.degrees.microbatch * read.views, cp=1),
        forward=_encoder_work(ctx, read),
    )


def _forward_alone(section: Section) -> Section:
    """A layer that is not trained and that no gradient passes: nothing is saved for one."""
    return Section(
        key=section.key, forward=section.forward, backward_input=(), backward_weight=(), params=section.params
    )  # fmt: skip


def _encoder_work(ctx: LoweringContext, read: EncoderInput) -> ForwardWork | None:
    """Steps whose prompts are the positions that an encoder reads, which come with the prompts' tokens."""
    if ctx.forward is None:
        return None
    steps = ctx.forward.steps
    tokens = steps.prefill_tokens * read.total
    none = 0.0 * tokens
    encoder_steps = replace(
        steps, prefill_tokens=tokens, prefill_pairs=tokens * read.positions / 2, decodes=none, kv_tokens=none
    )  # fmt: skip
    return ForwardWork(steps=encoder_steps, tokens=np.maximum(tokens, 1.0), dp=ctx.forward.dp)


def _both_ways(block: Block) -> Block:
    return replace(block, mixer=replace(block.mixer, causal=False)) if isinstance(block.mixer, Attention) else block


def _tower_ends(inner: LoweringContext, role: SectionRole, tower: Vision | Audio, read: EncoderInput) -> Section:
    """What stands before an encoder's layers and the projector behind them.

        positions * 2 * c e   or   positions * 2 * front,   and   projected * 2 * projector weights      flops forward

    c = numbers of a patch, e = encoder width. No tensor rank splits either. Pixels and sound need no gradient.
    """
    positions, hidden = inner.tokens, tower.hidden
    rows = tower.patch_inputs if isinstance(tower, Vision) else tower.front / hidden
    label = "patch embedding" if isinstance(tower, Vision) else "convolutions"
    projected_rows = positions / read.total * read.projected
    products = [plain_matmul(inner, label, positions, hidden, rows)] if rows else []
    last = [plain_matmul(inner, "projector", projected_rows, tower.projector_params / hidden, hidden)]
    last = last if tower.projector_params else []
    params = tower.projector_params + tower.other_params
    learns = last if inner.towers_frozen else [*products, *last]
    grad = inner.gradient_bytes
    size = inner.precision.activations.bytes_per_element
    return Section(
        key=SectionKey(role),
        forward=(*products, *last),
        backward_input=() if inner.towers_frozen else tuple(input_gradient(op) for op in last),
        backward_weight=() if inner.frozen else tuple(weight_gradient(op, grad) for op in reversed(learns)),
        params=params,
        trained=0 if inner.frozen else tower.projector_params if inner.towers_frozen else params,
        saved=SavedActivations(inputs=(positions * rows + projected_rows * hidden) * size),
    )


def _with_window(block: Block, window: int) -> Block:
    """The layer with another window; 0: none."""
    return replace(block, mixer=replace(block.mixer, window=window)) if isinstance(block.mixer, Attention) else block
