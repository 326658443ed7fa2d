"""Turn a Scenario into the Program its ranks execute: distinct sections, where they stand, and what ends a step.

Engine steps of a serving instance are the forward of the same sections, with columns for their sizes (`lower_forward`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.records import dataclass
from ridgeline.ir.forward_steps import ForwardSteps
from ridgeline.ir.program import Program, Section, SectionKey, SectionRole
from ridgeline.ir.tensors import Tensor
from ridgeline.lowering.context import Degrees, ForwardWork, LoweringContext, lowering_context
from ridgeline.lowering.encoders import lower_audio, lower_encoder, lower_vision
from ridgeline.lowering.ends import lower_embedding, lower_head
from ridgeline.lowering.placements import data_parallel_split, section_tensors
from ridgeline.lowering.plan_columns import PlanColumns, plan_columns
from ridgeline.lowering.sections import lower_block, lower_prediction
from ridgeline.lowering.step_ops import step_ops
from ridgeline.models.spec import Moe
from ridgeline.plan.engine import RecomputeKind
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import virtual_stages_by_rank
from ridgeline.plan.workload import Prefill

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


def sections_of(ctx: LoweringContext) -> tuple[Section, ...]:
    """The sections of a structure, in the order of `section_keys`."""
    sections: dict[SectionKey, Section] = {EMBEDDING: lower_embedding(ctx), HEAD: lower_head(ctx)}
    for key in section_keys(ctx):
        if key.role is SectionRole.BLOCK:
            sections[key] = replace(lower_block(ctx, ctx.model.blocks[key.block], _kind(ctx, key)), key=key)
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
        [place.get(SectionKey(SectionRole.BLOCK, block, beyond), -1) for block in range(len(ctx.model.blocks))]
        for beyond in (False, True)
    )
    stages, order, layer = [], ctx.model.order, 0
    for stage, layers in enumerate(placement):
        counts = [0] * len(place)
        middle, end = layer + ctx.recompute.layers_of(stage, layers), layer + layers
        for block in order[layer:middle]:
            counts[recompute_places[block]] += 1
        for block in order[middle:end]:
            counts[remaining_places[block]] += 1
        layer = end
        for key, count in (_before(ctx) if stage == 0 else {}).items():
            counts[place[key]] += count
        for key, count in (_behind(ctx) if stage == len(placement) - 1 else {}).items():
            counts[place[key]] += count
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
