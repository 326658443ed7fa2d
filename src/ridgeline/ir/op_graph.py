"""The op graph: what a framework or a compiler runs, op by op, with the tensors between them.

    OpGraph
    |-- tensors     shape, format, what it is for, whose memory it shares, whether the backward needs it, its sharding
    |-- ops         name, kind, tensors read and written, module, phase, flops, bytes, how often it runs
    |-- layers      modules that stand for several equal ones; the count is on their ops
    `-- fusions     ops that one kernel runs

Whoever captures a module or reads a compiler's text writes this type; regions, prices, save sets and pages read it. An
edge is a tensor's number: written by one op, read by others. Flops and bytes are those of one run of an op; `count` is
how often it runs in the step. Only the standard library is needed, because text formats are read without a framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from math import prod
from typing import Literal, get_args

from ridgeline.core.dtype import ALIASES, TORCH_TYPES, element_bytes
from ridgeline.core.records import dataclass
from ridgeline.ir.kernel import Kernel

OpPhase = Literal["forward", "backward", "optimizer"]
OpKind = Literal[
    "product", "attention", "pointwise", "reduction", "norm", "softmax", "gather", "scatter", "sort", "random", "copy",
    "view", "create", "collective", "custom", "unknown",
]  # fmt: skip
TensorRole = Literal["activation", "input", "weight", "gradient", "state", "constant"]
OP_PHASES: tuple[OpPhase, ...] = get_args(OpPhase)
OP_KINDS: tuple[OpKind, ...] = get_args(OpKind)
FREE_KINDS: tuple[OpKind, ...] = ("view",)
"""Kinds that launch nothing and move nothing: another shape of the same memory."""
MEMORY_KINDS: tuple[OpKind, ...] = (
    "pointwise", "reduction", "norm", "softmax", "gather", "scatter", "random", "copy", "create",
)  # fmt: skip
"""Kinds bound by memory traffic, which a compiler may join with their neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTensor:
    """One tensor that ops read or write.

    id        its place in `OpGraph.tensors`
    dtype     number format: an id of `core.dtype`, or the element type as torch names it
    name      of a weight or an input, such as `model.layers.0.mlp.up_proj.weight`; empty for an activation
    alias_of  the tensor whose memory it shares: a view, or a write in place; -1: memory of its own
    saved     whether the forward wrote it and the backward reads it
    sharding  how ranks share it, in the words of its source (`{devices=[1,8]<=[8]}`, `Shard(0)`); empty: unsaid
    """

    id: int
    shape: tuple[int, ...]
    dtype: str
    role: TensorRole = "activation"
    name: str = ""
    alias_of: int = -1
    saved: bool = False
    sharding: str = ""

    @property
    def elements(self) -> int:
        """Of the whole tensor; 1 of a scalar."""
        return prod(self.shape)

    @property
    def bytes(self) -> float:
        """Stored bytes, whether or not it shares them with another."""
        return self.elements * format_bytes(self.dtype)


def format_bytes(name: str) -> float:
    """Bytes of an element, of a format of `core.dtype` or an element type as torch names it.

    >>> format_bytes("bf16"), format_bytes("float8_e4m3fn"), format_bytes("int64"), format_bytes("bool")
    (2.0, 1.0, 8.0, 1.0)
    """
    if name in TORCH_TYPES and name not in ALIASES:
        return float(TORCH_TYPES[name][1])
    return element_bytes(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCollective:
    """What a collective of the graph says of its ranks: kind in the words of `ir.ops`, ranks of a group, groups.

    groups    ranks of each group where the source lists them
    """

    kind: str
    ranks: int = 0
    groups: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOp:
    """One op.

    id        its place in `OpGraph.ops`, which is an order in which they can run
    name      as the source names it, without its overload: `aten.mm`, `stablehlo.dot_general`
    inputs    numbers of the tensors it reads, each once, in the order of its arguments
    outputs   numbers of the tensors it writes, views among them
    module    dotted path of the module at work: `model.layers.0.self_attn.q_proj`
    flops     of one run, products and attention alone as publications count them
    bytes_read, bytes_written   of one run where nothing is fused: each tensor once, views nothing
    count     how often it runs in a step, because its layer stands for several
    fusion    the number of the fusion that it is in; -1: a kernel of its own
    kernel    the product or attention it is, with its sizes; None: bound by memory, or not recognised
    """

    id: int
    name: str
    kind: OpKind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    module: str = ""
    phase: OpPhase = "forward"
    flops: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    count: int = 1
    fusion: int = -1
    kernel: Kernel | None = None
    collective: OpCollective | None = None

    @property
    def bytes(self) -> float:
        """Read and written by one run."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLayer:
    """A module of the graph that stands for several: `path` is in the graph, `count` equal ones run in a step."""

    path: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFusion:
    """Ops that one kernel runs, by who joined them (`inductor`, `xla`, `tvm`, a region of this software)."""

    id: int
    name: str
    ops: tuple[int, ...]
    by: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpGraph:
    """Every op of a step (or of a forward alone), in an order in which they can run.

    name      of what it is a graph of: a model, a function, a file
    source    who wrote it down: `torch 2.13.0`, `StableHLO`, `HLO`, `Relax`
    notes     what the reader did not understand or took for granted, in sentences
    """

    name: str
    source: str
    tensors: tuple[GraphTensor, ...]
    ops: tuple[GraphOp, ...]
    layers: tuple[GraphLayer, ...] = ()
    fusions: tuple[GraphFusion, ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def producers(self) -> Mapping[int, int]:
        """The op that first wrote each tensor; inputs and weights have none."""
        first: dict[int, int] = {}
        for op in self.ops:
            for tensor in op.outputs:
                first.setdefault(tensor, op.id)
        return first

    @cached_property
    def consumers(self) -> Mapping[int, tuple[int, ...]]:
        """The ops that read each tensor."""
        readers: dict[int, list[int]] = {}
        for op in self.ops:
            for tensor in dict.fromkeys(op.inputs):
                readers.setdefault(tensor, []).append(op.id)
        return {tensor: tuple(ops) for tensor, ops in readers.items()}

    def storage(self, tensor: int) -> int:
        """The tensor whose memory this one is: itself, or the end of its chain of aliases."""
        chain = {tensor}
        while (base := self.tensors[tensor].alias_of) >= 0 and base not in chain:
            chain.add(base)
            tensor = base
        return tensor

    def total(self, value: Callable[[GraphOp], float], phase: str = "") -> float:
        """The sum of a figure of ops over the step, each as often as it runs; of one phase where it is named."""
        return sum(value(op) * op.count for op in self.ops if not phase or op.phase == phase)

    @property
    def flops(self) -> float:
        """Of the whole step."""
        return self.total(lambda op: op.flops)

    @property
    def launches(self) -> float:
        """Kernels of the whole step: a fusion is one, views are none."""
        single_launches = self.total(lambda op: float(op.fusion < 0 and op.kind not in FREE_KINDS))
        return single_launches + sum(
            max((self.ops[op].count for op in fusion.ops), default=0) for fusion in self.fusions
        )

    @property
    def saved_bytes(self) -> float:
        """Memory of activations that the forward leaves for the backward, each storage once, all layers."""
        storages = {self.storage(tensor.id) for tensor in self.tensors if tensor.saved}
        counts = {tensor: self.ops[op].count for tensor, op in self.producers.items()}
        return sum(
            self.tensors[tensor].bytes * counts.get(tensor, 1)
            for tensor in storages
            if self.tensors[tensor].role == "activation"
        )


def traffic(tensors: Iterable[GraphTensor]) -> float:
    """Bytes of tensors, each once however often it is named."""
    return sum(tensor.bytes for tensor in {tensor.id: tensor for tensor in tensors}.values())
