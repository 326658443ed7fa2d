"""Judge a part of what is large: rows and columns of a product, elements of what works element by element.

Products keep all of the dim they sum over. The first and last rows and columns are always among those taken. Those that
are furthest from the host's own result are a part of their own: one element decides there, and no mean.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

ROWS, COLUMNS, ELEMENTS = 64, 256, 1 << 15
SUSPECTS = 8  # places that are furthest from the host's result
PRODUCTS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2)}

Parts = tuple[tuple[Any, ...], dict[str, Any], list[Any]]


def sample_output(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any], off: Tensor | None = None
) -> Parts:
    """The arguments and outputs of a part of an op's work; all of it where it is small or not known to be separable.

    off    how far each element of the first output lies from the host's: the furthest are the part
    """
    name = func._schema.name
    if not outputs or not isinstance(outputs[0], Tensor) or outputs[0].numel() <= ELEMENTS:
        return args, kwargs, outputs
    if name in PRODUCTS:
        return _product(args, kwargs, outputs, PRODUCTS[name], off)
    if name == "aten::embedding_dense_backward":
        width = _with(places(args[0].shape[-1], COLUMNS // 4), off, -1)
        return (args[0][..., width], *args[1:]), kwargs, [outputs[0][:, width]]
    tensors = [x for x in tree_leaves((args, kwargs, outputs)) if isinstance(x, Tensor) and x.numel() > 1]
    if all(x.shape == outputs[0].shape for x in tensors) and not _spans_dims(func):
        where = _with(places(outputs[0].numel(), ELEMENTS), None if off is None else off.flatten(), -1)
        return tree_map(lambda x: _flat(x, where), (args, kwargs, outputs))  # type: ignore[no-any-return]
    return args, kwargs, outputs


def places(size: int, count: int) -> Tensor:
    """Distinct places spread over a dim, the first and the last among them."""
    if size <= count:
        return torch.arange(size)
    source = torch.Generator().manual_seed(size)
    inner = torch.randint(1, size - 1, (count,), generator=source)
    return torch.cat((torch.tensor([0, size - 1]), inner)).unique()


def distance(outputs: list[Any], theirs: list[Any] | None) -> Tensor | None:
    """How far every element lies from the host's result, relative; infinite where one of them is no number."""
    host, output = theirs[0] if theirs else None, outputs[0] if outputs else None
    if not isinstance(host, Tensor) or not isinstance(output, Tensor) or output.numel() <= ELEMENTS:
        return None
    if host.shape != output.shape or not output.is_floating_point():
        return None
    if torch.equal(output, host):
        return None
    ours, other = output.float(), host.float()
    far = (ours - other).abs() / (other.abs() + other.abs().mean().nan_to_num() * 1e-3 + 1e-30)
    return torch.where(ours.isfinite() == other.isfinite(), far.nan_to_num(0.0), torch.inf)


def _with(taken: Tensor, off: Tensor | None, dim: int) -> Tensor:
    """Places of a dim, or those that are furthest off."""
    if off is None:
        return taken
    other_dims = tuple(d for d in range(off.dim()) if d != dim % off.dim())
    worst = off.amax(other_dims) if other_dims else off
    return worst.topk(min(SUSPECTS, len(worst))).indices.unique()


def _product(
    args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any], at: tuple[int, int], off: Tensor | None
) -> Parts:
    a, b, y = args[at[0]], args[at[1]], outputs[0]
    rows, columns = _with(places(y.shape[-2], ROWS), off, -2), _with(places(y.shape[-1], COLUMNS), off, -1)
    arguments = list(args)
    arguments[at[0]], arguments[at[1]] = a[..., rows, :], b[..., columns]
    if at[0]:
        arguments[0] = args[0].expand_as(y)[..., rows, :][..., columns]
    return tuple(arguments), kwargs, [y[..., rows, :][..., columns]]


def _flat(value: Any, where: Tensor) -> Any:
    return value.flatten()[where] if isinstance(value, Tensor) and value.numel() > 1 else value


def _spans_dims(func: Any) -> bool:
    """Whether an op names dims: then its elements are not each their own."""
    names = {a.name for a in func._schema.arguments}
    return bool(names & {"dim", "dims", "normalized_shape", "size", "diagonal", "shifts", "repeats"})
