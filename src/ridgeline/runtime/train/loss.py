"""Head and loss together: the logits of a part of the tokens exist at a time, and become their own gradient.

    loss = scale  sum over tokens of log sum exp(x W^T) - (x W^T)[target]
    dL/dlogits = scale (softmax - one-hot)          dX = dL/dlogits W          dW = dL/dlogits^T x

With one chunk the gradient of the logits stays until the backward pass, which multiplies with it. With more, both
products follow at once and logits take a chunk's memory (linear cross-entropy); the weight's gradient adds up in the
format of the weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.runtime.train.fused import loss_and_slope

CHUNK = 2048  # tokens whose logits exist at a time where head and loss are one


class _LinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, how: tuple[float, int]
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
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
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
    def forward(ctx: Any, logits: Tensor, targets: Tensor, scale: float) -> Tensor:
        slope = logits.detach().clone()
        loss = loss_and_slope(slope, targets, scale)
        ctx.save_for_backward(slope)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * gradient.to(slope.dtype), None, None


def fused_cross_entropy(logits: Tensor, targets: Tensor, scale: float) -> Tensor:
    """`scale` times the summed loss of logits that somebody else holds too."""
    return _CrossEntropy.apply(logits, targets, scale)
