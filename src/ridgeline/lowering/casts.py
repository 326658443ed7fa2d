"""Turn products in a narrow format into the casts around them: of what they read, and of the gradients that arrive."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.ir.ops import MatMul, Op
from ridgeline.lowering.context import LoweringContext, stream


def casts(ctx: LoweringContext, products: Sequence[MatMul], written: bool = False) -> list[Op]:
    """Casting the inputs of narrow products: read wide, write narrow twice (as it is and transposed); once where no
    gradient will read them.

    A norm that is one kernel, or a product's epilogue, writes narrow at once: nothing is read again (`written`). Where
    experts are multiplied one by one they are cast one by one, too.
    """
    if not ctx.low_precision:
        return []
    passes = _cast_passes(ctx, written)
    return [stream(ctx, f"cast for {op.label}", op.m * op.k * op.groups, passes, op.launches) for op in products]


def gradient_casts(ctx: LoweringContext, products: Sequence[MatMul], written: bool = False) -> list[Op]:
    """Casting the gradients that arrive at narrow products, for both of their own products."""
    if not ctx.low_precision:
        return []
    passes = _cast_passes(ctx, written)
    return [stream(ctx, f"cast for {op.label} dX", op.m * op.n * op.groups, passes, op.launches) for op in products]


def _cast_passes(ctx: LoweringContext, written: bool) -> float:
    wide, narrow = ctx.precision.activations.bytes_per_element, ctx.precision.compute.bytes_per_element
    reads = 0.0 if written else 2.0 if ctx.precision.scaling == "row" else 1.0
    return (2 if ctx.forward is None else 1) * narrow / wide + reads
