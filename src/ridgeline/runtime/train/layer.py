"""The two halves of a layer: softmax or latent attention, also of a sequence that ranks share; dense or experts.

Mixers enter a tensor-parallel region with all tokens of the context rank, work on their own heads, and leave it through
a row-parallel product. MLA makes the latents of its own tokens first: they are narrower than what they are made of.

Ring attention: each rank keeps its queries and sees every block of keys once. With s = scale q k^T of one block under
the causal mask, a block adds to a running result by its log-sum-exp (Liu et al., Ring Attention, arXiv:2310.01889):

    lse' = log(exp(lse) + sum exp(s))        out' = out exp(lse - lse') + exp(s - lse') v

On the way back each block is computed again from the final lse. Keys and values go round once more, and behind them
the gradients that other ranks have for them, n - 1 hops each, in the format they are stored in; a rank's own part stays
at home. Grouped keys are repeated where they are used. Scores of one block exist at a time: memory is (tokens / cp)^2.

Experts, on tokens that no other rank of tp x cp x dp has:

    route      scores -> the topk experts of each token and their weights
    dispatch   rows sorted by expert, to the ep rank that holds it (all-to-all)
    products   one grouped matrix product over the local experts, up, gate and down
    combine    rows back to their tokens, weighted and added

Where tensor ranks hold the same tokens these are dealt to them first. With etp the ranks of one expert gather their
tokens, each computes a share of its width, and their summands are added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import assert_never

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ridgeline.models import spec
from ridgeline.models.rotary import rotary_amplitude, rotary_frequencies, score_multiplier
from ridgeline.runtime.train.fused import apply_rotary, gated_activation
from ridgeline.runtime.train.layout import (
    Axis,
    Layout,
    all_to_all,
    all_to_all_counts,
    copy,
    gather,
    merge,
    reduce,
    scatter,
    split,
    swap_dims,
)
from ridgeline.runtime.train.weights import Maker, Matrix, NormModule, local


def maybe_recompute(function: Callable[..., Tensor], *inputs: Tensor, again: bool) -> Tensor:
    """The function of its inputs, saving nothing but those where it is computed again."""
    if not again or not torch.is_grad_enabled():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRule:
    """What becomes of scores before their softmax.

    scale     what they are multiplied with
    window    tokens that a query sees, itself among them; 0: all before it
    softcap   a tanh keeps them below it; 0: as they are
    """

    scale: float
    window: int = 0
    softcap: float = 0.0


def attend(q: Tensor, k: Tensor, v: Tensor, layout: Layout, rule: ScoreRule) -> Tensor:
    """Causal attention of [batch, heads, tokens, width]; keys may have fewer heads. Tokens are this rank's."""
    if layout.cp.group is None:
        return _full_attention(q, k, v, rule)
    if layout.cp_kind == "all-to-all":
        few = layout.cp.degree // gcd(layout.cp.degree, k.shape[1])  # copies until every context rank has a head
        k, v = (_repeat_heads(x, few) for x in (k, v))
        q, k, v = (swap_dims(x, layout.cp, away=1, here=2) for x in (q, k, v))
        return swap_dims(_full_attention(q, k, v, rule), layout.cp, away=2, here=1)
    layouts = (replace(layout, cp=replace(layout.cp, index=rank)) for rank in range(layout.cp.degree))
    spans = [rank_layout.places(q.shape[2], q.device) for rank_layout in layouts]
    return _Ring.apply(q, k, v, layout.cp, spans, rule)


def _repeat_heads(x: Tensor, groups: int) -> Tensor:
    return x if groups == 1 else x.repeat_interleave(groups, 1)


def _full_attention(q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule) -> Tensor:
    tokens, has_groups = q.shape[2], q.shape[1] != k.shape[1]
    causal = not rule.window or rule.window >= tokens
    if causal and not rule.softcap:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=rule.scale, enable_gqa=has_groups)
    places = torch.arange(tokens, device=q.device)
    return attend_visible(q, k, v, _visible_keys(places, places, rule.window), rule)


def attend_visible(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, rule: ScoreRule) -> Tensor:
    """Attention to the keys that a mask shows each query."""
    if not rule.softcap:
        has_groups = q.shape[1] != k.shape[1]
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, scale=rule.scale, enable_gqa=has_groups
        )
    k, v = (_repeat_heads(x, q.shape[1] // x.shape[1]) for x in (k, v))
    return _scores(q, k, visible, rule).float().softmax(-1).to(q.dtype) @ v


def _visible_keys(queries: Tensor, keys: Tensor, window: int) -> Tensor:
    ahead = queries[:, None] - keys[None, :]
    return (ahead >= 0) & (ahead < window) if window else ahead >= 0


def _scores(q: Tensor, k: Tensor, seen: Tensor, rule: ScoreRule) -> Tensor:
    scores = q @ k.transpose(-2, -1) * rule.scale
    scores = torch.tanh(scores / rule.softcap) * rule.softcap if rule.softcap else scores
    return scores.masked_fill(~seen, float("-inf"))


class _Ring(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, axis: Axis, spans: list[Tensor], rule: ScoreRule
    ) -> Tensor:
        wide = q.float()
        out = wide.new_zeros((*q.shape[:-1], v.shape[-1]))
        lse = wide.new_full((*q.shape[:-1], 1), float("-inf"))
        block = torch.cat((k, v), -1)
        for step in range(axis.degree):
            owner = (axis.index - step) % axis.degree
            keys, values = _halves(block, q.shape[1], (k.shape[-1], v.shape[-1]))
            scores = _scores(wide, keys, _visible_keys(spans[axis.index], spans[owner], rule.window), rule)
            more = torch.logaddexp(lse, scores.logsumexp(-1, keepdim=True))
            out = out * torch.exp(lse - more).nan_to_num() + torch.exp(scores - more).nan_to_num() @ values
            lse = more
            block = _passed_on(block, axis) if step + 1 < axis.degree else block
        ctx.axis, ctx.spans, ctx.rule = axis, spans, rule
        ctx.save_for_backward(q, k, v, out, lse)
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        axis, wide, d_out = ctx.axis, q.float(), gradient.float()
        delta = (d_out * out).sum(-1, keepdim=True)
        d_q, width, rule = torch.zeros_like(wide), (k.shape[-1], v.shape[-1]), ctx.rule
        block = torch.cat((k, v), -1)
        own_gradient = passing = torch.zeros_like(block, dtype=wide.dtype)
        for step in range(axis.degree):
            owner = (axis.index - step) % axis.degree
            keys, values = _halves(block, q.shape[1], width)
            visible = _visible_keys(ctx.spans[axis.index], ctx.spans[owner], rule.window)
            weights = torch.exp(_scores(wide, keys, visible, rule) - lse)
            d_scores = weights * (d_out @ values.transpose(-2, -1) - delta) * rule.scale
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


def enter(x: Tensor, layout: Layout) -> Tensor:
    """Into a tensor-parallel region: all tokens, whichever tensor rank had them."""
    return gather(x, layout.tp, 1) if layout.sequence_parallel else copy(x, layout.tp)


def leave(x: Tensor, layout: Layout) -> Tensor:
    """Out of it: the ranks' summands as one, on every rank or dealt by tokens."""
    return scatter(x, layout.tp, 1) if layout.sequence_parallel else reduce(x, layout.tp)


class Rotary:
    """Rotary position angles of the tokens that this rank holds, one table of them for all layers."""

    def __init__(self, make: Maker, width: int, *, latent: bool = False, local: bool = False) -> None:
        self.layout, self.numerics, self.local = make.layout, make.constants.numerics, local
        self.width = width if latent else int(width * (self.numerics.rotary_share or 1.0))
        stated_pairs = self.numerics.rotary_interleaved
        self.interleaved = latent if stated_pairs is None else stated_pairs
        self.known, self.fused = make.angles, make.calls_kernel("rotary")

    def angles(self, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosine and sine, [tokens, width / 2]."""
        key = self.width, tokens, self.local
        if key not in self.known:
            self.known[key] = self.angles_at(self.layout.places(tokens, device), tokens * self.layout.cp.degree)
        return self.known[key]

    def angles_at(self, places: Tensor, sequence: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of tokens at these places of a sequence of so many."""
        frequencies = rotary_frequencies(self.numerics, self.width, sequence, local=self.local)
        steps = torch.tensor(frequencies, dtype=torch.float32, device=places.device)
        angles, amplitude = places.float()[:, None] * steps[None, :], rotary_amplitude(self.numerics)
        return angles.cos() * amplitude, angles.sin() * amplitude

    def __call__(self, x: Tensor, angles: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Turn the first `width` numbers of each head of [batch, tokens, heads, numbers], by the places of its tokens
        or by the angles of others."""
        cos, sin = angles or self.angles(x.shape[1], x.device)
        x, fixed = x.split((self.width, x.shape[-1] - self.width), -1)
        if self.interleaved:  # neighbours become halves, in queries and keys alike
            x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        turned_heads = apply_rotary(x, cos, sin, fused=self.fused)
        return torch.cat((turned_heads, fixed), -1) if fixed.shape[-1] else turned_heads


class SoftmaxAttention(nn.Module):  # type: ignore[misc]
    """Multi-head attention with grouped keys (MHA, GQA, MQA)."""

    again = False  # scores are computed again on the way back

    def __init__(self, make: Maker, attention: spec.Attention, hidden: int, norm: spec.Norm) -> None:
        super().__init__()
        heads, keys, width, values = attention.heads, attention.kv_heads, attention.head_dim, attention.value_dim
        self.layout, self.attention = make.layout, attention
        self.query = Matrix(make, heads * width, hidden, "out", attention.qkv_bias)
        self.key = Matrix(make, keys * width, hidden, "out", attention.qkv_bias)
        self.value = Matrix(make, keys * values, hidden, "out", attention.qkv_bias)
        self.out = Matrix(make, hidden, heads * values, "in", attention.out_bias)
        self.whole_norm = attention.qk_norm == "full"
        sizes = (heads * width, keys * width) if self.whole_norm else (width, width)
        has_norm = attention.qk_norm in ("head", "full")
        self.query_norm = NormModule(make, norm, sizes[0], inside=True) if has_norm else None
        self.key_norm = NormModule(make, norm, sizes[1], inside=True) if has_norm else None
        self.rotary = Rotary(make, width, local=attention.window > 0) if attention.positions == "rope" else None
        numerics = make.constants.numerics
        self.rule = ScoreRule(
            scale=score_multiplier(numerics, width), window=attention.window, softcap=numerics.score_softcap or 0.0
        )

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, hidden] in and out."""
        q, k, v = (part.transpose(1, 2) for part in self.heads(x))  # attention's output lies as its queries do
        context = maybe_recompute(lambda q, k, v: attend(q, k, v, self.layout, self.rule), q, k, v, again=self.again)
        return self.merge_heads(context.transpose(1, 2))

    def heads(self, x: Tensor, angles: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [batch, tokens, heads, width]; `angles` of tokens that stand at other places."""
        x = enter(x, self.layout)
        width, values = self.attention.head_dim, self.attention.value_dim
        q, k = self.query(x), self.key(x)
        if self.whole_norm and self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        q, k = q.unflatten(-1, (-1, width)), k.unflatten(-1, (-1, width))
        if not self.whole_norm and self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        v = self.value(x).unflatten(-1, (-1, values))
        if self.rotary is not None:
            q, k = self.rotary(q, angles), self.rotary(k, angles)
        return q, k, v

    def merge_heads(self, context: Tensor) -> Tensor:
        """[batch, tokens, heads, width] of attention back into the residual stream."""
        return self.out.after(leave(self.out(context.flatten(2)), self.layout))


class MultiHeadLatentAttention(nn.Module):  # type: ignore[misc]
    """Keys and values out of one latent per token, one rotary key for all heads (DeepSeek-V2, arXiv:2405.04434)."""

    again = False

    def __init__(self, make: Maker, mla: spec.LatentAttention, hidden: int, norm: spec.Norm) -> None:
        super().__init__()
        self.layout, self.mla = make.layout, mla
        queries = mla.heads * (mla.nope_dim + mla.rope_dim)
        if mla.q_rank:
            self.query_down = Matrix(make, mla.q_rank, hidden, "none", mla.bias, inside=False)
            self.query_norm = NormModule(make, norm, mla.q_rank)
        self.query = Matrix(make, queries, mla.q_rank or hidden, "out")
        self.latent = Matrix(make, mla.kv_rank + mla.rope_dim, hidden, "none", mla.bias, inside=False)
        self.latent_norm = NormModule(make, norm, mla.kv_rank)
        self.key_value = Matrix(make, mla.heads * (mla.nope_dim + mla.v_dim), mla.kv_rank, "out")
        self.out = Matrix(make, hidden, mla.heads * mla.v_dim, "in", mla.bias)
        self.rotary = Rotary(make, mla.rope_dim, latent=True)
        width = mla.nope_dim + mla.rope_dim
        self.rule = ScoreRule(scale=score_multiplier(make.constants.numerics, width, latent=True))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in self.heads(x))
        context = maybe_recompute(lambda q, k, v: attend(q, k, v, self.layout, self.rule), q, k, v, again=self.again)
        return self.merge_heads(context.transpose(1, 2))

    def heads(self, x: Tensor, angles: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head, as softmax attention has them."""
        mla = self.mla
        queries = self.query_norm(self.query_down(x)) if mla.q_rank else x
        latent, latent_key = self.latent(x).split((mla.kv_rank, mla.rope_dim), -1)
        entering = queries, self.latent_norm(latent), latent_key
        if self.layout.tp.group is not None:  # one exchange of all three
            widths = [part.shape[-1] for part in entering]
            entering = enter(torch.cat(entering, -1), self.layout).split(widths, -1)
        queries, latent, latent_key = entering
        q = self.query(queries).unflatten(-1, (-1, mla.nope_dim + mla.rope_dim))
        up = self.key_value(latent).unflatten(-1, (-1, mla.nope_dim + mla.v_dim))
        k, v = up.split((mla.nope_dim, mla.v_dim), -1)
        rotary_key = self.rotary(latent_key.unsqueeze(2), angles).expand(-1, -1, k.shape[2], -1)
        q = torch.cat((q[..., : mla.nope_dim], self.rotary(q[..., mla.nope_dim :], angles)), -1)
        return q, torch.cat((k, rotary_key), -1), v

    def merge_heads(self, context: Tensor) -> Tensor:
        """[batch, tokens, heads, width] of attention back into the residual stream."""
        return self.out.after(leave(self.out(context.flatten(2)), self.layout))


def make_mixer(make: Maker, mixer: spec.Mixer, hidden: int, norm: spec.Norm) -> nn.Module:
    """The module of a mixer; `refuse` has turned away those that are not implemented."""
    match mixer:
        case spec.Attention():
            return SoftmaxAttention(make, mixer, hidden, norm)
        case spec.LatentAttention():
            return MultiHeadLatentAttention(make, mixer, hidden, norm)
        case spec.Mamba2() | spec.GatedDeltaNet() | spec.Recurrence() | spec.CompressedAttention():
            raise NotImplementedError(mixer.kind)
        case _:
            assert_never(mixer)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("silu", "swish", "swiglu"), functional.silu),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), partial(functional.gelu, approximate="tanh")),
    "gelu": functional.gelu,
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
        self.fused = make.calls_kernel("bias-activation") and self.activation is functional.silu
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
        self.layout, self.moe, self.routing = make.layout, moe, make.constants.router
        self.router = Matrix(make, moe.experts, hidden, "none", moe.router_bias)
        self.experts = Experts(make, moe, hidden)
        correction = torch.zeros(moe.experts, device=make.layout.device) if self.routing.bias else None
        self.register_buffer("correction", correction)  # moved by load balancing, not by gradients
        self.shared = self.shared_gate = None
        if moe.shared_hidden:
            shared = spec.Mlp(hidden=moe.shared_hidden, gated=moe.gated, activation=moe.activation)
            self.shared = FeedForward(make, shared, hidden)
            self.shared_gate = Matrix(make, 1, hidden, "none", inside=False) if moe.shared_gate else None

    def forward(self, x: Tensor) -> Tensor:
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
        moe, routing = self.moe, self.routing
        logits = functional.linear(x.float(), local(self.router.weight, partial=True).float())
        if self.router.bias is not None:
            logits = logits + local(self.router.bias, partial=True).float()
        scores = logits.softmax(-1) if routing.score == "softmax" else logits.sigmoid()
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
        if routing.normalized:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * routing.scale


def make_ffn(make: Maker, ffn: spec.Ffn, hidden: int) -> nn.Module:
    match ffn:
        case spec.Mlp():
            return FeedForward(make, ffn, hidden)
        case spec.Moe():
            return MixtureOfExperts(make, ffn, hidden)
        case _:
            assert_never(ffn)
