"""The first half of a layer: softmax attention with grouped keys, or multi-head latent attention (MLA).

Both enter a tensor-parallel region with all tokens of the context rank, work on their own heads, and leave it through a
row-parallel product. MLA makes the latents of its own tokens first: they are narrower than what they are made of.
"""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor, nn

from ridgeline.models import spec
from ridgeline.runtime.train.exchange import copy, gather, reduce, scatter
from ridgeline.runtime.train.fused import apply_rotary
from ridgeline.runtime.train.layout import Layout
from ridgeline.runtime.train.recompute import maybe_recompute
from ridgeline.runtime.train.ring import attend
from ridgeline.runtime.train.weights import Maker, Matrix, Norm


def enter(x: Tensor, layout: Layout) -> Tensor:
    """Into a tensor-parallel region: all tokens, whichever tensor rank had them."""
    return gather(x, layout.tp, 1) if layout.sequence_parallel else copy(x, layout.tp)


def leave(x: Tensor, layout: Layout) -> Tensor:
    """Out of it: the ranks' summands as one, on every rank or dealt by tokens."""
    return scatter(x, layout.tp, 1) if layout.sequence_parallel else reduce(x, layout.tp)


class Rotary:
    """Rotary position angles of the tokens that this rank holds, one table of them for all layers."""

    def __init__(self, make: Maker, width: int) -> None:
        self.layout, self.numerics, self.width = make.layout, make.numerics, width
        self.known, self.fused = make.angles, make.fused("rotary")

    def angles(self, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosine and sine, [tokens, width / 2]."""
        key = self.width, tokens
        if key not in self.known:
            spans = self.layout.positions(tokens)
            places = torch.cat([torch.arange(first, last, device=device) for first, last in spans])
            exponent = torch.arange(0, self.width, 2, dtype=torch.float32, device=device) / self.width
            angles_ = places.float()[:, None] * (self.numerics.rope_theta**-exponent)[None, :]
            self.known[key] = angles_.cos(), angles_.sin()
        return self.known[key]

    def __call__(self, x: Tensor) -> Tensor:
        """Turn [batch, tokens, heads, width]; pairs are halves of a head, or neighbours."""
        cos, sin = self.angles(x.shape[1], x.device)
        if self.numerics.rope_interleaved:  # neighbours become halves, as DeepSeek's own code leaves them
            x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        return apply_rotary(x, cos, sin, fused=self.fused)


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
        has_head_norm = attention.qk_norm == "head"
        self.query_norm = Norm(make, norm, width, inside=True) if has_head_norm else None
        self.key_norm = Norm(make, norm, width, inside=True) if has_head_norm else None
        self.rotary = Rotary(make, width) if attention.positions == "rope" else None

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, hidden] in and out."""
        x = enter(x, self.layout)
        width, values = self.attention.head_dim, self.attention.value_dim
        q, k = self.query(x).unflatten(-1, (-1, width)), self.key(x).unflatten(-1, (-1, width))
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        v = self.value(x).unflatten(-1, (-1, values))
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))  # attention's output lies as its queries do
        window = self.attention.window
        context = maybe_recompute(lambda q, k, v: attend(q, k, v, self.layout, window), q, k, v, again=self.again)
        context = context.transpose(1, 2).flatten(2)
        return self.out.after(leave(self.out(context), self.layout))


class MultiHeadLatentAttention(nn.Module):  # type: ignore[misc]
    """Keys and values out of one latent per token, one rotary key for all heads (DeepSeek-V2, arXiv:2405.04434)."""

    again = False

    def __init__(self, make: Maker, mla: spec.LatentAttention, hidden: int, norm: spec.Norm) -> None:
        super().__init__()
        self.layout, self.mla = make.layout, mla
        queries = mla.heads * (mla.nope_dim + mla.rope_dim)
        if mla.q_rank:
            self.query_down = Matrix(make, mla.q_rank, hidden, "none", mla.bias, inside=False)
            self.query_norm = Norm(make, norm, mla.q_rank)
        self.query = Matrix(make, queries, mla.q_rank or hidden, "out")
        self.latent = Matrix(make, mla.kv_rank + mla.rope_dim, hidden, "none", mla.bias, inside=False)
        self.latent_norm = Norm(make, norm, mla.kv_rank)
        self.key_value = Matrix(make, mla.heads * (mla.nope_dim + mla.v_dim), mla.kv_rank, "out")
        self.out = Matrix(make, hidden, mla.heads * mla.v_dim, "in", mla.bias)
        self.rotary = Rotary(make, mla.rope_dim)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, hidden] in and out."""
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
        rotary_key = self.rotary(latent_key.unsqueeze(2)).expand(-1, -1, k.shape[2], -1)
        q = torch.cat((q[..., : mla.nope_dim], self.rotary(q[..., mla.nope_dim :])), -1)
        q, k, v = (part.transpose(1, 2) for part in (q, torch.cat((k, rotary_key), -1), v))
        context = maybe_recompute(lambda q, k, v: attend(q, k, v, self.layout), q, k, v, again=self.again)
        context = context.transpose(1, 2).flatten(2)
        return self.out.after(leave(self.out(context), self.layout))


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
