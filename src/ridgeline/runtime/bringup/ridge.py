"""A fake accelerator: the torch device `ridge`, whose ops are the host's and may be made to misbehave.

    torch.device("ridge")        a tensor there wraps one on the host; every op that reaches the device unwraps its
                                 arguments, runs the host's kernel, and wraps the result
    with altered(f): ...         f(op, args, kwargs, result) sees each op with host tensors and may answer for it
    with lacking(l): ...         ops that the device does not have, or leaves to the host with torch's usual warning

Private parts of torch are used here and nowhere else: the Python backend of torch 2.13
(`_setup_privateuseone_for_python_backend`, experimental) and wrapper subclasses with a dispatch of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.core.errors import InputError

NAME = "ridge"

Alter = Callable[[str, tuple[Any, ...], dict[str, Any], Any], Any]

_FACTORIES = (
    "empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step", "zeros", "ones", "full",
    "scalar_tensor", "eye", "eye.m", "tril_indices", "triu_indices", "linspace", "randn", "rand", "randint",
    "randint.low", "randperm",
)  # fmt: skip
# composite elsewhere, a kernel of its own on the host: the device has the kernel as well
_KERNELS = ("silu_backward", "mish_backward", "_fused_rms_norm", "_fused_rms_norm_backward")

# the host's own kernels sum over rows, join the sums of threads, or take the root, in 16 bits: the device has 32
_WIDENED = frozenset(
    ("aten.native_layer_norm_backward.default", "aten.rsqrt.default", "aten.sum.default", "aten.mean.default")
)

_libraries: list[torch.library.Library] = []
_alter: list[Alter] = []
_lacks: list[Lacks] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacks:
    """Ops as `aten.silu.default`: `missing` raise, `fallback` run on the host with a warning."""

    missing: frozenset[str] = frozenset()
    fallback: frozenset[str] = frozenset()


class RidgeTensor(torch.Tensor):  # type: ignore[misc]
    """A tensor of the device: the size, strides and dtype of `raw`, the host tensor that holds its values."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> RidgeTensor:
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
            layout=raw.layout, device=torch.device(NAME, 0), requires_grad=False,
        )  # fmt: skip
        wrapper.raw = raw
        return wrapper  # type: ignore[no-any-return]

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        """The numbers; torch refuses to list those of a subclass."""
        return self.raw.tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"RidgeTensor({self.raw!r})"


class _Backend:
    """What torch asks of a device's module (`torch.ridge`): there is one device, and it is the host."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def manual_seed_all(self, seed: int) -> None:
        """Random numbers are the host's."""

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_rng_state(self, device: Any = None) -> Tensor:  # noqa: ARG002
        """Random numbers are the host's."""
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:  # noqa: ARG002
        """Random numbers are the host's."""
        torch.set_rng_state(state)

    def device(self, device: Any) -> AbstractContextManager[None]:  # noqa: ARG002
        """There is one device."""
        return nullcontext()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def register() -> None:
    """Make `torch.device("ridge")` known; a second call does nothing."""
    if _libraries:
        return
    try:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as set_up
    except ImportError as error:
        raise InputError(
            f"the fake device {NAME} needs torch 2.13's Python backend; this is torch {torch.__version__}: "
            "name a real device, or install torch 2.13"
        ) from error
    set_up(NAME, backend_module=_Backend())
    library = torch.library.Library("aten", "IMPL")
    for name in (*_FACTORIES, *_KERNELS):
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if op is not None:
            library.impl(name, _kernel(op), "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    _libraries.append(library)


@contextmanager
def alter_results(alter: Alter) -> Iterator[None]:
    """Let `alter` see every op of the device, and answer for it; None leaves the host's result."""
    _alter.append(alter)
    try:
        yield
    finally:
        _alter.remove(alter)


@contextmanager
def lacking(lacks: Lacks) -> Iterator[None]:
    """Take kernels away from the device."""
    _lacks.append(lacks)
    try:
        yield
    finally:
        _lacks.remove(lacks)


def _without_kernel(op: str) -> None:
    name = op.replace(".", "::", 1).removesuffix(".default")
    for lacks in _lacks:
        if op in lacks.missing:
            raise NotImplementedError(f"Could not run '{name}' with arguments from the '{NAME}' backend.")
        if op in lacks.fallback:
            message = f"The operator '{name}' is not currently supported on the {NAME} backend and will fall back to "
            warnings.warn(message + "run on the CPU. This may have performance implications.", stacklevel=2)


def to_host(value: Any) -> Any:
    """The host tensors behind the device's, in any nest of arguments."""
    return tree_map(_unwrap, value)


def _kernel(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: _run(op, args, kwargs)


def _copy_from(source: Tensor, target: Tensor, _non_blocking: bool = False) -> Tensor:
    _unwrap(target).copy_(_unwrap(source))
    return target


def _unwrap(value: Any) -> Any:
    if isinstance(value, RidgeTensor):
        return value.raw
    if isinstance(value, torch.device) and value.type == NAME:
        return torch.device("cpu")
    return value


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One op of the device: the host's kernel, then whoever alters it."""
    if _lacks:
        _without_kernel(str(func))
    leaves_device = kwargs.get("device") is not None and torch.device(kwargs["device"]).type != NAME
    host_args, host_kwargs = to_host(args), to_host(kwargs)
    before = _before(func, host_args, host_kwargs) if _alter else (host_args, host_kwargs)
    result = _kernel_result(func, host_args, host_kwargs)
    for alter in _alter:
        visible_result = result if result is not None else _written(func, host_args, host_kwargs)
        altered_result = alter(str(func), before[0], before[1], visible_result)
        if altered_result is not None:
            put = _put(altered_result, visible_result, func)
            result = put if result is not None else None
    if leaves_device:
        return result
    wrappers = {id(x.raw): x for x in tree_leaves((args, kwargs)) if isinstance(x, RidgeTensor)}
    return tree_map(lambda x: _wrap(x, wrappers) if isinstance(x, Tensor) else x, result)


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an op without a result wrote: its lists of tensors."""
    names = [a.name for a in func._schema.arguments]
    written = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    outputs = [value for name, value in (*zip(names, args, strict=False), *kwargs.items()) if name in written]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _wrap(raw: Tensor, wrappers: dict[int, RidgeTensor]) -> RidgeTensor:
    """The device's tensor of a host tensor: an argument's own where the op wrote it."""
    wrapper = wrappers.get(id(raw))
    return RidgeTensor(raw) if wrapper is None else wrapper


def _rms_norm_backward(g: Tensor, x: Tensor, shape: Any, rstd: Tensor, w: Tensor | None, mask: Any) -> Any:
    """The host has none: in 32 bits, row by row."""
    wide, dims = x.float(), tuple(range(-len(shape), 0))
    hat, scaled_gradient = wide * rstd.float(), g.float() if w is None else g.float() * w.float()
    d_x = rstd.float() * (scaled_gradient - hat * (scaled_gradient * hat).mean(dims, keepdim=True))
    d_w = (g.float() * hat).reshape(-1, *shape).sum(0) if w is not None and mask[1] else None
    return d_x.to(x.dtype) if mask[0] else None, None if d_w is None or w is None else d_w.to(w.dtype)


_OWN = {"aten._fused_rms_norm_backward.default": _rms_norm_backward}


def _kernel_result(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if str(func) in _OWN:
        return _OWN[str(func)](*args, **kwargs)
    narrow = next((x.dtype for x in tree_leaves(args) if _floats(x)), None)
    if str(func) not in _WIDENED or narrow is None or kwargs.get("dtype") is not None:
        return func(*args, **kwargs)
    wide = tree_map(lambda x: x.float() if _floats(x) else x, (args, kwargs))
    result = func(*wide[0], **wide[1])
    return tree_map(lambda x: x.to(narrow) if isinstance(x, Tensor) else x, result)


def _floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _before(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments as they were: what an in-place op is about to write is copied."""
    if not func._schema.is_mutable:
        return args, kwargs
    written = [a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments]
    copies = tuple(tree_map(_clone, a) if w else a for a, w in zip(args, written, strict=False))
    names = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    return copies, {k: tree_map(_clone, v) if k in names else v for k, v in kwargs.items()}


def _clone(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _put(other: Any, result: Any, func: Any) -> Any:
    """The other result; into the same memory where the op writes in place."""
    if not func._schema.is_mutable:
        return other
    for old, new in zip(tree_leaves(result), tree_leaves(other), strict=False):
        if isinstance(old, Tensor) and isinstance(new, Tensor) and old is not new:
            old.copy_(new)
    return result
