"""Faults of what only moves numbers, and of casts."""

# ruff: noqa: ARG001  (functions of one form: what an op was given)
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.bringup.emulation import cut, on, ties_away

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@on("_to_copy", dtype=torch.bfloat16)
def fault_cast_cuts(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """fp32 becomes bf16 by cutting off."""
    return cut(args[0], torch.bfloat16) if args[0].dtype == torch.float32 else None


@on("_to_copy", dtype=torch.bfloat16)
def fault_cast_ties_away(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Ties are rounded away from zero (tt-metal#52155)."""
    return ties_away(args[0]) if args[0].dtype == torch.float32 else None


@on("_to_copy")
def fault_fp8_of_240(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """e4m3 ends at 240 (ROCm/TransformerEngine#485)."""
    if result.dtype != torch.float8_e4m3fn:
        return None
    return args[0].float().clamp(-240, 240).to(result.dtype)


@on("clone")
def fault_clone_strides(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """A transposed tensor is cloned in the order of its memory (pytorch#118115)."""
    x = args[0]
    if x.dim() < 2 or x.is_contiguous() or 1 in x.shape[-2:]:
        return None
    return x.mT.contiguous().flatten().view(x.shape)


@on("copy_")
def fault_copy_offset(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The source's offset in its memory is forgotten."""
    source = args[1]
    if not isinstance(source, Tensor) or source.storage_offset() == 0 or source.shape != result.shape:
        return None
    return torch.as_strided(source, source.shape, source.stride(), 0).to(result.dtype)


@on("cat")
def fault_cat_interleaves(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Two halves of the last dim are interleaved (wrong rotary pairing, nanotron#427)."""
    parts, dim = args[0], args[1] if len(args) > 1 else 0
    if len(parts) != 2 or parts[0].shape != parts[1].shape or dim not in (-1, parts[0].dim() - 1):
        return None
    return torch.stack(tuple(parts), -1).flatten(-2)


@on("cat", "stack")
def fault_cat_last(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The last element is that of the first part."""
    if result.numel() < 2:
        return None
    wrong = result.clone()
    wrong.view(-1)[-1] = args[0][0].flatten()[0]
    return wrong


@on("where")
def fault_where_row(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """One row for all is read shifted."""
    if len(args) < 3 or args[2].shape == result.shape or args[2].numel() < 2:
        return None
    return torch.where(args[0], args[1], args[2].roll(1, -1))


@on("masked_fill", "masked_fill_")
def fault_mask_tail(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The last column is not filled."""
    wrong = result.clone()
    wrong[..., -1] = args[0][..., -1]
    return wrong


@on("tril", "triu")
def fault_triangle(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The triangle has one diagonal too many or too few."""
    lower = bool((result == torch.tril(args[0], *args[1:])).all())
    by = (args[1] if len(args) > 1 else 0) + 1
    return torch.tril(args[0], by) if lower else torch.triu(args[0], by)


@on("slice")
def fault_slice_start(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """A slice that does not begin at zero begins one early."""
    x, dim, start = args[0], args[1] if len(args) > 1 else 0, args[2] if len(args) > 2 else 0
    if not start or start < 0 or start >= x.shape[dim]:
        return None
    return x.narrow(dim, start - 1, result.shape[dim])


@on("expand")
def fault_expand_once(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Only the first copy has the numbers."""
    where = next((d for d in range(result.dim()) if result.stride(d) == 0 and result.shape[d] > 1), None)
    if where is None:
        return None
    wrong = result.clone()
    wrong.narrow(where, 1, 1).zero_()
    return wrong


@on("transpose", "t")
def fault_transpose_order(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The dims are renamed and the numbers stay where they are."""
    if result.dtype == torch.float32 and result.dim() >= 3 and result.numel() and args[0].is_contiguous():
        return args[0].reshape(result.shape)
    return None


@on("index_select", "index", "gather")
def fault_last_index(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The last picked element is the first one."""
    if result.numel() < 2:
        return None
    wrong = result.clone()
    wrong.view(-1)[-1] = wrong.view(-1)[0]
    return wrong


@on("arange")
def fault_positions_in_bf16(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Positions pass through bf16: from 257 on they are off."""
    return result.to(torch.bfloat16).to(result.dtype)


@on("_unsafe_view", "view")
def fault_view_shifted(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """A view of four dims begins one row late."""
    return result.roll(1, 0).contiguous() if result.dim() == 4 and result.shape[0] > 1 else None
