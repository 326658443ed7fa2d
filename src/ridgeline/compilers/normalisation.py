"""Turn an op graph into the work that no choice of a framework changes: products, attentions, and memory regions.

Frameworks write one program in different ops: a mean is a sum and a product, a softmax is five ops or one, a transpose
is a copy, strides or a contraction's dims. The normal form counts

    products and attentions    as they are; softmax of scores between two products of activations is one attention
    memory regions             ops bound by memory that are connected and stand behind equally many products: what they
                               read from outside and write for outside, each tensor once
    nothing                    views, transposes, and what is made of constants alone

so that two programs have equal flops and bytes where they compute the same. A step count above 1 multiplies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from ridgeline.core.records import dataclass as record
from ridgeline.ir.op_graph import GraphOp, OpGraph

_HEAVY = ("product", "attention", "collective", "custom", "unknown", "sort")
_EXPONENTIAL = ("exp", "softmax")
_LAYOUT = ("transpose", "permute", "copy", "reshape", "clone", "contiguous", "generic (copy)", "T_transpose", "flatten")


@record(frozen=True, slots=True, kw_only=True)
class NormalOp:
    """One product, attention, memory region or collective of the normal form.

    kind    `product`, `attention`, `memory`, or the kind of an op that nothing joins
    ops     numbers of the graph's ops in it
    """

    kind: str
    flops: float
    bytes: float
    count: int
    ops: tuple[int, ...]


@record(frozen=True, slots=True, kw_only=True)
class NormalForm:
    """The work of a graph: its ops, in the order of their first op."""

    ops: tuple[NormalOp, ...]

    @property
    def flops(self) -> float:
        return sum(op.flops * op.count for op in self.ops)

    @property
    def bytes(self) -> float:
        return sum(op.bytes * op.count for op in self.ops)

    def total_bytes(self, kind: str) -> float:
        """Bytes of ops of a kind."""
        return sum(op.bytes * op.count for op in self.ops if op.kind == kind)


def normal_form(graph: OpGraph) -> NormalForm:
    """The normal form of a graph."""
    return _Normalisation(graph).form()


@dataclass(eq=False)
class _Normalisation:
    graph: OpGraph
    base: dict[int, int] = field(default_factory=dict)
    constant_results: set[int] = field(default_factory=set)
    level: dict[int, int] = field(default_factory=dict)
    op_level: dict[int, int] = field(default_factory=dict)
    region: dict[int, int] = field(default_factory=dict)  # op -> the first op of its region, through a chain
    memory: list[int] = field(default_factory=list)

    def form(self) -> NormalForm:
        for op in self.graph.ops:
            self._place(op)
        members: dict[int, list[int]] = defaultdict(list)
        for place in self.memory:
            members[self._root(place)].append(place)
        units: list[NormalOp] = []
        used: set[int] = set()
        for root, ops in members.items():
            if (attention := self._attention(ops)) is not None:
                units.append(attention)
                used |= {root, *attention.ops}
        units += [self._region(ops) for root, ops in members.items() if root not in used]
        units += [
            NormalOp(kind=op.kind, flops=op.flops, bytes=self._own_bytes(op), count=op.count, ops=(op.id,))
            for op in self.graph.ops
            if op.kind in _HEAVY and op.id not in used
        ]
        return NormalForm(ops=tuple(sorted(units, key=lambda unit: unit.ops[0])))

    def of(self, tensor: int) -> int:
        """The tensor that this one is a view or another layout of."""
        return self.base.get(tensor, self.graph.storage(tensor))

    def _place(self, op: GraphOp) -> None:
        """Note where an op stands: nothing, a layout, a memory op, or a heavy one."""
        tensors = self.graph.tensors
        inputs = {self.of(tensor) for tensor in op.inputs}
        inputs -= {tensor for tensor in inputs if tensor in self.constant_results or tensors[tensor].role == "constant"}
        if op.kind == "create" or (not inputs and op.kind not in _HEAVY):
            self.constant_results |= {self.of(tensor) for tensor in op.outputs} | set(op.outputs)
            return
        if self._is_layout(op):
            source = self.of(op.inputs[0])
            for tensor in op.outputs:
                self.base[tensor] = source
            return
        above = max((self.level.get(tensor, 0) for tensor in inputs), default=0)
        self.op_level[op.id] = above
        heavy = op.kind in _HEAVY
        for tensor in op.outputs:
            self.level[self.of(tensor)] = above + int(heavy)
        if heavy:
            return
        self.memory.append(op.id)
        self.region[op.id] = op.id
        for tensor in inputs:
            before = self.producers.get(tensor)
            if before in self.region and self.op_level[before] == above:
                self.region[self._root(before)] = self._root(op.id)

    def _is_layout(self, op: GraphOp) -> bool:
        if op.kind == "view":
            return bool(op.inputs)
        if op.kind != "copy" or len(op.inputs) != 1 or len(op.outputs) != 1:
            return False
        same = self.graph.tensors[op.inputs[0]].elements == self.graph.tensors[op.outputs[0]].elements
        return same and any(word in op.name for word in _LAYOUT)

    @cached_property
    def producers(self) -> dict[int, int]:
        """The op that wrote a tensor, layouts left out; the last one of a tensor written in place."""
        return {
            self.graph.storage(tensor): op.id
            for op in self.graph.ops
            if not self._is_layout(op)
            for tensor in op.outputs
        }

    @cached_property
    def readers(self) -> dict[int, set[int]]:
        """The ops that read a tensor, layouts looked through."""
        readers: dict[int, set[int]] = defaultdict(set)
        for op in self.graph.ops:
            if not self._is_layout(op):
                for tensor in op.inputs:
                    readers[self.of(tensor)].add(op.id)
        return readers

    def _root(self, op: int) -> int:
        while self.region[op] != op:
            self.region[op] = op = self.region[self.region[op]]
        return op

    def _outer(self, ops: Iterable[int]) -> tuple[dict[int, float], dict[int, float]]:
        """Tensors that ops read from outside and write for outside, with the bytes of each."""
        inside = set(ops)
        written = {self.of(tensor) for op in inside for tensor in self.graph.ops[op].outputs}
        read: dict[int, float] = {}
        for op in inside:
            for tensor in self.graph.ops[op].inputs:
                source = self.of(tensor)
                if (
                    source in written
                    or source in self.constant_results
                    or self.graph.tensors[source].role == "constant"
                ):
                    continue
                whole_value = self.graph.tensors[source].bytes
                part = self.graph.ops[op].bytes_read if self.graph.ops[op].kind == "gather" else whole_value
                read[source] = max(read.get(source, 0.0), min(whole_value, part))
        outputs = {
            tensor: self.graph.tensors[tensor].bytes
            for tensor in written
            if self.readers.get(tensor, set()) - inside or self._is_result(tensor)
        }
        return read, outputs

    def _is_result(self, tensor: int) -> bool:
        """Whether nothing reads a tensor, nor another output of its op: it is a result of the program."""
        if self.readers.get(tensor):
            return False
        siblings = self.graph.ops[self.producers[tensor]].outputs if tensor in self.producers else ()
        return not any(self.readers.get(self.of(other_item)) for other_item in siblings)

    def _region(self, ops: list[int]) -> NormalOp:
        read, written = self._outer(ops)
        scatter_bytes = sum(
            self.graph.ops[op].bytes for op in ops if self.graph.ops[op].kind == "scatter"
        )  # fmt: skip
        moved_bytes = scatter_bytes or sum(read.values()) + sum(written.values())
        count = max(self.graph.ops[op].count for op in ops)
        return NormalOp(kind="memory", flops=0.0, bytes=moved_bytes, count=count, ops=tuple(sorted(ops)))

    def _own_bytes(self, op: GraphOp) -> float:
        read, written = self._outer([op.id])
        return sum(read.values()) + sum(written.values())

    def _attention(self, ops: list[int]) -> NormalOp | None:
        """The attention whose softmax a region is; None where it is none."""
        graph = self.graph
        names = [graph.ops[op] for op in ops]
        sums = any(op.kind in ("reduction", "softmax") for op in names)
        if not sums or not any(word in op.name for op in names for word in _EXPONENTIAL):
            return None
        read, written = self._outer(ops)
        scores = [self.producers[tensor] for tensor in read if self.producers.get(tensor, -1) in self._products]
        behind = {reader for tensor in written for reader in self.readers.get(tensor, ())}
        if len(scores) != 1 or len(written) != 1 or len(behind) != 1 or not behind <= self._products:
            return None
        first, second = graph.ops[scores[0]], graph.ops[behind.pop()]
        if any(graph.tensors[self.of(tensor)].role == "weight" for tensor in first.inputs):
            return None
        whole_value = (first.id, *ops, second.id)
        outer_read, outer_written = self._outer(whole_value)
        return NormalOp(
            kind="attention", flops=first.flops + second.flops, count=second.count,
            bytes=sum(outer_read.values()) + sum(outer_written.values()), ops=tuple(sorted(whole_value)),
        )  # fmt: skip

    @cached_property
    def _products(self) -> set[int]:
        return {op.id for op in self.graph.ops if op.kind == "product"}
