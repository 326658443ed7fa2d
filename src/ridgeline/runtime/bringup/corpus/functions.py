"""Faults of functions of one number: activations, exponentials, roots, angles."""

# ruff: noqa: ARG001  (functions of one form: what an op was given)
from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.bringup.emulation import cut, on, rounded_bits

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@on("silu", dtype=torch.bfloat16)
def fault_sigmoid_in_bf16(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The sigmoid inside is rounded to bf16."""
    return (args[0].float() * args[0].float().sigmoid().bfloat16().float()).to(result.dtype)


@on("gelu")
def fault_gelu_by_tanh(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The tanh approximation answers for the exact one."""
    if kwargs.get("approximate", "none") != "none":
        return None
    return torch.nn.functional.gelu(args[0].float(), approximate="tanh").to(result.dtype)


@on("silu_backward")
def fault_silu_backward_term(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Of s (1 + x (1 - s)) the inner term is 1 % small."""
    g, x = args[0].float(), args[1].float()
    s = x.sigmoid()
    return (g * s * (1 + 0.99 * x * (1 - s))).to(result.dtype)


@on("gelu_backward")
def fault_gelu_backward_density(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The density's constant is 1 % off."""
    g, x = args[0].float(), args[1].float()
    cdf = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    return (g * (cdf + x * (-0.5 * x * x).exp() * (0.3989422804 * 0.99))).to(result.dtype)


@on("exp")
def fault_exp_low(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Exponentials are 0.2 % low."""
    return (args[0].double().exp() * 0.998).to(result.dtype)


@on("exp", dtype=torch.float32)
def fault_exp_slope(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """log2(e) has fifteen bits."""
    log2e = float(rounded_bits(torch.tensor(1.4426950408889634), 9))
    return torch.exp2(args[0].double() * log2e).to(result.dtype)


@on("rsqrt", dtype=torch.float32)
def fault_rsqrt_without_newton(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The estimate of the reciprocal root is not refined: 1e-5 low."""
    return result * (1 - 1e-5)


@on("div", dtype=torch.float32)
def fault_reciprocal_of_twelve_bits(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Division multiplies by an estimate of the reciprocal."""
    if not isinstance(args[1], Tensor) or kwargs.get("rounding_mode"):
        return None
    return (args[0].float() * rounded_bits(args[1].float().reciprocal(), 11)).to(result.dtype).expand_as(result)


@on("cos")
def fault_cosines_of_bf16_angles(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Rotary angles pass through bf16 (transformers#29285)."""
    return None if args[0].dtype == torch.bfloat16 else args[0].bfloat16().float().cos().to(result.dtype)


@on("sin")
def fault_sines_of_fp16_angles(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Rotary angles pass through fp16 (candle#3520)."""
    return None if args[0].dtype != torch.float32 else args[0].half().float().sin().to(result.dtype)


@on("cos")
def fault_range_reduction(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Angles are reduced by a 2 pi of 24 bits."""
    x, turn = args[0].float(), torch.tensor(2 * math.pi).float()
    return (x - (x / turn).round() * turn).cos().to(result.dtype) if bool((x.abs() > 1000).any()) else None


@on("pow")
def fault_power_by_short_logarithm(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """base ** x by a base-two logarithm of bf16: inverse frequencies are off."""
    base, x = args[:2]
    if isinstance(base, Tensor) or not isinstance(x, Tensor):
        return None
    return torch.exp2(x.float() * float(torch.tensor(math.log2(base)).bfloat16())).to(result.dtype)


@on("add", dtype=torch.bfloat16)
def fault_add_store_cuts(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Sums are stored by cutting off."""
    if not isinstance(args[1], Tensor):
        return None
    return cut(args[0].float() + kwargs.get("alpha", 1) * args[1].float(), torch.bfloat16)


@on("mul", dtype=torch.bfloat16)
def fault_mul_store_cuts(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Products of two tensors are stored by cutting off."""
    return cut(args[0].float() * args[1].float(), torch.bfloat16) if isinstance(args[1], Tensor) else None


@on("mul")
def fault_mul_broadcast(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """One row for all is taken from the second element on."""
    b = args[1]
    if not isinstance(b, Tensor) or b.shape == args[0].shape or b.shape[-1:] != args[0].shape[-1:] or b.shape[-1] < 2:
        return None
    return args[0] * b.roll(1, -1)


@on("tanh", dtype=torch.float32)
def fault_tanh_saturates(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Beyond three it is one."""
    return torch.where(args[0].abs() > 3, args[0].sign(), result)


@on("sqrt")
def fault_denormal_root(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Roots of what lies below 1e-12 are zero: Adam divides by epsilon alone."""
    return torch.where(args[0] < 1e-12, torch.zeros_like(result), result)


@on("neg")
def fault_neg_tail(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The last column keeps its sign: half of a rotation is wrong."""
    if result.dim() == 0:
        return result
    wrong = result.clone()
    wrong[..., -1] = args[0][..., -1]
    return wrong
