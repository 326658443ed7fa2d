"""What stands between the projections of a mixer, on one rank, and the products around it.

A product whose outputs tensor ranks split needs nothing; one whose inputs they split is summed over ranks; one that
none splits runs whole on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ridgeline.core.records import dataclass
from ridgeline.ir.forward_steps import ForwardSteps
from ridgeline.ir.ops import MatMul, Num, Op
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.op_builders import Passes, matmul
from ridgeline.models.parts import Columns, MixerParts, Projection
from ridgeline.plan.serving_settings import BARE


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreOps:
    """A mixer between its norm and its residual; passes are forward and backward.

    into, out      products before and behind the core, in the form it wants them
    before, behind pointwise work between the products and the core
    core           scores or scan
    exchange       communication of context ranks, or sums over tensor ranks that the core needs
    saved          bytes saved for the backward, score matrices apart, which are `score_bytes`
    up, saved_up   ops out of a latent that recompute of `latent-up` runs again, and the bytes it frees
    """

    into: Sequence[MatMul]
    out: Sequence[MatMul]
    core: Passes
    before: Passes = ((), ())
    behind: Passes = ((), ())
    exchange: Passes = ((), ())
    saved: Num = 0
    score_bytes: Num = 0
    up: tuple[Op, ...] = ()
    saved_up: Num = 0


def steps_of(ctx: LoweringContext) -> ForwardSteps:
    """The steps of a context that has them."""
    assert ctx.forward is not None
    return ctx.forward.steps


def rank_cores(ctx: LoweringContext) -> int:
    """Cores of a chip that are tensor ranks of their own in an engine's step."""
    return 1 if ctx.forward is None else (ctx.engine.serves or BARE).rank_cores


def padded_heads(ctx: LoweringContext, heads: int) -> Num:
    """Query heads of all ranks together: padded to a multiple of them where tensor ranks are cores of a chip."""
    ranks = ctx.degrees.tp * rank_cores(ctx)
    return heads if rank_cores(ctx) == 1 else np.ceil(heads / ranks) * ranks


def head_copies(ctx: LoweringContext, kv_heads: int) -> Num:
    """How often every key-value head is held: ranks beyond the heads hold a whole one each, and so does every core
    where tensor ranks are cores of a chip."""
    ranks = ctx.degrees.tp * rank_cores(ctx)
    if rank_cores(ctx) == 1:
        return np.maximum(1.0, ranks / kv_heads)
    return np.ceil(kv_heads / ranks) * ranks / kv_heads


def product(ctx: LoweringContext, projection: Projection, rows: Num | None = None) -> MatMul:
    """A projection on one rank, over all its tokens unless `rows` says which."""
    tp, dealt = ctx.degrees.tp, projection.dealt and ctx.forward is None
    if rows is None:
        rows = ctx.split_tokens if dealt else ctx.tokens
    outputs: Num = sum(_width(ctx, part) for part in projection.columns)
    inputs: Num = projection.inputs
    if projection.heads:
        inputs = inputs * padded_heads(ctx, projection.heads) / projection.heads
    match projection.split:
        case "outputs":
            return matmul(ctx, projection.label, rows, outputs / tp, inputs)
        case "inputs":
            return matmul(ctx, projection.label, rows, outputs, inputs / tp)
        case "groups":
            return matmul(ctx, projection.label, rows, outputs, inputs, projection.groups / tp)
        case "none":
            return matmul(ctx, projection.label, rows, outputs, inputs)


def _width(ctx: LoweringContext, part: Columns) -> Num:
    """Outputs of all ranks together, padded or copied heads among them."""
    if part.shared_heads:
        return part.outputs * head_copies(ctx, part.shared_heads)
    return part.outputs * padded_heads(ctx, part.heads) / part.heads if part.heads else part.outputs


def saved_bytes(ctx: LoweringContext, parts: MixerParts) -> Num:
    """Bytes that the backward reads again, as the parts of a mixer say."""
    elements_saved, tp = parts.saved, ctx.degrees.tp
    copies = head_copies(ctx, parts.shared[1]) if elements_saved.kv else 0
    split = ctx.tokens * (elements_saved.split + elements_saved.kv * copies) / tp
    dealt = ctx.tokens if ctx.engine.exchanges.inputs_kept else ctx.split_tokens
    elements = dealt * elements_saved.latents + split + ctx.tokens * elements_saved.whole
    return elements * ctx.precision.activations.bytes_per_element


def resident_params(ctx: LoweringContext, parts: MixerParts) -> Num:
    """Parameters of a mixer on one tensor rank: its share, and copies of what ranks hold alike.

        (all + (c - 1) s + (tp - 1) w) / tp

    c = max(1, tp / G): ranks with the same of G key-value heads, s = parameters of those heads, w = parameters that
    every rank holds.
    """
    tp, (shared, heads) = ctx.degrees.tp, parts.shared
    more = np.maximum(0.0, tp / heads - 1) * shared + (tp - 1) * parts.replicated
    return (parts.params + more) / tp


def where_any(size: Num) -> Num:
    """1 where there is something to do, else 0."""
    return np.where(np.asarray(size) > 0, 1.0, 0.0)


def running(op: MatMul, active: Num | None = None) -> MatMul:
    """A product that steps without rows, or those that are not `active`, do not run."""
    there = where_any(op.m) if active is None else active
    return replace(op, m=np.maximum(op.m, 1.0), groups=op.groups * there, launches=op.launches * there)
