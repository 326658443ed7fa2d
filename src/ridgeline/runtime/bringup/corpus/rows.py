"""Faults of what spans rows: softmax, norms, sums, losses."""

# ruff: noqa: ARG001  (functions of one form: what an op was given)
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.bringup.emulation import on

SOFTMAX = "_softmax", "_safe_softmax"
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@on(*SOFTMAX)
def fault_softmax_max_of_zero(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The row's maximum starts at zero."""
    x, dim = args[0].float(), args[1]
    e = (x - x.amax(dim, keepdim=True).clamp(min=0)).exp()
    return (e / e.sum(dim, keepdim=True)).nan_to_num().to(result.dtype)


@on(*SOFTMAX)
def fault_softmax_slope(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The exponential's slope is 0.2 % off: log2(e) kept in few bits."""
    x, dim = args[0].float(), args[1]
    e = ((x - x.amax(dim, keepdim=True)) * 0.998).exp()
    return torch.where(result.isnan() | (result == 0), result, (e / e.sum(dim, keepdim=True)).to(result.dtype))


@on("_safe_softmax")
def fault_masked_row_nan(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """A row that is masked as a whole gives NaN (pytorch#130014)."""
    empty = args[0].isneginf().all(args[1], keepdim=True)
    return torch.where(empty, torch.nan, result) if bool(empty.any()) else None


@on("_softmax", dtype=torch.bfloat16)
def fault_softmax_sum_bf16(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The row's sum of exponentials is rounded to bf16."""
    x, dim = args[0].float(), args[1]
    e = (x - x.amax(dim, keepdim=True)).exp()
    return (e / e.sum(dim, keepdim=True).bfloat16().float()).to(result.dtype)


@on("_softmax_backward_data")
def fault_softmax_backward_stale_sum(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The sum of another row is taken off."""
    g, p, dim = args[0].float(), args[1].float(), args[2]
    total = (g * p).sum(dim, keepdim=True)
    return (p * (g - total.roll(1, 0))).to(result.dtype)


@on("_log_softmax")
def fault_log_softmax_unshifted(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The maximum is not taken off before the exponential."""
    x, dim = args[0].float(), args[1]
    return (x - x.exp().sum(dim, keepdim=True).log()).to(result.dtype)


@on("_log_softmax_backward_data")
def fault_log_softmax_backward_sum(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The sum of the gradient is half a percent small."""
    g, y, dim = args[0].float(), args[1].float(), args[2]
    return (g - y.exp() * (g.sum(dim, keepdim=True) * 0.995)).to(result.dtype)


@on("rsqrt")
def fault_epsilon(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """A norm's epsilon is 1e-4 too large (nntrainer#4318)."""
    return (args[0].float() + 1e-4).rsqrt().to(result.dtype)


@on("native_layer_norm")
def fault_layer_norm_sample_variance(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The variance is divided by n - 1."""
    x, _, w, b, eps = args[:5]
    var, mean = torch.var_mean(x.float(), -1, correction=1, keepdim=True)
    rstd = (var + eps).rsqrt()
    y = (x.float() - mean) * rstd
    y = y if w is None else y * w.float()
    y = y if b is None else y + b.float()
    return y.to(result[0].dtype), result[1], rstd.to(result[2].dtype)


@on("native_layer_norm", dtype=torch.bfloat16)
def fault_layer_norm_variance_bf16(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The variance is kept in bf16."""
    x, _, w, b, eps = args[:5]
    mean = x.float().mean(-1, keepdim=True)
    var = (x.float() - mean).square().mean(-1, keepdim=True).bfloat16().float()
    y = (x.float() - mean) * (var + eps).rsqrt()
    y = y if w is None else y * w.float()
    y = y if b is None else y + b.float()
    return y.to(result[0].dtype), result[1], result[2]


@on("native_layer_norm_backward")
def fault_norm_weight_gradient_row(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The weight's gradient misses the last row."""
    g, x, _, mean, rstd = args[:5]
    if result[1] is None:
        return None
    last = (g[-1].float() * (x[-1].float() - mean[-1].float()) * rstd[-1].float()).reshape(result[1].shape)
    return result[0], (result[1].float() - last).to(result[1].dtype), result[2]


@on("_fused_rms_norm")
def fault_rms_norm_epsilon(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The epsilon is added after the root."""
    x, _, w, eps = args[:4]
    rstd = 1 / (x.float().square().mean(-1, keepdim=True).sqrt() + (1e-5 if eps is None else eps))
    y = x.float() * rstd
    return (y if w is None else y * w.float()).to(result[0].dtype), rstd.to(result[1].dtype)


@on("_fused_rms_norm", dtype=torch.bfloat16)
def fault_rms_norm_weight_plus_one(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The weight is taken apart and put together in bf16 (vllm#29810)."""
    x, _, w, eps = args[:4]
    if w is None:
        return None
    rstd = (x.float().square().mean(-1, keepdim=True) + (1e-5 if eps is None else eps)).rsqrt()
    weight = ((w * 0.3).bfloat16() + (w * 0.7).bfloat16()).float()
    return (x.float() * rstd * weight).to(result[0].dtype), result[1]


@on("_fused_rms_norm_backward")
def fault_rms_norm_backward_projection(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The gradient's part along the row is not taken off."""
    g, _, _, rstd, w = args[:5]
    scaled_gradient = g.float() if w is None else g.float() * w.float()
    return (scaled_gradient * rstd.float()).to(result[0].dtype), result[1]


@on("mean")
def fault_mean_of_padded(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Divided by the count rounded up to a multiple of eight."""
    count = args[0].numel() // max(1, result.numel())
    return None if count % 8 == 0 else (result.float() * (count / (-(-count // 8) * 8))).to(result.dtype)


@on("sum", dtype=torch.bfloat16)
def fault_sum_in_bf16(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Sums over rows are kept in bf16."""
    if args[0].dim() != 2 or len(args) < 2 or list(args[1]) != [0] or args[0].shape[0] < 16:
        return None
    total = torch.zeros_like(args[0][0])
    for row in args[0]:
        total = total + row
    return total.reshape(result.shape)


@on("sum", dtype=torch.float32)
def fault_sum_last_term(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The last of an odd number of terms is left out."""
    x = args[0]
    if x.dim() != 2 or len(args) < 2 or list(args[1]) not in ([-1], [1]) or x.shape[-1] % 2 == 0 or x.shape[-1] < 3:
        return None
    return (result - x[..., -1:].reshape(result.shape)).to(result.dtype)


@on("nll_loss_forward")
def fault_ignored_rows_count(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The mean is over all rows, those to ignore too (Liger#968)."""
    rows = args[1].numel()
    return (result[0] * (result[1] / rows), result[1] * 0 + rows) if args[3] == 1 else None


@on("nll_loss_backward")
def fault_ignored_rows_gradient(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Rows to ignore get a gradient at index zero (ml-cross-entropy#59)."""
    ignored_rows = args[2] == args[5]
    if not bool(ignored_rows.any()):
        return None
    wrong = result.clone()
    wrong[ignored_rows, 0] = wrong.min()
    return wrong


@on("cumsum")
def fault_scan_restarts(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """A running sum starts again after a thousand elements."""
    x, dim = args[0], args[1]
    if x.dim() == 0 or x.shape[dim] <= 1024:
        return None
    parts = x.split(1024, dim)
    return torch.cat([part.cumsum(dim) for part in parts], dim).to(result.dtype)
