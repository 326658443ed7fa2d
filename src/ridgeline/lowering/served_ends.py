"""Turn the two ends of a served model into sections: rows of tokens looked up, and logits from which one is sampled."""

from __future__ import annotations

import numpy as np

from ridgeline.ir.ops import Collective, Op, Stream
from ridgeline.ir.program import Section, SectionKey, SectionRole
from ridgeline.lowering.context import LoweringContext, matmul, plain_matmul, stream, tensor_collective
from ridgeline.lowering.ends import lower_embedding
from ridgeline.lowering.served_mixers import steps_of
from ridgeline.models.spec import Head, ModelSpec

LOGIT_BYTES = 4.0  # sampled in 32 bits
SAMPLING = (3.0, 4.0)  # passes over the logits and kernels: cast, temperature, top-k and top-p or argmax


def lower_served_embedding(ctx: LoweringContext) -> Section:
    """Rows of the vocabulary looked up where they are, and summed over tensor ranks."""
    made = lower_embedding(ctx)
    tp = ctx.degrees.tp
    if isinstance(tp, int) and tp == 1:
        return made
    total = tensor_collective(ctx, "sum over ranks", "all-reduce", ctx.tokens * ctx.model.hidden)
    return Section(
        key=made.key, forward=(*made.forward, total), backward_input=(), backward_weight=(), params=made.params
    )


def lower_scoring(ctx: LoweringContext, head: Head) -> Section:
    """A head that is no language model's in an engine step: scores of every token, or of the last of every prompt."""
    model, steps = ctx.model, steps_of(ctx)
    rows = np.maximum(steps.prefills if head.kind == "sequence" else ctx.tokens, 1.0)
    norm: list[Op] = [stream(ctx, "final norm", ctx.tokens * model.hidden, 2.0)] if model.norm else []
    products = [plain_matmul(ctx, "head dense", rows, head.dense / model.hidden, model.hidden)] if head.dense else []
    products += [plain_matmul(ctx, "scores", rows, head.outputs, model.hidden)] if head.outputs else []
    return Section(
        key=SectionKey(SectionRole.HEAD),
        forward=(*norm, *products, stream(ctx, "pooling", rows * model.hidden, 3.0, 3.0)),
        backward_input=(),
        backward_weight=(),
        params=head.outputs * model.hidden + head.dense + head.extra,
    )


def lower_sampling(ctx: LoweringContext) -> Section:
    """Final norm, logits of the last token of every request, gathered over tensor ranks, and sampling."""
    model, tp, own, rows = ctx.model, ctx.degrees.tp, ctx.model.embedding, steps_of(ctx).rows
    if model.head is not None and not model.speaks:
        return lower_scoring(ctx, model.head)
    rows = np.maximum(rows, 1.0)
    each = ctx.engine.vocab_multiple * tp
    padded = np.ceil(model.vocab / each) * each
    narrow = [matmul(ctx, "head projection", rows, own.width, model.hidden)] if own.width else []
    logits = plain_matmul(ctx, "logits", rows, padded / tp, own.width or model.hidden)
    norm: list[Op] = [stream(ctx, "final norm", ctx.tokens * model.hidden, 2.0)] if model.norm else []
    passes, kernels = (more + own.softcap for more in SAMPLING)
    sampling = Stream(label="sampling", stream_bytes=rows * padded * LOGIT_BYTES * passes, kernels=kernels)
    gather: list[Op] = []
    if not (isinstance(tp, int) and tp == 1):
        payload = rows * padded * ctx.precision.activations.bytes_per_element
        gather = [Collective(label="gather logits", kind="all-gather", axis="tp", payload_bytes=payload, ranks=tp)]
    matrix = 0 if own.tied else model.vocab * (own.width or model.hidden) / tp
    return Section(
        key=SectionKey(SectionRole.HEAD),
        forward=(*norm, *narrow, logits, *gather, sampling),
        backward_input=(),
        backward_weight=(),
        params=matrix + own.width * model.hidden + model.vocab * own.head_bias / tp + _dense_params(model),
    )


def _dense_params(model: ModelSpec) -> int:
    """Of the dense layer before a masked language model's logits."""
    return model.head.dense + model.head.extra if model.head else 0
