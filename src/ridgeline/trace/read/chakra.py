"""Turn execution traces into columns: Chakra's (protobuf, one node a message) and PyTorch's (JSON).

    host or chip    by the attribute `is_cpu_op`; where it is missing, everything is work of a chip
    stream          the attribute `tid`; where it is missing, one for compute, communication and memory each

Chakra's converters often leave out the starts. Nodes are then laid out as early as their dependencies and their streams
allow, which a warning says. PyTorch records neither times nor devices, only which op called which, in order: ops become
spans of the host that last a microsecond for each op without children in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from heapq import heappop, heappush

import msgspec
import numpy as np

from ridgeline.core.units import BINARY
from ridgeline.trace.read.join import Interned, RowColumns, TracePart
from ridgeline.trace.read.protobuf import Damaged, fields, messages, numbers, readable_fields, signed_int, varint
from ridgeline.trace.read.source import TraceSource, refuse
from ridgeline.trace.read.timestamps import LARGEST, NANOS
from ridgeline.trace.timeline import (
    ANNOTATION,
    HOST,
    KERNEL,
    MEMCPY,
    MEMSET,
    RUNTIME,
    Dims,
    Longs,
    RecordedCollective,
    RecordedShape,
)


def earliest(duration: Longs, lanes: Longs, rows: Longs, after: Longs) -> tuple[Longs, int]:
    """Starts, and how many nodes had to ignore a dependency because they waited for each other.

        start(i) = max(end of what i waits for, end of what its stream did before)

    ``rows[k]`` waits for ``after[k]``. Of what could start at the same instant, what stands first goes first.

    >>> start, circular = earliest(np.array([5, 3, 2]), np.array([0, 1, 0]), np.array([1, 2]), np.array([0, 1]))
    >>> start.tolist(), circular
    ([0, 5, 8], 0)
    """
    count = len(duration)
    waits = np.bincount(rows, minlength=count).tolist()
    order = np.argsort(after, kind="stable")
    followers, first = rows[order].tolist(), np.searchsorted(after[order], np.arange(count + 1)).tolist()
    ready = [0] * count
    start = [0] * count
    done = [False] * count
    lengths, lane = duration.tolist(), lanes.tolist()
    free: dict[int, int] = {}
    heap = [(0, row) for row in range(count) if not waits[row]]
    circular = unplaced_nodes = 0
    while True:
        if not heap:
            while unplaced_nodes < count and done[unplaced_nodes]:
                unplaced_nodes += 1
            if unplaced_nodes == count:
                return np.array(start, np.int64), circular
            circular += 1
            heappush(heap, (ready[unplaced_nodes], unplaced_nodes))
        at, row = heappop(heap)
        if done[row]:
            continue
        begin = max(at, free.get(lane[row], 0))
        if heap and begin > heap[0][0]:  # its stream is busy: what can start earlier goes first
            heappush(heap, (begin, row))
            continue
        start[row], done[row] = begin, True
        free[lane[row]] = end = begin + lengths[row]
        for follower in followers[first[row] : first[row + 1]]:
            ready[follower] = max(ready[follower], end)
            waits[follower] -= 1
            if waits[follower] == 0:
                heappush(heap, (ready[follower], follower))


FORMAT = "Chakra execution trace"
MOST_NODES = 5_000_000
MOST_EDGES = 50_000_000
LONGEST = 4096  # characters of a name
LONGEST_SHAPES = 65_536  # characters of the operands of a node that are still looked at
METADATA, LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(1, 8)
TYPES = range(11)
NUMBERS = {1: "id", 3: "type", 6: "start", 7: "duration"}
NAME, CONTROL, DATA, INPUTS, ATTRIBUTE = 2, 4, 5, 8, 10
DEPENDENCIES = (CONTROL, DATA)
"""Fields of a node by their number in the format: numbers of which the last counts, and those that take more."""
COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter_block", "barrier",
)  # fmt: skip
LANES = {LOAD: "memory", STORE: "memory", SEND: "communication", RECEIVE: "communication", COLLECTIVE: "communication"}
_SEGMENT = re.compile(r"\(\d+\)$")  # host ops are split where they launch; the parts are numbered
_CALL = re.compile(r"^(cuda|cu|hip|aclrt)[A-Z]\w*$")
_RANK = re.compile(r"(?:^|[._-])(?:rank[-_]?)?(\d{1,7})\.et(?:\.gz)?$", re.IGNORECASE)
_QUOTED = re.compile(r"'([^']*)'")


def recognises(head: bytes) -> bool:
    """Whether a file begins with a metadata message and a node, as far as the bytes go."""
    try:
        length, at = varint(head, 0)
        if length > len(head) or any(number > 3 for number, _ in fields(head[at : at + length])):
            return False
        length, at = varint(head, at + length)
        first = head[at : at + min(length, 4096)]
    except Damaged:
        return False
    numbers = [number for number, _ in readable_fields(first)]
    return length > 0 and bool(numbers) and numbers[0] in (1, 2) and all(number <= 16 for number in numbers)


@dataclass(slots=True)
class ChakraNode:
    """One node as it stands in the file; attributes by name, numbers and texts only."""

    id: int = 0
    name: str = ""
    type: int = 0
    after: list[int] = field(default_factory=list)
    start: int = 0
    duration: int = 0
    shapes: bytes = b""
    types: bytes = b""
    attributes: dict[str, int | bytes] = field(default_factory=dict)


def read(source: TraceSource) -> TracePart:
    """One file as columns; an `InputError` when it holds no node."""
    reading = _ChakraNodes(source)
    try:
        for place, message in enumerate(messages(source.chunks())):
            if place:
                reading.take(message)
            else:
                reading.facts = _attributes([value for _, value in fields(message) if isinstance(value, bytes)])
            if reading.full:
                reading.rows.warnings.append(f"more than {MOST_NODES:,} nodes; the rest of the file was not read")
                break
    except Damaged as wrong:
        source.damage = source.damage or f"the file is damaged or cut ({wrong})"
    if source.damage:
        reading.rows.warnings.insert(0, f"{source.damage}; the {len(reading.ids):,} nodes before that are kept")
    if not reading.ids:
        raise refuse(source.path, "no node that can be read", FORMAT, "check that the converter finished writing it")
    return reading.part()


class _ChakraNodes:
    def __init__(self, source: TraceSource) -> None:
        self.source, self.rows = source, RowColumns()
        self.facts: dict[str, int | bytes] = {}
        self.ids: dict[int, int] = {}
        self.after: list[tuple[int, int]] = []
        self.times: list[tuple[int, int]] = []
        self.places: list[tuple[str, str, str, str]] = []

    @property
    def full(self) -> bool:
        return len(self.times) >= MOST_NODES or len(self.after) >= MOST_EDGES

    def take(self, message: bytes) -> None:
        """Add one node."""
        try:
            node = _node(message)
        except Damaged:
            self.rows.dropped["unreadable nodes"] += 1
            return
        if node.type == METADATA:
            self.rows.dropped["metadata nodes"] += 1
            return
        latest = LARGEST // (self.source.nanos or NANOS)
        if node.duration >= latest or node.start >= latest:
            self.rows.dropped["nodes without a readable time"] += 1
            return
        row = len(self.times)
        self.ids[node.id] = row
        self.after += [(row, parent) for parent in node.after]
        self.times.append((node.start, node.duration))
        self.places.append(_place(node))
        if node.type in (SEND, RECEIVE, COLLECTIVE):
            self.rows.collectives.add(row, self.rows.collective_table[_collective(node)])
        if size := _as_int(node.attributes.get("comm_size", node.attributes.get("tensor_size"))):
            self.rows.sizes.add(row, size)
        self.rows.add_shape(row, _shape(node))

    def part(self) -> TracePart:
        nanos = self.source.nanos or NANOS
        start, duration = (np.array(self.times, np.int64).reshape(-1, 2) * nanos).T
        rows, edges = self._edges()
        start, duration = self._laid_out(start, duration, rows, edges)
        self.rows.after.rows, self.rows.after.values = rows.tolist(), edges.tolist()
        self.rows.add_places(start, duration, self.places)
        for what in ("unreadable nodes", "nodes without a readable time"):
            if self.rows.dropped[what]:
                self.rows.warnings.append(f"{self.rows.dropped[what]:,} {what} are left out")
        rank_match = _RANK.search(self.source.name)
        rank = _as_int(self.facts["rank"]) if "rank" in self.facts else int(rank_match[1]) if rank_match else None
        properties = {key: _plain(value) for key, value in list(self.facts.items())[:32]}
        return self.rows.part(self.source.name, FORMAT, rank=rank, properties=properties)

    def _edges(self) -> tuple[Longs, Longs]:
        """Dependencies as rows, without those on nodes that are not here."""
        pairs = sorted({(row, self.ids[parent]) for row, parent in self.after if self.ids.get(parent, row) != row})
        missing = sum(parent not in self.ids for _, parent in self.after)
        self.rows.dropped["dependencies on nodes that are not in the file"] += missing
        edge_rows = np.array(pairs, np.int64).reshape(-1, 2)
        return edge_rows[:, 0], edge_rows[:, 1]

    def _laid_out(self, start: Longs, duration: Longs, rows: Longs, edges: Longs) -> tuple[Longs, Longs]:
        warnings = self.rows.warnings
        if not duration.any():
            warnings.append("the trace records no durations: only the order of its nodes is kept, a nanosecond apart")
            duration = np.zeros(len(duration), np.int64)
            if not start.any():
                return np.arange(len(start), dtype=np.int64), duration
        if start.any():
            return start, duration
        warnings.append(
            "the trace records no start times: nodes are laid out as early as their dependencies and streams allow"
        )
        lane_codes: Interned[tuple[str, str]] = Interned()
        lanes = np.array([lane_codes[process, stream] for process, stream, _, _ in self.places], np.int64)
        laid, circular = earliest(duration, lanes, rows, edges)
        if circular:
            warnings.append(f"{circular:,} nodes wait for each other in circles; there the order of the file decides")
        return laid, duration


def _node(message: bytes) -> ChakraNode:
    node, attributes = ChakraNode(), list[bytes]()
    for number, value in fields(message):
        if number in DEPENDENCIES:
            node.after += numbers(value)
        elif isinstance(value, int):
            if number in NUMBERS:
                setattr(node, NUMBERS[number], value)
        elif number == NAME:
            node.name = value[:LONGEST].decode("utf-8", "replace")
        elif number == INPUTS:
            node.shapes, node.types = _operands(value)
        elif number == ATTRIBUTE:
            attributes.append(value)
    node.type = node.type if node.type in TYPES else 0
    node.attributes = _attributes(attributes)
    return node


def _operands(message: bytes) -> tuple[bytes, bytes]:
    operands = dict[int, int | bytes](fields(message))
    shapes, types = operands.get(2, b""), operands.get(3, b"")
    return (shapes, types) if isinstance(shapes, bytes) and isinstance(types, bytes) else (b"", b"")


def _attributes(raw: list[bytes]) -> dict[str, int | bytes]:
    """Attributes by name: the value is whatever stands behind the name, lists left out."""
    attributes: dict[str, int | bytes] = {}
    for message in raw:
        name, content = "", None
        for number, value in readable_fields(message):
            if number == 1 and isinstance(value, bytes):
                name = value[:100].decode("utf-8", "replace")
            elif number > 2:
                content = value
        if name and content is not None:
            attributes[name] = content
    return attributes


def _place(node: ChakraNode) -> tuple[str, str, str, str]:
    cpu_op = node.attributes.get("is_cpu_op")
    lane = node.attributes.get("tid")
    if cpu_op:
        name = _SEGMENT.sub("", node.name)
        return "host", f"thread {_plain(lane) if lane is not None else 0}", name, RUNTIME if _CALL.match(name) else HOST
    stream = f"stream {_plain(lane)}" if isinstance(lane, int) else LANES.get(node.type, "compute")
    if cpu_op is None and node.type in LANES and not isinstance(lane, int):
        return "chip 0", stream, _node_label(node), MEMCPY if node.type in (LOAD, STORE) else KERNEL
    lower = node.name.lower()
    kind = MEMCPY if lower.startswith("memcpy") else MEMSET if lower.startswith("memset") else KERNEL
    return "chip 0", stream, node.name, kind


def _node_label(node: ChakraNode) -> str:
    """The name of communication or memory traffic that nobody ran: what it is, then what it was called."""
    what = {LOAD: "load", STORE: "store", SEND: "send", RECEIVE: "recv"}.get(node.type) or _collective(node).name
    return f"{what}: {node.name}"


def _collective(node: ChakraNode) -> RecordedCollective:
    code = node.attributes.get("comm_type")
    name = {SEND: "send", RECEIVE: "recv"}.get(node.type, "")
    if node.type == COLLECTIVE and isinstance(code, int) and code < len(COLLECTIVES):
        name = COLLECTIVES[code]
    size = _as_int(node.attributes.get("comm_size"))
    group = node.attributes.get("pg_name", b"")
    return RecordedCollective(
        name=name or "collective",
        dtype="Byte" if size else "",
        in_elements=size,
        out_elements=size,
        group=group.decode("utf-8", "replace")[:100] if isinstance(group, bytes) else str(group),
        from_rank=_rank(node.attributes.get("comm_src")) if node.type == RECEIVE else -1,
        to_rank=_rank(node.attributes.get("comm_dst")) if node.type == SEND else -1,
    )


def _shape(node: ChakraNode) -> RecordedShape | None:
    if not node.shapes or len(node.shapes) + len(node.types) > LONGEST_SHAPES or not node.attributes.get("is_cpu_op"):
        return None
    try:
        dims = msgspec.json.decode(node.shapes, type=list[object])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    types = _QUOTED.findall(node.types.decode("utf-8", "replace"))
    return RecordedShape(
        dims=tuple(_dims(dim) for dim in dims),
        types=tuple(
            type_.removeprefix("Tensor(").removesuffix(")") if type_.startswith("Tensor(") else type_ for type_ in types
        ),
    )


def _dims(value: object, depth: int = 3) -> Dims:
    if not isinstance(value, list) or depth == 0:
        return ()
    return tuple(entry if type(entry) is int else _dims(entry, depth - 1) for entry in value)


def _as_int(value: int | bytes | None) -> int:
    if isinstance(value, bytes):
        return int(value) if value.isdigit() and len(value) < 18 else 0
    return value if isinstance(value, int) and 0 < value < LARGEST else 0


def _rank(value: int | bytes | None) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**30 else -1


def _plain(value: int | bytes | None) -> int | str:
    return value[:100].decode("utf-8", "replace") if isinstance(value, bytes) else signed_int(value or 0)


# -- PyTorch's execution traces ----------------------------------------------------------------------------------------


EXECUTION_TRACE = "PyTorch execution trace"
LARGEST_FILE = int(2 * BINARY["Gi"])
STEP = 1000  # nanoseconds of an op without children
_TENSOR = re.compile(r"^Tensor\((.*)\)$")
_MARK = re.compile(r"^(\[pytorch\||##|ProfilerStep#|Optimizer\.|nccl:|gloo:)")


class _Node(msgspec.Struct, gc=False):
    id: int = 0
    name: str = ""
    ctrl_deps: object = None
    parent: object = None
    inputs: object = None
    input_shapes: object = None
    input_types: object = None
    attrs: object = None
    tid: object = None


class _File(msgspec.Struct, gc=False):
    schema: str = ""
    nodes: list[_Node] = []


def recognises_execution_trace(head: bytes) -> bool:
    """Whether a file begins like such JSON: a schema and nodes, no events."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text[:1] == b"{" and bool(re.search(rb'"schema"\s*:\s*"', text[:4096])) and b'"nodes"' in text[:65536]


def read_execution_trace(source: TraceSource) -> TracePart:
    """One file as columns; an `InputError` when it holds no op."""
    data = source.read_all(LARGEST_FILE, EXECUTION_TRACE, "record fewer steps")
    try:
        file = msgspec.json.decode(data, type=_File, strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        why = source.damage or str(wrong)[:200]
        unreadable = f"an execution trace that cannot be read ({why})"
        raise refuse(source.path, unreadable, EXECUTION_TRACE, "write it again") from None
    nodes = [node for node in file.nodes if not node.name.startswith("[pytorch|profiler|execution_")][:MOST_NODES]
    if not nodes:
        raise refuse(source.path, "an execution trace without ops", EXECUTION_TRACE, "was anything running?")
    rows = RowColumns()
    place = {node.id: row for row, node in enumerate(nodes)}
    threads = [_thread(node) for node in nodes]
    parent = [place.get(_int(node.ctrl_deps if node.ctrl_deps is not None else node.parent), -1) for node in nodes]
    for row, node in enumerate(nodes):
        rows.add_shape(row, _recorded_shape(node))
    places = (
        ("host", f"thread {thread}", node.name[:LONGEST], ANNOTATION if _MARK.match(node.name) else HOST)
        for thread, node in zip(threads, nodes, strict=True)
    )
    rows.add_places(*_nested_times(parent, threads), places)
    rows.warnings = [f"the trace records no times: its {len(nodes):,} ops are laid out in order, a microsecond each"]
    return rows.part(source.name, EXECUTION_TRACE, properties={"schema": file.schema})


def _nested_times(parent: list[int], threads: list[int]) -> tuple[Longs, Longs]:
    """Starts and lengths in which a child lies in its parent and what stands later in the file starts later."""
    many = len(parent)
    inner = {above for row, above in enumerate(parent) if 0 <= above < row}
    leaves = [int(row not in inner) for row in range(many)]
    for row in range(many - 1, -1, -1):
        above = parent[row]
        if 0 <= above < row and threads[above] == threads[row]:
            leaves[above] += leaves[row]
    start, used, free = [0] * many, [0] * many, dict[int, int]()
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


def _recorded_shape(node: _Node) -> RecordedShape | None:
    inputs = node.inputs if isinstance(node.inputs, dict) else {}
    shapes, types = inputs.get("shapes", node.input_shapes), inputs.get("types", node.input_types)
    if not isinstance(shapes, list) or not isinstance(types, list) or len(shapes) > 1000:
        return None
    words = (_TENSOR.sub(r"\1", str(type_)[:200]) for type_ in types)
    return RecordedShape(dims=tuple(_dims(shape) for shape in shapes), types=tuple(words))


def _int(value: object) -> int:
    return value if type(value) is int and abs(value) < 2**62 else 0
