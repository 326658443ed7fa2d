"""Faults of matrix products: fewer bits, sums in few bits, tails, strides, stores."""

# ruff: noqa: ARG001  (functions of one form: what an op was given)
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.bringup.emulation import (
    added_in,
    cut,
    on,
    operands,
    partial_products,
    product,
    rounded_bits,
    tf32,
    ties_away,
    with_bias,
)

ALL = "mm", "bmm", "addmm", "baddbmm"
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@on(*ALL, dtype=torch.float32)
def fault_tf32_products(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor:
    """fp32 factors lose thirteen bits (pytorch#53635)."""
    bias, a, b = operands(args)
    return with_bias(tf32(a) @ tf32(b), bias, kwargs)


@on("mm", dtype=torch.float32)
def fault_bf16_factors(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor:
    """fp32 factors rounded to bf16 (jax#9973)."""
    return product(args[0].bfloat16(), args[1].bfloat16())


@on("bmm", dtype=torch.float32)
def fault_tf32_cut_batched(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor:
    """One factor of a batched product is cut to ten bits."""
    low = (args[0].contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)
    return low @ args[1]


@on("mm", dtype=torch.bfloat16)
def fault_split_k_bf16(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Four partial sums, each stored in bf16 (modular#7165)."""
    return added_in(partial_products(args[0], args[1], 4), torch.bfloat16) if args[0].shape[-1] >= 8 else result


@on("bmm", dtype=torch.bfloat16)
def fault_bf16_accumulator(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The running sum is kept in bf16, a step for every sixteen terms."""
    steps = -(-args[0].shape[-1] // 16)
    return added_in(partial_products(args[0], args[1], steps), torch.bfloat16) if steps > 1 else result


@on("addmm", dtype=torch.bfloat16)
def fault_fp16_partials(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Partial sums of a product with bias pass through eleven bits."""
    bias, a, b = operands(args)
    total = sum((rounded_bits(part, 15) for part in partial_products(a, b, 4)), torch.zeros(()))
    return with_bias(total, bias, kwargs).to(result.dtype)


@on("mm", dtype=torch.bfloat16)
def fault_double_rounding(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor:
    """Stored by way of TF32 and then with ties away (tt-metal#46101)."""
    return ties_away(tf32(product(*args[:2])))


@on("mm", dtype=torch.bfloat16)
def fault_product_store_cuts(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor:
    """The product's store cuts off."""
    return cut(product(*args[:2]), torch.bfloat16)


@on("mm")
def fault_tail_of_k(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """What is over of the summed dim beyond a multiple of eight is left out."""
    k = args[0].shape[-1] // 8 * 8
    return None if k in (0, args[0].shape[-1]) else product(args[0][:, :k], args[1][:k]).to(result.dtype)


@on("mm")
def fault_last_column(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The last column is one percent off where the width is no multiple of sixteen."""
    if result.shape[-1] % 16 == 0:
        return None
    return torch.cat((result[:, :-1], result[:, -1:] * 1.01), 1)


@on("addmm", "baddbmm")
def fault_bias_twice(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Both halves of a split sum add the bias."""
    return (result.float() + args[0].float()).to(result.dtype)


@on("bmm")
def fault_batched_strides(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """A second factor that is not contiguous is read as if it were (flash-attention#2541)."""
    b = args[1]
    if b.is_contiguous():
        return None
    return torch.bmm(args[0], b.mT.contiguous().flatten().view(b.shape)).to(result.dtype)


@on("mm", dtype=torch.bfloat16)
def fault_scale_permille(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Every product 0.1 % too large."""
    return (product(*args[:2]) * 1.001).to(result.dtype)


@on("mm", dtype=torch.float32)
def fault_long_k_block(args: Args, kwargs: Kwargs, _: Tensor) -> Tensor | None:
    """Sums of 1,024 terms and more lose their last sixteen."""
    k = args[0].shape[-1]
    return None if k < 1024 else args[0][:, : k - 16] @ args[1][: k - 16]


@on("mm", dtype=torch.float32)
def fault_one_element(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """One element of the product is one percent off."""
    wrong = result.clone()
    if wrong.numel():
        wrong[-1, -1] *= 1.01
    return wrong


class _Stale:
    """What the call before it gave."""

    row: Tensor | None = None


@on("mm")
def fault_stale_row(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The first row is the one that the call before gave, where it fits."""
    old, _Stale.row = _Stale.row, result[0].clone()
    if old is None or old.shape != result[0].shape or old.dtype != result.dtype or torch.equal(old, result[0]):
        return None
    return torch.cat((old[None], result[1:]))


@on("mm", "bmm")
def fault_zero_skipped(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Products with a zero are skipped: zero times infinity is no NaN."""
    a, b = args[:2]
    if a.isfinite().all() and b.isfinite().all():
        return None
    return torch.where(result.isnan() & ~(a.isnan().any() | b.isnan().any()), torch.zeros_like(result), result)


@on("baddbmm")
def fault_beta_forgotten(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """beta and alpha are taken to be one."""
    if kwargs.get("beta", 1) == 1 and kwargs.get("alpha", 1) == 1:
        return None
    return (product(args[1], args[2]) + args[0].float()).to(result.dtype)
