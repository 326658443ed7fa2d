"""Turn the parts of a sequence mixer (products, core, what stands around it) into its passes on one rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.core.records import dataclass
from ridgeline.ir.ops import MatMul, Num, Op
from ridgeline.lowering.attention_core import Passes
from ridgeline.lowering.casts import casts, gradient_casts
from ridgeline.lowering.context import (
    LoweringContext,
    adapters,
    bias_gradients,
    input_gradient,
    stream,
    weight_gradient,
)
from ridgeline.lowering.sublayer import SublayerOps
from ridgeline.lowering.tensor_boundary import Sides, tensor_boundary
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.spec import Attention, LatentAttention, Mixer


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerParts:
    """A mixer between its norm and its residual.

    into, out_of   products before and behind the core
    around         pointwise work between products and core, forward and backward
    core           scores or scan, forward and backward
    exchange       communication of context ranks, forward and backward
    biased         products with a bias
    saved          bytes saved for the backward, score matrices apart
    up, saved_up   products out of a latent and what follows them, and the bytes saved of what they make
    """

    into: Sequence[MatMul]
    out_of: Sequence[MatMul]
    around: Passes
    core: Passes
    exchange: Passes = ((), ())
    biased: Sequence[MatMul] = ()
    saved: Num
    up: tuple[Op, ...] = ()
    saved_up: Num = 0


def assembled(ctx: LoweringContext, mixer: Mixer, parts: MixerParts, sides: Sides) -> SublayerOps:
    """A mixer from its parts, tensor-parallel communication included."""
    into, out_of = parts.into, parts.out_of
    products = [*into, *out_of]
    border = tensor_boundary(ctx, sides, _entering(ctx, mixer))
    forward = [*border.entry, *into, *parts.around[0], *parts.exchange[0], *parts.core[0], *out_of, *border.exit]
    backward = [*border.exit_gradient, *map(input_gradient, reversed(out_of)), *parts.core[1], *parts.exchange[1]]
    backward += [*parts.around[1], *map(input_gradient, reversed(into)), *border.entry_gradient]
    low, adapted = adapters(ctx, products)
    trained = low if ctx.frozen else products
    weights = [weight_gradient(op, ctx.gradient_bytes) for op in reversed(trained)]
    return SublayerOps(
        forward=(*casts(ctx, into[:1], "norm" in ctx.fuses), *casts(ctx, [*into[1:], *out_of]), *forward, *low),
        backward_input=(*gradient_casts(ctx, products), *map(input_gradient, low), *backward),
        adapters=adapted,
        backward_weight=(*weights, *bias_gradients(ctx, parts.biased)),
        again=tuple(parts.core[0]),
        saved=parts.saved + _score_bytes(ctx, mixer),
        saved_selective=parts.saved,
        up=parts.up,
        saved_up=parts.saved_up,
        params=held_params(ctx, mixer),
    )


def held_params(ctx: LoweringContext, mixer: Mixer) -> Num:
    """Parameters of a mixer on one tensor rank: its share, and copies of what ranks hold alike.

        (all + (c - 1) s + (tp - 1) w) / tp

    c = max(1, tp / G): ranks with the same of G key-value heads, s = parameters of those heads, w = parameters that
    every rank holds.
    """
    tp, parts = ctx.degrees.tp, mixer_parts(mixer, ctx.model.hidden)
    shared, heads = parts.shared
    more = np.maximum(0.0, tp / heads - 1) * shared + (tp - 1) * parts.replicated
    return (parts.params + more) / tp


def _score_bytes(ctx: LoweringContext, mixer: Mixer) -> Num:
    """What unfused attention keeps of its score matrices: scores, softmax and a mask."""
    if ctx.flash or not isinstance(mixer, (Attention, LatentAttention)):
        return 0
    return ctx.tokens * ctx.keys * mixer.heads / ctx.degrees.tp * 5


def _entering(ctx: LoweringContext, mixer: Mixer) -> int:
    """Width of what tensor ranks exchange where they enter a mixer: its input, or the latents that every rank makes of
    its own tokens, an indexer's key and weights among them; queries without a latent are made of the input."""
    if not isinstance(mixer, LatentAttention):
        return ctx.model.hidden
    indexer = mixer.indexer
    scored = indexer.head_dim + indexer.heads if indexer and not indexer.shared else 0
    return mixer.kv_rank + mixer.rope_dim + (mixer.q_rank or ctx.model.hidden) + scored


def convolution_and_gate(ctx: LoweringContext, convolved: Num, gated: Num) -> Passes:
    """A short causal convolution in one kernel (read and written; backward its input, its gradient and a new one), and
    a norm of what a gate leaves: output and gate read, one written; backward three read and two written."""
    return (
        [stream(ctx, "convolution", convolved, 2.0), stream(ctx, "gated norm", gated, 3.0)],
        [stream(ctx, "gated norm dX", gated, 5.0, 2.0), stream(ctx, "convolution dX", convolved, 3.0, 2.0)],
    )
