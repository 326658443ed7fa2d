"""The standing set: ops of transformers, forward and backward, fused and decomposed, on inputs that are hard.

    STANDING    builders of calls: an op, its arguments on the host, and what is hard about them

Every run probes all of them on the device, whether the model dispatches them or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

A = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One op with arguments on the host; `why` says what its input is there for."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    why: str = "ordinary"
    phase: str = "forward"


class Numbers:
    """Inputs of one format from one seed."""

    def __init__(self, dtype: torch.dtype, seed: int = 0, device: str = "cpu") -> None:
        self.dtype, self.source = dtype, torch.Generator().manual_seed(seed)
        # what a norm's forward keeps for its backward: the host's kernels in the format, others in 32 bits
        self.statistics = dtype if device.partition(":")[0] in ("cpu", "ridge") else torch.float32

    def normal(self, *shape: int, size: float = 1.0, at: float = 0.0) -> Tensor:
        """Gaussian, in the format."""
        return (torch.randn(shape, generator=self.source) * size + at).to(self.dtype)

    def places(self, *shape: int, below: int) -> Tensor:
        """Indices, many of them twice."""
        return torch.randint(0, below, shape, generator=self.source)

    def strided(self, rows: int, columns: int) -> Tensor:
        """A transposed view that begins inside its memory."""
        return self.normal(columns + 3, rows + 5)[2 : 2 + columns, 4 : 4 + rows].mT


def products(n: Numbers) -> Iterator[Call]:
    """Products: tails of every dim, one row, long sums, sums that cancel, strided operands, a bias."""
    for m, k, w in ((64, 256, 96), (1, 129, 33), (17, 1, 5), (33, 2048, 48), (128, 64, 128)):
        yield Call(op=A.mm.default, args=(n.normal(m, k), n.normal(k, w, size=k**-0.5)), why=f"{m} x {k} x {w}")
    yield Call(op=A.mm.default, args=(n.strided(48, 64), n.strided(64, 40)), why="strided")
    half = n.normal(32, 512)
    yield Call(
        op=A.mm.default, args=(torch.cat((half, half), 1), torch.cat((x := n.normal(512, 40), -x))), why="cancels"
    )
    yield Call(op=A.mm.default, args=(n.normal(32, 256, size=200.0), n.normal(256, 64, size=200.0)), why="large")
    yield Call(op=A.bmm.default, args=(n.normal(6, 40, 64), n.normal(6, 64, 72)))
    yield Call(op=A.bmm.default, args=(n.normal(40, 6, 64).transpose(0, 1), n.normal(6, 72, 64).mT), why="strided")
    yield Call(op=A.addmm.default, args=(n.normal(96), n.normal(64, 256), n.normal(256, 96)))
    yield Call(
        op=A.addmm.default, args=(n.normal(96, size=300.0), n.normal(64, 256), n.normal(256, 96)), why="large bias"
    )


def pointwise(n: Numbers) -> Iterator[Call]:
    """Functions of one number and their backward: ordinary, large, tiny, denormal, strided, special values."""
    inputs = {
        "ordinary": n.normal(64, 160, size=2.0),
        "large": n.normal(32, 64, size=60.0),
        "tiny": n.normal(32, 64, size=1e-5),
        "one row": n.normal(1, 77),
        "strided": n.strided(40, 56),
        "special": torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-38, -1e-38, 3e38, 1.0, -1.0]).to(
            n.dtype
        ),
    }
    unary = (A.silu, A.gelu, A.sigmoid, A.tanh, A.exp, A.relu, A.sin, A.cos, A.neg)
    for why, x in inputs.items():
        for op in unary:
            if not (why in ("large", "special") and op in (A.sin, A.cos, A.gelu)):
                yield Call(op=op.default, args=(x,), why=why)
        g = n.normal(*x.shape)
        if why != "special":
            for back in (A.silu_backward, A.gelu_backward):
                yield Call(op=back.default, args=(g, x), why=why, phase="backward")
            for two in (A.add.Tensor, A.sub.Tensor, A.mul.Tensor):
                yield Call(op=two, args=(x, g), why=why)
            yield Call(op=A.mul.Tensor, args=(x, g[:1]), why=f"{why}, one row for all")
            yield Call(op=A.rsqrt.default, args=(x.abs() + 1e-3,), why=why)
            yield Call(op=A.div.Tensor, args=(x, g.abs() + 0.1), why=why)
            yield Call(op=A.pow.Tensor_Scalar, args=(x, 2), why=why)
            yield Call(op=A.sqrt.default, args=(x.abs(),), why=why)
    angles = (torch.arange(0, 65536, 61).float()[:, None] * torch.tensor([1.0, 0.1, 0.01])).to(n.dtype)
    if n.dtype == torch.float32:
        yield Call(op=A.cos.default, args=(angles,), why="long positions")
        yield Call(op=A.sin.default, args=(angles,), why="long positions")


def rows(n: Numbers) -> Iterator[Call]:
    """Softmax, norms, sums: logits far below zero, masked rows, equal rows, a large mean, small activations."""
    masked = n.normal(24, 80)
    masked[3, 1:] = -torch.inf
    inputs = {
        "ordinary": n.normal(48, 192, size=3.0),
        "far below zero": n.normal(24, 80, size=2.0, at=-5000.0 if n.dtype == torch.float32 else -300.0),
        "masked": masked,
        "equal": torch.full((8, 65), 3.0, dtype=n.dtype),
        "one column": n.normal(9, 1),
        "strided": n.strided(24, 48),
        "large": n.normal(16, 129, size=100.0),
    }
    for why, x in inputs.items():
        g = n.normal(*x.shape)
        yield Call(op=A._softmax.default, args=(x, -1, False), why=why)
        if why != "masked" and n.dtype == torch.float32:
            yield Call(op=A._log_softmax.default, args=(x, -1, False), why=why)
            back = (g, torch.log_softmax(x.double(), -1).to(n.dtype), -1, n.dtype)
            yield Call(op=A._log_softmax_backward_data.default, args=back, why=why, phase="backward")
        if why != "masked":
            p = torch.softmax(x.double(), -1).to(n.dtype)
            yield Call(op=A._softmax_backward_data.default, args=(g, p, -1, n.dtype), why=why, phase="backward")
            yield Call(op=A.sum.dim_IntList, args=(x, [-1], True), why=why)
            yield Call(op=A.mean.dim, args=(x, [-1], True), why=why)
            yield Call(op=A.sum.dim_IntList, args=(x, [0]), why=why)
    yield Call(
        op=A._safe_softmax.default,
        args=(masked.clone().index_fill_(0, torch.tensor([5]), -torch.inf), -1),
        why="masked row",
    )
    yield from norms(n)


def norms(n: Numbers) -> Iterator[Call]:
    """Layer norm and its backward, RMS norm."""
    for why, size, at in (("ordinary", 1.0, 0.0), ("large mean", 1.0, 8.0), ("small", 1e-3, 0.0), ("large", 50.0, 0.0)):
        x, w, b, g = n.normal(40, 160, size=size, at=at), n.normal(160, at=1.0), n.normal(160), n.normal(40, 160)
        yield Call(op=A.native_layer_norm.default, args=(x, [160], w, b, 1e-5), why=why)
        mean, var = x.double().mean(-1, keepdim=True), x.double().var(-1, keepdim=True, correction=0)
        told = mean.to(n.statistics), (var + 1e-5).rsqrt().to(n.statistics)
        args = (g, x, [160], *told, w, b, [True, True, True])
        yield Call(op=A.native_layer_norm_backward.default, args=args, why=why, phase="backward")


def fused_attention(n: Numbers) -> Iterator[Call]:
    """Fused attention and its backward: causal, tails, unequal lengths, logits far below zero, large scores."""
    forward = A._scaled_dot_product_flash_attention_for_cpu.default
    backward = A._scaled_dot_product_flash_attention_for_cpu_backward.default
    for why, lengths, causal, size in (
        ("causal", (48, 48), True, 1.0), ("tail", (37, 53), False, 1.0), ("one query", (1, 65), False, 1.0),
        ("large scores", (32, 32), False, 6.0), ("long", (16, 600), False, 1.0),
    ):  # fmt: skip
        q, k, v = (
            n.normal(2, 3, t, 32, size=s) for t, s in ((lengths[0], size), (lengths[1], size), (lengths[1], 1.0))
        )
        yield Call(op=forward, args=(q, k, v, 0.0, causal), why=why)
        out, lse = _attended(q, k, v, causal)
        yield Call(op=backward, args=(n.normal(*q.shape), q, k, v, out, lse, 0.0, causal), why=why, phase="backward")
    q, k = n.normal(1, 2, 32, 32, at=2.0), n.normal(1, 2, 32, 32, at=-2.0)
    yield Call(op=forward, args=(q, k, n.normal(1, 2, 32, 32), 0.0, False), why="logits far below zero")


def _attended(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    scores = q.double() @ k.double().mT * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return (scores.softmax(-1) @ v.double()).to(q.dtype), torch.logsumexp(scores, -1).float()


def lookups(n: Numbers) -> Iterator[Call]:
    """Rows by index: embedding and its backward, gather, scatter, top-k with ties; every index twice or more."""
    table, where = n.normal(50, 48), n.places(96, below=50)
    yield Call(op=A.embedding.default, args=(table, where))
    yield Call(op=A.embedding_dense_backward.default, args=(n.normal(96, 48), where, 50, -1, False), phase="backward")
    args = (n.normal(96, 48), where, 50, int(where[0]), False)
    yield Call(op=A.embedding_dense_backward.default, args=args, why="padding row", phase="backward")
    yield Call(op=A.index_add.default, args=(n.normal(50, 48), 0, where, n.normal(96, 48)), why="duplicates")
    yield Call(op=A.gather.default, args=(table, 1, n.places(50, 7, below=48)))
    spread = n.places(96, 48, below=50)
    yield Call(op=A.scatter_add.default, args=(n.normal(50, 48), 0, spread, n.normal(96, 48)), why="duplicates")
    tied = n.normal(32, 40).round()
    yield Call(op=A.topk.default, args=(tied, 4), why="ties")
    yield Call(op=A.topk.default, args=(n.normal(32, 64), 8))
    yield Call(op=A.cat.default, args=([n.normal(8, 30), n.strided(8, 12)], 1), why="strided")
    yield Call(op=A.where.self, args=(n.normal(16, 40) > 0, n.normal(16, 40), n.normal(1, 40)))
    yield Call(op=A.clone.default, args=(n.strided(24, 40),), why="strided")
    yield Call(op=A.masked_fill.Scalar, args=(n.normal(16, 40), n.normal(16, 40) > 0, -1e4))
    yield Call(op=A.cumsum.default, args=(n.normal(8, 64), 1))


def losses(n: Numbers) -> Iterator[Call]:
    """Negative log-likelihood with rows to ignore, and its backward."""
    if n.dtype != torch.float32:
        return
    logs, target = torch.log_softmax(n.normal(64, 120, size=3.0), -1), n.places(64, below=120)
    target[5:9] = -100
    for why, reduction in (("mean", 1), ("sum", 2)):
        yield Call(
            op=A.nll_loss_forward.default, args=(logs, target, None, reduction, -100), why=f"{why}, rows to ignore"
        )
        args = (torch.tensor(0.7), logs, target, None, reduction, -100, torch.tensor(60.0))
        yield Call(op=A.nll_loss_backward.default, args=args, why=f"{why}, rows to ignore", phase="backward")


def casts(n: Numbers) -> Iterator[Call]:
    """From one format to another: ties, overflow, denormals, 8 bits."""
    x = torch.cat(
        (
            n.normal(4000, size=3.0).float(),
            torch.tensor([1e-40, 3e38, 65520.0, 448.0, 464.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8]),
        )
    )
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        yield Call(
            op=A._to_copy.default, args=(x,), kwargs={"dtype": dtype}, why=f"to {dtype}, ties".replace("torch.", "")
        )


STANDING: tuple[Callable[[Numbers], Iterator[Call]], ...] = (
    products, pointwise, rows, fused_attention, lookups, losses, casts,
)  # fmt: skip


def standing_calls(seed: int = 0, device: str = "cpu") -> Iterator[Call]:
    """Every call of the standing set, in fp32 and bf16."""
    for dtype in (torch.float32, torch.bfloat16):
        for build in STANDING:
            yield from build(Numbers(dtype, seed, device))
