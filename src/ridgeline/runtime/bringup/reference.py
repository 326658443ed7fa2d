"""A model computed by the host in two ways that bound what a right device gives.

    with Exact(): run()               everything in fp64, whatever format it asks for
    with Rounded(seed): run()         in its own formats, every op off as its numerics contract allows: one right device
                                      among many

Many draws of the second around the first show how far right devices lie from the truth at any depth of a model.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup.arithmetic import PLAIN, Draw, Unit
from ridgeline.runtime.bringup.contracts import contract_of, exact, has_contract, outputs_of
from ridgeline.runtime.bringup.judge import widen_value

NARROW = (torch.float32, torch.bfloat16, torch.float16)


class Exact(TorchDispatchMode):  # type: ignore[misc]
    """Every floating number in fp64: casts to fewer bits keep all of them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        wide_args, wide = tree_map(_kept_wide, (args, kwargs or {}))
        if func._schema.name == "aten::_grouped_mm":
            return grouped_product(*wide_args, **wide)
        return func(*wide_args, **wide)


class Rounded(TorchDispatchMode):  # type: ignore[misc]
    """Every op by its contract with noise at its rounding points, then rounded to the format that the op gives."""

    def __init__(self, seed: int, unit: Unit = PLAIN) -> None:
        super().__init__()
        self.source, self.number, self.unit = torch.Generator().manual_seed(seed), seed, unit

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        program = contract_of(func) if has_contract(func) else exact
        if program is exact or not _narrow((args, kwargs)):
            return func(*args, **kwargs)
        wide = tree_map(lambda x: widen_value(x.clone() if isinstance(x, Tensor) else x), (args, kwargs))
        result = func(*args, **kwargs)
        outputs = outputs_of(func, args, kwargs, result)
        form = next((x.dtype for x in outputs if isinstance(x, Tensor) and x.is_floating_point()), None)
        if form is None:
            return result
        try:
            drawn = program(Draw(source=self.source, format=form, number=self.number, unit=self.unit), func, *wide)
        except (RuntimeError, NotImplementedError):
            return result  # no program: the host's own result
        for ours, other_output in zip(outputs, drawn, strict=False):
            if isinstance(ours, Tensor) and isinstance(other_output, Tensor) and ours.is_floating_point():
                ours.copy_(other_output.reshape(ours.shape) if other_output.numel() == ours.numel() else ours)
        return result


def grouped_product(a: Tensor, b: Tensor, offs: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
    """Products of experts, which torch has in 32 bits and fewer: the dim that both lack is cut where experts end."""
    if offs is None:
        return a @ b
    ends = [0, *offs.tolist()]
    spans = [slice(first, last) for first, last in pairwise(ends)]
    if a.dim() == 2 and b.dim() == 2:
        return torch.stack([a[:, span] @ b[span] for span in spans])
    if a.dim() == 2:
        rows = torch.cat([a[span] @ b[expert] for expert, span in enumerate(spans)])
        return torch.cat((rows, rows.new_zeros(a.shape[0] - rows.shape[0], rows.shape[1])))
    return torch.cat([a[expert] @ b[:, span] for expert, span in enumerate(spans)], 1)


def _kept_wide(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


def _narrow(values: Any) -> bool:
    return any(isinstance(x, Tensor) and x.dtype in NARROW for x in tree_leaves(values))
