"""Numerics contracts: for each op a program in fp64 that marks where an implementation may round.

    contract_of(op)      the program of an op: one of its own (CONTRACTS), exact (what only moves numbers), or derived:
                         the op itself in fp64, its inputs and output off by 32-bit roundings
    judged(op)           whether there is a right result at all: fresh memory and random numbers have none

A program takes a Draw and the op's arguments in fp64 and returns its outputs in fp64, before the last rounding to the
output's format, which is the judge's. Formats of 16 bits and fewer are multiplied exactly and accumulated in 32 bits.
"""

# ruff: noqa: ARG001  (programs of one form: a Draw, the op, its arguments)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup.arithmetic import Draw
from ridgeline.runtime.bringup.attention_contracts import attention, attention_backward
from ridgeline.runtime.bringup.choices import named_arguments
from ridgeline.runtime.bringup.norm_contracts import (
    group_norm,
    layer_norm,
    layer_norm_backward,
    log_softmax,
    rms_norm,
    rms_norm_backward,
    softmax,
    softmax_backward,
)

PROMOTED = 128  # products of 8 bits that are added up in few bits before the sum goes to 32
Program = Callable[[Draw, Any, tuple[Any, ...], dict[str, Any]], list[Any]]

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


def name_of(func: Any) -> str:
    """`mm` of `aten.mm.default`; other libraries keep theirs: `ridge_lib::op`."""
    return str(func._schema.name).removeprefix("aten::")


def has_contract(func: Any) -> bool:
    """Whether an op has a right result that is not just a view of its argument."""
    return name_of(func) not in UNJUDGED and not is_view(func)


def moves(func: Any) -> bool:
    """Whether an op only moves or chooses numbers: its result is the host's, digit for digit."""
    return name_of(func) in EXACT


def is_view(func: Any) -> bool:
    """Whether the result is the argument's memory, unchanged."""
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def outputs_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Any]:
    """What an op gave: its results, or the arguments that it wrote where it returns nothing."""
    if result is not None and tree_leaves(result):
        return list(tree_leaves(result))
    arguments = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    written = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [x for name in written for x in tree_leaves(arguments.get(name)) if isinstance(x, Tensor)]


def exact(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The op itself: only the output's format rounds."""
    return outputs_of(func, args, kwargs, func(*args, **kwargs))


def derived_outputs(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The op itself on inputs that are off by a rounding; constants off as a whole, also those of the schema."""
    rough = name_of(func) in APPROXIMATED
    unnamed_options = {
        a.name: a.default_value for a in func._schema.arguments[len(args) :] if isinstance(a.default_value, float)
    }
    near, near_options = tree_map(lambda x: _near(draw, x), (args, unnamed_options | kwargs))
    if name_of(func).startswith("_foreach_"):  # a factor for all is a constant of the list's format
        near = tree_map(lambda x: draw.common(x, 1.0, draw.format) if _real(x) and x.dim() == 0 else x, near)
    if rough:
        near = tree_map(lambda x: draw.common(x) if _real(x) else x, near)
    outputs = outputs_of(func, near, near_options, func(*near, **near_options))
    if rough:
        outputs = [draw.common(y, 2.0) if _real(y) else y for y in outputs]
    return [draw.rounded(y, units=4.0 if rough else 1.0) if _real(y) else y for y in outputs]


def _near(draw: Draw, value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in (torch.float64, torch.complex128):
        return draw.rounded(value)
    if isinstance(value, float) and draw.source is not None and value not in (0.0, 1.0, 2.0, 0.5, -1.0):
        return float(draw.common(torch.tensor(value, dtype=torch.float64), dtype=draw.format))  # as the format keeps it
    return value


def _real(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def mm(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """a b, also batched, accumulated in 32 bits."""
    a, b = args[:2]
    return [draw.product(a, b)]


def addmm(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """beta bias + alpha a b; the product may be stored before the bias is added."""
    product = draw.sometimes_stored((dot if args[2].dim() == 1 else mm)(draw, func, args[1:], {})[0])
    total = kwargs.get("beta", 1) * args[0] + kwargs.get("alpha", 1) * product
    return [draw.off(total, torch.maximum(args[0].abs().expand_as(total), product.abs()))]


def dot(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """A vector by a vector, or a matrix by one."""
    return [draw.product(args[0].unsqueeze(-2), args[1].unsqueeze(-1)).squeeze(-1).squeeze(-1)]


def reduction(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Sums and means: accumulated in 32 bits, divided by a constant."""
    y, squares = func(*args, **kwargs), func(args[0].square(), *args[1:], **kwargs)
    terms = max(1, args[0].numel() // max(1, y.numel()))
    scale = (squares / terms if name_of(func) == "mean" else squares).sqrt()  # a few large terms decide, not the many
    return [draw.common(draw.summed(y, scale, terms))]


def scan(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Running sums, kept in the tensor's own format at worst."""
    y, scale = func(*args, **kwargs), func(args[0].abs(), *args[1:], **kwargs)
    return [draw.off(y, scale, units=2.0, dtype=draw.format)]


def angular(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Sines and cosines: the angle is what it is, however long; the result has the error of a 1."""
    y = func(*args, **kwargs)
    return [draw.common(draw.rounded(draw.off(y, torch.ones_like(y)), units=4.0))]


def first_only(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What comes besides is a buffer for the backward, which not every device fills."""
    return derived_outputs(draw, func, args, kwargs)[:1]


def sigmoid_backward(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """g (1 - y) y, step by step in the tensors' format at worst."""
    g, y = args[:2]
    return [draw.rounded(draw.sometimes_stored(draw.sometimes_stored(1 - y) * g) * y, units=4.0)]


def tanh_backward(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """g (1 - y^2), step by step in the tensors' format at worst."""
    g, y = args[:2]
    inner = draw.off(1 - draw.sometimes_stored(y * y), torch.ones_like(y))
    return [draw.rounded(g * draw.sometimes_stored(inner), units=4.0)]


def lerp(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """a + w (b - a), or (1 - w) a + w b: either share is a rounded constant."""
    a, b, w = args[:3]
    w = w if isinstance(w, Tensor) else torch.tensor(float(w), dtype=torch.float64)
    kept_part, new = draw.common(1 - w, 1.0, draw.format) * a, draw.common(w, 1.0, draw.format) * b
    return [draw.off(kept_part + new, kept_part.abs() + new.abs(), units=2.0)]


def sigmoid(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """1 / (1 + exp(-x)), also by way of tanh: far below zero it keeps the error of a 1."""
    return [draw.off(y, torch.ones_like(y)) for y in derived_outputs(draw, func, args, kwargs)]


def silu(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """x sigmoid(x)."""
    return [draw.off(y, args[0].abs()) for y in derived_outputs(draw, func, args, kwargs)]


def silu_backward(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """g s (1 + x (1 - s)), the sigmoids with the error of a 1."""
    g, x = args[:2]
    return [draw.off(y, g.abs() * (1 + x.abs())) for y in derived_outputs(draw, func, args, kwargs)]


def gelu(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """x (1 + erf(x / sqrt 2)) / 2: the sum in the bracket keeps the error of a 1."""
    return [draw.off(y, args[0].abs(), units=2.0) for y in derived_outputs(draw, func, args, kwargs)]


def gelu_backward(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """g (cdf + x pdf), the cdf with the error of a 1."""
    g, x = args[:2]
    return [draw.off(y, g.abs() * (1 + x.abs()), units=2.0) for y in derived_outputs(draw, func, args, kwargs)]


def nll(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The mean or sum of picked log-probabilities, and the weight they have."""
    y, weight = func(*args, **kwargs)
    rows = args[0].shape[0] if args[0].dim() > 1 else 1
    return [draw.common(draw.summed(y, y.abs(), rows)) if y.dim() == 0 else y, weight]


def scatter(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Rows added where indices say; those that meet in any order, every other time in the tensor's own format.

    Of n terms n - 2 sums are stored on the way: the first has nothing to be added to, the last is the result.
    """
    outputs = _run(func, args, kwargs)
    scales = _run(func, tree_map(_absolute, args), kwargs)
    from_zero = name_of(func).startswith("embedding")  # nothing was there before
    ones = tuple(_ones(x, 1.0 if from_zero or k else 0.0) for k, x in enumerate(args))
    counts = [n + (not from_zero) for n in _run(func, ones, kwargs)]
    found = []
    for y, scale, count in zip(outputs, scales, counts, strict=True):
        further_terms = (count - 2).clamp(min=0).sqrt()
        if draw.number % 2:
            y = draw.off(y, scale * further_terms, units=1.5, dtype=draw.format)
        found.append(draw.off(y, scale * (1 + further_terms)))
    return found


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    fresh = tree_map(_clone, args)
    return outputs_of(func, fresh, kwargs, func(*fresh, **kwargs))


def _ones(value: Any, fill: float) -> Any:
    return torch.full_like(value, fill) if _real(value) else value


def linear(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Sums of products of two tensors (convolution and its backward): counted with ones, sized with squares."""
    off = 2.0**-draw.unit.factor_bits if draw.source is not None and draw.format == torch.float32 else 0.0
    if off > 2.0**-24:
        args = tree_map(lambda x: x * (1 + off * draw.uniform(x.shape)) if _real(x) else x, args)
    y = _run(func, args, kwargs)
    squares = _run(func, tree_map(lambda x: x.square() if _real(x) else x, args), kwargs)
    counts = _run(func, tree_map(lambda x: torch.ones_like(x) if _real(x) else x, args), kwargs)
    outputs: list[Any] = []
    for output, square, count in zip(y, squares, counts, strict=True):
        size = None if output is None else torch.maximum(square.clamp(min=0).sqrt(), output.abs())
        outputs.append(None if size is None else draw.off(output, size * (1 + 0.5 * count.abs().sqrt())))
    return outputs


def norm_output(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Roots of sums of squares, variances: the sum's error is relative."""
    terms = max(1, max((x.numel() for x in tree_leaves(args) if isinstance(x, Tensor)), default=1))
    units = 4 + 0.5 * min(terms, 1 << 16) ** 0.5
    return [draw.rounded(y, units=units) if _real(y) else y for y in derived_outputs(draw, func, args, kwargs)]


def scaled_mm(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
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


def _absolute(value: Any) -> Any:
    return value.abs() if _real(value) else _clone(value)


def _clone(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


CONTRACTS: dict[str, Program] = {
    "mm": mm,
    "bmm": mm,
    "addmm": addmm,
    "baddbmm": addmm,
    "sum": reduction,
    "mean": reduction,
    "cumsum": scan,
    "gelu": gelu,
    "log_sigmoid_forward": first_only,
    "sigmoid_backward": sigmoid_backward,
    "tanh_backward": tanh_backward,
    "lerp": lerp,
    "lerp_": lerp,
    "sigmoid": sigmoid,
    "silu": silu,
    "silu_backward": silu_backward,
    "sin": angular,
    "cos": angular,
    "gelu_backward": gelu_backward,
    "nll_loss_forward": nll,
    "embedding_dense_backward": scatter,
    "index_add": scatter,
    "index_add_": scatter,
    "scatter_add": scatter,
    "scatter_add_": scatter,
    "index_put": scatter,
    "index_put_": scatter,
    "_index_put_impl_": scatter,
    "scatter_reduce": derived_outputs,
    "convolution": linear,
    "convolution_backward": linear,
    "native_group_norm": group_norm,
    "native_group_norm_backward": norm_output,
    "linalg_vector_norm": norm_output,
    "_foreach_norm": norm_output,
    "norm": norm_output,
    "var": norm_output,
    "std": norm_output,
    "var_mean": norm_output,
    "logcumsumexp": norm_output,
    "cumprod": norm_output,
    "prod": norm_output,
    "_scaled_mm": scaled_mm,
    "dot": dot,
    "mv": dot,
    "addmv": addmm,
    "addbmm": linear,
    "_softmax": softmax,
    "_safe_softmax": softmax,
    "_log_softmax": log_softmax,
    "_softmax_backward_data": softmax_backward,
    "_log_softmax_backward_data": softmax_backward,
    "native_layer_norm": layer_norm,
    "native_layer_norm_backward": layer_norm_backward,
    "_fused_rms_norm": rms_norm,
    "_fused_rms_norm_backward": rms_norm_backward,
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention": attention,
    "_scaled_dot_product_efficient_attention": attention,
    "_scaled_dot_product_cudnn_attention": attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
    "_scaled_dot_product_flash_attention_backward": attention_backward,
    "_scaled_dot_product_cudnn_attention_backward": attention_backward,
    "_scaled_dot_product_efficient_attention_backward": attention_backward,
}


def contract_of(func: Any) -> Program:
    """The program of an op."""
    name = name_of(func)
    return CONTRACTS.get(name, exact if name in EXACT else derived_outputs)
