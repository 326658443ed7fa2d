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

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from ridgeline.ir.ops import Num
from ridgeline.ir.program import SectionKey, SectionRole, Split, Tensor
from ridgeline.lowering.context import LoweringContext
from ridgeline.models.mixer_parts import attention_parts, mixer_parts
from ridgeline.models.params import modulation_inputs
from ridgeline.models.parts import FfnParts, MixerParts, SplitAxis, Weight, ffn_parts
from ridgeline.models.sizing import EncoderInput
from ridgeline.models.spec import Audio, Block, Encoder, Norm, Vision


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
            return (
                tuple(_block(_inside(ctx, model.vision, ctx.vision_input), model.vision.block)) if model.vision else ()
            )
        case SectionRole.AUDIO_ENDS:
            return tuple(_tower_ends("audio", model.audio)) if model.audio else ()
        case SectionRole.AUDIO:
            return tuple(_block(_inside(ctx, model.audio, ctx.audio_input), model.audio.block)) if model.audio else ()
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
    hidden = ctx.model.hidden
    for parts in (mixer_parts(mixer, hidden) for mixer in block.mixers):
        yield from _mixer(ctx, parts)
    if block.cross is not None:
        yield from _mixer(ctx, attention_parts(block.cross, hidden, "cross"))
    if block.ffn is not None:
        yield from _ffn(ctx, ffn_parts(block.ffn, hidden))
    if block.extra:
        yield Tensor(name="extra", dims=(block.extra,))
    if block.captured and block.captured.params:
        yield Tensor(name="captured", dims=(block.captured.params,))


def _mixer(ctx: LoweringContext, parts: MixerParts) -> Iterator[Tensor]:
    """Weights of a mixer, what its core hands on, and the summand that leaves it."""
    yield from (_tensor(ctx, weight) for weight in parts.weights)
    core = "scan" if parts.recurrent else "scores"
    yield inner_activation(ctx, f"{parts.name}.{core}.out", parts.inner)
    yield hidden_activation(ctx, f"{parts.name}.out", partial=True)


def _ffn(ctx: LoweringContext, parts: FfnParts) -> Iterator[Tensor]:
    yield from (_tensor(ctx, weight) for weight in parts.weights)
    if parts.dense is not None:
        yield inner_activation(ctx, f"{parts.dense.name}.inner", parts.dense.width)
        yield hidden_activation(ctx, f"{parts.dense.name}.out", partial=True)


def _tensor(ctx: LoweringContext, weight: Weight) -> Tensor:
    """A weight with the degrees of the axes that split it."""
    degrees: dict[SplitAxis, Num] = {"tp": ctx.degrees.tp, "ep": ctx.degrees.ep, "etp": ctx.degrees.etp}
    splits = tuple(Split(dim=dim, axis=axis, degree=degrees[axis], units=weight.units) for dim, axis in weight.splits)
    return Tensor(name=weight.name, dims=weight.dims, splits=splits)


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
    inner = replace(
        ctx, model=replace(ctx.model, hidden=encoder.hidden), queries=ctx.encoder_tokens, keys=ctx.encoder_tokens
    )
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


def over_tp(ctx: LoweringContext, dim: int, units: int = 0) -> tuple[Split, ...]:
    """One dim cut over tensor ranks, in whole units where they say how many there are."""
    return (Split(dim=dim, axis="tp", degree=ctx.degrees.tp, units=units),)


def token_splits(ctx: LoweringContext, *, sequence_parallel: bool = False) -> tuple[Split, ...]:
    """How the tokens of a microbatch, the first dim of an activation, are cut."""
    over = [Split(dim=0, axis="cp", degree=ctx.degrees.cp)]
    if sequence_parallel and ctx.sequence_parallel:
        over.append(Split(dim=0, axis="tp", degree=ctx.degrees.tp))
    return tuple(over)


def inner_activation(ctx: LoweringContext, name: str, width: Num, *, split: bool = True) -> Tensor:
    """Between a column-parallel and a row-parallel product: every rank has its share of the width."""
    dims = (ctx.degrees.microbatch * ctx.queries, width)
    return Tensor(
        name=name, kind="activation", dims=dims, splits=(*token_splits(ctx), *(over_tp(ctx, 1) if split else ()))
    )


def hidden_activation(ctx: LoweringContext, name: str, *, partial: bool = False) -> Tensor:
    """As wide as the model: whole tokens, split as norms and residuals are, or a summand of each tensor rank."""
    dims = (ctx.degrees.microbatch * ctx.queries, ctx.model.hidden)
    if partial:
        return Tensor(name=name, kind="activation", dims=dims, splits=token_splits(ctx), partial=("tp",))
    wide = over_tp(ctx, 1) if ctx.width_sharded else ()
    return Tensor(name=name, kind="activation", dims=dims, splits=(*token_splits(ctx, sequence_parallel=True), *wide))


def norm_weights(name: str, norm: Norm, width: int) -> Iterator[Tensor]:
    if norm.weight:
        yield Tensor(name=f"{name}.weight", dims=(width,))
    if norm.bias:
        yield Tensor(name=f"{name}.bias", dims=(width,))
