"""How long an op takes at best: its flops and bytes over the rates of a chip, which are handed in as values.

    seconds at best = max(flops / (flop/s of the format), bytes / (byte/s))

flops count products and attention; everything else moves its arguments and results through memory once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ridgeline.runtime.bringup.observations import Rates

# the key of a chip's peak at which a format of torch is multiplied
PEAKS: Mapping[str, str] = MappingProxyType(
    {
        "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8",
        "float8_e5m2": "fp8", "float8_e4m3fnuz": "fp8", "float8_e5m2fnuz": "fp8", "int8": "int8",
    }
)  # fmt: skip
PRODUCTS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "_scaled_mm": (0, 1), "_int_mm": (0, 1)}
)
PICKED = frozenset(("embedding", "gather", "index", "index_select", "nll_loss_forward"))
FILLED = frozenset((
    "nll_loss_backward", "zeros_like", "ones_like", "full_like", "zero_", "fill_", "empty_like", "zeros", "ones",
    "full",
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What an op has to do: flops in a format, bytes through memory."""

    flops: float
    bytes: float
    peak: str


def work_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Work:
    """Of one call; tensors that are both argument and result count twice, as they are read and written."""
    name = str(func._schema.name).removeprefix("aten::").partition(".")[0]
    inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    moved = sum(_bytes(x) for x in inputs) + sum(_bytes(x) for x in tree_leaves(result) if isinstance(x, Tensor))
    written = sum(_bytes(x) for x in tree_leaves(result) if isinstance(x, Tensor))
    if name in PICKED:  # rows, not the table
        moved = 2 * written
    elif name in FILLED:
        moved = written
    first = next((x for x in inputs if x.is_floating_point()), inputs[0] if inputs else None)
    form = "" if first is None else str(first.dtype).removeprefix("torch.")
    peak = PEAKS.get(form, "")
    if peak == "fp32" and torch.get_float32_matmul_precision() != "highest":
        peak = "tf32"
    return Work(flops=_flops(name, args, kwargs), bytes=float(moved), peak=peak)


def _bytes(x: Tensor) -> int:
    """Memory that is touched: an expanded dim is read once."""
    touched = int(x.element_size())
    for size, stride in zip(x.shape, x.stride(), strict=True):
        touched *= int(size) if stride else 1
    return touched


def _flops(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    if name in PRODUCTS:
        a, b = (args[at] for at in PRODUCTS[name])
        return float(2 * a.numel() * b.shape[-1])
    if "scaled_dot_product" not in name or "math" in name:
        return 0.0
    q, k, v = args[1:4] if name.endswith("backward") else args[:3]
    pairs = float(q.shape[0] * q.shape[1] * q.shape[-2] * k.shape[-2])
    once = 2.0 * pairs * float(q.shape[-1] + v.shape[-1])
    causal = bool(kwargs.get("is_causal", any(a is True for a in args)))
    return once * (2.5 if name.endswith("backward") else 1.0) * (0.5 if causal else 1.0)


def seconds_at_best(work: Work, rates: Rates) -> tuple[float, str] | None:
    """The roof and what it is: compute or memory; None where the rates do not say."""
    peak = rates.flops_per_s.get(work.peak)
    parts = {}
    if work.flops and peak:
        parts["compute"] = work.flops / peak
    if rates.bytes_per_s:
        parts["memory"] = work.bytes / rates.bytes_per_s
    if not parts or (work.flops and not peak):
        return None
    bound = max(parts, key=lambda name: parts[name])
    return parts[bound], bound
