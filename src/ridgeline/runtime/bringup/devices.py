"""Open the device that a torch string names, and ask what torch and its own arithmetic say of it.

    open_device("cuda:1")        usable afterwards, or an `InputError` with what to install or to write instead
    environment("cuda:1")        the device's name, torch's version, the driver's
    dispatch_key("cuda")         the dispatch key of a device type: CUDA
    kernel_of(op, key)           own, composite, fallback or none: what torch would run
    synchronises(op, args, kwargs)   whether the host must wait for the device to go on
    fingerprint(device)              figures of the arithmetic unit, of small calls whose exact results are known
    unit_of(fingerprint, allowed)    what contracts of products take from it

Each figure of a fingerprint comes from inputs that differ in one bit, or from sums whose exact result is zero, so that
what is left is the unit's own error. Private parts of torch stand here (the fake device has its own in `fake_device`);
a test asks whether a release has them.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import platform
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.core.errors import InputError, Problem, near
from ridgeline.hardware.device_names import chip_id
from ridgeline.runtime.bringup import fake_device
from ridgeline.runtime.bringup.arithmetic import Args, Kwargs, Unit, tensors_in
from ridgeline.runtime.bringup.fake_device import on_host
from ridgeline.runtime.bringup.findings import Fingerprint, Products, Rough
from ridgeline.runtime.probe.backend import PLUG_INS, cpu_name

FORM = re.compile(r"(?P<kind>[A-Za-z][A-Za-z_]*)(?::(?P<index>\d{1,4}))?")
# what makes torch know a device, for whoever lacks it
INSTALL: Mapping[str, str] = MappingProxyType(
    {
        "cuda": "a CUDA or ROCm build of torch (pytorch.org) and the driver of the GPU",
        "xpu": "an XPU build of torch (pip install torch --index-url https://download.pytorch.org/whl/xpu) "
        "and Intel's GPU driver",
        "mps": "macOS on Apple silicon, whose torch has mps built in",
        "npu": "Ascend's CANN toolkit and pip install torch_npu, of torch's own version",
        "hpu": "Intel Gaudi's driver and pip install habana-torch-plugin",
        "xla": "pip install torch_xla[tpu], of torch's own version",
        "mlu": "Cambricon's driver and the package torch_mlu",
        "musa": "Moore Threads' MUSA toolkit and the package torch_musa",
        "gcu": "Enflame's driver and the package torch_gcu",
        "mtia": "a build of torch with MTIA",
        "maia": "a build of torch with MAIA",
    }
)
DRIVERS = {"nvidia": "/proc/driver/nvidia/version", "amdgpu": "/sys/module/amdgpu/version"}
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "gpu": "cuda", "nvidia": "cuda", "rocm": "cuda", "hip": "cuda", "amd": "cuda", "tpu": "xla", "trainium": "xla",
        "neuron": "xla", "ascend": "npu", "gaudi": "hpu", "habana": "hpu", "apple": "mps", "metal": "mps",
        "intel": "xpu", "host": "cpu", "fake": fake_device.NAME,
    }
)  # fmt: skip


def open_device(name: str, *, faulted: bool = False) -> None:
    """Make a device usable; an `InputError` says why it is not. Only the fake one can be given faults."""
    match = FORM.fullmatch(name)
    if match is None:
        raise _refuse_device(
            name, "a torch device such as cpu, cuda, cuda:1 or ridge", "write its type, and a colon and index"
        )
    kind, index = match["kind"], int(match["index"] or 0)
    if faulted and kind != fake_device.NAME:
        expected_text, todo = "the fake device, whose ops can be faulted", f"use --device {fake_device.NAME}"
        raise InputError(Problem(path="--faults", given=name, expected=expected_text, todo=todo))
    if kind == fake_device.NAME:
        fake_device.register()
    elif kind != "cpu":
        _open(name, kind)
    count = 1 if kind == "cpu" else _count(torch.get_device_module(kind))
    if count is not None and index >= count:
        many = f"{count} device{'s' if count != 1 else ''} of type {kind} here"
        raise _refuse_device(name, many, f"name {kind}:0" + (f" to {kind}:{count - 1}" if count > 1 else ""))
    if kind not in ("cpu", fake_device.NAME):
        _try(name)


def _refuse_device(name: str, expected: str, todo: str) -> InputError:
    return InputError(Problem(path="--device", given=repr(name), expected=expected, todo=todo))


def _open(name: str, kind: str) -> None:
    """Import what registers a device type, and see that there is one."""
    if kind not in INSTALL and kind != plugged_in():
        known_devices = ("cpu", fake_device.NAME, *INSTALL)
        meant = ALIASES.get(kind.lower()) or next(iter(near(kind.lower(), known_devices, 1)), "")
        todo = f"did you mean {meant!r}?" if meant else "or install the package that registers it with torch"
        raise _refuse_device(name, "a device type that torch knows: " + ", ".join(known_devices), todo)
    install = (
        f"it needs {INSTALL.get(kind, 'the package that registers it')}; or try --device cpu or {fake_device.NAME}"
    )
    if kind in PLUG_INS:
        try:
            importlib.import_module(PLUG_INS[kind])
        except Exception as error:  # a plug-in without its driver's libraries raises whatever it likes
            message = " ".join(str(error).split())[:160]
            expected_text = f"a backend that is installed: importing {PLUG_INS[kind]} failed ({message})"
            raise _refuse_device(name, expected_text, install) from error
    module = getattr(torch, kind, None) or torch.get_device_module(kind)
    available = getattr(module, "is_available", None)
    if available is not None and not available():
        raise _refuse_device(name, f"a device that torch {torch.__version__} finds on this machine", install)


def _count(module: Any) -> int | None:
    count = getattr(module, "device_count", None)
    return int(count()) if count is not None else None


def _try(name: str) -> None:
    """A first tensor: what is installed may still not work."""
    try:
        torch.ones(2, device=name).add(1).cpu()
    except Exception as error:
        message = " ".join(str(error).split())[:200]
        raise _refuse_device(name, "a device that can add two numbers", f"torch said: {message}") from error


def environment(name: str) -> dict[str, str]:
    """The device, driver and software that decide which kernels run, for whoever compares two reports."""
    kind, _, index = name.partition(":")
    environment_ = {"device": device_name(name), "torch": torch.__version__, "python": platform.python_version()}
    environment_ |= {
        key: str(value) for key, value in (("cuda", torch.version.cuda), ("hip", torch.version.hip)) if value
    }
    with contextlib.suppress(Exception):
        environment_ |= {"cudnn": str(torch.backends.cudnn.version())} if kind == "cuda" else {}
    with contextlib.suppress(Exception):
        properties = torch.get_device_module(kind).get_device_properties(int(index or 0))
        environment_ |= {
            key: str(value)
            for key in ("gcnArchName", "driver_version")
            if (value := getattr(properties, key, None)) and (key != "gcnArchName" or torch.version.hip)
        }
    for vendor, path in DRIVERS.items():
        with contextlib.suppress(OSError):
            version = re.search(r"\d+\.\d+[\d.]*", Path(path).read_text(encoding="utf-8")[:400])
            environment_ |= {f"{vendor} driver": version[0]} if version and kind == "cuda" else {}
    with contextlib.suppress(Exception):
        if kind in PLUG_INS:
            package = PLUG_INS[kind].partition(".")[0]
            environment_[package] = str(sys.modules[package].__version__)
    environment_["threads"] = str(torch.get_num_threads())
    return environment_


def device_name(name: str) -> str:
    """What the backend calls the device; the host by its processor."""
    kind, _, index = name.partition(":")
    if kind in ("cpu", fake_device.NAME):
        return cpu_name() if kind == "cpu" else f"a fake device on {cpu_name()}"
    with contextlib.suppress(Exception):
        return str(torch.get_device_module(kind).get_device_name(int(index or 0)))
    return name


def likely_chip(name: str) -> str | None:
    """The catalog's chip of a device, by its name and memory; None where they do not tell."""
    kind, _, index = name.partition(":")
    if kind in ("cpu", fake_device.NAME):
        return None
    memory = 0
    with contextlib.suppress(Exception):
        memory = int(torch.get_device_module(kind).mem_get_info(int(index or 0))[1])
    return chip_id(device_name(name), memory)


Kernel = Literal["own", "composite", "fallback", "none"]

COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeImplicitAutogradNestedTensor")
# their result is a number of the host, or has a shape that depends on numbers of the device
WAITING = frozenset((
    "_local_scalar_dense", "item", "nonzero", "nonzero_numpy", "is_nonzero", "masked_select", "equal", "unique_dim",
    "_unique", "_unique2", "unique_consecutive", "unique_dim_consecutive", "bincount",
))  # fmt: skip


@cache
def dispatch_key(kind: str) -> str | None:
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


def synchronises(func: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    """Whether the host waits: a number is read back, a copy goes to the host, or a shape depends on numbers."""
    name = str(func._schema.name).removeprefix("aten::").partition(".")[0]
    if device_kind(args, kwargs) == "cpu" and name != "copy_":
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
        return any(x.dtype in masks for x in tensors_in(args[1]))
    return name == "repeat_interleave" and len(args) == 1


def device_kind(args: Args, kwargs: Kwargs) -> str:
    """The type of the device that an op reads from: not the host's where any of its tensors is elsewhere."""
    kinds = [x.device.type for x in tensors_in((args, kwargs))]
    if not kinds:
        return str(torch.device(kwargs.get("device") or "cpu").type)
    return next((kind for kind in kinds if kind != "cpu"), "cpu")


class OpMode(TorchDispatchMode):  # type: ignore[misc]
    """Sees every op below autograd: `see` runs it, or answers for it."""

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        return self.see(func, args, kwargs or {})

    def see(self, func: OpOverload, args: Args, kwargs: Kwargs) -> object:
        """One op with its arguments, and what the caller gets for it."""
        raise NotImplementedError


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


PRODUCT_FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[float, float]]] = {
    "exp": (torch.exp, (-20.0, 20.0)),
    "rsqrt": (torch.rsqrt, (1e-4, 100.0)),
    "log": (torch.log, (1e-4, 100.0)),
    "tanh": (torch.tanh, (-4.0, 4.0)),
    "sin": (torch.sin, (-100.0, 100.0)),
}
TERMS, ROWS = 4096, 128
T = TypeVar("T")


def fingerprint(device: str) -> Fingerprint:
    """Every figure that the device can be asked for; what it cannot run is left empty."""
    products = {name: _attempt(partial(_products, dtype, device)) for name, dtype in PRODUCT_FORMATS.items()}
    small = {name: _attempt(partial(_denormals, dtype, device)) for name, dtype in PRODUCT_FORMATS.items()}
    rough = {
        name: _attempt(partial(_rough, function, between, device)) for name, (function, between) in FUNCTIONS.items()
    }
    return Fingerprint(
        products={name: product for name, product in products.items() if product is not None},
        cast=_attempt(partial(_cast, device)) or "",
        denormals={name: denormal for name, denormal in small.items() if denormal is not None},
        fma=_attempt(partial(_fma, device)),
        functions={name: function for name, function in rough.items() if function is not None},
        fp8=_attempt(partial(_fp8, device)) or {},
    )


def unit_of(found: Fingerprint | None, allowed: frozenset[str] = frozenset()) -> Unit:
    """What products may do: accumulators that cut off are what they are, TF32 must be allowed."""
    factor_bits = 11 if "tf32" in allowed else 24
    return Unit(factor_bits=factor_bits, cuts_off=found is not None and found.cuts_off)


def _attempt(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def _products(dtype: torch.dtype, device: str) -> Products:
    """Bits of the factors, bits and rounding of the sums."""
    source = torch.Generator().manual_seed(1)
    size = torch.randint(0, 11, (ROWS, TERMS), generator=source)
    x = (torch.rand(ROWS, TERMS, generator=source) * 0.5 + 0.5) * 2.0**-size
    x = x.to(torch.bfloat16).double()
    remaining, columns = x.sum(1), []
    total = remaining.clone()
    for _ in range(8):  # the sum in parts of a few bits: taken off again at the end
        part = remaining.to(torch.bfloat16).double()
        columns.append(-part)
        remaining = remaining - part
    padded_rows = torch.cat((x, torch.stack(columns, 1), torch.zeros(ROWS, 8, dtype=torch.float64)), 1).to(dtype)
    ones = torch.ones(padded_rows.shape[1], 16, dtype=dtype)
    error = on_host(padded_rows.to(device) @ ones.to(device)).double()[:, 0]
    relative = error / total
    noise = float(relative.std()) / ROWS**0.5
    rms = max(float(relative.square().mean().sqrt()), 2.0**-30)
    mean = float(relative.mean())
    leans = abs(mean) > 8 * noise and abs(mean) > 2.0**-26
    sums = "nearest" if not leans else "toward zero" if mean < 0 else "away from zero"
    return Products(factor_bits=_factor_bits(dtype, device), bits=round(-math.log2(rms), 1), sums=sums, lean=mean)


def _factor_bits(dtype: torch.dtype, device: str) -> int:
    """How many significant bits of a factor a product keeps: 24 in fp32, 11 in TF32, 8 in bf16."""
    top = 24 if dtype == torch.float32 else 8
    a = torch.zeros(32, 32, dtype=torch.float64)
    a[:top, 0] = 1 + 2.0 ** -torch.arange(top, dtype=torch.float64)
    b = torch.zeros(32, 32, dtype=torch.float64)
    b[0] = 1.0
    y = on_host(a.to(dtype).to(device) @ b.to(dtype).to(device)).double()[:top, 0]
    kept_bits = [k for k in range(1, top) if float(y[k]) == 1 + 2.0**-k]
    return 1 + max(kept_bits, default=0)


def _cast(device: str) -> str:
    """How fp32 becomes bf16."""
    x = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-12, -(1 + 2.0**-8 + 2.0**-12)])
    y = ((on_host(x.to(device).to(torch.bfloat16)).double().abs() - 1) * 2**7).tolist()
    cast_modes = {
        (0, 2, 1, 1): "nearest, ties to even", (1, 2, 1, 1): "nearest, ties away", (0, 1, 0, 0): "toward zero",
        (0, 1, 1, 1): "nearest, ties toward zero", (1, 2, 1, 0): "up", (0, 1, 0, 1): "down",
    }  # fmt: skip
    return cast_modes.get(tuple(round(v) for v in y), "other")


def _denormals(dtype: torch.dtype, device: str) -> str:
    """Whether numbers below the smallest normal one are kept."""
    tiny = torch.finfo(dtype).tiny
    half_tiny = on_host(torch.tensor([tiny], dtype=dtype).to(device) * 0.5)
    doubled_tiny = on_host(torch.tensor([tiny / 2], dtype=dtype).to(device) * 2.0)
    writes_denormals, read = float(half_tiny) != 0, float(doubled_tiny) != 0
    return (
        "kept"
        if writes_denormals and read
        else "flushed"
        if not writes_denormals and not read
        else "read only"
        if read
        else "made only"
    )


def _fma(device: str) -> bool:
    """Whether a product is added before it is rounded (addcmul)."""
    a, b, c = (torch.tensor([v]).to(device) for v in (1 + 2.0**-12, 1 - 2.0**-12, -1.0))
    return float(on_host(torch.addcmul(c, a, b))) != 0


def _rough(function: Callable[[Tensor], Tensor], between: tuple[float, float], device: str) -> Rough:
    """The largest error of a function in fp32 in units in the last place, and the mean of all."""
    low, high = between
    x = torch.linspace(low, high, 20_011)
    exact = function(x.double())
    ulp = torch.ldexp(torch.full_like(exact, 2.0**-23), torch.frexp(exact.abs().clamp(min=1e-30)).exponent - 1)
    error = (on_host(function(x.to(device))).double() - exact) / ulp
    near = exact.abs() > 1e-3 * exact.abs().max() if function is torch.sin else torch.ones_like(exact, dtype=torch.bool)
    error = error[near]
    return Rough(ulp=round(float(error.abs().max()), 2), bias=round(float((error * exact[near].sign()).mean()), 3))


def _fp8(device: str) -> dict[str, str]:
    """Where e4m3 ends, and what lies beyond it becomes."""
    formats = {}
    for name, dtype in (("e4m3fn", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        x = torch.tensor([240.0, 256.0, 448.0, 57344.0, 1e6]).to(device)
        y = on_host(x.to(dtype)).float()
        ends = [v for v, got in zip((240.0, 256.0, 448.0, 57344.0), y.tolist(), strict=False) if got == v]
        last = float(y[-1])
        beyond = "NaN" if math.isnan(last) else "infinity" if math.isinf(last) else "saturates"
        formats[name] = f"{max(ends, default=0.0):g}, beyond: {beyond}"
    return formats
