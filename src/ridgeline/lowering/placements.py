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
from ridgeline.lowering.mixer_placements import attention_tensors, mixer_tensors
from ridgeline.lowering.tensor_splits import hidden_activation, inner_activation, norm_weights, over_tp
from ridgeline.models.params import modulation_inputs
from ridgeline.models.sizing import EncoderInput
from ridgeline.models.spec import (
    Audio,
    Block,
    Encoder,
    Ffn,
    Mlp,
    Moe,
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


def _block(ctx: LoweringContext, block: Block) -> Iterator[Tensor]:
    yield hidden_activation(ctx, "input")
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
        yield from norm_weights(f"norm.{place}", block.norm, ctx.model.hidden)
    for mixer in block.mixers:
        yield from mixer_tensors(ctx, mixer)
    if block.cross is not None:
        for tensor in attention_tensors(ctx, block.cross):
            yield replace(tensor, name=tensor.name.replace("attention.", "cross.", 1))
    if block.ffn is not None:
        yield from _ffn(ctx, block.ffn)
    if block.extra:
        yield Tensor(name="extra", dims=(block.extra,))
    if block.captured and block.captured.params:
        yield Tensor(name="captured", dims=(block.captured.params,))


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
    yield Tensor(name=f"{name}.up.weight", dims=(wide, hidden), splits=over_tp(ctx, 0))
    if bias:
        yield Tensor(name=f"{name}.up.bias", dims=(wide,), splits=over_tp(ctx, 0))
    yield inner_activation(ctx, f"{name}.inner", width)
    yield Tensor(name=f"{name}.down.weight", dims=(hidden, width), splits=over_tp(ctx, 1))
    if bias:
        yield Tensor(name=f"{name}.down.bias", dims=(hidden,))
    yield hidden_activation(ctx, f"{name}.out", partial=True)


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
        yield hidden_activation(ctx, "embedding.out")
        return
    yield Tensor(name="embedding.weight", dims=(model.vocab, width), splits=over_tp(ctx, 0))
    if embedding.positions:
        yield Tensor(name="positions.weight", dims=(embedding.positions, model.hidden))
    if embedding.width:
        yield Tensor(name="embedding.projection.weight", dims=(model.hidden, width))
    if embedding.further_rows:
        yield Tensor(name="embedding.further_rows", dims=(embedding.further_rows,), splits=over_tp(ctx, 0))
    if embedding.further_weights:
        yield Tensor(name="embedding.further.weight", dims=(embedding.further_weights,))
    if embedding.norm:
        yield from norm_weights("embedding.norm", embedding.norm, model.hidden)
    yield hidden_activation(ctx, "embedding.out")


def _head(ctx: LoweringContext) -> Iterator[Tensor]:
    model, embedding = ctx.model, ctx.model.embedding
    width = embedding.width or model.hidden
    if model.norm:
        yield from norm_weights("norm", model.norm, model.hidden)
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
        yield Tensor(name="head.weight", dims=(model.vocab, width), splits=over_tp(ctx, 0))
    if embedding.head_bias:
        yield Tensor(name="head.bias", dims=(model.vocab,), splits=over_tp(ctx, 0))
    yield inner_activation(ctx, "logits", model.vocab)


def _prediction(ctx: LoweringContext) -> Iterator[Tensor]:
    """Multi-token prediction: three norms, a projection from twice the width, and a block like any other."""
    mtp, hidden = ctx.model.mtp, ctx.model.hidden
    if mtp is None:
        return
    for place in ("embedding", "hidden", "out"):
        yield from norm_weights(f"prediction.{place}.norm", mtp.block.norm, hidden)
    yield Tensor(name="projection.weight", dims=(hidden, 2 * hidden), splits=over_tp(ctx, 0))
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
