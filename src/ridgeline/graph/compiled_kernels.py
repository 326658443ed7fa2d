"""Turn a graph that a compiler fused into its kernels, and price them on a chip as they are.

A fusion is one kernel: it reads each tensor from outside once and writes what others read. An op in no fusion is a
kernel of its own. A product in a fusion takes its own time, and its epilogue the bytes that it reads and writes beside.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.graph.joined_kernels import Access, GraphKernel, GraphReader, eager_kernels
from ridgeline.graph.kernel_time import GraphChip, KernelRates, kernel_seconds
from ridgeline.ir.op_graph import FREE_KINDS, GraphOp, OpGraph

PARTS = ("gather", "scatter")  # kinds that touch a part of what they read or write
FEW = 32  # as many times fewer results as a sum over columns has


def compiled_kernels(graph: OpGraph) -> tuple[GraphKernel, ...]:
    """The kernels of a compiler's graph, in the order of their first op."""
    reader = GraphReader(graph)
    members = {op for fusion in graph.fusions for op in fusion.ops}
    kernels = [kernel for kernel in eager_kernels(graph) if kernel.ops[0] not in members]
    kernels += [
        fused_kernel(reader, fusion.name, fusion.ops)
        for fusion in graph.fusions
        if any(graph.ops[op].kind not in FREE_KINDS for op in fusion.ops)
    ]
    return tuple(sorted(kernels, key=lambda kernel: min(kernel.ops)))


def fused_kernel(reader: GraphReader, name: str, ops: Sequence[int]) -> GraphKernel:
    """One kernel of several ops: what it reads from outside, and writes for outside."""
    graph = reader.graph
    working = [graph.ops[op] for op in ops if graph.ops[op].kind not in FREE_KINDS]
    inside = {op.id for op in working}
    written = {reader.storages[tensor] for op in working for tensor in op.outputs}
    reads = {
        owner: size
        for op in working
        for owner, size in _read_sizes(reader, op).items()
        if owner not in written or min(reader.writers.get(owner, (op.id,))) not in inside
    }
    writes = {
        owner: _written_size(reader, working, owner)
        for owner in written
        if set(reader.readers.get(owner, ())) - inside or not reader.readers.get(owner)
    }
    heavy = sorted(working, key=lambda op: op.kernel is None)  # a product first
    return GraphKernel(
        name=name, access=_access(reader, working), ops=tuple(op.id for op in heavy), reads=tuple(reads),
        writes=tuple(writes), bytes_read=sum(reads.values()), bytes_written=sum(writes.values()),
        elements=float(max((reader.elements(op) for op in working), default=0)),
        width=max((reader.width(op) for op in working), default=1),
    )  # fmt: skip


def _read_sizes(reader: GraphReader, op: GraphOp) -> dict[int, float]:
    """Bytes under the inputs of an op by owner; of one that looks parts up no more than it says it reads."""
    sizes = reader.touched_bytes(op.inputs)
    if op.kind not in PARTS:
        free = op.bytes_read == 0  # registers, or one number repeated
        return {owner: 0.0 if free else size for owner, size in sizes.items()}
    return {owner: min(size, op.bytes_read) for owner, size in sizes.items()}


def _written_size(reader: GraphReader, ops: Sequence[GraphOp], owner: int) -> float:
    """Bytes written to memory: of what is scattered the update alone."""
    writers = [op for op in ops if owner in {reader.storages[tensor] for tensor in op.outputs}]
    whole_bytes = reader.graph.tensors[owner].bytes
    return min(whole_bytes, sum(op.bytes_written for op in writers)) if writers else whole_bytes


def _access(reader: GraphReader, ops: Sequence[GraphOp]) -> Access:
    """How a fused kernel goes through memory: as its heaviest op does."""
    kinds = {op.kind for op in ops}
    if any(op.kernel is not None for op in ops) or "product" in kinds:
        return "product"
    for kind in ("attention", "collective", "sort", "softmax", "scatter", "random"):
        if kind in kinds:
            return kind
    if "reduction" in kinds or "norm" in kinds:
        if any("exp" in op.name for op in ops):
            return "softmax"
        return "columns" if any(reader.is_column(op) for op in ops) else "rows"
    return "unknown" if "unknown" in kinds or "custom" in kinds else "stream"


def compiled_seconds(graph: OpGraph, kernel: GraphKernel, on: GraphChip, rates: KernelRates) -> float:
    """Device seconds of one run of a compiler's kernel."""
    products = [graph.ops[op] for op in kernel.ops if graph.ops[op].kernel is not None]
    if not products:
        return kernel_seconds(graph, kernel, "joined", on, rates)
    seconds = sum(on.product_seconds(op.kernel) for op in products if op.kernel is not None) * rates.values["product"]
    product_bytes = sum(op.bytes for op in products)
    return seconds + max(kernel.bytes - product_bytes, 0.0) / on.memory * rates.values["stream"]
