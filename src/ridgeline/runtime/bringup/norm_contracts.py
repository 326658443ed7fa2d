"""Contracts of softmax and norms: rows whose elements share a sum, and with it its error."""

# ruff: noqa: ARG001  (programs of one form: a Draw, the op, its arguments)
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.bringup.arithmetic import Draw


def softmax(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """exp(x - max) over its sum; the difference is off by its own rounding, the sum by one that the row shares."""
    x, dim = args[0], args[1]
    y = func(*args, **kwargs)
    top = x.amax(dim, keepdim=True)
    distances = (x - torch.where(top.isinf(), torch.zeros_like(top), top)).abs()
    row = draw.rounded(draw.summed(ones := torch.ones_like(top), ones, x.shape[dim] if x.dim() else 1), units=4.0)
    row = draw.off(row, torch.logsumexp(x, dim, keepdim=True).abs())  # exp(x - log-sum): the sum has its own rounding
    y = draw.tilt_towards(draw.off(y, y * distances, units=2.0), y * distances)
    return [draw.common(draw.rounded(y * row, units=4.0), 2.0)]


def log_softmax(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """x - max - log(sum): the error is that of the largest number on the way; the row's log-sum may be stored."""
    x, dim = args[0], args[1]
    y = func(*args, **kwargs)
    lse = torch.logsumexp(x, dim, keepdim=True)
    row = draw.stored(lse) - lse
    size = x.abs() + lse.abs() + 1
    row = draw.summed(row, torch.ones_like(lse), x.shape[dim])
    return [draw.off(y, size, units=2.0) + draw.off(torch.zeros_like(lse), lse.abs() + 1, units=2.0) + row]


def softmax_backward(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """p (g - sum(g p)), or g - exp(y) sum(g): a sum in 32 bits that every element of the row shares."""
    g, p, dim = args[:3]
    if func._schema.name == "aten::_log_softmax_backward_data":
        total = row_sum(draw, g, (dim,))
        return [two_parts(draw, g, -draw.rounded(p.exp(), units=4.0) * total)]
    shares = draw.stored(g * p)  # kernels may be handed the product
    return [two_parts(draw, shares, -p * row_sum(draw, shares, (dim,)))]


def layer_norm(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """(x - mean) / sqrt(var + eps) w + b, and mean and 1 / sqrt, each row's own and shared by its elements."""
    x, shape, w, b, eps = args[:5]
    dims, n = over(shape)
    mean = row_sum(draw, x, dims) / n
    centred_input = x - x.mean(dims, keepdim=True)
    var = draw.off(
        centred_input.square().mean(dims, keepdim=True), x.square().mean(dims, keepdim=True), units=4.0
    ).clamp(min=0)
    rstd = draw.rounded((var + eps).rsqrt(), units=3.0)
    y = draw.off((x - mean) * rstd, (x.abs() + mean.abs()) * rstd, units=2.0)
    y = y if w is None else draw.rounded(y * w)
    return [y if b is None else draw.off(y + b, y.abs() + b.abs()), mean, rstd]


def layer_norm_backward(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """dx = rstd (g w - mean(g w) - xhat mean(g w xhat)); dw and db are sums over rows."""
    g, x, shape, mean, rstd, w, _, mask = args
    dims, n = over(shape)
    hat, scaled_gradient = (x - mean) * rstd, g if w is None else g * w
    inner = row_sum(draw, scaled_gradient, dims) / n, row_sum(draw, scaled_gradient * hat, dims) / n
    size = rstd * (
        scaled_gradient.abs()
        + inner[0].abs()
        + hat.abs() * inner[1].abs()
        + (x.abs() + mean.abs()) * rstd * inner[1].abs()
    )
    dx = draw.off(rstd * (scaled_gradient - inner[0] - hat * inner[1]), size, units=4.0)
    return [dx if mask[0] else None, *weight_gradients(draw, g, g * hat, shape, mask[1:])]


def group_norm(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Layer norm of each group of channels, weighed by channel."""
    x, w, b, count, _, _, groups, eps = args[:8]
    rows = x.reshape(count, groups, -1)
    _, mean, rstd = layer_norm(draw, func, (rows, rows.shape[-1:], None, None, eps), {})
    mean, rstd = draw.sometimes_stored(mean), draw.sometimes_stored(rstd)  # as the backward will read them
    y = draw.off((rows - mean) * rstd, (rows.abs() + mean.abs()) * rstd, units=2.0)
    y, side = y.reshape(x.shape), (1, -1, *[1] * (x.dim() - 2))
    y = y if w is None else draw.rounded(y * w.reshape(side))
    y = y if b is None else draw.off(y + b.reshape(side), y.abs() + b.abs().reshape(side))
    return [y, mean.squeeze(-1), rstd.squeeze(-1)]


def rms_norm(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """x / sqrt(mean(x^2) + eps) w, and 1 / sqrt."""
    x, shape, w = args[:3]
    eps = args[3] if len(args) > 3 and args[3] is not None else torch.finfo(torch.float32).eps
    dims, n = over(shape)
    rstd = draw.rounded((row_sum(draw, x.square(), dims) / n + eps).rsqrt(), units=3.0)
    y = draw.rounded(x * rstd)
    return [y if w is None else draw.rounded(y * w), rstd]


def rms_norm_backward(draw: Draw, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """dx = rstd (g w - xhat mean(g w xhat)); dw is a sum over rows."""
    g, x, shape, rstd, w, mask = args
    dims, n = over(shape)
    hat, scaled_gradient = x * rstd, g if w is None else g * w
    inner = row_sum(draw, scaled_gradient * hat, dims) / n
    dx = draw.off(
        rstd * (scaled_gradient - hat * inner), rstd * (scaled_gradient.abs() + hat.abs() * inner.abs()), units=4.0
    )
    return [dx if mask[0] else None, weight_gradients(draw, g, g * hat, shape, (mask[1], False))[0]]


def over(shape: Any) -> tuple[tuple[int, ...], int]:
    """The dims that a norm spans, and how many elements they hold."""
    count = 1
    for size in shape:
        count *= int(size)
    return tuple(range(-len(shape), 0)), count


def row_sum(draw: Draw, x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """A sum over dims, kept, accumulated in 32 bits."""
    terms = 1
    for dim in dims:
        terms *= x.shape[dim]
    return draw.summed(x.sum(dims, keepdim=True), x.square().sum(dims, keepdim=True).sqrt(), terms)


def two_parts(draw: Draw, first: Tensor, second: Tensor) -> Tensor:
    """Their sum, with the rounding of each."""
    return draw.off(first + second, first.abs() + second.abs(), units=2.0)


def weight_gradients(draw: Draw, g: Tensor, g_hat: Tensor, shape: Any, mask: Any) -> list[Tensor | None]:
    """Gradients of a norm's weight and bias: sums over all rows."""
    rows = tuple(range(g.dim() - len(shape)))
    gradients: list[Tensor | None] = []
    for part, is_wanted in ((g_hat, mask[0]), (g, mask[1])):
        gradients.append(row_sum(draw, part, rows).reshape(tuple(shape)) if is_wanted else None)
    return gradients
