"""Turn a sequence mixer into the ops of its forward and backward on one rank."""

from __future__ import annotations

from typing import assert_never

import numpy as np

from ridgeline.ir.ops import Op
from ridgeline.lowering.attention_core import (
    both_ways,
    context_exchange,
    heads_for_sequence,
    output_gate,
    rotary,
    scores,
    softcapped,
)
from ridgeline.lowering.compressed_attention import lower_compressed
from ridgeline.lowering.context import LoweringContext, matmul, stream
from ridgeline.lowering.mixer_parts import MixerParts, assembled, convolution_and_gate
from ridgeline.lowering.recurrences import lower_recurrence
from ridgeline.lowering.sparse_attention import is_sparse, lower_indexer, lower_sparse
from ridgeline.lowering.state_scan import delta_scan, ssd_scan
from ridgeline.lowering.sublayer import SublayerOps, together
from ridgeline.lowering.tensor_boundary import BOTH, Sides
from ridgeline.models.spec import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    LatentAttention,
    Mamba2,
    Mixer,
    Recurrence,
)


def lower_mixer(ctx: LoweringContext, mixer: Mixer, sides: Sides = BOTH) -> SublayerOps:
    """Projections, the part between them, and the tensor-parallel communication around both."""
    match mixer:
        case Attention():
            return assembled(ctx, mixer, _attention(ctx, mixer), sides)
        case LatentAttention():
            return _latent(ctx, mixer, sides)
        case Mamba2():
            return assembled(ctx, mixer, _mamba2(ctx, mixer), sides)
        case GatedDeltaNet():
            return assembled(ctx, mixer, _delta(ctx, mixer), sides)
        case Recurrence():
            return assembled(ctx, mixer, lower_recurrence(ctx, mixer), sides)
        case CompressedAttention():
            return lower_compressed(ctx, mixer, sides)
        case _:
            assert_never(mixer)


def _attention(ctx: LoweringContext, mixer: Attention) -> MixerParts:
    tp, tokens, hidden = ctx.degrees.tp, ctx.tokens, ctx.model.hidden
    wide, values = mixer.heads * mixer.head_dim, mixer.heads * mixer.value_dim
    copies = np.maximum(1.0, tp / mixer.kv_heads)  # beyond the key-value heads each tensor rank holds a whole one
    kv = mixer.kv_heads * copies * (mixer.head_dim + mixer.value_dim)
    projected = mixer.projected_kv
    qkv = matmul(ctx, "qkv", tokens, (wide * (1 + mixer.gate) + projected * copies) / tp, hidden)
    out = matmul(ctx, "attention out", tokens, hidden, values / tp)
    turned, kept = (0, 0) if mixer.kv_shared else (mixer.kv_heads * copies * mixer.head_dim, kv)
    turn = rotary(ctx, tokens * (wide + turned) / tp, mixer)
    joined = [] if mixer.positions == "rope" else [stream(ctx, "join qkv dX", qkv.m * qkv.n, 2.0)]
    capped = softcapped(both_ways(ctx, mixer), mixer)
    gate, gate_back = output_gate(ctx, tokens * values / tp) if mixer.gate else ([], [])
    gated = 2 * wide if mixer.gate else 0  # the gate, and what it leaves of the output
    return MixerParts(
        into=[qkv],
        out_of=[out],
        around=([*turn, *capped[0], *gate], [*gate_back, *capped[1], *turn, *joined]),
        core=scores(both_ways(ctx, mixer), mixer.heads, mixer.head_dim, mixer.value_dim, (mixer.window, mixer.chunked)),
        exchange=context_exchange(ctx, kv, mixer.heads * (mixer.head_dim + mixer.value_dim)),
        biased=[op for op, bias in ((qkv, mixer.qkv_bias), (out, mixer.out_bias)) if bias],
        saved=tokens * (wide + values + gated + kept) / tp * ctx.precision.activations.bytes_per_element,
    )


def _latent(ctx: LoweringContext, mixer: LatentAttention, sides: Sides) -> SublayerOps:
    """Keys and values expanded for every head, or sparse over picked tokens, with the indexer that picks them."""
    indexer = mixer.indexer
    if indexer is not None and is_sparse(ctx, mixer):
        attention = lower_sparse(ctx, mixer, indexer, sides)
    else:
        attention = assembled(ctx, mixer, _expanded(ctx, mixer), sides)
    return attention if indexer is None or indexer.shared else together(lower_indexer(ctx, mixer, indexer), attention)


def _expanded(ctx: LoweringContext, mixer: LatentAttention) -> MixerParts:
    tp, tokens, hidden = ctx.degrees.tp, ctx.tokens, ctx.model.hidden
    qk = mixer.nope_dim + mixer.rope_dim
    down = mixer.kv_rank + mixer.rope_dim + mixer.q_rank
    expanded = mixer.heads * (mixer.nope_dim + mixer.v_dim) / tp
    into = [
        matmul(ctx, "latent down", ctx.split_tokens, down, hidden),
        matmul(ctx, "query up", tokens, mixer.heads * qk / tp, mixer.q_rank or hidden),
        matmul(ctx, "key-value up", tokens, expanded, mixer.kv_rank),
    ]
    turn: Op = stream(ctx, "rotary and concat", tokens * mixer.heads * qk / tp, 2.0, 3.0)
    around: list[Op] = [stream(ctx, "latent norms", ctx.split_tokens * down, 4.0, 2.0), turn]
    size = ctx.precision.activations.bytes_per_element
    kv = mixer.heads * (qk + mixer.v_dim)
    entered = tokens if ctx.engine.exchanges.inputs_kept else ctx.split_tokens
    saved = entered * down + tokens * mixer.heads * (2 * qk + 2 * mixer.v_dim) / tp
    return MixerParts(
        into=into,
        out_of=[matmul(ctx, "attention out", tokens, hidden, mixer.heads * mixer.v_dim / tp)],
        around=(around, around),
        core=scores(ctx, mixer.heads, qk, mixer.v_dim),
        exchange=context_exchange(ctx, kv, kv),
        saved=saved * size,
        up=(*into[1:], turn),
        saved_up=tokens * mixer.heads * (2 * qk + mixer.v_dim) / tp * size,
    )


def _mamba2(ctx: LoweringContext, mixer: Mamba2) -> MixerParts:
    tp, tokens, hidden = ctx.degrees.tp, ctx.tokens, ctx.model.hidden
    conv = mixer.inner + 2 * mixer.groups * mixer.state
    project = matmul(ctx, "state in", tokens, (mixer.inner + conv + mixer.heads) / tp, hidden)
    out = matmul(ctx, "state out", tokens, hidden, mixer.inner / tp)
    saved = tokens * (2 * conv + 2 * mixer.inner) / tp * ctx.precision.activations.bytes_per_element
    around = convolution_and_gate(ctx, tokens * conv / tp, tokens * mixer.inner / tp)
    swapped = heads_for_sequence(ctx, mixer.inner + conv + mixer.heads, mixer.inner)
    return MixerParts(
        into=[project], out_of=[out], around=around, core=ssd_scan(ctx, mixer), exchange=swapped, saved=saved
    )


def _delta(ctx: LoweringContext, mixer: GatedDeltaNet) -> MixerParts:
    tp, tokens, hidden = ctx.degrees.tp, ctx.tokens, ctx.model.hidden
    key, value = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    project = matmul(ctx, "delta in", tokens, (2 * key + 2 * value + 2 * mixer.value_heads) / tp, hidden)
    out = matmul(ctx, "delta out", tokens, hidden, value / tp)
    saved = tokens * (4 * key + 4 * value) / tp * ctx.precision.activations.bytes_per_element
    around = convolution_and_gate(ctx, tokens * (2 * key + value) / tp, tokens * value / tp)
    swapped = heads_for_sequence(ctx, 2 * key + 2 * value + 2 * mixer.value_heads, value)
    return MixerParts(
        into=[project], out_of=[out], around=around, core=delta_scan(ctx, mixer), exchange=swapped, saved=saved
    )
