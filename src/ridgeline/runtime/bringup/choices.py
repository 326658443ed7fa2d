"""Judge what has many right results: choices among equal values, and random numbers.

CHOICES    op -> its check: a verdict, or None where the contract of the op shall decide
"""

# ruff: noqa: ARG001  (functions of one form: what an op was given)
from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.bringup.outcome import RIGHT, Verdict, wrong

Check = Callable[[Any, tuple[Any, ...], dict[str, Any], list[Any]], Verdict | None]
SIGMAS = 7.0


def named_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by their names, with the schema's defaults."""
    names = [a.name for a in func._schema.arguments]
    defaults = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    return defaults | dict(zip(names, args, strict=False)) | kwargs


def chosen(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any]) -> Verdict | None:
    """Values and where they stood (topk, sort, max): of equal values any may be named, each once."""
    arguments = named_arguments(func, args, kwargs)
    if len(outputs) != 2 or arguments.get("dim", -1) is None or arguments.get("stable"):
        return None
    x, dim, (values, places) = args[0], arguments.get("dim", -1), outputs
    if x.dim() == 0:
        return None
    right = func(*args, **kwargs)[0]
    if tuple(values.shape) != tuple(right.shape) or values.dtype != right.dtype:
        return wrong("shape", float(values.numel()), float(right.numel()))
    if tuple(places.shape) != tuple(values.shape):
        return wrong("shape", float(places.numel()), float(values.numel()))
    if arguments.get("sorted") is False:
        values, right = values.sort(dim).values, right.sort(dim).values
    differ = ~((values == right) | (values.isnan() & right.isnan()))
    if bool(differ.any()):
        return wrong("unequal", float(differ.sum()))
    keep = places.unsqueeze(dim) if places.dim() < x.dim() else places
    if keep.numel() and (int(keep.max()) >= x.shape[dim] or int(keep.min()) < 0):
        return wrong("index", float(((keep >= x.shape[dim]) | (keep < 0)).sum()))
    output = outputs[0].unsqueeze(dim) if places.dim() < x.dim() else outputs[0]
    chosen_values = x.gather(dim, keep)
    stray = ~((chosen_values == output) | (chosen_values.isnan() & output.isnan()))
    twice = keep.sort(dim).values.diff(dim=dim) == 0
    bad = float(stray.sum() + twice.sum())
    return wrong("index", bad) if bad else RIGHT


def largest(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any]) -> Verdict | None:
    """argmax and argmin: any place that holds the extreme value."""
    arguments = named_arguments(func, args, kwargs)
    x, dim = args[0], arguments.get("dim")
    right, got = func(*args, **kwargs), outputs[0]
    if tuple(right.shape) != tuple(got.shape):
        return wrong("shape", float(got.numel()), float(right.numel()))
    flat, dim = (x.flatten(), 0) if dim is None else (x, dim)
    if flat.numel() == 0 or flat.dim() == 0 or bool(flat.isnan().any()):
        return None
    ours, theirs = (_along(places, flat, dim) for places in (got, right))
    outside = (ours < 0) | (ours >= flat.shape[dim])
    if bool(outside.any()):
        return wrong("index", float(outside.sum()))
    bad = float((flat.gather(dim, ours) != flat.gather(dim, theirs)).sum())
    return wrong("index", bad) if bad else RIGHT


def _along(places: Tensor, x: Tensor, dim: int) -> Tensor:
    return places.unsqueeze(dim) if places.dim() < x.dim() else places


def dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any]) -> Verdict | None:
    """Dropout: the mask keeps its share, what it keeps is scaled by 1 / (1 - p)."""
    arguments = named_arguments(func, args, kwargs)
    x, p, (y, mask) = args[0], float(arguments["p"]), outputs
    if arguments.get("train") is False or mask.dtype != torch.bool:
        return None
    keep = 1 - p
    off = abs(float(mask.sum()) - keep * x.numel()) / max((keep * p * x.numel()) ** 0.5, 1e-9)
    if off > SIGMAS:
        return wrong("share", off, SIGMAS)
    exact = torch.where(mask, x.double() / max(keep, 1e-300), torch.zeros((), dtype=torch.float64))
    near = 4 * torch.finfo(y.dtype).eps * exact.abs()
    bad = float(((y.double() - exact).abs() > near).sum())
    return wrong("unequal", bad) if bad else RIGHT


def bernoulli(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any]) -> Verdict | None:
    """Zeros and ones in their share."""
    arguments, y = named_arguments(func, args, kwargs), outputs[0].double()
    p = arguments.get("p")
    p = (args[0].double() if func._schema.name == "aten::bernoulli" else 0.5) if p is None else p
    p = p.double() if isinstance(p, Tensor) else torch.full_like(y, float(p))
    if bool(((y != 0) & (y != 1)).any()):
        return wrong("unequal", float(((y != 0) & (y != 1)).sum()))
    return _moments(y, float(p.mean()), float((p * (1 - p)).mean()))


def gaussian(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any]) -> Verdict | None:
    """Normal numbers: mean and variance."""
    arguments = named_arguments(func, args, kwargs)
    mean, std = arguments.get("mean", 0.0), arguments.get("std", 1.0)
    if isinstance(mean, Tensor) or isinstance(std, Tensor):
        return RIGHT
    return _moments(outputs[0].double(), float(mean), float(std) ** 2)


def uniform(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any]) -> Verdict | None:
    """Uniform numbers: range, mean and variance."""
    arguments = named_arguments(func, args, kwargs)
    low, high = float(arguments.get("from", 0.0)), float(arguments.get("to", 1.0))
    y = outputs[0].double()
    outside = (y < low) | (y > high) | ~y.isfinite()
    if bool(outside.any()):
        return wrong("range", float(outside.sum()))
    return _moments(y, (low + high) / 2, (high - low) ** 2 / 12)


def integers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any]) -> Verdict | None:
    """Integers below an end, each as likely."""
    arguments, y = named_arguments(func, args, kwargs), outputs[0]
    low, high = int(arguments.get("low", arguments.get("from", 0)) or 0), arguments.get("high", arguments.get("to"))
    if high is None or not y.numel():
        return RIGHT
    outside = (y < low) | (y >= high)
    if bool(outside.any()):
        return wrong("range", float(outside.sum()))
    count = float(high) - low
    return _moments(y.double(), low + (count - 1) / 2, (count * count - 1) / 12)


def permutation(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any]) -> Verdict | None:
    """Every integer once."""
    y = outputs[0].flatten().sort().values
    bad = float((y != torch.arange(y.numel(), dtype=y.dtype)).sum())
    return wrong("unequal", bad) if bad else RIGHT


def _moments(y: Tensor, mean: float, variance: float) -> Verdict:
    n = y.numel()
    if not n:
        return RIGHT
    if not bool(y.isfinite().all()):
        return wrong("nonfinite", float((~y.isfinite()).sum()))
    if variance <= 0:
        bad = float((y != mean).sum())
        return wrong("unequal", bad) if bad else RIGHT
    shift = abs(float(y.mean()) - mean) / (variance / n) ** 0.5
    if shift > SIGMAS:
        return wrong("shift", shift, SIGMAS)
    wide = abs(float((y - mean).square().mean()) / variance - 1) * (n / 3) ** 0.5
    return wrong("power", wide, SIGMAS) if n >= 64 and wide > SIGMAS else RIGHT


CHOICES: Mapping[str, Check] = MappingProxyType({
    "topk": chosen, "sort": chosen, "max": chosen, "min": chosen, "argmax": largest, "argmin": largest,
    "native_dropout": dropout, "bernoulli": bernoulli, "bernoulli_": bernoulli, "normal_": gaussian,
    "randn": gaussian, "randn_like": gaussian, "uniform_": uniform, "rand": uniform, "rand_like": uniform,
    "randint": integers, "random_": integers, "randperm": permutation,
})  # fmt: skip
_FIRM = frozenset(("topk", "sort", "max", "min", "argmax", "argmin"))


def is_random(func: Any) -> bool:
    """Whether an op draws numbers: the host's own would be others."""
    name = str(func._schema.name).removeprefix("aten::")
    return name in CHOICES and name not in _FIRM
