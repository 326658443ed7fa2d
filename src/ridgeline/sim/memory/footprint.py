"""Turn sections and their places into what ranks hold, as columns: parameters, activations, workspace, buffers.

Lowering says what the ops of a section need, all at the stored width. Software keeps more where it does not fuse, and
less where it keeps the inputs of narrow products narrow, or where frozen weights need no gradient and so no input.
Nothing here knows a schedule or how state is sharded: ``peak`` makes moments and peaks of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.records import dataclass
from ridgeline.ir.fusions import is_joined
from ridgeline.ir.ops import MatMul, Num
from ridgeline.ir.program import SavedActivations, Section, SectionRole
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.sections import normed_inputs
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.spec import Block, Mlp, Moe
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.sim.closed_form.stage_mix import RankMix, sum_by_count


def saved_activations(ctx: LoweringContext, section: Section) -> SavedActivations:
    """Bytes of one microbatch that a section keeps on the chip or hands to the host, logits apart."""
    block, saved = ctx.block_of(section), section.saved
    if block is None:
        # the head keeps the last layer's output beside the norm of it
        twice = section.role is SectionRole.HEAD and ctx.engine.saves.attention_twice
        return SavedActivations(inputs=saved.total - saved.logits + (saved.inputs if twice else 0.0))
    sizes = _Sizes(ctx, block)
    attention, mlp, norms = saved.attention, saved.mlp, saved.norms
    lora = ctx.lora
    if lora is not None:
        norms = norms - np.minimum(norms, sizes.norm * (sizes.parts - ("qkv" in lora.targets)))
        mlp = mlp - np.minimum(mlp / 2, 0.0 if "down" in lora.targets else sizes.activation)
    share = _narrow_share(ctx)
    if share < 1:
        attention = attention - (1 - share) * np.minimum(attention / 2, sizes.attention_out)
        again = mlp if lora is not None else np.minimum(mlp / 2, sizes.activation + sizes.copies)
        mlp = mlp - (1 - share) * again
        norms = norms - (1 - share) * np.minimum(norms, sizes.norm * (1 if lora is not None else sizes.parts))
    if ctx.engine.saves.attention_twice:
        attention = attention + _where(attention, sizes.attention_out)
    if sizes.gated and not ctx.joins("common activation"):
        mlp = mlp + _where(mlp, sizes.activation)
    return SavedActivations(inputs=saved.inputs, attention=attention, mlp=mlp, norms=norms)


def loss_bytes(ctx: LoweringContext, head: Section) -> Num:
    """Bytes of the loss at work: logits, their log-probabilities and gradients, as far as the software makes them."""
    each = ctx.engine.saves.loss_bytes
    product = next((op for op in head.forward if isinstance(op, MatMul) and op.label == "logits"), None)
    if each is None or product is None:
        return head.saved.logits
    return _where(head.saved.logits, product.m * product.n * each)


def pending_loss_bytes(ctx: LoweringContext, head: Section) -> Num:
    """Bytes that stay of a loss while another is at work: probabilities in 32 bits, or logits as they are stored where
    a compiler holds no more."""
    product = next((op for op in head.forward if isinstance(op, MatMul) and op.label == "logits"), None)
    if product is None:
        return 0.0
    worst = ctx.engine.saves.loss_bytes
    each = 2.0 if worst is not None and worst <= 4.0 else 4.0
    return _where(head.saved.logits, product.m * product.n * each)


def _where(some: Num, size: Num) -> Num:
    """`size` where there is some of it."""
    found: Num = np.where(np.asarray(some) > 0, size, 0.0)
    return found


class _Sizes:
    """Bytes of the tensors of one block that software treats in its own way."""

    __slots__ = ("activation", "attention_out", "copies", "gated", "norm", "parts")

    def __init__(self, ctx: LoweringContext, block: Block) -> None:
        tp, size = ctx.degrees.tp, ctx.precision.activations.bytes_per_element
        tokens = ctx.tokens * size
        self.parts = normed_inputs(block)
        self.norm = ctx.split_tokens * size * ctx.model.hidden
        mixer, ffn = block.mixer, block.ffn
        wide = (mixer_parts(mixer, ctx.model.hidden).output if mixer else 0) or ctx.model.hidden
        self.attention_out = tokens * wide / tp
        self.activation: Num = 0.0
        self.copies: Num = 0.0
        self.gated = isinstance(ffn, (Mlp, Moe)) and ffn.gated
        if isinstance(ffn, Mlp):
            self.activation = tokens * ffn.hidden / tp
        elif isinstance(ffn, Moe):
            self.activation = tokens * (ffn.topk * ffn.hidden + ffn.shared_hidden) / tp
            self.copies = tokens * ffn.topk * (ffn.latent or ctx.model.hidden) / tp


def _narrow_share(ctx: LoweringContext) -> float:
    """Bytes of a kept input of a narrow product over those of a wide one."""
    precision = ctx.precision
    if precision.compute.bits >= precision.activations.bits or ctx.engine.saves.inputs_wide:
        return 1.0
    return precision.compute.bytes_per_element / precision.activations.bytes_per_element


PARTS = ("inputs", "attention", "mlp", "norms")  # of activations
ENDS = (SectionRole.EMBEDDING, SectionRole.HEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionFootprint:
    """Bytes by section and cell, or by cell alone.

    columns   by section and cell: dense, expert and trained parameters, then bytes kept between forward and backward of
              one microbatch, by part or all together
    layer     by section and cell: what its backward takes for itself while it runs; nothing for the two ends
    loss      by cell: the loss at work, and those of further tokens that wait meanwhile
    sends     by cell: activations gathered for tensor parallelism and copies for experts; `crossing` those between
              stages, one send and one receive both ways
    freed     by cell: the input of a virtual stage, where the software does not hold it for the backward
    head, widest   by cell: parameters of the output matrix, tied or not, and of the largest layer; where a compiler
                   gathers matrix by matrix, of the two largest matrices of a layer: one at work, one under way
    shared    by cell: parameters of the embedding, of which the last rank holds a copy of its own where the embedding
              is elsewhere and it needs the rows: as output matrix, or to predict further tokens from
    norm      parameters of the last norm, which no section holds
    """

    columns: Array
    layer: Array
    loss: Array
    sends: Array
    crossing: Array
    freed: Array
    head: Array
    widest: Array
    shared: Array
    norm: float

    def at(self, cells: Index | slice) -> SectionFootprint:
        """These cells, in this order."""
        names = (name for name in SectionFootprint.__slots__ if name != "norm")
        return SectionFootprint(norm=self.norm, **{name: getattr(self, name)[..., cells] for name in names})


def section_footprint(ctx: LoweringContext, sections: Sequence[Section], cells: int) -> SectionFootprint:
    """What sections need whose sizes are numbers or arrays over cells."""
    saved = [saved_activations(ctx, section) for section in sections]
    table = np.empty((3 + len(PARTS), len(sections), cells))
    for place, (item, own) in enumerate(zip(sections, saved, strict=True)):
        stays = (getattr(own, part) for part in PARTS)
        for row, column in enumerate((item.params, item.expert_params, item.trained, *stays)):
            table[row, place] = column
    ends = [section.role in ENDS for section in sections]
    layers = [
        0.0 if end else _layer(ctx, section, item.total)
        for section, item, end in zip(sections, saved, ends, strict=True)
    ]
    head = [section.role for section in sections].index(SectionRole.HEAD)
    size = ctx.precision.activations.bytes_per_element
    boundary, stage_input = ctx.tokens * ctx.model.hidden * size, ctx.split_tokens * ctx.model.hidden * size
    degrees = ctx.degrees
    topk = max((block.ffn.topk for block in ctx.model.blocks if isinstance(block.ffn, Moe)), default=0)
    copies = np.where(np.asarray(degrees.ep) > 1, 2 * boundary / degrees.tp * topk, 0.0)
    gathered = np.where(np.asarray(degrees.tp) > 1, boundary, 0.0) if ctx.split_activations else 0.0
    params = table[0] + table[1]
    return SectionFootprint(
        columns=table,
        layer=np.stack([_column(layer, cells) for layer in layers]),
        loss=_column(_losses(ctx, sections[head]), cells),
        sends=_column(gathered + copies, cells),
        crossing=_column(4 * boundary / (degrees.tp if ctx.split_activations else 1), cells),
        freed=_column(stage_input if ctx.engine.saves.stage_inputs_freed else 0.0, cells),
        head=params[head] + _column(_rows(ctx) if ctx.model.embedding.tied else 0, cells),
        widest=_widest(ctx, sections, params, cells),
        shared=_column(_rows(ctx) if ctx.model.embedding.tied or ctx.model.mtp else 0, cells),
        norm=float(ctx.model.norm.params(ctx.model.hidden)) if ctx.model.norm else 0.0,
    )


def _widest(ctx: LoweringContext, sections: Sequence[Section], params: Array, cells: int) -> Array:
    layers = [place for place, item in enumerate(sections) if item.role not in ENDS]
    if ctx.engine.launch.mode != "xla":
        return np.asarray(params[layers].max(0))
    found = np.zeros(cells)
    for place in layers:
        products = [op for op in sections[place].forward if isinstance(op, MatMul)]
        matrices = np.array([_column(op.k * op.n * op.groups, cells) for op in products] or [np.zeros(cells)])
        found = np.maximum(found, np.minimum(np.sort(matrices, axis=0)[-2:].sum(0), params[place]))
    return found


def _column(value: Num, cells: int) -> Array:
    return np.full(cells, 1.0) * value


def _layer(ctx: LoweringContext, section: Section, saved: Num) -> Num:
    """Bytes one layer's backward needs for itself: what it recomputes, and the gradients inside its widest part."""
    whole = section.saved_without_recompute
    inside = np.maximum(whole.mlp, whole.attention) + whole.inputs
    return saved_activations(ctx, replace(section, saved=whole)).total - saved + inside


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParams:
    """Parameters of ranks, ranks x rows, before sharding has its say; `head` only of the last, `widest` by row."""

    dense: Array
    expert: Array
    trained: Array
    head: Array
    widest: Array


def rank_params(needs: SectionFootprint, ranks: RankMix) -> RankParams:
    """The parameters of every rank."""
    dense, expert, trained = sum_by_count(ranks.counts, needs.columns[:3])
    first, last = ranks.first[:, None], ranks.last[:, None]
    dense = dense + last * (needs.norm + ~first * needs.shared)
    return RankParams(dense=dense, expert=expert, trained=trained, head=needs.head * last, widest=needs.widest)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFootprint:
    """What ranks hold for a microbatch, ranks x rows, before a schedule has its say; `SectionFootprint` by row with it.

    kept   activations on all virtual stages of a rank, by part
    """

    number: Array
    last: Mask
    saved: Array
    layer: Array
    loss: Array
    sends: Array
    crossing: Array
    freed: Array


def rank_footprint(needs: SectionFootprint, ranks: RankMix) -> RankFootprint:
    """What every rank holds."""
    layer = np.zeros((len(ranks.number), needs.columns.shape[2]))
    for rank, section in zip(*np.nonzero(ranks.counts), strict=True):
        np.maximum(layer[rank], needs.layer[section], out=layer[rank])
    return RankFootprint(
        number=ranks.number[:, None].astype(np.float64),
        last=ranks.last[:, None],
        saved=sum_by_count(ranks.counts, needs.columns[3:]),
        layer=layer,
        loss=needs.loss,
        sends=needs.sends,
        crossing=needs.crossing,
        freed=needs.freed,
    )


def _losses(ctx: LoweringContext, head: Section) -> Num:
    ahead = ctx.model.mtp.depth if ctx.model.mtp else 0
    return loss_bytes(ctx, head) + (ahead * pending_loss_bytes(ctx, head) if ahead else 0)


def _rows(ctx: LoweringContext) -> Num:
    """Parameters of the embedding's rows on one rank, learned positions apart."""
    return ctx.model.vocab * (ctx.model.embedding.width or ctx.model.hidden) / ctx.degrees.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesPerParam:
    """Bytes a parameter takes, and habits of the software that decide when.

    weights     at rest: a narrow recipe that trains its weights holds them narrow twice, as they are and transposed, or
                wide once, whichever is more; frozen ones are narrow once
    master      of a master copy that is cast where it is used, so that no narrow weights are at rest beside it, unless
                it is sharded and they are not; 0 where both are held
    gathered    of a layer that runs with sharded weights; `reduced` the gradient that belongs to it

    Numbers, or columns by row.
    """

    weights: Num
    gradients: Num
    optimizer: Num
    master: Num
    gathered: Num
    reduced: Num
    frozen: bool
    buffered: bool
    compiled: bool
    alone: bool


def bytes_per_param(ctx: LoweringContext, scenario: Scenario) -> BytesPerParam:
    """The widths of a scenario: the same for every plan of one structure."""
    precision, engine, work = ctx.precision, ctx.engine, scenario.workload
    gradients = ctx.resolved.gradients.bytes_per_element
    wide, narrow = (kind.bytes_per_element for kind in (precision.weights, precision.compute))
    compiled = engine.launch.mode == "xla"
    master = work.optimizer.master if isinstance(work, Train) and compiled and not ctx.frozen else None
    return BytesPerParam(
        weights=wide if narrow >= wide else narrow if ctx.frozen else max(wide, 2 * narrow),
        gradients=gradients,
        optimizer=work.optimizer.bytes_per_param if isinstance(work, Train) else 0.0,
        master=master.bytes_per_element if master else 0.0,
        gathered=wide * (1 if compiled else 2),  # this layer's and the next one's; a compiler gathers one at a time
        reduced=wide if compiled else gradients,
        frozen=ctx.frozen,
        buffered=is_joined(engine.fuses, "gradient sum"),
        compiled=compiled,
        alone=scenario.system.chips == 1,
    )
