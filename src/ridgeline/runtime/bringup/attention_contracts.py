"""Contracts of fused attention: scores in 32 bits, probabilities and their gradients stored in the tensors' format."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.bringup.arithmetic import Draw

# where each op has the mask and the causal flag among its positional arguments
_FORWARD = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": (None, 4),
    "aten::_scaled_dot_product_flash_attention": (None, 4),
    "aten::_scaled_dot_product_efficient_attention": (3, 6),
    "aten::_scaled_dot_product_cudnn_attention": (3, 6),
}
# where each has the output, the log-sums, a bias and the causal flag
_BACKWARD = {
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (4, 5, None, 7),
    "aten::_scaled_dot_product_flash_attention_backward": (4, 5, None, 11),
    "aten::_scaled_dot_product_cudnn_attention_backward": (4, 5, 8, 14),
    "aten::_scaled_dot_product_efficient_attention_backward": (5, 6, 4, 11),
}


def attention(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """softmax(q k scale + mask) v and the rows' log-sum-exp."""
    at_mask, at_causal = _FORWARD[func._schema.name]
    mask = kwargs.get("attn_mask") if at_mask is None else _bias(_at(args, at_mask, None))
    q, k, v = args[0], _as_many(args[1], args[0]), _as_many(args[2], args[0])
    scores = _scores(draw, q, k, mask, bool(_at(args, at_causal, kwargs.get("is_causal", False))), kwargs.get("scale"))
    lse = torch.logsumexp(scores, -1)
    p = _weights(draw, scores, lse)
    sums = draw.off(lse, lse.abs() + 1, units=_exp_units(draw))
    return [draw.product(draw.stored(p), v), None if bool(lse.isneginf().any()) else sums]  # of no key: a convention


def attention_backward(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """dV = P^T dO, dS = P (dO V^T - rowsum(dO O)), dQ = dS K scale, dK = dS^T Q scale; O and the log-sums as given."""
    g, q, k, v = args[:4]
    at_out, at_lse, at_mask, at_causal = _BACKWARD[func._schema.name]
    out, lse = args[at_out], args[at_lse].reshape(*q.shape[:2], -1)[..., : q.shape[2]]  # some kernels pad the rows
    mask = kwargs.get("attn_mask") if at_mask is None else _bias(_at(args, at_mask, None))
    causal = bool(_at(args, at_causal, kwargs.get("is_causal", False)))
    scale = _scale(q, kwargs.get("scale"))
    keys, values = _as_many(k, q), _as_many(v, q)
    scores = _scores(draw, q, keys, mask, causal, kwargs.get("scale"))
    p = _weights(draw, scores, lse)
    d_p = draw.product(g, values.mT)
    delta = draw.summed((g * out).sum(-1, keepdim=True), (g * out).square().sum(-1, keepdim=True).sqrt(), q.shape[-1])
    if draw.number % 2:
        delta = (p * d_p).sum(-1, keepdim=True)  # the same sum by the weights
    d_s = draw.stored(draw.off(p * (d_p - delta), p * (d_p.abs() + delta.abs()), units=2.0))
    stored_weights = draw.stored(p)
    parts = (d_s, keys), (d_s.mT, q), (stored_weights.mT, g)
    d_q, d_k, d_v = (draw.product(a, b) for a, b in parts)
    return [d_q * scale, _as_few(d_k * scale, k), _as_few(d_v, v)]


def _at(args: tuple[Any, ...], index: int, default: Any) -> Any:
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
    return draw.common(draw.rounded(p, units=_exp_units(draw)), _exp_units(draw)).nan_to_num(nan=0.0)


def _exp_units(draw: Draw) -> float:
    """How rough an exponential may be: for tensors of 16 bits kernels take one of some fifteen bits."""
    return 4.0 if draw.format == torch.float32 else 1024.0


def _as_many(x: Tensor, like: Tensor) -> Tensor:
    """Key and value heads repeated for the query heads that share them."""
    return x if x.shape[1] == like.shape[1] else x.repeat_interleave(like.shape[1] // x.shape[1], 1)


def _as_few(x: Tensor, like: Tensor) -> Tensor:
    return x if x.shape[1] == like.shape[1] else x.unflatten(1, (like.shape[1], -1)).sum(2)
