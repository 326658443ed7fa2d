"""What torch's dispatcher and autograd know of an op: whose kernel runs it, and which node of the graph calls it.

    key_of("cuda")               the dispatch key of a device type: CUDA
    kernel_of(op, key)           own, composite, fallback or none: what torch would run
    synchronises(op, args, kwargs)   whether the host must wait for the device to go on

Private parts of torch stand here (the fake device has its own in `ridge`); `missing_parts` names those that a release
no longer has, and a test asks it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

Kernel = Literal["own", "composite", "fallback", "none"]

PARTS = (
    "_dispatch_key_for_device", "_dispatch_has_kernel", "_dispatch_has_kernel_for_dispatch_key",
    "_dispatch_has_backend_fallback", "_dispatch_key_parse", "_current_autograd_node", "_current_graph_task_id",
    "_get_privateuse1_backend_name",
)  # fmt: skip
COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeImplicitAutogradNestedTensor")
# their result is a number of the host, or has a shape that depends on numbers of the device
WAITING = frozenset((
    "_local_scalar_dense", "item", "nonzero", "nonzero_numpy", "is_nonzero", "masked_select", "equal", "unique_dim",
    "_unique", "_unique2", "unique_consecutive", "unique_dim_consecutive", "bincount",
))  # fmt: skip


def missing_parts() -> tuple[str, ...]:
    """Private parts that this torch lacks; none where everything below works."""
    absent_parts = [name for name in PARTS if not hasattr(torch._C, name)]
    if not hasattr(torch.autograd, "_get_sequence_nr"):
        absent_parts.append("torch.autograd._get_sequence_nr")
    return tuple(absent_parts)


@cache
def key_of(kind: str) -> str | None:
    """The dispatch key of a device type; None where torch does not say."""
    try:
        return str(torch._C._dispatch_key_for_device(kind))
    except (RuntimeError, AttributeError):
        return "PrivateUse1" if plugged_in() == kind else None


def plugged_in() -> str:
    """The name of the device type that a package has added to torch; `privateuseone` where none has."""
    return str(torch._C._get_privateuse1_backend_name())


@cache
def has_kernel(name: str, key: str) -> bool:
    """Whether an op such as `aten::mm` or `aten::add.Tensor` has a kernel registered at a key."""
    try:
        if not torch._C._dispatch_has_kernel(name):
            return False
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))
    except (RuntimeError, AttributeError):
        return False


def schema_name(op: str) -> str:
    """The dispatcher's name of an op as torch prints it.

    >>> schema_name("aten.mm.default"), schema_name("aten.add.Tensor")
    ('aten::mm', 'aten::add.Tensor')
    """
    library, _, name = op.partition(".")
    return f"{library}::{name.removesuffix('.default')}"


@cache
def kernel_of(op: str, key: str) -> Kernel:
    """What torch runs for an op at a key.

    own         a kernel of the device, or its out= form, into which torch puts the result
    composite   ops below it, one after the other
    fallback    the backend's fallback for whatever it lacks, usually the host
    """
    name = schema_name(op)
    packet, _, overload = name.partition(".")
    if any(has_kernel(form, key) for form in (name, f"{packet}.out", f"{packet}.{overload}_out")):
        return "own"
    if any(has_kernel(name, composite) for composite in COMPOSITE):
        return "composite"
    try:
        fallback = torch._C._dispatch_has_backend_fallback(torch._C._dispatch_key_parse(key))
    except (RuntimeError, AttributeError, ValueError):
        fallback = False
    return "fallback" if fallback else "none"


def on_the_host(op: str) -> bool:
    """Whether the host has a kernel of its own for an op."""
    return has_kernel(schema_name(op), "CPU")


def synchronises(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the host waits: a number is read back, a copy goes to the host, or a shape depends on numbers."""
    name = str(func._schema.name).removeprefix("aten::").partition(".")[0]
    if device_of(args, kwargs) == "cpu" and name != "copy_":
        return False
    if name in WAITING:
        return True
    if name == "_to_copy":
        target = kwargs.get("device")
        return target is not None and torch.device(target).type == "cpu"
    if name == "copy_":
        return bool(args[0].device.type == "cpu" and args[1].device.type != "cpu")
    if name in ("index", "index_put_", "index_put", "_index_put_impl_"):
        masks = (torch.bool, torch.uint8)
        return any(isinstance(x, Tensor) and x.dtype in masks for x in tree_leaves(args[1]))
    return name == "repeat_interleave" and len(args) == 1


def device_of(args: Any, kwargs: dict[str, Any]) -> str:
    """The type of the device that an op reads from: not the host's where any of its tensors is elsewhere."""
    tensors = [x.device.type for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if not tensors:
        return str(torch.device(kwargs.get("device") or "cpu").type)
    return next((kind for kind in tensors if kind != "cpu"), "cpu")


def in_backward() -> bool:
    """Whether autograd runs a backward now."""
    return bool(torch._C._current_graph_task_id() != -1)


def backward_number() -> int:
    """The number of the node that autograd runs; -1 outside of any."""
    node = torch._C._current_autograd_node()
    return -1 if node is None else int(node._sequence_nr())


def newest_number() -> int:
    """The number of the node that autograd made last."""
    return int(torch.autograd._get_sequence_nr()) - 1
