"""Faults of rows by index: embedding, scatter, top-k."""

# ruff: noqa: ARG001  (functions of one form: what an op was given)
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.bringup.emulation import on

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@on("embedding_dense_backward")
def fault_last_row_wins(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Of rows that meet the last is kept."""
    wrong = torch.zeros_like(result)
    wrong[args[1].flatten()] = (
        args[0].flatten(0, -2).to(result.dtype) if args[0].dim() > 2 else args[0].to(result.dtype)
    )
    return wrong


@on("embedding_dense_backward")
def fault_padding_row(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The padding row gets a gradient."""
    row = args[3]
    if row < 0:
        return None
    wrong = result.clone()
    wrong[row] = args[0].reshape(-1, result.shape[-1])[args[1].flatten() == row].sum(0)
    return wrong


@on("embedding")
def fault_index_of_sixteen_bits(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Indices lose what is over sixteen bits."""
    return args[0][args[1] & 0xFFFF] if int(args[1].max()) > 0xFFFF else None


@on("embedding")
def fault_last_row_of_table(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The table's last row is read as the one before."""
    last = args[0].shape[0] - 1
    return args[0][args[1].clamp(max=last - 1)] if bool((args[1] == last).any()) and last else None


@on("index_add", "index_add_")
def fault_lost_updates(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """One of the rows that meet is lost (a race, transformers#43362)."""
    x, dim, where, source = args[:4]
    first = {int(i): k for k, i in reversed(list(enumerate(where.tolist())))}
    twice = [k for k, i in enumerate(where.tolist()) if first[int(i)] != k]
    if not twice:
        return None
    keep = torch.ones(len(where), dtype=torch.bool)
    keep[twice[0]] = False
    return x.index_add(dim, where[keep], source.movedim(dim, 0)[keep].movedim(0, dim))


@on("scatter_add", "scatter_add_", dtype=torch.float32)
def fault_atomics_in_bf16(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Rows that meet are added in bf16."""
    x, dim, where, source = args[:4]
    return x + torch.zeros_like(x).bfloat16().scatter_add(dim, where, source.bfloat16()).float()


@on("index_put", "index_put_", "_index_put_impl_")
def fault_accumulate_ignored(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Values are put, not added."""
    if len(args) < 4 or not args[3]:
        return None
    return args[0].index_put(tuple(args[1]), args[2], accumulate=False)


@on("topk", dtype=torch.float32)
def fault_routes_by_bf16(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Experts are chosen by probabilities in bf16 (Megatron-LM#955)."""
    x, k = args[:2]
    where = torch.topk(x.bfloat16().float(), k, *args[2:]).indices
    return x.gather(args[2] if len(args) > 2 else -1, where), where


@on("topk")
def fault_tie_twice(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Of equal values the same place is named twice."""
    values, where = result
    same = values.diff(dim=-1) == 0
    if not bool(same.any()):
        return None
    wrong = where.clone()
    wrong[..., 1:] = torch.where(same, wrong[..., :-1], wrong[..., 1:])
    return values, wrong


@on("sort", dtype=torch.float32)
def fault_sort_tail(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The last two elements change places."""
    if result[0].shape[-1] < 2:
        return None
    return result[0].clone(), torch.cat((result[1][..., :-2], result[1][..., -2:].flip(-1)), -1)
