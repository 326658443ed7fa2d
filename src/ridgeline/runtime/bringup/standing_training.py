"""Standing calls of a training step's end: the optimizer's ops, one by one, by lists and fused; gradients' norms."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ridgeline.runtime.bringup.calls import Call, Numbers

A = torch.ops.aten


def in_place(n: Numbers) -> Iterator[Call]:
    """Arithmetic that writes its argument, also in memory with gaps."""
    layouts = {"ordinary": (33, 40), "strided": (24, 17)}
    for why, shape in layouts.items():

        def fresh(*, size: float = 1.0, shape: tuple[int, int] = shape, strided: bool = why == "strided") -> Tensor:
            x = n.normal(*shape, size=size)
            return x.mT.contiguous().mT if strided else x

        positive = fresh().abs() + 1e-3
        for op in (A.add_.Tensor, A.mul_.Tensor, A.sub_.Tensor):
            yield Call(op=op, args=(fresh(), fresh()), why=why)
        yield Call(op=A.div_.Tensor, args=(fresh(), positive), why=why)
        yield Call(op=A.mul_.Tensor, args=(fresh(), 0.99999), why=f"{why}, decay")
        yield Call(op=A.mul_.Tensor, args=(fresh(), 0.9), why=f"{why}, a constant")
        yield Call(op=A.add_.Tensor, args=(positive.clone(), 1e-8), why=f"{why}, epsilon")
        yield Call(op=A.add_.Tensor, args=(fresh(), fresh()), kwargs={"alpha": -0.01}, why=f"{why}, scaled")
        for lerp in (A.lerp_.Scalar, A.lerp.Scalar):
            yield Call(op=lerp, args=(fresh(), fresh(), 0.1), why=f"{why}, momentum", phase="optimizer")
        for mul in (A.addcmul_.default, A.addcmul.default):
            args = positive.clone(), (g := fresh()), g
            yield Call(op=mul, args=args, kwargs={"value": 0.001}, why=f"{why}, second moment", phase="optimizer")
        for div in (A.addcdiv_.default, A.addcdiv.default):
            args = fresh(size=0.02), fresh(), positive.clone()
            yield Call(op=div, args=args, kwargs={"value": -1e-3}, why=f"{why}, update", phase="optimizer")
        yield Call(op=A.sqrt_.default, args=(positive.clone(),), why=why)
        yield Call(op=A.sqrt.default, args=(fresh(size=1e-4).square(),), why=f"{why}, small squares")
        yield Call(op=A.clamp_.default, args=(fresh(), -0.5, 0.5), why=why)
        yield Call(op=A.neg_.default, args=(fresh(),), why=why)


def lists(n: Numbers) -> Iterator[Call]:
    """The optimizer's ops on lists of tensors."""

    def many(size: float = 1.0) -> list[Tensor]:
        return [n.normal(*shape, size=size) for shape in ((17, 24), (17, 24), (9,), (3, 5, 7))]

    positive = [x.abs() + 1e-3 for x in many()]
    for op, args in (
        (A._foreach_mul_.Scalar, (many(), 0.99999)),
        (A._foreach_mul_.Scalar, (many(), 0.9)),
        (A._foreach_add_.List, (many(), many())),
        (A._foreach_add_.Scalar, (positive, 1e-8)),
        (A._foreach_lerp_.Scalar, (many(), many(), 0.1)),
        (A._foreach_sqrt.default, (positive,)),
        (A._foreach_addcmul_.Scalar, (positive, g := many(), g, 0.001)),
        (A._foreach_div_.ScalarList, (many(), [0.5, 0.9, 0.7, 3.0])),
        (A._foreach_addcdiv_.Scalar, (many(0.02), many(), positive, -1e-3)),
        (A._foreach_mul.Scalar, (many(), 1.7)),
        (A._foreach_addcdiv_.ScalarList, (many(0.02), many(), positive, [-1e-3, -1e-3, -2e-3, -1e-2])),
        (A._foreach_norm.Scalar, (many(), 2)),
        (A._foreach_mul_.Tensor, (many(), torch.tensor(0.3))),
        (A._foreach_div_.List, (many(), positive)),
        (A._foreach_sub_.List, (many(), many())),
        (A._foreach_neg.default, (many(),)),
        (A._foreach_reciprocal_.default, (positive,)),
        (A._foreach_zero_.default, (many(),)),
        (A._foreach_copy_.default, (many(), many())),
    ):
        yield Call(op=op, args=args, why="a list", phase="optimizer")


def fused_optimizers(n: Numbers) -> Iterator[Call]:
    """AdamW in one op, at its first step and later."""
    for why, step, decay in (("first step", 0.0, 0.01), ("later", 7.0, 0.1)):
        shapes = (17, 24), (9,), (3, 5, 7)
        params, gradients, moments = ([n.normal(*s, size=z) for s in shapes] for z in (0.02, 1.0, 0.3))
        squares = [n.normal(*s, size=0.3).square() for s in shapes]
        steps = [torch.tensor(step + 1.0) for _ in shapes]
        options = {
            "lr": 1e-3,
            "beta1": 0.9,
            "beta2": 0.95,
            "weight_decay": decay,
            "eps": 1e-8,
            "amsgrad": False,
            "maximize": False,
        }
        for op in (A._fused_adamw_.default, A._fused_adam_.default):
            fresh = [[x.clone() for x in part] for part in (params, gradients, moments, squares)]
            yield Call(op=op, args=(*fresh, [], steps), kwargs=options, why=why, phase="optimizer")


TRAINING = in_place, lists, fused_optimizers
