"""The closed union of ops a rank executes. Sizes are numbers, or arrays over candidate plans of one structure.

    MatMul       a matrix product, or a group of equal ones in one kernel
    Attend       the score part of attention between its projections
    Stream       work bound by memory traffic: norms, activations, casts, optimizer, copies
    Collective   communication among the ranks of one axis
    HostCopy     a copy between a chip's memory and its host's

Nothing here knows a chip: `cost` prices ops.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.records import dataclass
from ridgeline.ir.kernel import FLASH_BACKWARD as FLASH_BACKWARD
from ridgeline.ir.kernel import Kernel, product_bytes, product_flops, stream_kernel

Num: TypeAlias = int | float | NDArray[np.float64]

# keys' worth of work a flash kernel does beyond what is visible, forward and backward: masked parts of tiles, starting
# and ending a row of them; from causal kernels of 512 to 16384 tokens on an H200
FLASH_EXTRA = (160.0, 320.0)

ALIGNED = 16.0  # bytes that rows must be a multiple of for whole loads into the matrix unit

CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send"]
Axis = Literal["tp", "cp", "dp", "ep", "etp", "edp", "pp", "shard", "replica", "host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatMul:
    """`groups` products of (m x k) by (k x n); flops = 2 m n k groups.

    peak        key of the chip's peak it runs at
    in_bytes    bytes of one input element
    weight_bytes   bytes of an element of the second input (k x n), in those of the first: below 1 where weights are
                stored narrower than they are multiplied (weight-only quantization)
    out_bytes   bytes of one output element, twice that when it is read back to be added to
    alignment   bytes to which the rows of its matrices are aligned: `ALIGNED` for the matrix unit's fast path
    launches    kernels the host issues for it: one, or more where software launches one per group
    share       of what plain kernels of that format reach: less where rows have scales of their own
    """

    label: str
    m: Num
    n: Num
    k: Num
    groups: Num = 1
    peak: str = "bf16"
    in_bytes: float = 2.0
    out_bytes: float = 2.0
    alignment: Num = ALIGNED
    launches: Num = 1.0
    share: float = 1.0
    weight_bytes: float = 1.0

    @property
    def flops(self) -> Num:
        """Two per multiply-add."""
        return product_flops(self.m, self.n, self.k, self.groups)

    @property
    def stream_bytes(self) -> Num:
        """Bytes of both operands and the result."""
        sides = (self.m, self.n, self.k)
        return product_bytes(sides, self.groups, self.in_bytes, self.out_bytes, self.weight_bytes)

    @property
    def kernel(self) -> Kernel:
        """The kernel it runs, of a single plan."""
        sides = {"m": float(self.m), "n": float(self.n), "k": float(self.k), "groups": float(self.groups)}
        return Kernel(op="gemm", dtype=self.peak, dims=sides, moved=float(self.stream_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attend:
    """Attention scores, softmax and weighted values of one block, forward or backward.

    flops        executed flops (causal work counted as far as it is executed)
    stream_bytes bytes it moves: operands once for a flash kernel, the score matrices too when it is unfused
    head_dim     width of a head, which sets how well matrix units are used
    scan         a linear scan in chunks instead of scores
    caches       key-value heads of all sequences that one query each reads (flash decoding); 0: queries by the tile
    sharing      query heads that read one of them together
    sizes        of one kernel, unpadded: heads of all sequences, queries, keys, width of a key and of a value
    steps        kernels of these sizes: one for each rank of a ring
    """

    label: str
    flops: Num
    stream_bytes: Num
    head_dim: int
    backward: bool = False
    flash: bool = True
    scan: bool = False
    kernels: Num = 1
    caches: Num = 0.0
    sharing: float = 1.0
    sizes: tuple[Num, Num, Num, int, int] | None = None
    steps: Num = 1

    @property
    def kernel(self) -> Kernel:
        """The kernel it runs, of a single plan: its flops are those that are executed."""
        name = "attention_backward" if self.backward else "attention_forward"
        return Kernel(op=name, dtype="bf16", dims={"flops": float(self.flops)}, moved=float(self.stream_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Memory-bound work: bytes moved, kernels it takes, and how often the host must see a result before going on.

    exponentials   values of the special-function unit it takes, by which it is bound where memory is faster
    """

    label: str
    stream_bytes: Num
    kernels: Num = 1.0
    waits: float = 0.0
    exponentials: Num = 0.0

    @property
    def kernel(self) -> Kernel:
        """The kernel it runs, of a single plan."""
        return stream_kernel(float(self.stream_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Communication of one rank's group.

    payload_bytes  the full tensor: what all ranks hold together after an all-gather, before a reduce-scatter;
                   for an all-to-all, what one rank holds
    ranks, stride  size of the group and the distance between neighbours in rank numbers
    token_copies   for an all-to-all of token copies that sends a token once per domain: copies per token
    token_groups   for the same, groups of experts that a token goes to, of `routing_groups` (node-limited routing)
    parts          shares of the payload that software may send one by one: queries, keys, values, outputs
    beside         1 where software can run it beside a product of the same pass: inputs gathered again beside the
                   product that makes their gradient, that gradient summed or scattered beside the one of weights
    aligned        1 where its ranks have just left another collective of their group, so that none comes late
    """

    label: str
    kind: CollectiveKind
    axis: Axis
    payload_bytes: Num
    ranks: Num
    stride: Num = 1
    token_copies: float = 0.0
    token_groups: float = 0.0
    routing_groups: float = 0.0
    parts: tuple[Num, ...] = ()
    beside: float = 0.0
    aligned: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """Bytes that copy engines move over a chip's link to its host, one way."""

    label: str
    payload_bytes: Num


Op: TypeAlias = MatMul | Attend | Stream | Collective
"""What the passes of a section consist of."""
