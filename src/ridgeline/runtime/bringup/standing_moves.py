"""Standing calls that only move, make or cast numbers: strides, offsets, tails, one row for all, ties of a cast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ridgeline.runtime.bringup.calls import HERE, Call, Numbers

A = torch.ops.aten


def copies(n: Numbers) -> Iterator[Call]:
    """Copies of every layout, also to the device and back."""
    layouts = {
        "contiguous": n.normal(24, 40),
        "strided": n.strided_matrix(24, 40),
        "rows apart": n.vary_layout(n.normal(13, 37)),
        "one column for all": n.normal(24, 1).expand(24, 17),
        "backwards in four dims": n.normal(3, 5, 4, 7).permute(3, 1, 0, 2),
    }
    for why, x in layouts.items():
        yield Call(op=A.clone.default, args=(x,), why=why)
        yield Call(
            op=A.clone.default, args=(x,), kwargs={"memory_format": torch.contiguous_format}, why=f"{why}, packed"
        )
        yield Call(op=A.copy_.default, args=(torch.zeros(x.shape, dtype=n.dtype), x), why=why)
        yield Call(op=A._to_copy.default, args=(x,), kwargs={"dtype": torch.float64}, why=f"{why}, to fp64")
    yield Call(op=A.copy_.default, args=(n.strided_matrix(24, 40), n.normal(24, 40)), why="into strides")
    yield Call(op=A.copy_.default, args=(n.normal(24, 40), n.normal(40)), why="one row for all")
    other_dtype = torch.bfloat16 if n.dtype == torch.float32 else torch.float32
    yield Call(op=A.copy_.default, args=(torch.zeros(24, 40, dtype=other_dtype), n.strided_matrix(24, 40)), why="casts")


def rearrangements(n: Numbers) -> Iterator[Call]:
    """Joined, cut, turned, repeated, masked."""
    x, s = n.normal(16, 40), n.strided_matrix(16, 40)
    for why, parts, dim in (
        ("halves of a rotation", [n.normal(2, 3, 9, 16), n.normal(2, 3, 9, 16)], -1),
        ("tails", [x, n.normal(16, 13), s], 1),
        ("rows", [x, n.normal(3, 40)], 0),
    ):
        yield Call(op=A.cat.default, args=(parts, dim), why=why)
    yield Call(op=A.stack.default, args=([x, s, n.normal(16, 40)], 1), why="strided")
    for why, t in (("contiguous", x), ("strided", s)):
        for op, args in _shape_changes(n, t):
            yield Call(op=op, args=args, why=why)
    yield Call(op=A.where.self, args=(n.normal(16, 1) > 0, s, n.normal(40)), why="one row and column for all")
    yield Call(op=A.masked_fill.Scalar, args=(x, n.normal(40) > 0, -torch.inf), why="one row for all")
    yield Call(op=A.masked_fill_.Scalar, args=(n.normal(9, 21), n.normal(9, 21) > 0, 0.0))
    for k in (-3, -1, 0, 1, 2):
        yield Call(op=A.tril.default, args=(n.normal(2, 19, 23), k), why=f"diagonal {k}")
        yield Call(op=A.triu.default, args=(n.normal(2, 19, 23), k), why=f"diagonal {k}")
    yield Call(op=A.tril.default, args=(torch.ones(17, 17, dtype=torch.bool),), why="a mask")
    yield Call(op=A.repeat.default, args=(n.normal(3, 7), [2, 1, 3]))
    yield Call(op=A.constant_pad_nd.default, args=(n.normal(5, 9), [2, 3, 0, 1], 0.5))
    yield Call(op=A.slice_backward.default, args=(n.normal(5, 9), [5, 20], 1, 4, 13, 1), phase="backward")
    yield Call(op=A.select_backward.default, args=(n.normal(9), [5, 9], 0, 2), phase="backward")
    yield Call(op=A.index_select.default, args=(s, 1, n.places(50, below=40)), why="columns")
    yield Call(op=A.index.Tensor, args=(x, [n.places(33, below=16)]), why="rows")
    yield Call(op=A.index.Tensor, args=(x, [n.places(33, below=16), n.places(33, below=40)]), why="pairs")
    yield Call(op=A.index.Tensor, args=(x, [n.normal(16) > 0]), why="a mask")
    yield Call(op=A.gather.default, args=(s, 1, n.places(16, 7, below=40)), why="strided")
    yield Call(op=A.gather.default, args=(n.normal(9, 21), 0, n.places(4, 21, below=9)), why="along rows")
    yield Call(op=A.flip.default, args=(x, [1]))
    yield Call(op=A.roll.default, args=(x, [3], [1]))


def _shape_changes(n: Numbers, t: torch.Tensor) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Views, each of which must show the numbers that it names."""
    yield A.t.default, (t,)
    yield A.transpose.int, (t, 0, 1)
    yield A.transpose.int, (n.normal(2, 9, 3, 8), 1, 2)
    yield A.permute.default, (n.normal(2, 9, 3, 8), [2, 0, 3, 1])
    yield A.slice.Tensor, (t, 1, 3, 31)
    yield A.slice.Tensor, (t, 1, 0, 39, 3)
    yield A.slice.Tensor, (t, 0, -5, 9223372036854775807)
    yield A.select.int, (t, 0, 5)
    yield A.select.int, (t, 1, -1)
    yield A.expand.default, (n.normal(1, 40), [9, 40])
    yield A.expand.default, (t[:, None], [16, 5, 40])
    yield A.unsqueeze.default, (t, 1)
    yield A.squeeze.dim, (t[:, None], 1)
    yield A.view.default, (n.normal(16, 40), [16, 5, 8])
    yield A._unsafe_view.default, (n.normal(16, 40), [2, 8, 4, 10])
    yield A.split.Tensor, (t, 13, 1)
    yield A.split_with_sizes.default, (t, [7, 30, 3], 1)
    yield A.unbind.int, (t, 0)
    yield A.as_strided.default, (n.normal(16, 40), [5, 7], [40, 2], 11)
    yield A.diagonal.default, (t,)
    yield A.detach.default, (t,)
    yield A.alias.default, (t,)


def factories(n: Numbers) -> Iterator[Call]:
    """Numbers that the device makes: positions, constants, random ones."""
    at: dict[str, Any] = {"device": HERE, "dtype": n.dtype}
    x = n.normal(9, 21)
    if n.dtype == torch.float32:
        yield Call(op=A.arange.default, args=(5000,), kwargs={"device": HERE}, why="positions")
        yield Call(op=A.arange.start, args=(3, 4099), kwargs={"device": HERE}, why="positions from three")
        yield Call(op=A.arange.start_step, args=(0, 128, 2), kwargs=at, why="every other")
        yield Call(op=A.tril_indices.default, args=(9, 9), kwargs={"device": HERE})
        yield Call(op=A.eye.default, args=(17,), kwargs=at)
        yield Call(op=A.randperm.default, args=(500,), kwargs={"device": HERE})
        yield Call(op=A.cumsum.default, args=(n.places(7, 300, below=9), 1), why="integers")
        yield Call(op=A.add.Tensor, args=(n.places(40, below=9), n.places(40, below=9)), why="integers")
        yield Call(op=A.sum.dim_IntList, args=(n.places(7, 300, below=9), [1]), why="integers")
        yield Call(op=A.bitwise_and.Tensor, args=(x > 0, x < 1), why="masks")
        yield Call(op=A.logical_not.default, args=(x > 0,), why="masks")
        yield Call(op=A.any.dim, args=(x > 1.5, -1), why="masks")
        yield Call(op=A.nonzero.default, args=(x > 0.5,), why="masks")
        yield Call(
            op=A.one_hot.default if hasattr(A.one_hot, "default") else A.eq.Scalar, args=(n.places(20, below=9), 9)
        )
    for op, args in (
        (A.zeros.default, ([7, 33],)),
        (A.ones.default, ([7, 33],)),
        (A.full.default, ([7, 33], -0.3)),
        (A.scalar_tensor.default, (0.3,)),
        (A.randn.default, ([64, 65],)),
        (A.rand.default, ([64, 65],)),
    ):
        yield Call(op=op, args=args, kwargs=at)
    for op, more in (
        (A.zeros_like, ()),
        (A.ones_like, ()),
        (A.full_like, (2.5,)),
        (A.randn_like, ()),
        (A.rand_like, ()),
        (A.zero_, ()),
        (A.fill_.Scalar, (0.1,)),
        (A.new_zeros, ([3, 5],)),
        (A.new_ones, ([3, 5],)),
        (A.normal_, (1.0, 0.5)),
        (A.uniform_, (-1.0, 1.0)),
        (A.bernoulli_.float, (0.3,)),
    ):
        yield Call(op=getattr(op, "default", op), args=(n.normal(48, 65), *more))
    yield Call(op=A.native_dropout.default, args=(n.normal(64, 65), 0.1, True))
    yield Call(
        op=A.native_dropout_backward.default, args=(n.normal(64, 65), n.normal(64, 65) > -1, 1 / 0.9), phase="backward"
    )


def casts(n: Numbers) -> Iterator[Call]:
    """From one format to another: ties, overflow, denormals, 8 bits, strides."""
    if n.dtype != torch.float32:
        x = n.normal(37, 41, size=40.0)
        for dtype in (torch.float32, torch.float16, torch.int64):
            yield Call(
                op=A._to_copy.default, args=(x,), kwargs={"dtype": dtype}, why=f"to {dtype}".replace("torch.", "")
            )
        return
    ties = 1 + torch.arange(257) * 2.0**-9
    x = torch.cat(
        (
            n.normal(4000, size=3.0).float(),
            n.normal(500, size=150.0).clamp(-440, 440),
            ties,
            -ties * 4,
            torch.tensor(
                [1e-40, 3e38, 65520.0, 448.0, 464.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, torch.inf, -torch.inf, torch.nan]
            ),
        )
    )
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        why = f"to {dtype}, ties".replace("torch.", "")
        yield Call(op=A._to_copy.default, args=(x,), kwargs={"dtype": dtype}, why=why)
    bounded_values = x.clamp(-448, 448).nan_to_num()
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.bool):
        why = f"to {dtype}, ties".replace("torch.", "")
        yield Call(op=A._to_copy.default, args=(bounded_values,), kwargs={"dtype": dtype}, why=why)
    yield Call(op=A._to_copy.default, args=(n.strided_matrix(24, 41),), kwargs={"dtype": torch.bfloat16}, why="strided")
    yield Call(op=A._to_copy.default, args=(n.places(50, below=5000),), kwargs={"dtype": torch.float32}, why="integers")


MOVES = copies, rearrangements, factories, casts
