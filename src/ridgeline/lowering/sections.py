"""Turn a model's distinct blocks and its two ends into sections: what one rank executes for one microbatch.

Training and an engine step are lowered by the same lines; cores of mixers know what a sequence and what a step ask of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.core.records import dataclass
from ridgeline.ir.ops import Attend, Collective, MatMul, Num, Op, Stream
from ridgeline.ir.program import SavedActivations, Section, SectionKey, SectionRole
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.ffn import lower_ffn
from ridgeline.lowering.op_builders import (
    BOTH,
    Boundary,
    CoreOps,
    Passes,
    Sides,
    SublayerOps,
    adapters,
    bias_gradients,
    casts,
    gradient_casts,
    input_gradient,
    matmul,
    plain_matmul,
    pointwise,
    pointwise_back,
    resident_params,
    steps_of,
    stream,
    tensor_boundary,
    tensor_collective,
    together,
    weight_gradient,
)
from ridgeline.lowering.softmax_core import attention_scores, cross_ops, softmax_ops
from ridgeline.models.facts import mean_visible
from ridgeline.models.mixer_parts import cross_parts, mixer_parts
from ridgeline.models.params import modulation_inputs, modulation_params
from ridgeline.models.parts import CrossCore, LatentCore, MixerParts, PooledCore
from ridgeline.models.spec import Attention, Block, Captured, Mixer, Mlp, Moe, Mtp
from ridgeline.plan.engine import RecomputeKind


def lower_mixer(ctx: LoweringContext, mixer: Mixer, sides: Sides = BOTH) -> SublayerOps:
    """Projections, the part between them, and the tensor-parallel communication around both."""
    parts = mixer_parts(mixer, ctx.model.hidden)
    attention = _assemble(ctx, parts, sides)
    if ctx.forward is None and isinstance(parts.core, LatentCore) and parts.core.indexer and parts.index:
        from ridgeline.lowering.latent_core import lower_indexer

        return together(lower_indexer(ctx, parts, parts.core.indexer), attention)
    return attention


def lower_cross(ctx: LoweringContext, mixer: Attention) -> SublayerOps:
    """Cross attention over the source of the context."""
    width = ctx.model.encoder.hidden if ctx.model.encoder else ctx.model.hidden
    return _assemble(ctx, cross_parts(mixer, ctx.model.hidden, ctx.encoder_tokens, width), BOTH)


def _mixer_core(ctx: LoweringContext, parts: MixerParts) -> CoreOps:
    """The part between the projections; files of rarer ones are loaded where a model has them."""
    core = parts.core
    if parts.recurrent is not None:
        from ridgeline.lowering.scans import scan_ops

        return scan_ops(ctx, parts, parts.recurrent)
    if isinstance(core, (LatentCore, PooledCore)):
        from ridgeline.lowering.latent_core import latent_ops, pooled_ops

        return latent_ops(ctx, parts, core) if isinstance(core, LatentCore) else pooled_ops(ctx, parts, core)
    match core:
        case Attention():
            return softmax_ops(ctx, parts, core)
        case CrossCore():
            return cross_ops(ctx, parts, core)
        case _:
            raise AssertionError(f"{parts.title} has no state and no scores")


def _assemble(ctx: LoweringContext, parts: MixerParts, sides: Sides) -> SublayerOps:
    """A mixer from its parts, tensor-parallel communication included."""
    core, params = _mixer_core(ctx, parts), resident_params(ctx, parts)
    border = tensor_boundary(ctx, sides, parts.entering)
    into, out = core.into, core.out
    first = casts(ctx, into[:1], ctx.joins("norm cast"))
    forward = (*first, *casts(ctx, [*into[1:], *out]), *border.entry, *into, *_between(ctx, core), *out, *border.exit)
    if not ctx.backward:
        return SublayerOps(forward=forward, params=params)
    products = [*into, *out]
    low, adapter_params = adapters(ctx, products)
    weights = [weight_gradient(op, ctx.gradient_bytes) for op in reversed(low if ctx.frozen else products)]
    labels = {part.label for part in parts.products if part.biased}
    biases = bias_gradients(ctx, [op for op in products if op.label in labels])
    return SublayerOps(
        forward=(*forward, *low),
        backward_input=(*gradient_casts(ctx, products), *map(input_gradient, low), *_backward(core, border)),
        adapters=adapter_params,
        backward_weight=(*weights, *biases),
        again=tuple(core.core[0]),
        saved=core.saved + core.score_bytes,
        saved_selective=core.saved,
        up=core.up,
        saved_up=core.saved_up,
        params=params,
    )


def _between(ctx: LoweringContext, core: CoreOps) -> tuple[Op, ...]:
    """What runs between the products, in the order of a sequence's forward or of an engine's step."""
    if ctx.forward is None:
        return (*core.before[0], *core.behind[0], *core.exchange[0], *core.core[0])
    return (*core.exchange[0], *core.before[0], *core.core[0], *core.behind[0])


def _backward(core: CoreOps, border: Boundary) -> tuple[Op, ...]:
    """Gradients of inputs, from the output back."""
    return (
        *border.exit_gradient, *map(input_gradient, reversed(core.out)), *core.core[1], *core.exchange[1],
        *core.behind[1], *core.before[1], *map(input_gradient, reversed(core.into)), *border.entry_gradient,
    )  # fmt: skip


WRITTEN = 2.0  # of an element that a pointwise op writes: what it reads is as much
WRITTEN_BACK = 3.0  # its gradient arrives, what it read is read again, another gradient is made
SCAN_HEAD = 64  # rows of a tile, where no head says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joined:
    """What mixer and feed-forward of a parallel block share; nothing in any other block.

    exit    one reduction of their sum over tensor ranks
    input   one normed input; with a norm each they read two
    entry   one exchange of that input among tensor ranks; latent attention exchanges latents instead
    """

    exit: bool = False
    input: bool = False
    entry: bool = False


def _shared_borders(block: Block) -> _Joined:
    if not (block.parallel and block.mixer and block.ffn):
        return _Joined()
    reduces = isinstance(block.ffn, Mlp) or block.ffn.shared_hidden > 0  # routed tokens come back to who sent them
    same = block.norms < 2
    return _Joined(exit=reduces, input=same, entry=same and reduces and not _exchanges_latents(block))


def _exchanges_latents(block: Block) -> bool:
    """Whether tensor ranks exchange latents where they enter the mixer of a layer, instead of its input."""
    return block.mixer is not None and mixer_parts(block.mixer, 1).entering > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOps:
    """A layer before anything is recomputed: its section, and the ops of its two parts."""

    section: Section
    mixer: SublayerOps
    ffn: SublayerOps
    experts: bool


def lower_block(ctx: LoweringContext, block: Block, kind: RecomputeKind) -> Section:
    """One layer with its norms and residuals, under one kind of recompute."""
    return with_recompute(ctx, lower_layer(ctx, block), kind)


def lower_layer(ctx: LoweringContext, block: Block) -> LayerOps:
    """One layer with its norms and residuals, whatever of it is recomputed."""
    borders = _shared_borders(block)
    mixer = _mixers(ctx, block, Sides(exit=not borders.exit))
    ffn = lower_ffn(ctx, block.ffn, Sides(entry=not borders.entry)) if block.ffn else SublayerOps()
    cross_params: Num = 0
    if block.cross is not None:
        cross = lower_cross(ctx, block.cross)
        mixer, cross_params = together(mixer, replace(cross, params=0)), cross.params
    further = lower_captured(ctx, block.captured) if block.captured else SublayerOps()
    norms, norms_back = _norms(ctx, block)
    further = together(further, modulation_ops(ctx, block)) if block.modulation else further
    stream_params = mixer.params + ffn.params + block.norms * block.norm.params(ctx.model.hidden)
    params = stream_params * block.streams + cross_params + further.params + block.extra
    saved_bytes = _saved_activations(ctx, mixer, together(ffn, further), block)
    section = Section(
        key=SectionKey(SectionRole.BLOCK),
        forward=(*norms, *further.forward, *mixer.forward, *ffn.forward),
        backward_input=(*ffn.backward_input, *mixer.backward_input, *further.backward_input, *norms_back),
        backward_weight=(*ffn.backward_weight, *mixer.backward_weight, *further.backward_weight),
        params=params,
        expert_params=ffn.expert_params,
        trained=mixer.adapters + ffn.adapters if ctx.frozen else params,
        saved=saved_bytes,
        saved_without_recompute=saved_bytes,
    )
    return LayerOps(section=section, mixer=mixer, ffn=ffn, experts=isinstance(block.ffn, Moe))


def _mixers(ctx: LoweringContext, block: Block, sides: Sides) -> SublayerOps:
    """The mixer of a layer, or two that read one input and whose sum leaves it: one border of tensor ranks around both
    (latent attention exchanges latents of its own)."""
    if len(block.mixers) < 2:
        return lower_mixer(ctx, block.mixers[0], sides) if block.mixers else SublayerOps()
    first = lower_mixer(ctx, block.mixers[0], Sides(entry=sides.entry, exit=False))
    second = lower_mixer(ctx, block.mixers[1], Sides(entry=_exchanges_latents(block), exit=sides.exit))
    mixer_sum = stream(ctx, "sum of mixers", ctx.tokens * ctx.model.hidden, 3.0)
    return together(first, SublayerOps(forward=(mixer_sum,), backward_input=(mixer_sum,)), second)


def _norms(ctx: LoweringContext, block: Block) -> tuple[list[Op], list[Op]]:
    """Norms and residual additions; where nothing fuses them they read and write more.

    A parallel block adds its parts before they are reduced over tensor ranks, and so the gradients of an input that
    both read: on all tokens of the rank, where norms and residuals have their share of them.
    """
    elements, borders = ctx.split_tokens * ctx.model.hidden, _shared_borders(block)
    parts = _parts(block)
    adds, adds_back = parts - borders.exit, parts - borders.input
    forward: list[Op] = [
        pointwise(ctx, "norm", elements * block.norms, modules=block.norms),
        pointwise(ctx, "residual", elements * adds, modules=adds),
    ]
    backward: list[Op] = [
        pointwise_back(ctx, "norm", elements * block.norms, modules=block.norms),
        pointwise_back(ctx, "residual", elements * adds_back, modules=adds_back),
    ]
    if borders.exit:
        forward.append(stream(ctx, "sum of parts", ctx.tokens * ctx.model.hidden, 3.0))
    if borders.input:
        backward.insert(0, stream(ctx, "sum of parts dX", ctx.tokens * ctx.model.hidden, 3.0))
    return forward, backward


def _saved_activations(ctx: LoweringContext, mixer: SublayerOps, ffn: SublayerOps, block: Block) -> SavedActivations:
    """The layer's input; the normed input of each part; between two parts the residual. A parallel block has none
    between, and one normed input where both parts read the same."""
    size = ctx.element_bytes
    elements = ctx.split_tokens * ctx.model.hidden
    parts = _parts(block)
    between = 0 if block.parallel else parts - 1
    return SavedActivations(
        inputs=elements * size,
        attention=mixer.saved,
        mlp=ffn.saved,
        norms=elements * size * (normed_inputs(block) + between) + _gathered_inputs(ctx, block) * size,
    )


def _gathered_inputs(ctx: LoweringContext, block: Block) -> Num:
    """Elements that software holds more where it keeps what it gathered: normed inputs of dense products, by all tokens
    of the rank. Routed tokens are not gathered, and of latent attention the latents are."""
    if not ctx.engine.exchanges.inputs_kept:
        return 0
    latent_parts = _exchanges_latents(block) + (isinstance(block.ffn, Moe) and not block.ffn.shared_hidden)
    return (ctx.tokens - ctx.split_tokens) * ctx.model.hidden * (normed_inputs(block) - latent_parts)


def normed_inputs(block: Block) -> int:
    """Normed tensors that products of a layer read: one a part, one altogether where a parallel block shares it."""
    return _parts(block) - _shared_borders(block).input


def _parts(block: Block) -> int:
    """Parts of a layer, each with a residual: mixer, cross attention, feed-forward."""
    return bool(block.mixers) + (block.cross is not None) + (block.ffn is not None)


def with_recompute(ctx: LoweringContext, layer: LayerOps, kind: RecomputeKind) -> Section:
    """The section of a layer with what runs again before the backward, and what is kept instead."""
    section, mixer, ffn, experts = layer.section, layer.mixer, layer.ffn, layer.experts
    if kind == "full":
        whole_layer = section.forward
        if ctx.resolved.launch == "xla" and not experts:
            whole_layer = _without_outputs(whole_layer, mixer, ffn)
        elif ctx.engine.recompute_stops:
            last = ffn.forward or mixer.forward
            whole_layer = (*section.forward[: len(section.forward) - len(last)], *read_again(last))
        return replace(section, recompute=whole_layer, saved=SavedActivations(inputs=section.saved.inputs))
    if kind == "none":
        return section
    parts = ctx.recompute.parts
    recompute: tuple[Op, ...] = ()
    saved_bytes = section.saved
    if "attention" in parts or "mixer" in parts:
        entire_mixer = "mixer" in parts
        recompute += (
            (read_again(mixer.forward) if ctx.engine.recompute_stops else mixer.forward)
            if entire_mixer
            else mixer.again
        )
        saved_bytes = replace(saved_bytes, attention=0 if entire_mixer else mixer.saved_selective)
    if "latent-up" in parts and "mixer" not in parts:
        recompute += mixer.up
        saved_bytes = replace(saved_bytes, attention=saved_bytes.attention - mixer.saved_up)
    if ("moe" if experts else "mlp") in parts:
        recompute += read_again(ffn.forward) if ctx.engine.recompute_stops else ffn.forward
        saved_bytes = replace(saved_bytes, mlp=0)
    elif "activation" in parts:
        recompute += ffn.again
        saved_bytes = replace(saved_bytes, mlp=ffn.saved_selective)
    if "alternate" in parts:
        recompute += _alternate(section.forward)
        saved_bytes = replace(saved_bytes, attention=saved_bytes.attention / 2, mlp=saved_bytes.mlp / 2, norms=0)
    if "norm" in parts:
        recompute += section.forward[:1]
        saved_bytes = replace(saved_bytes, norms=0)
    return replace(section, recompute=recompute, saved=saved_bytes)


def read_again(forward: tuple[Op, ...]) -> tuple[Op, ...]:
    """A part's forward as far as its backward reads it: the last product's inputs, or all of it where its output is
    multiplied with something (experts with their weights, a shared expert with its gate)."""
    last = next((place for place in range(len(forward) - 1, -1, -1) if isinstance(forward[place], MatMul)), -1)
    output_gated = any(op.label == "shared gate" for op in forward)
    if last < 0 or output_gated or forward[last].label == "experts down":
        return forward
    return tuple(op for place, op in enumerate(forward) if place < last or not isinstance(op, (MatMul, Collective)))


def _without_outputs(ops: tuple[Op, ...], mixer: SublayerOps, ffn: SublayerOps) -> tuple[Op, ...]:
    """A layer's forward without the product that makes its output, and what follows it: no gradient reads those, and a
    compiler leaves out what nobody reads. (PaLM's 57.8 % HFU at 46.2 % MFU are 1.25, not 4/3, of the model's flops.)

    Weights of experts are multiplied with what experts return, so their outputs are read.
    """
    last = ffn.forward or mixer.forward
    item = next((place for place in range(len(last) - 1, -1, -1) if isinstance(last[place], MatMul)), 0)
    return ops[: len(ops) - (len(last) - item)]


def _alternate(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Everything but communication, attention and every second product: what an op-level policy runs again."""
    repeated_ops: list[Op] = []
    products = 0
    for op in ops:
        if isinstance(op, MatMul):
            products += 1
            if products % 2 == 0:
                repeated_ops.append(op)
        elif isinstance(op, Stream):
            repeated_ops.append(op)
    return tuple(repeated_ops)


def modulation_ops(ctx: LoweringContext, block: Block) -> SublayerOps:
    """A layer's vectors made of the timestep, whole on every tensor rank, and what they do to its tokens."""
    rows, hidden = ctx.sequences, ctx.model.hidden
    width = modulation_inputs(block, hidden)
    products = [plain_matmul(ctx, "modulation", rows, block.streams * block.modulation * hidden, width)]
    products = products if width else []
    elements = ctx.split_tokens * hidden * block.modulation
    forward = pointwise(ctx, "modulation", elements, label="modulate", modules=block.modulation)
    back = pointwise_back(ctx, "modulation", elements, label="modulate dX", modules=block.modulation)
    saved_elements = ctx.split_tokens * hidden * block.modulation / 3
    return SublayerOps(
        forward=(*products, forward),
        backward_input=(back, *map(input_gradient, products)),
        backward_weight=() if ctx.frozen else tuple(weight_gradient(op, ctx.gradient_bytes) for op in products),
        saved=saved_elements * ctx.element_bytes,
        params=block.streams * modulation_params(block, hidden),
    )


def lower_captured(ctx: LoweringContext, part: Captured) -> SublayerOps:
    """What was captured of a layer, op by op: products with their gradients, attention without its projections, and
    everything that is bound by memory. Nothing of it is split over tensor ranks: each runs it whole, on its own tokens
    where sequence parallelism deals them."""
    products = [
        matmul(
            ctx,
            f"captured {item.label}",
            ctx.split_tokens * item.rows,
            item.outputs,
            item.inputs,
            item.groups,
        )
        for item in part.products
    ]
    weight_products = [op for op, item in zip(products, part.products, strict=True) if item.weights]
    between = [op for op, item in zip(products, part.products, strict=True) if not item.weights]
    core, core_back = _captured_core(ctx, part)
    elements = ctx.split_tokens * part.streams
    pointwise_ops = [stream(ctx, "captured pointwise", elements, WRITTEN, part.kernels)] if part.streams else []
    back = [stream(ctx, "captured pointwise dX", elements, WRITTEN_BACK, part.kernels)] if part.streams else []
    activation_gradients: list[Op] = [weight_gradient(op, ctx.element_bytes) for op in between]
    return SublayerOps(
        forward=(*products, *pointwise_ops, *core),
        backward_input=(*core_back, *back, *map(input_gradient, reversed(products)), *activation_gradients),
        backward_weight=()
        if ctx.frozen
        else tuple(weight_gradient(op, ctx.gradient_bytes) for op in weight_products[::-1]),
        saved=ctx.split_tokens * part.saved * ctx.element_bytes,
        params=part.params,
    )


def _captured_core(ctx: LoweringContext, part: Captured) -> Passes:
    """Scores and recurrences, forward and backward; of engine steps the forward alone."""
    forward: list[Op] = []
    backward: list[Op] = []
    for attention in part.scores:
        passes = attention_scores(ctx, attention)
        forward += passes[0]
        backward += passes[1]
    flops = part.scan_flops * ctx.tokens + part.pair_flops * _pairs(ctx)
    if part.scan_flops or part.pair_flops:
        scan_bytes = ctx.tokens * ctx.model.hidden * 4 * ctx.element_bytes
        scan = Attend(
            label="captured scan", flops=flops, stream_bytes=scan_bytes, head_dim=SCAN_HEAD, scan=True, kernels=2
        )
        forward.append(scan)
        back_scan = replace(scan, label="captured scan dX", flops=2 * flops, stream_bytes=2 * scan_bytes, backward=True)
        backward.append(back_scan)
    return forward, backward


def _pairs(ctx: LoweringContext) -> Num:
    """Pairs of a token and one that it sees."""
    if ctx.forward is None:
        return ctx.tokens * mean_visible(ctx.span, causal=ctx.causal, queries=ctx.queries)
    steps = steps_of(ctx)
    return steps.prefill_pairs + steps.kv_tokens * steps.decode_tokens


def lower_prediction(ctx: LoweringContext, mtp: Mtp, kind: RecomputeKind, lowered: Sequence[Section]) -> Section:
    """One block of multi-token prediction; `lowered` are the model's embedding, its head, and the block as a layer.

        parameters   block + 2 h h / tp + 3 norms of h        kept beside the block's   3 h: a row, and the two joined

    h = hidden. Frozen weights need no inputs of theirs: the row alone. Entry and layer run again where everything is
    recomputed, which keeps the row alone, too; the state before is what the model's own output keeps.
    """
    rows, head, layer = lowered
    entry = _entry(ctx)
    hidden, size = ctx.model.hidden, ctx.element_bytes
    params = 2 * hidden * hidden / ctx.degrees.tp + 3 * mtp.block.norm.params(hidden)
    recompute = (*entry.forward, *layer.recompute) if kind == "full" else layer.recompute
    joint_bytes = (1 if ctx.frozen else 3) * ctx.split_tokens * hidden * size
    further_bytes = head.saved.inputs + (0 if kind == "full" else joint_bytes)
    return Section(
        key=SectionKey(SectionRole.MTP),
        forward=(*rows.forward, *entry.forward, *layer.forward, *head.forward),
        backward_input=(
            *head.backward_input, *layer.backward_input, *entry.backward_input, *rows.backward_input,
        ),
        backward_weight=(
            *head.backward_weight, *layer.backward_weight, *entry.backward_weight, *rows.backward_weight,
        ),
        recompute=recompute,
        params=layer.params + params,
        expert_params=layer.expert_params,
        trained=layer.trained + (0 if ctx.frozen else params),
        saved=replace(layer.saved, norms=layer.saved.norms + further_bytes),
        saved_without_recompute=replace(
            layer.saved_without_recompute, norms=layer.saved_without_recompute.norms + head.saved.inputs + joint_bytes
        ),
    )  # fmt: skip


def _entry(ctx: LoweringContext) -> Section:
    """Two norms and a projection from twice the width, whose columns tensor ranks split: inputs are gathered along the
    sequence, outputs along the width. Backward, every rank has the whole gradient or gathers it first."""
    tokens, hidden = ctx.tokens, ctx.model.hidden
    elements = ctx.split_tokens * hidden
    project = matmul(ctx, "projection", tokens, hidden / ctx.degrees.tp, 2 * hidden)
    split = not (isinstance(ctx.degrees.tp, int) and ctx.degrees.tp == 1)
    enter, leave, back_in, back_out = _projection_exchange(ctx) if split else ([], [], [], [])
    return Section(
        key=SectionKey(SectionRole.MTP),
        forward=(
            pointwise(ctx, "norm", 2 * elements, label="entry norms", modules=2),
            stream(ctx, "join", 2 * elements, 2.0),
            *casts(ctx, [project]),
            *enter,
            project,
            *leave,
        ),
        backward_input=(
            *back_in,
            *gradient_casts(ctx, [project]),
            input_gradient(project),
            *back_out,
            stream(ctx, "join dX", 2 * elements, 2.0),
            pointwise_back(ctx, "norm", 2 * elements, label="entry norms dX", modules=2),
        ),
        backward_weight=() if ctx.frozen else (weight_gradient(project, ctx.gradient_bytes),),
        saved=SavedActivations(),
    )


def _projection_exchange(ctx: LoweringContext) -> tuple[list[Op], list[Op], list[Op], list[Op]]:
    """Communication of the projection over tensor ranks: before and after it, and the same of its backward."""
    out = ctx.tokens * ctx.model.hidden
    leave: list[Op] = [tensor_collective(ctx, "gather projected", "all-gather", out)]
    if not ctx.sequence_parallel:
        return [], leave, [], [tensor_collective(ctx, "sum joined gradients", "all-reduce", 2 * out)]
    inputs_saved = ctx.frozen or ctx.engine.exchanges.inputs_kept
    gather_twice: list[Op] = (
        [] if inputs_saved else [tensor_collective(ctx, "gather joined again", "all-gather", 2 * out)]
    )
    return (
        [tensor_collective(ctx, "gather joined", "all-gather", 2 * out)],
        leave,
        [tensor_collective(ctx, "gather projected gradients", "all-gather", out)],
        [*gather_twice, tensor_collective(ctx, "scatter joined gradients", "reduce-scatter", 2 * out)],
    )
