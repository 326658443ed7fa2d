"""Faults of matrix products, of fused attention, and of what spans rows: softmax, norms, sums, losses."""

# ruff: noqa: ARG001  (functions of one form: what an op was given)
from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.runtime.bringup.arithmetic import Args, Kwargs, Tensors
from ridgeline.runtime.bringup.fake_device import (
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


@on(*ALL, dtype=torch.float32)
def fault_tf32_products(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor:
    """fp32 factors lose thirteen bits (pytorch#53635)."""
    bias, a, b = operands(args)
    return with_bias(tf32(a) @ tf32(b), bias, kwargs)


@on("mm", dtype=torch.float32)
def fault_bf16_factors(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor:
    """fp32 factors rounded to bf16 (jax#9973)."""
    return product(args[0].bfloat16(), args[1].bfloat16())


@on("bmm", dtype=torch.float32)
def fault_tf32_cut_batched(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor:
    """One factor of a batched product is cut to ten bits."""
    low = (args[0].contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)
    return low @ args[1]


@on("mm", dtype=torch.bfloat16)
def fault_split_k_bf16(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Four partial sums, each stored in bf16 (modular#7165)."""
    return added_in(partial_products(args[0], args[1], 4), torch.bfloat16) if args[0].shape[-1] >= 8 else result


@on("bmm", dtype=torch.bfloat16)
def fault_bf16_accumulator(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The running sum is kept in bf16, a step for every sixteen terms."""
    steps = -(-args[0].shape[-1] // 16)
    return added_in(partial_products(args[0], args[1], steps), torch.bfloat16) if steps > 1 else result


@on("addmm", dtype=torch.bfloat16)
def fault_fp16_partials(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Partial sums of a product with bias pass through eleven bits."""
    bias, a, b = operands(args)
    total = sum((rounded_bits(part, 15) for part in partial_products(a, b, 4)), torch.zeros(()))
    return with_bias(total, bias, kwargs).to(result.dtype)


@on("mm", dtype=torch.bfloat16)
def fault_double_rounding(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor:
    """Stored by way of TF32 and then with ties away (tt-metal#46101)."""
    return ties_away(tf32(product(*args[:2])))


@on("mm", dtype=torch.bfloat16)
def fault_product_store_cuts(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor:
    """The product's store cuts off."""
    return cut(product(*args[:2]), torch.bfloat16)


@on("mm")
def fault_tail_of_k(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """What is over of the summed dim beyond a multiple of eight is left out."""
    k = args[0].shape[-1] // 8 * 8
    return None if k in (0, args[0].shape[-1]) else product(args[0][:, :k], args[1][:k]).to(result.dtype)


@on("mm")
def fault_last_column(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The last column is one percent off where the width is no multiple of sixteen."""
    if result.shape[-1] % 16 == 0:
        return None
    return torch.cat((result[:, :-1], result[:, -1:] * 1.01), 1)


@on("addmm", "baddbmm")
def fault_bias_twice(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Both halves of a split sum add the bias."""
    return (result.float() + args[0].float()).to(result.dtype)


@on("bmm")
def fault_batched_strides(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """A second factor that is not contiguous is read as if it were (flash-attention#2541)."""
    b = args[1]
    if b.is_contiguous():
        return None
    return torch.bmm(args[0], b.mT.contiguous().flatten().view(b.shape)).to(result.dtype)


@on("mm", dtype=torch.bfloat16)
def fault_scale_permille(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Every product 0.1 % too large."""
    return (product(*args[:2]) * 1.001).to(result.dtype)


@on("mm", dtype=torch.float32)
def fault_long_k_block(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor | None:
    """Sums of 1,024 terms and more lose their last sixteen."""
    k = args[0].shape[-1]
    return None if k < 1024 else args[0][:, : k - 16] @ args[1][: k - 16]


@on("mm", dtype=torch.float32)
def fault_one_element(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """One element of the product is one percent off."""
    return with_part(result, (-1, -1), result[-1, -1] * 1.01) if result.numel() else result.clone()


class _Stale:
    """What the call before it gave."""

    row: Tensor | None = None


@on("mm")
def fault_stale_row(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The first row is the one that the call before gave, where it fits."""
    old, _Stale.row = _Stale.row, result[0].clone()
    if old is None or old.shape != result[0].shape or old.dtype != result.dtype or torch.equal(old, result[0]):
        return None
    return torch.cat((old[None], result[1:]))


@on("mm", "bmm")
def fault_zero_skipped(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Products with a zero are skipped: zero times infinity is no NaN."""
    a, b = args[:2]
    if a.isfinite().all() and b.isfinite().all():
        return None
    return torch.where(result.isnan() & ~(a.isnan().any() | b.isnan().any()), torch.zeros_like(result), result)


@on("baddbmm")
def fault_beta_forgotten(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """beta and alpha are taken to be one."""
    if kwargs.get("beta", 1) == 1 and kwargs.get("alpha", 1) == 1:
        return None
    return (product(args[1], args[2]) + args[0].float()).to(result.dtype)


ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
ATTENTION_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"


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


def _causal(args: Args, kwargs: Kwargs, at: int) -> bool:
    return bool(args[at] if len(args) > at else kwargs.get("is_causal", False))


def _attention_again(args: Args, kwargs: Kwargs) -> Tensor:
    return scores_of(args[0], args[1], _causal(args, kwargs, 4), kwargs)


@on(ATTENTION)
def fault_fused_max_of_zero(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """The row's maximum starts at zero: rows far below it vanish (flash-attention#2082)."""
    scores = _attention_again(args, kwargs)
    top = scores.amax(-1, keepdim=True).clamp(min=0)
    e = (scores - top).exp()
    total = e.sum(-1, keepdim=True)
    out = torch.where(total > 0, (e @ args[2].float()) / total.clamp(min=1e-45), torch.zeros(()))
    return out.to(result[0].dtype), (total.log() + top).squeeze(-1)


@on(ATTENTION)
def fault_fused_sentinel(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """A finite -5e4 stands for masked: rows below it are lost (flashinfer#4267)."""
    scores = _attention_again(args, kwargs)
    lost = scores.amax(-1, keepdim=True) <= -5e4
    if not bool(lost.any()):
        return None
    return torch.where(lost, torch.zeros((), dtype=result[0].dtype), result[0]), result[1]


@on(ATTENTION)
def fault_fused_causal_corner(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """Causal masks are aligned to the last key, not the first (pytorch#108108)."""
    q, k, v = args[:3]
    if not _causal(args, kwargs, 4) or q.shape[-2] == k.shape[-2]:
        return None
    scores = scores_of(q, k, True, kwargs, late=k.shape[-2] - q.shape[-2])
    out = (scores.softmax(-1).nan_to_num() @ v.float()).to(result[0].dtype)
    return out, torch.logsumexp(scores, -1)


@on(ATTENTION, dtype=torch.float32)
def fault_fused_weights_bf16(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """Probabilities of fp32 attention pass through bf16."""
    p = _attention_again(args, kwargs).softmax(-1).nan_to_num().bfloat16().float()
    return p @ args[2].float(), result[1]


@on(ATTENTION)
def fault_fused_log_sum_base(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """The log-sum is left in base two."""
    return result[0], result[1] * 1.4426950408889634


@on(ATTENTION)
def fault_fused_leak(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """The causal mask lets one key too many through."""
    if not _causal(args, kwargs, 4):
        return None
    scores = scores_of(args[0], args[1], True, kwargs, late=1)
    return (scores.softmax(-1) @ args[2].float()).to(result[0].dtype), torch.logsumexp(scores, -1)


@on(ATTENTION)
def fault_fused_masked_rows(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """Rows that are masked as a whole give NaN (flash-attention#443)."""
    mask = kwargs.get("attn_mask")
    if mask is None:
        return None
    empty = _attention_again(args, kwargs).isneginf().all(-1, keepdim=True)
    return (torch.where(empty, torch.nan, result[0]), result[1]) if bool(empty.any()) else None


@on(ATTENTION_BACKWARD)
def fault_fused_stale_delta(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """dQ and dK use the row sum of another row; dV is right (flash-attention#2481)."""
    g, q, k, v, out, lse = args[:6]
    scores = scores_of(q, k, _causal(args, kwargs, 7), kwargs)
    p = (scores - lse[..., None].float()).exp().nan_to_num()
    delta = (g.float() * out.float()).sum(-1, keepdim=True).roll(1, -2)
    d_s = p * (g.float() @ v.float().mT - delta) * q.shape[-1] ** -0.5
    return (d_s @ k.float()).to(q.dtype), (d_s.mT @ q.float()).to(k.dtype), result[2]


@on(ATTENTION_BACKWARD)
def fault_fused_key_scale(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """dK is scaled by 1.02 (flash-attention#2651, smaller)."""
    return result[0], (result[1].float() * 1.02).to(result[1].dtype), result[2]


@on(ATTENTION_BACKWARD)
def fault_fused_value_strides(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """dV is wrong where values are not contiguous (flash-attention#2541)."""
    return None if args[3].is_contiguous() else (result[0], result[1], result[2].roll(1, -1))


@on(ATTENTION_BACKWARD)
def fault_fused_backward_tail(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """The last keys get no gradient where their number is no multiple of sixteen."""
    tail = args[2].shape[-2] % 16
    if not tail:
        return None
    return result[0], with_part(result[1], (..., slice(-tail, None), slice(None)), 0), result[2]


SOFTMAX = "_softmax", "_safe_softmax"


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


def _weigh(y: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
    y = y if weight is None else y * weight.float()
    return y if bias is None else y + bias.float()


@on("native_layer_norm")
def fault_layer_norm_sample_variance(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """The variance is divided by n - 1."""
    x, _, w, b, eps = args[:5]
    var, mean = torch.var_mean(x.float(), -1, correction=1, keepdim=True)
    rstd = (var + eps).rsqrt()
    y = _weigh((x.float() - mean) * rstd, w, b)
    return y.to(result[0].dtype), result[1], rstd.to(result[2].dtype)


@on("native_layer_norm", dtype=torch.bfloat16)
def fault_layer_norm_variance_bf16(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """The variance is kept in bf16."""
    x, _, w, b, eps = args[:5]
    mean = x.float().mean(-1, keepdim=True)
    var = (x.float() - mean).square().mean(-1, keepdim=True).bfloat16().float()
    y = _weigh((x.float() - mean) * (var + eps).rsqrt(), w, b)
    return y.to(result[0].dtype), result[1], result[2]


@on("native_layer_norm_backward")
def fault_norm_weight_gradient_row(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """The weight's gradient misses the last row."""
    g, x, _, mean, rstd = args[:5]
    if result[1] is None:
        return None
    last = (g[-1].float() * (x[-1].float() - mean[-1].float()) * rstd[-1].float()).reshape(result[1].shape)
    return result[0], (result[1].float() - last).to(result[1].dtype), result[2]


@on("_fused_rms_norm")
def fault_rms_norm_epsilon(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """The epsilon is added after the root."""
    x, _, w, eps = args[:4]
    rstd = 1 / (x.float().square().mean(-1, keepdim=True).sqrt() + (1e-5 if eps is None else eps))
    return _weigh(x.float() * rstd, w).to(result[0].dtype), rstd.to(result[1].dtype)


@on("_fused_rms_norm", dtype=torch.bfloat16)
def fault_rms_norm_weight_plus_one(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """The weight is taken apart and put together in bf16 (vllm#29810)."""
    x, _, w, eps = args[:4]
    if w is None:
        return None
    rstd = (x.float().square().mean(-1, keepdim=True) + (1e-5 if eps is None else eps)).rsqrt()
    weight = ((w * 0.3).bfloat16() + (w * 0.7).bfloat16()).float()
    return (x.float() * rstd * weight).to(result[0].dtype), result[1]


@on("_fused_rms_norm_backward")
def fault_rms_norm_backward_projection(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
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
def fault_ignored_rows_count(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """The mean is over all rows, those to ignore too (Liger#968)."""
    rows = args[1].numel()
    return (result[0] * (result[1] / rows), result[1] * 0 + rows) if args[3] == 1 else None


@on("nll_loss_backward")
def fault_ignored_rows_gradient(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Rows to ignore get a gradient at index zero (ml-cross-entropy#59)."""
    ignored_rows = args[2] == args[5]
    if not bool(ignored_rows.any()):
        return None
    return with_part(result, (ignored_rows, 0), result.min())


@on("cumsum")
def fault_scan_restarts(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """A running sum starts again after a thousand elements."""
    x, dim = args[0], args[1]
    if x.dim() == 0 or x.shape[dim] <= 1024:
        return None
    parts = x.split(1024, dim)
    return torch.cat([part.cumsum(dim) for part in parts], dim).to(result.dtype)
