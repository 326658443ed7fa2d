"""Turn the part of softmax attention between its projections into ops.

    a sequence       flash over what is visible, or score matrices through memory; context ranks exchange keys or heads
    an engine step   prompt chunks by the tile, and flash decoding: every cached key of a decode once

Cross attention sees the whole source of an encoder instead, whose keys and values are made once a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from types import MappingProxyType

import numpy as np

from ridgeline.core.documents import JsonObject
from ridgeline.ir.fusions import op_passes
from ridgeline.ir.ops import FLASH_BACKWARD, FLASH_EXTRA, Attend, Collective, MatMul, Num, Op, Stream
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.op_builders import (
    CoreOps,
    Passes,
    head_copies,
    padded_heads,
    pointwise,
    pointwise_back,
    product,
    running,
    saved_bytes,
    steps_of,
    stream,
    tensor_collective,
    where_any,
)
from ridgeline.models.facts import mean_visible
from ridgeline.models.parts import CrossCore, MixerParts
from ridgeline.models.spec import Attention
from ridgeline.plan.serving_plan import BARE

# head sizes that kernels of a library are built for; a head between two runs as the wider one. On an H200 cuDNN takes
# as long for 72 to 112 as for 128 and for 136 and 160 as for 192, forward and backward; FlashAttention-2 has 96, too.
# Triton's blocks are powers of two, and a TPU's matrix unit is 128 wide
HEAD_SIZES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "cudnn": (64, 128, 192, 256),
        "flash-2": (32, 64, 96, 128, 192, 256),
        "triton": (16, 32, 64, 128, 256),
        "xla": (128, 256),
        "other": (64, 128, 192, 256),
    }
)
MASKED = 64.0  # of those, the masked half of the tile on the diagonal; the rest starts and ends a row of tiles
# of its queries and of the keys that arrive, what a step of a balanced (zig-zag) ring works on, the first apart: all
# queries with half of the keys, or half of the queries with all of them
RING_STEP = 0.75
# beside attention in each step: log-sum-exp, correction of the sum so far, copy of keys and values
RING_KERNELS = 3.0
# queries and keys of a block of splash attention on TPUs, forward and backward, as MaxText's recipes for v7x set
# them (sa_block_q, sa_block_q_dkv); a head narrower than the array leaves rows of it idle
SPLASH_BLOCKS = (1024.0, 2048.0)
SYSTOLIC_DEPTH = 128
HOST_BLOCKS = (
    (768, 256),
    (192, 64),
    (0, 32),
)  # queries of a sequence, and of a block (ATen's FlashAttentionKernel.cpp)
DECODE_KERNELS = 2.0  # parts of a cache side by side, then their sum
VECTOR_ATTENTION = "decode attention on vector units"
SMALLEST_BUCKET = 128.0  # tokens of the shortest context that a program is compiled for


def softmax_ops(ctx: LoweringContext, parts: MixerParts, core: Attention) -> CoreOps:
    """Rotation and norms of queries and keys, scores, softcap and gate."""
    tp, tokens = ctx.degrees.tp, ctx.tokens
    heads, copies = padded_heads(ctx, core.heads), head_copies(ctx, core.kv_heads)
    values = heads * core.value_dim
    key_elements = 0 if core.kv_shared else core.kv_heads * copies * core.head_dim
    rotation = rotary(ctx, tokens * (heads * core.head_dim + key_elements) / tp, core)
    (qkv,), out = [product(ctx, part) for part in parts.into], [product(ctx, part) for part in parts.out]
    split_back = [] if core.positions == "rope" else [stream(ctx, "join qkv dX", qkv.m * qkv.n, 2.0)]
    sequence = ctx if core.causal else replace(ctx, causal=False)
    softcap = _softcap(sequence, core, heads)
    gate, gate_back = output_gate(ctx, tokens * values / tp) if core.gate else ([], [])
    return CoreOps(
        into=[qkv],
        out=out,
        before=(rotation, [*rotation, *split_back]),
        core=attention_scores(ctx, core),
        behind=([*softcap[0], *gate], [*gate_back, *softcap[1]]),
        exchange=context_exchange(ctx, core.kv * copies, core.width),
        saved=saved_bytes(ctx, parts),
        score_bytes=score_bytes(ctx, core.heads),
    )


def attention_scores(ctx: LoweringContext, core: Attention) -> Passes:
    """Scores of a sequence, forward and backward, or those of an engine step: its cache written, prompts by the tile,
    decodes against it. Nothing is cached for queries that see what comes behind them."""
    window = (core.window, core.chunked)
    if ctx.forward is None:
        sequence = ctx if core.causal else replace(ctx, causal=False)
        return scores(sequence, core.heads, core.head_dim, core.value_dim, window)
    heads = padded_heads(ctx, core.heads)
    prefill = prefill_scores(ctx, heads, (core.head_dim, core.value_dim), window, causal=core.causal)
    if not core.causal:
        return [prefill], []
    row = core.kv * head_copies(ctx, core.kv_heads) / ctx.degrees.tp
    written = [] if core.kv_shared else [cache_write(ctx, ctx.tokens * row)]
    return [*written, prefill, _decode_scores(ctx, core, heads, row)], []


def score_bytes(ctx: LoweringContext, heads: int) -> Num:
    """Bytes that unfused attention saves of its score matrices: scores, softmax and a mask."""
    return 0 if ctx.flash else ctx.tokens * ctx.keys * heads / ctx.degrees.tp * 5


def cross_ops(ctx: LoweringContext, parts: MixerParts, core: CrossCore) -> CoreOps:
    """Cross attention. With sequence parallelism every layer gathers the source, too, and scatters its gradient;
    without it gradients of the source are summed over tensor ranks. An engine makes keys and values of the source once
    for every prompt that begins, and caches them for its decodes."""
    attention, source_ctx = core.attention, replace(ctx, keys=core.source, causal=False, document=0)
    (query, key_value), (out,) = parts.into, parts.out
    queries, output = product(ctx, query), product(ctx, out)
    if ctx.forward is not None:
        begun = np.maximum(steps_of(ctx).prefills * core.source, 1e-9)
        source_kv = product(ctx, key_value, rows=begun)
        begins = where_any(steps_of(ctx).prefills)
        return CoreOps(
            into=[queries, running(source_kv, begins)], out=[output], core=_cross_step(ctx, core, queries, source_kv)
        )
    source = ctx.degrees.microbatch * core.source
    source_kv, size = product(ctx, key_value, rows=source), ctx.element_bytes
    norm = [stream(ctx, "query-key norm", queries.m * queries.n, 2.0, 2.0)] if attention.qk_norm != "none" else []
    return CoreOps(
        into=[queries, source_kv],
        out=[output],
        before=(norm, norm),
        core=scores(source_ctx, attention.heads, attention.head_dim, attention.value_dim),
        exchange=_source_exchange(ctx, source * key_value.inputs),
        saved=(queries.m * (queries.n + output.k) + source_kv.m * source_kv.n) * size,
        score_bytes=score_bytes(source_ctx, attention.heads),
    )


def _cross_step(ctx: LoweringContext, core: CrossCore, queries: MatMul, both: MatMul) -> Passes:
    attention, steps, size = core.attention, steps_of(ctx), ctx.precision.kv.bytes_per_element
    read = (steps.prefills + steps.decodes) * core.source
    pairs = (steps.prefill_tokens + steps.decodes * steps.decode_tokens) * core.source
    wide, deep = (kernel_head_dim(ctx.engine.kernel, width) for width in (attention.head_dim, attention.value_dim))
    attend = Attend(
        label="cross attention",
        flops=2 * pairs * attention.heads / ctx.degrees.tp * (wide + deep),
        stream_bytes=read * both.n * size + 2 * queries.m * queries.n * ctx.element_bytes,
        head_dim=wide,
        kernels=DECODE_KERNELS,
    )
    return [Stream(label="cache write", stream_bytes=both.m * both.n * size, kernels=1.0), attend], []


def _source_exchange(ctx: LoweringContext, elements: Num) -> Passes:
    if isinstance(ctx.degrees.tp, int) and ctx.degrees.tp == 1:
        return [], []
    if not ctx.sequence_parallel:
        return [], [tensor_collective(ctx, "sum source gradients", "all-reduce", elements)]
    return (
        [tensor_collective(ctx, "gather source", "all-gather", elements)],
        [tensor_collective(ctx, "scatter source gradients", "reduce-scatter", elements)],
    )


def kernel_head_dim(library: str, head_dim: int) -> int:
    """The head size that a library's flash kernel runs a head as; beyond its largest one whole multiples of 64.

    >>> [kernel_head_dim("cudnn", size) for size in (64, 80, 128, 160, 320)], kernel_head_dim("flash-2", 80)
    ([64, 128, 128, 192, 320], 96)
    """
    sizes = HEAD_SIZES[library]
    return next((size for size in sizes if size >= head_dim), -(-head_dim // 64) * 64)


def scores(ctx: LoweringContext, heads: int, qk: int, value: int, seen: tuple[int, bool] = (0, False)) -> Passes:
    """Forward and backward of the score part. Flash executes what is visible; unfused all of it, through memory.

    A head runs as the next size that the library has a kernel for (`kernel_head_dim`).
    Documents that fill a sequence together do not see each other: `ctx.span` tokens are all there is to see.
    """
    if not ctx.flash:
        return _unfused_scores(ctx, heads, qk, value)
    tokens, tp = ctx.tokens, ctx.degrees.tp
    visible = mean_visible(ctx.span, seen[0], seen[1], ctx.causal, ctx.queries)
    wide, deep = (size if ctx.host else kernel_head_dim(ctx.engine.kernel, size) for size in (qk, value))
    pair_flops = 2 * tokens * heads / tp * (wide + deep)
    size = ctx.element_bytes
    operands = tokens * heads / tp * (2 * qk + 2 * value) * size
    steps = ring_steps(ctx)
    ring_repeats = RING_STEP * (steps - 1)
    if ctx.systolic:
        pair_flops = pair_flops * max(1.0, SYSTOLIC_DEPTH / wide)
        forward, backward = (pair_flops * _in_blocks(ctx, visible, seen, block) for block in SPLASH_BLOCKS)
    elif ctx.host:
        forward = backward = pair_flops * min(visible + host_block(ctx.queries) / 2, float(ctx.span))
    else:
        forward, backward = (
            pair_flops * (visible + _beyond(ctx, seen, extra) + ring_repeats * (extra - MASKED))
            for extra in FLASH_EXTRA
        )
    backward *= FLASH_BACKWARD
    once = 1 + ring_repeats  # times that operands are read: by every step of a ring
    shape: JsonObject = {"sizes": kernel_sizes(ctx, heads, qk, value), "steps": steps, "head_dim": wide}
    return (
        [Attend(label="attention", flops=forward, stream_bytes=once * operands, kernels=steps, **shape)],
        [
            Attend(
                label="attention dX", flops=backward, stream_bytes=3 * once * operands, backward=True,
                kernels=2 * steps, **shape,
            )
        ],
    )  # fmt: skip


def host_block(queries: int) -> int:
    """Queries that torch's flash attention for CPUs takes at once; causal ones are multiplied with keys up to the last
    of them, half a block more than is visible. Heads are as wide as they are.

    >>> host_block(128), host_block(512), host_block(4096)
    (32, 64, 256)
    """
    return next(size for least, size in HOST_BLOCKS if queries >= least)


def kernel_sizes(ctx: LoweringContext, heads: int, qk: int, value: int) -> tuple[Num, Num, Num, int, int]:
    """Heads of all sequences, queries and keys of one kernel: a step of a ring has the tokens of a rank on both sides,
    heads traded for sequence leave fewer heads with all tokens."""
    cp, rows = ctx.degrees.cp, ctx.degrees.microbatch * heads / ctx.degrees.tp
    if ctx.resolved.cp_kind == "ring":
        keys = ctx.keys / cp if not ctx.resolved.keys_gathered else ctx.keys
        return rows, ctx.queries / cp, keys, qk, value
    return rows / cp, ctx.queries, ctx.keys, qk, value


def _in_blocks(ctx: LoweringContext, visible: float, seen: tuple[int, bool], block: float) -> float:
    """Keys a query is worked on with where whole blocks of b queries and b keys are, masked or not (splash attention).

    causal   visible + b / 2        sliding window w   b (1 + ceil((w - 1) / b)), at most as if there were none
    """
    window, in_chunks = seen
    if not ctx.causal:
        return visible
    wide = min(block, ctx.span)
    if not 0 < window < ctx.span:
        return visible + wide / 2
    if in_chunks:
        return visible + min(block, window) / 2
    return min(wide * (1 + ceil((window - 1) / wide)), ctx.span / 2 + wide / 2)


def ring_steps(ctx: LoweringContext) -> Num:
    """Attention kernels that one becomes under context parallelism: one a rank of a ring, whose keys arrive in turn.

    Keys that are gathered at once, or heads traded for sequence (Ulysses), leave one kernel of the same work.
    """
    return ctx.degrees.cp if ctx.resolved.cp_kind == "ring" and not ctx.resolved.keys_gathered else 1


def _unfused_scores(ctx: LoweringContext, heads: int, qk: int, value: int) -> Passes:
    tokens, tp, size = ctx.tokens, ctx.degrees.tp, ctx.element_bytes
    forward = 2 * tokens * heads / tp * (qk + value) * float(ctx.keys)
    sizes = kernel_sizes(ctx, heads, qk, value)
    operands = tokens * heads / tp * (2 * qk + 2 * value) * size
    passes = op_passes(ctx.resolved.fuses, "score chain" if ctx.joins("score chain") else "softmax")
    matrix = tokens * ctx.keys * heads / tp * size
    return (
        [
            Attend(
                label="attention", flops=forward, stream_bytes=operands + passes.forward * matrix,
                head_dim=qk, flash=False, kernels=passes.kernels, sizes=sizes,
            )
        ],
        [
            Attend(
                label="attention dX", flops=2 * forward, stream_bytes=2 * operands + passes.backward * matrix,
                head_dim=qk, backward=True, flash=False, kernels=passes.backward_kernels, sizes=sizes,
            )
        ],
    )  # fmt: skip


def _beyond(ctx: LoweringContext, seen: tuple[int, bool], extra: float) -> float:
    """Keys' worth of work beyond what is visible: `extra` for every edge that cuts through tiles, a query's own place
    and where a sliding window begins, which the first queries do not reach: 2 - w / s. Chunks and documents begin where
    tiles do. Where a query sees both ways no tile is masked in half."""
    window, in_chunks = seen
    if not ctx.causal:
        return extra - MASKED
    slides = 0 < window < ctx.span and not in_chunks
    return extra * (2 - window / ctx.span if slides else 1.0)


def _softcap(ctx: LoweringContext, core: Attention, heads: Num) -> Passes:
    """A tanh of every score before the softmax: an exponential and a division of the special-function unit each, and
    again in the backward; no bytes where a flash kernel does it, two passes over the score matrix where none does."""
    if not core.softcap:
        return [], []
    if ctx.forward is not None:
        steps = steps_of(ctx)
        pairs = windowed_pairs(steps.prefill_tokens, steps.prefill_pairs, core.window, core.chunked)
        score_pairs = pairs + cached_tokens_read(ctx, core.window) * steps.decode_tokens
        values = 2 * score_pairs * heads / ctx.degrees.tp
        return [Stream(label="softcap", stream_bytes=0.0, exponentials=values, kernels=0.0)], []
    visible = mean_visible(ctx.span, core.window, core.chunked, ctx.causal, ctx.queries) if ctx.flash else ctx.keys
    score_values = ctx.tokens * core.heads / ctx.degrees.tp * visible
    score_traffic = 0.0 if ctx.flash else 2 * score_values * ctx.element_bytes
    forward = Stream(
        label="softcap", stream_bytes=score_traffic, exponentials=2 * score_values, kernels=0.0 if ctx.flash else 3.0
    )
    return [forward], [replace(forward, label="softcap dX", stream_bytes=2 * score_traffic)]


def rotary(ctx: LoweringContext, elements: Num, core: Attention) -> list[Op]:
    """Rotation and norm of queries and keys, where the model has them; the same bytes forward and backward."""
    rotation: list[Op] = [pointwise(ctx, "rotary", elements)] if core.positions == "rope" else []
    return [*rotation, stream(ctx, "query-key norm", elements, 2.0, 2.0)] if core.qk_norm != "none" else rotation


def output_gate(ctx: LoweringContext, elements: Num) -> Passes:
    """A sigmoid of the gate times attention's output."""
    return [pointwise(ctx, "output gate", elements)], [pointwise_back(ctx, "output gate", elements)]


def _merges(ctx: LoweringContext, kv: Num, heads: Num) -> Passes:
    """Merging what the steps of a ring make, each but the first.

        forward    o <- o e^(l - l') + o_i e^(l_i - l'): o_i read, the sum so far in 32 bits read and written
        backward   gradients of queries, keys and values read and added to those before

    l, l_i, l' = log-sum-exp of the scores so far, of this step, and of both.
    """
    steps = ring_steps(ctx)
    if isinstance(steps, int) and steps == 1:
        return [], []
    step_elements, kernels = RING_STEP * (steps - 1) * ctx.tokens / ctx.degrees.tp, RING_KERNELS * (steps - 1)
    out = heads / 2  # of queries and outputs, half of `heads` is either
    return (
        [stream(ctx, "merge ring steps", step_elements * out, 5.0, kernels)],
        [stream(ctx, "merge ring steps dX", step_elements * (out + kv), 3.0, kernels)],
    )


def context_exchange(ctx: LoweringContext, kv: Num, heads: Num) -> Passes:
    """Context parallelism, forward and backward: keys and values travel round the ring, or heads are exchanged for
    sequence. Backward, keys and values go round again with the gradients they gather."""
    cp, size = ctx.degrees.cp, ctx.element_bytes
    if isinstance(cp, int) and cp == 1:
        return [], []
    tokens, tp = ctx.tokens, ctx.degrees.tp
    if ctx.resolved.cp_kind == "ring":
        label, payload = "context ring", tokens * cp * kv / tp * size
        once = Collective(label=label, kind="all-gather", axis="cp", payload_bytes=payload, ranks=cp, stride=tp)
        merges = _merges(ctx, kv, heads)
        back = replace(once, label=f"{label} dX", payload_bytes=2 * payload)
        return [once, *merges[0]], [back, *merges[1]]
    payload = tokens * (heads + kv) / tp * size
    swap = Collective(
        label="context exchange", kind="all-to-all", axis="cp", payload_bytes=payload, ranks=cp, stride=tp,
        parts=tuple(width / (heads + kv) for width in (heads / 2, heads / 2, kv / 2, kv / 2)),
    )  # fmt: skip
    return [swap], [swap]


def heads_for_sequence(ctx: LoweringContext, into: Num, out: Num) -> Passes:
    """Context parallelism of a recurrence, whose heads need all tokens: ranks trade heads for sequence before the scan
    (`into` elements a token) and back behind it (`out`), whatever attention does (Megatron-Core's Mamba layers)."""
    cp, tp = ctx.degrees.cp, ctx.degrees.tp
    if isinstance(cp, int) and cp == 1:
        return [], []
    payload = ctx.tokens * (into + out) / tp * ctx.element_bytes
    swap = Collective(
        label="heads for sequence", kind="all-to-all", axis="cp", payload_bytes=payload, ranks=cp, stride=tp,
        parts=(into / (into + out), out / (into + out)),
    )  # fmt: skip
    return [swap], [swap]


def windowed_pairs(tokens: Num, pairs: Num, window: int, chunked: bool = False) -> Num:
    """Pairs that are left where a query sees the last `window` tokens: of t tokens with p pairs, which look like a
    sequence of s = 2 p / t,

        sliding   t (w - w^2 / (2 s))        chunked   t w / 2        where w < s

    >>> windowed_pairs(8192, 8192 * 4096, 4096), windowed_pairs(1024, 1024 * 512, 4096)
    (25165824.0, 524288.0)
    """
    if not window:
        return pairs
    context = np.maximum(2 * pairs / np.maximum(tokens, 1.0), 1.0)
    inside = tokens * (window / 2 if chunked else window - window**2 / (2 * context))
    visible = np.where(window < context, np.minimum(inside, pairs), pairs)
    return visible if visible.ndim else float(visible)


def bucket(tokens: Num) -> Num:
    """The compiled context that so many tokens run in: the next power of two, 128 at least.

    >>> [float(bucket(tokens)) for tokens in (1.0, 129.0, 4096.0, 4097.0)]
    [128.0, 256.0, 4096.0, 8192.0]
    """
    return 2.0 ** np.ceil(np.log2(np.maximum(tokens, SMALLEST_BUCKET)))


def cached_tokens_read(ctx: LoweringContext, window: int) -> Num:
    """Cached tokens that decodes read: all, or at most a window of each request's; the whole bucket where programs are
    compiled for one."""
    steps = steps_of(ctx)
    read: Num = steps.kv_tokens
    if (ctx.engine.serves or BARE).static_shapes:
        request_tokens = steps.kv_tokens / np.maximum(steps.decodes, 1.0)
        read = np.where(steps.decodes > 0, steps.decodes * bucket(request_tokens), 0.0)
    return np.minimum(read, steps.decodes * window) if window else read


def cache_write(ctx: LoweringContext, elements: Num) -> Stream:
    """New keys and values, read as they are computed and written into their blocks of the cache."""
    size = ctx.element_bytes + ctx.precision.kv.bytes_per_element
    return Stream(label="cache write", stream_bytes=elements * size, kernels=1.0)


def prefill_scores(
    ctx: LoweringContext, heads: Num, widths: tuple[int, int], seen: tuple[int, bool] = (0, False), causal: bool = True
) -> Attend:
    """Flash attention of the step's prompt chunks: flops of visible pairs, and of the masked parts of tiles. Where
    queries see both ways, sequences are read whole and every pair counts: twice those of a chunk."""
    steps, tp = steps_of(ctx), ctx.degrees.tp
    tokens, pairs = steps.prefill_tokens, windowed_pairs(steps.prefill_tokens, steps.prefill_pairs, *seen)
    if not causal:
        all_pairs = 2 * steps.prefill_pairs
        pairs = np.minimum(all_pairs, tokens * seen[0]) if seen[0] else all_pairs
    wide, deep = (kernel_head_dim(ctx.engine.kernel, size) for size in widths)
    size = ctx.element_bytes
    return Attend(
        label="prefill attention",
        flops=2 * heads / tp * (wide + deep) * (pairs + FLASH_EXTRA[0] * tokens),
        stream_bytes=tokens * heads / tp * (2 * widths[0] + 2 * widths[1]) * size,
        head_dim=wide,
        kernels=where_any(tokens),
    )


def _decode_scores(ctx: LoweringContext, core: Attention, heads: Num, row: Num) -> Attend:
    """Flash decoding: every cached key and value of a decode is read once by all query heads that share it. Where the
    engine's kernels for such groups do not use matrix units, every query head works through all of it."""
    steps, tp = steps_of(ctx), ctx.degrees.tp
    read, size = cached_tokens_read(ctx, core.window), ctx.element_bytes
    widths, queries = core.head_dim + core.value_dim, steps.decodes * steps.decode_tokens
    local = max(1.0, core.kv_heads / float(np.max(tp)))
    group, matrix_groups = max(1.0, core.heads / float(np.max(tp)) / local), (ctx.engine.serves or BARE).shared_groups
    return Attend(
        label="decode attention" if matrix_groups is None or group in matrix_groups else VECTOR_ATTENTION,
        flops=2 * read * steps.decode_tokens * heads / tp * widths,
        stream_bytes=read * row * ctx.precision.kv.bytes_per_element + queries * heads / tp * widths * size,
        head_dim=core.head_dim,
        kernels=DECODE_KERNELS * where_any(steps.decodes),
        caches=steps.decodes * local,
        sharing=group,
    )
