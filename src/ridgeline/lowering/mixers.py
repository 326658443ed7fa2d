"""Turn a sequence mixer into the ops of its forward and backward on one rank."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

import numpy as np

from ridgeline.ir.ops import Attend, Collective, MatMul, Num, Op
from ridgeline.lowering.context import (
    LoweringContext,
    adapters,
    input_gradient,
    matmul,
    stream,
    tensor_collective,
    weight_gradient,
)
from ridgeline.lowering.sublayer import SublayerOps
from ridgeline.models.facts import mean_visible
from ridgeline.models.params import indexer_params, mixer_params
from ridgeline.models.spec import Attention, GatedDeltaNet, LatentAttention, Mamba2, Mixer

SCORE_PASSES = (6.0, 9.0)  # reads and writes of a score matrix, forward and backward, with a fused masked softmax
LOOSE_SCORE_PASSES = (11.0, 14.0)  # the same, scale, mask, softmax and dropout each on their own
# keys' worth of work a flash kernel does beyond what is visible, forward and backward: masked parts of tiles, starting
# and ending a row of them; from causal kernels of 512 to 16384 tokens on an H200
FLASH_EXTRA = (160.0, 320.0)
SCAN_CHUNK = 128  # tokens a state-space kernel handles at once


def lower_mixer(ctx: LoweringContext, mixer: Mixer) -> SublayerOps:
    """Projections, the part between them, and the tensor-parallel communication around both."""
    match mixer:
        case Attention():
            return _attention(ctx, mixer)
        case LatentAttention():
            return _latent(ctx, mixer)
        case Mamba2():
            return _mamba2(ctx, mixer)
        case GatedDeltaNet():
            return _delta(ctx, mixer)
        case _:
            assert_never(mixer)


def _attention(ctx: LoweringContext, mixer: Attention) -> SublayerOps:
    tp, tokens, hidden = ctx.degrees.tp, ctx.tokens, ctx.model.hidden
    wide = mixer.heads * mixer.head_dim
    copies = np.maximum(1.0, tp / mixer.kv_heads)  # beyond the key-value heads each tensor rank holds a whole one
    kv = mixer.kv_heads * copies * (mixer.head_dim + mixer.value_dim)
    projected = mixer.kv_heads * (mixer.head_dim + (0 if mixer.keys_as_values else mixer.value_dim))
    qkv = matmul(ctx, "qkv", tokens, (wide * (1 + mixer.gate) + projected * copies) / tp, hidden)
    out = matmul(ctx, "attention out", tokens, hidden, mixer.heads * mixer.value_dim / tp)
    scores = _scores(ctx, mixer.heads, mixer.head_dim, mixer.value_dim, (mixer.window, mixer.chunked))
    rotary = _rotary(ctx, tokens * (wide + mixer.kv_heads * copies * mixer.head_dim) / tp, mixer)
    exchange = _context_exchange(ctx, kv, mixer.heads * (mixer.head_dim + mixer.value_dim))
    saved = tokens * (2 * wide + kv) / tp * ctx.precision.activations.bytes_per_element
    return _assembled(ctx, mixer, [qkv], [out], rotary, scores, exchange, saved)


def _latent(ctx: LoweringContext, mixer: LatentAttention) -> SublayerOps:
    tp, tokens, hidden = ctx.degrees.tp, ctx.tokens, ctx.model.hidden
    qk = mixer.nope_dim + mixer.rope_dim
    inner: list[MatMul] = []
    down = mixer.kv_rank + mixer.rope_dim + mixer.q_rank
    inner.append(matmul(ctx, "latent down", ctx.split_tokens, down, hidden))
    q_in = mixer.q_rank or hidden
    inner.append(matmul(ctx, "query up", tokens, mixer.heads * qk / tp, q_in))
    inner.append(matmul(ctx, "key-value up", tokens, mixer.heads * (mixer.nope_dim + mixer.v_dim) / tp, mixer.kv_rank))
    out = matmul(ctx, "attention out", tokens, hidden, mixer.heads * mixer.v_dim / tp)
    scores = _scores(ctx, mixer.heads, qk, mixer.v_dim, (0, False))
    rotary: list[Op] = [
        stream(ctx, "latent norms", ctx.split_tokens * down, 4.0, 2.0),
        stream(ctx, "rotary and concat", tokens * mixer.heads * qk / tp, 2.0, 3.0),
    ]
    exchange = _context_exchange(ctx, mixer.heads * (qk + mixer.v_dim), mixer.heads * (qk + mixer.v_dim))
    saved = ctx.split_tokens * down + tokens * mixer.heads * (2 * qk + 2 * mixer.v_dim) / tp
    saved = saved * ctx.precision.activations.bytes_per_element
    return _assembled(ctx, mixer, inner, [out], rotary, scores, exchange, saved)


def _mamba2(ctx: LoweringContext, mixer: Mamba2) -> SublayerOps:
    tp, tokens, hidden = ctx.degrees.tp, ctx.tokens, ctx.model.hidden
    conv = mixer.inner + 2 * mixer.groups * mixer.state
    project = matmul(ctx, "state in", tokens, (mixer.inner + conv + mixer.heads) / tp, hidden)
    out = matmul(ctx, "state out", tokens, hidden, mixer.inner / tp)
    flops = (
        tokens * mixer.inner / tp * (4 * mixer.state + 2 * SCAN_CHUNK)
        + tokens * 2 * mixer.groups * SCAN_CHUNK * mixer.state / tp
    )
    scan = _scan(ctx, flops, tokens * (3 * mixer.inner + conv) / tp, mixer.head_dim)
    around: list[Op] = [
        stream(ctx, "convolution", tokens * conv / tp, 2.0),
        stream(ctx, "gated norm", tokens * mixer.inner / tp, 4.0, 2.0),
    ]
    saved = tokens * (2 * conv + 2 * mixer.inner) / tp * ctx.precision.activations.bytes_per_element
    return _assembled(ctx, mixer, [project], [out], around, scan, ([], []), saved)


def _delta(ctx: LoweringContext, mixer: GatedDeltaNet) -> SublayerOps:
    tp, tokens, hidden = ctx.degrees.tp, ctx.tokens, ctx.model.hidden
    key, value = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    project = matmul(ctx, "delta in", tokens, (2 * key + 2 * value + 2 * mixer.value_heads) / tp, hidden)
    out = matmul(ctx, "delta out", tokens, hidden, value / tp)
    flops = (
        tokens
        * mixer.value_heads
        / tp
        * (6 * mixer.key_dim * mixer.value_dim + 2 * SCAN_CHUNK * (mixer.key_dim + mixer.value_dim))
    )
    scan = _scan(ctx, flops, tokens * (4 * key + 4 * value) / tp, mixer.key_dim)
    around: list[Op] = [
        stream(ctx, "convolution", tokens * (2 * key + value) / tp, 2.0),
        stream(ctx, "gated norm", tokens * value / tp, 4.0, 2.0),
    ]
    saved = tokens * (4 * key + 4 * value) / tp * ctx.precision.activations.bytes_per_element
    return _assembled(ctx, mixer, [project], [out], around, scan, ([], []), saved)


def _scores(ctx: LoweringContext, heads: int, qk: int, value: int, seen: tuple[int, bool]) -> tuple[list[Op], list[Op]]:
    """Forward and backward of the score part. Flash executes what is visible; unfused all of it, through memory."""
    tokens, tp = ctx.tokens, ctx.degrees.tp
    visible = mean_visible(ctx.keys, seen[0], seen[1], ctx.causal, ctx.queries) if ctx.flash else float(ctx.keys)
    each = 2 * tokens * heads / tp * (qk + value)
    forward = each * visible
    size = ctx.precision.activations.bytes_per_element
    operands = tokens * heads / tp * (2 * qk + 2 * value) * size
    if ctx.flash:
        forward, backward = (each * (visible + _edges(ctx, seen) * extra) for extra in FLASH_EXTRA)
        backward *= 2.5  # five products for two, one of them the recomputed scores
        return (
            [Attend(label="attention", flops=forward, stream_bytes=operands, head_dim=qk)],
            [
                Attend(
                    label="attention dX",
                    flops=backward,
                    stream_bytes=3 * operands,
                    head_dim=qk,
                    backward=True,
                    kernels=2,
                )
            ],
        )
    passes = SCORE_PASSES if "masked-softmax" in ctx.fuses else LOOSE_SCORE_PASSES
    scores = tokens * ctx.keys * heads / tp * size
    kernels = 10 if "masked-softmax" in ctx.fuses else 14  # transposes and dropout among them
    return (
        [
            Attend(
                label="attention", flops=forward, stream_bytes=operands + passes[0] * scores,
                head_dim=qk, flash=False, kernels=kernels,
            )
        ],
        [
            Attend(
                label="attention dX", flops=2 * forward, stream_bytes=2 * operands + passes[1] * scores,
                head_dim=qk, backward=True, flash=False, kernels=kernels + 6,
            )
        ],
    )  # fmt: skip


def _edges(ctx: LoweringContext, seen: tuple[int, bool]) -> float:
    """Edges of what a query sees that cut through tiles: its own place, and where a sliding window begins, which the
    first queries do not reach: 2 - w / s. Chunks begin where tiles do."""
    window, chunked = seen
    slides = ctx.causal and 0 < window < ctx.keys and not chunked
    return 2 - window / ctx.keys if slides else 1.0


def _scan(ctx: LoweringContext, flops: Num, elements: Num, head_dim: int) -> tuple[list[Op], list[Op]]:
    """A chunked linear scan: matrix work in small tiles, and its operands through memory several times."""
    size = ctx.precision.activations.bytes_per_element
    return (
        [Attend(label="scan", flops=flops, stream_bytes=2 * elements * size, head_dim=head_dim, scan=True, kernels=5)],
        [
            Attend(
                label="scan dX",
                flops=2.5 * flops,
                stream_bytes=5 * elements * size,
                head_dim=head_dim,
                backward=True,
                scan=True,
                kernels=8,
            )
        ],
    )


def _rotary(ctx: LoweringContext, elements: Num, mixer: Attention) -> list[Op]:
    ops: list[Op] = []
    if mixer.positions == "rope":
        fused = "rotary" in ctx.fuses or "elementwise" in ctx.fuses
        ops.append(stream(ctx, "rotary", elements, 2.0 if fused else 7.0, 1.0 if fused else 6.0))
    if mixer.qk_norm != "none":
        ops.append(stream(ctx, "query-key norm", elements, 2.0, 2.0))
    return ops


def _context_exchange(ctx: LoweringContext, kv: Num, heads: Num) -> tuple[list[Op], list[Op]]:
    """Context parallelism, forward and backward: keys and values travel round the ring, or heads are exchanged for
    sequence. Backward, keys and values go round again with the gradients they gather."""
    cp, size = ctx.degrees.cp, ctx.precision.activations.bytes_per_element
    if isinstance(cp, int) and cp == 1:
        return [], []
    tokens, tp = ctx.tokens, ctx.degrees.tp
    if ctx.resolved.cp_kind == "ring":
        label, payload = "context ring", tokens * cp * kv / tp * size
        once = Collective(label=label, kind="all-gather", axis="cp", payload_bytes=payload, ranks=cp, stride=tp)
        return [once], [replace(once, label=f"{label} dX", payload_bytes=2 * payload)]
    payload = tokens * (heads + kv) / tp * size
    swap = Collective(
        label="context exchange", kind="all-to-all", axis="cp", payload_bytes=payload, ranks=cp, stride=tp
    )
    return [swap], [swap]


def _assembled(
    ctx: LoweringContext, mixer: Mixer, into: list[MatMul], out_of: list[MatMul], around: list[Op],
    core: tuple[list[Op], list[Op]], exchange: tuple[list[Op], list[Op]], saved: Num,
) -> SublayerOps:  # fmt: skip
    """A mixer from its products, its core and what stands around it, tensor-parallel communication included."""
    grad = gradient_bytes(ctx)
    split = isinstance(ctx.degrees.tp, int) and ctx.degrees.tp == 1
    width = _entering(ctx, mixer)
    enter, leave = ([], []) if split else boundary(ctx, width)
    products = [*into, *out_of]
    forward = [*enter, *into, *around, *exchange[0], *core[0], *out_of, *leave]
    backward = [*leave_gradient(ctx, split), *map(input_gradient, out_of), *core[1], *exchange[1], *around]
    backward += [*map(input_gradient, reversed(into)), *enter_gradient(ctx, split, width)]
    low, adapted = adapters(ctx, products)
    trained = low if ctx.frozen else products
    weights = [weight_gradient(op, grad) for op in reversed(trained)]
    return SublayerOps(
        forward=(*casts(ctx, into[:1], "norm" in ctx.fuses), *casts(ctx, [*into[1:], *out_of]), *forward, *low),
        backward_input=(*gradient_casts(ctx, products), *map(input_gradient, low), *backward),
        adapters=adapted,
        backward_weight=tuple(weights),
        again=tuple(core[0]),
        saved=saved + _score_bytes(ctx, mixer),
        saved_selective=saved,
        params=_held_params(ctx, mixer),
    )


def _held_params(ctx: LoweringContext, mixer: Mixer) -> Num:
    """Parameters of a mixer on one tensor rank: its share, and copies of what ranks hold alike.

        attention   (all + (c - 1) G (d + v) (h + bias)) / tp         c = max(1, tp / G): ranks that hold the same heads
        latent      (all + (tp - 1) (h (q + k + r) + q + k)) / tp     latents, their norms and an indexer of sparse
                                                                      attention are whole on every rank

    G = kv_heads, d, v = size of a key and a value, h = hidden, q, k = latents of queries and of keys, r = rope_dim.
    """
    tp, hidden = ctx.degrees.tp, ctx.model.hidden
    more: Num = 0
    if isinstance(mixer, Attention):
        keys = mixer.kv_heads * (mixer.head_dim + (0 if mixer.keys_as_values else mixer.value_dim))
        more = np.maximum(0.0, tp / mixer.kv_heads - 1) * keys * (hidden + mixer.qkv_bias)
    elif isinstance(mixer, LatentAttention):
        latents = mixer.q_rank + mixer.kv_rank
        alike = hidden * (latents + mixer.rope_dim) + latents + indexer_params(mixer.indexer, mixer.q_rank, hidden)
        more = (tp - 1) * alike
    return (mixer_params(mixer, hidden) + more) / tp


def _score_bytes(ctx: LoweringContext, mixer: Mixer) -> Num:
    """What unfused attention keeps of its score matrices: scores, softmax and a mask."""
    if ctx.flash or not isinstance(mixer, (Attention, LatentAttention)):
        return 0
    return ctx.tokens * ctx.keys * mixer.heads / ctx.degrees.tp * 5


def gradient_bytes(ctx: LoweringContext) -> float:
    """Bytes of one element of the gradient buffer."""
    return ctx.resolved.gradients.bytes_per_element


def _entering(ctx: LoweringContext, mixer: Mixer) -> int:
    """Width of what tensor ranks exchange where they enter a mixer: its input, or the latents that every rank makes of
    its own tokens; queries without a latent are made of the input."""
    if not isinstance(mixer, LatentAttention):
        return ctx.model.hidden
    return mixer.kv_rank + mixer.rope_dim + (mixer.q_rank or ctx.model.hidden)


def boundary(ctx: LoweringContext, width: int = 0) -> tuple[list[Op], list[Op]]:
    """Forward communication at the entry and the exit of a tensor-parallel part; `width` of the entry, or hidden."""
    elements = ctx.tokens * ctx.model.hidden
    if ctx.sequence_parallel:
        entering = ctx.tokens * (width or ctx.model.hidden)
        return (
            [tensor_collective(ctx, "gather tokens", "all-gather", entering)],
            [tensor_collective(ctx, "scatter tokens", "reduce-scatter", elements)],
        )
    return [], [tensor_collective(ctx, "sum over ranks", "all-reduce", elements)]


def leave_gradient(ctx: LoweringContext, alone: bool) -> list[Op]:
    """Backward communication at the exit, which the backward enters first."""
    if alone or not ctx.sequence_parallel:
        return []
    return [tensor_collective(ctx, "gather gradients", "all-gather", ctx.tokens * ctx.model.hidden)]


def enter_gradient(ctx: LoweringContext, alone: bool, width: int = 0) -> list[Op]:
    """Backward communication at the entry; with sequence parallelism the input is gathered once more for dW."""
    if alone:
        return []
    elements = ctx.tokens * (width or ctx.model.hidden)
    if not ctx.sequence_parallel:
        return [tensor_collective(ctx, "sum gradients", "all-reduce", elements)]
    again = [] if ctx.frozen else [tensor_collective(ctx, "gather tokens again", "all-gather", elements)]
    return [*again, tensor_collective(ctx, "scatter gradients", "reduce-scatter", elements)]


def casts(ctx: LoweringContext, products: list[MatMul], written: bool = False) -> list[Op]:
    """Casting the inputs of narrow products: read wide, write narrow twice (as it is and transposed).

    A norm that is one kernel, or a product's epilogue, writes narrow at once: nothing is read again (`written`).
    """
    if not ctx.low_precision:
        return []
    passes = _cast_passes(ctx, written)
    return [stream(ctx, f"cast for {op.label}", op.m * op.k * op.groups, passes, 1.0) for op in products]


def gradient_casts(ctx: LoweringContext, products: list[MatMul], written: bool = False) -> list[Op]:
    """Casting the gradients that arrive at narrow products, for both of their own products."""
    if not ctx.low_precision:
        return []
    passes = _cast_passes(ctx, written)
    return [stream(ctx, f"cast for {op.label} dX", op.m * op.n * op.groups, passes, 1.0) for op in products]


def _cast_passes(ctx: LoweringContext, written: bool) -> float:
    wide, narrow = ctx.precision.activations.bytes_per_element, ctx.precision.compute.bytes_per_element
    reads = 0.0 if written else 2.0 if ctx.precision.scaling == "row" else 1.0
    return 2 * narrow / wide + reads
