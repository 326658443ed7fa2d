"""Turn a feed-forward part into the ops of an engine step: dense as in training, experts as serving engines run them.

After attention every tensor rank holds all tokens of its step, so experts need no dispatch inside the tensor group:
each rank multiplies the tokens of its own experts (expert-parallel), or its slice of all of them, and the sum over
ranks is the one that a dense part has. Attention-data-parallel ranks exchange tokens before and behind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

import numpy as np

from ridgeline.ir.ops import Collective, Num, Op
from ridgeline.lowering.casts import casts
from ridgeline.lowering.context import LoweringContext, matmul, plain_matmul, stream
from ridgeline.lowering.ffn import SCALE_BYTES, activation_ops, dense_ffn, lower_ffn, router_params, shared_gate
from ridgeline.lowering.sublayer import SublayerOps, together
from ridgeline.lowering.tensor_boundary import BOTH, Sides, tensor_boundary
from ridgeline.models.params import moe_params
from ridgeline.models.spec import Ffn, Mlp, Moe


def lower_served_ffn(ctx: LoweringContext, ffn: Ffn, sides: Sides = BOTH) -> SublayerOps:
    """The forward of a feed-forward part in a serving engine."""
    match ffn:
        case Mlp():
            made = lower_ffn(ctx, ffn, sides)
            return SublayerOps(forward=made.forward, params=made.params)
        case Moe():
            return _experts(ctx, ffn, sides)
        case _:
            assert_never(ffn)


def distinct_experts(experts: int, topk: int, tokens: Num) -> Num:
    """Experts that at least one of `tokens` is routed to, on average, where any `topk` are equally likely.

        E (1 - (1 - k / E)^T)

    >>> round(float(distinct_experts(8, 2, 1)), 3), round(float(distinct_experts(256, 8, 64)), 1)
    (2.0, 222.4)
    """
    return experts * (1 - (1 - topk / experts) ** np.maximum(tokens, 0.0))


def _experts(ctx: LoweringContext, moe: Moe, sides: Sides) -> SublayerOps:
    """Routed experts: weights of those that are touched are read, whatever the number of tokens."""
    assert ctx.forward is not None
    degrees, width, inner = ctx.degrees, ctx.model.hidden, moe.latent or ctx.model.hidden
    tokens = ctx.tokens * ctx.forward.dp
    touched = np.maximum(distinct_experts(moe.experts, moe.topk, tokens) / degrees.ep, 1e-9)
    groups = np.maximum(touched, 1.0)
    copies = tokens * moe.topk / degrees.ep * ctx.resolved.moe_imbalance
    rows = copies / groups
    up = matmul(ctx, "experts up", rows, moe.hidden * (1 + moe.gated) / degrees.etp, inner, groups)
    down = matmul(ctx, "experts down", rows, inner, moe.hidden / degrees.etp, groups)
    act = activation_ops(ctx, copies * moe.hidden / degrees.etp, moe.gated, moe.activation)[0]
    latent = [matmul(ctx, "latent experts", ctx.tokens, inner, width)] if moe.latent else []
    router = plain_matmul(ctx, "router", ctx.tokens, moe.choices, width)
    choose = stream(ctx, "top-k", ctx.tokens * moe.choices, 3.0, 2.0)
    permute = stream(ctx, "permute", copies * inner, 2.0, 2.0)
    combine = stream(ctx, "sum of experts", copies * inner, 1.5, 1.0)
    sent, returned = _exchange(ctx, moe, inner)
    inside = (*casts(ctx, [up]), up, act, *casts(ctx, [down]), down)
    alone = moe.shared_hidden == 0
    exits = tensor_boundary(ctx, sides).exit if alone else ()
    routed = SublayerOps(
        forward=(router, choose, *latent, *sent, permute, *inside, combine, *returned, *latent, *exits),
        params=router_params(ctx, moe),
        expert_params=moe_params(moe, width).experts / (degrees.ep * degrees.etp),
    )
    if alone:
        return routed
    shared = dense_ffn(ctx, moe.shared_hidden, moe.gated, moe.activation, sides)
    beside = SublayerOps(forward=shared.forward)
    gate = SublayerOps(forward=shared_gate(ctx).forward) if moe.shared_gate else SublayerOps()
    return together(routed, beside, gate)


def _exchange(ctx: LoweringContext, moe: Moe, inner: int) -> tuple[list[Op], list[Op]]:
    """Tokens of attention-data-parallel ranks to the ranks of their experts, and what experts return.

    A rank sends each of its tokens to at most as many ranks as it has experts chosen, or as there are.
    """
    assert ctx.forward is not None
    ranks = ctx.degrees.ep * ctx.degrees.etp
    if ctx.forward.dp == 1 or float(np.max(ranks)) == 1:
        return [], []
    size = ctx.precision.activations.bytes_per_element
    elements = ctx.tokens / ctx.degrees.tp * np.minimum(float(moe.topk), ranks - 1.0) * inner
    once, limited = ctx.resolved.token_dispatch_once, moe.groups > moe.group_topk
    combine = Collective(
        label="combine", kind="all-to-all", axis="ep", payload_bytes=elements * size, ranks=ranks,
        token_copies=float(moe.topk) if once else 0.0,
        token_groups=float(moe.group_topk) if once and limited else 0.0,
        routing_groups=float(moe.groups) if once and limited else 0.0,
    )  # fmt: skip
    sent = ctx.precision.compute.bytes_per_element + SCALE_BYTES if ctx.low_precision else size
    return [replace(combine, label="dispatch", payload_bytes=elements * sent)], [combine]
