"""The fingerprint of an arithmetic unit: what products keep, how sums and stores round, how rough functions are.

    fingerprint(device)              small calls whose exact results are known
    unit_of(fingerprint, allowed)    what contracts of products take from it

Each figure comes from inputs that differ in one bit, or from sums whose exact result is zero, so that what is left is
the unit's own error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from ridgeline.runtime.bringup.arithmetic import Unit
from ridgeline.runtime.bringup.prints import Fingerprint, Products, Rough
from ridgeline.runtime.bringup.tensors import on_host

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
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
    products = {name: _try(partial(_products, dtype, device)) for name, dtype in FORMATS.items()}
    small = {name: _try(partial(_denormals, dtype, device)) for name, dtype in FORMATS.items()}
    rough = {name: _try(partial(_rough, function, between, device)) for name, (function, between) in FUNCTIONS.items()}
    return Fingerprint(
        products={name: product for name, product in products.items() if product is not None},
        cast=_try(partial(_cast, device)) or "",
        denormals={name: denormal for name, denormal in small.items() if denormal is not None},
        fma=_try(partial(_fma, device)),
        functions={name: function for name, function in rough.items() if function is not None},
        fp8=_try(partial(_fp8, device)) or {},
    )


def unit_of(found: Fingerprint | None, allowed: frozenset[str] = frozenset()) -> Unit:
    """What products may do: accumulators that cut off are what they are, TF32 must be allowed."""
    factor_bits = 11 if "tf32" in allowed else 24
    return Unit(factor_bits=factor_bits, cuts_off=found is not None and found.cuts_off)


def _try(ask: Callable[[], T]) -> T | None:
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
