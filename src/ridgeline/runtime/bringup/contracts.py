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
from ridgeline.runtime.bringup.norm_contracts import (
    layer_norm,
    layer_norm_backward,
    log_softmax,
    rms_norm,
    rms_norm_backward,
    softmax,
    softmax_backward,
)

Program = Callable[[Draw, Any, tuple[Any, ...], dict[str, Any]], list[Any]]

# functions that hardware approximates: off by some units, and all to one side
APPROXIMATED = frozenset((
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "tanh", "sigmoid", "silu", "gelu", "erf",
    "rsqrt", "pow", "softplus", "mish", "elu", "sigmoid_backward", "tanh_backward", "silu_backward",
    "gelu_backward", "logsumexp", "reciprocal", "div", "div_", "sqrt", "sqrt_", "addcdiv", "addcdiv_",
    "log_sigmoid_forward", "mish_backward", "softplus_backward", "_fused_adamw_", "_fused_adam_", "_foreach_sqrt",
    "_foreach_div_", "_foreach_addcdiv_",
))  # fmt: skip
# numbers are moved, chosen or negated: no digit changes
EXACT = frozenset((
    "clone", "copy_", "_to_copy", "cat", "stack", "gather", "index", "index_select", "embedding", "where",
    "masked_fill", "masked_fill_", "slice_backward", "select_backward", "constant_pad_nd", "tril", "triu", "repeat",
    "roll", "flip", "neg", "abs", "relu", "amax", "amin", "max", "min", "maximum", "minimum", "clamp", "clamp_min",
    "fill_", "zero_", "zeros_like", "ones_like", "full_like", "topk", "sort", "scatter", "scatter_",
    "slice_scatter", "select_scatter", "arange", "full", "zeros", "ones", "threshold_backward", "unsafe_split",
    "_reshape_copy", "one_hot", "eq", "ne", "lt", "gt", "le", "ge", "logical_and", "logical_not", "bitwise_and",
    "bitwise_not", "bitwise_or", "isfinite", "isnan", "isinf", "sign",
))  # fmt: skip
UNJUDGED = frozenset((
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_", "native_dropout",
    "bernoulli", "bernoulli_", "normal_", "uniform_", "random_", "rand", "randn", "randint", "rand_like",
    "randn_like", "randperm", "multinomial", "exponential_", "_local_scalar_dense", "item", "record_stream",
    "_copy_from",
))  # fmt: skip


def name_of(func: Any) -> str:
    """`mm` of `aten.mm.default`; other libraries keep theirs: `ridge_lib::op`."""
    return str(func._schema.name).removeprefix("aten::")


def judged(func: Any) -> bool:
    """Whether an op has a right result that is not just a view of its argument."""
    return name_of(func) not in UNJUDGED and not is_view(func)


def is_view(func: Any) -> bool:
    """Whether the result is the argument's memory, unchanged."""
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def outputs_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Any]:
    """What an op gave: its results, or the arguments that it wrote where it returns nothing."""
    if result is not None and tree_leaves(result):
        return list(tree_leaves(result))
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    written = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [x for name in written for x in tree_leaves(given.get(name)) if isinstance(x, Tensor)]


def exact(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The op itself: only the output's format rounds."""
    return outputs_of(func, args, kwargs, func(*args, **kwargs))


def derived(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The op itself on inputs that are off by a rounding; constants off as a whole."""
    rough = name_of(func) in APPROXIMATED
    near, named = tree_map(lambda x: _near(draw, x), (args, kwargs))
    outputs = outputs_of(func, near, named, func(*near, **named))
    if rough:
        outputs = [draw.common(y, 2.0) if _real(y) else y for y in outputs]
    return [draw.rounded(y, units=4.0 if rough else 1.0) if _real(y) else y for y in outputs]


def _near(draw: Draw, value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.float64:
        return draw.rounded(value)
    if isinstance(value, float) and draw.source is not None and value not in (0.0, 1.0, 2.0, 0.5, -1.0):
        return float(draw.common(torch.tensor(value, dtype=torch.float64), dtype=draw.format))  # as the format keeps it
    return value


def _real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def mm(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """a b, also batched, accumulated in 32 bits."""
    a, b = args[:2]
    return [draw.summed(a @ b, (a.square() @ b.square()).sqrt(), a.shape[-1])]


def addmm(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """beta bias + alpha a b, added before the rounding."""
    product = mm(draw, func, args[1:], {})[0]
    whole = kwargs.get("beta", 1) * args[0] + kwargs.get("alpha", 1) * product
    return [draw.off(whole, torch.maximum(args[0].abs().expand_as(whole), product.abs()))]


def reduced(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Sums and means: accumulated in 32 bits, divided by a constant."""
    y, scale = func(*args, **kwargs), func(args[0].abs(), *args[1:], **kwargs)
    terms = max(1, args[0].numel() // max(1, y.numel()))
    return [draw.common(draw.summed(y, scale / terms**0.5, terms))]


def scanned(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Running sums, kept in the tensor's own format at worst."""
    y, scale = func(*args, **kwargs), func(args[0].abs(), *args[1:], **kwargs)
    return [draw.off(y, scale, units=2.0, dtype=draw.format)]


def gelu(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """x (1 + erf(x / sqrt 2)) / 2: the sum in the bracket keeps the error of a 1."""
    return [draw.off(y, args[0].abs(), units=2.0) for y in derived(draw, func, args, kwargs)]


def gelu_backward(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """g (cdf + x pdf), the cdf with the error of a 1."""
    g, x = args[:2]
    return [draw.off(y, g.abs() * (1 + x.abs()), units=2.0) for y in derived(draw, func, args, kwargs)]


def nll(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The mean or sum of picked log-probabilities, and the weight they have."""
    y, weight = func(*args, **kwargs)
    rows = args[0].shape[0] if args[0].dim() > 1 else 1
    return [draw.common(draw.summed(y, y.abs(), rows)) if y.dim() == 0 else y, weight]


def scattered(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Rows added where indices say; those that meet in any order, at worst in the tensor's own format."""
    near = tree_map(_absolute, args)
    outputs = outputs_of(func, args, kwargs, func(*tree_map(_clone, args), **kwargs))
    scales = outputs_of(func, near, kwargs, func(*near, **kwargs))
    return [draw.off(y, scale, units=2.0, dtype=draw.format) for y, scale in zip(outputs, scales, strict=True)]


def _absolute(value: Any) -> Any:
    return value.abs() if _real(value) else _clone(value)


def _clone(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


CONTRACTS: dict[str, Program] = {
    "mm": mm,
    "bmm": mm,
    "addmm": addmm,
    "baddbmm": addmm,
    "sum": reduced,
    "mean": reduced,
    "cumsum": scanned,
    "gelu": gelu,
    "gelu_backward": gelu_backward,
    "nll_loss_forward": nll,
    "embedding_dense_backward": scattered,
    "index_add": scattered,
    "index_add_": scattered,
    "scatter_add": scattered,
    "scatter_add_": scattered,
    "index_put": scattered,
    "index_put_": scattered,
    "_index_put_impl_": scattered,
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
    return CONTRACTS.get(name, exact if name in EXACT else derived)
