"""The kernels and collectives of one rank by size alone: how often a step executes each, by a Program or by a trace.

    gemm                 groups, m, n, k                 m >= n: a product and its transpose are one
    grouped_gemm         groups, rows of all, n, k       of experts, whose rows are sorted by expert; n >= k
    grouped_gemm_dw      the same of their weight gradients, which sum over rows
    attention_forward    heads of all sequences, query, key, width of a key, width of a value; attention_backward alike
    all-gather ...       ranks, stride, bytes            payload as `ir.ops.Collective` says
    send                 stride, bytes

A kernel and how often: `lowering` expects them, a dry run traces them, `op_comparison` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from ridgeline.core.records import dataclass
from ridgeline.ir.kernel import Kernel

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "gemm": "product", "grouped_gemm": "grouped product", "grouped_gemm_dw": "grouped dW",
        "attention_forward": "attention", "attention_backward": "attention dX",
    }
)  # fmt: skip
"""How people read the ops that compute; a collective is read as it is named."""


def kind_of(kernel: Kernel) -> str:
    """The kind of a kernel or collective, as people read it."""
    return KINDS.get(kernel.op, kernel.op)


def size_text(kernel: Kernel) -> str:
    """A kernel or collective with its sizes, as people read them.

    >>> size_text(product_size(1, 4096, 1024, 512)), size_text(collective_size("all-gather", 8, 1, 1024))
    ('product 4096 x 1024 x 512', 'all-gather 8 ranks, stride 1, 1,024 B')
    """
    if kernel.op in KINDS:
        many, *sides = kernel.dims.values()
        several = "" if kernel.op == "gemm" and many == 1 else f"{many} of "
        return f"{kind_of(kernel)} {several}{' x '.join(map(str, sides))}"
    ranks = f"{kernel.dims['ranks']} ranks, " if "ranks" in kernel.dims else ""
    return f"{kernel.op} {ranks}stride {kernel.dims['stride']}, {kernel.dims['bytes']:,} B"


def product_size(groups: float, m: float, n: float, k: float) -> Kernel:
    """A product of (m x k) by (k x n), or several at once.

    >>> product_size(1, 8, 16, 4) == product_size(1, 16, 8, 4)
    True
    """
    return _kernel("gemm", groups=groups, m=max(m, n), n=min(m, n), k=k)


def grouped_size(groups: float, rows: float, n: float, k: float, *, weights: bool = False) -> Kernel:
    """Products of experts: `rows` of all of them, which a weight gradient sums over; n and k in either order."""
    if groups == 1 and weights:
        return product_size(1, n, k, rows)
    op = "grouped_gemm_dw" if weights else "grouped_gemm"
    return _kernel(op, groups=groups, rows=rows, n=max(n, k), k=min(n, k))


def attention_size(
    heads: float, lengths: tuple[float, float], widths: tuple[float, float], *, backward: bool
) -> Kernel:
    """Attention of all heads: lengths of queries and keys, widths of a key and of a value."""
    op = "attention_backward" if backward else "attention_forward"
    return _kernel(op, heads=heads, query=lengths[0], key=lengths[1], head_dim=widths[0], value_dim=widths[1])


def collective_size(kind: str, ranks: float, stride: float, size_bytes: float) -> Kernel:
    """A collective among ranks that stand a stride apart; a send has no ranks beside the two."""
    if kind == "send":
        return _kernel(kind, stride=stride, bytes=size_bytes)
    return _kernel(kind, ranks=ranks, stride=stride, bytes=size_bytes)


def _kernel(op: str, **dims: float) -> Kernel:
    return Kernel(op=op, dims={name: round(float(size)) for name, size in dims.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPath:
    """Another way to execute an op that is the same work: its name, and the kernels that stand in its place."""

    name: str
    kernels: tuple[tuple[Kernel, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOp:
    """One kernel that a rank is expected to execute, so many times a step.

    paths    what may stand in its place; ops of one `family` go the same way
    summed   a collective that may come in buckets: bytes of its kind, ranks and stride are summed
    """

    label: str
    kernel: Kernel
    count: int
    paths: tuple[OpPath, ...] = field(default=())
    family: str = ""
    summed: bool = False

    @property
    def work(self) -> float:
        """Multiply-adds or bytes of all of them, for an order."""
        computes = self.kernel.op in KINDS or self.kernel.op == "send"
        return self.count * (self.kernel.elements if computes else self.kernel.dims["bytes"])
