"""Turn cross attention, whose keys and values are made of an encoder's output, into the ops of its passes on one rank.

queries     of the layer's own tokens        keys, values     of the source, once a layer
scores      every token sees the whole source
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.ir.ops import Attend, MatMul, Num, Op, Stream
from ridgeline.lowering.attention_core import kernel_head_dim, scores
from ridgeline.lowering.casts import casts
from ridgeline.lowering.context import LoweringContext, matmul, stream, tensor_collective
from ridgeline.lowering.mixer_parts import MixerParts, assembled, held_params
from ridgeline.lowering.served_mixers import DECODE_KERNELS, steps_of
from ridgeline.lowering.sublayer import SublayerOps
from ridgeline.lowering.tensor_boundary import BOTH, tensor_boundary
from ridgeline.models.spec import Attention


def source_width(ctx: LoweringContext) -> int:
    """Width of what cross attention reads."""
    return ctx.model.encoder.hidden if ctx.model.encoder else ctx.model.hidden


def _products(ctx: LoweringContext, mixer: Attention, source: Num) -> tuple[MatMul, MatMul, MatMul]:
    """Queries of the tokens, keys and values of the source, and the output."""
    tp, tokens = ctx.degrees.tp, ctx.tokens
    copies = np.maximum(1.0, tp / mixer.kv_heads)
    both = mixer.kv_heads * copies * (mixer.head_dim + mixer.value_dim)
    return (
        matmul(ctx, "cross query", tokens, mixer.heads * mixer.head_dim / tp, ctx.model.hidden),
        matmul(ctx, "cross key-value", source, both / tp, source_width(ctx)),
        matmul(ctx, "cross out", tokens, ctx.model.hidden, mixer.heads * mixer.value_dim / tp),
    )


def lower_cross(ctx: LoweringContext, mixer: Attention) -> SublayerOps:
    """Forward and backward in training. With sequence parallelism every layer gathers the source, too, and scatters
    its gradient; without it gradients of the source are summed over tensor ranks."""
    seen = replace(ctx, keys=ctx.source, causal=False, document=0)
    source = ctx.degrees.microbatch * ctx.source
    query, both, out = _products(seen, mixer, source)
    around = [stream(ctx, "query-key norm", query.m * query.n, 2.0, 2.0)] if mixer.qk_norm != "none" else []
    parts = MixerParts(
        into=[query, both],
        out_of=[out],
        around=(around, around),
        core=scores(seen, mixer.heads, mixer.head_dim, mixer.value_dim),
        exchange=_source_exchange(ctx, source * source_width(ctx)),
        biased=[op for op in (query, both) if mixer.qkv_bias] + [out] * mixer.out_bias,
        saved=(query.m * (query.n + out.k) + both.m * both.n) * ctx.precision.activations.bytes_per_element,
    )
    return assembled(seen, mixer, parts, BOTH)


def _source_exchange(ctx: LoweringContext, elements: Num) -> tuple[list[Op], list[Op]]:
    if isinstance(ctx.degrees.tp, int) and ctx.degrees.tp == 1:
        return [], []
    if not ctx.sequence_parallel:
        return [], [tensor_collective(ctx, "sum source gradients", "all-reduce", elements)]
    return (
        [tensor_collective(ctx, "gather source", "all-gather", elements)],
        [tensor_collective(ctx, "scatter source gradients", "reduce-scatter", elements)],
    )


def lower_served_cross(ctx: LoweringContext, mixer: Attention) -> SublayerOps:
    """In an engine step: keys and values of the source once for every prompt that begins, cached for its decodes."""
    steps, tp = steps_of(ctx), ctx.degrees.tp
    begun = np.maximum(steps.prefills * ctx.source, 1e-9)
    query, both, out = _products(ctx, mixer, begun)
    read = (steps.prefills + steps.decodes) * ctx.source
    pairs = (steps.prefill_tokens + steps.decodes * steps.decode_tokens) * ctx.source
    wide, deep = (kernel_head_dim(ctx.engine.kernel, size) for size in (mixer.head_dim, mixer.value_dim))
    attend = Attend(
        label="cross attention",
        flops=2 * pairs * mixer.heads / tp * (wide + deep),
        stream_bytes=read * both.n * ctx.precision.kv.bytes_per_element
        + 2 * query.m * query.n * ctx.precision.activations.bytes_per_element,
        head_dim=wide,
        kernels=DECODE_KERNELS,
    )
    written = Stream(label="cache write", stream_bytes=begun * both.n * ctx.precision.kv.bytes_per_element, kernels=1.0)
    there = np.where(steps.prefills > 0, 1.0, 0.0)
    once = replace(both, m=np.maximum(both.m, 1.0), groups=there, launches=there)
    border = tensor_boundary(ctx)
    cast = casts(ctx, [query, out])
    return SublayerOps(
        forward=(*cast, *border.entry, query, once, written, attend, out, *border.exit),
        params=held_params(ctx, mixer),
    )
