"""Matrix products in 8 bits (fp8): both operands scaled into range and cast, the product in the format of the input.

    y = (x / a) (w / b)^T  a b        a, b = largest absolute value of the tensor, or of each row, over the format's own

Values and weights are e4m3, gradients e5m2, which reaches further. The second operand of a product is column-major, as
Hopper's tensor cores want it in 8 bits: the backward pass casts into transposed copies. Scales are those of the tensor
at hand (dynamic scaling). Weights, what is saved for the backward and what is accumulated stay wide.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
ALIGNED = 16  # elements: both dims of a weight, and tokens
SMALLEST = 1e-12  # largest absolute value that is still divided by


def _cast(x: Tensor, format: torch.dtype, *, rows: bool = False) -> tuple[Tensor, Tensor]:
    """[m, k] in 8 bits with what it was divided by: one number, or one a row."""
    top = torch.finfo(format).max
    largest = x.abs().amax(-1, keepdim=True) if rows else x.abs().amax()
    scale = largest.float().clamp(min=SMALLEST) / top
    return (x.float() / scale).clamp(-top, top).to(format), scale


def _transpose_cast(cast: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The same with rows for columns: 8 bits are moved, not the wide tensor."""
    return cast[0].t().contiguous(), cast[1]


def _product(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], like: Tensor, *, fast: bool) -> Tensor:
    """[m, k] times [n, k]^T."""
    (a, a_scale), (b, b_scale) = one, other
    return torch._scaled_mm(
        a, b.t(), scale_a=a_scale, scale_b=b_scale if b_scale.dim() == 0 else b_scale.t(), out_dtype=like.dtype,
        use_fast_accum=fast,
    )  # fmt: skip


class _ScaledLinear(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rows: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rows = rows
        return _product(_cast(x, VALUES, rows=rows), _cast(weight, VALUES, rows=rows), x, fast=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        if ctx.rows:  # another scale for each row of what is turned; the reach of e4m3 is enough then
            back, transposes = (
                VALUES,
                [_cast(part.t().contiguous(), VALUES, rows=True) for part in (weight, gradient, x)],
            )
        else:
            back = GRADIENTS
            transposes = [
                _transpose_cast(_cast(weight, VALUES)),
                _transpose_cast(_cast(gradient, back)),
                _transpose_cast(_cast(x, VALUES)),
            ]
        d_x = _product(_cast(gradient, back, rows=ctx.rows), transposes[0], x, fast=False)
        return d_x, _product(transposes[1], transposes[2], weight, fast=False), None


def scaled_linear(x: Tensor, weight: Tensor, bias: Tensor | None, scaling: str) -> Tensor:
    """A linear layer whose three products are in 8 bits; as wide as stored where a dim is not a multiple of 16."""
    flat = x.reshape(-1, x.shape[-1])
    if any(size % ALIGNED for size in (*weight.shape, flat.shape[0])):
        return functional.linear(x, weight, bias)
    out = _ScaledLinear.apply(flat, weight, scaling == "row").view(*x.shape[:-1], weight.shape[0])
    return out if bias is None else out + bias


def lacks_narrow(device: str) -> str:
    """Why a device has no products in 8 bits; empty where it has."""
    if not device.startswith("cuda"):
        return "" if device.startswith("cpu") else "products in 8 bits are known of CUDA devices alone"
    capability = torch.cuda.get_device_capability(torch.device(device))
    return "" if capability >= (8, 9) else f"compute capability {capability[0]}.{capability[1]}, below 8.9"
