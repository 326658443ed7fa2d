"""Turn compressed attention (DeepSeek-V4: one shared key-value head, near tokens and pooled entries) into ops.

    pooling     every token makes values and gates; a softmax over the places of an entry weighs them together
    indexer     scores every entry that is visible and picks some (CSA); without one all are seen (HCA)
    attention   over the window and those entries, whose single head serves as key and as value
    output      heads in groups, each projected down by itself, then all of them together

Tensor ranks split heads and groups of the output; key, pooling and indexer every rank makes whole, as the choice of
entries must be the same on each.
"""

from __future__ import annotations

from ridgeline.ir.ops import Attend, MatMul, Op, Stream
from ridgeline.lowering.attention_core import Passes, context_exchange
from ridgeline.lowering.context import LoweringContext, matmul, stream
from ridgeline.lowering.mixer_parts import MixerParts, assembled
from ridgeline.lowering.sublayer import SublayerOps
from ridgeline.lowering.tensor_boundary import Sides
from ridgeline.models.attended_tokens import mean_visible
from ridgeline.models.spec import CompressedAttention, Indexer

LOGIT_BYTES = 4.0  # index scores, summed over heads, and the indices of what is picked


def lower_compressed(ctx: LoweringContext, mixer: CompressedAttention, sides: Sides) -> SublayerOps:
    """Training: what is seen is gathered for each query, as in sparse latent attention.

    forward flops   4 T n H d  +  2 T e I i        T = tokens, n = seen, e = scored entries, H heads of size d, I of i
    """
    tokens, tp, dim = ctx.tokens, ctx.degrees.tp, mixer.head_dim
    size = ctx.precision.activations.bytes_per_element
    wide, low = mixer.heads * dim / tp, mixer.o_groups * mixer.o_rank / tp
    into, index = compressed_products(ctx, mixer)
    around: list[Op] = [
        stream(ctx, "latent norms", tokens * (mixer.q_rank + dim), 4.0, 2.0),
        stream(ctx, "query norm and rotary", tokens * wide, 2.0, 2.0),
        *pooling(ctx, mixer),
    ]
    parts = MixerParts(
        into=[*into, *index],
        out_of=compressed_output(ctx, mixer),
        around=(around, around),
        core=_scores(ctx, mixer),
        exchange=context_exchange(ctx, 2 * dim * tp, 2 * mixer.heads * dim),
        saved=tokens * (mixer.q_rank + 2 * dim + 2 * mixer.pooled + 3 * wide + low) * size,
    )
    return assembled(ctx, mixer, parts, sides)


def compressed_products(ctx: LoweringContext, mixer: CompressedAttention) -> tuple[list[MatMul], list[MatMul]]:
    """Products into attention: latent and queries, key and pooling; and those of an indexer."""
    tokens, hidden, tp = ctx.tokens, ctx.model.hidden, ctx.degrees.tp
    into = [
        matmul(ctx, "latent down", tokens, mixer.q_rank + mixer.head_dim + 2 * mixer.pooled, hidden),
        matmul(ctx, "query up", tokens, mixer.heads * mixer.head_dim / tp, mixer.q_rank),
    ]
    indexer = mixer.indexer
    if indexer is None or indexer.shared:
        return into, []
    keys = 2 * index_pooled(mixer, indexer) + indexer.heads
    return into, [
        matmul(ctx, "index query", tokens, indexer.heads * indexer.head_dim, mixer.q_rank),
        matmul(ctx, "index key and weights", tokens, keys, hidden),
    ]


def compressed_output(ctx: LoweringContext, mixer: CompressedAttention) -> list[MatMul]:
    """Heads in groups to a low rank each, then all groups to the model's width."""
    tp, each = ctx.degrees.tp, mixer.heads * mixer.head_dim / mixer.o_groups
    return [
        matmul(ctx, "output down", ctx.tokens, mixer.o_rank, each, mixer.o_groups / tp),
        matmul(ctx, "attention out", ctx.tokens, ctx.model.hidden, mixer.o_groups * mixer.o_rank / tp),
    ]


def pooling(ctx: LoweringContext, mixer: CompressedAttention) -> list[Op]:
    """Values and gates of tokens read, a softmax over the places of an entry, one entry written of `rate` tokens."""
    if not mixer.rate:
        return []
    indexer = mixer.indexer
    wide = mixer.pooled + (index_pooled(mixer, indexer) if indexer and not indexer.shared else 0)
    return [stream(ctx, "pooling", ctx.tokens * wide, 3.0, 4.0)]


def _scores(ctx: LoweringContext, mixer: CompressedAttention) -> Passes:
    """Attention forward and backward, two products a score and five, over the entries that queries gather; an
    indexer's scores before it, which learn from picked entries alone."""
    near, pooled, scored = mean_entries(mixer, ctx.span, ctx.causal, ctx.queries)
    size, dim = ctx.precision.activations.bytes_per_element, mixer.head_dim
    heads = ctx.tokens * mixer.heads / ctx.degrees.tp
    flops, operands = 4 * heads * (near + pooled) * dim, 3 * heads * dim * size
    picked = pooled if mixer.indexer else 0.0  # window and all entries are read in tiles
    gathered = ctx.tokens * picked * dim * size
    forward: list[Op] = [
        Attend(label="attention", flops=flops, stream_bytes=operands + gathered, head_dim=dim),
    ]
    backward: list[Op] = [
        Attend(
            label="attention dX", flops=2.5 * flops, stream_bytes=3 * operands + 2 * gathered, head_dim=dim,
            backward=True, kernels=2,
        )
    ]  # fmt: skip
    indexer = mixer.indexer
    if indexer is None or indexer.shared:
        return forward, backward
    work = 2 * ctx.tokens * indexer.heads * indexer.head_dim
    moved = ctx.tokens * (indexer.heads * indexer.head_dim * size + scored * LOGIT_BYTES)
    index: list[Op] = [
        Attend(label="index scores", flops=work * scored, stream_bytes=moved, head_dim=indexer.head_dim),
        Stream(label="index top-k", stream_bytes=ctx.tokens * (2 * scored + picked) * LOGIT_BYTES, kernels=2.0),
    ]
    learn = Attend(
        label="index scores dX", flops=3 * work * picked, stream_bytes=2 * moved, head_dim=indexer.head_dim,
        backward=True,
    )  # fmt: skip
    return [*index, *forward], [*backward, learn]


def index_pooled(mixer: CompressedAttention, indexer: Indexer) -> int:
    """Elements of a token that an indexer pools into its own entries."""
    return (2 if mixer.overlap else 1) * indexer.head_dim


def mean_entries(
    mixer: CompressedAttention, context: int, causal: bool = True, queries: int | None = None
) -> tuple[float, float, float]:
    """Near tokens and pooled entries that a query sees on average, and entries that are scored for it."""
    near = mean_visible(context, mixer.window, causal=causal, queries=queries)
    if not mixer.rate:
        return near, 0.0, 0.0
    picked = mixer.indexer.topk * mixer.rate if mixer.indexer else 0
    pooled = mean_visible(context, picked, causal=causal, queries=queries) / mixer.rate
    scored = mean_visible(context, causal=causal, queries=queries) / mixer.rate
    return near, pooled, scored if mixer.indexer and not mixer.indexer.shared else 0.0
