"""Turn compressed attention (DeepSeek-V4: one shared key-value head, near tokens and pooled entries) into ops.

    pooling     every token makes values and gates; a softmax over the places of an entry weighs them together
    indexer     scores every entry that is visible and picks some (CSA); without one all are seen (HCA)
    attention   over the window and those entries, whose single head serves as key and as value

Tensor ranks split heads and groups of the output; key, pooling and indexer every rank makes whole, as the choice of
entries must be the same on each.
"""

from __future__ import annotations

import numpy as np

from ridgeline.ir.ops import Attend, Op, Stream
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.core_ops import CoreOps, product, saved_bytes, steps_of, where_any
from ridgeline.lowering.latent_core import LOGIT_BYTES, index_scores
from ridgeline.lowering.op_builders import Passes, stream
from ridgeline.lowering.softmax_core import (
    DECODE_KERNELS,
    cache_write,
    cached_tokens_read,
    context_exchange,
    windowed_pairs,
)
from ridgeline.models.flops import mean_visible
from ridgeline.models.parts import MixerParts, PooledCore


def pooled_ops(ctx: LoweringContext, parts: MixerParts, core: PooledCore) -> CoreOps:
    """Compressed attention: norms, rotation and pooling, then scores of a sequence or of an engine step."""
    tp, tokens, dim = ctx.degrees.tp, ctx.tokens, core.head_dim
    before: list[Op] = [
        stream(ctx, "latent norms", tokens * (core.q_rank + dim), 4.0, 2.0),
        stream(ctx, "query norm and rotary", tokens * core.heads * dim / tp, 2.0, 2.0),
    ]
    if core.rate:  # values and gates read, a softmax over the places of an entry, one entry written of `rate` tokens
        before.append(stream(ctx, "pooling", tokens * (core.pooled + core.index_pooled), 3.0, 4.0))
    return CoreOps(
        into=[product(ctx, part) for part in (*parts.into, *parts.index)],
        out=[product(ctx, part) for part in parts.out],
        before=(before, before),
        core=_sequence(ctx, parts, core) if ctx.forward is None else _step(ctx, parts, core),
        exchange=context_exchange(ctx, 2 * dim * tp, 2 * core.heads * dim),
        saved=saved_bytes(ctx, parts),
    )


def _sequence(ctx: LoweringContext, parts: MixerParts, core: PooledCore) -> Passes:
    """Attention forward and backward, two products a score and five, over the entries that queries gather, as in sparse
    latent attention; an indexer's scores before it, which learn from picked entries alone.

    forward flops   4 T n H d  +  2 T e I i        T = tokens, n = seen, e = scored entries, H heads of size d, I of i
    """
    near = mean_visible(ctx.span, core.window, causal=ctx.causal, queries=ctx.queries)
    topk = core.indexer.topk * core.rate if core.indexer else 0
    pooled_entries = _entries(ctx, core.rate, topk)
    size, dim = ctx.precision.activations.bytes_per_element, core.head_dim
    heads = ctx.tokens * core.heads / ctx.degrees.tp
    flops, operands = 4 * heads * (near + pooled_entries) * dim, 3 * heads * dim * size
    picked_entries = pooled_entries if core.indexer else 0.0  # window and all entries are read in tiles
    gathered_bytes = ctx.tokens * picked_entries * dim * size
    forward = Attend(label="attention", flops=flops, stream_bytes=operands + gathered_bytes, head_dim=dim)
    backward = Attend(
        label="attention dX", flops=2.5 * flops, stream_bytes=3 * operands + 2 * gathered_bytes, head_dim=dim,
        backward=True, kernels=2,
    )  # fmt: skip
    indexer = core.indexer
    if indexer is None or not parts.index:
        return [forward], [backward]
    scored_entries = _entries(ctx, core.rate, 0)
    work = 2 * ctx.tokens * indexer.heads * indexer.head_dim
    index_bytes = ctx.tokens * (indexer.heads * indexer.head_dim * size + scored_entries * LOGIT_BYTES)
    index: list[Op] = [
        Attend(label="index scores", flops=work * scored_entries, stream_bytes=index_bytes, head_dim=indexer.head_dim),
        Stream(
            label="index top-k",
            stream_bytes=ctx.tokens * (2 * scored_entries + picked_entries) * LOGIT_BYTES,
            kernels=2.0,
        ),
    ]
    learn = Attend(
        label="index scores dX", flops=3 * work * picked_entries, stream_bytes=2 * index_bytes,
        head_dim=indexer.head_dim, backward=True,
    )  # fmt: skip
    return [*index, forward], [backward, learn]


def _entries(ctx: LoweringContext, rate: int, tokens: int) -> float:
    """Pooled entries that a query sees on average: all, or those of so many tokens."""
    return mean_visible(ctx.span, tokens, causal=ctx.causal, queries=ctx.queries) / rate if rate else 0.0


def _step(ctx: LoweringContext, parts: MixerParts, core: PooledCore) -> Passes:
    """Prompts over what they see, decodes over their window and the entries that are picked.

        decode   4 n H d flops and n d cached numbers        n = window and picked entries of the cached tokens

    H = heads of a rank of size d. Every tensor rank holds the whole cache.
    """
    steps, heads, dim, rate = steps_of(ctx), core.heads / ctx.degrees.tp, core.head_dim, core.rate
    entries = steps.kv_tokens / rate if rate else 0.0
    picked_entries = np.minimum(entries, steps.decodes * core.indexer.topk) if core.indexer else entries
    read = cached_tokens_read(ctx, core.window) + picked_entries
    decoded_tokens = steps.decodes * steps.decode_tokens
    pairs = windowed_pairs(steps.prefill_tokens, steps.prefill_pairs, core.window)
    if rate:
        span = core.indexer.topk * rate if core.indexer else 0
        pairs = pairs + windowed_pairs(steps.prefill_tokens, steps.prefill_pairs, span) / rate
    size = ctx.precision.activations.bytes_per_element
    ops: list[Op] = [
        cache_write(ctx, ctx.tokens * sum(row.elements / row.rate for row in parts.cache)),
        Attend(
            label="prefill attention", flops=4 * pairs * heads * dim,
            stream_bytes=3 * steps.prefill_tokens * heads * dim * size, head_dim=dim,
            kernels=where_any(steps.prefill_tokens),
        ),
        Attend(
            label="decode attention", flops=4 * read * steps.decode_tokens * heads * dim,
            stream_bytes=read * dim * ctx.precision.kv.bytes_per_element + 3 * decoded_tokens * heads * dim * size,
            head_dim=dim, kernels=DECODE_KERNELS * where_any(steps.decodes), caches=steps.decodes,
            sharing=float(np.max(heads)),
        ),
    ]  # fmt: skip
    if core.indexer is None or not parts.index:
        return ops, []
    scored_pairs = (steps.kv_tokens * steps.decode_tokens + steps.prefill_pairs) / rate
    return [index_scores(core.indexer, scored_pairs, steps.kv_tokens / rate), *ops], []
