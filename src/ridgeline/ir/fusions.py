"""Which ops software joins into one kernel: a table of fusions, and what each op costs apart and joined.

An engine's file names the fusions it has (`fuses`), in the words of FUSIONS. A fusion names the ops it joins; POINTWISE
says how often such an op reads or writes its elements, and in how many kernels, where nothing joins it and where
something does. Whoever lowers or builds an op asks `is_joined` or `op_passes` and knows no fusion by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple


class Fusion(NamedTuple):
    """A fusion in a sentence, and the ops that it joins with each other or with their neighbours."""

    meaning: str
    joins: tuple[str, ...] = ()


FUSIONS: Mapping[str, Fusion] = MappingProxyType(
    {
        "norm": Fusion("a norm is one kernel instead of one per arithmetic step", ("norm", "modulation", "norm cast")),
        "bias-activation": Fusion("bias and activation (GELU, SwiGLU) in one kernel", ("common activation",)),
        "bias-dropout-add": Fusion("bias, dropout and residual addition in one kernel", ("residual",)),
        "masked-softmax": Fusion("scale, mask and softmax in one kernel (attention that is not flash)", ("softmax",)),
        "rotary": Fusion("rotary embedding of queries and keys in one kernel", ("rotary",)),
        "cross-entropy": Fusion("log-softmax, target pick and their backward without full-size temporaries", ("loss",)),
        "linear-cross-entropy": Fusion(
            "output projection and loss in chunks: full logits never exist", ("loss", "logits")
        ),
        "weight-gradient-accumulation": Fusion(
            "the weight-gradient product adds into the main gradient buffer", ("gradient sum",)
        ),
        "router": Fusion("router scores, top-k and auxiliary loss in few kernels", ("top-k",)),
        "permute": Fusion("token permutation for experts in one kernel", ("permute",)),
        "grouped-gemm": Fusion("all local experts in one grouped matrix product", ("experts",)),
        "expert-epilogue": Fusion(
            "bias, activation and casts of experts inside their grouped products", ("expert activation",)
        ),
        "optimizer": Fusion("the optimizer step runs over all tensors in few kernels", ("optimizer step",)),
        "elementwise": Fusion(
            "chains of pointwise ops are compiled into one kernel",
            (
                "norm",
                "modulation",
                "residual",
                "rotary",
                "output gate",
                "activation",
                "common activation",
                "loss",
                "logit softcap",
                "expert biases",
                "score chain",
            ),
        ),
    }
)


class OpPasses(NamedTuple):
    """Reads and writes of an op's elements, and kernels, in its forward and its backward."""

    forward: float
    backward: float
    kernels: float = 1.0
    backward_kernels: float = 1.0


class PointwiseOp(NamedTuple):
    """What an op bound by memory costs in one kernel, and as software without a fusion runs it."""

    joined: OpPasses
    apart: OpPasses


POINTWISE: Mapping[str, PointwiseOp] = MappingProxyType(
    {
        # apart as measured of an RMS norm in 32 bits, op by op: 27 and 58 times what copying its elements once takes on
        # an H200, for every size; a step of an A100 laboratory without a kernel for it is as much slower
        "norm": PointwiseOp(OpPasses(2.0, 4.0, 1.0, 2.0), OpPasses(27.0, 58.0, 8.0, 16.0)),
        "residual": PointwiseOp(OpPasses(3.0, 3.0), OpPasses(5.0, 5.0, 2.0)),
        # two vectors shift and scale a normed input, one gates an output: each is a read and a write of a token more
        # where nothing fuses it into the norm, and a third of that where it is
        "modulation": PointwiseOp(OpPasses(0.7, 1.0, 0.5, 0.5), OpPasses(2.0, 3.0, 1.0, 2.0)),
        "rotary": PointwiseOp(OpPasses(2.0, 2.0), OpPasses(7.0, 7.0, 6.0, 6.0)),
        # a sigmoid of the gate times attention's output: two read and one written; backward three read, two written.
        # Where nothing fuses them the sigmoid is written and read once more
        "output gate": PointwiseOp(OpPasses(3.0, 5.0), OpPasses(5.0, 8.0, 2.0, 2.0)),
        "activation": PointwiseOp(OpPasses(2.0, 3.0), OpPasses(4.0, 6.0, 3.0, 3.0)),
        "gated activation": PointwiseOp(OpPasses(3.0, 5.0), OpPasses(5.0, 8.0, 3.0, 3.0)),
        # Selection and sorting are no streams: they take far longer than reading scores once, so passes are what those
        # take on an H200 for 16384 tokens and 128 experts: top-k 111 us, scores, counts and maps by scatter 97, sorting
        # 116 to 148; a fused router has maps of its own
        "top-k": PointwiseOp(OpPasses(150.0, 40.0, 6.0, 3.0), OpPasses(280.0, 80.0, 14.0, 6.0)),
        # token copies written in their new order and sorted again by local expert, each way
        "permute": PointwiseOp(OpPasses(4.0, 4.0, 4.0, 4.0), OpPasses(8.0, 8.0, 12.0, 12.0)),
        # passes over logits of 16 bits: of one kernel; of PyTorch's loss
        "loss": PointwiseOp(OpPasses(6.0, 3.0, 2.0), OpPasses(14.0, 3.0, 8.0)),
        # a tanh of every logit: read and written once more where nothing fuses it
        "logit softcap": PointwiseOp(OpPasses(0.0, 0.0, 0.0, 0.0), OpPasses(4.0, 0.0, 4.0, 0.0)),
        # reads and writes of a score matrix, transposes and dropout among the kernels: scale, mask, softmax and dropout
        # each on their own; a masked softmax in one kernel and a dropout of its own
        "softmax": PointwiseOp(OpPasses(6.0, 9.0, 10.0, 16.0), OpPasses(11.0, 14.0, 14.0, 20.0)),
        # the same from a compiler that joins pointwise chains and reductions: written by one product, through softmax
        # and dropout at once, read by the other
        "score chain": PointwiseOp(OpPasses(4.0, 7.0, 8.0, 14.0), OpPasses(11.0, 14.0, 14.0, 20.0)),
    }
)
"""Passes forward and backward, then kernels forward and backward: joined, and apart."""


@lru_cache(maxsize=4096)
def is_joined(fuses: frozenset[str] | tuple[str, ...], op: str) -> bool:
    """Whether one of the fusions (a tuple or a frozenset of their words) joins an op.

    >>> is_joined(("bias-dropout-add",), "residual"), is_joined(("elementwise",), "rotary"), is_joined((), "norm")
    (True, True, False)
    """
    return any(op in FUSIONS[fusion].joins for fusion in fuses)


@lru_cache(maxsize=4096)
def op_passes(fuses: frozenset[str] | tuple[str, ...], op: str, joined_as: str = "") -> OpPasses:
    """What an op of POINTWISE costs under these fusions; `joined_as` where fusions know it by another name."""
    cost = POINTWISE[op]
    return cost.joined if is_joined(fuses, joined_as or op) else cost.apart
