"""Turn a feed-forward part, dense or with experts, into the ops of its forward and backward on one rank."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from ridgeline.ir.ops import Collective, MatMul, Num, Op
from ridgeline.lowering.mixers import (
    boundary,
    casts,
    enter_gradient,
    gradient_bytes,
    gradient_casts,
    leave_gradient,
)
from ridgeline.lowering.parts import Passes, together
from ridgeline.lowering.shape import Shape, adapters, input_gradient, matmul, plain_matmul, stream, weight_gradient
from ridgeline.models.params import ffn_params, moe_params
from ridgeline.models.spec import Ffn, Mlp, Moe

BOOKKEEPING = 15.0  # kernels of an eager expert layer that only keep books: maps, counts, splits; each way
BIAS_KERNELS = 8.0  # of adding expert biases where nothing fuses them
COMMON = frozenset({"silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "swiglu"})


def lower_ffn(shape: Shape, ffn: Ffn) -> Passes:
    """Up, activation, down; for experts also routing, dispatch and combine."""
    match ffn:
        case Mlp():
            dense = _dense(shape, ffn.hidden, ffn.gated, ffn.activation, shape.tokens)
            params = ffn_params(ffn, shape.model.hidden) / shape.degrees.tp
            return together(dense, Passes(params=params))
        case Moe():
            return _experts(shape, ffn)
        case _:
            assert_never(ffn)


def _activation(shape: Shape, elements: Num, gated: bool, name: str) -> tuple[Op, Op]:
    """Forward and backward of the activation; several kernels where nothing fuses it."""
    fused = "elementwise" in shape.fuses or ("bias-activation" in shape.fuses and name in COMMON)
    passes, back = ((3.0, 5.0) if gated else (2.0, 3.0)) if fused else ((5.0, 8.0) if gated else (4.0, 6.0))
    kernels = 1.0 if fused else 3.0
    return (
        stream(shape, "activation", elements, passes, kernels),
        stream(shape, "activation dX", elements, back, kernels),
    )


def _epilogue(shape: Shape, elements: Num, gated: bool) -> tuple[Op, Op]:
    """The activation inside the expert products: only its kept input is read again, by the backward."""
    return (
        stream(shape, "activation", elements, 0.0, 0.0),
        stream(shape, "activation dX", elements, 1.0 + gated, 0.0),
    )


def _expert_biases(shape: Shape, elements: Num) -> tuple[list[Op], list[Op]]:
    """Biases of experts, added expert by expert where nothing fuses them: slices summed, then put together again."""
    fused = "elementwise" in shape.fuses
    each, launches = (2.0, 4.0) if fused else (4.0, BIAS_KERNELS)
    return (
        [stream(shape, "expert biases", elements, each, launches)],
        [stream(shape, "expert biases dX", elements, each / 2, launches)],
    )


def _dense(shape: Shape, hidden: int, gated: bool, activation: str, tokens: Num) -> Passes:
    tp, width = shape.degrees.tp, shape.model.hidden
    up = matmul(shape, "up", tokens, hidden * (1 + gated) / tp, width)
    down = matmul(shape, "down", tokens, width, hidden / tp)
    act, act_back = _activation(shape, tokens * hidden / tp, gated, activation)
    alone = isinstance(tp, int) and tp == 1
    enter, leave = ([], []) if alone else boundary(shape)
    grad = gradient_bytes(shape)
    size = shape.precision.activations.bytes_per_element
    low, adapted = adapters(shape, [up, down])
    weights = tuple(weight_gradient(op, grad) for op in (low if shape.frozen else (down, up)))
    backward = [
        *leave_gradient(shape, alone),
        input_gradient(down),
        act_back,
        input_gradient(up),
        *enter_gradient(shape, alone),
    ]
    return Passes(
        forward=(
            *casts(shape, [up], "norm" in shape.fuses),
            *casts(shape, [down]),
            *enter,
            up,
            act,
            down,
            *leave,
            *low,
        ),
        backward_input=(*gradient_casts(shape, [down, up]), *map(input_gradient, low), *backward),
        adapters=adapted,
        backward_weight=weights,
        again=(act,),
        kept=tokens * hidden * (2 + gated) / tp * size,
        kept_again=tokens * hidden * (1 + gated) / tp * size,
    )


def _experts(shape: Shape, moe: Moe) -> Passes:
    """Routed experts over ep ranks; balanced, a rank ends up with as many token copies as it sent."""
    degrees, width = shape.degrees, shape.model.hidden
    size = shape.precision.activations.bytes_per_element
    tokens = shape.tokens / degrees.tp  # before experts the tokens of a tensor group are split over its ranks
    copies = tokens * moe.topk * shape.imbalance
    inner = moe.latent or width
    local = moe.experts / degrees.ep
    rows = copies * degrees.etp / local
    up = matmul(shape, "experts up", rows, moe.hidden * (1 + moe.gated) / degrees.etp, inner, local)
    down = matmul(shape, "experts down", rows, inner, moe.hidden / degrees.etp, local)
    inside = _inside_experts(shape, moe, copies, (up, down))
    router = plain_matmul(shape, "router", tokens, moe.experts, width)
    fused = "permute" in shape.fuses
    # a dispatcher of its own writes tokens in place; otherwise they are permuted, and sorted again by local expert
    moves = 1.0 if shape.once_per_domain else 4.0 if fused else 8.0
    permute = stream(shape, "permute", copies * inner, moves, 4.0 if fused else 12.0)
    choose = replace(
        stream(shape, "top-k", tokens * moe.experts, 6.0, 6.0 if "router" in shape.fuses else 14.0), waits=1.0
    )
    moved = _dispatch(shape, copies * inner * size, moe.topk)
    grad = gradient_bytes(shape)
    latent = [matmul(shape, "latent experts", tokens, inner, width)] if moe.latent else []
    weights = (
        () if shape.frozen else (weight_gradient(down, grad), weight_gradient(up, grad), weight_gradient(router, grad))
    )
    routed = Passes(
        forward=(router, choose, *latent, permute, *moved, *inside.forward, *moved, permute, *latent),
        backward_input=(
            permute, *moved, *inside.backward_input, *moved, permute,
            input_gradient(router), *(input_gradient(op) for op in latent * 2),
        ),
        backward_weight=(*weights, *(weight_gradient(op, grad) for op in latent * 2)),
        again=inside.again,
        kept=(copies * (inner + moe.hidden * (2 + moe.gated)) + tokens * moe.experts) * size,
        kept_again=(copies * (inner + moe.hidden * (1 + moe.gated)) + tokens * moe.experts) * size,
        params=_router_params(shape, moe),
        expert_params=moe_params(moe, width).experts / (degrees.ep * degrees.etp),
    )  # fmt: skip
    if not moe.shared_hidden:
        return routed
    shared = _dense(shape, moe.shared_hidden, moe.gated, moe.activation, shape.tokens)
    return together(routed, shared)


def _inside_experts(shape: Shape, moe: Moe, copies: Num, products: tuple[MatMul, MatMul]) -> Passes:
    """From arrived tokens to finished ones: casts, products, activation, biases; apart, or inside the products."""
    up, down = products
    if "expert-epilogue" in shape.fuses:
        act, back = _epilogue(shape, copies * moe.hidden, moe.gated)
        into = [*casts(shape, [up]), *casts(shape, [down], True)]
        out_of = [*gradient_casts(shape, [down]), *gradient_casts(shape, [up], True)]
        return Passes(
            forward=(*into, up, act, down),
            backward_input=(*out_of, input_gradient(down), back, input_gradient(up)),
            again=(act,),
        )
    act, back = _activation(shape, copies * moe.hidden, moe.gated, moe.activation)
    books = stream(shape, "expert bookkeeping", 0.0, 1.0, BOOKKEEPING)
    widths = moe.hidden * (1 + moe.gated) + (moe.latent or shape.model.hidden)
    biases = _expert_biases(shape, copies * widths) if moe.bias else ([], [])
    out_of = gradient_casts(shape, [down, up])
    return Passes(
        forward=(books, *casts(shape, [up, down]), up, act, down, *biases[0]),
        backward_input=(books, *out_of, input_gradient(down), back, input_gradient(up), *biases[1]),
        again=(act,),
    )


def _router_params(shape: Shape, moe: Moe) -> Num:
    parts = moe_params(moe, shape.model.hidden)
    return parts.router + parts.shared_experts / shape.degrees.tp


def _dispatch(shape: Shape, payload: Num, topk: int) -> list[Op]:
    ranks = shape.degrees.ep * shape.degrees.etp
    if isinstance(ranks, int) and ranks == 1:
        return []
    spread = float(topk) if shape.once_per_domain else 0.0
    return [
        Collective(
            label="dispatch", kind="all-to-all", axis="ep", payload_bytes=payload, ranks=ranks, stride=1, spread=spread
        )
    ]
