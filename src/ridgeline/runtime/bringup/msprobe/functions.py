"""APIs of a dump that are replayed, by name: a stranger's name calls nothing that is not in these lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

FUNCTIONAL = (
    "linear", "embedding", "layer_norm", "rms_norm", "softmax", "log_softmax", "silu", "gelu", "relu", "sigmoid",
    "tanh", "softplus", "leaky_relu", "elu", "mish", "cross_entropy", "nll_loss", "mse_loss",
    "scaled_dot_product_attention", "logsigmoid", "hardtanh", "group_norm", "normalize", "glu",
)  # fmt: skip
TORCH = (
    "matmul", "mm", "bmm", "addmm", "baddbmm", "add", "sub", "mul", "div", "true_divide", "exp", "exp2", "expm1", "log",
    "log2", "log1p", "sqrt", "rsqrt", "square", "pow", "sum", "mean", "softmax", "log_softmax", "cat", "stack", "where",
    "outer", "sin", "cos", "sigmoid", "tanh", "relu", "abs", "neg", "cumsum", "gather", "index_select", "clamp", "tril",
    "triu", "masked_fill", "rsub", "reciprocal", "erf", "maximum", "minimum", "amax", "amin", "layer_norm", "rms_norm",
    "einsum", "logsumexp", "scatter_add", "index_add", "embedding", "lerp", "addcmul", "addcdiv", "var", "norm",
)  # fmt: skip
TENSOR = (
    *TORCH[:-1], "norm", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__", "__rmul__",
    "__imul__", "__truediv__", "__rtruediv__", "__itruediv__", "__matmul__", "__pow__", "__neg__", "add_", "sub_",
    "mul_", "div_", "neg_", "exp_", "sqrt_", "masked_fill_", "clamp_", "silu_", "contiguous", "clone",
)  # fmt: skip
CASTS = frozenset(f"Tensor.{name}" for name in ("float", "half", "bfloat16", "double", "to", "type", "type_as"))


def _rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """torch_npu.npu_rms_norm: the rows over their root mean square, times gamma, and the reciprocal root."""
    reciprocal = (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return x * reciprocal * gamma, reciprocal


def _swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """torch_npu.npu_swiglu: silu of the first half times the second."""
    gate, up = x.chunk(2, dim)
    return functional.silu(gate) * up


def _rotary(x: Tensor, cosines: Tensor, sines: Tensor, rotary_mode: str = "half") -> Tensor:
    """torch_npu.npu_rotary_mul: x cos + turned(x) sin, halves or neighbours turned."""
    if rotary_mode == "half":
        first, second = x.chunk(2, -1)
        rotated_half = torch.cat((-second, first), -1)
    else:
        rotated_half = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cosines + rotated_half * sines


def _functions_by_name() -> dict[str, Callable[..., Any]]:
    functions: dict[str, Callable[..., Any]] = {}
    for prefix, owner, names in (
        ("Functional", functional, FUNCTIONAL), ("Torch", torch, TORCH), ("Tensor", Tensor, TENSOR),
    ):  # fmt: skip
        functions |= {f"{prefix}.{name}": getattr(owner, name) for name in names if hasattr(owner, name)}
    functions |= {"NPU.npu_rms_norm": _rms_norm, "NPU.npu_swiglu": _swiglu, "NPU.npu_rotary_mul": _rotary}
    return functions


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(_functions_by_name())
