"""The ops of one rank by size alone: how often a step executes each, whoever says so, a Program or a trace.

    product            groups, rows, columns, depth          rows >= columns: a product and its transpose are one
    grouped product    groups, rows of all, width, width     of experts, whose rows are sorted by expert
    grouped dW         the same of their weight gradients    rows are summed over
    attention          heads of all sequences, queries, keys, width of a key, width of a value
    all-gather ...     ranks, stride, bytes                  payload as `ir.ops.Collective` says
    send               stride, bytes

A name and how often: `lowering` expects them, a dry run traces them, `op_comparison` holds one against the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import prod
from typing import NamedTuple

from ridgeline.core.records import dataclass

SIZE_NAMES: Mapping[str, tuple[str, ...]] = {
    "product": ("groups", "rows", "columns", "depth"),
    "grouped product": ("groups", "rows", "width", "width"),
    "grouped dW": ("groups", "rows", "width", "width"),
    "attention": ("heads", "queries", "keys", "key width", "value width"),
    "attention dX": ("heads", "queries", "keys", "key width", "value width"),
    "send": ("stride", "bytes"),
}
COLLECTIVE_SIZES = ("ranks", "stride", "bytes")


class OpSize(NamedTuple):
    """What an op is and how large."""

    kind: str
    sizes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """What a collective moves: the last of its sizes."""
        return self.sizes[-1]

    def __str__(self) -> str:
        """
        >>> str(OpSize("product", (1, 4096, 1024, 512))), str(OpSize("all-gather", (8, 1, 1024)))
        ('product 4096 x 1024 x 512', 'all-gather 8 ranks, stride 1, 1,024 B')
        """
        if self.kind in SIZE_NAMES and self.kind != "send":
            many, *rest = self.sizes
            plain = self.kind == "product" and many == 1
            return f"{self.kind} {'' if plain else f'{many} of '}{' x '.join(map(str, rest))}"
        *who, size = self.sizes
        ranks = f"{who[0]} ranks, " if len(who) > 1 else ""
        return f"{self.kind} {ranks}stride {who[-1]}, {size:,} B"


def product_size(groups: float, m: float, n: float, k: float) -> OpSize:
    """A product of (m x k) by (k x n), or several at once.

    >>> product_size(1, 8, 16, 4) == product_size(1, 16, 8, 4)
    True
    """
    return OpSize("product", (_whole(groups), _whole(max(m, n)), _whole(min(m, n)), _whole(k)))


def grouped_size(groups: float, rows: float, one: float, other: float, *, weights: bool = False) -> OpSize:
    """Products of experts: `rows` of all of them, which a weight gradient sums over."""
    if groups == 1:
        return product_size(1, one, other, rows) if weights else _single(rows, one, other)
    wide, narrow = max(one, other), min(one, other)
    kind = "grouped dW" if weights else "grouped product"
    return OpSize(kind, (_whole(groups), _whole(rows), _whole(wide), _whole(narrow)))


def _single(rows: float, one: float, other: float) -> OpSize:
    """The product of a single expert, whichever of its widths is the depth."""
    return OpSize("grouped product", (1, _whole(rows), _whole(max(one, other)), _whole(min(one, other))))


def _whole(size: float) -> int:
    return round(float(size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Another way to execute an op that is the same work: its name, and what stands in its place."""

    name: str
    ops: tuple[tuple[OpSize, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOp:
    """One op that a rank is expected to execute, so many times a step.

    ways     what may stand in its place; ops of one `family` go the same way
    summed   a collective that may come in buckets: bytes of its kind, ranks and stride are summed
    """

    label: str
    size: OpSize
    count: int
    ways: tuple[Way, ...] = field(default=())
    family: str = ""
    summed: bool = False

    @property
    def work(self) -> int:
        """Multiply-adds or bytes of all of them, for an order."""
        return self.count * (prod(self.size.sizes) if self.size.kind in SIZE_NAMES else self.size.bytes)
