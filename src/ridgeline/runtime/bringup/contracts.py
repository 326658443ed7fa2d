"""Numerics contracts: for each op a program in fp64 that marks where an implementation may round.

    contract_of(op)      the program of an op: one of its own (CONTRACTS), exact (what only moves numbers), or derived:
                         the op itself in fp64, its inputs and output off by 32-bit roundings
    has_contract(op)     whether there is a right result at all: fresh memory and random numbers have none

A program takes a Draw and the op's arguments in fp64 and returns its outputs in fp64, before the last rounding to the
output's format, which is the judge's. Formats of 16 bits and fewer are multiplied exactly and accumulated in 32 bits.
"""

# ruff: noqa: ARG001  (functions of one form: what an op was given)
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup.arithmetic import (
    Args,
    Draw,
    Kwargs,
    Outputs,
    T,
    clone_tensors,
    tensors_in,
    written_names,
)

# where each op has the mask and the causal flag among its positional arguments
_FORWARD = {
    "_scaled_dot_product_flash_attention_for_cpu": (None, 4),
    "_scaled_dot_product_flash_attention": (None, 4),
    "_scaled_dot_product_efficient_attention": (3, 6),
    "_scaled_dot_product_cudnn_attention": (3, 6),
}
# where each has the output, the log-sums, a bias and the causal flag
_BACKWARD = {
    "_scaled_dot_product_flash_attention_for_cpu_backward": (4, 5, None, 7),
    "_scaled_dot_product_flash_attention_backward": (4, 5, None, 11),
    "_scaled_dot_product_cudnn_attention_backward": (4, 5, 8, 14),
    "_scaled_dot_product_efficient_attention_backward": (5, 6, 4, 11),
}


def attention(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """softmax(q k scale + mask) v and the rows' log-sum-exp."""
    at_mask, at_causal = _FORWARD[name_of(func)]
    mask = kwargs.get("attn_mask") if at_mask is None else _bias(_at(args, at_mask, None))
    q, k, v = args[0], _as_many(args[1], args[0]), _as_many(args[2], args[0])
    scores = _scores(draw, q, k, mask, bool(_at(args, at_causal, kwargs.get("is_causal", False))), kwargs.get("scale"))
    lse = torch.logsumexp(scores, -1)
    p = _weights(draw, scores, lse)
    sums = draw.off(lse, lse.abs() + 1, units=_exp_units(draw))
    return [
        draw.product(draw.store_value(p), v),
        None if bool(lse.isneginf().any()) else sums,
    ]  # of no key: a convention


def attention_backward(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """dV = P^T dO, dS = P (dO V^T - rowsum(dO O)), dQ = dS K scale, dK = dS^T Q scale; O and the log-sums as given."""
    g, q, k, v = args[:4]
    at_out, at_lse, at_mask, at_causal = _BACKWARD[name_of(func)]
    out, lse = args[at_out], args[at_lse].reshape(*q.shape[:2], -1)[..., : q.shape[2]]  # some kernels pad the rows
    mask = kwargs.get("attn_mask") if at_mask is None else _bias(_at(args, at_mask, None))
    causal = bool(_at(args, at_causal, kwargs.get("is_causal", False)))
    scale = _scale(q, kwargs.get("scale"))
    keys, values = _as_many(k, q), _as_many(v, q)
    scores = _scores(draw, q, keys, mask, causal, kwargs.get("scale"))
    p = _weights(draw, scores, lse)
    d_p = draw.product(g, values.mT)
    delta = draw.round_sum(
        (g * out).sum(-1, keepdim=True), (g * out).square().sum(-1, keepdim=True).sqrt(), q.shape[-1]
    )
    if draw.number % 2:
        delta = (p * d_p).sum(-1, keepdim=True)  # the same sum by the weights
    d_s = draw.store_value(draw.off(p * (d_p - delta), p * (d_p.abs() + delta.abs()), units=2.0))
    stored_weights = draw.store_value(p)
    parts = (d_s, keys), (d_s.mT, q), (stored_weights.mT, g)
    d_q, d_k, d_v = (draw.product(a, b) for a, b in parts)
    return [d_q * scale, _as_few(d_k * scale, k), _as_few(d_v, v)]


def _at(args: Args, index: int, default: T) -> T:
    return args[index] if len(args) > index else default


def _bias(given: Tensor | None) -> Tensor | None:
    return given if given is not None and given.numel() else None


def _scale(q: Tensor, given: float | None) -> float:
    return float(q.shape[-1] ** -0.5) if given is None else float(given)


def _scores(draw: Draw, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    scores = draw.product(q, k.mT) * _scale(q, scale)
    if causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(ahead, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores


def _weights(draw: Draw, scores: Tensor, lse: Tensor) -> Tensor:
    """Probabilities of a row; zeros where it has no score at all."""
    shifted_scores = scores - lse.unsqueeze(-1)
    p = draw.off(shifted_scores.exp(), shifted_scores.exp() * (scores.abs() + 1), units=2.0)
    return draw.common(draw.round_value(p, units=_exp_units(draw)), _exp_units(draw)).nan_to_num(nan=0.0)


def _exp_units(draw: Draw) -> float:
    """How rough an exponential may be: for tensors of 16 bits kernels take one of some fifteen bits."""
    return 4.0 if draw.format == torch.float32 else 1024.0


def _as_many(x: Tensor, like: Tensor) -> Tensor:
    """Key and value heads repeated for the query heads that share them."""
    return x if x.shape[1] == like.shape[1] else x.repeat_interleave(like.shape[1] // x.shape[1], 1)


def _as_few(x: Tensor, like: Tensor) -> Tensor:
    return x if x.shape[1] == like.shape[1] else x.unflatten(1, (like.shape[1], -1)).sum(2)


def softmax(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """exp(x - max) over its sum; the difference is off by its own rounding, the sum by one that the row shares."""
    x, dim = args[0], args[1]
    y = func(*args, **kwargs)
    top = x.amax(dim, keepdim=True)
    distances = (x - torch.where(top.isinf(), torch.zeros_like(top), top)).abs()
    row = draw.round_value(
        draw.round_sum(ones := torch.ones_like(top), ones, x.shape[dim] if x.dim() else 1), units=4.0
    )
    row = draw.off(row, torch.logsumexp(x, dim, keepdim=True).abs())  # exp(x - log-sum): the sum has its own rounding
    y = draw.tilt_towards(draw.off(y, y * distances, units=2.0), y * distances)
    return [draw.common(draw.round_value(y * row, units=4.0), 2.0)]


def log_softmax(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """x - max - log(sum): the error is that of the largest number on the way; the row's log-sum may be stored."""
    x, dim = args[0], args[1]
    y = func(*args, **kwargs)
    lse = torch.logsumexp(x, dim, keepdim=True)
    row = draw.store_value(lse) - lse
    size = x.abs() + lse.abs() + 1
    row = draw.round_sum(row, torch.ones_like(lse), x.shape[dim])
    return [draw.off(y, size, units=2.0) + draw.off(torch.zeros_like(lse), lse.abs() + 1, units=2.0) + row]


def softmax_backward(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """p (g - sum(g p)), or g - exp(y) sum(g): a sum in 32 bits that every element of the row shares."""
    g, p, dim = args[:3]
    if func._schema.name == "aten::_log_softmax_backward_data":
        total = row_sum(draw, g, (dim,))
        return [two_parts(draw, g, -draw.round_value(p.exp(), units=4.0) * total)]
    shares = draw.store_value(g * p)  # kernels may be handed the product
    return [two_parts(draw, shares, -p * row_sum(draw, shares, (dim,)))]


def layer_norm(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """(x - mean) / sqrt(var + eps) w + b, and mean and 1 / sqrt, each row's own and shared by its elements."""
    x, shape, w, b, eps = args[:5]
    dims, n = over(shape)
    mean = row_sum(draw, x, dims) / n
    centred_input = x - x.mean(dims, keepdim=True)
    var = draw.off(
        centred_input.square().mean(dims, keepdim=True), x.square().mean(dims, keepdim=True), units=4.0
    ).clamp(min=0)
    rstd = draw.round_value((var + eps).rsqrt(), units=3.0)
    y = draw.off((x - mean) * rstd, (x.abs() + mean.abs()) * rstd, units=2.0)
    y = y if w is None else draw.round_value(y * w)
    return [y if b is None else draw.off(y + b, y.abs() + b.abs()), mean, rstd]


def layer_norm_backward(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """dx = rstd (g w - mean(g w) - xhat mean(g w xhat)); dw and db are sums over rows."""
    g, x, shape, mean, rstd, w, _, mask = args
    dims, n = over(shape)
    hat, scaled_gradient = (x - mean) * rstd, g if w is None else g * w
    inner = row_sum(draw, scaled_gradient, dims) / n, row_sum(draw, scaled_gradient * hat, dims) / n
    size = rstd * (
        scaled_gradient.abs()
        + inner[0].abs()
        + hat.abs() * inner[1].abs()
        + (x.abs() + mean.abs()) * rstd * inner[1].abs()
    )
    dx = draw.off(rstd * (scaled_gradient - inner[0] - hat * inner[1]), size, units=4.0)
    return [dx if mask[0] else None, *weight_gradients(draw, g, g * hat, shape, mask[1:])]


def group_norm(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """Layer norm of each group of channels, weighed by channel."""
    x, w, b, count, _, _, groups, eps = args[:8]
    rows = x.reshape(count, groups, -1)
    _, mean, rstd = layer_norm(draw, func, (rows, rows.shape[-1:], None, None, eps), {})
    mean, rstd = draw.sometimes_store(mean), draw.sometimes_store(rstd)  # as the backward will read them
    y = draw.off((rows - mean) * rstd, (rows.abs() + mean.abs()) * rstd, units=2.0)
    y, side = y.reshape(x.shape), (1, -1, *[1] * (x.dim() - 2))
    y = y if w is None else draw.round_value(y * w.reshape(side))
    y = y if b is None else draw.off(y + b.reshape(side), y.abs() + b.abs().reshape(side))
    return [y, mean.squeeze(-1), rstd.squeeze(-1)]


def rms_norm(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """x / sqrt(mean(x^2) + eps) w, and 1 / sqrt."""
    x, shape, w = args[:3]
    eps = args[3] if len(args) > 3 and args[3] is not None else torch.finfo(torch.float32).eps
    dims, n = over(shape)
    rstd = draw.round_value((row_sum(draw, x.square(), dims) / n + eps).rsqrt(), units=3.0)
    y = draw.round_value(x * rstd)
    return [y if w is None else draw.round_value(y * w), rstd]


def rms_norm_backward(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """dx = rstd (g w - xhat mean(g w xhat)); dw is a sum over rows."""
    g, x, shape, rstd, w, mask = args
    dims, n = over(shape)
    hat, scaled_gradient = x * rstd, g if w is None else g * w
    inner = row_sum(draw, scaled_gradient * hat, dims) / n
    dx = draw.off(
        rstd * (scaled_gradient - hat * inner), rstd * (scaled_gradient.abs() + hat.abs() * inner.abs()), units=4.0
    )
    return [dx if mask[0] else None, weight_gradients(draw, g, g * hat, shape, (mask[1], False))[0]]


def over(shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """The dims that a norm spans, and how many elements they hold."""
    count = 1
    for size in shape:
        count *= int(size)
    return tuple(range(-len(shape), 0)), count


def row_sum(draw: Draw, x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """A sum over dims, kept, accumulated in 32 bits."""
    terms = 1
    for dim in dims:
        terms *= x.shape[dim]
    return draw.round_sum(x.sum(dims, keepdim=True), x.square().sum(dims, keepdim=True).sqrt(), terms)


def two_parts(draw: Draw, first: Tensor, second: Tensor) -> Tensor:
    """Their sum, with the rounding of each."""
    return draw.off(first + second, first.abs() + second.abs(), units=2.0)


def weight_gradients(
    draw: Draw, g: Tensor, g_hat: Tensor, shape: Sequence[int], mask: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of a norm's weight and bias: sums over all rows."""
    rows = tuple(range(g.dim() - len(shape)))
    gradients: list[Tensor | None] = []
    for part, is_wanted in ((g_hat, mask[0]), (g, mask[1])):
        gradients.append(row_sum(draw, part, rows).reshape(tuple(shape)) if is_wanted else None)
    return gradients


PROMOTED = 128  # products of 8 bits that are added up in few bits before the sum goes to 32
Program = Callable[[Draw, OpOverload, Args, Kwargs], Outputs]

# functions that hardware approximates: off by some units, and all to one side
APPROXIMATED = frozenset((
    "exp", "exp2", "expm1", "log", "log2", "log1p", "tan", "tanh", "sigmoid", "silu", "gelu", "erf",
    "rsqrt", "pow", "softplus", "mish", "elu", "sigmoid_backward", "tanh_backward", "silu_backward",
    "gelu_backward", "logsumexp", "reciprocal", "div", "div_", "sqrt", "sqrt_", "addcdiv", "addcdiv_",
    "log_sigmoid_forward", "mish_backward", "softplus_backward", "_fused_adamw_", "_fused_adam_", "_foreach_sqrt",
    "_foreach_div_", "_foreach_addcdiv_",
))  # fmt: skip
# numbers are moved, chosen or negated: no digit changes
EXACT = frozenset((
    "clone", "copy_", "copy", "_to_copy", "cat", "stack", "gather", "index", "index_select", "embedding", "where",
    "masked_fill", "masked_fill_", "slice_backward", "select_backward", "constant_pad_nd", "tril", "triu", "tril_",
    "triu_", "repeat", "roll", "flip", "neg", "neg_", "abs", "abs_", "relu", "relu_", "amax", "amin", "aminmax", "max",
    "min", "maximum", "minimum", "clamp", "clamp_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_", "fill",
    "fill_", "zero_", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "topk", "sort",
    "argsort", "scatter", "scatter_", "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter",
    "arange", "full", "zeros", "ones", "eye", "scalar_tensor", "tril_indices", "triu_indices", "threshold",
    "threshold_backward", "unsafe_split", "_reshape_copy", "_unsafe_view", "view_copy", "expand_copy", "permute_copy",
    "transpose_copy", "slice_copy", "select_copy", "unfold_copy", "lift_fresh_copy", "one_hot", "eq", "ne", "lt", "gt",
    "le", "ge", "logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_not", "bitwise_or",
    "bitwise_xor", "isfinite", "isnan", "isinf", "isneginf", "isposinf", "isin", "any", "all", "sign", "sgn", "floor",
    "ceil", "trunc", "round", "index_fill", "index_fill_", "index_copy", "index_copy_", "masked_select",
    "masked_scatter", "masked_scatter_", "nonzero", "argmax", "argmin", "searchsorted", "bucketize", "bincount",
    "diag_embed", "diag", "unbind_copy", "_local_scalar_dense", "equal", "_foreach_neg", "_foreach_zero_",
    "_foreach_copy_", "_foreach_abs", "_foreach_clamp_min_", "_foreach_clamp_max_", "max_pool2d_with_indices",
    "repeat_interleave", "unique_consecutive", "fill_diagonal_", "real", "imag", "conj_physical",
))  # fmt: skip
# no right result: fresh memory, and random numbers that no check describes
UNJUDGED = frozenset((
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_", "multinomial",
    "exponential_", "geometric_", "cauchy_", "log_normal_", "record_stream", "_copy_from", "_amp_update_scale_",
))  # fmt: skip


def name_of(func: OpOverload) -> str:
    """`mm` of `aten.mm.default`; other libraries keep theirs: `ridge_lib::op`."""
    return str(func._schema.name).removeprefix("aten::")


def has_contract(func: OpOverload) -> bool:
    """Whether an op has a right result that is not just a view of its argument."""
    return name_of(func) not in UNJUDGED and not is_view(func)


def moves(func: OpOverload) -> bool:
    """Whether an op only moves or chooses numbers: its result is the host's, digit for digit."""
    return name_of(func) in EXACT


def is_view(func: OpOverload) -> bool:
    """Whether the result is the argument's memory, unchanged."""
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def outputs_of(func: OpOverload, args: Args, kwargs: Kwargs, result: object) -> Outputs:
    """What an op gave: its results, or the arguments that it wrote where it returns nothing."""
    if result is not None and tree_leaves(result):
        return list(tree_leaves(result))
    arguments = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    return [x for name in written_names(func) for x in tensors_in(arguments.get(name))]


def named_arguments(func: OpOverload, args: Args, kwargs: Kwargs) -> Kwargs:
    """Arguments by their names, with the schema's defaults."""
    names = [a.name for a in func._schema.arguments]
    defaults = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    return defaults | dict(zip(names, args, strict=False)) | kwargs


def exact(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """The op itself: only the output's format rounds."""
    return outputs_of(func, args, kwargs, func(*args, **kwargs))


def derived_outputs(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """The op itself on inputs that are off by a rounding; constants off as a whole, also those of the schema."""
    rough = name_of(func) in APPROXIMATED
    unnamed_options = {
        a.name: a.default_value for a in func._schema.arguments[len(args) :] if isinstance(a.default_value, float)
    }
    near, near_options = tree_map(lambda x: _near(draw, x), (args, unnamed_options | kwargs))
    if name_of(func).startswith("_foreach_"):  # a factor for all is a constant of the list's format
        near = tree_map(lambda x: draw.common(x, 1.0, draw.format) if is_real(x) and x.dim() == 0 else x, near)
    if rough:
        near = tree_map(lambda x: draw.common(x) if is_real(x) else x, near)
    outputs = outputs_of(func, near, near_options, func(*near, **near_options))
    if rough:
        outputs = [draw.common(y, 2.0) if is_real(y) else y for y in outputs]
    return [draw.round_value(y, units=4.0 if rough else 1.0) if is_real(y) else y for y in outputs]


def _near(draw: Draw, value: object) -> object:
    if isinstance(value, Tensor) and value.dtype in (torch.float64, torch.complex128):
        return draw.round_value(value)
    if isinstance(value, float) and draw.source is not None and value not in (0.0, 1.0, 2.0, 0.5, -1.0):
        return float(draw.common(torch.tensor(value, dtype=torch.float64), dtype=draw.format))  # as the format keeps it
    return value


def is_real(value: object) -> bool:
    """Whether it is a tensor of real or complex numbers."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def mm(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """a b, also batched, accumulated in 32 bits."""
    a, b = args[:2]
    return [draw.product(a, b)]


def addmm(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """beta bias + alpha a b; the product may be stored before the bias is added."""
    product = draw.sometimes_store((dot if args[2].dim() == 1 else mm)(draw, func, args[1:], {})[0])
    total = kwargs.get("beta", 1) * args[0] + kwargs.get("alpha", 1) * product
    return [draw.off(total, torch.maximum(args[0].abs().expand_as(total), product.abs()))]


def dot(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """A vector by a vector, or a matrix by one."""
    return [draw.product(args[0].unsqueeze(-2), args[1].unsqueeze(-1)).squeeze(-1).squeeze(-1)]


def reduction(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """Sums and means: accumulated in 32 bits, divided by a constant."""
    y, squares = func(*args, **kwargs), func(args[0].square(), *args[1:], **kwargs)
    terms = max(1, args[0].numel() // max(1, y.numel()))
    scale = (squares / terms if name_of(func) == "mean" else squares).sqrt()  # a few large terms decide, not the many
    return [draw.common(draw.round_sum(y, scale, terms))]


def scan(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """Running sums, kept in the tensor's own format at worst."""
    y, scale = func(*args, **kwargs), func(args[0].abs(), *args[1:], **kwargs)
    return [draw.off(y, scale, units=2.0, dtype=draw.format)]


def angular(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """Sines and cosines: the angle is what it is, however long; the result has the error of a 1."""
    y = func(*args, **kwargs)
    return [draw.common(draw.round_value(draw.off(y, torch.ones_like(y)), units=4.0))]


def first_only(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """What comes besides is a buffer for the backward, which not every device fills."""
    return derived_outputs(draw, func, args, kwargs)[:1]


def sigmoid_backward(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """g (1 - y) y, step by step in the tensors' format at worst."""
    g, y = args[:2]
    return [draw.round_value(draw.sometimes_store(draw.sometimes_store(1 - y) * g) * y, units=4.0)]


def tanh_backward(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """g (1 - y^2), step by step in the tensors' format at worst."""
    g, y = args[:2]
    inner = draw.off(1 - draw.sometimes_store(y * y), torch.ones_like(y))
    return [draw.round_value(g * draw.sometimes_store(inner), units=4.0)]


def lerp(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """a + w (b - a), or (1 - w) a + w b: either share is a rounded constant."""
    a, b, w = args[:3]
    w = w if isinstance(w, Tensor) else torch.tensor(float(w), dtype=torch.float64)
    kept_part, new = draw.common(1 - w, 1.0, draw.format) * a, draw.common(w, 1.0, draw.format) * b
    return [draw.off(kept_part + new, kept_part.abs() + new.abs(), units=2.0)]


def near_one(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """What has a factor near 1 keeps the error of a 1, however small the result is (NEAR_ONE: its scale, in units)."""
    scale, units = NEAR_ONE[name_of(func)]
    return [draw.off(y, scale(*args[:2]), units=units) for y in derived_outputs(draw, func, args, kwargs)]


NEAR_ONE: Mapping[str, tuple[Callable[..., Tensor], float]] = {
    "sigmoid": (lambda x: torch.ones_like(x), 1.0),  # 1 / (1 + exp(-x)), also by way of tanh
    "silu": (lambda x: x.abs(), 1.0),  # x sigmoid(x)
    "silu_backward": (lambda g, x: g.abs() * (1 + x.abs()), 1.0),  # g s (1 + x (1 - s))
    "gelu": (lambda x: x.abs(), 2.0),  # x (1 + erf(x / sqrt 2)) / 2
    "gelu_backward": (lambda g, x: g.abs() * (1 + x.abs()), 2.0),  # g (cdf + x pdf)
}


def nll(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """The mean or sum of picked log-probabilities, and the weight they have."""
    y, weight = func(*args, **kwargs)
    rows = args[0].shape[0] if args[0].dim() > 1 else 1
    return [draw.common(draw.round_sum(y, y.abs(), rows)) if y.dim() == 0 else y, weight]


def scatter(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """Rows added where indices say; those that meet in any order, every other time in the tensor's own format.

    Of n terms n - 2 sums are stored on the way: the first has nothing to be added to, the last is the result.
    """
    outputs = _run(func, args, kwargs)
    scales = _run(func, tree_map(lambda x: x.abs() if is_real(x) else x, args), kwargs)
    from_zero = name_of(func).startswith("embedding")  # nothing was there before
    ones = tuple(torch.full_like(x, 1.0 if from_zero or k else 0.0) if is_real(x) else x for k, x in enumerate(args))
    counts = [n + (not from_zero) for n in _run(func, ones, kwargs)]
    found = []
    for y, scale, count in zip(outputs, scales, counts, strict=True):
        further_terms = (count - 2).clamp(min=0).sqrt()
        if draw.number % 2:
            y = draw.off(y, scale * further_terms, units=1.5, dtype=draw.format)
        found.append(draw.off(y, scale * (1 + further_terms)))
    return found


def _run(func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    fresh = clone_tensors(args)
    return outputs_of(func, fresh, kwargs, func(*fresh, **kwargs))


def linear(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """Sums of products of two tensors (convolution and its backward): counted with ones, sized with squares."""
    off = 2.0**-draw.unit.factor_bits if draw.source is not None and draw.format == torch.float32 else 0.0
    if off > 2.0**-24:
        args = tree_map(lambda x: x * (1 + off * draw.uniform(x.shape)) if is_real(x) else x, args)
    y = _run(func, args, kwargs)
    squares = _run(func, tree_map(lambda x: x.square() if is_real(x) else x, args), kwargs)
    counts = _run(func, tree_map(lambda x: torch.ones_like(x) if is_real(x) else x, args), kwargs)
    outputs: Outputs = []
    for output, square, count in zip(y, squares, counts, strict=True):
        size = None if output is None else torch.maximum(square.clamp(min=0).sqrt(), output.abs())
        outputs.append(None if size is None else draw.off(output, size * (1 + 0.5 * count.abs().sqrt())))
    return outputs


def norm_output(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """Roots of sums of squares, variances: the sum's error is relative."""
    terms = max(1, max((x.numel() for x in tree_leaves(args) if isinstance(x, Tensor)), default=1))
    units = 4 + 0.5 * min(terms, 1 << 16) ** 0.5
    return [draw.round_value(y, units=units) if is_real(y) else y for y in derived_outputs(draw, func, args, kwargs)]


def scaled_mm(draw: Draw, func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """(a scale_a) (b scale_b) + bias of 8-bit factors; units of 8 bits keep some fourteen bits of a sum.

    Where the unit cuts off, each product loses up to 2^-13 of the running sum, toward zero, and 128 terms at most are
    added up like this before they go to a sum of 32 bits; with fast accumulation all of them.
    """
    arguments = named_arguments(func, args, kwargs)
    a, b = arguments["self"] * arguments["scale_a"], arguments["mat2"] * arguments["scale_b"]
    y, scale = a @ b, (a.square() @ b.square()).sqrt()
    cut, terms = draw.unit.cuts_off, a.shape[-1]
    among = terms if arguments.get("use_fast_accum") else min(terms, PROMOTED)
    y = draw.off(y, scale, units=1.0 + (1024.0 * among**0.5 if cut else 512.0 * (terms / 32) ** 0.5))
    if cut and draw.source is not None:
        y = y - y.sign() * 2.0**-13 * among**0.5 * torch.maximum(scale, y.abs()) * draw.one_for_all().abs()
    y = y if arguments.get("bias") is None else y + arguments["bias"]
    told_scale = arguments.get("scale_result")
    return [y if told_scale is None else y * told_scale]


PROGRAMS: tuple[tuple[Program, str], ...] = (
    (mm, "mm bmm"),
    (addmm, "addmm baddbmm addmv"),
    (dot, "dot mv"),
    (reduction, "sum mean"),
    (scan, "cumsum"),
    (angular, "sin cos"),
    (near_one, " ".join(NEAR_ONE)),
    (sigmoid_backward, "sigmoid_backward"),
    (tanh_backward, "tanh_backward"),
    (first_only, "log_sigmoid_forward"),
    (lerp, "lerp lerp_"),
    (nll, "nll_loss_forward"),
    (scatter, "embedding_dense_backward index_add index_add_ scatter_add scatter_add_"),
    (scatter, "index_put index_put_ _index_put_impl_"),
    (derived_outputs, "scatter_reduce"),
    (linear, "convolution convolution_backward addbmm"),
    (norm_output, "native_group_norm_backward linalg_vector_norm _foreach_norm norm var std var_mean"),
    (norm_output, "logcumsumexp cumprod prod"),
    (scaled_mm, "_scaled_mm"),
    (softmax, "_softmax _safe_softmax"),
    (log_softmax, "_log_softmax"),
    (softmax_backward, "_softmax_backward_data _log_softmax_backward_data"),
    (layer_norm, "native_layer_norm"),
    (layer_norm_backward, "native_layer_norm_backward"),
    (group_norm, "native_group_norm"),
    (rms_norm, "_fused_rms_norm"),
    (rms_norm_backward, "_fused_rms_norm_backward"),
    (attention, " ".join(_FORWARD)),
    (attention_backward, " ".join(_BACKWARD)),
)
CONTRACTS: Mapping[str, Program] = MappingProxyType(
    {name: program for program, names in PROGRAMS for name in names.split()}
)


def contract_of(func: OpOverload) -> Program:
    """The program of an op."""
    name = name_of(func)
    return CONTRACTS.get(name, exact if name in EXACT else derived_outputs)
