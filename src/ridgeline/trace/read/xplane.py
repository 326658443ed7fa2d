"""Turn an XLA profile in its own protobuf (`*.xplane.pb` of JAX, TensorFlow, PyTorch/XLA) into columns.

    XSpace    planes: devices and hosts          XLine     name, begin in ns, events: a stream or thread
    XPlane    name, lines, tables of names       XEvent    name, offset and length in ps, statistics

The JSON that XLA exports is this file cut at a million events, so both are read the same way from here on: planes are
processes, lines are threads. Edges are rounded down to nanoseconds, so that what touches still touches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import unpack

from ridgeline.core.documents import JsonObject
from ridgeline.core.units import BINARY
from ridgeline.trace.read.chrome_columns import ChromeColumns
from ridgeline.trace.read.chrome_events import Args, Event, Fate
from ridgeline.trace.read.join import TracePart
from ridgeline.trace.read.kineto import Finish
from ridgeline.trace.read.protobuf import Damaged, fields, readable_fields, signed_int, varint
from ridgeline.trace.read.source import TraceSource, refuse

FORMAT = "XLA xplane"
LARGEST = int(2 * BINARY["Gi"])  # bytes of a protobuf message, by its own rule
BATCH = 10_000  # events handed on at a time
PICO = 1000  # picoseconds in a nanosecond
LONGEST = 2000  # characters of a name
PLANE, LINES, EVENTS, STATS = 1, 3, 4, 6
BEGINS = (b"/", b"Task Environment", b"#")
PASSED = ("/host:metadata", "Task Environment")
"""Planes that hold facts about a run, no spans."""
KEPT = frozenset({"correlation_id", "hlo_category", "hlo_op", "device_ordinal", "step_num", "bytes_transferred"})
PROPERTIES = {
    "memory_size": "totalGlobalMem", "core_count": "numSms", "compute_cap_major": "computeMajor",
    "compute_cap_minor": "computeMinor", "device_vendor": "vendor", "device_type_string": "name",
    "gpu_device_name": "name",
}  # fmt: skip


@dataclass(slots=True)
class Names:
    """The tables of a plane: names of events, of statistics, and statistics that all events of a name share."""

    events: dict[int, str] = field(default_factory=dict)
    stats: dict[int, str] = field(default_factory=dict)
    shared: dict[int, list[bytes]] = field(default_factory=dict)


def recognises(head: bytes) -> bool:
    """Whether a file begins with a plane of an XSpace."""
    try:
        tag, at = varint(head, 0)
        _, at = varint(head, at)
    except Damaged:
        return False
    if tag != PLANE << 3 | 2:
        return False
    for number, value in readable_fields(head[at:]):
        if number == 2 and isinstance(value, bytes):
            return value.startswith(BEGINS)
        if number > 2:
            return False
    return False


def read(source: TraceSource) -> TracePart:
    """One profile as columns; an `InputError` when it holds no span."""
    data = source.read_all(LARGEST, "one XSpace, below 2 GiB", "profile fewer steps")
    columns, fate = ChromeColumns(1), Fate()
    fate.listed = fate.closed = True
    facts: JsonObject = {}
    try:
        _name_planes(columns, data)
        for number, plane in fields(data):
            if number == PLANE and isinstance(plane, bytes):
                _take_plane(columns, plane, facts)
            if columns.full:
                break
    except Damaged as wrong:
        source.damage = source.damage or f"the file is damaged or cut ({wrong})"
    if not columns.count:
        why = source.damage or "no plane has an event"
        raise refuse(source.path, f"an XLA profile without spans ({why})", FORMAT, "was anything running?")
    return Finish(source, columns, facts, exact=True, format=FORMAT).part(fate, columns.full)


def _name_planes(gathered: ChromeColumns, data: bytes) -> None:
    """Tell all processes before the first span: whether the host is the device depends on the others."""
    for number, plane in readable_fields(data):
        if number != PLANE or not isinstance(plane, bytes):
            continue
        name = next((value for at, value in readable_fields(plane) if at == 2), b"")
        if isinstance(name, bytes) and name.decode("utf-8", "replace") not in PASSED:
            text = name[:LONGEST].decode("utf-8", "replace")
            gathered.take([_metadata("process_name", text, "", text)])


def _take_plane(gathered: ChromeColumns, plane: bytes, facts: JsonObject) -> None:
    names, lines, stats, title = Names(), list[bytes](), list[bytes](), ""
    for number, value in readable_fields(plane):
        if not isinstance(value, bytes):
            continue
        if number == 2:
            title = value[:LONGEST].decode("utf-8", "replace")
        elif number == LINES:
            lines.append(value)
        elif number in (4, 5):
            _take_name(names, number, value)
        elif number == STATS:
            stats.append(value)
    if title in PASSED:
        return
    _properties(names, stats, title, facts)
    for line in lines:
        _take_line(gathered, names, line, title)


def _take_name(names: Names, number: int, entry: bytes) -> None:
    """An entry of the plane's tables: 4 has the names of events, 5 those of statistics."""
    entry_fields = dict[int, int | bytes](readable_fields(entry))
    key, value = entry_fields.get(1, 0), entry_fields.get(2, b"")
    if not isinstance(key, int) or not isinstance(value, bytes):
        return
    metadata: dict[int, int | bytes] = {}
    shared = []
    for field_number, content in readable_fields(value):
        metadata[field_number] = content
        if number == 4 and field_number == 5 and isinstance(content, bytes):
            shared.append(content)
    text = metadata.get(4) or metadata.get(2, b"") if number == 4 else metadata.get(2, b"")
    if isinstance(text, bytes):
        (names.events if number == 4 else names.stats)[key] = text[:LONGEST].decode("utf-8", "replace")
    if shared:
        names.shared[key] = shared


def _properties(names: Names, stats: list[bytes], title: str, facts: JsonObject) -> None:
    if not title.startswith("/device:") or "deviceProperties" in facts:
        return
    properties = {PROPERTIES[name]: value for name, value in _stats(names, stats) if name in PROPERTIES}
    if properties:
        facts["deviceProperties"] = [{"id": 0, "name": "", **properties}]


def _take_line(gathered: ChromeColumns, names: Names, line: bytes, pid: str) -> None:
    tid, begin, title, events = 0, 0, "", list[bytes]()
    for number, value in readable_fields(line):
        if isinstance(value, int):
            tid, begin = (value, begin) if number == 1 else (tid, signed_int(value)) if number == 3 else (tid, begin)
        elif number in (2, 11):
            title = value[:LONGEST].decode("utf-8", "replace") or title
        elif number == EVENTS:
            events.append(value)
    gathered.take([_metadata("thread_name", pid, tid, title)])
    for first in range(0, len(events), BATCH):
        gathered.take([_event(names, raw, pid, tid, begin) for raw in events[first : first + BATCH]])


def _event(names: Names, raw: bytes, pid: str, tid: int, begin: int) -> Event:
    key = offset = length = 0
    stats = []
    for number, value in readable_fields(raw):
        if isinstance(value, int):
            if number == 1:
                key = value
            elif number == 2:
                offset = signed_int(value)
            elif number == 3:
                length = signed_int(value)
        elif number == 4:
            stats.append(value)
    start = begin + offset // PICO
    until = begin + (offset + length) // PICO
    event_stats = dict(_stats(names, [*names.shared.get(key, ()), *stats], only=KEPT))
    args = Args(
        correlation_id=event_stats.get("correlation_id"),
        hlo_category=event_stats.get("hlo_category"),
        hlo_op=event_stats.get("hlo_op"),
        device_ordinal=event_stats.get("device_ordinal"),
        step_num=event_stats.get("step_num"),
        bytes=event_stats.get("bytes_transferred"),
    )
    return Event(ph="X", name=names.events.get(key, ""), pid=pid, tid=tid, ts=start, dur=until - start, args=args)


def _stats(names: Names, raw: list[bytes], only: frozenset[str] = frozenset()) -> Iterator[tuple[str, object]]:
    """Statistics by name: numbers, texts, and texts that stand in the table of names."""
    for stat in raw:
        name, value = "", None
        for number, content in readable_fields(stat):
            if number == 1 and isinstance(content, int):
                name = names.stats.get(content, "")
                if only and name not in only:
                    break
            else:
                value = _value(names, number, content)
        else:
            if name and value is not None:
                yield name, value


def _value(names: Names, number: int, told: int | bytes) -> object:
    if isinstance(told, bytes):
        return told[:LONGEST].decode("utf-8", "replace")
    if number == 2:
        return unpack("<d", told.to_bytes(8, "little"))[0]
    return names.stats.get(told, "") if number == 7 else signed_int(told) if number == 4 else told


def _metadata(what: str, pid: str, tid: int | str, name: str) -> Event:
    return Event(ph="M", name=what, pid=pid, tid=tid, args=Args(name=name))
