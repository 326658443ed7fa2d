"""Turn a block that predicts a further token into a section: its entry, its layer, and a loss of its own.

    entry    next token's row and the state before, each behind a norm, side by side through a projection
    layer    a block like any other
    loss     a norm, and logits by the model's own output matrix

Embedding and output matrix are the model's: they are used once more and held, gathered and updated with the two ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.ir.ops import Op
from ridgeline.ir.program import SavedActivations, Section, SectionKey, SectionRole
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.op_builders import (
    casts,
    gradient_casts,
    input_gradient,
    matmul,
    pointwise,
    pointwise_back,
    stream,
    tensor_collective,
    weight_gradient,
)
from ridgeline.models.spec import Mtp
from ridgeline.plan.engine import RecomputeKind


def lower_prediction(ctx: LoweringContext, mtp: Mtp, kind: RecomputeKind, lowered: Sequence[Section]) -> Section:
    """One block of multi-token prediction; `lowered` are the model's embedding, its head, and the block as a layer.

        parameters   block + 2 h h / tp + 3 norms of h        kept beside the block's   3 h: a row, and the two joined

    h = hidden. Frozen weights need no inputs of theirs: the row alone. Entry and layer run again where everything is
    recomputed, which keeps the row alone, too; the state before is what the model's own output keeps.
    """
    rows, head, layer = lowered
    entry = _entry(ctx)
    hidden, size = ctx.model.hidden, ctx.precision.activations.bytes_per_element
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
