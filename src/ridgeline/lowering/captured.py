"""Turn what was captured of a layer, op by op, into its passes on one rank.

Products, scores and recurrences are priced as any other; pointwise ops are one stream. Nothing of it is split over
tensor ranks: each runs it whole, on its own tokens where sequence parallelism deals them.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.ir.ops import Attend, MatMul, Num, Op
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.core_ops import steps_of
from ridgeline.lowering.op_builders import Passes, SublayerOps, input_gradient, matmul, stream, weight_gradient
from ridgeline.lowering.softmax_core import attention_scores
from ridgeline.models.attended_tokens import mean_visible
from ridgeline.models.mixer_parts import softmax_core
from ridgeline.models.spec import Captured, Product

WRITTEN = 2.0  # of an element that a pointwise op writes: what it reads is as much
WRITTEN_BACK = 3.0  # its gradient arrives, what it read is read again, another gradient is made
SCAN_HEAD = 64  # rows of a tile, where no head says otherwise


def lower_captured(ctx: LoweringContext, part: Captured) -> SublayerOps:
    """Products with their gradients, attention without its projections, and everything that is bound by memory."""
    products = [_product(ctx, one) for one in part.products]
    weighted = [op for op, one in zip(products, part.products, strict=True) if one.weights]
    between = [op for op, one in zip(products, part.products, strict=True) if not one.weights]
    core, core_back = _core(ctx, part)
    elements = ctx.split_tokens * part.streams
    around = [stream(ctx, "captured pointwise", elements, WRITTEN, part.kernels)] if part.streams else []
    back = [stream(ctx, "captured pointwise dX", elements, WRITTEN_BACK, part.kernels)] if part.streams else []
    both: list[Op] = [weight_gradient(op, ctx.precision.activations.bytes_per_element) for op in between]
    return SublayerOps(
        forward=(*products, *around, *core),
        backward_input=(*core_back, *back, *map(input_gradient, reversed(products)), *both),
        backward_weight=() if ctx.frozen else tuple(weight_gradient(op, ctx.gradient_bytes) for op in weighted[::-1]),
        saved=ctx.split_tokens * part.saved * ctx.precision.activations.bytes_per_element,
        params=part.params,
    )


def _product(ctx: LoweringContext, one: Product) -> MatMul:
    return matmul(ctx, f"captured {one.label}", ctx.split_tokens * one.rows, one.outputs, one.inputs, one.groups)


def _core(ctx: LoweringContext, part: Captured) -> Passes:
    """Scores and recurrences, forward and backward; of engine steps the forward alone."""
    forward: list[Op] = []
    backward: list[Op] = []
    for attention in part.scores:
        passes = attention_scores(ctx, softmax_core(attention))
        forward += passes[0]
        backward += passes[1]
    flops = part.scan_flops * ctx.tokens + part.pair_flops * _pairs(ctx)
    if part.scan_flops or part.pair_flops:
        moved = ctx.tokens * ctx.model.hidden * 4 * ctx.precision.activations.bytes_per_element
        scan = Attend(label="captured scan", flops=flops, stream_bytes=moved, head_dim=SCAN_HEAD, scan=True, kernels=2)
        forward.append(scan)
        back_scan = replace(scan, label="captured scan dX", flops=2 * flops, stream_bytes=2 * moved, backward=True)
        backward.append(back_scan)
    return forward, backward


def _pairs(ctx: LoweringContext) -> Num:
    """Pairs of a token and one that it sees."""
    if ctx.forward is None:
        return ctx.tokens * mean_visible(ctx.span, causal=ctx.causal, queries=ctx.queries)
    steps = steps_of(ctx)
    return steps.prefill_pairs + steps.kv_tokens * steps.decode_tokens
