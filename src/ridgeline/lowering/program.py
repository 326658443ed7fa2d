"""Turn a Scenario into the Program its ranks execute: distinct sections, where they stand, and what ends a step.

Engine steps of a serving instance are the forward of the same sections, with columns for their sizes (`lower_forward`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import lru_cache

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.records import dataclass
from ridgeline.ir.forward_steps import ForwardSteps
from ridgeline.ir.ops import Attend, MatMul, Op, Stream
from ridgeline.ir.program import Program, SavedActivations, Section, SectionKey, SectionRole, Tensor
from ridgeline.lowering.context import Degrees, ForwardWork, LoweringContext, lowering_context
from ridgeline.lowering.ends import lower_embedding, lower_head
from ridgeline.lowering.op_builders import input_gradient, plain_matmul, stream, weight_gradient
from ridgeline.lowering.placements import data_parallel_split, section_tensors
from ridgeline.lowering.plan_columns import PlanColumns, plan_columns
from ridgeline.lowering.sections import LayerOps, lower_block, lower_layer, lower_prediction, with_recompute
from ridgeline.lowering.step_ops import step_ops
from ridgeline.models.sizing import EncoderInput
from ridgeline.models.spec import Attention, Audio, Block, Encoder, Moe, Vision
from ridgeline.plan.engine import RecomputeKind
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import virtual_stages_by_rank
from ridgeline.plan.workload import Prefill


def lower_encoder(ctx: LoweringContext, encoder: Encoder) -> tuple[Section, Section]:
    """The encoder over the sources of a microbatch, or of the prompts that begin in a step: its ends and a layer."""
    inner = replace(
        ctx,
        model=replace(ctx.model, hidden=encoder.hidden),
        queries=ctx.encoder_tokens,
        keys=ctx.encoder_tokens,
        causal=False,
        document=0,
        forward=_source_work(ctx),
    )
    layer = replace(lower_block(inner, encoder.block, ctx.recompute.kind), key=SectionKey(SectionRole.ENCODER))
    ends = _encoder_ends(inner, encoder)
    return (ends, layer) if inner.forward is None else (_where_begun(inner, ends), _where_begun(inner, layer))


def _where_begun(inner: LoweringContext, section: Section) -> Section:
    """A section whose ops run in the steps in which a request begins; a decode does not read the source again."""
    assert inner.forward is not None
    steps = inner.forward.steps
    there = np.where(steps.prefills > 0, 1.0, 0.0)
    if not there.any():
        return replace(section, forward=())
    ops: list[Op] = []
    for op in section.forward:
        match op:
            case MatMul():
                ops.append(replace(op, m=np.maximum(op.m, 1.0), groups=op.groups * there, launches=op.launches * there))
            case Stream() | Attend():
                ops.append(replace(op, kernels=op.kernels * there))
            case _:
                ops.append(op)
    return replace(section, forward=tuple(ops))


def _source_work(ctx: LoweringContext) -> ForwardWork | None:
    """Steps whose prompts are the sources of requests that begin."""
    if ctx.forward is None:
        return None
    return _prompt_work(ctx.forward, ctx.forward.steps.prefills * ctx.encoder_tokens, ctx.encoder_tokens)


def _prompt_work(work: ForwardWork, tokens: Array, positions: float) -> ForwardWork:
    """Steps of so many prompt tokens that see so many positions; their pairs are half of all, as a chunk's are."""
    none, pairs = 0.0 * tokens, tokens * positions / 2
    steps = replace(work.steps, prefill_tokens=tokens, prefill_pairs=pairs, decodes=none, kv_tokens=none)
    return ForwardWork(steps=steps, tokens=tokens, dp=work.dp)


def _encoder_ends(inner: LoweringContext, encoder: Encoder) -> Section:
    """What stands around the encoder's layers: rows looked up, or convolutions over sound, and a norm at the end.

    Convolutions are products of a position with all of `front`; sound needs no gradient.
    """
    tokens, size = inner.tokens, inner.element_bytes
    elements = tokens * encoder.hidden
    products: list[MatMul] = []
    forward: list[Op] = [stream(inner, "encoder norm", elements, 2.0)]
    if encoder.front:
        products = [plain_matmul(inner, "convolutions", tokens, encoder.hidden, encoder.front / encoder.hidden)]
    else:
        forward.insert(0, stream(inner, "source embedding", elements, 2.0, 2.0))
    weights: list[Op] = [] if inner.frozen else [weight_gradient(op, inner.gradient_bytes) for op in products]
    if not encoder.front and not inner.frozen:
        weights.append(stream(inner, "source embedding dW", elements, 4.0, 3.0))
    return Section(
        key=SectionKey(SectionRole.ENCODER_ENDS),
        forward=(*products, *forward),
        backward_input=(stream(inner, "encoder norm dX", elements, 4.0, 2.0),),
        backward_weight=tuple(weights),
        params=encoder.other_params,
        trained=0 if inner.frozen else encoder.other_params,
        saved=SavedActivations(inputs=elements * 2 * size),
    )


def lower_vision(ctx: LoweringContext, vision: Vision) -> tuple[Section, Section, Section]:
    """The image encoder over the images of a microbatch, on the first stage: its ends, a layer that sees the whole
    view, and one that stays inside its window. Patches see each other both ways."""
    inner = _reading(ctx, vision, ctx.vision_input)
    kind, block = ctx.recompute.kind, _both_ways(vision.block)
    window = max(1, round(ctx.vision_input.window))
    full_view = replace(lower_block(inner, _with_window(block, 0), kind), key=SectionKey(SectionRole.VISION))
    inside = replace(lower_block(inner, _with_window(block, window), kind), key=SectionKey(SectionRole.VISION_WINDOWED))
    if ctx.towers_frozen:
        full_view, inside = _forward_alone(full_view), _forward_alone(inside)
    return _tower_ends(inner, SectionRole.VISION_ENDS, vision, ctx.vision_input), full_view, inside


def lower_audio(ctx: LoweringContext, audio: Audio) -> tuple[Section, Section]:
    """The audio encoder over the sound of a microbatch, on the first stage: its ends and a layer. Positions see
    those of their window both ways."""
    inner = _reading(ctx, audio, ctx.audio_input)
    layer = lower_block(inner, _with_window(_both_ways(audio.block), 0), ctx.recompute.kind)
    layer = replace(_forward_alone(layer) if ctx.towers_frozen else layer, key=SectionKey(SectionRole.AUDIO))
    return _tower_ends(inner, SectionRole.AUDIO_ENDS, audio, ctx.audio_input), layer


def _reading(ctx: LoweringContext, tower: Vision | Audio, read: EncoderInput) -> LoweringContext:
    """The context of an encoder's layers: views take the place of sequences."""
    return replace(
        ctx,
        model=replace(ctx.model, hidden=tower.hidden),
        queries=read.positions,
        keys=read.positions,
        causal=False,
        document=0,
        degrees=replace(ctx.degrees, microbatch=ctx.degrees.microbatch * read.views, cp=1),
        forward=_encoder_work(ctx, read),
    )


def _forward_alone(section: Section) -> Section:
    """A layer that is not trained and that no gradient passes: nothing is saved for one."""
    return Section(
        key=section.key, forward=section.forward, backward_input=(), backward_weight=(), params=section.params
    )  # fmt: skip


def _encoder_work(ctx: LoweringContext, read: EncoderInput) -> ForwardWork | None:
    """Steps whose prompts are the positions that an encoder reads, which come with the prompts' tokens."""
    if ctx.forward is None:
        return None
    work = _prompt_work(ctx.forward, ctx.forward.steps.prefill_tokens * read.total, read.positions)
    return replace(work, tokens=np.maximum(work.tokens, 1.0))


def _both_ways(block: Block) -> Block:
    return replace(block, mixer=replace(block.mixer, causal=False)) if isinstance(block.mixer, Attention) else block


def _tower_ends(inner: LoweringContext, role: SectionRole, tower: Vision | Audio, read: EncoderInput) -> Section:
    """What stands before an encoder's layers and the projector behind them.

        positions * 2 * c e   or   positions * 2 * front,   and   projected * 2 * projector weights      flops forward

    c = numbers of a patch, e = encoder width. No tensor rank splits either. Pixels and sound need no gradient.
    """
    positions, hidden = inner.tokens, tower.hidden
    rows = tower.patch_inputs if isinstance(tower, Vision) else tower.front / hidden
    label = "patch embedding" if isinstance(tower, Vision) else "convolutions"
    projected_rows = positions / read.total * read.projected
    products = [plain_matmul(inner, label, positions, hidden, rows)] if rows else []
    last = [plain_matmul(inner, "projector", projected_rows, tower.projector_params / hidden, hidden)]
    last = last if tower.projector_params else []
    params = tower.projector_params + tower.other_params
    learns = last if inner.towers_frozen else [*products, *last]
    grad = inner.gradient_bytes
    size = inner.element_bytes
    return Section(
        key=SectionKey(role),
        forward=(*products, *last),
        backward_input=() if inner.towers_frozen else tuple(input_gradient(op) for op in last),
        backward_weight=() if inner.frozen else tuple(weight_gradient(op, grad) for op in reversed(learns)),
        params=params,
        trained=0 if inner.frozen else tower.projector_params if inner.towers_frozen else params,
        saved=SavedActivations(inputs=(positions * rows + projected_rows * hidden) * size),
    )


def _with_window(block: Block, window: int) -> Block:
    """The layer with another window; 0: none."""
    return replace(block, mixer=replace(block.mixer, window=window)) if isinstance(block.mixer, Attention) else block


EMBEDDING, HEAD, MTP = (SectionKey(role) for role in (SectionRole.EMBEDDING, SectionRole.HEAD, SectionRole.MTP))
ENCODER = SectionKey(SectionRole.ENCODER_ENDS), SectionKey(SectionRole.ENCODER)
VISION = tuple(SectionKey(role) for role in (SectionRole.VISION_ENDS, SectionRole.VISION, SectionRole.VISION_WINDOWED))
AUDIO = SectionKey(SectionRole.AUDIO_ENDS), SectionKey(SectionRole.AUDIO)


def lower(scenario: Scenario, plans: PlanColumns | None = None, *, tensors: bool = True) -> Program:
    """The program of one scenario; `plans` where its columns are at hand, without `tensors` where only prices count.

    Cost grows with distinct blocks and virtual stages, never with layers or ranks.
    """
    ctx = lowering_context(scenario)
    sections, stages = sections_of(ctx), stages_of(ctx, scenario.placement)
    if tensors:
        sections = tuple(replace(section, tensors=_sharded_tensors(scenario, ctx, section.key)) for section in sections)
    if not ctx.backward:
        return Program(sections=sections, stages=stages)
    plan, counts = scenario.plan, np.array(stages)
    ranks = virtual_stages_by_rank(plan.mesh.pp, plan.schedule.chunks, plan.schedule.name)
    rank_sections = [counts[list(virtual_stages)].sum(0) for virtual_stages in ranks]
    return Program(
        sections=sections, stages=stages, step=step_ops(sections, rank_sections, plans or plan_columns([scenario]))
    )


def _sharded_tensors(scenario: Scenario, ctx: LoweringContext, key: SectionKey) -> tuple[Tensor, ...]:
    """The tensors of a section; under zero3 weights are cut over the shard's ranks too, experts over at most edp."""
    tensors, plan, mesh = section_tensors(ctx, key), scenario.plan, scenario.plan.mesh
    if plan.sharding.shard != "zero3":
        return tensors
    edp = mesh.tp * mesh.cp * mesh.dp // (mesh.ep * mesh.etp)
    few = min(edp, plan.shard_degree)

    def cut(tensor: Tensor) -> Tensor:
        if tensor.kind != "weight":
            return tensor
        expert = any(split.axis == "ep" for split in tensor.splits)
        return data_parallel_split(tensor, few if expert else plan.shard_degree)

    return tuple(map(cut, tensors))


def section_keys(ctx: LoweringContext) -> tuple[SectionKey, ...]:
    """Embedding, head, distinct blocks, multi-token prediction, encoder, image encoder, audio encoder.

    Where recompute stops after some layers each block stands twice: as recompute says, and as the rest runs.
    """
    model = ctx.model
    beyond_recompute = (False,) if ctx.recompute.layers is None else (False, True)
    blocks = (
        SectionKey(SectionRole.BLOCK, index, beyond)
        for index in range(len(model.blocks))
        for beyond in beyond_recompute
    )
    ahead = (MTP,) if model.mtp else ()
    towers = *(VISION if _sees(ctx) else ()), *(AUDIO if _hears(ctx) else ())
    return (EMBEDDING, HEAD, *blocks, *ahead, *(ENCODER if model.encoder else ()), *towers)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _StructureOps:
    """The layers and ends of a structure before anything is recomputed."""

    context: LoweringContext
    embedding: Section
    head: Section
    layers: tuple[LayerOps, ...]

    def serves(self, ctx: LoweringContext) -> bool:
        """Whether another structure differs in recompute alone; arrays of sizes are the same where they are one."""
        degrees = ctx.degrees is self.context.degrees or (
            isinstance(ctx.degrees.tp, int)
            and isinstance(self.context.degrees.tp, int)
            and ctx.degrees == self.context.degrees
        )
        return degrees and all(getattr(ctx, name) == getattr(self.context, name) for name in _DECIDING)


_DECIDING = tuple(item.name for item in fields(LoweringContext) if item.name not in ("degrees", "recompute"))
REMEMBERED = 16  # structures; plans of a search differ in recompute, schedule and sharding more often than in layers
_RECENT: list[_StructureOps] = []


def _structure_ops(ctx: LoweringContext) -> _StructureOps:
    """The ops of a structure; those of the last few are remembered, but for engine steps, whose sizes are their own."""
    recent = next((ops for ops in _RECENT if ops.serves(ctx)), None) if ctx.forward is None else None
    ops = recent or _StructureOps(
        context=ctx,
        embedding=lower_embedding(ctx),
        head=lower_head(ctx),
        layers=tuple(lower_layer(ctx, block) for block in ctx.model.blocks),
    )
    if ctx.forward is None:
        _RECENT[:] = [ops, *(item for item in _RECENT if item is not ops)][:REMEMBERED]
    return ops


def sections_of(ctx: LoweringContext) -> tuple[Section, ...]:
    """The sections of a structure, in the order of `section_keys`."""
    ops = _structure_ops(ctx)
    sections: dict[SectionKey, Section] = {EMBEDDING: ops.embedding, HEAD: ops.head}
    for key in section_keys(ctx):
        if key.role is SectionRole.BLOCK:
            sections[key] = replace(with_recompute(ctx, ops.layers[key.block], _kind(ctx, key)), key=key)
    sections.update(_prediction(ctx, sections))
    if ctx.model.encoder is not None:
        sections.update(zip(ENCODER, lower_encoder(ctx, ctx.model.encoder), strict=True))
    if ctx.model.vision is not None and _sees(ctx):
        sections.update(zip(VISION, lower_vision(ctx, ctx.model.vision), strict=True))
    if ctx.model.audio is not None and _hears(ctx):
        sections.update(zip(AUDIO, lower_audio(ctx, ctx.model.audio), strict=True))
    if not ctx.backward:
        return tuple(forward_alone(sections[key]) for key in section_keys(ctx))
    return tuple(sections[key] for key in section_keys(ctx))


def forward_alone(section: Section) -> Section:
    """The section as prefill and decode run it: no gradients, and nothing saved for any."""
    return Section(
        key=section.key, forward=section.forward, backward_input=(), backward_weight=(), params=section.params,
        expert_params=section.expert_params, tensors=section.tensors,
    )  # fmt: skip


def _kind(ctx: LoweringContext, key: SectionKey) -> RecomputeKind:
    plan = ctx.recompute
    return plan.rest if key.rest else plan.blocks.get(str(key.block), plan.kind)


def _prediction(ctx: LoweringContext, made: dict[SectionKey, Section]) -> Iterator[tuple[SectionKey, Section]]:
    """Multi-token prediction; its block is lowered once where the model has the same one."""
    mtp, plan = ctx.model.mtp, ctx.recompute
    if mtp is None:
        return
    same = next((index for index, block in enumerate(ctx.model.blocks) if block == mtp.block), None)
    same_block = same is not None and plan.layers is None and not plan.blocks
    layer = made[SectionKey(SectionRole.BLOCK, same or 0)] if same_block else lower_block(ctx, mtp.block, plan.kind)
    yield MTP, lower_prediction(ctx, mtp, plan.kind, (made[EMBEDDING], made[HEAD], layer))


def _sees(ctx: LoweringContext) -> bool:
    return ctx.model.vision is not None and ctx.vision_input.views > 0


def _hears(ctx: LoweringContext) -> bool:
    return ctx.model.audio is not None and ctx.audio_input.views > 0


def stages_of(ctx: LoweringContext, placement: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """How often each section stands in each virtual stage, for layers placed so many to a stage."""
    place = {key: index for index, key in enumerate(section_keys(ctx))}
    recompute_places, remaining_places = (
        tuple(place.get(SectionKey(SectionRole.BLOCK, block, beyond), -1) for block in range(len(ctx.model.blocks)))
        for beyond in (False, True)
    )
    before, behind = (
        tuple((place[key], count) for key, count in counts.items()) for counts in (_before(ctx), _behind(ctx))
    )
    layers = tuple((ctx.recompute.layers_of(stage, layers), layers) for stage, layers in enumerate(placement))
    return _stages(layers, tuple(ctx.model.order), (recompute_places, remaining_places), (before, behind), len(place))


Places = tuple[int, ...]
Counts = tuple[tuple[int, int], ...]


@lru_cache(maxsize=4096)
def _stages(
    layers: Counts, order: Places, blocks: tuple[Places, Places], ends: tuple[Counts, Counts], sections: int
) -> tuple[Places, ...]:
    """Counts of sections by stage, from the layers of each: those that recompute, and all of them.

    blocks   the section of each block where it recomputes, and of one of the rest
    ends     sections before the layers of the first stage and behind those of the last, each with its count
    """
    stages, layer = [], 0
    for stage, (recompute, count) in enumerate(layers):
        counts = [0] * sections
        for place, block in enumerate(order[layer : layer + count]):
            counts[blocks[place >= recompute][block]] += 1
        layer += count
        at_ends = (*(ends[0] if stage == 0 else ()), *(ends[1] if stage == len(layers) - 1 else ()))
        for section, repeats in at_ends:
            counts[section] += repeats
        stages.append(tuple(counts))
    return tuple(stages)


def _behind(ctx: LoweringContext) -> dict[SectionKey, int]:
    """What the last stage runs behind its layers; a served model predicts further tokens only where it drafts."""
    if ctx.forward is not None:
        return {HEAD: 1}
    return {HEAD: 1, MTP: ctx.model.mtp.depth} if ctx.model.mtp else {HEAD: 1}


def _before(ctx: LoweringContext) -> dict[SectionKey, int]:
    """What the first stage runs before its layers."""
    vision, audio, encoder = ctx.model.vision, ctx.model.audio, ctx.model.encoder
    counts = {EMBEDDING: 1}
    if encoder is not None:
        counts |= {ENCODER[0]: 1, ENCODER[1]: encoder.layers}
    if vision is not None and _sees(ctx):
        counts |= zip(VISION, (1, vision.layers - vision.windowed, vision.windowed), strict=True)
    if audio is not None and _hears(ctx):
        counts |= {AUDIO[0]: 1, AUDIO[1]: audio.layers}
    return counts


BEYOND = 16.0  # tokens between captured sizes beyond 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardProgram:
    """Sections of engine steps with columns for sizes, and how often each stands in each pipeline stage."""

    ctx: LoweringContext
    sections: tuple[Section, ...]
    stages: tuple[tuple[int, ...], ...]
    graphed: Mask


def captured_size(tokens: Array) -> Array:
    """The captured graph that a decode step of so many tokens runs in: 1, 2, 4, then every 8 to 256 and every 16.

    >>> captured_size(np.array([1.0, 3.0, 5.0, 100.0, 300.0])).tolist()
    [1.0, 4.0, 8.0, 104.0, 304.0]
    """
    few = np.where(tokens <= 2, np.ceil(tokens), np.where(tokens <= 4, 4.0, np.ceil(tokens / 8) * 8))
    return np.where(tokens <= 256, few, np.ceil(tokens / BEYOND) * BEYOND)


def expert_degrees(scenario: Scenario) -> Degrees:
    """Degrees of a serving instance: its experts stand on all ranks of a stage (tp x dp), ep of them apart and each
    split over the rest."""
    mesh = scenario.plan.mesh
    moe = any(isinstance(block.ffn, Moe) for block in scenario.model.blocks)
    etp = max(mesh.etp, mesh.tp * mesh.dp // mesh.ep) if moe else 1
    return Degrees(tp=mesh.tp, cp=1, ep=mesh.ep if moe else 1, etp=etp)


def lower_forward(scenario: Scenario, steps: ForwardSteps, graph_batch: int = 0) -> ForwardProgram:
    """The sections of engine steps; decode-only steps of at most `graph_batch` tokens run padded to a captured size."""
    in_graph = (steps.prefill_tokens == 0) & (steps.tokens <= graph_batch)
    tokens = np.where(in_graph, captured_size(steps.tokens), steps.tokens)
    work = ForwardWork(steps=steps, tokens=np.maximum(tokens, 1.0), dp=scenario.plan.mesh.dp)
    share = 1 / scenario.workload.seq if isinstance(scenario.workload, Prefill) else 0.0
    ctx = LoweringContext(
        model=scenario.model,
        engine=scenario.engine,
        resolved=resolve(scenario),
        degrees=expert_degrees(scenario),
        queries=1,
        encoder_tokens=scenario.encoder_tokens,
        vision_input=scenario.vision_input.times(share),
        audio_input=scenario.audio_input.times(share),
        keys=1,
        backward=False,
        forward=work,
    )
    return ForwardProgram(
        ctx=ctx, sections=sections_of(ctx), stages=stages_of(ctx, scenario.placement), graphed=in_graph
    )
