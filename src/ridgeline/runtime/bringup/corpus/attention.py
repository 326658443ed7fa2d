"""Faults of fused attention, forward and backward."""

# ruff: noqa: ARG001  (functions of one form: what an op was given)
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.bringup.emulation import on

FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


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


@on(FORWARD)
def fault_fused_max_of_zero(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The row's maximum starts at zero: rows far below it vanish (flash-attention#2082)."""
    scores = _attention_again(args, kwargs)
    top = scores.amax(-1, keepdim=True).clamp(min=0)
    e = (scores - top).exp()
    total = e.sum(-1, keepdim=True)
    out = torch.where(total > 0, (e @ args[2].float()) / total.clamp(min=1e-45), torch.zeros(()))
    return out.to(result[0].dtype), (total.log() + top).squeeze(-1)


@on(FORWARD)
def fault_fused_sentinel(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """A finite -5e4 stands for masked: rows below it are lost (flashinfer#4267)."""
    scores = _attention_again(args, kwargs)
    lost = scores.amax(-1, keepdim=True) <= -5e4
    if not bool(lost.any()):
        return None
    return torch.where(lost, torch.zeros((), dtype=result[0].dtype), result[0]), result[1]


@on(FORWARD)
def fault_fused_causal_corner(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Causal masks are aligned to the last key, not the first (pytorch#108108)."""
    q, k, v = args[:3]
    if not _causal(args, kwargs, 4) or q.shape[-2] == k.shape[-2]:
        return None
    scores = scores_of(q, k, True, kwargs, late=k.shape[-2] - q.shape[-2])
    out = (scores.softmax(-1).nan_to_num() @ v.float()).to(result[0].dtype)
    return out, torch.logsumexp(scores, -1)


@on(FORWARD, dtype=torch.float32)
def fault_fused_weights_bf16(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Probabilities of fp32 attention pass through bf16."""
    p = _attention_again(args, kwargs).softmax(-1).nan_to_num().bfloat16().float()
    return p @ args[2].float(), result[1]


@on(FORWARD)
def fault_fused_log_sum_base(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The log-sum is left in base two."""
    return result[0], result[1] * 1.4426950408889634


@on(FORWARD)
def fault_fused_leak(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The causal mask lets one key too many through."""
    if not _causal(args, kwargs, 4):
        return None
    scores = scores_of(args[0], args[1], True, kwargs, late=1)
    return (scores.softmax(-1) @ args[2].float()).to(result[0].dtype), torch.logsumexp(scores, -1)


@on(FORWARD)
def fault_fused_masked_rows(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Rows that are masked as a whole give NaN (flash-attention#443)."""
    mask = kwargs.get("attn_mask")
    if mask is None:
        return None
    empty = _attention_again(args, kwargs).isneginf().all(-1, keepdim=True)
    return (torch.where(empty, torch.nan, result[0]), result[1]) if bool(empty.any()) else None


@on(BACKWARD)
def fault_fused_stale_delta(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """dQ and dK use the row sum of another row; dV is right (flash-attention#2481)."""
    g, q, k, v, out, lse = args[:6]
    scores = scores_of(q, k, _causal(args, kwargs, 7), kwargs)
    p = (scores - lse[..., None].float()).exp().nan_to_num()
    delta = (g.float() * out.float()).sum(-1, keepdim=True).roll(1, -2)
    d_s = p * (g.float() @ v.float().mT - delta) * q.shape[-1] ** -0.5
    return (d_s @ k.float()).to(q.dtype), (d_s.mT @ q.float()).to(k.dtype), result[2]


@on(BACKWARD)
def fault_fused_key_scale(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """dK is scaled by 1.02 (flash-attention#2651, smaller)."""
    return result[0], (result[1].float() * 1.02).to(result[1].dtype), result[2]


@on(BACKWARD)
def fault_fused_value_strides(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """dV is wrong where values are not contiguous (flash-attention#2541)."""
    return None if args[3].is_contiguous() else (result[0], result[1], result[2].roll(1, -1))


@on(BACKWARD)
def fault_fused_backward_tail(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The last keys get no gradient where their number is no multiple of sixteen."""
    tail = args[2].shape[-2] % 16
    if not tail:
        return None
    d_k = result[1].clone()
    d_k[..., -tail:, :] = 0
    return result[0], d_k, result[2]
