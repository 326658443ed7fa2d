"""A fake accelerator: the torch device `ridge`, whose ops are the host's and may be made to misbehave.

    torch.device("ridge")            a tensor there wraps one on the host; every op that reaches the device unwraps its
                                     arguments, runs the host's kernel, and wraps the result
    with alter_results(f): ...       f(op, args, kwargs, result) sees each op with host tensors and may answer for it
    with lacking(l): ...             ops that the device does not have, or leaves to the host with torch's usual warning
    on_host, on_device               copies of tensors between host and any device, with their strides and offsets
    equal_bits(ours, theirs)         whether two lists of results are the same numbers, NaNs included
    on, cut, added_in, ...           arithmetic of other machines on the host, for faults and personalities

Private parts of torch are used: the Python backend of torch 2.13 (`_setup_privateuseone_for_python_backend`,
experimental) and wrapper subclasses with a dispatch of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.core.errors import InputError
from ridgeline.runtime.bringup.arithmetic import Args, HostCall, Kwargs, Outputs, T, clone_tensors, written_names

NAME = "ridge"
FP32, BF16 = torch.float32, torch.bfloat16

Alter = Callable[[str, Args, Kwargs, Any], object]  # an op, its arguments and result; None: the op's own

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
    def __torch_dispatch__(
        cls, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        return _run(func, args, kwargs or {})

    def tolist(self) -> object:
        """The numbers; torch refuses to list those of a subclass."""
        return self.raw.tolist()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"RidgeTensor({self.raw!r})"


# what torch asks of a device's module (`torch.ridge`): there is one device, and it is the host, random numbers too
_BACKEND = SimpleNamespace(
    is_initialized=lambda: True,
    is_available=lambda: True,
    current_device=lambda: 0,
    device_count=lambda: 1,
    manual_seed_all=lambda seed: None,  # noqa: ARG005
    _is_in_bad_fork=lambda: False,
    get_rng_state=lambda device=None: torch.get_rng_state(),  # noqa: ARG005
    set_rng_state=lambda state, device=None: torch.set_rng_state(state),  # noqa: ARG005
    device=lambda device: nullcontext(),  # noqa: ARG005
    get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
)


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
    set_up(NAME, backend_module=_BACKEND)
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
    yield from _while_listed(alter, _alter)


@contextmanager
def lacking(lacks: Lacks) -> Iterator[None]:
    """Take kernels away from the device."""
    yield from _while_listed(lacks, _lacks)


def _while_listed(entry: T, entries: list[T]) -> Iterator[None]:
    entries.append(entry)
    try:
        yield
    finally:
        entries.remove(entry)


def _without_kernel(op: str) -> None:
    name = op.replace(".", "::", 1).removesuffix(".default")
    for lacks in _lacks:
        if op in lacks.missing:
            raise NotImplementedError(f"Could not run '{name}' with arguments from the '{NAME}' backend.")
        if op in lacks.fallback:
            message = f"The operator '{name}' is not currently supported on the {NAME} backend and will fall back to "
            warnings.warn(message + "run on the CPU. This may have performance implications.", stacklevel=2)


def to_host(value: T) -> T:
    """The host tensors behind the device's, in any nest of arguments."""
    host_value: T = tree_map(_unwrap, value)
    return host_value


def _kernel(op: OpOverload) -> Callable[..., object]:
    return lambda *args, **kwargs: _run(op, args, kwargs)


def _copy_from(source: Tensor, target: Tensor, _non_blocking: bool = False) -> Tensor:
    _unwrap(target).copy_(_unwrap(source))
    return target


def _unwrap(value: object) -> Any:
    if isinstance(value, RidgeTensor):
        return value.raw
    if isinstance(value, torch.device) and value.type == NAME:
        return torch.device("cpu")
    return value


def _run(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
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


def _written(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """What an op without a result wrote: its lists of tensors."""
    names, written = [a.name for a in func._schema.arguments], written_names(func)
    outputs = [value for name, value in (*zip(names, args, strict=False), *kwargs.items()) if name in written]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _wrap(raw: Tensor, wrappers: dict[int, RidgeTensor]) -> RidgeTensor:
    """The device's tensor of a host tensor: an argument's own where the op wrote it."""
    wrapper = wrappers.get(id(raw))
    return RidgeTensor(raw) if wrapper is None else wrapper


def _rms_norm_backward(
    g: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, w: Tensor | None, mask: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """The host has none: in 32 bits, row by row."""
    wide, dims = x.float(), tuple(range(-len(shape), 0))
    hat, scaled_gradient = wide * rstd.float(), g.float() if w is None else g.float() * w.float()
    d_x = rstd.float() * (scaled_gradient - hat * (scaled_gradient * hat).mean(dims, keepdim=True))
    d_w = (g.float() * hat).reshape(-1, *shape).sum(0) if w is not None and mask[1] else None
    return d_x.to(x.dtype) if mask[0] else None, None if d_w is None or w is None else d_w.to(w.dtype)


_OWN = {"aten._fused_rms_norm_backward.default": _rms_norm_backward}


def _kernel_result(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    if str(func) in _OWN:
        return _OWN[str(func)](*args, **kwargs)
    narrow = next((x.dtype for x in tree_leaves(args) if _floats(x)), None)
    if str(func) not in _WIDENED or narrow is None or kwargs.get("dtype") is not None:
        return func(*args, **kwargs)
    wide = tree_map(lambda x: x.float() if _floats(x) else x, (args, kwargs))
    result = func(*wide[0], **wide[1])
    return tree_map(lambda x: x.to(narrow) if isinstance(x, Tensor) else x, result)


def _floats(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _before(func: OpOverload, args: Args, kwargs: Kwargs) -> HostCall:
    """The arguments as they were: what an in-place op is about to write is copied."""
    if not func._schema.is_mutable:
        return args, kwargs
    written = written_names(func)
    pairs = zip(args, func._schema.arguments, strict=False)
    copies = tuple(clone_tensors(value) if argument.name in written else value for value, argument in pairs)
    return copies, {name: clone_tensors(value) if name in written else value for name, value in kwargs.items()}


def _put(other: object, result: object, func: OpOverload) -> object:
    """The other result; into the same memory where the op writes in place."""
    if not func._schema.is_mutable:
        return other
    for old, new in zip(tree_leaves(result), tree_leaves(other), strict=False):
        if isinstance(old, Tensor) and isinstance(new, Tensor) and old is not new:
            old.copy_(new)
    return result


MOST_OFFSET = 4096  # elements before a view that are kept


def on_host(value: object) -> Any:
    """A copy of a tensor in the host's memory; devices become the host."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if not isinstance(value, Tensor):
        return value
    raw_value = value.raw if isinstance(value, RidgeTensor) else value  # no op of the fake device is needed to read it
    return _move_tensor(raw_value.detach(), torch.device("cpu"))


def on_device(value: object, device: torch.device | str) -> Any:
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


def equal_bits(ours: Outputs, theirs: Outputs | None) -> bool:
    """Whether two lists of results are the same; NaNs compare as what they are."""
    if theirs is None or len(ours) != len(theirs):
        return False
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if isinstance(a, Tensor)]
    return all(
        isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))
        for a, b in pairs
    )


def _bits(x: Tensor) -> Tensor:
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(words[x.element_size()]) if x.is_floating_point() else x


def on(*packets: str, dtype: torch.dtype | None = None) -> Callable[[Callable[..., Any]], Alter]:
    """Turn f(args, kwargs, result) into what answers for these ops alone (`mm` is any overload), in one format.

    The first output decides the format. Answers are stored in the formats of the results.
    """

    def wrap(alter: Callable[..., Any]) -> Alter:
        def answer(op: str, args: Args, kwargs: Kwargs, result: object) -> object:
            if packet(op) not in packets or (dtype is not None and _format(result) != dtype):
                return None
            return _store_like(alter(args, kwargs, result), result)

        answer.packets = packets  # type: ignore[attr-defined]
        return answer

    return wrap


def _store_like(answer: object, result: object) -> object:
    if isinstance(answer, Tensor) and isinstance(result, Tensor):
        return answer.to(result.dtype)
    if isinstance(answer, tuple | list) and isinstance(result, tuple | list) and len(answer) == len(result):
        return type(answer)(map(_store_like, answer, result))
    return answer


def packet(op: str) -> str:
    """`mm` of `aten.mm.default`."""
    return op.split(".")[1] if op.count(".") else op


def _format(result: object) -> torch.dtype | None:
    parts = result if isinstance(result, tuple | list) else (result,)
    return next((x.dtype for x in parts if isinstance(x, Tensor)), None)


def rounded_bits(x: Tensor, bits: int) -> Tensor:
    """An fp32 tensor rounded to nearest even with so many of its low bits gone."""
    whole = x.float().contiguous().view(torch.int32)
    half = (1 << (bits - 1)) - 1 + ((whole >> bits) & 1)
    near = ((whole + half) & ~((1 << bits) - 1)).view(torch.float32)
    return torch.where(x.float().isfinite(), near, x.float())


def with_part(x: Tensor, part: object, value: object) -> Tensor:
    """A copy of a tensor with another value in one part of it."""
    copy = x.clone()
    copy[part] = value
    return copy


def tf32(x: Tensor) -> Tensor:
    """fp32 with the ten fraction bits of TF32."""
    return rounded_bits(x, 13)


def cut(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x stored in a format by cutting off what does not fit (round toward zero)."""
    near = x.to(dtype)
    wide = x.to(torch.float64)
    over = near.to(torch.float64).abs() > wide.abs()
    nearer_zero = (_bits(near) - 1).view(dtype)  # one less in the bits of the magnitude
    return torch.where(over & near.isfinite(), nearer_zero, near)


def ties_away(x: Tensor) -> Tensor:
    """fp32 rounded to bf16, ties away from zero."""
    bits = x.float().contiguous().view(torch.int32)
    near = ((bits + (1 << 15)) & ~0xFFFF).view(torch.float32)
    return torch.where(x.float().isfinite(), near, x.float()).to(torch.bfloat16)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b of any two formats, in fp32."""
    return a.float() @ b.float()


def partial_products(a: Tensor, b: Tensor, parts: int) -> list[Tensor]:
    """Products of so many stretches of the summed dim, in fp32."""
    size = -(-a.shape[-1] // parts)
    return [product(a[..., k : k + size], b[..., k : k + size, :]) for k in range(0, a.shape[-1], size)]


def added_in(terms: Iterable[Tensor], dtype: torch.dtype) -> Tensor:
    """Terms added one after another, each sum stored in a format."""
    total: Tensor | None = None
    for term in terms:
        total = term.to(dtype) if total is None else (total.float() + term.float()).to(dtype)
    if total is None:
        raise ValueError("no terms")
    return total


def operands(op_args: Args) -> tuple[Tensor | None, Tensor, Tensor]:
    """Bias and factors of mm, bmm (two tensors), addmm, baddbmm (three)."""
    tensors = [x for x in op_args if isinstance(x, Tensor)]
    return (tensors[0], tensors[1], tensors[2]) if len(tensors) == 3 else (None, tensors[0], tensors[1])


def with_bias(y: Tensor, bias: Tensor | None, kwargs: Kwargs) -> Tensor:
    """alpha y + beta bias in fp32."""
    scaled_product = y if kwargs.get("alpha", 1) == 1 else y * kwargs["alpha"]
    return scaled_product if bias is None else scaled_product + kwargs.get("beta", 1) * bias.float()
