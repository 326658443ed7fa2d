"""Turn a section of a model into its tensors: every weight and the activations between its products, with placements.

    column parallel   weight split over its outputs, activation over its width         qkv, up, latent up
    row parallel      weight split over its inputs, output partial over tp             attention out, down
    vocabulary        rows of the embedding and of the output matrix split over tp
    experts           whole experts over ep, each one's width over etp
    context           tokens over cp, and over tp too where sequence parallelism splits norms and residuals

Sharding over data-parallel ranks (zero3) cuts dim 0 of what a rank holds once more: `data_parallel_split`. Sizes are
those of ops and parameters: tests hold every product of a section against the weights it is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import assert_never

from ridgeline.ir.ops import Num
from ridgeline.ir.program import SectionKey, SectionRole
from ridgeline.ir.tensors import Split, Tensor
from ridgeline.lowering.context import LoweringContext
from ridgeline.models.compressed import compressed_alike
from ridgeline.models.params import modulation_inputs, normed_vectors, unbiased
from ridgeline.models.recurrent import recurrent_parts
from ridgeline.models.sizing import EncoderInput
from ridgeline.models.spec import (
    Attention,
    Audio,
    Block,
    CompressedAttention,
    Encoder,
    Ffn,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Mamba2,
    Mixer,
    Mlp,
    Moe,
    Norm,
    Recurrence,
    Vision,
)

# which weights a product of `lowering` multiplies with, by its label
WEIGHTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "qkv": ("attention.query.weight", "attention.key_value.weight"),
        "attention out": ("attention.out.weight",),
        "cross query": ("cross.query.weight",),
        "cross key-value": ("cross.key_value.weight",),
        "cross out": ("cross.out.weight",),
        "latent down": ("attention.latent.weight",),
        "query up": ("attention.query_up.weight",),
        "key-value up": ("attention.key_value_up.weight",),
        "index query": ("indexer.query.weight",),
        "index key and weights": ("indexer.key.weight", "indexer.head_weights"),
        "state in": ("mamba.in.weight",),
        "state out": ("mamba.out.weight",),
        "delta in": ("delta.in.weight",),
        "delta out": ("delta.out.weight",),
        "up": ("mlp.up.weight",),
        "down": ("mlp.down.weight",),
        "experts up": ("experts.up.weight",),
        "experts down": ("experts.down.weight",),
        "router": ("router.weight",),
        "projection": ("projection.weight",),
        "embedding projection": ("embedding.projection.weight",),
        "head projection": ("head.projection.weight",),
    }
)


def section_tensors(ctx: LoweringContext, key: SectionKey) -> tuple[Tensor, ...]:
    """The tensors of one section."""
    model = ctx.model
    match key.role:
        case SectionRole.EMBEDDING:
            return tuple(_embedding(ctx))
        case SectionRole.HEAD:
            return tuple(_head(ctx))
        case SectionRole.BLOCK:
            return tuple(_block(ctx, model.blocks[key.block]))
        case SectionRole.MTP:
            return tuple(_prediction(ctx))
        case SectionRole.ENCODER_ENDS:
            return (Tensor(name="encoder.ends", dims=(model.encoder.other_params,)),) if model.encoder else ()
        case SectionRole.ENCODER:
            return tuple(_encoder(ctx, model.encoder)) if model.encoder else ()
        case SectionRole.VISION_ENDS:
            return tuple(_tower_ends("vision", model.vision)) if model.vision else ()
        case SectionRole.VISION | SectionRole.VISION_WINDOWED:
            return tuple(_block(_inside(ctx, model.vision, ctx.seen), model.vision.block)) if model.vision else ()
        case SectionRole.AUDIO_ENDS:
            return tuple(_tower_ends("audio", model.audio)) if model.audio else ()
        case SectionRole.AUDIO:
            return tuple(_block(_inside(ctx, model.audio, ctx.heard), model.audio.block)) if model.audio else ()
        case _:
            assert_never(key.role)


def data_parallel_split(tensor: Tensor, degree: Num) -> Tensor:
    """A weight as zero3 shards it: dim 0 of what a rank holds is cut over the shard's ranks."""
    return replace(tensor, splits=(*tensor.splits, Split(dim=0, axis="shard", degree=degree)))


def _over(ctx: LoweringContext, dim: int, units: int = 0) -> tuple[Split, ...]:
    return (Split(dim=dim, axis="tp", degree=ctx.degrees.tp, units=units),)


def _tokens(ctx: LoweringContext, *, sequence_parallel: bool = False) -> tuple[Split, ...]:
    """How the tokens of a microbatch, the first dim of an activation, are cut."""
    over = [Split(dim=0, axis="cp", degree=ctx.degrees.cp)]
    if sequence_parallel and ctx.sequence_parallel:
        over.append(Split(dim=0, axis="tp", degree=ctx.degrees.tp))
    return tuple(over)


def _activation(ctx: LoweringContext, name: str, width: Num, *, split: bool = True) -> Tensor:
    """Between a column-parallel and a row-parallel product: every rank has its share of the width."""
    dims = (ctx.degrees.microbatch * ctx.queries, width)
    return Tensor(name=name, kind="activation", dims=dims, splits=(*_tokens(ctx), *(_over(ctx, 1) if split else ())))


def _hidden(ctx: LoweringContext, name: str, *, partial: bool = False) -> Tensor:
    """As wide as the model: whole tokens, split as norms and residuals are, or a summand of each tensor rank."""
    dims = (ctx.degrees.microbatch * ctx.queries, ctx.model.hidden)
    if partial:
        return Tensor(name=name, kind="activation", dims=dims, splits=_tokens(ctx), partial=("tp",))
    wide = _over(ctx, 1) if ctx.width_sharded else ()
    return Tensor(name=name, kind="activation", dims=dims, splits=(*_tokens(ctx, sequence_parallel=True), *wide))


def _norm(name: str, norm: Norm, width: int) -> Iterator[Tensor]:
    if norm.weight:
        yield Tensor(name=f"{name}.weight", dims=(width,))
    if norm.bias:
        yield Tensor(name=f"{name}.bias", dims=(width,))


def _block(ctx: LoweringContext, block: Block) -> Iterator[Tensor]:
    yield _hidden(ctx, "input")
    if block.streams > 1:
        once = replace(block, streams=1, cross=None, extra=0, captured=None)
        for stream in range(1, block.streams):
            for tensor in _block(ctx, once):
                yield replace(tensor, name=f"stream{stream}.{tensor.name}") if tensor.kind == "weight" else tensor
    if block.modulation:
        yield Tensor(
            name="modulation.weight",
            dims=(block.modulation * ctx.model.hidden, modulation_inputs(block, ctx.model.hidden) + 1),
        )
    for place in range(block.norms):
        yield from _norm(f"norm.{place}", block.norm, ctx.model.hidden)
    for mixer in block.mixers:
        yield from _mixer(ctx, mixer)
    if block.cross is not None:
        for tensor in _attention(ctx, block.cross):
            yield replace(tensor, name=tensor.name.replace("attention.", "cross.", 1))
    if block.ffn is not None:
        yield from _ffn(ctx, block.ffn)
    if block.extra:
        yield Tensor(name="extra", dims=(block.extra,))
    if block.captured and block.captured.params:
        yield Tensor(name="captured", dims=(block.captured.params,))


def _mixer(ctx: LoweringContext, mixer: Mixer) -> Iterator[Tensor]:
    match mixer:
        case Attention():
            yield from _attention(ctx, mixer)
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


def _attention(ctx: LoweringContext, mixer: Attention) -> Iterator[Tensor]:
    hidden, heads = ctx.model.hidden, mixer.kv_heads
    queries = mixer.heads * mixer.head_dim * (1 + mixer.gate)
    keys_values = mixer.projected_kv
    yield Tensor(name="attention.query.weight", dims=(queries, hidden), splits=_over(ctx, 0))
    if keys_values:
        yield Tensor(name="attention.key_value.weight", dims=(keys_values, hidden), splits=_over(ctx, 0, heads))
    if mixer.qkv_bias:
        yield Tensor(name="attention.query.bias", dims=(queries,), splits=_over(ctx, 0))
        biased = keys_values - unbiased(mixer)
        if keys_values:
            yield Tensor(name="attention.key_value.bias", dims=(biased,), splits=_over(ctx, 0, heads))
    if mixer.qk_norm == "head":
        yield Tensor(name="attention.qk_norm.weight", dims=(normed_vectors(mixer), mixer.head_dim))
    elif mixer.qk_norm == "full":
        yield Tensor(name="attention.query_norm.weight", dims=(mixer.heads * mixer.head_dim,), splits=_over(ctx, 0))
        if not mixer.kv_shared:
            yield Tensor(name="attention.key_norm.weight", dims=(heads * mixer.head_dim,), splits=_over(ctx, 0, heads))
    if mixer.sinks:
        yield Tensor(name="attention.sinks", dims=(mixer.heads,), splits=_over(ctx, 0))
    yield _activation(ctx, "attention.scores.out", mixer.heads * mixer.value_dim)
    yield Tensor(name="attention.out.weight", dims=(hidden, mixer.heads * mixer.value_dim), splits=_over(ctx, 1))
    if mixer.out_bias:
        yield Tensor(name="attention.out.bias", dims=(hidden,))
    yield _hidden(ctx, "attention.out", partial=True)


def _latent(ctx: LoweringContext, mixer: LatentAttention) -> Iterator[Tensor]:
    hidden, rank, cached = ctx.model.hidden, mixer.q_rank, mixer.kv_rank + mixer.rope_dim
    queries = mixer.heads * (mixer.nope_dim + mixer.rope_dim)
    yield Tensor(name="attention.latent.weight", dims=(rank + cached, hidden))
    yield Tensor(name="attention.key_value_norm.weight", dims=(mixer.kv_rank,))
    if rank:
        yield Tensor(name="attention.query_norm.weight", dims=(rank,))
    yield Tensor(name="attention.query_up.weight", dims=(queries, rank or hidden), splits=_over(ctx, 0))
    opened = mixer.heads * (mixer.nope_dim + mixer.v_dim)
    yield Tensor(name="attention.key_value_up.weight", dims=(opened, mixer.kv_rank), splits=_over(ctx, 0))
    if mixer.indexer is not None and not mixer.indexer.shared:
        yield from _indexer(ctx, mixer.indexer, rank or hidden)
    if mixer.bias:
        yield Tensor(name="attention.latent.bias", dims=(rank + cached,))
        yield Tensor(name="attention.out.bias", dims=(hidden,))
    yield _activation(ctx, "attention.scores.out", mixer.heads * mixer.v_dim)
    yield Tensor(name="attention.out.weight", dims=(hidden, mixer.heads * mixer.v_dim), splits=_over(ctx, 1))
    yield _hidden(ctx, "attention.out", partial=True)


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
    yield Tensor(name="mamba.in.weight", dims=(wide, hidden), splits=_over(ctx, 0))
    yield Tensor(name="mamba.conv.weight", dims=(mixed, mixer.conv + mixer.conv_bias), splits=_over(ctx, 0))
    yield Tensor(name="mamba.heads", dims=(mixer.heads, 3), splits=_over(ctx, 0))
    if mixer.gated_norm:
        yield Tensor(name="mamba.norm.weight", dims=(inner,), splits=_over(ctx, 0))
    if mixer.proj_bias:
        yield Tensor(name="mamba.in.bias", dims=(wide,), splits=_over(ctx, 0))
        yield Tensor(name="mamba.out.bias", dims=(hidden,))
    yield _activation(ctx, "mamba.scan.out", inner)
    yield Tensor(name="mamba.out.weight", dims=(hidden, inner), splits=_over(ctx, 1))
    yield _hidden(ctx, "mamba.out", partial=True)


def _delta(ctx: LoweringContext, mixer: GatedDeltaNet) -> Iterator[Tensor]:
    hidden = ctx.model.hidden
    keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    wide = 2 * keys + 2 * values + 2 * mixer.value_heads
    yield Tensor(name="delta.in.weight", dims=(wide, hidden), splits=_over(ctx, 0))
    yield Tensor(name="delta.conv.weight", dims=(2 * keys + values, mixer.conv), splits=_over(ctx, 0))
    yield Tensor(name="delta.heads", dims=(mixer.value_heads, 2), splits=_over(ctx, 0))
    yield Tensor(name="delta.norm.weight", dims=(mixer.value_dim,))
    yield _activation(ctx, "delta.scan.out", values)
    yield Tensor(name="delta.out.weight", dims=(hidden, values), splits=_over(ctx, 1))
    yield _hidden(ctx, "delta.out", partial=True)


def _recurrence(ctx: LoweringContext, mixer: Recurrence) -> Iterator[Tensor]:
    parts = recurrent_parts(mixer, ctx.model.hidden)
    for one in (*parts.into, parts.out):
        splits = () if one.split == "none" else _over(ctx, 0 if one.split == "outputs" else 1)
        name = f"recurrence.{one.label.replace(' ', '_')}.weight"
        yield Tensor(name=name, dims=(one.outputs, one.inputs), splits=splits)
    yield Tensor(name="recurrence.vectors", dims=(parts.vectors,), splits=_over(ctx, 0))
    if parts.alike:
        yield Tensor(name="recurrence.alike", dims=(parts.alike,))
    yield _activation(ctx, "recurrence.scan.out", mixer.inner)
    yield _hidden(ctx, "recurrence.out", partial=True)


def _compressed(ctx: LoweringContext, mixer: CompressedAttention) -> Iterator[Tensor]:
    """Heads of queries and groups of the output are split; what makes keys and entries every rank holds."""
    hidden, wide, low = ctx.model.hidden, mixer.heads * mixer.head_dim, mixer.o_groups * mixer.o_rank
    yield Tensor(name="attention.query_up.weight", dims=(wide, mixer.q_rank), splits=_over(ctx, 0))
    yield Tensor(name="attention.sinks", dims=(mixer.heads,), splits=_over(ctx, 0))
    yield Tensor(name="attention.alike", dims=(compressed_alike(mixer, hidden),))
    yield _activation(ctx, "attention.scores.out", wide)
    yield Tensor(name="attention.out_down.weight", dims=(low, wide // mixer.o_groups), splits=_over(ctx, 0))
    yield Tensor(name="attention.out.weight", dims=(hidden, low), splits=_over(ctx, 1))
    yield _hidden(ctx, "attention.out", partial=True)


def _ffn(ctx: LoweringContext, ffn: Ffn) -> Iterator[Tensor]:
    match ffn:
        case Mlp():
            yield from _dense(ctx, "mlp", ffn.hidden, ffn.gated, ffn.bias)
        case Moe():
            yield from _experts(ctx, ffn)
        case _:
            assert_never(ffn)


def _dense(ctx: LoweringContext, name: str, width: int, gated: bool, bias: bool) -> Iterator[Tensor]:
    hidden, wide = ctx.model.hidden, width * (1 + gated)
    yield Tensor(name=f"{name}.up.weight", dims=(wide, hidden), splits=_over(ctx, 0))
    if bias:
        yield Tensor(name=f"{name}.up.bias", dims=(wide,), splits=_over(ctx, 0))
    yield _activation(ctx, f"{name}.inner", width)
    yield Tensor(name=f"{name}.down.weight", dims=(hidden, width), splits=_over(ctx, 1))
    if bias:
        yield Tensor(name=f"{name}.down.bias", dims=(hidden,))
    yield _hidden(ctx, f"{name}.out", partial=True)


def _experts(ctx: LoweringContext, moe: Moe) -> Iterator[Tensor]:
    hidden, inner, wide = ctx.model.hidden, moe.latent or ctx.model.hidden, moe.hidden * (1 + moe.gated)
    each = Split(dim=0, axis="ep", degree=ctx.degrees.ep)

    def inside(dim: int) -> tuple[Split, ...]:
        return (each, Split(dim=dim, axis="etp", degree=ctx.degrees.etp))

    yield Tensor(name="router.weight", dims=(moe.choices, hidden))
    if moe.router_bias:
        yield Tensor(name="router.bias", dims=(moe.choices,))
    if moe.latent:
        yield Tensor(name="experts.latent.weight", dims=(2, moe.latent, hidden))
    yield Tensor(name="experts.up.weight", dims=(moe.experts, wide, inner), splits=inside(1))
    yield Tensor(name="experts.down.weight", dims=(moe.experts, inner, moe.hidden), splits=inside(2))
    if moe.bias:
        yield Tensor(name="experts.up.bias", dims=(moe.experts, wide), splits=inside(1))
        yield Tensor(name="experts.down.bias", dims=(moe.experts, inner), splits=(each,))
    if moe.shared_hidden:
        yield from _dense(ctx, "shared_expert", moe.shared_hidden, moe.gated, False)
    if moe.shared_gate:
        yield Tensor(name="shared_expert.gate.weight", dims=(1, hidden))


def _embedding(ctx: LoweringContext) -> Iterator[Tensor]:
    model, embedding = ctx.model, ctx.model.embedding
    width = embedding.width or model.hidden
    if model.latent_space is not None:
        yield Tensor(name="latents.embedding", dims=(model.latent_space.other_params,))
        yield _hidden(ctx, "embedding.out")
        return
    yield Tensor(name="embedding.weight", dims=(model.vocab, width), splits=_over(ctx, 0))
    if embedding.positions:
        yield Tensor(name="positions.weight", dims=(embedding.positions, model.hidden))
    if embedding.width:
        yield Tensor(name="embedding.projection.weight", dims=(model.hidden, width))
    if embedding.further_rows:
        yield Tensor(name="embedding.further_rows", dims=(embedding.further_rows,), splits=_over(ctx, 0))
    if embedding.further_weights:
        yield Tensor(name="embedding.further.weight", dims=(embedding.further_weights,))
    if embedding.norm:
        yield from _norm("embedding.norm", embedding.norm, model.hidden)
    yield _hidden(ctx, "embedding.out")


def _head(ctx: LoweringContext) -> Iterator[Tensor]:
    model, embedding = ctx.model, ctx.model.embedding
    width = embedding.width or model.hidden
    if model.norm:
        yield from _norm("norm", model.norm, model.hidden)
    if model.head is not None:
        sizes = (model.head.dense, model.head.extra, 0 if model.speaks else model.head.outputs * model.hidden)
        for name, size in zip(("dense.weight", "dense.extra", "scores.weight"), sizes, strict=True):
            if size:
                yield Tensor(name=f"head.{name}", dims=(size,))
        if not model.speaks:
            return
    if embedding.width:
        yield Tensor(name="head.projection.weight", dims=(width, model.hidden))
    if not embedding.tied:
        yield Tensor(name="head.weight", dims=(model.vocab, width), splits=_over(ctx, 0))
    if embedding.head_bias:
        yield Tensor(name="head.bias", dims=(model.vocab,), splits=_over(ctx, 0))
    yield _activation(ctx, "logits", model.vocab)


def _prediction(ctx: LoweringContext) -> Iterator[Tensor]:
    """Multi-token prediction: three norms, a projection from twice the width, and a block like any other."""
    mtp, hidden = ctx.model.mtp, ctx.model.hidden
    if mtp is None:
        return
    for place in ("embedding", "hidden", "out"):
        yield from _norm(f"prediction.{place}.norm", mtp.block.norm, hidden)
    yield Tensor(name="projection.weight", dims=(hidden, 2 * hidden), splits=_over(ctx, 0))
    yield from _block(ctx, mtp.block)


def _encoder(ctx: LoweringContext, encoder: Encoder) -> Iterator[Tensor]:
    inner = replace(ctx, model=replace(ctx.model, hidden=encoder.hidden), queries=ctx.source, keys=ctx.source)
    yield from _block(inner, encoder.block)


def _inside(ctx: LoweringContext, tower: Vision | Audio, read: EncoderInput) -> LoweringContext:
    model = replace(ctx.model, hidden=tower.hidden)
    return replace(ctx, model=model, queries=read.positions, keys=read.positions)


def _tower_ends(name: str, tower: Vision | Audio) -> Iterator[Tensor]:
    """What stands before an encoder's layers, and its projector; no tensor rank splits them."""
    if tower.other_params:
        yield Tensor(name=f"{name}.ends", dims=(tower.other_params,))
    if tower.projector_params:
        yield Tensor(name=f"{name}.projector", dims=(tower.projector_params,))
