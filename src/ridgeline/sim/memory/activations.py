"""Turn a section into the bytes real software keeps of it between forward and backward.

Lowering says what the ops of a section need, all at the stored width. Software keeps more where it does not fuse, and
less where it keeps the inputs of narrow products narrow, or where frozen weights need no gradient and so no input.
"""

from __future__ import annotations

import numpy as np

from ridgeline.ir.ops import MatMul, Num
from ridgeline.ir.program import SavedActivations, Section, SectionRole
from ridgeline.lowering.context import LoweringContext
from ridgeline.lowering.sections import normed_inputs
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.spec import Block, Mlp, Moe


def saved_activations(ctx: LoweringContext, section: Section) -> SavedActivations:
    """Bytes of one microbatch that a section keeps on the chip or hands to the host, logits apart."""
    block, saved = block_of(ctx, section), section.saved
    if block is None:
        return SavedActivations(inputs=saved.total - saved.logits + _final_norm(ctx, section))
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


def block_of(ctx: LoweringContext, section: Section) -> Block | None:
    """The model's block a section was made from; None for the two ends."""
    if section.role is SectionRole.BLOCK:
        return ctx.model.blocks[section.key.block]
    return ctx.model.mtp.block if section.role is SectionRole.MTP and ctx.model.mtp else None


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


def _final_norm(ctx: LoweringContext, section: Section) -> Num:
    """The head keeps the last layer's output beside the norm of it."""
    return section.saved.inputs if section.role is SectionRole.HEAD and ctx.engine.saves.attention_twice else 0.0
