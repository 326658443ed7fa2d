"""Attention over a sequence that context ranks share: keys and values go round a ring, or heads for sequence.

In a ring each rank keeps its queries and sees every block of keys once. With s = scale q k^T of one block under the
causal mask, a block adds to a running result by its log-sum-exp (Liu et al., Ring Attention, arXiv:2310.01889):

    lse' = log(exp(lse) + sum exp(s))        out' = out exp(lse - lse') + exp(s - lse') v

On the way back each block is computed again from the final lse. Keys and values go round once more, and behind them
the gradients that other ranks have for them, n - 1 hops each, in the format they are stored in; a rank's own part stays
at home. Grouped keys travel as they are and are repeated where they are used. Scores of one block exist at a time:
memory is (tokens / cp)^2.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from ridgeline.runtime.train.exchange import swap_dims
from ridgeline.runtime.train.layout import Axis, Layout


def attend(q: Tensor, k: Tensor, v: Tensor, layout: Layout, window: int = 0) -> Tensor:
    """Causal attention of [batch, heads, tokens, width]; keys may have fewer heads. Tokens are this rank's."""
    if layout.cp.group is None:
        return _full_attention(q, k, v, window)
    if layout.cp_kind == "all-to-all":
        few = layout.cp.degree // gcd(layout.cp.degree, k.shape[1])  # copies until every context rank has a head
        k, v = (_repeat_heads(x, few) for x in (k, v))
        q, k, v = (swap_dims(x, layout.cp, away=1, here=2) for x in (q, k, v))
        return swap_dims(_full_attention(q, k, v, window), layout.cp, away=2, here=1)
    spans = [_spans(layout, rank, q.shape[2], q.device) for rank in range(layout.cp.degree)]
    return _Ring.apply(q, k, v, layout.cp, spans, window)


def _repeat_heads(x: Tensor, groups: int) -> Tensor:
    return x if groups == 1 else x.repeat_interleave(groups, 1)


def _full_attention(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    tokens = q.shape[2]
    if not window or window >= tokens:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    places = torch.arange(tokens, device=q.device)
    visible = _visible_keys(places, places, window)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=q.shape[1] != k.shape[1])


def _visible_keys(queries: Tensor, keys: Tensor, window: int) -> Tensor:
    ahead = queries[:, None] - keys[None, :]
    return (ahead >= 0) & (ahead < window) if window else ahead >= 0


def _spans(layout: Layout, rank: int, tokens: int, device: Any) -> Tensor:
    rank_layout = Layout(cp=Axis(degree=layout.cp.degree, index=rank), cp_kind=layout.cp_kind).positions(tokens)
    return torch.cat([torch.arange(first, last, device=device) for first, last in rank_layout])


def _scores(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(~seen, float("-inf"))


class _Ring(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, axis: Axis, spans: list[Tensor], window: int) -> Tensor:
        wide = q.float()
        out = wide.new_zeros((*q.shape[:-1], v.shape[-1]))
        lse = wide.new_full((*q.shape[:-1], 1), float("-inf"))
        block = torch.cat((k, v), -1)
        for step in range(axis.degree):
            owner = (axis.index - step) % axis.degree
            keys, values = _halves(block, q.shape[1], (k.shape[-1], v.shape[-1]))
            scores = _scores(wide, keys, _visible_keys(spans[axis.index], spans[owner], window))
            more = torch.logaddexp(lse, scores.logsumexp(-1, keepdim=True))
            out = out * torch.exp(lse - more).nan_to_num() + torch.exp(scores - more).nan_to_num() @ values
            lse = more
            block = _passed_on(block, axis) if step + 1 < axis.degree else block
        ctx.axis, ctx.spans, ctx.window = axis, spans, window
        ctx.save_for_backward(q, k, v, out, lse)
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        axis, wide, d_out = ctx.axis, q.float(), gradient.float()
        delta = (d_out * out).sum(-1, keepdim=True)
        d_q, width = torch.zeros_like(wide), (k.shape[-1], v.shape[-1])
        block = torch.cat((k, v), -1)
        own_gradient = passing = torch.zeros_like(block, dtype=wide.dtype)
        for step in range(axis.degree):
            owner = (axis.index - step) % axis.degree
            keys, values = _halves(block, q.shape[1], width)
            weights = torch.exp(
                _scores(wide, keys, _visible_keys(ctx.spans[axis.index], ctx.spans[owner], ctx.window)) - lse
            )
            d_scores = weights * (d_out @ values.transpose(-2, -1) - delta) / q.shape[-1] ** 0.5
            d_q = d_q + d_scores @ keys
            here = torch.cat((d_scores.transpose(-2, -1) @ wide, weights.transpose(-2, -1) @ d_out), -1)
            here = here.unflatten(1, (k.shape[1], -1)).sum(2)  # of the query heads that read one key
            own_gradient = here if step == 0 else own_gradient
            if step > 0:  # on its way home with what earlier ranks added
                passing = _passed_on((passing + here).to(k.dtype), axis).to(wide.dtype)
            block = _passed_on(block, axis) if step + 1 < axis.degree else block
        d_k, d_v = (own_gradient + passing).split(width, -1)
        return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), None, None, None


def _halves(block: Tensor, heads: int, width: tuple[int, int]) -> tuple[Tensor, ...]:
    """Keys and values of a block in 32 bits, one for each query head."""
    return tuple(_repeat_heads(block, heads // block.shape[1]).float().split(width, -1))


def _passed_on(block: Tensor, axis: Axis) -> Tensor:
    """Send to the next rank of the ring what the previous one is sent from."""
    block, next_block = block.contiguous(), torch.empty_like(block, memory_format=torch.contiguous_format)
    ahead, behind = (dist.get_global_rank(axis.group, (axis.index + step) % axis.degree) for step in (1, -1))
    sent = dist.P2POp(dist.isend, block, ahead, axis.group)
    for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, next_block, behind, axis.group)]):
        work.wait()
    return next_block
