"""Which ops software joins into one kernel: a table of fusions, and what each op costs apart and joined.

An engine's file names the fusions it has (`fuses`), in the words of FUSIONS. A fusion names the ops it joins; POINTWISE
says how often such an op reads or writes its elements, and in how many kernels, where nothing joins it and where
something does. Whoever lowers or builds an op asks `is_joined` or `op_passes` and knows no fusion by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from ridgeline.core.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """A fusion in a sentence, and the ops that it joins with each other or with their neighbours."""

    meaning: str
    joins: tuple[str, ...] = ()


FUSIONS: Mapping[str, Fusion] = MappingProxyType(
    {
        "norm": Fusion(
            meaning="a norm is one kernel instead of one per arithmetic step", joins=("norm", "modulation", "norm cast")
        ),
        "bias-activation": Fusion(
            meaning="bias and activation (GELU, SwiGLU) in one kernel", joins=("common activation",)
        ),
        "bias-dropout-add": Fusion(meaning="bias, dropout and residual addition in one kernel", joins=("residual",)),
        "masked-softmax": Fusion(
            meaning="scale, mask and softmax in one kernel (attention that is not flash)", joins=("softmax",)
        ),
        "rotary": Fusion(meaning="rotary embedding of queries and keys in one kernel", joins=("rotary",)),
        "cross-entropy": Fusion(
            meaning="log-softmax, target pick and their backward without full-size temporaries", joins=("loss",)
        ),
        "linear-cross-entropy": Fusion(
            meaning="output projection and loss in chunks: full logits never exist", joins=("loss", "logits")
        ),
        "weight-gradient-accumulation": Fusion(
            meaning="the weight-gradient product adds into the main gradient buffer", joins=("gradient sum",)
        ),
        "router": Fusion(meaning="router scores, top-k and auxiliary loss in few kernels", joins=("top-k",)),
        "permute": Fusion(meaning="token permutation for experts in one kernel", joins=("permute",)),
        "grouped-gemm": Fusion(meaning="all local experts in one grouped matrix product", joins=("experts",)),
        "expert-epilogue": Fusion(
            meaning="bias, activation and casts of experts inside their grouped products", joins=("expert activation",)
        ),
        "optimizer": Fusion(
            meaning="the optimizer step runs over all tensors in few kernels", joins=("optimizer step",)
        ),
        "elementwise": Fusion(
            meaning="chains of pointwise ops are compiled into one kernel",
            joins=(
                "norm", "modulation", "residual", "rotary", "output gate", "activation", "common activation", "loss",
                "logit softcap", "expert biases", "score chain",
            ),
        ),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPasses:
    """Reads and writes of an op's elements, and kernels, in its forward and its backward."""

    forward: float
    backward: float
    kernels: float = 1.0
    backward_kernels: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PointwiseOp:
    """What an op bound by memory costs in one kernel, and as software without a fusion runs it."""

    joined: OpPasses
    apart: OpPasses


_NORM = PointwiseOp(
    joined=OpPasses(forward=2.0, backward=4.0, backward_kernels=2.0),
    apart=OpPasses(forward=6.0, backward=9.0, kernels=5.0, backward_kernels=6.0),
)
_ACTIVATION = PointwiseOp(
    joined=OpPasses(forward=2.0, backward=3.0),
    apart=OpPasses(forward=4.0, backward=6.0, kernels=3.0, backward_kernels=3.0),
)
_GATED_ACTIVATION = PointwiseOp(
    joined=OpPasses(forward=3.0, backward=5.0),
    apart=OpPasses(forward=5.0, backward=8.0, kernels=3.0, backward_kernels=3.0),
)
# Selection and sorting are no streams: they take far longer than reading scores once, so passes are what those take on
# an H200 for 16384 tokens and 128 experts: top-k 111 us, scores, counts and maps by scatter 97, sorting 116 to 148; a
# fused router has maps of its own
_TOPK = PointwiseOp(
    joined=OpPasses(forward=150.0, backward=40.0, kernels=6.0, backward_kernels=3.0),
    apart=OpPasses(forward=280.0, backward=80.0, kernels=14.0, backward_kernels=6.0),
)
POINTWISE: Mapping[str, PointwiseOp] = MappingProxyType(
    {
        "norm": _NORM,
        "residual": PointwiseOp(
            joined=OpPasses(forward=3.0, backward=3.0), apart=OpPasses(forward=5.0, backward=5.0, kernels=2.0)
        ),
        # two vectors shift and scale a normed input, one gates an output: each is a read and a write of a token more
        # where nothing fuses it into the norm, and a third of that where it is
        "modulation": PointwiseOp(
            joined=OpPasses(forward=0.7, backward=1.0, kernels=0.5, backward_kernels=0.5),
            apart=OpPasses(forward=2.0, backward=3.0, backward_kernels=2.0),
        ),
        "rotary": PointwiseOp(
            joined=OpPasses(forward=2.0, backward=2.0),
            apart=OpPasses(forward=7.0, backward=7.0, kernels=6.0, backward_kernels=6.0),
        ),
        # a sigmoid of the gate times attention's output: two read and one written; backward three read, two written.
        # Where nothing fuses them the sigmoid is written and read once more
        "output gate": PointwiseOp(
            joined=OpPasses(forward=3.0, backward=5.0),
            apart=OpPasses(forward=5.0, backward=8.0, kernels=2.0, backward_kernels=2.0),
        ),
        "activation": _ACTIVATION,
        "gated activation": _GATED_ACTIVATION,
        "top-k": _TOPK,
        # token copies written in their new order and sorted again by local expert, each way
        "permute": PointwiseOp(
            joined=OpPasses(forward=4.0, backward=4.0, kernels=4.0, backward_kernels=4.0),
            apart=OpPasses(forward=8.0, backward=8.0, kernels=12.0, backward_kernels=12.0),
        ),
        # passes over logits of 16 bits: of one kernel; of PyTorch's loss
        "loss": PointwiseOp(
            joined=OpPasses(forward=6.0, backward=3.0, kernels=2.0),
            apart=OpPasses(forward=14.0, backward=3.0, kernels=8.0),
        ),
        # a tanh of every logit: read and written once more where nothing fuses it
        "logit softcap": PointwiseOp(
            joined=OpPasses(forward=0.0, backward=0.0, kernels=0.0, backward_kernels=0.0),
            apart=OpPasses(forward=4.0, backward=0.0, kernels=4.0, backward_kernels=0.0),
        ),
        # reads and writes of a score matrix, transposes and dropout among the kernels: scale, mask, softmax and dropout
        # each on their own; a masked softmax in one kernel and a dropout of its own
        "softmax": PointwiseOp(
            joined=OpPasses(forward=6.0, backward=9.0, kernels=10.0, backward_kernels=16.0),
            apart=OpPasses(forward=11.0, backward=14.0, kernels=14.0, backward_kernels=20.0),
        ),
        # the same from a compiler that joins pointwise chains and reductions: written by one product, through softmax
        # and dropout at once, read by the other
        "score chain": PointwiseOp(
            joined=OpPasses(forward=4.0, backward=7.0, kernels=8.0, backward_kernels=14.0),
            apart=OpPasses(forward=11.0, backward=14.0, kernels=14.0, backward_kernels=20.0),
        ),
    }
)


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
