"""Turn the part of softmax attention between its projections into ops: scores, rotation, exchange of context ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.ir.ops import FLASH_BACKWARD, FLASH_EXTRA, Attend, Collective, Num, Op
from ridgeline.lowering.context import LoweringContext, stream
from ridgeline.models.facts import mean_visible
from ridgeline.models.spec import Attention

SCORE_PASSES = (6.0, 9.0)  # reads and writes of a score matrix, forward and backward, with a fused masked softmax
LOOSE_SCORE_PASSES = (11.0, 14.0)  # the same, scale, mask, softmax and dropout each on their own
Passes = tuple[Sequence[Op], Sequence[Op]]
"""Ops of the forward, and of the input gradient."""


def scores(ctx: LoweringContext, heads: int, qk: int, value: int, seen: tuple[int, bool] = (0, False)) -> Passes:
    """Forward and backward of the score part. Flash executes what is visible; unfused all of it, through memory.

    Documents that fill a sequence together do not see each other: `ctx.span` tokens are all there is to see.
    """
    if not ctx.flash:
        return _unfused_scores(ctx, heads, qk, value)
    tokens, tp = ctx.tokens, ctx.degrees.tp
    visible = mean_visible(ctx.span, seen[0], seen[1], ctx.causal, ctx.queries)
    each = 2 * tokens * heads / tp * (qk + value)
    size = ctx.precision.activations.bytes_per_element
    operands = tokens * heads / tp * (2 * qk + 2 * value) * size
    forward, backward = (each * (visible + _edges(ctx, seen) * extra) for extra in FLASH_EXTRA)
    backward *= FLASH_BACKWARD
    return (
        [Attend(label="attention", flops=forward, stream_bytes=operands, head_dim=qk)],
        [
            Attend(
                label="attention dX", flops=backward, stream_bytes=3 * operands, head_dim=qk, backward=True, kernels=2,
            )
        ],
    )  # fmt: skip


def _unfused_scores(ctx: LoweringContext, heads: int, qk: int, value: int) -> Passes:
    tokens, tp, size = ctx.tokens, ctx.degrees.tp, ctx.precision.activations.bytes_per_element
    forward = 2 * tokens * heads / tp * (qk + value) * float(ctx.keys)
    operands = tokens * heads / tp * (2 * qk + 2 * value) * size
    passes = SCORE_PASSES if "masked-softmax" in ctx.fuses else LOOSE_SCORE_PASSES
    matrix = tokens * ctx.keys * heads / tp * size
    kernels = 10 if "masked-softmax" in ctx.fuses else 14  # transposes and dropout among them
    return (
        [
            Attend(
                label="attention", flops=forward, stream_bytes=operands + passes[0] * matrix,
                head_dim=qk, flash=False, kernels=kernels,
            )
        ],
        [
            Attend(
                label="attention dX", flops=2 * forward, stream_bytes=2 * operands + passes[1] * matrix,
                head_dim=qk, backward=True, flash=False, kernels=kernels + 6,
            )
        ],
    )  # fmt: skip


def _edges(ctx: LoweringContext, seen: tuple[int, bool]) -> float:
    """Edges of what a query sees that cut through tiles: its own place, and where a sliding window begins, which the
    first queries do not reach: 2 - w / s. Chunks and documents begin where tiles do."""
    window, chunked = seen
    slides = ctx.causal and 0 < window < ctx.span and not chunked
    return 2 - window / ctx.span if slides else 1.0


def rotary(ctx: LoweringContext, elements: Num, mixer: Attention) -> list[Op]:
    """Rotation and norm of queries and keys, where the model has them; the same bytes forward and backward."""
    ops: list[Op] = []
    if mixer.positions == "rope":
        fused = "rotary" in ctx.fuses or "elementwise" in ctx.fuses
        ops.append(stream(ctx, "rotary", elements, 2.0 if fused else 7.0, 1.0 if fused else 6.0))
    if mixer.qk_norm != "none":
        ops.append(stream(ctx, "query-key norm", elements, 2.0, 2.0))
    return ops


def output_gate(ctx: LoweringContext, elements: Num) -> Passes:
    """A sigmoid of the gate times attention's output: two read and one written; backward three read, two written.
    Where nothing fuses them the sigmoid is written and read once more."""
    fused = "elementwise" in ctx.fuses
    passes, back, kernels = (3.0, 5.0, 1.0) if fused else (5.0, 8.0, 2.0)
    return (
        [stream(ctx, "output gate", elements, passes, kernels)],
        [stream(ctx, "output gate dX", elements, back, kernels)],
    )


def context_exchange(ctx: LoweringContext, kv: Num, heads: Num) -> Passes:
    """Context parallelism, forward and backward: keys and values travel round the ring, or heads are exchanged for
    sequence. Backward, keys and values go round again with the gradients they gather."""
    cp, size = ctx.degrees.cp, ctx.precision.activations.bytes_per_element
    if isinstance(cp, int) and cp == 1:
        return [], []
    tokens, tp = ctx.tokens, ctx.degrees.tp
    if ctx.resolved.cp_kind == "ring":
        label, payload = "context ring", tokens * cp * kv / tp * size
        once = Collective(label=label, kind="all-gather", axis="cp", payload_bytes=payload, ranks=cp, stride=tp)
        return [once], [replace(once, label=f"{label} dX", payload_bytes=2 * payload)]
    payload = tokens * (heads + kv) / tp * size
    swap = Collective(
        label="context exchange", kind="all-to-all", axis="cp", payload_bytes=payload, ranks=cp, stride=tp
    )
    return [swap], [swap]
