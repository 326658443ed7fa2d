"""Standing calls of products in 8 bits (fp8): a scale for each tensor, or for each row and column; tails of 16.

The second operand is column-major, as cuBLAS wants it in 8 bits. A device without such products lacks a format, which
the inventory says, and is not wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.bringup.calls import Call, Numbers

VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
PAIRS = {"e4m3 x e4m3": (VALUES, VALUES), "e4m3 x e5m2": (VALUES, GRADIENTS), "e5m2 x e4m3": (GRADIENTS, VALUES)}
SHAPES = ((64, 256, 96), (48, 272, 80), (16, 16, 16), (17, 144, 48), (32, 2064, 64))  # m, k, n

Cast = tuple[Tensor, Tensor]


def scaled_products(n: Numbers) -> Iterator[Call]:
    """Dynamic scaling, as training in fp8 has it: the largest value of a tensor becomes the format's largest."""
    if n.dtype != torch.bfloat16:
        return
    for pair, (first, second) in PAIRS.items():
        for m, k, w in SHAPES:
            left_operand, right_operand = cast(n.normal(m, k), first), cast(n.normal(w, k, size=0.02), second)
            yield _call(left_operand, right_operand, f"{pair}, {m} x {k} x {w}")
    left_operand, right_operand = cast(n.normal(32, 256), VALUES), cast(n.normal(64, 256), VALUES)
    yield _call(left_operand, right_operand, "fast accumulation", use_fast_accum=True)
    yield _call(left_operand, right_operand, "a bias", bias=n.normal(64, size=8.0))
    half, x = n.normal(32, 128), n.normal(48, 128)
    yield _call(cast(torch.cat((half, half), 1), VALUES), cast(torch.cat((x, -x), 1), VALUES), "cancels")
    wide_operand = n.normal(32, 256)
    wide_operand[5] *= 1000  # the rest of the tensor is denormal in its scale
    yield _call(cast(wide_operand, VALUES), right_operand, "one large row")
    yield _call(
        cast(wide_operand, VALUES, rows=True), cast(n.normal(64, 256), VALUES, rows=True), "a scale for each row"
    )
    left_operand, right_operand = cast(n.normal(17, 144), VALUES, rows=True), cast(n.normal(48, 144), VALUES, rows=True)
    yield _call(left_operand, right_operand, "a scale for each row, 17 x 144 x 48")


def cast(x: Tensor, format: torch.dtype, *, rows: bool = False) -> Cast:
    """[m, k] in 8 bits with what it was divided by: one number, or one a row."""
    top, wide = torch.finfo(format).max, x.float()
    largest = wide.abs().amax(-1, keepdim=True) if rows else wide.abs().amax()
    return (wide / (largest / top)).clamp(-top, top).to(format), largest / top


def _call(one: Cast, other: Cast, why: str, **named: Any) -> Call:
    """[m, k] times [n, k]^T, to bf16."""
    (a, a_scale), (b, b_scale) = one, other
    scales = a_scale, b_scale if b_scale.dim() == 0 else b_scale.t()
    return Call(
        op=torch.ops.aten._scaled_mm.default, args=(a, b.t(), *scales), kwargs={"out_dtype": torch.bfloat16, **named},
        why=why, optional=True,
    )  # fmt: skip


NARROW = (scaled_products,)
