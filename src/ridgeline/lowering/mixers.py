"""Turn a sequence mixer into the ops of its passes on one rank: products, core, borders of tensor ranks, casts.

Training and an engine step are lowered by the same lines; the cores know what a sequence and what a step ask of them.
"""

from __future__ import annotations

from ridgeline.ir.ops import Op
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.core_ops import CoreOps, resident_params
from ridgeline.lowering.latent_core import latent_ops, lower_indexer
from ridgeline.lowering.op_builders import (
    BOTH,
    Boundary,
    Sides,
    SublayerOps,
    adapters,
    bias_gradients,
    casts,
    gradient_casts,
    input_gradient,
    tensor_boundary,
    together,
    weight_gradient,
)
from ridgeline.lowering.pooled_core import pooled_ops
from ridgeline.lowering.scans import scan_ops
from ridgeline.lowering.softmax_core import cross_ops, softmax_ops
from ridgeline.models.mixer_parts import cross_parts, mixer_parts
from ridgeline.models.parts import CrossCore, LatentCore, MixerParts, PooledCore
from ridgeline.models.spec import Attention, Mixer


def lower_mixer(ctx: LoweringContext, mixer: Mixer, sides: Sides = BOTH) -> SublayerOps:
    """Projections, the part between them, and the tensor-parallel communication around both."""
    parts = mixer_parts(mixer, ctx.model.hidden)
    attention = _assemble(ctx, parts, sides)
    if ctx.forward is None and isinstance(parts.core, LatentCore) and parts.core.indexer and parts.index:
        return together(lower_indexer(ctx, parts, parts.core.indexer), attention)
    return attention


def lower_cross(ctx: LoweringContext, mixer: Attention) -> SublayerOps:
    """Cross attention over the source of the context."""
    width = ctx.model.encoder.hidden if ctx.model.encoder else ctx.model.hidden
    return _assemble(ctx, cross_parts(mixer, ctx.model.hidden, ctx.encoder_tokens, width), BOTH)


def _core(ctx: LoweringContext, parts: MixerParts) -> CoreOps:
    core = parts.core
    if parts.recurrent is not None:
        return scan_ops(ctx, parts, parts.recurrent)
    match core:
        case Attention():
            return softmax_ops(ctx, parts, core)
        case CrossCore():
            return cross_ops(ctx, parts, core)
        case LatentCore():
            return latent_ops(ctx, parts, core)
        case PooledCore():
            return pooled_ops(ctx, parts, core)
        case _:
            raise AssertionError(f"{parts.title} has no state and no scores")


def _assemble(ctx: LoweringContext, parts: MixerParts, sides: Sides) -> SublayerOps:
    """A mixer from its parts, tensor-parallel communication included."""
    core, params = _core(ctx, parts), resident_params(ctx, parts)
    border = tensor_boundary(ctx, sides, parts.entering)
    into, out = core.into, core.out
    first = casts(ctx, into[:1], ctx.joins("norm cast"))
    forward = (*first, *casts(ctx, [*into[1:], *out]), *border.entry, *into, *_between(ctx, core), *out, *border.exit)
    if not ctx.backward:
        return SublayerOps(forward=forward, params=params)
    products = [*into, *out]
    low, adapter_params = adapters(ctx, products)
    weights = [weight_gradient(op, ctx.gradient_bytes) for op in reversed(low if ctx.frozen else products)]
    labels = {part.label for part in parts.products if part.biased}
    biases = bias_gradients(ctx, [op for op in products if op.label in labels])
    return SublayerOps(
        forward=(*forward, *low),
        backward_input=(*gradient_casts(ctx, products), *map(input_gradient, low), *_backward(core, border)),
        adapters=adapter_params,
        backward_weight=(*weights, *biases),
        again=tuple(core.core[0]),
        saved=core.saved + core.score_bytes,
        saved_selective=core.saved,
        up=core.up,
        saved_up=core.saved_up,
        params=params,
    )


def _between(ctx: LoweringContext, core: CoreOps) -> tuple[Op, ...]:
    """What runs between the products, in the order of a sequence's forward or of an engine's step."""
    if ctx.forward is None:
        return (*core.before[0], *core.behind[0], *core.exchange[0], *core.core[0])
    return (*core.exchange[0], *core.before[0], *core.core[0], *core.behind[0])


def _backward(core: CoreOps, border: Boundary) -> tuple[Op, ...]:
    """Gradients of inputs, from the output back."""
    return (
        *border.exit_gradient, *map(input_gradient, reversed(core.out)), *core.core[1], *core.exchange[1],
        *core.behind[1], *core.before[1], *map(input_gradient, reversed(core.into)), *border.entry_gradient,
    )  # fmt: skip
