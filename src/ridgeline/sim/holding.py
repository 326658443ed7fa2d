"""Turn sections and their places into what ranks hold, as columns: parameters, activations, workspace, buffers.

Nothing here knows a schedule or how state is sharded: ``memory`` makes moments and peaks of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.ir.ops import Num
from ridgeline.ir.program import Section
from ridgeline.lowering.shape import Shape
from ridgeline.models.spec import Moe
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.sim.kept import kept_of, loss_bytes
from ridgeline.sim.lines import Ranks, summed

Array = NDArray[np.float64]
PARTS = ("inputs", "attention", "mlp", "norms")  # of activations


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes by section and cell, or by cell alone.

    columns   by section and cell: dense, expert and trained parameters, then bytes kept between forward and backward of
              one microbatch, by part or all together
    layer     by section and cell: what its backward takes for itself while it runs; nothing for the two ends
    loss      by cell: the loss at work
    sends     by cell: activations gathered for tensor parallelism and copies for experts; `crossing` those between
              stages, one send and one receive both ways
    head, widest   by cell: parameters of the larger end, and of the largest layer
    tied      by cell: parameters of a tied output matrix, of which the last rank holds a copy of its own where the
              embedding is elsewhere
    norm      parameters of the last norm, which no section holds
    """

    columns: Array
    layer: Array
    loss: Array
    sends: Array
    crossing: Array
    head: Array
    widest: Array
    tied: Array
    norm: float

    def at(self, cells: NDArray[np.int64] | slice) -> Needs:
        """These cells, in this order."""
        taken = {item.name: getattr(self, item.name)[..., cells] for item in fields(self) if item.name != "norm"}
        return Needs(norm=self.norm, **taken)


def needs_of(shape: Shape, sections: Sequence[Section], cells: int) -> Needs:
    """What sections need whose sizes are numbers or arrays over cells."""
    kept = [kept_of(shape, section) for section in sections]
    table = np.empty((3 + len(PARTS), len(sections), cells))
    for place, (item, own) in enumerate(zip(sections, kept, strict=True)):
        stays = (getattr(own, part) for part in PARTS)
        for row, size in enumerate((item.params, item.expert_params, item.trained, *stays)):
            table[row, place] = size
    layers = [_layer(shape, section, item.total) for section, item in zip(sections, kept, strict=True)]
    layers[:2] = [0.0, 0.0]
    boundary = shape.tokens * shape.model.hidden * shape.precision.activations.bytes_per_element
    degrees = shape.degrees
    topk = max((block.ffn.topk for block in shape.model.blocks if isinstance(block.ffn, Moe)), default=0)
    copies = np.where(np.asarray(degrees.ep) > 1, 2 * boundary / degrees.tp * topk, 0.0)
    gathered = np.where(np.asarray(degrees.tp) > 1, boundary, 0.0) if shape.sequence_parallel else 0.0
    params = table[0] + table[1]
    return Needs(
        columns=table,
        layer=np.stack([_column(layer, cells) for layer in layers]),
        loss=_column(loss_bytes(shape, sections[1]), cells),
        sends=_column(gathered + copies, cells),
        crossing=_column(4 * boundary / (degrees.tp if shape.sequence_parallel else 1), cells),
        head=params[:2].max(0),
        widest=params[2:].max(0),
        tied=_column(_tied(shape), cells),
        norm=float(shape.model.norm.params(shape.model.hidden)) if shape.model.norm else 0.0,
    )


def _column(value: Num, cells: int) -> Array:
    return np.full(cells, 1.0) * value


def _layer(shape: Shape, section: Section, kept: Num) -> Num:
    """Bytes one layer's backward needs for itself: what it recomputes, and the gradients inside its widest part."""
    whole = section.whole
    inside = np.maximum(whole.mlp, whole.attention) + whole.inputs
    return kept_of(shape, replace(section, kept=whole)).total - kept + inside


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of ranks, ranks x rows, before sharding has its say; `head` and `widest` of `Needs` by row."""

    dense: Array
    expert: Array
    trained: Array
    head: Array
    widest: Array


def params_of(needs: Needs, ranks: Ranks) -> Params:
    """The parameters of every rank."""
    dense, expert, trained = summed(ranks.counts, needs.columns[:3])
    first, last = ranks.first[:, None], ranks.last[:, None]
    dense = dense + last * (needs.norm + ~first * needs.tied)
    return Params(dense=dense, expert=expert, trained=trained, head=needs.head, widest=needs.widest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What ranks hold for a microbatch, ranks x rows, before a schedule has its say; `Needs` by row beside it.

    kept   activations on all virtual stages of a rank, by part
    """

    number: Array
    last: NDArray[np.bool_]
    kept: Array
    layer: Array
    loss: Array
    sends: Array
    crossing: Array


def held_of(needs: Needs, ranks: Ranks) -> Held:
    """What every rank holds."""
    layer = np.zeros((len(ranks.number), needs.columns.shape[2]))
    for rank, section in zip(*np.nonzero(ranks.counts), strict=True):
        np.maximum(layer[rank], needs.layer[section], out=layer[rank])
    return Held(
        number=ranks.number[:, None].astype(np.float64),
        last=ranks.last[:, None],
        kept=summed(ranks.counts, needs.columns[3:]),
        layer=layer,
        loss=needs.loss,
        sends=needs.sends,
        crossing=needs.crossing,
    )


def _tied(shape: Shape) -> Num:
    embedding = shape.model.embedding
    size = shape.model.vocab * (embedding.width or shape.model.hidden) if embedding.tied else 0
    return size / shape.degrees.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Bytes a parameter takes, and habits of the software that decide when.

    weights     at rest: a narrow recipe that trains its weights holds them narrow twice, as they are and transposed, or
                wide once, whichever is more; frozen ones are narrow once
    gathered    of a layer that runs with sharded weights; `reduced` the gradient that belongs to it

    Numbers, or columns by row.
    """

    weights: Num
    gradients: Num
    optimizer: Num
    gathered: Num
    reduced: Num
    frozen: bool
    buffered: bool
    compiled: bool
    alone: bool


def widths_of(shape: Shape, scenario: Scenario) -> Widths:
    """The widths of a scenario: the same for every plan of one structure."""
    precision, engine, work = shape.precision, shape.engine, scenario.workload
    gradients = (precision.gradients or engine.gradients).bytes_per_element
    wide, narrow = (kind.bytes_per_element for kind in (precision.weights, precision.compute))
    compiled = engine.launch.mode == "xla"
    return Widths(
        weights=wide if narrow >= wide else narrow if shape.frozen else max(wide, 2 * narrow),
        gradients=gradients,
        optimizer=work.optimizer.bytes_per_param if isinstance(work, Train) else 0.0,
        gathered=wide * (1 if compiled else 2),  # this layer's and the next one's; a compiler gathers one at a time
        reduced=wide if compiled else gradients,
        frozen=shape.frozen,
        buffered="weight-gradient-accumulation" in engine.fuses,
        compiled=compiled,
        alone=scenario.system.chips == 1,
    )
