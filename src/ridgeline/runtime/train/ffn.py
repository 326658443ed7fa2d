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
from ridgeline.runtime.train.fused import gated_activation
from ridgeline.runtime.train.mixers import enter, leave
from ridgeline.runtime.train.recompute import maybe_recompute
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
        out = maybe_recompute(lambda *inner: self.down(self._activation(*inner)), *inner, again=self.again)
        return self.down.after(leave(out, self.layout))

    def _activation(self, *inner: Tensor) -> Tensor:
        if len(inner) == 2 and self.fused:
            return gated_activation(*inner, fused=True)
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

        return maybe_recompute(down, *inner, again=self.again)


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
        has_groups = moe.groups > 1 or make.numerics.scoring == "sigmoid"
        correction = torch.zeros(moe.experts, device=make.layout.device) if has_groups else None
        self.register_buffer("correction", correction)  # moved by load balancing, not by gradients
        self.shared = self.shared_gate = None
        if moe.shared_hidden:
            shared = spec.Mlp(hidden=moe.shared_hidden, gated=moe.gated, activation=moe.activation)
            self.shared = FeedForward(make, shared, hidden)
            self.shared_gate = Matrix(make, 1, hidden, "none", inside=False) if moe.shared_gate else None

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, hidden] in and out."""
        layout = self.layout
        is_replicated = layout.tp.group is not None and not layout.sequence_parallel
        rows = x.flatten(0, 1)
        own_rows = split(rows, layout.tp) if is_replicated else rows
        own_rows = scatter(self._route_tokens(gather(own_rows, layout.etp)), layout.etp)
        output = (merge(own_rows, layout.tp) if is_replicated else own_rows).view_as(x)
        if self.shared is None:
            return output
        shared_output = self.shared(x)
        if self.shared_gate is not None:
            shared_output = shared_output * torch.sigmoid(self.shared_gate(x))
        return output + shared_output

    def _route_tokens(self, x: Tensor) -> Tensor:
        """[tokens, hidden] through the topk experts of each token."""
        chosen, weights = self.route(x)
        order = chosen.flatten().argsort(stable=True)
        sent, axis = x[order // self.moe.topk], self.layout.ep
        sends, receives, by_expert, ends = (self._even if self.layout.even else self._books)(chosen)
        rows = all_to_all(sent, sends, receives, axis)
        done = self.experts(rows[by_expert], ends)
        back = all_to_all(done[by_expert.argsort()], receives, sends, axis)
        weighted_rows = back * weights.flatten()[order].unsqueeze(1).to(back.dtype)
        return torch.zeros_like(x).index_add(0, order // self.moe.topk, weighted_rows)

    def _books(self, chosen: Tensor) -> tuple[list[int], list[int], Tensor, Tensor]:
        """Rows to each rank and from each, their order by expert once they are here, and where each expert's end."""
        ranks, axis = self.layout.ep.degree, self.layout.ep
        counts = torch.bincount(chosen.flatten(), minlength=self.moe.experts).view(ranks, -1)
        receives = all_to_all_counts(counts, axis)
        # rows come by rank, then by expert: sort them by expert, whichever rank they are from
        names = torch.arange(receives.shape[1], device=chosen.device).repeat(ranks)
        by_expert = names.repeat_interleave(receives.flatten()).argsort(stable=True)
        ends = receives.sum(0).cumsum(0).to(torch.int32)
        return counts.sum(1).tolist(), receives.sum(1).tolist(), by_expert, ends

    def _even(self, chosen: Tensor) -> tuple[list[int], list[int], Tensor, Tensor]:
        """The same where every rank gets as many rows as any other, as sizes alone can say."""
        ranks, rows, local = self.layout.ep.degree, chosen.numel(), self.moe.experts // self.layout.ep.degree
        rows_per_rank = [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]
        by_expert = torch.arange(rows, device=chosen.device)
        return rows_per_rank, rows_per_rank, by_expert, torch.zeros(local, dtype=torch.int32, device=chosen.device)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of each token the experts, and their weights in 32 bits."""
        moe, numerics = self.moe, self.numerics
        logits = functional.linear(x.float(), local(self.router.weight, partial=True).float())
        if self.router.bias is not None:
            logits = logits + local(self.router.bias, partial=True).float()
        scores = logits.softmax(-1) if numerics.scoring == "softmax" else logits.sigmoid()
        choice_scores = scores.detach() if self.correction is None else scores.detach() + self.correction
        if moe.groups > 1:
            best = (
                choice_scores.unflatten(-1, (moe.groups, -1))
                .topk(2, -1)
                .values.sum(-1)
                .topk(moe.group_topk, -1)
                .indices
            )
            group_mask = torch.zeros(len(x), moe.groups, dtype=torch.bool, device=x.device).scatter_(1, best, True)
            choice_scores = choice_scores.masked_fill(~group_mask.repeat_interleave(moe.experts // moe.groups, 1), 0.0)
        chosen = choice_scores.topk(moe.topk, -1).indices
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
