"""Ops that are one kernel where an engine fuses them: Ridgeline's own where there is Triton, torch's formula else.

    head and loss         loss = scale  sum over tokens of log sum exp(x W^T) - (x W^T)[target]
                          dL/dlogits = scale (softmax - one-hot)      dX = dL/dlogits W      dW = dL/dlogits^T x
    products in 8 bits    y = (x / a) (w / b)^T  a b,  a, b = largest absolute value of the tensor, or of each row, over
                          the format's own

With one chunk the gradient of the logits stays until the backward pass, which multiplies with it. With more, both
products follow at once and logits take a chunk's memory (linear cross-entropy); the weight's gradient adds up in the
format of the weight.

In 8 bits values and weights are e4m3, gradients e5m2, which reaches further. The second operand is column-major, as
Hopper's tensor cores want it: the backward pass casts into transposed copies. Scales are those of the tensor at hand
(dynamic scaling). Weights, what is saved for the backward and what is accumulated stay wide.

Inside a compiled layer the formulas stand as they are: the compiler makes kernels of them.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional


@cache
def _kernels() -> Any:
    """Ridgeline's own kernels; None where there is no Triton."""
    return import_module("ridgeline.runtime.train.kernels") if find_spec("triton") is not None else None


def has_kernels(x: Tensor) -> bool:
    """Whether Ridgeline's own kernels run where this tensor is."""
    return x.is_cuda and _kernels() is not None


def loss_and_slope(logits: Tensor, targets: Tensor, scale: float) -> Tensor:
    """Summed cross-entropy of [tokens, vocabulary] times `scale`; the logits become the gradient of that."""
    if has_kernels(logits):
        return _kernels().cross_entropy(logits, targets, scale).sum() * scale
    wide = logits.float()
    sums = wide.logsumexp(-1, keepdim=True)
    target_column = targets.unsqueeze(-1)
    loss = (sums - wide.gather(-1, target_column)).sum() * scale
    slope = (wide - sums).exp_()
    slope.scatter_add_(-1, target_column, torch.full_like(sums, -1.0))
    logits.copy_(slope.mul_(scale))
    return loss


def sum_of_squares(tensors: list[Tensor]) -> Tensor:
    if has_kernels(tensors[0]):
        return _kernels().sums_of_squares([tensor.contiguous() for tensor in tensors])
    return torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float32)).square().sum()


class _Rotary(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _kernels().rotate(x, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _kernels().rotate(gradient, cos, sin, -1.0), None, None


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, *, fused: bool) -> Tensor:
    """Pairs (i, i + width / 2) of each head turned by the angle of their token; angles [tokens, width / 2], 32 bits."""
    if fused and has_kernels(x):
        return _Rotary.apply(x, cos, sin)
    first, second = x.float().chunk(2, -1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class _GatedActivation(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: FunctionCtx, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return _kernels().gated_activation(gate, up)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        d_gate, d_up = _kernels().gated_back(gate, up, gradient)
        return d_gate, d_up


def gated_activation(gate: Tensor, up: Tensor, *, fused: bool) -> Tensor:
    return _GatedActivation.apply(gate, up) if fused and has_kernels(gate) else functional.silu(gate) * up


CHUNK = 2048  # tokens whose logits exist at a time where head and loss are one


class _LinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, how: tuple[float, int]
    ) -> Tensor:
        scale, chunk = how
        ctx.biased = bias is not None
        if len(x) <= chunk:
            slope = functional.linear(x, weight, bias)
            loss = loss_and_slope(slope, targets, scale)
            ctx.whole = True
            ctx.save_for_backward(x, weight, slope)
            return loss
        ctx.whole = False
        loss = torch.zeros((), dtype=torch.float32, device=x.device)
        d_x, d_weight, d_bias = torch.empty_like(x), None, None
        for first in range(0, len(x), chunk):
            rows = slice(first, first + chunk)
            slope = functional.linear(x[rows], weight, bias)
            loss += loss_and_slope(slope, targets[rows], scale)
            torch.mm(slope, weight, out=d_x[rows])
            if d_weight is None:
                d_weight = slope.t() @ x[rows]
                d_bias = slope.sum(0) if bias is not None else None
            else:
                d_weight.addmm_(slope.t(), x[rows])
                d_bias = d_bias + slope.sum(0) if d_bias is not None else None
        ctx.save_for_backward(d_x, d_weight, *(() if d_bias is None else (d_bias,)))
        return loss

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.whole:
            gradients = [
                tensor.mul_(gradient.to(tensor.dtype)) for tensor in ctx.saved_tensors
            ]  # read once: nothing else holds them
            return (*gradients, *(() if ctx.biased else (None,)), None, None)
        x, weight, slope = ctx.saved_tensors
        factor = gradient.to(x.dtype)
        d_x = (slope @ weight) * factor
        d_weight = slope.t() @ (x * factor)
        return d_x, d_weight, slope.sum(0) * factor if ctx.biased else None, None, None


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scale: float, *, chunked: bool
) -> Tensor:
    """`scale` times the summed loss of tokens [batch, tokens, hidden] against the rows of a vocabulary."""
    x, targets = x.flatten(0, 1), targets.flatten()
    return _LinearCrossEntropy.apply(x, weight, bias, targets, (scale, CHUNK if chunked else len(x)))


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, targets: Tensor, scale: float) -> Tensor:
        slope = logits.detach().clone()
        loss = loss_and_slope(slope, targets, scale)
        ctx.save_for_backward(slope)
        return loss

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * gradient.to(slope.dtype), None, None


def fused_cross_entropy(logits: Tensor, targets: Tensor, scale: float) -> Tensor:
    """`scale` times the summed loss of logits that somebody else holds too."""
    return _CrossEntropy.apply(logits, targets, scale)


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
    (a, a_scale), (b, b_scale) = one, other
    return torch._scaled_mm(
        a, b.t(), scale_a=a_scale, scale_b=b_scale if b_scale.dim() == 0 else b_scale.t(), out_dtype=like.dtype,
        use_fast_accum=fast,
    )  # fmt: skip


class _ScaledLinear(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, rows: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rows = rows
        return _product(_cast(x, VALUES, rows=rows), _cast(weight, VALUES, rows=rows), x, fast=True)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
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
