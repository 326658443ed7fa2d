"""Turn sparse latent attention (DSA: an indexer picks `topk` tokens a query looks at) into ops.

    indexer     scores every visible token with few small heads, picks the best, learns from what attention made of them
    attention   over the picked tokens alone, whose latents are gathered: all heads share them (MLA in its MQA form)

Every tensor rank needs the whole choice, so each scores with all of the indexer's heads (as Megatron-Core does).
"""

from __future__ import annotations

from ridgeline.ir.ops import Attend, Op, Stream
from ridgeline.lowering.attention_core import Passes, context_exchange
from ridgeline.lowering.casts import casts, gradient_casts
from ridgeline.lowering.context import LoweringContext, matmul, stream, tensor_collective, weight_gradient
from ridgeline.lowering.mixer_parts import MixerParts, assembled
from ridgeline.lowering.sublayer import SublayerOps
from ridgeline.lowering.tensor_boundary import Sides
from ridgeline.models.facts import mean_visible
from ridgeline.models.spec import Indexer, LatentAttention

LOGIT_BYTES = 4.0  # index scores, summed over heads, and the indices of what is picked
SUM_BYTES = 4.0  # what tensor ranks sum up of the weights that attention gave to picked tokens


def is_sparse(ctx: LoweringContext, mixer: LatentAttention) -> bool:
    """Whether attention gathers what was picked. Short sequences mask what was not, in the form with expanded keys,
    which takes fewer flops there:

        n H (2 c + r)  <  s H (n' + r + v)        n, s = picked and visible tokens

    H = heads, c = kv_rank, r = rope_dim, n' = nope_dim, v = v_dim.
    """
    if mixer.indexer is None or not ctx.flash:
        return False
    expanded = visible(ctx) * (mixer.nope_dim + mixer.rope_dim + mixer.v_dim)
    return picked(ctx, mixer.indexer) * (2 * mixer.kv_rank + mixer.rope_dim) < expanded


def visible(ctx: LoweringContext) -> float:
    """Tokens the indexer scores for a query, on average."""
    return mean_visible(ctx.span, causal=ctx.causal, queries=ctx.queries)


def picked(ctx: LoweringContext, indexer: Indexer) -> float:
    """Tokens it picks: topk, or all that are visible to the first ones."""
    return mean_visible(ctx.span, indexer.topk, causal=ctx.causal, queries=ctx.queries)


def lower_sparse(ctx: LoweringContext, mixer: LatentAttention, indexer: Indexer, sides: Sides) -> SublayerOps:
    """Latent attention over picked tokens: queries are moved into the latent, results out of it.

        forward flops   2 T n H (2 c + r)        gathered   T n (c + r)        T = tokens, n = picked a token

    c = kv_rank, r = rope_dim, H = heads. Projections have as many flops as with expanded keys and values: one product
    a head into the latent instead of keys, one out of it instead of values. What is picked is gathered for each query
    at the rate of memory: FlashMLA's sparse kernels, 640 TFLOP/s on H800 and 1450 on B200, gather at 0.8 of it.
    """
    tp, tokens, hidden, heads = ctx.degrees.tp, ctx.tokens, ctx.model.hidden, mixer.heads
    rank, rope, qk = mixer.kv_rank, mixer.rope_dim, mixer.nope_dim + mixer.rope_dim
    down = rank + rope + mixer.q_rank
    into = [
        matmul(ctx, "latent down", ctx.split_tokens, down, hidden),
        matmul(ctx, "query up", tokens, heads * qk / tp, mixer.q_rank or hidden),
        matmul(ctx, "query into latent", tokens, rank, mixer.nope_dim, heads / tp),
    ]
    out_of = [
        matmul(ctx, "value up", tokens, mixer.v_dim, rank, heads / tp),
        matmul(ctx, "attention out", tokens, hidden, heads * mixer.v_dim / tp),
    ]
    turn: Op = stream(ctx, "rotary and concat", tokens * heads * (rank + rope) / tp, 2.0, 3.0)
    around: list[Op] = [stream(ctx, "latent norms", ctx.split_tokens * down, 4.0, 2.0), turn]
    size = ctx.precision.activations.bytes_per_element
    queries = tokens * heads * (qk + rank + rope) / tp
    results = tokens * heads * (rank + mixer.v_dim) / tp
    parts = MixerParts(
        into=into,
        out_of=out_of,
        around=(around, around),
        core=_gathered_scores(ctx, mixer, picked(ctx, indexer)),
        # latents are whole on every tensor rank
        exchange=context_exchange(ctx, (rank + rope) * tp, heads * (2 * rank + rope)),
        saved=(ctx.split_tokens * down + tokens * (rank + rope) + queries + results) * size,
        up=(*into[1:], turn),
        saved_up=queries * size,
    )
    return assembled(ctx, mixer, parts, sides)


def _gathered_scores(ctx: LoweringContext, mixer: LatentAttention, each: float) -> Passes:
    """Forward two products a score, backward five. Backward gathers again, and adds gradients to what it gathered:
    in the last cache, at more than memory's rate, so that 32-bit sums count as one more pass."""
    rank, rope, size = mixer.kv_rank, mixer.rope_dim, ctx.precision.activations.bytes_per_element
    heads = ctx.tokens * mixer.heads / ctx.degrees.tp
    flops = 2 * heads * each * (2 * rank + rope)
    operands, gathered = heads * (2 * rank + rope) * size, ctx.tokens * each * (rank + rope)
    middle = (2 * rank + rope) // 2  # of a score's two products
    return (
        [Attend(label="attention", flops=flops, stream_bytes=operands + gathered * size, head_dim=middle)],
        [
            Attend(
                label="attention dX", flops=2.5 * flops, stream_bytes=3 * operands + 2 * gathered * size,
                head_dim=middle, backward=True, kernels=2,
            )
        ],
    )  # fmt: skip


def lower_indexer(ctx: LoweringContext, mixer: LatentAttention, indexer: Indexer) -> SublayerOps:
    """The indexer of one layer.

        products   T (q I i  +  h (i + I))      scores   T s I i      two flops each      backward   T n I i, thrice

    I = heads of size i, q = q_rank, h = hidden, s and n = visible and picked tokens. Its scores are summed over heads
    and written in 32 bits; picking reads them twice. It learns to score the picked tokens as attention weighed them,
    on inputs cut off from the model: no gradient goes on, and tensor ranks sum up what their heads weighed.
    """
    tokens, heads, dim = ctx.tokens, indexer.heads, indexer.head_dim
    seen, chosen = visible(ctx), picked(ctx, indexer)
    query = matmul(ctx, "index query", tokens, heads * dim, mixer.q_rank or ctx.model.hidden)
    key = matmul(ctx, "index key and weights", ctx.split_tokens, dim + heads, ctx.model.hidden)
    size = ctx.precision.activations.bytes_per_element
    operands = tokens * (heads + 1) * dim
    exchange = context_exchange(ctx, dim * ctx.degrees.tp, heads * dim * ctx.degrees.tp)
    pick = tokens * (2 * seen + chosen) * LOGIT_BYTES
    forward: list[Op] = [
        *casts(ctx, [query, key]), key, query,
        stream(ctx, "index norm and rotary", operands, 4.0, 4.0),
        *exchange[0],
        Attend(
            label="index scores", flops=2 * tokens * seen * heads * dim,
            stream_bytes=operands * size + tokens * seen * LOGIT_BYTES, head_dim=dim,
        ),
        Stream(label="index top-k", stream_bytes=pick, kernels=2.0),
    ]  # fmt: skip
    indices = tokens * chosen * LOGIT_BYTES
    if ctx.frozen:
        return SublayerOps(forward=tuple(forward), saved=indices, saved_selective=indices)
    learn = Attend(
        label="index scores dX", flops=3 * 2 * tokens * chosen * heads * dim,
        stream_bytes=(3 * operands + 2 * tokens * chosen * dim) * size, head_dim=dim, backward=True,
    )  # fmt: skip
    target = [tensor_collective(ctx, "index target", "all-reduce", tokens * chosen * SUM_BYTES / size)]
    alone = isinstance(ctx.degrees.tp, int) and ctx.degrees.tp == 1
    saved = (operands + tokens * heads) * size + indices
    return SublayerOps(
        forward=tuple(forward),
        backward_input=(
            *([] if alone else target), learn, *exchange[1],
            stream(ctx, "index norm and rotary dX", operands, 4.0, 4.0), *gradient_casts(ctx, [query, key]),
        ),
        backward_weight=(weight_gradient(query, ctx.gradient_bytes), weight_gradient(key, ctx.gradient_bytes)),
        saved=saved,
        saved_selective=saved,
    )  # fmt: skip
