"""Tensors between host and device with their strides and offsets as they are.

on_host(value)             a copy in the host's memory
on_device(value, device)   a copy on the device, of a host tensor
equal_bits(ours, theirs)   whether two lists of results are the same numbers, NaNs included
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ridgeline.runtime.bringup.ridge import NAME, RidgeTensor

MOST_OFFSET = 4096  # elements before a view that are kept


def on_host(value: Any) -> Any:
    """A copy of a tensor in the host's memory; devices become the host."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if not isinstance(value, Tensor):
        return value
    raw_value = value.raw if isinstance(value, RidgeTensor) else value  # no op of the fake device is needed to read it
    return _move_tensor(raw_value.detach(), torch.device("cpu"))


def on_device(value: Any, device: Any) -> Any:
    """A copy of a host tensor on a device."""
    if not isinstance(value, Tensor):
        return value
    if torch.device(device).type == NAME:
        return RidgeTensor(on_host(value))
    return _move_tensor(value.detach(), torch.device(device))


def _move_tensor(x: Tensor, device: torch.device) -> Tensor:
    """The memory that a view spans, copied as it lies, and the same view of it."""
    if x.layout != torch.strided or x.numel() == 0 or (x.is_contiguous() and x.storage_offset() == 0):
        return x.to(device, copy=True)
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    before = min(x.storage_offset(), MOST_OFFSET)
    if span > 4 * x.numel() + MOST_OFFSET:  # a few rows of much: their neighbours are not worth a copy
        return x.to(device, copy=True)
    flat = x.as_strided((before + span,), (1,), x.storage_offset() - before)
    return flat.to(device, copy=True).as_strided(x.shape, x.stride(), before)


def floating_dtype(values: Any) -> torch.dtype | None:
    """The format of the first floating tensor in any nest of values."""
    dtypes = (x.dtype for x in tree_leaves(values) if isinstance(x, Tensor) and x.is_floating_point())
    return next(dtypes, None)


def equal_bits(ours: list[Any], theirs: list[Any] | None) -> bool:
    """Whether two lists of results are the same; NaNs compare as what they are."""
    if theirs is None or len(ours) != len(theirs):
        return False
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if isinstance(a, Tensor)]
    return all(
        isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))
        for a, b in pairs
    )


def _bits(x: Tensor) -> Tensor:
    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(sizes[x.element_size()]) if x.is_floating_point() else x
