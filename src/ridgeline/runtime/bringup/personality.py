"""Numeric personalities of the fake device: arithmetic of other machines, by name.

ridge:tf32           products of fp32 keep eleven bits of their factors
ridge:truncation     sums, products and casts are stored in bf16 by cutting off
ridge:bf16-sums      products of bf16 keep their running sum in bf16
ridge:fnuz           fp8 e4m3 ends at 240
ridge:atomics        rows that meet are added in another order every time: right, and not the same twice
"""

# ruff: noqa: ARG001  (functions of one form: what an op was given)
from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ridgeline.core.errors import InputError, not_among
from ridgeline.runtime.bringup.corpus.movement import fault_fp8_of_240
from ridgeline.runtime.bringup.corpus.products import fault_tf32_products
from ridgeline.runtime.bringup.emulation import Alter, added_in, cut, packet, partial_products
from ridgeline.runtime.bringup.ridge import NAME

STORED = frozenset(("mm", "bmm", "addmm", "add", "sub", "mul", "div", "silu", "gelu", "_to_copy", "mul_", "add_"))
_calls = [0]


def truncation(op: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """Computed wide, stored by cutting off."""
    if packet(op) not in STORED or not isinstance(result, Tensor) or result.dtype != torch.bfloat16:
        return None
    library, name, overload = op.split(".")
    func = getattr(getattr(getattr(torch.ops, library), name), overload)
    wide = tree_map(_wide, (args, {k: torch.float64 if k == "dtype" else v for k, v in kwargs.items()}))
    return cut(func(*wide[0], **wide[1]), torch.bfloat16)


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def bf16_sums(op: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """A step for every sixteen terms."""
    if packet(op) not in ("mm", "bmm") or result.dtype != torch.bfloat16 or not result.numel():
        return None
    return added_in(partial_products(args[0], args[1], -(-args[0].shape[-1] // 16)), torch.bfloat16)


def atomics(op: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """Another order every time."""
    if packet(op) not in ("embedding_dense_backward", "index_add", "index_add_"):
        return None
    _calls[0] += 1
    source = torch.Generator().manual_seed(_calls[0])
    if packet(op) != "embedding_dense_backward":
        x, dim, where, rows = args[:4]
        turn = torch.randperm(len(where), generator=source)
        return x.float().index_add(dim, where[turn], rows.float().index_select(dim, turn)).to(result.dtype)
    g, where = args[0].reshape(-1, result.shape[-1]), args[1].flatten()
    keep = (where != args[3]).nonzero().flatten()
    keep = keep[torch.randperm(len(keep), generator=source)]
    return torch.zeros(result.shape).index_add(0, where[keep], g[keep].float()).to(result.dtype)


PERSONALITIES: Mapping[str, Alter] = MappingProxyType({
    "tf32": fault_tf32_products, "truncation": truncation, "bf16-sums": bf16_sums, "fnuz": fault_fp8_of_240,
    "atomics": atomics,
})  # fmt: skip


def split(device: str) -> tuple[str, str]:
    """`ridge` and `tf32` of `ridge:tf32`; other devices as they are."""
    kind, _, name = device.partition(":")
    if kind != NAME or not name or name.isdigit():
        return device, ""
    if name not in PERSONALITIES:
        raise InputError(not_among("--device", name, sorted(PERSONALITIES), f"a personality of {NAME}"))
    return kind, name
