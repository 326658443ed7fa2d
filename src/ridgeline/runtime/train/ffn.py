"""The second half of a layer: a dense feed-forward part, or a mixture of experts with all-to-all dispatch.

Experts, on tokens that no other rank of tp x cp x dp has:

    route      scores -> the topk experts of each token and their weights
    dispatch   rows sorted by expert, to the ep rank that holds it (all-to-all)
    products   one grouped matrix product over the local experts, up, gate and down
    combine    rows back to their tokens, weighted and added

Where tensor ranks hold the same tokens these are dealt to them first. With etp the ranks of one expert gather their
tokens, each computes a share of its width, and their summands are added.
"""

from __future__ import annotations

from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.models import spec
from ridgeline.runtime.train.exchange import all_to_all, all_to_all_counts, gather, merge, scatter, split
from ridgeline.runtime.train.fused import gated
from ridgeline.runtime.train.mixers import enter, leave
from ridgeline.runtime.train.recompute import recomputed
from ridgeline.runtime.train.weights import Maker, Matrix, local

ACTIVATIONS: dict[str, Any] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "swiglu": functional.silu,
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
}


class FeedForward(nn.Module):  # type: ignore[misc]
    """Two matrices, or three where a gate multiplies the activation (SwiGLU).

    again    the activation is computed again on the way back; the product behind it is not, since recomputation ends
             with the last tensor that is asked for
    """

    again = False

    def __init__(self, make: Maker, mlp: spec.Mlp, hidden: int) -> None:
        super().__init__()
        self.layout, self.activation = make.layout, ACTIVATIONS[mlp.activation]
        self.fused = make.fused("bias-activation") and self.activation is functional.silu
        self.up = Matrix(make, mlp.hidden, hidden, "out", mlp.bias)
        self.gate = Matrix(make, mlp.hidden, hidden, "out", mlp.bias) if mlp.gated else None
        self.down = Matrix(make, hidden, mlp.hidden, "in", mlp.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, hidden] in and out."""
        x = enter(x, self.layout)
        inner = (self.up(x),) if self.gate is None else (self.gate(x), self.up(x))
        out = recomputed(lambda *inner: self.down(self._activated(*inner)), *inner, again=self.again)
        return self.down.after(leave(out, self.layout))

    def _activated(self, *inner: Tensor) -> Tensor:
        if len(inner) == 2 and self.fused:
            return gated(*inner, fused=True)
        first = self.activation(inner[0])
        return first * inner[1] if len(inner) == 2 else first


class Experts(nn.Module):  # type: ignore[misc]
    """The local experts' matrices, multiplied with rows that are sorted by expert.

    again    the activation is computed again on the way back
    """

    again = False

    def __init__(self, make: Maker, moe: spec.Moe, hidden: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[moe.activation]
        self.up = make.experts(moe.experts, moe.hidden, hidden, cut=1)
        self.gate = make.experts(moe.experts, moe.hidden, hidden, cut=1) if moe.gated else None
        self.down = make.experts(moe.experts, hidden, moe.hidden, cut=2)

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Rows through their experts; expert e has the rows before ends[e] that no earlier one has."""
        matrices = (self.up,) if self.gate is None else (self.gate, self.up)
        inner = [grouped_product(rows, local(matrix), ends) for matrix in matrices]

        def down(*inner: Tensor) -> Tensor:
            first = self.activation(inner[0])
            return grouped_product(first * inner[1] if len(inner) == 2 else first, local(self.down), ends)

        return recomputed(down, *inner, again=self.again)


def grouped_product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows of each expert times its matrix [out, in], all in one kernel."""
    if rows.shape[0] == 0:  # keeps the weights in the graph: their gradient is zero, not absent
        return rows.new_zeros((0, weights.shape[1])) + weights.sum() * 0
    return functional.grouped_mm(rows, weights.transpose(-2, -1), offs=ends)


class MixtureOfExperts(nn.Module):  # type: ignore[misc]
    """Routed experts beside shared ones (Mixtral, Qwen3-MoE, DeepSeek-V3)."""

    def __init__(self, make: Maker, moe: spec.Moe, hidden: int) -> None:
        super().__init__()
        self.layout, self.moe, self.numerics = make.layout, moe, make.numerics
        self.router = Matrix(make, moe.experts, hidden, "none", moe.router_bias)
        self.experts = Experts(make, moe, hidden)
        grouped = moe.groups > 1 or make.numerics.scoring == "sigmoid"
        correction = torch.zeros(moe.experts, device=make.layout.device) if grouped else None
        self.register_buffer("correction", correction)  # moved by load balancing, not by gradients
        self.shared = self.shared_gate = None
        if moe.shared_hidden:
            shared = spec.Mlp(hidden=moe.shared_hidden, gated=moe.gated, activation=moe.activation)
            self.shared = FeedForward(make, shared, hidden)
            self.shared_gate = Matrix(make, 1, hidden, "none", inside=False) if moe.shared_gate else None

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, hidden] in and out."""
        layout = self.layout
        alike = layout.tp.group is not None and not layout.sequence_parallel
        rows = x.flatten(0, 1)
        own = split(rows, layout.tp) if alike else rows
        own = scatter(self._routed(gather(own, layout.etp)), layout.etp)
        mixed = (merge(own, layout.tp) if alike else own).view_as(x)
        if self.shared is None:
            return mixed
        beside = self.shared(x)
        if self.shared_gate is not None:
            beside = beside * torch.sigmoid(self.shared_gate(x))
        return mixed + beside

    def _routed(self, x: Tensor) -> Tensor:
        """[tokens, hidden] through the topk experts of each token."""
        chosen, weights = self.route(x)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.moe.experts)
        sent = x[order // self.moe.topk]
        ranks, axis = self.layout.ep.degree, self.layout.ep
        received = all_to_all_counts(counts.view(ranks, -1), axis)
        sends, receives = counts.view(ranks, -1).sum(1).tolist(), received.sum(1).tolist()
        rows = all_to_all(sent, sends, receives, axis)
        # rows come by rank, then by expert: sort them by expert, whichever rank they are from
        names = torch.arange(received.shape[1], device=x.device).repeat(ranks).repeat_interleave(received.flatten())
        by_expert = names.argsort(stable=True)
        ends = received.sum(0).cumsum(0).to(torch.int32)
        done = self.experts(rows[by_expert], ends)
        back = all_to_all(done[by_expert.argsort()], receives, sends, axis)
        weighted = back * weights.flatten()[order].unsqueeze(1).to(back.dtype)
        return torch.zeros_like(x).index_add(0, order // self.moe.topk, weighted)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of each token the experts, and their weights in 32 bits."""
        moe, numerics = self.moe, self.numerics
        logits = functional.linear(x.float(), local(self.router.weight, partial=True).float())
        if self.router.bias is not None:
            logits = logits + local(self.router.bias, partial=True).float()
        scores = logits.softmax(-1) if numerics.scoring == "softmax" else logits.sigmoid()
        judged = scores.detach() if self.correction is None else scores.detach() + self.correction
        if moe.groups > 1:
            best = judged.unflatten(-1, (moe.groups, -1)).topk(2, -1).values.sum(-1).topk(moe.group_topk, -1).indices
            kept = torch.zeros(len(x), moe.groups, dtype=torch.bool, device=x.device).scatter_(1, best, True)
            judged = judged.masked_fill(~kept.repeat_interleave(moe.experts // moe.groups, 1), 0.0)
        chosen = judged.topk(moe.topk, -1).indices
        weights = scores.gather(1, chosen)
        if numerics.topk_normalised:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * numerics.routed_scale


def make_ffn(make: Maker, ffn: spec.Ffn, hidden: int) -> nn.Module:
    """The module of a feed-forward part."""
    match ffn:
        case spec.Mlp():
            return FeedForward(make, ffn, hidden)
        case spec.Moe():
            return MixtureOfExperts(make, ffn, hidden)
        case _:
            assert_never(ffn)
