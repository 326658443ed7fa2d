"""Standing calls with a long dim: sums of many terms, wide vocabularies, tables beyond 16-bit indices."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ridgeline.runtime.bringup.calls import Call, Numbers

A = torch.ops.aten
VOCABULARY = 70_003


def long_products(n: Numbers) -> Iterator[Call]:
    """Many terms, many columns, many rows."""
    for m, k, w in ((5, 16384, 24), (3, 40, 40_003), (4099, 24, 16)):
        yield Call(op=A.mm.default, args=(n.normal(m, k), n.normal(k, w, size=k**-0.5)), why=f"{m} x {k} x {w}")
    yield Call(op=A.bmm.default, args=(n.normal(2, 515, 16), n.normal(2, 16, 520)), why="scores of 515 tokens")
    yield Call(op=A.addmm.default, args=(n.normal(8200), n.normal(9, 33), n.normal(33, 8200)), why="many columns")


def long_rows(n: Numbers) -> Iterator[Call]:
    """Rows as wide as a vocabulary, running sums and norms of many terms."""
    x = n.normal(2, 32_771, size=3.0)
    yield Call(op=A._softmax.default, args=(x, -1, False), why="wide")
    yield Call(op=A.sum.dim_IntList, args=(x, [-1]), why="wide")
    yield Call(op=A.sum.dim_IntList, args=(n.normal(5000, 9), [0]), why="many rows")
    yield Call(op=A.mean.dim, args=(x, [-1]), why="wide")
    yield Call(op=A.cumsum.default, args=(n.normal(2, 5000), 1), why="long")
    yield Call(op=A.topk.default, args=(n.normal(2, VOCABULARY), 50), why="a vocabulary")
    yield Call(op=A.argmax.default, args=(n.normal(2, VOCABULARY), -1), why="a vocabulary")
    w = n.normal(8192, at=1.0)
    yield Call(op=A.native_layer_norm.default, args=(n.normal(3, 8192), [8192], w, w, 1e-5), why="wide")
    yield Call(op=A._fused_rms_norm.default, args=(n.normal(3, 8192), [8192], w, 1e-6), why="wide")
    if n.dtype == torch.float32:
        yield Call(op=A._log_softmax.default, args=(x, -1, False), why="wide")
        logs = torch.log_softmax(n.normal(3, VOCABULARY).double(), -1).float()
        target = torch.tensor([VOCABULARY - 1, 66_000, -100])
        yield Call(op=A.nll_loss_forward.default, args=(logs, target, None, 1, -100), why="a vocabulary")
        args = (torch.tensor(1.0), logs, target, None, 1, -100, torch.tensor(2.0))
        yield Call(op=A.nll_loss_backward.default, args=args, why="a vocabulary", phase="backward")
    yield Call(op=A.sum.default, args=(n.normal(300, 1000),), why="300,000 terms")


def long_tables(n: Numbers) -> Iterator[Call]:
    """Tables of many rows, and tensors of many elements."""
    where = torch.tensor([0, 65_535, 65_536, 66_001, VOCABULARY - 1, 65_537, 5])
    yield Call(op=A.embedding.default, args=(n.normal(VOCABULARY, 3), where), why="a vocabulary")
    args = (n.normal(7, 3), where, VOCABULARY, -1, False)
    yield Call(op=A.embedding_dense_backward.default, args=args, why="a vocabulary", phase="backward")
    yield Call(op=A.index_select.default, args=(n.normal(VOCABULARY, 2), 0, where), why="a vocabulary")
    big = n.normal(263, 1025)
    yield Call(op=A.add.Tensor, args=(big, big.flip(0)), why="many elements")
    yield Call(op=A.mul.Tensor, args=(big, big[:1]), why="many elements, one row for all")
    yield Call(op=A.silu.default, args=(big,), why="many elements")
    yield Call(
        op=A.clone.default, args=(big.mT,), kwargs={"memory_format": torch.contiguous_format}, why="many elements"
    )
    yield Call(op=A.cat.default, args=([big, big[:, :7]], 1), why="many elements")


LONG = long_products, long_rows, long_tables
