"""Turn a Chakra execution trace (protobuf, one node a message) into columns, with its dependencies beside them.

    metadata     the first message, then nodes: id, name, type, control and data dependencies, start, duration, operands
    host or chip by the attribute `is_cpu_op`; where it is missing, everything is work of a chip
    stream       the attribute `tid`; where it is missing, one for compute, communication and memory each

Converters often leave out the starts. Nodes are then laid out as early as their dependencies and their streams allow,
which a warning says: such a timeline has the durations and the order of the run, not its waiting times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from ridgeline.trace.read.chakra_layout import earliest
from ridgeline.trace.read.join import TracePart
from ridgeline.trace.read.protobuf import Damaged, fields, messages, numbers, signed_int, varint
from ridgeline.trace.read.row_columns import RowColumns
from ridgeline.trace.read.source import Source, refuse
from ridgeline.trace.read.timestamps import LARGEST, NANOS
from ridgeline.trace.side_tables import About, RecordedCollective, RecordedShape
from ridgeline.trace.timeline import HOST, KERNEL, MEMCPY, MEMSET, RUNTIME

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
        numbers = _numbers_of(first)
    except Damaged:
        return False
    return length > 0 and bool(numbers) and numbers[0] in (1, 2) and all(number <= 16 for number in numbers)


def _numbers_of(message: bytes) -> list[int]:
    """Numbers of the fields of a message of which the end may be missing."""
    numbers = []
    try:
        for number, _ in fields(message):
            numbers.append(number)
    except Damaged:
        pass
    return numbers


@dataclass(slots=True)
class Node:
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


def read(source: Source) -> TracePart:
    """One file as columns; an `InputError` when it holds no node."""
    reading = _Reading(source)
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
        why = source.damage or f"the file is damaged or cut ({wrong})"
        reading.rows.warnings.insert(0, f"{why}; the {len(reading.ids):,} nodes before that are kept")
    else:
        if source.damage:
            reading.rows.warnings.insert(0, f"{source.damage}; the {len(reading.ids):,} nodes before that are kept")
    if not reading.ids:
        raise refuse(source.path, "no node that can be read", FORMAT, "check that the converter finished writing it")
    return reading.part()


class _Reading:
    """Collects the nodes of one file."""

    def __init__(self, source: Source) -> None:
        self.source, self.rows = source, RowColumns()
        self.facts: dict[str, int | bytes] = {}
        self.ids: dict[int, int] = {}
        self.after: list[tuple[int, int]] = []
        self.times: list[tuple[int, int]] = []
        self.codes: list[tuple[int, int, int, int]] = []
        self.edges = 0

    @property
    def full(self) -> bool:
        return len(self.times) >= MOST_NODES or self.edges >= MOST_EDGES

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
        self.edges += len(node.after)
        self.times.append((node.start, node.duration))
        process, stream, name, kind = _place(node)
        rows = self.rows
        self.codes.append((rows.processes[process], rows.streams[stream], rows.names[name], rows.kinds[kind]))
        self._details(row, node)

    def _details(self, row: int, node: Node) -> None:
        size = _as_int(node.attributes.get("comm_size", node.attributes.get("tensor_size")))
        if node.type in (SEND, RECEIVE, COLLECTIVE):
            what = _collective(node)
            self.rows.collectives.add(row, self.rows.collective_table[what])
        if size:
            self.rows.sizes.add(row, size)
        shape = _shape(node)
        if shape is not None:
            self.rows.shapes.add(row, self.rows.shape_table[shape])

    def part(self) -> TracePart:
        nanos = self.source.nanos or NANOS
        start, duration = (np.array(self.times, np.int64).reshape(-1, 2) * nanos).T
        rows, edges = self._edges()
        start, duration = self._laid_out(start, duration, rows, edges)
        process, stream, name, kind = np.array(self.codes, np.int32).reshape(-1, 4).T
        self.rows.after.rows, self.rows.after.values = rows.tolist(), edges.tolist()
        self.rows.add(start, duration=duration, process=process, stream=stream, name=name, kind=kind)
        rank_match = _RANK.search(self.source.name)
        rank = _as_int(self.facts["rank"]) if "rank" in self.facts else int(rank_match[1]) if rank_match else None
        return self.rows.part(self._about(), {}, rank=rank)

    def _edges(self) -> tuple[Any, Any]:
        """Dependencies as rows, without those on nodes that are not here."""
        pairs = sorted({(row, self.ids[parent]) for row, parent in self.after if self.ids.get(parent, row) != row})
        missing = sum(parent not in self.ids for _, parent in self.after)
        self.rows.dropped["dependencies on nodes that are not in the file"] += missing
        edge_rows = np.array(pairs, np.int64).reshape(-1, 2)
        return edge_rows[:, 0], edge_rows[:, 1]

    def _laid_out(self, start: Any, duration: Any, rows: Any, edges: Any) -> tuple[Any, Any]:
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
        lanes = np.array([process * len(self.rows.streams) + stream for process, stream, _, _ in self.codes], np.int64)
        laid, circular = earliest(duration, lanes, rows, edges)
        if circular:
            warnings.append(f"{circular:,} nodes wait for each other in circles; there the order of the file decides")
        return laid, duration

    def _about(self) -> About:
        dropped_counts = {what: count for what, count in self.rows.dropped.items() if count}
        for what in ("unreadable nodes", "nodes without a readable time"):
            if what in dropped_counts:
                self.rows.warnings.append(f"{dropped_counts[what]:,} {what} are left out")
        return About(
            sources=(self.source.name,),
            format=FORMAT,
            kept=self.rows.kept(),
            dropped=dropped_counts,
            warnings=tuple(self.rows.warnings),
            properties={key: _plain(value) for key, value in list(self.facts.items())[:32]},
        )


def _node(message: bytes) -> Node:
    node, attributes = Node(), list[bytes]()
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
    good = isinstance(shapes, bytes) and isinstance(types, bytes)
    return (shapes, types) if good else (b"", b"")  # type: ignore[return-value]


def _attributes(raw: list[bytes]) -> dict[str, int | bytes]:
    """Attributes by name: the value is whatever stands behind the name, lists left out."""
    attributes: dict[str, int | bytes] = {}
    for message in raw:
        name, content = "", None
        for number, value in _safely(message):
            if number == 1 and isinstance(value, bytes):
                name = value[:100].decode("utf-8", "replace")
            elif number > 2:
                content = value
        if name and content is not None:
            attributes[name] = content
    return attributes


def _safely(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    try:
        yield from fields(message)
    except Damaged:
        return


def _place(node: Node) -> tuple[str, str, str, str]:
    """Process, stream, name and kind of a node."""
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


def _node_label(node: Node) -> str:
    """The name of communication or memory traffic that nobody ran: what it is, then what it was called."""
    what = {LOAD: "load", STORE: "store", SEND: "send", RECEIVE: "recv"}.get(node.type) or _collective(node).name
    return f"{what}: {node.name}"


def _collective(node: Node) -> RecordedCollective:
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


def _shape(node: Node) -> RecordedShape | None:
    if not node.shapes or len(node.shapes) + len(node.types) > LONGEST_SHAPES or not node.attributes.get("is_cpu_op"):
        return None
    try:
        dims = msgspec.json.decode(node.shapes, type=list[Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    types = _QUOTED.findall(node.types.decode("utf-8", "replace"))
    return RecordedShape(
        dims=tuple(_dims(dim) for dim in dims),
        types=tuple(
            type_.removeprefix("Tensor(").removesuffix(")") if type_.startswith("Tensor(") else type_ for type_ in types
        ),
    )


def _dims(value: Any, depth: int = 3) -> tuple[Any, ...]:
    if not isinstance(value, list) or depth == 0:
        return ()
    return tuple(
        entry if isinstance(entry, int) and not isinstance(entry, bool) else _dims(entry, depth - 1) for entry in value
    )


def _as_int(value: int | bytes | None) -> int:
    if isinstance(value, bytes):
        return int(value) if value.isdigit() and len(value) < 18 else 0
    return value if isinstance(value, int) and 0 < value < LARGEST else 0


def _rank(value: int | bytes | None) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**30 else -1


def _plain(value: int | bytes | None) -> int | str:
    return value[:100].decode("utf-8", "replace") if isinstance(value, bytes) else signed_int(value or 0)
