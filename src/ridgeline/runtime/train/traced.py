"""Log what a rank executes, op by op as torch dispatches it: products, attention, collectives, each with its sizes.

The one place that reads torch's op names. What is left out is bookkeeping and not work: collectives of a single number
(the loss, the gradient norm), of integers (rows for each expert), and among one rank; and products with one column,
which are sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.ir.kernel import PRODUCT_OPERANDS, Kernel
from ridgeline.ir.rank_ops import attention_size, collective_size, grouped_size, product_size

ATTENTION = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
             "_scaled_dot_product_cudnn_attention")  # fmt: skip
GROUPED = "aten::_grouped_mm"
# what a collective's payload is: the whole tensor, which one of its two tensors is
COLLECTIVES: Mapping[str, tuple[str, bool]] = {
    "c10d::allreduce_": ("all-reduce", True),
    "c10d::_allgather_base_": ("all-gather", True),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", True),
    "c10d::alltoall_base_": ("all-to-all", False),
    "c10d::send": ("send", False),
    "_c10d_functional::all_reduce": ("all-reduce", True),
    "_c10d_functional::all_gather_into_tensor": ("all-gather", True),
    "_c10d_functional::reduce_scatter_tensor": ("reduce-scatter", True),
    "_c10d_functional::all_to_all_single": ("all-to-all", False),
}


class TracedOps(TorchDispatchMode):  # type: ignore[misc]
    """How often each op of each size was dispatched while this mode was on.

    padded   elements of a shard group as they travel -> as they are, where rows were added to cut them evenly
    """

    def __init__(self, padded: Mapping[int, int] | None = None) -> None:
        super().__init__()
        self.seen: Counter[Kernel] = Counter()
        self.padded = padded or {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        out = _grouped_output(*args, **(kwargs or {})) if name == GROUPED else func(*args, **(kwargs or {}))
        size = self._size(name, args, kwargs or {})
        if size is not None:
            self.seen[size] += 1
        return out

    def _size(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Kernel | None:
        space, _, op = name.partition("::")
        if space != "aten":
            return self._collective(name, args)
        if op in PRODUCT_OPERANDS:
            left_operand, right = PRODUCT_OPERANDS[op]
            return _product(args[left_operand], args[right])
        if name == GROUPED:
            return _grouped_product(args[0], args[1], kwargs.get("offs", args[2] if len(args) > 2 else None))
        if op.startswith(ATTENTION):
            return _attention(args, backward=op.endswith("backward"))
        return None

    def _collective(self, name: str, args: Sequence[Any]) -> Kernel | None:
        if name not in COLLECTIVES:
            return None
        kind, full_operand = COLLECTIVES[name]
        tensors = _tensors(args)
        ranks = _ranks(args)
        if not tensors or len(ranks) < 2:
            return None
        if kind == "send":
            stride = abs(ranks[args[2]] - dist.get_rank())
            return collective_size(kind, 2, stride, tensors[0].numel() * tensors[0].element_size())
        payload = max(tensors, key=Tensor.numel) if full_operand else tensors[-1]
        elements = self.padded.get(payload.numel(), payload.numel())
        if elements == 1 or not payload.is_floating_point():
            return None
        stride, size = ranks[1] - ranks[0], elements * payload.element_size()
        if kind == "all-gather" and "functional" in name:
            size *= len(ranks)
        return collective_size(kind, len(ranks), stride, size)


def _product(left: Tensor, right: Tensor) -> Kernel | None:
    *groups, m, k = left.shape
    n = right.shape[-1]
    return None if min(m, n, k) == 1 else product_size(groups[0] if groups else 1, m, n, k)


def _grouped_product(left: Tensor, right: Tensor, ends: Tensor | None) -> Kernel | None:
    if right.dim() == 3:
        return grouped_size(right.shape[0], left.shape[0], right.shape[1], right.shape[2])
    groups = ends.shape[0] if ends is not None else 1
    return grouped_size(groups, left.shape[1], left.shape[0], right.shape[1], weights=True)


def _grouped_output(left: Tensor, right: Tensor, offs: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
    """What a grouped product gives, by shape alone; torch's own fake kernel knows 16-bit formats only."""
    if right.dim() == 3:
        return left.new_empty(left.shape[0], right.shape[2])
    assert offs is not None
    return left.new_empty(offs.shape[0], left.shape[0], right.shape[1])


def _attention(args: Sequence[Any], *, backward: bool) -> Kernel:
    q, k, v = args[1:4] if backward else args[:3]
    batch, heads, queries, wide = q.shape
    return attention_size(batch * heads, (queries, k.shape[2]), (wide, v.shape[3]), backward=backward)


def _tensors(args: Sequence[Any]) -> list[Tensor]:
    tensors: list[Tensor] = []
    for arg in args:
        if isinstance(arg, Tensor):
            tensors.append(arg)
        elif isinstance(arg, (list, tuple)):
            tensors += _tensors(arg)
    return tensors


def _ranks(args: Sequence[Any]) -> list[int]:
    """Ranks of the group a collective runs in, which it is handed as an object or by name."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject):
            try:
                return list(dist.get_process_group_ranks(dist.ProcessGroup.unbox(arg)))
            except RuntimeError:  # the operation of a reduction
                continue
    names = [arg for arg in args if isinstance(arg, str)]
    if names:
        return list(dist.get_process_group_ranks(dist.distributed_c10d._resolve_process_group(names[-1])))
    return []
