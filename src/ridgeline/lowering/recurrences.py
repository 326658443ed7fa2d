"""Turn a recurrent mixer by its products (`ridgeline.models.recurrent`) into its parts on one rank.

A product whose outputs tensor ranks split needs nothing; one whose inputs they split is summed over ranks (the steps of
a selective scan, which every channel reads); one that none splits runs whole on every rank.
"""

from __future__ import annotations

from ridgeline.ir.ops import MatMul, Op
from ridgeline.lowering.context import LoweringContext, matmul, tensor_collective
from ridgeline.lowering.mixer_parts import MixerParts, convolution_and_gate
from ridgeline.lowering.state_scan import recurrence_scan
from ridgeline.models.parts import MixerParts as ModelParts
from ridgeline.models.parts import Projection
from ridgeline.models.recurrent_parts import recurrence_parts as recurrent_parts
from ridgeline.models.spec import Recurrence


def projected(ctx: LoweringContext, one: Projection) -> MatMul:
    """A product of a recurrence on one rank."""
    tp = ctx.degrees.tp
    outputs = one.outputs / tp if one.split == "outputs" else one.outputs
    inputs = one.inputs / tp if one.split == "inputs" else one.inputs
    return matmul(ctx, one.label, ctx.tokens, outputs, inputs)


def summed_over_ranks(ctx: LoweringContext, parts: ModelParts) -> list[Op]:
    """What tensor ranks sum up before the scan: steps that all channels make together; the backward sums gradients."""
    if isinstance(ctx.degrees.tp, int) and ctx.degrees.tp == 1:
        return []
    rows = [one for one in parts.into if one.split == "inputs"]
    return [tensor_collective(ctx, f"sum of {one.label}", "all-reduce", ctx.tokens * one.outputs) for one in rows]


def lower_recurrence(ctx: LoweringContext, mixer: Recurrence) -> MixerParts:
    """Products, convolution, scan and gate of a recurrent mixer."""
    parts, tp = recurrent_parts(mixer, ctx.model.hidden), ctx.degrees.tp
    assert parts.recurrent is not None
    into, out = [projected(ctx, one) for one in parts.into], projected(ctx, parts.out[0])
    around = convolution_and_gate(
        ctx, ctx.tokens * parts.recurrent.convolved / tp, ctx.tokens * parts.recurrent.gated / tp
    )
    sums = summed_over_ranks(ctx, parts)
    return MixerParts(
        into=into,
        out_of=[out],
        around=([*around[0], *sums], [*around[1], *sums]),
        core=recurrence_scan(ctx, mixer),
        biased=[into[0], out] if mixer.bias else [],
        saved=ctx.tokens * parts.saved.split / tp * ctx.precision.activations.bytes_per_element,
    )
