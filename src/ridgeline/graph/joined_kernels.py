"""Turn an op graph into the kernels that run it: one for each op, or those that a compiler joins.

    apart     eager PyTorch: each op is a kernel that reads its inputs and writes its outputs
    joined    a compiler: chains of pointwise ops, reductions over rows and lookups are one kernel as long as no
              product, sort or other library call stands between; sums over rows of a tensor are kernels of their own;
              what the backward needs is computed again where that reads fewer bytes than storing it

A joined kernel reads each tensor from outside once and writes what others read. These are inductor's rules without an
autotuned product: epilogues of products are kernels of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from ridgeline.ir.op_graph import FREE_KINDS, GraphOp, OpGraph, OpPhase, format_bytes

Access = Literal[
    "stream", "strided", "rows", "columns", "norm", "softmax", "wide softmax", "random", "gather", "scatter", "sort",
    "product", "attention", "collective", "unknown",
]  # fmt: skip
"""How a kernel goes through memory, which decides what share of its rate it reaches."""
REDONE = 1.05  # as many bytes again that a compiler reads sooner than it stores them
FEW_ROWS = 32  # rows whose sum a kernel takes as it goes
SHARED_MEMORY_ROW = 48 * 1024  # bytes of a row that a softmax holds on the chip while it reads it again
OWN_KERNEL = frozenset({"product", "attention", "sort", "collective", "custom", "unknown"})
STATISTICS = frozenset({"norm", "softmax"})
"""Kinds whose whole result follows again from their input and one number a row."""
AGAIN = frozenset({"pointwise", "copy", "create", "view", *STATISTICS})
"""Kinds that a compiler would sooner compute again in the backward than store."""
SPLIT_VIEWS = frozenset(
    {"slice", "select", "transpose", "t", "expand", "permute", "narrow", "split", "chunk", "unfold"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphKernel:
    """One kernel launch, or a few where software splits it.

    ops        the ops it runs, by number
    reads, writes   memory it reads and writes, by the number of the tensor that owns it
    written    bytes of each that it writes
    elements   of the largest tensor it goes through
    shares_rows   whether it sums over rows of what another kernel of its phase goes through row by row
    launches   how many kernels that is
    """

    name: str
    access: Access
    ops: tuple[int, ...]
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    written: tuple[float, ...] = ()
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    elements: float = 0.0
    width: int = 1
    shares_rows: bool = False
    launches: int = 1

    @property
    def bytes(self) -> float:
        """Read and written."""
        return self.bytes_read + self.bytes_written


class GraphReader:
    """A graph with what kernels ask of it: who owns memory, and which ops a tensor follows from."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.results = {tensor.id for tensor in graph.tensors if tensor.name == "result"}

    @cached_property
    def storages(self) -> tuple[int, ...]:
        """The owner of each tensor's memory."""
        return tuple(self.graph.storage(tensor.id) for tensor in self.graph.tensors)

    @cached_property
    def writers(self) -> Mapping[int, tuple[int, ...]]:
        """Ops that write memory, by its owner; those that only view it are not among them."""
        table: dict[int, list[int]] = {}
        for op in self.graph.ops:
            if op.kind not in FREE_KINDS:
                for tensor in op.outputs:
                    table.setdefault(self.storages[tensor], []).append(op.id)
        return {tensor: tuple(ops) for tensor, ops in table.items()}

    @cached_property
    def readers(self) -> Mapping[int, tuple[int, ...]]:
        """Ops that read memory, by its owner; views are no reading."""
        table: dict[int, list[int]] = {}
        for op in self.graph.ops:
            if op.kind not in FREE_KINDS:
                for tensor in dict.fromkeys(self.storages[tensor] for tensor in op.inputs):
                    table.setdefault(tensor, []).append(op.id)
        return {tensor: tuple(ops) for tensor, ops in table.items()}

    def elements(self, op: GraphOp) -> int:
        """Of the largest tensor that an op goes through."""
        tensors = self.graph.tensors
        return max((tensors[tensor].elements for tensor in (*op.inputs, *op.outputs)), default=0)

    def width(self, op: GraphOp) -> int:
        """The last dim of the largest tensor."""
        tensors = [self.graph.tensors[tensor] for tensor in (*op.inputs, *op.outputs)]
        largest = max(tensors, key=lambda tensor: tensor.elements, default=None)
        return largest.shape[-1] if largest is not None and largest.shape else 1

    def is_column(self, op: GraphOp) -> bool:
        """Whether an op sums over rows: its result lacks them and has the last dim."""
        if op.kind != "reduction" or not op.inputs:
            return False
        source = max((self.graph.tensors[tensor] for tensor in op.inputs), key=lambda tensor: tensor.elements)
        result = self.graph.tensors[op.outputs[0]]
        return result.elements * FEW_ROWS < source.elements and result.shape[-1:] == source.shape[-1:]

    def touched_bytes(self, tensors: Iterable[int]) -> dict[int, float]:
        """Bytes of memory that lie under tensors, by owner: a view counts as much as it shows."""
        sizes: dict[int, float] = {}
        for tensor in dict.fromkeys(tensors):
            owner = self.storages[tensor]
            sizes[owner] = sizes.get(owner, 0.0) + self.graph.tensors[tensor].bytes
        return {owner: min(size, self.graph.tensors[owner].bytes) for owner, size in sizes.items()}


def eager_kernels(graph: OpGraph, phase: OpPhase | Literal[""] = "") -> tuple[GraphKernel, ...]:
    """A kernel for each op that is no view."""
    reader = GraphReader(graph)
    chosen = [op for op in graph.ops if op.kind not in FREE_KINDS and (not phase or op.phase == phase)]
    return tuple(_single_kernel(reader, op) for op in chosen)


def _single_kernel(reader: GraphReader, op: GraphOp) -> GraphKernel:
    return GraphKernel(
        name=op.name, access=op_access(reader, op), ops=(op.id,), bytes_read=op.bytes_read,
        bytes_written=op.bytes_written, elements=float(reader.elements(op)), width=reader.width(op),
        reads=tuple(dict.fromkeys(reader.storages[tensor] for tensor in op.inputs)),
        writes=tuple(dict.fromkeys(reader.storages[tensor] for tensor in op.outputs)),
    )  # fmt: skip


def op_access(reader: GraphReader, op: GraphOp) -> Access:
    """How the kernel of a single op goes through memory."""
    match op.kind:
        case "pointwise" | "copy" | "create":
            return "strided" if _is_strided(reader, op) else "stream"
        case "reduction":
            return "columns" if reader.is_column(op) else "rows"
        case "softmax":
            sizes = [format_bytes(reader.graph.tensors[tensor].dtype) for tensor in op.inputs]
            row = reader.width(op) * max(sizes, default=2.0)
            return "wide softmax" if row > SHARED_MEMORY_ROW else "softmax"
        case "norm" | "random" | "gather" | "scatter" | "sort" | "product" | "attention" | "collective":
            return op.kind
        case _:
            return "unknown"


def _is_strided(reader: GraphReader, op: GraphOp) -> bool:
    """Whether an operand is stretched over rows or columns, or a part of a larger tensor: no whole vectors to load."""
    largest = reader.elements(op)
    for tensor in (*op.inputs, *op.outputs):
        view = reader.graph.tensors[tensor]
        if 1 < view.elements < largest:
            return True
        if view.alias_of >= 0 and view.elements != reader.graph.tensors[reader.storages[tensor]].elements:
            return view.elements > 1
    return op.name.rpartition(".")[2] == "cat"


# -- joined -----------------------------------------------------------------------------------------------------------


def joined_kernels(graph: OpGraph, phase: OpPhase | Literal[""] = "") -> tuple[GraphKernel, ...]:
    """The kernels of a compiler."""
    reader = GraphReader(graph)
    groups = _groups(reader)
    read_tables = _outside_reads(reader, groups)
    kernels = [
        _joined_kernel(reader, group, reads, read_tables) for group, reads in zip(groups, read_tables, strict=True)
    ]
    kernels = _shared_rows(graph, kernels)
    if not phase:
        return tuple(kernels)
    return tuple(kernel for kernel in kernels if graph.ops[kernel.ops[-1]].phase == phase)


def _shared_rows(graph: OpGraph, kernels: Sequence[GraphKernel]) -> list[GraphKernel]:
    """Sums over rows of what another kernel of the phase goes through row by row are marked."""
    by_row = [
        (graph.ops[kernel.ops[0]].phase, set(kernel.reads), kernel.elements)
        for kernel in kernels
        if kernel.access == "rows"
    ]
    return [
        replace(kernel, shares_rows=True)
        if kernel.access == "columns"
        and any(
            phase == graph.ops[kernel.ops[0]].phase and size == kernel.elements and set(kernel.reads) & reads
            for phase, reads, size in by_row
        )
        else kernel
        for kernel in kernels
    ]


def _groups(reader: GraphReader) -> list[tuple[int, ...]]:
    """Ops that run together: connected without a library call between them, in the order in which they can run."""
    level, parent = _levels(reader), list(range(len(reader.graph.ops)))

    def root(op: int) -> int:
        while parent[op] != op:
            parent[op] = parent[parent[op]]
            op = parent[op]
        return op

    first_reader: dict[tuple[int, int, str], int] = {}
    for op in reader.graph.ops:
        if op.kind in FREE_KINDS or stands_alone(reader, op):
            continue
        for owner in dict.fromkeys(reader.storages[tensor] for tensor in op.inputs):
            for writer in reader.writers.get(owner, ()):
                maker = reader.graph.ops[writer]
                joins = writer < op.id and level[writer] == level[op.id] and _run_together(op, maker)
                if joins and not stands_alone(reader, maker):
                    parent[root(op.id)] = root(writer)
            mate = first_reader.setdefault((owner, op.count, f"{level[op.id]} {op.phase}"), op.id)
            if reader.elements(op) == reader.elements(reader.graph.ops[mate]):
                parent[root(op.id)] = root(mate)
    members: dict[int, list[int]] = {}
    for op in reader.graph.ops:
        if op.kind not in FREE_KINDS:
            members.setdefault(root(op.id), []).append(op.id)
    return sorted((tuple(ops) for ops in members.values()), key=lambda ops: (level[ops[0]], ops[0]))


def _run_together(op: GraphOp, other: GraphOp) -> bool:
    """Whether ops run in one pass and equally often: what runs once is not joined with what each layer runs."""
    return op.phase == other.phase and op.count == other.count


def stands_alone(reader: GraphReader, op: GraphOp) -> bool:
    """Whether an op is a kernel of its own under a compiler: a library's, a sum over rows, adding to picked rows."""
    adds = op.kind == "scatter" and not op.name.endswith("nll_loss_backward")
    return op.kind in OWN_KERNEL or adds or reader.is_column(op)


def _levels(reader: GraphReader) -> list[int]:
    """How many library calls lie before each op at most."""
    ready: dict[int, int] = {}
    levels: list[int] = []
    for op in reader.graph.ops:
        before = max((ready.get(reader.storages[tensor], 0) for tensor in op.inputs), default=0)
        levels.append(before)
        if op.kind in FREE_KINDS:
            continue
        after = before + 1 if stands_alone(reader, op) else before
        for tensor in op.outputs:
            owner = reader.storages[tensor]
            ready[owner] = max(ready.get(owner, 0), after)
    _sink(reader, levels)
    return levels


def _sink(reader: GraphReader, levels: list[int]) -> None:
    """Ops that anything could run later run with the first that reads them."""
    for op in reversed(reader.graph.ops):
        if op.kind in FREE_KINDS or stands_alone(reader, op):
            continue
        owners = {reader.storages[tensor] for tensor in op.outputs}
        later = [
            levels[after]
            for owner in owners
            for after in (*reader.readers.get(owner, ()), *reader.writers.get(owner, ()))
            if after > op.id and reader.graph.ops[after].phase == op.phase
        ]
        if later:
            levels[op.id] = max(levels[op.id], min(later))


def _outside_reads(reader: GraphReader, groups: Sequence[tuple[int, ...]]) -> list[dict[int, float]]:
    """Bytes that each group reads from others, by owner; or cheaper ones from which the same follows."""
    reads = []
    for group in groups:
        own_ops = set(group)
        tensors = [tensor for op in group for tensor in reader.graph.ops[op].inputs]
        outside = [tensor for tensor in tensors if _is_outside(reader, tensor, own_ops)]
        direct = reader.touched_bytes(outside)
        first = reader.graph.ops[group[0]]
        may_redo = not stands_alone(reader, first) or reader.is_column(first)
        root_bytes = _roots(reader, direct, first) if may_redo else direct
        stored_bytes = sum(size * (2.0 if _must_store(reader, owner) else 1.0) for owner, size in direct.items())
        reads.append(root_bytes if sum(root_bytes.values()) <= stored_bytes * REDONE else direct)
    return reads


def _must_store(reader: GraphReader, owner: int) -> bool:
    """Whether memory is only written to be read here: nobody asked for it, and no library call wrote it."""
    writers = [reader.graph.ops[op] for op in reader.writers.get(owner, ())]
    return bool(writers) and owner not in reader.results and not any(stands_alone(reader, op) for op in writers)


def _is_outside(reader: GraphReader, tensor: int, own: set[int]) -> bool:
    """Whether none of the group's ops wrote a tensor's memory first."""
    writers = reader.writers.get(reader.storages[tensor], ())
    return not writers or writers[0] not in own


def _roots(reader: GraphReader, direct: Mapping[int, float], first: GraphOp) -> dict[int, float]:
    """Memory from which the same values can be computed again: of an earlier phase, or for a sum over rows."""
    graph, sizes = reader.graph, dict[int, float]()
    pending, visited_owners = list(direct), set[int]()
    while pending:
        owner = pending.pop()
        if owner in visited_owners:
            continue
        visited_owners.add(owner)
        writers = [graph.ops[op] for op in reader.writers.get(owner, ())]
        can_redo = bool(writers) and owner not in reader.results
        can_redo = can_redo and all(_is_again(reader, op, first) for op in writers)
        if not can_redo:
            sizes[owner] = max(sizes.get(owner, 0.0), direct.get(owner, graph.tensors[owner].bytes))
            continue
        pending += [reader.storages[tensor] for op in writers for tensor in op.inputs]
        for op in writers:
            if op.kind in STATISTICS:  # beside the input, one number a row
                small = graph.tensors[owner]
                sizes[owner] = small.elements / max(1, small.shape[-1] if small.shape else 1) * 4.0
    return sizes


def _is_again(reader: GraphReader, op: GraphOp, first: GraphOp) -> bool:
    redoable = op.kind in AGAIN or op.name.endswith("nll_loss_backward")
    return redoable and (op.phase != first.phase or reader.is_column(first))


def _joined_kernel(
    reader: GraphReader, group: tuple[int, ...], reads: Mapping[int, float], read_tables: Sequence[Mapping[int, float]]
) -> GraphKernel:
    graph, ops = reader.graph, [reader.graph.ops[op] for op in group]
    asked_owners = {owner for table in read_tables if table is not reads for owner in table}
    written: dict[int, float] = {}
    for op in ops:
        for tensor in op.outputs:
            owner = reader.storages[tensor]
            if owner in asked_owners or owner not in reader.readers or owner in reader.results:
                whole_bytes = graph.tensors[owner].bytes
                written[owner] = (
                    whole_bytes if owner in reader.results else _asked_bytes(owner, read_tables, reads, whole_bytes)
                )
    if len(group) == 1 and stands_alone(reader, ops[0]) and not reader.is_column(ops[0]):
        return _single_kernel(reader, ops[0])
    return GraphKernel(
        name="+".join(dict.fromkeys(op.name.rpartition(".")[2] for op in ops)),
        access=_joined_access(reader, ops), ops=group, reads=tuple(reads), writes=tuple(written),
        written=tuple(written.values()),
        bytes_read=sum(reads.values()), bytes_written=sum(written.values()),
        elements=float(max(reader.elements(op) for op in ops)), width=max(reader.width(op) for op in ops),
        launches=2 if any(reader.is_column(op) or op.kind == "random" for op in ops) else 1,
    )  # fmt: skip


def _asked_bytes(
    owner: int, read_tables: Sequence[Mapping[int, float]], own: Mapping[int, float], whole: float
) -> float:
    """Bytes of it that others read, all of it where nobody does: only its statistics may be asked for."""
    return max((table[owner] for table in read_tables if table is not own and owner in table), default=whole)


def _joined_access(reader: GraphReader, ops: Sequence[GraphOp]) -> Access:
    kinds = {op.kind for op in ops}
    if any(reader.is_column(op) for op in ops):
        return "columns"
    if "softmax" in kinds:
        return "softmax"
    if "norm" in kinds or any(op.kind == "reduction" and reader.elements(op) > 1 for op in ops):
        return "rows"
    return "random" if "random" in kinds else "gather" if "gather" in kinds else "stream"
