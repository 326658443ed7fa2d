"""Ops that are one kernel where an engine fuses them: Ridgeline's own where there is Triton, torch's formula else.

    loss_and_slope   cross-entropy in 32 bits; the logits are overwritten by their gradient
    sum_of_squares   of many tensors
    turned           rotary positions of [batch, tokens, heads, width]
    gated            silu(gate) up, saving its two inputs alone

Inside a compiled layer the formulas stand as they are: the compiler makes kernels of them.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@cache
def _there() -> bool:
    return find_spec("triton") is not None


def has_kernels(x: Tensor) -> bool:
    """Whether Ridgeline's own kernels run where this tensor is."""
    return x.is_cuda and _there()


def loss_and_slope(logits: Tensor, targets: Tensor, scale: float) -> Tensor:
    """Summed cross-entropy of [tokens, vocabulary] times `scale`; the logits become the gradient of that."""
    if has_kernels(logits):
        from ridgeline.runtime.train import kernels

        return kernels.cross_entropy(logits, targets, scale).sum() * scale
    wide = logits.float()
    sums = wide.logsumexp(-1, keepdim=True)
    target_column = targets.unsqueeze(-1)
    loss = (sums - wide.gather(-1, target_column)).sum() * scale
    slope = (wide - sums).exp_()
    slope.scatter_add_(-1, target_column, torch.full_like(sums, -1.0))
    logits.copy_(slope.mul_(scale))
    return loss


def sum_of_squares(tensors: list[Tensor]) -> Tensor:
    """Of all elements of all tensors, in 32 bits."""
    if has_kernels(tensors[0]):
        from ridgeline.runtime.train import kernels

        return kernels.sums_of_squares([tensor.contiguous() for tensor in tensors])
    return torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float32)).square().sum()


class _Turned(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        from ridgeline.runtime.train import kernels

        ctx.save_for_backward(cos, sin)
        return kernels.rotate(x, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        from ridgeline.runtime.train import kernels

        cos, sin = ctx.saved_tensors
        return kernels.rotate(gradient, cos, sin, -1.0), None, None


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, *, fused: bool) -> Tensor:
    """Pairs (i, i + width / 2) of each head turned by the angle of their token; angles [tokens, width / 2], 32 bits."""
    if fused and has_kernels(x):
        return _Turned.apply(x, cos, sin)
    first, second = x.float().chunk(2, -1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class _Gated(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        from ridgeline.runtime.train import kernels

        ctx.save_for_backward(gate, up)
        return kernels.gated_activation(gate, up)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        from ridgeline.runtime.train import kernels

        gate, up = ctx.saved_tensors
        return kernels.gated_back(gate, up, gradient)


def gated_activation(gate: Tensor, up: Tensor, *, fused: bool) -> Tensor:
    """silu(gate) up (SwiGLU)."""
    return _Gated.apply(gate, up) if fused and has_kernels(gate) else functional.silu(gate) * up
