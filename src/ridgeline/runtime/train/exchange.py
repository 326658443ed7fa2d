"""Collectives as differentiable functions of plain tensors, each with the collective its gradient takes.

    copy        x                       all-reduce          into a column-parallel product
    reduce      all-reduce              gradient as it is   out of a row-parallel product
    gather      all-gather along dim    reduce-scatter      the same two where the sequence is split over tp
    scatter     reduce-scatter          all-gather
    split       own part along dim      all-gather          replicated tokens dealt to tensor ranks
    merge       all-gather along dim    own part
    all_to_all  rows to their ranks     and back            experts, and heads for sequence

Without a group each is the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ridgeline.runtime.train.layout import Axis

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def sum_over(x: Tensor, axis: Axis) -> Tensor:
    """All-reduce, into a new tensor."""
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=axis.group)
    return x


def _gather_dim(x: Tensor, axis: Axis, dim: int) -> Tensor:
    rows = x.movedim(dim, 0).contiguous()
    gathered_rows = rows.new_empty((axis.degree * rows.shape[0], *rows.shape[1:]))
    _all_gather(gathered_rows, rows, group=axis.group)
    return gathered_rows.movedim(0, dim)


def _scatter_dim(x: Tensor, axis: Axis, dim: int) -> Tensor:
    rows = x.movedim(dim, 0).contiguous()
    own_rows = rows.new_empty((rows.shape[0] // axis.degree, *rows.shape[1:]))
    _reduce_scatter(own_rows, rows, group=axis.group)
    return own_rows.movedim(0, dim)


def _own_part(x: Tensor, axis: Axis, dim: int) -> Tensor:
    return x.chunk(axis.degree, dim)[axis.index].contiguous()


def _sum_ranks(x: Tensor, axis: Axis, dim: int) -> Tensor:  # noqa: ARG001  (as the others are called)
    return sum_over(x, axis)


def _same(x: Tensor, axis: Axis, dim: int) -> Tensor:  # noqa: ARG001
    return x.view_as(x)


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """A collective on the way forward and its transpose on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Any, back: Any, axis: Axis, dim: int) -> Tensor:
        ctx.back, ctx.axis, ctx.dim = back, axis, dim
        return there(x, axis, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        return ctx.back(gradient, ctx.axis, ctx.dim), None, None, None, None


def _function(there: Any, back: Any) -> Any:
    def exchange(x: Tensor, axis: Axis, dim: int = 0) -> Tensor:
        return x if axis.group is None else _Exchange.apply(x, there, back, axis, dim)

    return exchange


copy = _function(_same, _sum_ranks)
reduce = _function(_sum_ranks, _same)
gather = _function(_gather_dim, _scatter_dim)
scatter = _function(_scatter_dim, _gather_dim)
split = _function(_own_part, _gather_dim)
merge = _function(_gather_dim, _own_part)


class _AllToAll(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, sends: list[int], receives: list[int], group: Any) -> Tensor:
        ctx.sends, ctx.receives, ctx.group = sends, receives, group
        return _swap_rows(x, sends, receives, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _swap_rows(gradient, ctx.receives, ctx.sends, ctx.group), None, None, None


def _swap_rows(x: Tensor, sends: list[int], receives: list[int], group: Any) -> Tensor:
    x = x.contiguous()
    out = x.new_empty((sum(receives), *x.shape[1:]))
    dist.all_to_all_single(out, x, receives, sends, group=group)
    return out


def all_to_all(x: Tensor, sends: Sequence[int], receives: Sequence[int], axis: Axis) -> Tensor:
    """Rows dealt to the ranks of an axis: `sends` of them to each, `receives` from each."""
    if axis.group is None:
        return x
    return _AllToAll.apply(x, list(sends), list(receives), axis.group)


def all_to_all_counts(counts: Tensor, axis: Axis) -> Tensor:
    """The row that each rank of the axis has for this one, of a table [ranks, ...]; no gradient."""
    if axis.group is None:
        return counts
    receives = torch.empty_like(counts)
    dist.all_to_all_single(receives, counts.contiguous(), group=axis.group)
    return receives


def swap_dims(x: Tensor, axis: Axis, away: int, here: int) -> Tensor:
    """Split `away` over the axis and make `here` whole: heads for sequence, and the other way round."""
    if axis.group is None:
        return x
    pieces = torch.cat([piece.unsqueeze(0) for piece in x.chunk(axis.degree, away)])  # [ranks, ...]
    ones = [1] * axis.degree
    swapped_pieces = all_to_all(pieces, ones, ones, axis)
    return torch.cat(swapped_pieces.unbind(0), here)
