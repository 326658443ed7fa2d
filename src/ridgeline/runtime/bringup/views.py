"""Views show the memory that they name, and arguments that an op does not write stay as they were."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup.judge import unequal
from ridgeline.runtime.bringup.outcome import RIGHT, Verdict, worse, wrong
from ridgeline.runtime.bringup.ridge import RidgeTensor
from ridgeline.runtime.bringup.tensors import equal_bits, on_host

NEAR = 1 << 18  # elements of an argument on the host beyond which every 61st is read
FAR = 1 << 16  # elements of an argument that are read back from a device to see whether it was written


def seen_through(func: Any, args: Any, kwargs: Any, result: Any) -> Verdict:
    """A view: the memory of its argument by the sizes, strides and offset that torch gives it, or equal numbers."""
    base = next((x for x in tree_leaves(args) if isinstance(x, Tensor)), None)
    if base is None:
        return RIGHT
    views = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
    try:
        shapes = [x for x in tree_leaves(func(*tree_map(_without_numbers, args), **kwargs)) if isinstance(x, Tensor)]
    except (RuntimeError, NotImplementedError):
        return RIGHT
    if len(views) != len(shapes):
        return wrong("shape", float(len(views)), float(len(shapes)))
    memory = _memory(base)
    if memory and all(_memory(x) == memory and _layout(x) == _layout(y) for x, y in zip(views, shapes, strict=True)):
        return RIGHT
    host_call = tree_map(on_host, (args, kwargs))
    expected_outputs = [x for x in tree_leaves(func(*host_call[0], **host_call[1])) if isinstance(x, Tensor)]
    worst = RIGHT
    for ours, theirs in zip(views, expected_outputs, strict=True):
        worst = worse(worst, unequal(on_host(ours), theirs))
    return worst


def _without_numbers(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    reach = 1 + value.storage_offset() + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    storage = torch.empty((max(reach, 1),), dtype=value.dtype, device="meta")
    return storage.as_strided(value.shape, value.stride(), value.storage_offset())


def _memory(x: Tensor) -> int:
    try:
        return int((x.raw if isinstance(x, RidgeTensor) else x).untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


def _layout(x: Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), x.stride(), x.storage_offset(), x.dtype


def leaves_inputs(func: Any, args: Any, kwargs: Any, host: tuple[Any, Any]) -> bool:
    """Whether an op left alone the arguments that it does not write; what is large and far away is not read again."""
    writes = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    names = [a.name for a in func._schema.arguments]
    pairs = [*zip(names, args, host[0], strict=False), *((k, v, host[1][k]) for k, v in kwargs.items())]
    for name, ours, before in pairs:
        if name in writes:
            continue
        for now, then in zip(tree_leaves(ours), tree_leaves(before), strict=True):
            if isinstance(now, Tensor) and not _same_bits(now, then):
                return False
    return True


def _same_bits(now: Tensor, then: Tensor) -> bool:
    near = now.raw if isinstance(now, RidgeTensor) else now if now.device.type == "cpu" else None
    if near is None and now.numel() > FAR:
        return True
    if near is not None and near.numel() > NEAR:
        near, then = (x.flatten()[::61] if x.is_contiguous() else x[..., ::61] for x in (near, then))
    return equal_bits([on_host(now) if near is None else near], [then])
