"""Turn a size into a tensor with its placement: over tensor ranks, over context ranks, or a summand of each."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.ir.ops import Num
from ridgeline.ir.tensors import Split, Tensor
from ridgeline.lowering.context import LoweringContext
from ridgeline.models.spec import Norm


def over_tp(ctx: LoweringContext, dim: int, units: int = 0) -> tuple[Split, ...]:
    """One dim cut over tensor ranks, in whole units where they say how many there are."""
    return (Split(dim=dim, axis="tp", degree=ctx.degrees.tp, units=units),)


def token_splits(ctx: LoweringContext, *, sequence_parallel: bool = False) -> tuple[Split, ...]:
    """How the tokens of a microbatch, the first dim of an activation, are cut."""
    over = [Split(dim=0, axis="cp", degree=ctx.degrees.cp)]
    if sequence_parallel and ctx.sequence_parallel:
        over.append(Split(dim=0, axis="tp", degree=ctx.degrees.tp))
    return tuple(over)


def inner_activation(ctx: LoweringContext, name: str, width: Num, *, split: bool = True) -> Tensor:
    """Between a column-parallel and a row-parallel product: every rank has its share of the width."""
    dims = (ctx.degrees.microbatch * ctx.queries, width)
    return Tensor(
        name=name, kind="activation", dims=dims, splits=(*token_splits(ctx), *(over_tp(ctx, 1) if split else ()))
    )


def hidden_activation(ctx: LoweringContext, name: str, *, partial: bool = False) -> Tensor:
    """As wide as the model: whole tokens, split as norms and residuals are, or a summand of each tensor rank."""
    dims = (ctx.degrees.microbatch * ctx.queries, ctx.model.hidden)
    if partial:
        return Tensor(name=name, kind="activation", dims=dims, splits=token_splits(ctx), partial=("tp",))
    wide = over_tp(ctx, 1) if ctx.width_sharded else ()
    return Tensor(name=name, kind="activation", dims=dims, splits=(*token_splits(ctx, sequence_parallel=True), *wide))


def norm_weights(name: str, norm: Norm, width: int) -> Iterator[Tensor]:
    if norm.weight:
        yield Tensor(name=f"{name}.weight", dims=(width,))
    if norm.bias:
        yield Tensor(name=f"{name}.bias", dims=(width,))
