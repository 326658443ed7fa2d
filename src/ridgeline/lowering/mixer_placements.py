"""Turn a sequence mixer into its weights and inner activations, each with its placement.

Heads are split over tensor ranks (column parallel in, row parallel out); what all heads share every rank holds whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from ridgeline.ir.tensors import Tensor
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.tensor_splits import hidden_activation, inner_activation, over_tp
from ridgeline.models.compressed import compressed_alike
from ridgeline.models.mixer_parameters import normed_vectors, unbiased
from ridgeline.models.recurrent import recurrent_parts
from ridgeline.models.spec import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Mamba2,
    Mixer,
    Recurrence,
)


def mixer_tensors(ctx: LoweringContext, mixer: Mixer) -> Iterator[Tensor]:
    match mixer:
        case Attention():
            yield from attention_tensors(ctx, mixer)
        case LatentAttention():
            yield from _latent(ctx, mixer)
        case Mamba2():
            yield from _mamba2(ctx, mixer)
        case GatedDeltaNet():
            yield from _delta(ctx, mixer)
        case Recurrence():
            yield from _recurrence(ctx, mixer)
        case CompressedAttention():
            yield from _compressed(ctx, mixer)
        case _:
            assert_never(mixer)


def attention_tensors(ctx: LoweringContext, mixer: Attention) -> Iterator[Tensor]:
    hidden, heads = ctx.model.hidden, mixer.kv_heads
    queries = mixer.heads * mixer.head_dim * (1 + mixer.gate)
    keys_values = mixer.projected_kv
    yield Tensor(name="attention.query.weight", dims=(queries, hidden), splits=over_tp(ctx, 0))
    if keys_values:
        yield Tensor(name="attention.key_value.weight", dims=(keys_values, hidden), splits=over_tp(ctx, 0, heads))
    if mixer.qkv_bias:
        yield Tensor(name="attention.query.bias", dims=(queries,), splits=over_tp(ctx, 0))
        biased = keys_values - unbiased(mixer)
        if keys_values:
            yield Tensor(name="attention.key_value.bias", dims=(biased,), splits=over_tp(ctx, 0, heads))
    if mixer.qk_norm == "head":
        yield Tensor(name="attention.qk_norm.weight", dims=(normed_vectors(mixer), mixer.head_dim))
    elif mixer.qk_norm == "full":
        yield Tensor(name="attention.query_norm.weight", dims=(mixer.heads * mixer.head_dim,), splits=over_tp(ctx, 0))
        if not mixer.kv_shared:
            yield Tensor(
                name="attention.key_norm.weight", dims=(heads * mixer.head_dim,), splits=over_tp(ctx, 0, heads)
            )
    if mixer.sinks:
        yield Tensor(name="attention.sinks", dims=(mixer.heads,), splits=over_tp(ctx, 0))
    yield inner_activation(ctx, "attention.scores.out", mixer.heads * mixer.value_dim)
    yield Tensor(name="attention.out.weight", dims=(hidden, mixer.heads * mixer.value_dim), splits=over_tp(ctx, 1))
    if mixer.out_bias:
        yield Tensor(name="attention.out.bias", dims=(hidden,))
    yield hidden_activation(ctx, "attention.out", partial=True)


def _latent(ctx: LoweringContext, mixer: LatentAttention) -> Iterator[Tensor]:
    hidden, rank, cached = ctx.model.hidden, mixer.q_rank, mixer.kv_rank + mixer.rope_dim
    queries = mixer.heads * (mixer.nope_dim + mixer.rope_dim)
    yield Tensor(name="attention.latent.weight", dims=(rank + cached, hidden))
    yield Tensor(name="attention.key_value_norm.weight", dims=(mixer.kv_rank,))
    if rank:
        yield Tensor(name="attention.query_norm.weight", dims=(rank,))
    yield Tensor(name="attention.query_up.weight", dims=(queries, rank or hidden), splits=over_tp(ctx, 0))
    opened = mixer.heads * (mixer.nope_dim + mixer.v_dim)
    yield Tensor(name="attention.key_value_up.weight", dims=(opened, mixer.kv_rank), splits=over_tp(ctx, 0))
    if mixer.indexer is not None and not mixer.indexer.shared:
        yield from _indexer(ctx, mixer.indexer, rank or hidden)
    if mixer.bias:
        yield Tensor(name="attention.latent.bias", dims=(rank + cached,))
        yield Tensor(name="attention.out.bias", dims=(hidden,))
    yield inner_activation(ctx, "attention.scores.out", mixer.heads * mixer.v_dim)
    yield Tensor(name="attention.out.weight", dims=(hidden, mixer.heads * mixer.v_dim), splits=over_tp(ctx, 1))
    yield hidden_activation(ctx, "attention.out", partial=True)


def _indexer(ctx: LoweringContext, indexer: Indexer, width: int) -> Iterator[Tensor]:
    """Every tensor rank scores all tokens: the choice must be the same on each."""
    hidden, dim = ctx.model.hidden, indexer.head_dim
    yield Tensor(name="indexer.query.weight", dims=(indexer.heads * dim, width))
    yield Tensor(name="indexer.key.weight", dims=(dim, hidden))
    yield Tensor(name="indexer.key_norm", dims=(2, dim))
    yield Tensor(name="indexer.head_weights", dims=(indexer.heads, hidden))


def _mamba2(ctx: LoweringContext, mixer: Mamba2) -> Iterator[Tensor]:
    hidden, inner = ctx.model.hidden, mixer.inner
    mixed = inner + 2 * mixer.groups * mixer.state
    wide = inner + mixed + mixer.heads
    yield Tensor(name="mamba.in.weight", dims=(wide, hidden), splits=over_tp(ctx, 0))
    yield Tensor(name="mamba.conv.weight", dims=(mixed, mixer.conv + mixer.conv_bias), splits=over_tp(ctx, 0))
    yield Tensor(name="mamba.heads", dims=(mixer.heads, 3), splits=over_tp(ctx, 0))
    if mixer.gated_norm:
        yield Tensor(name="mamba.norm.weight", dims=(inner,), splits=over_tp(ctx, 0))
    if mixer.proj_bias:
        yield Tensor(name="mamba.in.bias", dims=(wide,), splits=over_tp(ctx, 0))
        yield Tensor(name="mamba.out.bias", dims=(hidden,))
    yield inner_activation(ctx, "mamba.scan.out", inner)
    yield Tensor(name="mamba.out.weight", dims=(hidden, inner), splits=over_tp(ctx, 1))
    yield hidden_activation(ctx, "mamba.out", partial=True)


def _delta(ctx: LoweringContext, mixer: GatedDeltaNet) -> Iterator[Tensor]:
    hidden = ctx.model.hidden
    keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    wide = 2 * keys + 2 * values + 2 * mixer.value_heads
    yield Tensor(name="delta.in.weight", dims=(wide, hidden), splits=over_tp(ctx, 0))
    yield Tensor(name="delta.conv.weight", dims=(2 * keys + values, mixer.conv), splits=over_tp(ctx, 0))
    yield Tensor(name="delta.heads", dims=(mixer.value_heads, 2), splits=over_tp(ctx, 0))
    yield Tensor(name="delta.norm.weight", dims=(mixer.value_dim,))
    yield inner_activation(ctx, "delta.scan.out", values)
    yield Tensor(name="delta.out.weight", dims=(hidden, values), splits=over_tp(ctx, 1))
    yield hidden_activation(ctx, "delta.out", partial=True)


def _recurrence(ctx: LoweringContext, mixer: Recurrence) -> Iterator[Tensor]:
    parts = recurrent_parts(mixer, ctx.model.hidden)
    for one in (*parts.into, parts.out):
        splits = () if one.split == "none" else over_tp(ctx, 0 if one.split == "outputs" else 1)
        name = f"recurrence.{one.label.replace(' ', '_')}.weight"
        yield Tensor(name=name, dims=(one.outputs, one.inputs), splits=splits)
    yield Tensor(name="recurrence.vectors", dims=(parts.vectors,), splits=over_tp(ctx, 0))
    if parts.alike:
        yield Tensor(name="recurrence.alike", dims=(parts.alike,))
    yield inner_activation(ctx, "recurrence.scan.out", mixer.inner)
    yield hidden_activation(ctx, "recurrence.out", partial=True)


def _compressed(ctx: LoweringContext, mixer: CompressedAttention) -> Iterator[Tensor]:
    """Heads of queries and groups of the output are split; what makes keys and entries every rank holds."""
    hidden, wide, low = ctx.model.hidden, mixer.heads * mixer.head_dim, mixer.o_groups * mixer.o_rank
    yield Tensor(name="attention.query_up.weight", dims=(wide, mixer.q_rank), splits=over_tp(ctx, 0))
    yield Tensor(name="attention.sinks", dims=(mixer.heads,), splits=over_tp(ctx, 0))
    yield Tensor(name="attention.alike", dims=(compressed_alike(mixer, hidden),))
    yield inner_activation(ctx, "attention.scores.out", wide)
    yield Tensor(name="attention.out_down.weight", dims=(low, wide // mixer.o_groups), splits=over_tp(ctx, 0))
    yield Tensor(name="attention.out.weight", dims=(hidden, low), splits=over_tp(ctx, 1))
    yield hidden_activation(ctx, "attention.out", partial=True)
