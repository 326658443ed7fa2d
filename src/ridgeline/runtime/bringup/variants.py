"""Hard variants of the calls that a model makes: its own ops and formats, in small shapes, on other inputs.

collect(samples, func, host, ...)     keep one call of each op, format and number of dims, cut to small sizes
hard_variants(samples)                each of them as a tail of odd size, in memory with gaps, large, small, with
                                      indices that all meet, and at the ends of their range
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup.calls import Call
from ridgeline.runtime.bringup.choices import is_random
from ridgeline.runtime.bringup.contracts import name_of

ALIGNED = ("_grouped_mm", "_scaled_mm", "_scaled_grouped_mm")  # whose operands must be, by their documentation
MOST, CUT = 96, 65  # sizes beyond the first become the second: no multiple of eight
Samples = dict[tuple[Any, ...], Call]


def collect(samples: Samples, func: Any, host: tuple[Any, Any], module: str, phase: str) -> None:
    """Keep a call if it is the first of its kind."""
    tensors = [x for x in tree_leaves(host) if isinstance(x, Tensor)]
    key = str(func), tuple((x.dtype, x.dim()) for x in tensors)
    is_fused = "attention" in key[0]  # takes sizes and offsets of its own, and in the backward what the forward gave
    if key in samples or not tensors or is_fused or is_random(func):
        return
    args, kwargs = tree_map(_small, host)
    samples[key] = Call(op=func, args=args, kwargs=kwargs, why=module, phase=phase)


def _small(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return CUT if value > MOST else value
    if not isinstance(value, Tensor):
        return value
    part = value[tuple(slice(CUT if size > MOST else size) for size in value.shape)] if value.dim() else value
    part = part.detach().clone()
    return part % CUT if part.dtype == torch.int64 and part.numel() and int(part.max()) >= CUT else part


def hard_variants(samples: Samples) -> Iterator[Call]:
    """Every call in every way that changes it."""
    for call in list(samples.values()):
        for why, change in CHANGES.items():
            change = _apart_aligned if change is _separate_copy and name_of(call.op) in ALIGNED else change
            args, kwargs = tree_map(change, (call.args, call.kwargs))
            if why == "small sizes" or _differ((args, kwargs), (call.args, call.kwargs)):
                yield Call(
                    op=call.op, args=args, kwargs=kwargs, why=f"{call.why or call.phase}, {why}", phase=call.phase
                )


def _differ(ours: Any, theirs: Any) -> bool:
    pairs = zip(tree_leaves(ours), tree_leaves(theirs), strict=True)
    return any(isinstance(a, Tensor) and (a.stride() != b.stride() or not torch.equal(a, b)) for a, b in pairs)


def _same(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _separate_copy(value: Any) -> Any:
    """The same numbers in memory with gaps, beginning inside it."""
    if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[-1] == 1 or not value.is_floating_point():
        return _same(value)  # statistics of rows are packed in every kernel
    wide = torch.zeros((*value.shape[:-1], value.shape[-1] + 3), dtype=value.dtype)
    wide[..., 2:-1] = value
    return wide[..., 2:-1]


def _apart_aligned(value: Any) -> Any:
    """The same, where every row begins at a multiple of 16 bytes."""
    if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[-1] == 1 or not value.is_floating_point():
        return _same(value)
    size = value.shape[-1]
    wide = torch.zeros((*value.shape[:-1], -(-size // 16) * 16 + 32), dtype=value.dtype)
    wide[..., 16 : 16 + size] = value
    return wide[..., 16 : 16 + size]


def _transposed_copy(value: Any) -> Any:
    """The same numbers with the last two dims exchanged in memory."""
    turns = isinstance(value, Tensor) and value.dim() >= 2 and value.is_floating_point()
    return value.mT.contiguous().mT if turns else _same(value)


def _times(factor: float) -> Any:
    def change(value: Any) -> Any:
        return value * factor if isinstance(value, Tensor) and value.is_floating_point() else _same(value)

    return change


def _meet(value: Any) -> Any:
    """Indices that are all the first."""
    return torch.full_like(value, int(value.flatten()[0])) if _indices(value) else _same(value)


def _ends(value: Any) -> Any:
    """Indices that are the smallest or the largest."""
    if not _indices(value):
        return _same(value)
    odd = torch.arange(value.numel()).reshape(value.shape) % 2 == 1
    return torch.where(odd, value.max(), value.min())


def _indices(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.int64 and value.numel() > 1


CHANGES = {
    "small sizes": _same,
    "in memory with gaps": _separate_copy,
    "transposed in memory": _transposed_copy,
    "eight times": _times(8.0),
    "a 4096th": _times(2.0**-12),
    "indices that meet": _meet,
    "indices at their ends": _ends,
}
