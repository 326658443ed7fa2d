"""Turn a PyTorch execution trace (the JSON of `ExecutionTraceObserver`) into columns: ops, their nesting and operands.

    nodes    id, name, parent (`ctrl_deps`, before schema 1.0.1 `parent`), operands by value, shape and type, attributes

It records neither times nor devices, only which op called which, in order. Ops become spans of the host that last a
microsecond for each op without children in them, so that nesting and order can be seen; a warning says that these are
no times. Chakra's converter joins such a trace with a Kineto trace into a protobuf, which `chakra` reads.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from ridgeline.core.units import BINARY
from ridgeline.trace.read.join import TracePart
from ridgeline.trace.read.row_columns import RowColumns
from ridgeline.trace.read.source import Source, refuse
from ridgeline.trace.side_tables import About, RecordedShape
from ridgeline.trace.timeline import ANNOTATION, HOST

FORMAT = "PyTorch execution trace"
LARGEST = int(2 * BINARY["Gi"])
MOST_NODES = 5_000_000
STEP = 1000  # nanoseconds of an op without children
LONGEST = 4096
_TENSOR = re.compile(r"^Tensor\((.*)\)$")
_MARK = re.compile(r"^(\[pytorch\||##|ProfilerStep#|Optimizer\.|nccl:|gloo:)")


class _Node(msgspec.Struct, gc=False):
    id: int = 0
    name: str = ""
    ctrl_deps: Any = None
    parent: Any = None
    inputs: Any = None
    input_shapes: Any = None
    input_types: Any = None
    attrs: Any = None
    tid: Any = None


class _File(msgspec.Struct, gc=False):
    schema: str = ""
    pid: Any = 0
    nodes: list[_Node] = []


def recognises(head: bytes) -> bool:
    """Whether a file begins like such JSON: a schema and nodes, no events."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text[:1] == b"{" and bool(re.search(rb'"schema"\s*:\s*"', text[:4096])) and b'"nodes"' in text[:65536]


def read(source: Source) -> TracePart:
    """One file as columns; an `InputError` when it holds no op."""
    data = b"".join(_bounded_chunks(source))
    try:
        file = msgspec.json.decode(data, type=_File, strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        why = source.damage or str(wrong)[:200]
        raise refuse(source.path, f"an execution trace that cannot be read ({why})", FORMAT, "write it again") from None
    nodes = [node for node in file.nodes if not node.name.startswith("[pytorch|profiler|execution_")][:MOST_NODES]
    if not nodes:
        raise refuse(source.path, "an execution trace without ops", FORMAT, "was anything running?")
    return _part(source, file, nodes)


def _bounded_chunks(source: Source) -> Any:
    total_bytes = 0
    for chunk in source.chunks():
        total_bytes += len(chunk)
        if total_bytes > LARGEST:
            raise refuse(source.path, f"more than {LARGEST:,} bytes", FORMAT, "record fewer steps")
        yield chunk


def _part(source: Source, file: _File, nodes: list[_Node]) -> TracePart:
    rows = RowColumns()
    place = {node.id: row for row, node in enumerate(nodes)}
    threads = [_thread(node) for node in nodes]
    parent = [place.get(_int(node.ctrl_deps if node.ctrl_deps is not None else node.parent), -1) for node in nodes]
    start, length = _laid_out(parent, threads)
    for row, node in enumerate(nodes):
        shape = _shape(node)
        if shape is not None:
            rows.shapes.add(row, rows.shape_table[shape])
    rows.add(
        start,
        duration=length,
        process=rows.processes["host"],
        stream=[rows.streams[f"thread {thread}"] for thread in threads],
        name=[rows.names[node.name[:LONGEST]] for node in nodes],
        kind=[rows.kinds[ANNOTATION if _MARK.match(node.name) else HOST] for node in nodes],
    )
    warning = f"the trace records no times: its {len(nodes):,} ops are laid out in order, a microsecond each"
    about = About(
        sources=(source.name,),
        format=FORMAT,
        kept=rows.kept(),
        warnings=(warning,),
        properties={"schema": file.schema},
    )
    return rows.part(about, {})


def _laid_out(parent: list[int], threads: list[int]) -> tuple[Any, Any]:
    """Starts and lengths in which a child lies in its parent and what stands later in the file starts later."""
    many = len(parent)
    leaves = [0] * many
    inner = [False] * many
    for row, above in enumerate(parent):
        if 0 <= above < row:
            inner[above] = True
    leaves = [0 if inner[row] else 1 for row in range(many)]
    for row in range(many - 1, -1, -1):
        above = parent[row]
        if 0 <= above < row and threads[above] == threads[row]:
            leaves[above] += leaves[row]
    start = [0] * many
    free: dict[int, int] = {}
    used = [0] * many
    for row in range(many):
        above = parent[row]
        if 0 <= above < row and threads[above] == threads[row]:
            start[row] = start[above] + used[above]
            used[above] += max(1, leaves[row])
        else:
            start[row] = max(free.get(threads[row], 0), start[above] if 0 <= above < row else 0)
            free[threads[row]] = start[row] + max(1, leaves[row])
    return np.array(start, np.int64) * STEP, np.maximum(np.array(leaves, np.int64), 1) * STEP


def _thread(node: _Node) -> int:
    if node.tid is not None:
        return _int(node.tid)
    attrs = node.attrs if isinstance(node.attrs, list) else []
    return next((_int(attr.get("value")) for attr in attrs if isinstance(attr, dict) and attr.get("name") == "tid"), 0)


def _shape(node: _Node) -> RecordedShape | None:
    inputs = node.inputs if isinstance(node.inputs, dict) else {}
    shapes, types = inputs.get("shapes", node.input_shapes), inputs.get("types", node.input_types)
    if not isinstance(shapes, list) or not isinstance(types, list) or len(shapes) > 1000:
        return None
    words = []
    for type_ in types:
        tensor = _TENSOR.match(str(type_)[:200])
        words.append(tensor[1] if tensor else str(type_)[:200])
    return RecordedShape(dims=tuple(_dims(shape, 3) for shape in shapes), types=tuple(words))


def _dims(value: Any, depth: int) -> tuple[Any, ...]:
    if not isinstance(value, list) or depth == 0:
        return ()
    return tuple(entry if type(entry) is int else _dims(entry, depth - 1) for entry in value)


def _int(value: Any) -> int:
    return value if type(value) is int and abs(value) < 2**62 else 0
