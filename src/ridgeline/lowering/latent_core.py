"""Turn latent (MLA) and compressed attention (DeepSeek-V4: one shared key-value head, near tokens and pooled entries)
into ops. In MLA keys and values are expanded for every head, or queries moved into the latent.

    a sequence       expanded; with an indexer over the tokens it picks, whose latents are gathered (DSA), where that
                     takes fewer flops
    an engine step   prompts expanded, decodes in the latent over their cached latents

In the latent all heads share what they read (MLA in its MQA form). An indexer scores every visible token with few small
heads, picks the best, and learns from what attention made of them. Every tensor rank needs the whole choice, so each
scores with all of the indexer's heads (as Megatron-Core does).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.ir.ops import Attend, MatMul, Num, Op, Stream
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.op_builders import (
    CoreOps,
    Passes,
    SublayerOps,
    casts,
    gradient_casts,
    matmul,
    product,
    running,
    saved_bytes,
    steps_of,
    stream,
    tensor_collective,
    weight_gradient,
    where_any,
)
from ridgeline.lowering.softmax_core import (
    DECODE_KERNELS,
    cache_write,
    cached_tokens_read,
    context_exchange,
    prefill_scores,
    score_bytes,
    scores,
    windowed_pairs,
)
from ridgeline.models.facts import mean_visible
from ridgeline.models.parts import LatentCore, MixerParts, PooledCore
from ridgeline.models.spec import Indexer

LOGIT_BYTES = 4.0  # index scores, summed over heads, and the indices of what is picked
SUM_BYTES = 4.0  # what tensor ranks sum up of the weights that attention gave to picked tokens
INDEX_BYTES = 1.0  # an indexer's keys and scores are 8 bits wide in an engine's cache


def latent_ops(ctx: LoweringContext, parts: MixerParts, core: LatentCore) -> CoreOps:
    """Latent attention in the form that training or an engine step has of it."""
    if ctx.forward is not None:
        return _latent_step(ctx, parts, core)
    if core.indexer is not None and is_sparse(ctx, core):
        return _gathered_form(ctx, parts, core, core.indexer)
    return _expanded_form(ctx, parts, core)


def _expanded_form(ctx: LoweringContext, parts: MixerParts, core: LatentCore) -> CoreOps:
    tp, tokens = ctx.degrees.tp, ctx.tokens
    into = [product(ctx, part) for part in parts.into]
    rotation: Op = stream(ctx, "rotary and concat", tokens * core.heads * core.key_dim / tp, 2.0, 3.0)
    before: list[Op] = [stream(ctx, "latent norms", ctx.split_tokens * core.latents, 4.0, 2.0), rotation]
    widths = core.heads * (core.key_dim + core.value_dim)
    up = tokens * core.heads * (2 * core.key_dim + core.value_dim) / tp
    return CoreOps(
        into=into,
        out=[product(ctx, part) for part in parts.out],
        before=(before, before),
        core=scores(ctx, core.heads, core.key_dim, core.value_dim),
        exchange=context_exchange(ctx, widths, widths),
        saved=saved_bytes(ctx, parts),
        score_bytes=score_bytes(ctx, core.heads),
        up=(*into[1:], rotation),
        saved_up=up * ctx.element_bytes,
    )


def absorbing_products(ctx: LoweringContext, core: LatentCore, rows: Num) -> tuple[MatMul, MatMul]:
    """Queries into the latent and values out of it, a product a head: as many flops as expanding keys and values."""
    heads = core.heads / ctx.degrees.tp
    return (
        matmul(ctx, "query into latent", rows, core.kv_rank, core.nope_dim, heads),
        matmul(ctx, "value up", rows, core.value_dim, core.kv_rank, heads),
    )


def is_sparse(ctx: LoweringContext, core: LatentCore) -> bool:
    """Whether attention gathers what was picked. Short sequences mask what was not, in the form with expanded keys,
    which takes fewer flops there:

        n H (2 c + r)  <  s H (n' + r + v)        n, s = picked and visible tokens

    H = heads, c = kv_rank, r = rope_dim, n' = nope_dim, v = v_dim.
    """
    if core.indexer is None or not ctx.flash:
        return False
    return picked_tokens(ctx, core.indexer) * core.absorbed < visible(ctx) * (core.key_dim + core.value_dim)


def visible(ctx: LoweringContext) -> float:
    """Tokens the indexer scores for a query, on average."""
    return mean_visible(ctx.span, causal=ctx.causal, queries=ctx.queries)


def picked_tokens(ctx: LoweringContext, indexer: Indexer) -> float:
    """Tokens it picks: topk, or all that are visible to the first ones."""
    return mean_visible(ctx.span, indexer.topk, causal=ctx.causal, queries=ctx.queries)


def _gathered_form(ctx: LoweringContext, parts: MixerParts, core: LatentCore, indexer: Indexer) -> CoreOps:
    """Attention over picked tokens: queries are moved into the latent, results out of it.

        forward flops   2 T n H (2 c + r)        gathered   T n (c + r)        T = tokens, n = picked a token

    c = kv_rank, r = rope_dim, H = heads. What is picked is gathered for each query at the rate of memory: FlashMLA's
    sparse kernels, 640 TFLOP/s on H800 and 1450 on B200, gather at 0.8 of it.
    """
    tp, tokens, heads = ctx.degrees.tp, ctx.tokens, core.heads
    rank, rope = core.kv_rank, core.rope_dim
    absorb, value_up = absorbing_products(ctx, core, tokens)
    into = [*(product(ctx, part) for part in parts.into[:2]), absorb]
    rotation: Op = stream(ctx, "rotary and concat", tokens * heads * (rank + rope) / tp, 2.0, 3.0)
    before: list[Op] = [stream(ctx, "latent norms", ctx.split_tokens * core.latents, 4.0, 2.0), rotation]
    queries = tokens * heads * (core.key_dim + rank + rope) / tp
    results = tokens * heads * (rank + core.value_dim) / tp
    return CoreOps(
        into=into,
        out=[value_up, *(product(ctx, part) for part in parts.out)],
        before=(before, before),
        core=_gathered_scores(ctx, core, picked_tokens(ctx, indexer)),
        # latents are whole on every tensor rank
        exchange=context_exchange(ctx, (rank + rope) * tp, heads * core.absorbed),
        saved=(ctx.split_tokens * core.latents + tokens * (rank + rope) + queries + results) * ctx.element_bytes,
        up=(*into[1:], rotation),
        saved_up=queries * ctx.element_bytes,
    )


def _gathered_scores(ctx: LoweringContext, core: LatentCore, tokens: float) -> Passes:
    """Forward two products a score, backward five. Backward gathers again, and adds gradients to what it gathered:
    in the last cache, at more than memory's rate, so that 32-bit sums count as one more pass."""
    size = ctx.element_bytes
    heads = ctx.tokens * core.heads / ctx.degrees.tp
    flops = 2 * heads * tokens * core.absorbed
    operands, gathered_elements = heads * core.absorbed * size, ctx.tokens * tokens * (core.kv_rank + core.rope_dim)
    middle = core.absorbed // 2  # of a score's two products
    forward = Attend(label="attention", flops=flops, stream_bytes=operands + gathered_elements * size, head_dim=middle)
    backward = Attend(
        label="attention dX", flops=2.5 * flops, stream_bytes=3 * operands + 2 * gathered_elements * size,
        head_dim=middle, backward=True, kernels=2,
    )  # fmt: skip
    return [forward], [backward]


def _latent_step(ctx: LoweringContext, parts: MixerParts, core: LatentCore) -> CoreOps:
    """An engine step: prompts with keys and values expanded for every head, decodes in the latent.

        decode   2 n H (2 c + r) flops and n (c + r) cached numbers        n = cached tokens read

    H = heads of a rank, c = kv_rank, r = rope_dim. Every tensor rank holds the whole latents. An indexer scores all
    cached tokens of a decode and leaves its topk of them.
    """
    steps, heads = steps_of(ctx), core.heads / ctx.degrees.tp
    topk = core.indexer.topk if core.indexer else 0
    decoded_tokens = steps.decodes * steps.decode_tokens
    absorb, value_up = absorbing_products(ctx, core, decoded_tokens)
    down, query_up, key_value_up = parts.into
    before: list[Op] = [
        stream(ctx, "latent norms", ctx.tokens * core.latents, 4.0, 2.0),
        stream(ctx, "rotary", ctx.tokens * (heads + 1) * core.rope_dim, 2.0, 1.0),
    ]
    read, size = cached_tokens_read(ctx, topk), ctx.element_bytes
    row = core.kv_rank + core.rope_dim
    decode = Attend(
        label="decode attention",
        flops=2 * read * steps.decode_tokens * heads * core.absorbed,
        stream_bytes=read * row * ctx.precision.kv.bytes_per_element + decoded_tokens * heads * core.absorbed * size,
        head_dim=row,
        kernels=DECODE_KERNELS * where_any(steps.decodes),
        caches=steps.decodes,
        sharing=float(np.max(heads)),
    )
    prefill = prefill_scores(ctx, core.heads, (core.key_dim, core.value_dim), (topk, False))
    return CoreOps(
        into=[
            product(ctx, down),
            product(ctx, query_up),
            running(product(ctx, key_value_up, rows=steps.prefill_tokens)),
            running(absorb),
        ],
        out=[running(value_up), *(product(ctx, part) for part in parts.out)],
        before=(before, []),
        core=([cache_write(ctx, ctx.tokens * row), prefill, decode, *_step_indexer(ctx, parts, core)], []),
    )


def _step_indexer(ctx: LoweringContext, parts: MixerParts, core: LatentCore) -> list[Op]:
    """Scoring all cached tokens with an indexer's small heads: its keys are read once a decode."""
    indexer, steps = core.indexer, steps_of(ctx)
    if indexer is None or not parts.index:
        return []
    pairs = steps.kv_tokens * steps.decode_tokens + steps.prefill_pairs
    query = replace(product(ctx, parts.index[0]), label="index queries")
    return [query, index_scores(indexer, pairs, steps.kv_tokens)]


def index_scores(indexer: Indexer, pairs: Num, keys: Num) -> Attend:
    """Scores of an indexer in an engine step: so many pairs of a query and a key, keys that are read once."""
    return Attend(
        label="index scores",
        flops=2 * pairs * indexer.heads * indexer.head_dim,
        stream_bytes=keys * indexer.head_dim * INDEX_BYTES + pairs * LOGIT_BYTES,
        head_dim=indexer.head_dim,
        kernels=3.0,
    )


def lower_indexer(ctx: LoweringContext, parts: MixerParts, indexer: Indexer) -> SublayerOps:
    """The indexer of one layer in training.

        products   T (q I i  +  h (i + I))      scores   T s I i      two flops each      backward   T n I i, thrice

    I = heads of size i, q = q_rank, h = hidden, s and n = visible and picked tokens. Its scores are summed over heads
    and written in 32 bits; picking reads them twice. It learns to score the picked tokens as attention weighed them,
    on inputs cut off from the model: no gradient goes on, and tensor ranks sum up what their heads weighed.
    """
    tokens, heads, dim = ctx.tokens, indexer.heads, indexer.head_dim
    visible_tokens, chosen = visible(ctx), picked_tokens(ctx, indexer)
    query, key = (product(ctx, part) for part in parts.index)
    operands = tokens * (heads + 1) * dim
    exchange = context_exchange(ctx, dim * ctx.degrees.tp, heads * dim * ctx.degrees.tp)
    pick = tokens * (2 * visible_tokens + chosen) * LOGIT_BYTES
    forward: list[Op] = [
        *casts(ctx, [query, key]), key, query,
        stream(ctx, "index norm and rotary", operands, 4.0, 4.0),
        *exchange[0],
        Attend(
            label="index scores", flops=2 * tokens * visible_tokens * heads * dim,
            stream_bytes=operands * ctx.element_bytes + tokens * visible_tokens * LOGIT_BYTES, head_dim=dim,
        ),
        Stream(label="index top-k", stream_bytes=pick, kernels=2.0),
    ]  # fmt: skip
    indices = tokens * chosen * LOGIT_BYTES
    if ctx.frozen or not ctx.backward:
        return SublayerOps(forward=tuple(forward), saved=indices, saved_selective=indices)
    learn = Attend(
        label="index scores dX", flops=3 * 2 * tokens * chosen * heads * dim,
        stream_bytes=(3 * operands + 2 * tokens * chosen * dim) * ctx.element_bytes, head_dim=dim, backward=True,
    )  # fmt: skip
    target = [tensor_collective(ctx, "index target", "all-reduce", tokens * chosen * SUM_BYTES / ctx.element_bytes)]
    single = isinstance(ctx.degrees.tp, int) and ctx.degrees.tp == 1
    saved_bytes = (operands + tokens * heads) * ctx.element_bytes + indices
    return SublayerOps(
        forward=tuple(forward),
        backward_input=(
            *([] if single else target), learn, *exchange[1],
            stream(ctx, "index norm and rotary dX", operands, 4.0, 4.0), *gradient_casts(ctx, [query, key]),
        ),
        backward_weight=(weight_gradient(query, ctx.gradient_bytes), weight_gradient(key, ctx.gradient_bytes)),
        saved=saved_bytes,
        saved_selective=saved_bytes,
    )  # fmt: skip


def pooled_ops(ctx: LoweringContext, parts: MixerParts, core: PooledCore) -> CoreOps:
    """Compressed attention: norms, rotation and pooling, then scores of a sequence or of an engine step.

        pooling     every token makes values and gates; a softmax over the places of an entry weighs them together
        indexer     scores every entry that is visible and picks some (CSA); without one all are seen (HCA)
        attention   over the window and those entries, whose single head serves as key and as value

    Tensor ranks split heads and groups of the output; key, pooling and indexer every rank makes whole, as the choice of
    entries must be the same on each.
    """
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
        core=_pooled_sequence(ctx, parts, core) if ctx.forward is None else _pooled_step(ctx, parts, core),
        exchange=context_exchange(ctx, 2 * dim * tp, 2 * core.heads * dim),
        saved=saved_bytes(ctx, parts),
    )


def _pooled_sequence(ctx: LoweringContext, parts: MixerParts, core: PooledCore) -> Passes:
    """Attention forward and backward, two products a score and five, over the entries that queries gather, as in sparse
    latent attention; an indexer's scores before it, which learn from picked entries alone.

    forward flops   4 T n H d  +  2 T e I i        T = tokens, n = seen, e = scored entries, H heads of size d, I of i
    """
    near = mean_visible(ctx.span, core.window, causal=ctx.causal, queries=ctx.queries)
    topk = core.indexer.topk * core.rate if core.indexer else 0
    pooled_entries = _entries(ctx, core.rate, topk)
    size, dim = ctx.element_bytes, core.head_dim
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


def _pooled_step(ctx: LoweringContext, parts: MixerParts, core: PooledCore) -> Passes:
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
    size = ctx.element_bytes
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
