"""Arithmetic of other machines on the host: formats that are cut or rounded, sums kept in few bits.

Used by the personalities of the fake device and by the faults of the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Alter = Callable[[str, tuple[Any, ...], dict[str, Any], Any], Any]


def on(*packets: str, dtype: torch.dtype | None = None) -> Callable[[Callable[..., Any]], Alter]:
    """Turn f(args, kwargs, result) into what answers for these ops alone (`mm` is any overload), in one format.

    The first floating output decides the format.
    """

    def wrap(alter: Callable[..., Any]) -> Alter:
        def answer(op: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
            if packet(op) not in packets or (dtype is not None and _format(result) != dtype):
                return None
            return alter(args, kwargs, result)

        answer.__doc__ = alter.__doc__
        answer.packets = packets  # type: ignore[attr-defined]
        return answer

    return wrap


def packet(op: str) -> str:
    """`mm` of `aten.mm.default`."""
    return op.split(".")[1] if op.count(".") else op


def _format(result: Any) -> torch.dtype | None:
    parts = result if isinstance(result, tuple | list) else (result,)
    return next((x.dtype for x in parts if isinstance(x, Tensor)), None)


def rounded_bits(x: Tensor, bits: int) -> Tensor:
    """An fp32 tensor rounded to nearest even with so many of its low bits gone."""
    whole = x.float().contiguous().view(torch.int32)
    half = (1 << (bits - 1)) - 1 + ((whole >> bits) & 1)
    near = ((whole + half) & ~((1 << bits) - 1)).view(torch.float32)
    return torch.where(x.float().isfinite(), near, x.float())


def tf32(x: Tensor) -> Tensor:
    """fp32 with the ten fraction bits of TF32."""
    return rounded_bits(x, 13)


def cut(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x stored in a format by cutting off what does not fit (round toward zero)."""
    near = x.to(dtype)
    wide = x.to(torch.float64)
    over = near.to(torch.float64).abs() > wide.abs()
    return torch.where(over & near.isfinite(), _toward_zero(near), near)


def _toward_zero(x: Tensor) -> Tensor:
    """The neighbour nearer to zero: one less in the bits of its magnitude."""
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return (x.contiguous().view(words) - 1).view(x.dtype)


def ties_away(x: Tensor) -> Tensor:
    """fp32 rounded to bf16, ties away from zero."""
    bits = x.float().contiguous().view(torch.int32)
    near = ((bits + (1 << 15)) & ~0xFFFF).view(torch.float32)
    return torch.where(x.float().isfinite(), near, x.float()).to(torch.bfloat16)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b of any two formats, in fp32."""
    return a.float() @ b.float()


def partial_products(a: Tensor, b: Tensor, parts: int) -> list[Tensor]:
    """Products of so many stretches of the summed dim, in fp32."""
    size = -(-a.shape[-1] // parts)
    return [product(a[..., k : k + size], b[..., k : k + size, :]) for k in range(0, a.shape[-1], size)]


def added_in(terms: Iterable[Tensor], dtype: torch.dtype) -> Tensor:
    """Terms added one after another, each sum stored in a format."""
    total: Tensor | None = None
    for term in terms:
        total = term.to(dtype) if total is None else (total.float() + term.float()).to(dtype)
    if total is None:
        raise ValueError("no terms")
    return total


def operands(op_args: tuple[Any, ...]) -> tuple[Tensor | None, Tensor, Tensor]:
    """Bias and factors of mm, bmm (two tensors), addmm, baddbmm (three)."""
    tensors = [x for x in op_args if isinstance(x, Tensor)]
    return (tensors[0], tensors[1], tensors[2]) if len(tensors) == 3 else (None, tensors[0], tensors[1])


def with_bias(y: Tensor, bias: Tensor | None, kwargs: dict[str, Any]) -> Tensor:
    """alpha y + beta bias in fp32."""
    scaled_product = y if kwargs.get("alpha", 1) == 1 else y * kwargs["alpha"]
    return scaled_product if bias is None else scaled_product + kwargs.get("beta", 1) * bias.float()
