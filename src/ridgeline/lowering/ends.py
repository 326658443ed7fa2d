"""Turn the two ends of a model, embedding and output head, into sections on one rank: of a microbatch, or of engine
steps, which look up rows and sample from the logits of the last token of every request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ridgeline.ir.fusions import op_passes
from ridgeline.ir.ops import Collective, MatMul, Num, Op, Stream
from ridgeline.ir.program import SavedActivations, Section, SectionKey, SectionRole
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.op_builders import (
    Boundary,
    adapters,
    input_gradient,
    matmul,
    plain_matmul,
    pointwise,
    pointwise_back,
    steps_of,
    stream,
    tensor_boundary,
    tensor_collective,
    weight_gradient,
)
from ridgeline.models.spec import Head, LatentSpace

LOSS_BYTES = 4  # of a token's largest logit, of its sum, of its target's: in 32 bits
# passes over logits of 16 bits, forward and backward, of Megatron's loss over a split vocabulary, op by op in 32 bits:
# cast (6 bytes), maximum (4), difference (8), exponential (8), sum (4), quotient (8); gradient scaled (8) and cast back
SPLIT_LOSS = (19.0, 7.0)
LOGIT_BYTES = 4.0  # sampled in 32 bits
SAMPLING = (3.0, 4.0)  # passes over the logits and kernels: cast, temperature, top-k and top-p or argmax


def lower_embedding(ctx: LoweringContext) -> Section:
    """What stands before the first layer: token rows, or patches of latents. Engines sum rows over tensor ranks in
    every step."""
    space = ctx.model.latent_space
    section = _token_rows(ctx) if space is None else _latent_patches(ctx, space)
    if ctx.forward is None or (isinstance(ctx.degrees.tp, int) and ctx.degrees.tp == 1):
        return section
    rows = tensor_collective(ctx, "sum over ranks", "all-reduce", ctx.tokens * ctx.model.hidden)
    return replace(section, forward=(*section.forward, rows))


def _token_rows(ctx: LoweringContext) -> Section:
    """Looking up token rows, and adding up their gradients; a projection where rows are narrower than the model, a norm
    where it has one.

        parameters   vocab w / tp  +  positions h  +  w h where w differs  +  norm  +  further rows / tp and weights

    w = width of a row, h = hidden.
    """
    model, tp, embedding = ctx.model, ctx.degrees.tp, ctx.model.embedding
    width = embedding.width or model.hidden
    elements = ctx.split_tokens * width
    forward: list[Op] = [stream(ctx, "embedding", elements, 2.0, 2.0)]
    inputs: list[Op] = []
    weights: list[Op] = [] if ctx.frozen else [stream(ctx, "embedding dW", elements, 4.0, 3.0)]
    params = model.vocab * width / tp + embedding.positions * model.hidden
    saved_bytes = ctx.split_tokens * 8
    if embedding.width:
        project = matmul(ctx, "embedding projection", ctx.split_tokens, model.hidden, embedding.width)
        forward.append(project)
        inputs.append(input_gradient(project))
        weights = weights if ctx.frozen else [weight_gradient(project, ctx.gradient_bytes), *weights]
        params = params + embedding.width * model.hidden
        saved_bytes = saved_bytes + elements * ctx.element_bytes
    if embedding.further_rows:
        looked_up = stream(ctx, "further rows", ctx.split_tokens * embedding.further_rows / model.vocab, 2.0, 2.0)
        forward.append(looked_up)
        weights = weights if ctx.frozen else [looked_up, *weights]
        params = params + embedding.further_rows / tp
    if embedding.further_weights:
        more = matmul(
            ctx, "further projections", ctx.split_tokens, embedding.further_weights / model.hidden, model.hidden
        )
        forward.append(more)
        inputs.append(input_gradient(more))
        weights = weights if ctx.frozen else [weight_gradient(more, ctx.gradient_bytes), *weights]
        params = params + embedding.further_weights
        saved_bytes = saved_bytes + ctx.split_tokens * model.hidden * ctx.element_bytes
    if embedding.norm is not None:
        norm_elements = ctx.split_tokens * model.hidden
        forward.append(pointwise(ctx, "norm", norm_elements, label="embedding norm"))
        inputs.insert(0, pointwise_back(ctx, "norm", norm_elements, label="embedding norm dX"))
        params = params + embedding.norm.params(model.hidden)
        saved_bytes = saved_bytes + norm_elements * ctx.element_bytes
    border = tensor_boundary(ctx) if ctx.engine.exchanges.ends else Boundary()
    section = Section(
        key=SectionKey(SectionRole.EMBEDDING),
        forward=(*forward, *border.exit),
        backward_input=(*border.exit_gradient, *inputs),
        backward_weight=tuple(weights),
        params=params,
        trained=0 if ctx.frozen else params,
        saved=SavedActivations(inputs=saved_bytes),
    )
    return _adapted_rows(ctx, section, width)


def head_border(ctx: LoweringContext) -> tuple[Sequence[Op], Sequence[Op], Sequence[Op]]:
    """Into the logits of each rank's part of the vocabulary, the same of the gradient, and what the loss of split
    logits exchanges: the largest logit, the sum of exponentials and the target's, 4 bytes a token each."""
    if not ctx.engine.exchanges.ends or (isinstance(ctx.degrees.tp, int) and ctx.degrees.tp == 1):
        return (), (), ()
    border = tensor_boundary(ctx)
    loss_reduce = Collective(
        label="loss", kind="all-reduce", axis="tp", payload_bytes=ctx.tokens * LOSS_BYTES, ranks=ctx.degrees.tp
    )
    return border.entry, border.entry_gradient, (loss_reduce,) * 3


def _adapted_rows(ctx: LoweringContext, section: Section, width: int) -> Section:
    """An adapter of the embedding: narrow rows looked up, and a product that widens them."""
    if ctx.lora is None or "embedding" not in ctx.lora.targets:
        return section
    rank = ctx.lora.rank
    rows = stream(ctx, "embedding adapter in", ctx.split_tokens * rank, 2.0)
    widen = plain_matmul(ctx, "embedding adapter out", ctx.split_tokens, width, rank)
    return replace(
        section,
        forward=(*section.forward, rows, widen),
        backward_weight=(*section.backward_weight, input_gradient(widen), weight_gradient(widen, ctx.gradient_bytes)),
        trained=rank * (ctx.model.vocab / ctx.degrees.tp + width),
    )


def _latent_patches(ctx: LoweringContext, space: LatentSpace) -> Section:
    """Patches of latents, text and timestep on their way into the layers; noise and text need no gradient."""
    hidden, rows = ctx.model.hidden, ctx.sequences
    products: list[MatMul] = [plain_matmul(ctx, "patches", ctx.split_tokens, hidden, space.inputs)]
    if space.text and space.per_text:
        products.append(plain_matmul(ctx, "text", rows * space.text, hidden, space.per_text / hidden))
    if space.per_step:
        products.append(plain_matmul(ctx, "timestep", rows, hidden, space.per_step / hidden))
    noise: Op = stream(ctx, "noise", ctx.split_tokens * space.inputs, 6.0, 6.0)
    return Section(
        key=SectionKey(SectionRole.EMBEDDING),
        forward=(noise, *products),
        backward_input=(),
        backward_weight=() if ctx.frozen else tuple(weight_gradient(op, ctx.gradient_bytes) for op in products),
        params=space.other_params,
        trained=0 if ctx.frozen else space.other_params,
        saved=SavedActivations(inputs=sum(op.m * op.k for op in products) * ctx.element_bytes),
    )


def lower_head(ctx: LoweringContext) -> Section:
    """What stands behind the last layer: logits of the vocabulary, or the head that the model has instead."""
    head = ctx.model.head
    if head is not None and head.kind != "language":
        return _scoring_head(ctx, head)
    section = _language_head(ctx) if ctx.forward is None else _sampling_head(ctx)
    return section if head is None else _with_dense(ctx, section, head)


def head_rows(ctx: LoweringContext, head: Head) -> Num:
    """Tokens that a head works on: all, or one of each sequence; in an engine step the last of every prompt."""
    if ctx.forward is not None:
        return np.maximum(steps_of(ctx).prefills if head.kind == "sequence" else ctx.tokens, 1.0)
    return ctx.degrees.microbatch if head.kind == "sequence" else ctx.tokens


def _with_dense(ctx: LoweringContext, section: Section, head: Head) -> Section:
    """Logits behind a dense layer of their own (a masked language model's transform), on every tensor rank; an engine
    step is priced without it."""
    hidden, params = ctx.model.hidden, section.params + head.dense + head.extra
    if ctx.forward is not None:
        return replace(section, params=params)
    dense = plain_matmul(ctx, "head dense", ctx.tokens, head.dense / hidden, hidden)
    act = stream(ctx, "head activation and norm", ctx.tokens * hidden, 8.0, 4.0)
    return replace(
        section,
        forward=(section.forward[0], dense, act, *section.forward[1:]),
        backward_input=(*section.backward_input, act, input_gradient(dense)),
        backward_weight=(*section.backward_weight, weight_gradient(dense, ctx.gradient_bytes)),
        params=params,
        trained=section.trained if ctx.frozen else params,
        saved=replace(section.saved, inputs=section.saved.inputs + 3 * ctx.tokens * hidden * 2),
    )


def _final_norm(ctx: LoweringContext) -> list[Op]:
    return [stream(ctx, "final norm", ctx.split_tokens * ctx.model.hidden, 2.0)] if ctx.model.norm else []


def _scoring_head(ctx: LoweringContext, head: Head) -> Section:
    """A head that is no language model's: dense layers and scores of every token or of one a sequence, whole on every
    tensor rank. Adapters stand beside it: the head itself is trained even where the rest is frozen."""
    rows, hidden = head_rows(ctx, head), ctx.model.hidden
    products = [plain_matmul(ctx, "head dense", rows, head.dense / hidden, hidden)] if head.dense else []
    products += [plain_matmul(ctx, "scores", rows, head.outputs, hidden)] if head.outputs else []
    loss = stream(ctx, "loss", rows * max(head.outputs, 1), 7.0, 4.0)
    last = loss if ctx.forward is None else stream(ctx, "pooling", rows * hidden, 3.0, 3.0)
    params = head.outputs * hidden + head.dense + head.extra
    return Section(
        key=SectionKey(SectionRole.HEAD),
        forward=(*_final_norm(ctx), *products, last),
        backward_input=(replace(loss, label="loss dX"), *map(input_gradient, reversed(products))),
        backward_weight=tuple(weight_gradient(op, ctx.gradient_bytes) for op in reversed(products)),
        params=params,
        trained=params,
        saved=SavedActivations(inputs=ctx.split_tokens * hidden * 2, logits=rows * head.outputs * 10),
    )


def _logits(ctx: LoweringContext, rows: Num, dense_rows: Num) -> tuple[list[MatMul], MatMul, Num]:
    """A projection to the width of a row where that differs, logits of so many rows, and the padded vocabulary.

    The vocabulary is padded to a multiple of the engine's own times tp (Megatron's --make-vocab-size-divisible-by), so
    that every rank's share of the product is aligned.
    """
    model, tp, width = ctx.model, ctx.degrees.tp, ctx.model.embedding.width
    multiple = ctx.engine.vocab_multiple * tp
    padded_vocab = np.ceil(model.vocab / multiple) * multiple
    narrow = [matmul(ctx, "head projection", dense_rows, width, model.hidden)] if width else []
    return narrow, plain_matmul(ctx, "logits", rows, padded_vocab / tp, width or model.hidden), padded_vocab


def _head_params(ctx: LoweringContext) -> Num:
    """Parameters of a language model's head on one tensor rank: vocab w / tp unless tied, h w where w differs, vocab /
    tp of a bias; w = width of a row."""
    model, tp, embedding = ctx.model, ctx.degrees.tp, ctx.model.embedding
    matrix = 0 if embedding.tied else model.vocab * (embedding.width or model.hidden) / tp
    return matrix + embedding.width * model.hidden + model.vocab * embedding.head_bias / tp


def _sampling_head(ctx: LoweringContext) -> Section:
    """Final norm, logits of the last token of every request, gathered over tensor ranks, and sampling."""
    tp, rows = ctx.degrees.tp, np.maximum(steps_of(ctx).rows, 1.0)
    narrow, logits, padded_vocab = _logits(ctx, rows, rows)
    passes, kernels = (count + ctx.model.embedding.softcap for count in SAMPLING)
    sampling = Stream(label="sampling", stream_bytes=rows * padded_vocab * LOGIT_BYTES * passes, kernels=kernels)
    gather: list[Op] = []
    if not (isinstance(tp, int) and tp == 1):
        gather = [tensor_collective(ctx, "gather logits", "all-gather", rows * padded_vocab)]
    return Section(
        key=SectionKey(SectionRole.HEAD),
        forward=(*_final_norm(ctx), *narrow, logits, *gather, sampling),
        backward_input=(),
        backward_weight=(),
        params=_head_params(ctx),
    )


def _language_head(ctx: LoweringContext) -> Section:
    """Final norm, logits and loss. Logits are worked on in 32 bits by the loss unless it is fused with the product."""
    model, embedding = ctx.model, ctx.model.embedding
    narrow, logits, padded_vocab = _logits(ctx, ctx.tokens, ctx.split_tokens)
    values, loss_joined = ctx.tokens * padded_vocab / ctx.degrees.tp, ctx.joins("loss")
    loss, loss_back = _loss(ctx, values)
    low, adapter_params = adapters(ctx, [logits])
    trained_products = low if ctx.frozen else [logits, *narrow]
    params = _head_params(ctx)
    entry, entry_gradient, loss_exchange = head_border(ctx)
    return Section(
        key=SectionKey(SectionRole.HEAD),
        forward=(*_final_norm(ctx), *narrow, *entry, logits, *low, loss, *loss_exchange),
        backward_input=(
            loss_back, *map(input_gradient, low), input_gradient(logits), *entry_gradient, *map(input_gradient, narrow),
        ),
        backward_weight=tuple(weight_gradient(op, ctx.gradient_bytes) for op in trained_products),
        params=params,
        trained=adapter_params if ctx.frozen else params,
        saved=SavedActivations(
            inputs=ctx.split_tokens * (model.hidden + embedding.width) * 2,
            logits=0 if ctx.joins("logits") else values * (6 if loss_joined else 10),
        ),
    )  # fmt: skip


def _loss(ctx: LoweringContext, values: Num) -> tuple[Stream, Stream]:
    """The loss of so many logits, forward and backward."""
    cost = op_passes(ctx.resolved.fuses, "loss")
    split = ctx.engine.family.startswith("megatron") and not ctx.joins("loss")
    passes, back = SPLIT_LOSS if split else (cost.forward, cost.backward)
    if not ctx.model.embedding.softcap:
        return stream(ctx, "loss", values, passes, cost.kernels), stream(ctx, "loss dX", values, back)
    cap = op_passes(ctx.resolved.fuses, "logit softcap")
    loss = stream(ctx, "loss", values, passes + cap.forward, cost.kernels + cap.kernels)
    return replace(loss, exponentials=2 * values), stream(ctx, "loss dX", values, back)
