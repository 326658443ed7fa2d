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
from ridgeline.ir.program import Kept, Section
from ridgeline.lowering.mixers import casts, gradient_bytes, gradient_casts
from ridgeline.lowering.shape import Shape, input_gradient, matmul, stream, tensor_collective, weight_gradient
from ridgeline.models.spec import Mtp
from ridgeline.plan.engine import RecomputeKind


def lower_prediction(shape: Shape, mtp: Mtp, kind: RecomputeKind, lowered: Sequence[Section]) -> Section:
    """One block of multi-token prediction; `lowered` are the model's embedding, its head, and the block as a layer.

        parameters   block + 2 h h / tp + 3 norms of h        kept beside the block's   3 h: a row, and the two joined

    h = hidden. Frozen weights need no inputs of theirs: the row alone. Entry and layer run again where everything is
    recomputed, which keeps the row alone, too; the state before is what the model's own output keeps.
    """
    rows, head, layer = lowered
    entry = _entry(shape)
    hidden, size = shape.model.hidden, shape.precision.activations.bytes_per_element
    params = 2 * hidden * hidden / shape.degrees.tp + 3 * mtp.block.norm.params(hidden)
    again = (*entry.forward, *layer.recompute) if kind == "full" else layer.recompute
    joined = (1 if shape.frozen else 3) * shape.split_tokens * hidden * size
    beside = head.kept.inputs + (0 if kind == "full" else joined)
    return Section(
        name="prediction block",
        forward=(*rows.forward, *entry.forward, *layer.forward, *head.forward),
        backward_input=(*head.backward_input, *layer.backward_input, *entry.backward_input),
        backward_weight=(
            *head.backward_weight, *layer.backward_weight, *entry.backward_weight, *rows.backward_weight,
        ),
        recompute=again,
        params=layer.params + params,
        expert_params=layer.expert_params,
        trained=layer.trained + (0 if shape.frozen else params),
        kept=replace(layer.kept, norms=layer.kept.norms + beside),
        whole=replace(layer.whole, norms=layer.whole.norms + head.kept.inputs + joined),
    )  # fmt: skip


def _entry(shape: Shape) -> Section:
    """Two norms and a projection from twice the width, whose columns tensor ranks split: inputs are gathered along the
    sequence, outputs along the width. Backward, every rank has the whole gradient or gathers it first."""
    tokens, hidden = shape.tokens, shape.model.hidden
    elements = shape.split_tokens * hidden
    fused = "norm" in shape.fuses or "elementwise" in shape.fuses
    passes, back, kernels = (2.0, 4.0, 1.0) if fused else (6.0, 9.0, 5.0)
    project = matmul(shape, "projection", tokens, hidden / shape.degrees.tp, 2 * hidden)
    split = not (isinstance(shape.degrees.tp, int) and shape.degrees.tp == 1)
    enter, leave, back_in, back_out = _around(shape) if split else ([], [], [], [])
    return Section(
        name="entry",
        forward=(
            stream(shape, "entry norms", 2 * elements, passes, 2 * kernels),
            stream(shape, "join", 2 * elements, 2.0),
            *casts(shape, [project]),
            *enter,
            project,
            *leave,
        ),
        backward_input=(
            *back_in,
            *gradient_casts(shape, [project]),
            input_gradient(project),
            *back_out,
            stream(shape, "join dX", 2 * elements, 2.0),
            stream(shape, "entry norms dX", 2 * elements, back, 2 * (kernels + 1)),
        ),
        backward_weight=() if shape.frozen else (weight_gradient(project, gradient_bytes(shape)),),
        kept=Kept(),
    )


def _around(shape: Shape) -> tuple[list[Op], list[Op], list[Op], list[Op]]:
    """Communication of the projection over tensor ranks: before and after it, and the same of its backward."""
    out = shape.tokens * shape.model.hidden
    leave: list[Op] = [tensor_collective(shape, "gather projected", "all-gather", out)]
    if not shape.sequence_parallel:
        return [], leave, [], [tensor_collective(shape, "sum joined gradients", "all-reduce", 2 * out)]
    again: list[Op] = [] if shape.frozen else [tensor_collective(shape, "gather joined again", "all-gather", 2 * out)]
    return (
        [tensor_collective(shape, "gather joined", "all-gather", 2 * out)],
        leave,
        [tensor_collective(shape, "gather projected gradients", "all-gather", out)],
        [*again, tensor_collective(shape, "scatter joined gradients", "reduce-scatter", 2 * out)],
    )
