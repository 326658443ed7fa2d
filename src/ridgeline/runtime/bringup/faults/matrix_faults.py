"""Faults of matrix products, of fused attention, and of what spans rows: softmax, norms, sums, losses.

A fault turns the arguments and the result y of an op into another result; None leaves the op alone.
"""

# ruff: noqa: ARG001, ARG005  (functions of one form: what an op was given)
from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.runtime.bringup.arithmetic import Args, Kwargs, Tensors
from ridgeline.runtime.bringup.fake_device import (
    BF16,
    FP32,
    added_in,
    cut,
    on,
    operands,
    partial_products,
    product,
    rounded_bits,
    tf32,
    ties_away,
    with_bias,
    with_part,
)

ALL = "mm", "bmm", "addmm", "baddbmm"


@on(*ALL, dtype=FP32)
def fault_tf32_products(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor:
    """fp32 factors lose thirteen bits (pytorch#53635)."""
    bias, a, b = operands(args)
    return with_bias(tf32(a) @ tf32(b), bias, kwargs)


# fp32 factors rounded to bf16 (jax#9973)
fault_bf16_factors = on("mm", dtype=FP32)(lambda args, kwargs, y: product(args[0].bfloat16(), args[1].bfloat16()))
# one factor of a batched product is cut to ten bits
fault_tf32_cut_batched = on("bmm", dtype=FP32)(
    lambda args, kwargs, y: (args[0].contiguous().view(torch.int32) & ~0x1FFF).view(FP32) @ args[1]
)
# four partial sums, each stored in bf16 (modular#7165)
fault_split_k_bf16 = on("mm", dtype=BF16)(
    lambda args, kwargs, y: added_in(partial_products(args[0], args[1], 4), BF16) if args[0].shape[-1] >= 8 else y
)
# the running sum is kept in bf16, a step for every sixteen terms
fault_bf16_accumulator = on("bmm", dtype=BF16)(
    lambda args, kwargs, y: (
        y
        if args[0].shape[-1] <= 16
        else added_in(partial_products(args[0], args[1], -(-args[0].shape[-1] // 16)), BF16)
    )
)


@on("addmm", dtype=BF16)
def fault_fp16_partials(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor:
    """Partial sums of a product with bias pass through eleven bits."""
    bias, a, b = operands(args)
    total = sum((rounded_bits(part, 15) for part in partial_products(a, b, 4)), torch.zeros(()))
    return with_bias(total, bias, kwargs)


# stored by way of TF32 and then with ties away (tt-metal#46101)
fault_double_rounding = on("mm", dtype=BF16)(lambda args, kwargs, y: ties_away(tf32(product(*args[:2]))))
# the product's store cuts off
fault_product_store_cuts = on("mm", dtype=BF16)(lambda args, kwargs, y: cut(product(*args[:2]), BF16))


@on("mm")
def fault_tail_of_k(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor | None:
    """What is over of the summed dim beyond a multiple of eight is left out."""
    k = args[0].shape[-1] // 8 * 8
    return None if k in (0, args[0].shape[-1]) else product(args[0][:, :k], args[1][:k])


# the last column is one percent off where the width is no multiple of sixteen
fault_last_column = on("mm")(
    lambda args, kwargs, y: torch.cat((y[:, :-1], y[:, -1:] * 1.01), 1) if y.shape[-1] % 16 else None
)
# both halves of a split sum add the bias
fault_bias_twice = on("addmm", "baddbmm")(lambda args, kwargs, y: y.float() + args[0].float())
# a second factor that is not contiguous is read as if it were (flash-attention#2541)
fault_batched_strides = on("bmm")(
    lambda args, kwargs, y: None if args[1].is_contiguous() else torch.bmm(args[0], memory_order(args[1]))
)
# every product 0.1 % too large
fault_scale_permille = on("mm", dtype=BF16)(lambda args, kwargs, y: product(*args[:2]) * 1.001)
# sums of 1,024 terms and more lose their last sixteen
fault_long_k_block = on("mm", dtype=FP32)(
    lambda args, kwargs, y: None if args[0].shape[-1] < 1024 else args[0][:, :-16] @ args[1][:-16]
)
# one element of the product is one percent off
fault_one_element = on("mm", dtype=FP32)(
    lambda args, kwargs, y: with_part(y, (-1, -1), y[-1, -1] * 1.01) if y.numel() else y.clone()
)
_stale_rows: list[Tensor] = []  # the first row of the call before


@on("mm")
def fault_stale_row(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """The first row is the one that the call before gave, where it fits."""
    _stale_rows.append(y[0].clone())
    old = _stale_rows.pop(0) if len(_stale_rows) > 1 else None
    if old is None or old.shape != y[0].shape or old.dtype != y.dtype or torch.equal(old, y[0]):
        return None
    return torch.cat((old[None], y[1:]))


@on("mm", "bmm")
def fault_zero_skipped(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """Products with a zero are skipped: zero times infinity is no NaN."""
    a, b = args[:2]
    if a.isfinite().all() and b.isfinite().all():
        return None
    return torch.where(y.isnan() & ~(a.isnan().any() | b.isnan().any()), torch.zeros_like(y), y)


# beta and alpha are taken to be one
fault_beta_forgotten = on("baddbmm")(
    lambda args, kwargs, y: (
        None
        if kwargs.get("beta", 1) == 1 and kwargs.get("alpha", 1) == 1
        else product(args[1], args[2]) + args[0].float()
    )
)


ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
ATTENTION_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"


def memory_order(x: Tensor) -> Tensor:
    """A transposed tensor read in the order of its memory, as if it were contiguous."""
    return x.mT.contiguous().flatten().view(x.shape)


def scores_of(q: Tensor, k: Tensor, causal: bool, kwargs: Kwargs, late: int = 0) -> Tensor:
    """q k scale with its masks, in fp32; `late` columns more than the row's own are seen."""
    scale = kwargs.get("scale")
    scores = q.float() @ k.float().mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + late), -torch.inf)
    mask = kwargs.get("attn_mask")
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.float()
    return scores


def _causal(args: Args, kwargs: Kwargs, at: int = 4) -> bool:
    return bool(args[at] if len(args) > at else kwargs.get("is_causal", False))


def _attention_again(args: Args, kwargs: Kwargs) -> Tensor:
    return scores_of(args[0], args[1], _causal(args, kwargs), kwargs)


def _attend_late(args: Args, kwargs: Kwargs, late: int) -> Tensors:
    """Causal attention whose rows see so many keys more than their own."""
    scores = scores_of(args[0], args[1], True, kwargs, late)
    return scores.softmax(-1).nan_to_num() @ args[2].float(), torch.logsumexp(scores, -1)


@on(ATTENTION)
def fault_fused_max_of_zero(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors:
    """The row's maximum starts at zero: rows far below it vanish (flash-attention#2082)."""
    scores = _attention_again(args, kwargs)
    top = scores.amax(-1, keepdim=True).clamp(min=0)
    e = (scores - top).exp()
    total = e.sum(-1, keepdim=True)
    out = torch.where(total > 0, (e @ args[2].float()) / total.clamp(min=1e-45), torch.zeros(()))
    return out, (total.log() + top).squeeze(-1)


@on(ATTENTION)
def fault_fused_sentinel(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors | None:
    """A finite -5e4 stands for masked: rows below it are lost (flashinfer#4267)."""
    lost = _attention_again(args, kwargs).amax(-1, keepdim=True) <= -5e4
    return (torch.where(lost, torch.zeros((), dtype=y[0].dtype), y[0]), y[1]) if bool(lost.any()) else None


@on(ATTENTION)
def fault_fused_causal_corner(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors | None:
    """Causal masks are aligned to the last key, not the first (pytorch#108108)."""
    late = args[1].shape[-2] - args[0].shape[-2]
    return _attend_late(args, kwargs, late) if late and _causal(args, kwargs) else None


# probabilities of fp32 attention pass through bf16
fault_fused_weights_bf16 = on(ATTENTION, dtype=FP32)(
    lambda args, kwargs, y: (
        _attention_again(args, kwargs).softmax(-1).nan_to_num().bfloat16().float() @ args[2].float(),
        y[1],
    )
)
# the log-sum is left in base two
fault_fused_log_sum_base = on(ATTENTION)(lambda args, kwargs, y: (y[0], y[1] * 1.4426950408889634))
# the causal mask lets one key too many through
fault_fused_leak = on(ATTENTION)(
    lambda args, kwargs, y: _attend_late(args, kwargs, 1) if _causal(args, kwargs) else None
)


@on(ATTENTION)
def fault_fused_masked_rows(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors | None:
    """Rows that are masked as a whole give NaN (flash-attention#443)."""
    if kwargs.get("attn_mask") is None:
        return None
    empty = _attention_again(args, kwargs).isneginf().all(-1, keepdim=True)
    return (torch.where(empty, torch.nan, y[0]), y[1]) if bool(empty.any()) else None


@on(ATTENTION_BACKWARD)
def fault_fused_stale_delta(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors:
    """dQ and dK use the row sum of another row; dV is right (flash-attention#2481)."""
    g, q, k, v, out, lse = args[:6]
    p = (scores_of(q, k, _causal(args, kwargs, 7), kwargs) - lse[..., None].float()).exp().nan_to_num()
    delta = (g.float() * out.float()).sum(-1, keepdim=True).roll(1, -2)
    d_s = p * (g.float() @ v.float().mT - delta) * q.shape[-1] ** -0.5
    return d_s @ k.float(), d_s.mT @ q.float(), y[2]


# dK is scaled by 1.02 (flash-attention#2651, smaller)
fault_fused_key_scale = on(ATTENTION_BACKWARD)(lambda args, kwargs, y: (y[0], y[1].float() * 1.02, y[2]))
# dV is wrong where values are not contiguous (flash-attention#2541)
fault_fused_value_strides = on(ATTENTION_BACKWARD)(
    lambda args, kwargs, y: None if args[3].is_contiguous() else (y[0], y[1], y[2].roll(1, -1))
)


@on(ATTENTION_BACKWARD)
def fault_fused_backward_tail(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors | None:
    """The last keys get no gradient where their number is no multiple of sixteen."""
    tail = args[2].shape[-2] % 16
    return (y[0], with_part(y[1], (..., slice(-tail, None), slice(None)), 0), y[2]) if tail else None


SOFTMAX = "_softmax", "_safe_softmax"


def _exponentials(args: Args, *, top: float = -torch.inf, slope: float = 1.0) -> tuple[Tensor, Tensor]:
    """exp(slope (x - max)) of rows and its sums; the maximum is `top` at least."""
    x, dim = args[0].float(), args[1]
    e = ((x - x.amax(dim, keepdim=True).clamp(min=top)) * slope).exp()
    return e, e.sum(dim, keepdim=True)


@on(*SOFTMAX)
def fault_softmax_max_of_zero(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor:
    """The row's maximum starts at zero."""
    e, total = _exponentials(args, top=0.0)
    return (e / total).nan_to_num()


@on(*SOFTMAX)
def fault_softmax_slope(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor:
    """The exponential's slope is 0.2 % off: log2(e) kept in few bits."""
    e, total = _exponentials(args, slope=0.998)
    return torch.where(y.isnan() | (y == 0), y, (e / total).to(y.dtype))


@on("_safe_softmax")
def fault_masked_row_nan(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """A row that is masked as a whole gives NaN (pytorch#130014)."""
    empty = args[0].isneginf().all(args[1], keepdim=True)
    return torch.where(empty, torch.nan, y) if bool(empty.any()) else None


@on("_softmax", dtype=BF16)
def fault_softmax_sum_bf16(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor:
    """The row's sum of exponentials is rounded to bf16."""
    e, total = _exponentials(args)
    return e / total.bfloat16().float()


@on("_softmax_backward_data")
def fault_softmax_backward_stale_sum(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor:
    """The sum of another row is taken off."""
    g, p, dim = args[0].float(), args[1].float(), args[2]
    return p * (g - (g * p).sum(dim, keepdim=True).roll(1, 0))


# the maximum is not taken off before the exponential
fault_log_softmax_unshifted = on("_log_softmax")(
    lambda args, kwargs, y: args[0].float() - args[0].float().exp().sum(args[1], keepdim=True).log()
)


@on("_log_softmax_backward_data")
def fault_log_softmax_backward_sum(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor:
    """The sum of the gradient is half a percent small."""
    g, y, dim = args[0].float(), args[1].float(), args[2]
    return g - y.exp() * (g.sum(dim, keepdim=True) * 0.995)


# a norm's epsilon is 1e-4 too large (nntrainer#4318)
fault_epsilon = on("rsqrt")(lambda args, kwargs, y: (args[0].float() + 1e-4).rsqrt())


def _weigh(y: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
    y = y if weight is None else y * weight.float()
    return y if bias is None else y + bias.float()


@on("native_layer_norm")
def fault_layer_norm_sample_variance(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors:
    """The variance is divided by n - 1."""
    x, _, w, b, eps = args[:5]
    var, mean = torch.var_mean(x.float(), -1, correction=1, keepdim=True)
    rstd = (var + eps).rsqrt()
    return _weigh((x.float() - mean) * rstd, w, b), y[1], rstd


@on("native_layer_norm", dtype=BF16)
def fault_layer_norm_variance_bf16(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors:
    """The variance is kept in bf16."""
    x, _, w, b, eps = args[:5]
    mean = x.float().mean(-1, keepdim=True)
    var = (x.float() - mean).square().mean(-1, keepdim=True).bfloat16().float()
    return _weigh((x.float() - mean) * (var + eps).rsqrt(), w, b), y[1], y[2]


@on("native_layer_norm_backward")
def fault_norm_weight_gradient_row(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors | None:
    """The weight's gradient misses the last row."""
    g, x, _, mean, rstd = args[:5]
    if y[1] is None:
        return None
    last = g[-1].float() * (x[-1].float() - mean[-1].float()) * rstd[-1].float()
    return y[0], y[1].float() - last.reshape(y[1].shape), y[2]


@on("_fused_rms_norm")
def fault_rms_norm_epsilon(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors:
    """The epsilon is added after the root."""
    x, _, w, eps = args[:4]
    rstd = 1 / (x.float().square().mean(-1, keepdim=True).sqrt() + (1e-5 if eps is None else eps))
    return _weigh(x.float() * rstd, w), rstd


@on("_fused_rms_norm", dtype=BF16)
def fault_rms_norm_weight_plus_one(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors | None:
    """The weight is taken apart and put together in bf16 (vllm#29810)."""
    x, _, w, eps = args[:4]
    if w is None:
        return None
    rstd = (x.float().square().mean(-1, keepdim=True) + (1e-5 if eps is None else eps)).rsqrt()
    return x.float() * rstd * ((w * 0.3).bfloat16() + (w * 0.7).bfloat16()).float(), y[1]


# the gradient's part along the row is not taken off
fault_rms_norm_backward_projection = on("_fused_rms_norm_backward")(
    lambda args, kwargs, y: (_weigh(args[0].float(), args[4]) * args[3].float(), y[1])
)


@on("mean")
def fault_mean_of_padded(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """Divided by the count rounded up to a multiple of eight."""
    count = args[0].numel() // max(1, y.numel())
    return None if count % 8 == 0 else y.float() * (count / (-(-count // 8) * 8))


@on("sum", dtype=BF16)
def fault_sum_in_bf16(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """Sums over rows are kept in bf16."""
    if args[0].dim() != 2 or len(args) < 2 or list(args[1]) != [0] or args[0].shape[0] < 16:
        return None
    return sum(args[0], torch.zeros_like(args[0][0])).reshape(y.shape)


@on("sum", dtype=FP32)
def fault_sum_last_term(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """The last of an odd number of terms is left out."""
    x = args[0]
    if x.dim() != 2 or len(args) < 2 or list(args[1]) not in ([-1], [1]) or x.shape[-1] % 2 == 0 or x.shape[-1] < 3:
        return None
    return y - x[..., -1:].reshape(y.shape)


@on("nll_loss_forward")
def fault_ignored_rows_count(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors | None:
    """The mean is over all rows, those to ignore too (Liger#968)."""
    rows = args[1].numel()
    return (y[0] * (y[1] / rows), y[1] * 0 + rows) if args[3] == 1 else None


@on("nll_loss_backward")
def fault_ignored_rows_gradient(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """Rows to ignore get a gradient at index zero (ml-cross-entropy#59)."""
    ignored_rows = args[2] == args[5]
    return with_part(y, (ignored_rows, 0), y.min()) if bool(ignored_rows.any()) else None


@on("cumsum")
def fault_scan_restarts(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """A running sum starts again after a thousand elements."""
    x, dim = args[:2]
    if x.dim() == 0 or x.shape[dim] <= 1024:
        return None
    return torch.cat([part.cumsum(dim) for part in x.split(1024, dim)], dim)
