"""Turn the two ends of a model, embedding and output head, into sections of one microbatch on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ridgeline.ir.ops import Collective, Num, Op
from ridgeline.ir.program import SavedActivations, Section, SectionKey, SectionRole
from ridgeline.lowering.context import (
    LoweringContext,
    adapters,
    input_gradient,
    matmul,
    plain_matmul,
    stream,
    weight_gradient,
)
from ridgeline.lowering.modulation import lower_latents
from ridgeline.lowering.tensor_boundary import Boundary, tensor_boundary
from ridgeline.models.spec import Head

LOSS_BYTES = 4  # of a token's largest logit, of its sum, of its target's: in 32 bits
# passes over logits of 16 bits, forward and backward: of one kernel; of PyTorch's loss; of Megatron's over a split
# vocabulary, op by op in 32 bits: cast (6 bytes), maximum (4), difference (8), exponential (8), sum (4), quotient (8);
# gradient scaled (8) and cast back (6)
FUSED_LOSS, UNFUSED_LOSS, SPLIT_LOSS = (6.0, 3.0), (14.0, 3.0), (19.0, 7.0)


def lower_embedding(ctx: LoweringContext) -> Section:
    """Looking up token rows, and adding up their gradients; a projection where rows are narrower than the model, a norm
    where it has one.

        parameters   vocab w / tp  +  positions h  +  w h where w differs  +  norm  +  further rows / tp and weights

    w = width of a row, h = hidden.
    """
    model, tp, own = ctx.model, ctx.degrees.tp, ctx.model.embedding
    if model.latent_space is not None:
        return lower_latents(ctx, model.latent_space)
    width = own.width or model.hidden
    elements = ctx.split_tokens * width
    forward: list[Op] = [stream(ctx, "embedding", elements, 2.0, 2.0)]
    inputs: list[Op] = []
    weights: list[Op] = [] if ctx.frozen else [stream(ctx, "embedding dW", elements, 4.0, 3.0)]
    params = model.vocab * width / tp + own.positions * model.hidden
    saved = ctx.split_tokens * 8
    if own.width:
        project = matmul(ctx, "embedding projection", ctx.split_tokens, model.hidden, own.width)
        forward.append(project)
        inputs.append(input_gradient(project))
        weights = weights if ctx.frozen else [weight_gradient(project, ctx.gradient_bytes), *weights]
        params = params + own.width * model.hidden
        saved = saved + elements * ctx.precision.activations.bytes_per_element
    if own.further_rows:
        looked_up = stream(ctx, "further rows", ctx.split_tokens * own.further_rows / model.vocab, 2.0, 2.0)
        forward.append(looked_up)
        weights = weights if ctx.frozen else [looked_up, *weights]
        params = params + own.further_rows / tp
    if own.further_weights:
        more = matmul(ctx, "further projections", ctx.split_tokens, own.further_weights / model.hidden, model.hidden)
        forward.append(more)
        inputs.append(input_gradient(more))
        weights = weights if ctx.frozen else [weight_gradient(more, ctx.gradient_bytes), *weights]
        params = params + own.further_weights
        saved = saved + ctx.split_tokens * model.hidden * ctx.precision.activations.bytes_per_element
    if own.norm is not None:
        fused = "norm" in ctx.fuses or "elementwise" in ctx.fuses
        whole, passes, back = ctx.split_tokens * model.hidden, *((2.0, 4.0) if fused else (6.0, 9.0))
        forward.append(stream(ctx, "embedding norm", whole, passes, 1.0 if fused else 5.0))
        inputs.insert(0, stream(ctx, "embedding norm dX", whole, back, 2.0 if fused else 6.0))
        params = params + own.norm.params(model.hidden)
        saved = saved + whole * ctx.precision.activations.bytes_per_element
    leaving, leaving_gradient = embedding_border(ctx)
    section = Section(
        key=SectionKey(SectionRole.EMBEDDING),
        forward=(*forward, *leaving),
        backward_input=(*leaving_gradient, *inputs),
        backward_weight=tuple(weights),
        params=params,
        trained=0 if ctx.frozen else params,
        saved=SavedActivations(inputs=saved),
    )
    return _adapted_rows(ctx, section, width)


def embedding_border(ctx: LoweringContext) -> tuple[Sequence[Op], Sequence[Op]]:
    """Rows that other tensor ranks looked up, summed or scattered by tokens; and the gradient's way back."""
    border = tensor_boundary(ctx) if ctx.engine.exchanges.ends else Boundary()
    return border.exit, border.exit_gradient


def head_border(ctx: LoweringContext) -> tuple[Sequence[Op], Sequence[Op], Sequence[Op]]:
    """Into the logits of each rank's part of the vocabulary, the same of the gradient, and what the loss of split
    logits exchanges: the largest logit, the sum of exponentials and the target's, 4 bytes a token each."""
    if not ctx.engine.exchanges.ends or (isinstance(ctx.degrees.tp, int) and ctx.degrees.tp == 1):
        return (), (), ()
    border = tensor_boundary(ctx)
    each = Collective(
        label="loss", kind="all-reduce", axis="tp", payload_bytes=ctx.tokens * LOSS_BYTES, ranks=ctx.degrees.tp
    )
    return border.entry, border.entry_gradient, (each,) * 3


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


def lower_head(ctx: LoweringContext) -> Section:
    """What stands behind the last layer: logits of the vocabulary, or the head that the model has instead."""
    own = ctx.model.head
    if own is None:
        return _language_head(ctx)
    if own.kind == "language":
        return _with_dense(ctx, _language_head(ctx), own)
    return _scored(ctx, own)


def head_rows(ctx: LoweringContext, head: Head) -> Num:
    """Tokens that a head works on: all, or one of each sequence."""
    return ctx.degrees.microbatch if head.kind == "sequence" else ctx.tokens


def _with_dense(ctx: LoweringContext, section: Section, head: Head) -> Section:
    """Logits behind a dense layer of their own (a masked language model's transform), on every tensor rank."""
    hidden = ctx.model.hidden
    dense = plain_matmul(ctx, "head dense", ctx.tokens, head.dense / hidden, hidden)
    act = stream(ctx, "head activation and norm", ctx.tokens * hidden, 8.0, 4.0)
    params = section.params + head.dense + head.extra
    kept = replace(section.saved, inputs=section.saved.inputs + 3 * ctx.tokens * hidden * 2)
    return replace(
        section,
        forward=(section.forward[0], dense, act, *section.forward[1:]),
        backward_input=(*section.backward_input, act, input_gradient(dense)),
        backward_weight=(*section.backward_weight, weight_gradient(dense, ctx.gradient_bytes)),
        params=params,
        trained=section.trained if ctx.frozen else params,
        saved=kept,
    )


def _scored(ctx: LoweringContext, head: Head) -> Section:
    """A head that is no language model's: dense layers and scores of every token or of one a sequence, whole on every
    tensor rank. Adapters stand beside it: the head itself is trained even where the rest is frozen."""
    model, rows, hidden = ctx.model, head_rows(ctx, head), ctx.model.hidden
    norm: list[Op] = [stream(ctx, "final norm", ctx.split_tokens * hidden, 2.0)] if model.norm else []
    products = [plain_matmul(ctx, "head dense", rows, head.dense / hidden, hidden)] if head.dense else []
    products += [plain_matmul(ctx, "scores", rows, head.outputs, hidden)] if head.outputs else []
    loss = stream(ctx, "loss", rows * max(head.outputs, 1), 7.0, 4.0)
    params = head.outputs * hidden + head.dense + head.extra
    return Section(
        key=SectionKey(SectionRole.HEAD),
        forward=(*norm, *products, loss),
        backward_input=(replace(loss, label="loss dX"), *map(input_gradient, reversed(products))),
        backward_weight=tuple(weight_gradient(op, ctx.gradient_bytes) for op in reversed(products)),
        params=params,
        trained=params,
        saved=SavedActivations(inputs=ctx.split_tokens * hidden * 2, logits=rows * head.outputs * 10),
    )


def _language_head(ctx: LoweringContext) -> Section:
    """Final norm, logits and loss. Logits are worked on in 32 bits by the loss unless it is fused with the product.

    The vocabulary is padded to a multiple of the engine's own times tp (Megatron's --make-vocab-size-divisible-by), so
    that every rank's share of the product is aligned.

    parameters   vocab w / tp unless tied  +  h w where w differs  +  vocab / tp of a bias        w = width of a row
    """
    model, tp, tokens, own = ctx.model, ctx.degrees.tp, ctx.tokens, ctx.model.embedding
    each = ctx.engine.vocab_multiple * tp
    padded = np.ceil(model.vocab / each) * each
    logits = plain_matmul(ctx, "logits", tokens, padded / tp, own.width or model.hidden)
    narrow = [matmul(ctx, "head projection", ctx.split_tokens, own.width, model.hidden)] if own.width else []
    values = tokens * padded / tp
    fused = {"cross-entropy", "linear-cross-entropy", "elementwise"} & ctx.fuses
    split = ctx.engine.family.startswith("megatron")
    passes, back = FUSED_LOSS if fused else SPLIT_LOSS if split else UNFUSED_LOSS
    loss = stream(ctx, "loss", values, passes, 2.0 if fused else 8.0)
    if own.softcap:  # a tanh of every logit: read and written once more where nothing fuses it
        more = 0.0 if "elementwise" in ctx.fuses else 4.0
        loss = replace(stream(ctx, "loss", values, passes + more, loss.kernels + more), exponentials=2 * values)
    norm = [stream(ctx, "final norm", ctx.split_tokens * model.hidden, 2.0)] if model.norm else []
    low, adapted = adapters(ctx, [logits])
    trained = low if ctx.frozen else [logits, *narrow]
    matrix = 0 if own.tied else model.vocab * (own.width or model.hidden) / tp
    params = matrix + own.width * model.hidden + model.vocab * own.head_bias / tp
    chunked = "linear-cross-entropy" in ctx.fuses
    entry, entry_gradient, exchanged = head_border(ctx)
    return Section(
        key=SectionKey(SectionRole.HEAD),
        forward=(*norm, *narrow, *entry, logits, *low, loss, *exchanged),
        backward_input=(
            stream(ctx, "loss dX", values, back), *map(input_gradient, low), input_gradient(logits), *entry_gradient,
            *map(input_gradient, narrow),
        ),
        backward_weight=tuple(weight_gradient(op, ctx.gradient_bytes) for op in trained),
        params=params,
        trained=adapted if ctx.frozen else params,
        saved=SavedActivations(
            inputs=ctx.split_tokens * (model.hidden + own.width) * 2,
            logits=0 if chunked else values * (6 if fused else 10),
        ),
    )  # fmt: skip
