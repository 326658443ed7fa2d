"""Turn a feed-forward part, dense or with experts, into the ops of its passes on one rank.

In training the tokens of a tensor group are split over its ranks before experts, and dispatched over ep. In an engine
step every tensor rank holds all tokens after attention, so experts need no dispatch inside the tensor group: each rank
multiplies the tokens of its own experts (expert-parallel), or its slice of all of them, and the sum over ranks is the
one that a dense part has. Attention-data-parallel ranks exchange tokens before and behind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

import numpy as np

from ridgeline.ir.fusions import op_passes
from ridgeline.ir.ops import Collective, MatMul, Num, Op
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.op_builders import (
    BOTH,
    Sides,
    SublayerOps,
    adapters,
    bias_gradients,
    casts,
    gradient_casts,
    input_gradient,
    matmul,
    plain_matmul,
    pointwise,
    pointwise_back,
    product,
    stream,
    tensor_boundary,
    tensor_collective,
    together,
    weight_gradient,
)
from ridgeline.models.params import moe_params
from ridgeline.models.parts import DenseParts, ffn_parts
from ridgeline.models.spec import Ffn, Moe

BOOKKEEPING = 15.0  # kernels of an eager expert layer that only keep books: maps, counts, splits; each way
# passes over scores and kernels of the one kernel that serving engines have for top-k, maps and counts
STEP_TOPK = (3.0, 2.0)
# what a launch inside a loop of C++ costs the host, of an op that Python issues: on one H200 a cuBLAS product with its
# heuristic took 8.5 us in a loop, 23 us as torch.mm and 38 us as an op of a module with its autograd
LOOPED_LAUNCH = 0.25
# the same for both biases of one expert, cut out, added and put back, forward and backward: 65 and 150 us there
BIAS_LAUNCHES = (1.8, 4.2)
SCALE_BYTES = 4 / 128  # of a narrow value that is dispatched: a 32-bit scale for every tile of 128
# values of the special-function unit for one of GELU's, forward and backward, as PyTorch's and Triton's kernels take
# on an H200, whose memory is faster than that (1.4 and 1.8 ps a value)
GELU_EXPONENTIALS = (5.8, 7.4)
COMMON = frozenset({"silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "swiglu"})


def lower_ffn(ctx: LoweringContext, ffn: Ffn, sides: Sides = BOTH) -> SublayerOps:
    """Up, activation, down; for experts also routing, dispatch and combine."""
    parts = ffn_parts(ffn, ctx.model.hidden)
    if parts.moe is None:
        assert parts.dense is not None
        replicated_params = parts.dense.replicated
        params = (parts.dense.params - replicated_params) / ctx.degrees.tp + replicated_params
        return replace(dense_ffn(ctx, parts.dense, sides), params=params)
    routed_ops = _experts(ctx, parts.moe) if ctx.forward is None else _step_experts(ctx, parts.moe, sides)
    if parts.dense is None:
        return routed_ops
    shared = dense_ffn(ctx, parts.dense, sides)
    return together(routed_ops, shared, shared_gate(ctx)) if parts.moe.shared_gate else together(routed_ops, shared)


def activation_ops(
    ctx: LoweringContext, elements: Num, gated: bool, name: str, modules: Num = 1.0
) -> tuple[Op, Op]:  # fmt: skip
    """Forward and backward of the activation; several kernels where nothing fuses it, for each of its modules."""
    joined_as = "common activation" if name in COMMON else "activation"
    cost = op_passes(ctx.resolved.fuses, "gated activation" if gated else "activation", joined_as)
    special, special_back = GELU_EXPONENTIALS if "gelu" in name and not gated else (0.0, 0.0)
    forward = stream(ctx, "activation", elements, cost.forward, cost.kernels * modules)
    backward = stream(ctx, "activation dX", elements, cost.backward, cost.backward_kernels * modules)
    return replace(forward, exponentials=special * elements), replace(backward, exponentials=special_back * elements)


def _epilogue(ctx: LoweringContext, elements: Num, gated: bool) -> tuple[Op, Op]:
    """The activation inside the expert products: only its kept input is read again, by the backward."""
    return (stream(ctx, "activation", elements, 0.0, 0.0), stream(ctx, "activation dX", elements, 1.0 + gated, 0.0))


def _expert_biases(ctx: LoweringContext, elements: Num, local: Num) -> tuple[list[Op], list[Op]]:
    """Biases of experts: added outside the grouped products, their gradients summed expert by expert.

    Megatron's grouped experts cut what a product gave into the tokens of each expert, add that expert's bias (the
    second one times each token's probability) and put the slices together again; autograd sums each gradient apart:

        up       4 passes, 3 backward      add, concatenate;             concatenate gradients, sum
        down     6 passes, 8 backward      multiply, add, concatenate;   concatenate, two products, two sums

    of which `up` is two thirds. Compiled programs and kernels without a host that knows the sizes of experts add a
    gathered row of the bias to what they read anyway: one more pass each way, few kernels.
    """
    if ctx.joins("expert biases") or ctx.resolved.expert_launch == "grouped":
        return [stream(ctx, "expert biases", elements, 2.0, 4.0)], [stream(ctx, "expert biases dX", elements, 2.0, 4.0)]
    return (
        [stream(ctx, "expert biases", elements, 4.7, 2.0 + BIAS_LAUNCHES[0] * local)],
        [stream(ctx, "expert biases dX", elements, 4.7, 2.0 + BIAS_LAUNCHES[1] * local)],
    )


def dense_ffn(ctx: LoweringContext, parts: DenseParts, sides: Sides) -> SublayerOps:
    """Up, activation, down of one width, split over tensor ranks."""
    up, down = product(ctx, parts.up), product(ctx, parts.down)
    elements = ctx.tokens * parts.width / ctx.degrees.tp
    act, act_back = activation_ops(ctx, elements, parts.gated, parts.activation)
    border = tensor_boundary(ctx, sides)
    cast = (*casts(ctx, [up], ctx.joins("norm cast")), *casts(ctx, [down]))
    forward = (*cast, *border.entry, up, act, down, *border.exit)
    if not ctx.backward:
        return SublayerOps(forward=forward)
    low, adapter_params = adapters(ctx, [up, down])
    weights = tuple(weight_gradient(op, ctx.gradient_bytes) for op in (low if ctx.frozen else (down, up)))
    inputs = (*border.exit_gradient, input_gradient(down), act_back, input_gradient(up), *border.entry_gradient)
    return SublayerOps(
        forward=(*forward, *low),
        backward_input=(*gradient_casts(ctx, [down, up]), *map(input_gradient, low), *inputs),
        adapters=adapter_params,
        backward_weight=(*weights, *bias_gradients(ctx, [down, up] if parts.biased else [])),
        again=(act,),
        saved=elements * (2 + parts.gated) * ctx.element_bytes,
        saved_selective=elements * (1 + parts.gated) * ctx.element_bytes,
    )


def _experts(ctx: LoweringContext, moe: Moe) -> SublayerOps:
    """Routed experts over ep ranks; balanced, a rank ends up with as many token copies as it sent."""
    degrees, width = ctx.degrees, ctx.model.hidden
    tokens = ctx.tokens / degrees.tp  # before experts the tokens of a tensor group are split over its ranks
    copies = tokens * moe.topk * ctx.resolved.moe_imbalance
    inner = moe.latent or width
    local = moe.experts / degrees.ep
    rows = copies * degrees.etp / local
    up = _each_expert(ctx, matmul(ctx, "experts up", rows, moe.hidden * (1 + moe.gated) / degrees.etp, inner, local))
    down = _each_expert(ctx, matmul(ctx, "experts down", rows, inner, moe.hidden / degrees.etp, local))
    inside = _inside_experts(ctx, moe, copies, (up, down))
    gather_ranks = degrees.etp if ctx.engine.exchanges.experts_gathered else 1
    router = plain_matmul(ctx, "router", tokens * gather_ranks, moe.choices, width)
    # a dispatcher of its own writes tokens in place; otherwise they are permuted, and sorted again by local expert
    moves = op_passes(ctx.resolved.fuses, "permute")
    passes = 1.0 if ctx.resolved.token_dispatch_once else moves.forward
    permute = stream(ctx, "permute", copies * inner, passes, moves.kernels)
    # experts are chosen, and tokens mapped to their places among them: the host waits for the counts
    choose = replace(pointwise(ctx, "top-k", tokens * moe.choices), waits=1.0)
    chosen_back = pointwise_back(ctx, "top-k", tokens * moe.choices)
    sent, combine = _exchange(ctx, moe, copies * inner)
    enter, leave, enter_back, leave_back = _dealt(ctx)
    grad = ctx.gradient_bytes
    low, adapter_params = adapters(ctx, [router])
    latent = [matmul(ctx, "latent experts", tokens, inner, width)] if moe.latent else []
    trained_products = low if ctx.frozen else [down, up, router, *latent * 2]
    return SublayerOps(
        forward=(
            *enter, router, *low, choose, *latent, permute, *sent, *inside.forward, *combine, permute, *latent, *leave,
        ),
        backward_input=(
            *leave_back, permute, *sent, *inside.backward_input, *combine, permute,
            chosen_back, input_gradient(router), *map(input_gradient, low), *map(input_gradient, latent * 2),
            *enter_back,
        ),
        backward_weight=tuple(weight_gradient(op, grad) for op in trained_products),
        again=inside.again,
        saved=(copies * (inner + moe.hidden * (2 + moe.gated)) + tokens * moe.choices) * ctx.element_bytes,
        saved_selective=(copies * (inner + moe.hidden * (1 + moe.gated)) + tokens * moe.choices) * ctx.element_bytes,
        params=router_params(ctx, moe),
        expert_params=moe_params(moe, width).experts / (degrees.ep * degrees.etp),
        adapters=adapter_params,
    )  # fmt: skip


def distinct_experts(experts: int, topk: int, tokens: Num) -> Num:
    """Experts that at least one of `tokens` is routed to, on average, where any `topk` are equally likely.

        E (1 - (1 - k / E)^T)

    >>> round(float(distinct_experts(8, 2, 1)), 3), round(float(distinct_experts(256, 8, 64)), 1)
    (2.0, 222.4)
    """
    return experts * (1 - (1 - topk / experts) ** np.maximum(tokens, 0.0))


def _step_experts(ctx: LoweringContext, moe: Moe, sides: Sides) -> SublayerOps:
    """Routed experts in an engine step: weights of those that are touched are read, whatever the number of tokens."""
    assert ctx.forward is not None
    degrees, width, inner = ctx.degrees, ctx.model.hidden, moe.latent or ctx.model.hidden
    tokens = ctx.tokens * ctx.forward.dp
    touched_experts = np.maximum(distinct_experts(moe.experts, moe.topk, tokens) / degrees.ep, 1e-9)
    groups = np.maximum(touched_experts, 1.0)
    copies = tokens * moe.topk / degrees.ep * ctx.resolved.moe_imbalance
    rows = copies / groups
    up = matmul(ctx, "experts up", rows, moe.hidden * (1 + moe.gated) / degrees.etp, inner, groups)
    down = matmul(ctx, "experts down", rows, inner, moe.hidden / degrees.etp, groups)
    act = activation_ops(ctx, copies * moe.hidden / degrees.etp, moe.gated, moe.activation)[0]
    latent = [matmul(ctx, "latent experts", ctx.tokens, inner, width)] if moe.latent else []
    router = plain_matmul(ctx, "router", ctx.tokens, moe.choices, width)
    choose = stream(ctx, "top-k", ctx.tokens * moe.choices, *STEP_TOPK)
    permute = stream(ctx, "permute", copies * inner, 2.0, 2.0)
    combine = stream(ctx, "sum of experts", copies * inner, 1.5, 1.0)
    sent, expert_results = _step_exchange(ctx, moe, inner)
    inside = (*casts(ctx, [up]), up, act, *casts(ctx, [down]), down)
    exits = () if moe.shared_hidden else tensor_boundary(ctx, sides).exit
    return SublayerOps(
        forward=(router, choose, *latent, *sent, permute, *inside, combine, *expert_results, *latent, *exits),
        params=router_params(ctx, moe),
        expert_params=moe_params(moe, width).experts / (degrees.ep * degrees.etp),
    )


def _step_exchange(ctx: LoweringContext, moe: Moe, inner: int) -> tuple[list[Op], list[Op]]:
    """Tokens of attention-data-parallel ranks to the ranks of their experts, and what experts return.

    A rank sends each of its tokens to at most as many ranks as it has experts chosen, or as there are.
    """
    assert ctx.forward is not None
    ranks = ctx.degrees.ep * ctx.degrees.etp
    if ctx.forward.dp == 1 or float(np.max(ranks)) == 1:
        return [], []
    elements = ctx.tokens / ctx.degrees.tp * np.minimum(float(moe.topk), ranks - 1.0) * inner
    return _dispatch(ctx, moe, elements, ranks, narrow=ctx.low_precision)


def _dealt(ctx: LoweringContext) -> tuple[list[Op], list[Op], list[Op], list[Op]]:
    """Tokens dealt to the ranks that route them, and back, in software that gathers them by expert (etp): collectives
    before and behind the routed part, and behind and before its backward.

        over etp               all-gather of tokens, reduce-scatter of what ranks of an expert made; backward the same
        over tp, all alike     own tokens taken, all-gather of what came of them; backward all-gather of gradients
    """
    degrees, elements = ctx.degrees, ctx.tokens * ctx.model.hidden
    if not ctx.engine.exchanges.experts_gathered:
        return [], [], [], []
    token_gather = Collective(
        label="gather tokens of an expert", kind="all-gather", axis="etp", ranks=degrees.etp,
        payload_bytes=elements / degrees.tp * degrees.etp * ctx.element_bytes,
    )  # fmt: skip
    token_scatter = replace(token_gather, label="scatter tokens of an expert", kind="reduce-scatter")
    several_ranks = not (isinstance(degrees.etp, int) and degrees.etp == 1)
    enter: list[Op] = [token_gather] if several_ranks else []
    leave: list[Op] = [token_scatter] if several_ranks else []
    rank_merge: list[Op] = []
    if not ctx.sequence_parallel and not (isinstance(degrees.tp, int) and degrees.tp == 1):
        rank_merge = [tensor_collective(ctx, "gather routed tokens", "all-gather", elements)]
    return enter, [*leave, *rank_merge], [*leave, *rank_merge], enter


def shared_gate(ctx: LoweringContext) -> SublayerOps:
    """A sigmoid of one output weighs the shared part: its input is read, its output read and written; backward also the
    gradients of both."""
    elements = ctx.split_tokens * ctx.model.hidden
    return SublayerOps(
        forward=(stream(ctx, "shared gate", elements, 3.0, 3.0),),
        backward_input=(stream(ctx, "shared gate dX", elements, 5.0, 3.0),),
    )


def expert_launches(ctx: LoweringContext, groups: Num) -> Num:
    """Kernels that a host issues, in launches of an eager op, for one product of every local expert.

        grouped        1                             one grouped kernel: CUTLASS, DeepGEMM, torch._grouped_mm, megablox
        multi-stream   1 + 0.25 (groups - 1)         one call that loops over cuBLAS (Transformer Engine GroupedLinear)
        sequential     groups                        one module per expert (Megatron's SequentialMLP)

    A graph of the whole iteration needs kernels whose sizes the host does not know: grouped ones.
    """
    match ctx.resolved.expert_launch:
        case "grouped":
            return 1.0
        case "multi-stream":
            return 1.0 + LOOPED_LAUNCH * np.maximum(groups - 1, 0.0)
        case "sequential":
            return np.maximum(groups, 1.0)
        case _ as never:
            assert_never(never)


def _each_expert(ctx: LoweringContext, product: MatMul) -> MatMul:
    """The product of all local experts with the launches it takes."""
    return replace(product, launches=expert_launches(ctx, product.groups))


def _inside_experts(ctx: LoweringContext, moe: Moe, copies: Num, products: tuple[MatMul, MatMul]) -> SublayerOps:
    """From arrived tokens to finished ones: casts, products, activation, biases; apart, or inside the products."""
    up, down = products
    if ctx.joins("expert activation") and not moe.bias:
        act, back = _epilogue(ctx, copies * moe.hidden, moe.gated)
        into = [*casts(ctx, [up]), *casts(ctx, [down], True)]
        out_of = [*gradient_casts(ctx, [down]), *gradient_casts(ctx, [up], True)]
        return SublayerOps(
            forward=(*into, up, act, down),
            backward_input=(*out_of, input_gradient(down), back, input_gradient(up)),
            again=(act,),
        )
    modules = up.launches if ctx.resolved.expert_launch == "sequential" else 1.0
    act, back = activation_ops(ctx, copies * moe.hidden, moe.gated, moe.activation, modules)
    books = stream(ctx, "expert bookkeeping", 0.0, 1.0, BOOKKEEPING)
    widths = moe.hidden * (1 + moe.gated) + (moe.latent or ctx.model.hidden)
    biases = _expert_biases(ctx, copies * widths, up.groups) if moe.bias else ([], [])
    out_of = gradient_casts(ctx, [down, up])
    return SublayerOps(
        forward=(books, *casts(ctx, [up, down]), up, act, down, *biases[0]),
        backward_input=(books, *out_of, input_gradient(down), back, input_gradient(up), *biases[1]),
        again=(act,),
    )


def router_params(ctx: LoweringContext, moe: Moe) -> Num:
    """Parameters of an expert layer that are no routed expert's, on one tensor rank."""
    parts = moe_params(moe, ctx.model.hidden)
    return parts.router + parts.shared_experts / ctx.degrees.tp


def _exchange(ctx: LoweringContext, moe: Moe, elements: Num) -> tuple[list[Op], list[Op]]:
    """Tokens to the ranks of their experts and back, forward; their gradients the same ways, backward.

    Both travel as they are stored. Where the engine dispatches in the narrow format of its products (DeepEP in fp8,
    with a 32-bit scale for every 128 values), tokens and gradients are sent so, and what experts return is not.
    """
    ranks: Num = ctx.degrees.ep * ctx.degrees.etp
    stride: Num = 1
    if ctx.engine.exchanges.experts_gathered:
        ranks, stride, elements = ctx.degrees.ep, ctx.degrees.etp, elements * ctx.degrees.etp
    if isinstance(ranks, int) and ranks == 1:
        return [], []
    return _dispatch(ctx, moe, elements, ranks, stride, narrow=ctx.engine.narrow_dispatch and ctx.low_precision)


def _dispatch(
    ctx: LoweringContext, moe: Moe, elements: Num, ranks: Num, stride: Num = 1, *, narrow: bool
) -> tuple[list[Op], list[Op]]:
    """All-to-alls of token copies: dispatch in a narrow format or as stored, and what experts return."""
    once, limited_groups = ctx.resolved.token_dispatch_once, moe.groups > moe.group_topk
    combine = Collective(
        label="combine",
        kind="all-to-all",
        axis="ep",
        payload_bytes=elements * ctx.element_bytes,
        ranks=ranks,
        stride=stride,
        token_copies=float(moe.topk) if once else 0.0,
        token_groups=float(moe.group_topk) if once and limited_groups else 0.0,
        routing_groups=float(moe.groups) if once and limited_groups else 0.0,
    )
    sent = ctx.precision.compute.bytes_per_element + SCALE_BYTES if narrow else ctx.element_bytes
    return [replace(combine, label="dispatch", payload_bytes=elements * sent)], [combine]
