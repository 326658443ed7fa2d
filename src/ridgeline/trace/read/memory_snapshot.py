"""Turn a record of PyTorch's allocator into its peak and what was held then.

    snapshot.pickle            torch.cuda.memory._dump_snapshot: segments, blocks, and the allocator's history by stack
    memory_timeline.raw.json   profiler.export_memory_timeline(….raw.json.gz): every change, by category
    memory_timeline.json       the same already summed up by time

A history that began late does not know what was allocated before it: that is told as `before_bytes`. `pickle.load` runs
whatever a file asks for, so pickles have an interpreter here that only knows how to build plain data.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.core.documents import JsonMapping
from ridgeline.core.units import BINARY
from ridgeline.trace.read.source import TraceSource, doubt, refuse

MOST_VALUES = 200_000_000  # instructions
MAGIC = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


class NotPlain(Exception):
    """The file asks for more than plain data, or is damaged."""


class _Mark:
    """Where a group of values begins on the stack."""


_MARK = _Mark()
_LITERALS = frozenset({
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT", "SHORT_BINUNICODE",
    "BINUNICODE", "BINUNICODE8", "UNICODE", "SHORT_BINBYTES", "BINBYTES", "SHORT_BINSTRING", "BINSTRING",
})  # fmt: skip
_EMPTY: Mapping[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_FIXED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PASSED = frozenset({"PROTO", "FRAME"})


def plain(data: bytes) -> Any:
    """The value a pickle holds; `NotPlain` where it is more than data.

    >>> import pickle
    >>> plain(pickle.dumps({"a": [1, (2.5, None)], "b": "text"}))
    {'a': [1, (2.5, None)], 'b': 'text'}
    """
    machine = _Machine()
    try:
        for count, (code, argument, _) in enumerate(pickletools.genops(data)):
            if code.name == "STOP":
                return machine.stack[-1]
            if count > MOST_VALUES:
                raise NotPlain("too many values")
            machine.step(code.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, RecursionError) as wrong:
        raise NotPlain(str(wrong)[:200]) from None
    raise NotPlain("the pickle does not end")


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _PASSED:
            return
        if name in _LITERALS:
            stack.append(argument)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _FIXED:
            stack.append(_FIXED[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[len(self.memo) if name == "MEMOIZE" else int(argument)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[int(argument)])
        elif name in _TUPLES:
            entries = [stack.pop() for _ in range(_TUPLES[name])][::-1]
            stack.append(tuple(entries))
        else:
            self._group(name)

    def _group(self, name: str) -> None:
        """Instructions that take what stands behind a mark, or one or two values."""
        stack = self.stack
        if name in ("APPEND", "SETITEM"):
            values = [stack.pop()] if name == "APPEND" else [stack.pop(), stack.pop()][::-1]
        elif name in ("APPENDS", "SETITEMS", "TUPLE", "LIST", "DICT"):
            values = []
            while (entry := stack.pop()) is not _MARK:
                values.append(entry)
            values.reverse()
        else:
            raise NotPlain(f"it asks for {name}, which plain data does not need")
        if name in ("TUPLE", "LIST"):
            stack.append(tuple(values) if name == "TUPLE" else values)
        elif name == "DICT":
            stack.append(dict(zip(values[::2], values[1::2], strict=True)))
        elif name.startswith("APPEND"):
            if not isinstance(stack[-1], list):
                raise NotPlain("it appends to what is no list")
            stack[-1].extend(values)
        elif not isinstance(stack[-1], dict):
            raise NotPlain("it sets items of what is no dict")
        else:
            stack[-1].update(zip(values[::2], values[1::2], strict=True))


FORMAT = "PyTorch memory snapshot"
NANO = 1000  # nanoseconds of a microsecond
LARGEST = int(2 * BINARY["Gi"])  # bytes of a file that are read
LISTED = 20  # holders named
CATEGORIES = (
    "parameters", "optimizer states", "inputs", "temporaries", "activations", "gradients", "autograd details", "other",
)  # fmt: skip
"""Categories of the profiler's memory timeline, by number."""
TIMELINE = "PyTorch memory timeline"
_RAW = re.compile(rb"^\s*\[\s*\[\s*-?\d+(?:\.\d+)?\s*,\s*[1-4]\s*,\s*-?\d+\s*,\s*\d")
_SUMMED = re.compile(rb"^\s*\[\s*\[\s*-?\d+(?:\.\d+)?\s*,\s*\d{6,}")
_LIBRARY = re.compile(r"(torch/(nn|autograd|_|utils|cuda|optim)|<frozen|\.cpp$|\.h$|\?\?|^$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Bytes alive at the peak that share a stack or a category."""

    what: str
    size_bytes: int
    blocks: int

    JSON = "what bytes=size_bytes blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One chip's allocator: its peak, who held it, and how much of what was reserved was in use at the end."""

    device: int
    events: int
    peak_bytes: int
    peak_us: float
    """When, on the clock of the record."""
    before_bytes: int
    """Allocated before the history began, and still active when the snapshot was taken."""
    holders: tuple[Holder, ...]
    """At the peak, largest first."""
    reserved_bytes: int
    active_bytes: int
    """At the end."""
    out_of_memory: int
    """How often an allocation failed."""

    JSON = "* fragmentation"

    @property
    def fragmentation(self) -> float:
        """Share of the reserved memory that no block used at the end."""
        return 1 - self.active_bytes / self.reserved_bytes if self.reserved_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """A record of the allocator's history, read without a timeline."""

    sources: tuple[str, ...]
    format: str
    warnings: tuple[str, ...]
    devices: tuple[DeviceMemory, ...]

    JSON = "kind='memory' *"


def recognises(head: bytes) -> bool:
    """Whether a file begins like a pickle, or like one of the profiler's memory timelines."""
    return head.startswith(MAGIC) or bool(_RAW.match(head[:400]) or _SUMMED.match(head[:400]))


def format_of(path: Path) -> str:
    """Which sort of record a file is."""
    return FORMAT if TraceSource(path).head().startswith(MAGIC) else TIMELINE


def read_memory(path: Path) -> MemoryRecord:
    """A record of the allocator with its format, and what is doubtful about it."""
    format = format_of(path)
    return MemoryRecord(sources=(path.name,), format=format, warnings=tuple(doubt(format)), devices=read_snapshot(path))


def read_snapshot(path: Path) -> tuple[DeviceMemory, ...]:
    """The memory of every chip of a record; an `InputError` when it is none."""
    source = TraceSource(path)
    data = source.read_all(LARGEST, FORMAT, "record a shorter history (max_entries)")
    try:
        value = plain(data) if data.startswith(MAGIC) else msgspec.json.decode(data)
        devices = tuple(_devices(value))
    except (NotPlain, msgspec.MsgspecError, TypeError, ValueError, KeyError, IndexError, AttributeError) as wrong:
        why = source.damage or str(wrong)[:200]
        raise refuse(path, f"a file that holds no memory record ({why})", FORMAT, "dump it again") from None
    if not devices:
        raise refuse(path, "a memory record without a device", FORMAT, "was the history on (_record_memory_history)?")
    return devices


def _devices(value: Any) -> Iterable[DeviceMemory]:
    if isinstance(value, Mapping):
        segments = [segment for segment in value.get("segments") or [] if isinstance(segment, Mapping)]
        traces = value.get("device_traces") or []
        for device in range(
            max(len(traces), 1 + max((_int(segment.get("device")) for segment in segments), default=-1))
        ):
            device_segments = [segment for segment in segments if _int(segment.get("device")) == device]
            history = traces[device] if device < len(traces) else []
            if device_segments or history:
                yield _of_history(device, history, device_segments)
    elif value and isinstance(value[0], list) and isinstance(value[0][0], (int, float)) and len(value[0]) == 4:
        yield _of_changes(value)
    else:
        yield _of_sums(*value)


def _of_history(device: int, history: Sequence[JsonMapping], segments: Sequence[JsonMapping]) -> DeviceMemory:
    alive: dict[int, tuple[int, str]] = {}
    held_bytes = peak = failures = 0
    at_peak: dict[int, tuple[int, str]] = {}
    when = 0.0
    rising = False
    for entry in history:
        action, address, size = entry.get("action"), _int(entry.get("addr")), _int(entry.get("size"))
        if action == "alloc":
            alive[address] = (size, _stack(entry.get("frames")))
            held_bytes += size
            if held_bytes > peak:
                peak, when, rising = held_bytes, float(entry.get("time_us") or 0), True
        elif action in ("free_completed", "free"):
            if rising:
                at_peak, rising = dict(alive), False
            held_bytes -= alive.pop(address, (0, ""))[0]
        elif action == "oom":
            failures += 1
    at_peak = dict(alive) if rising else at_peak
    active = sum(_int(segment.get("active_size") or segment.get("allocated_size")) for segment in segments)
    before = max(0, active - held_bytes) if history else active
    return DeviceMemory(
        device=device,
        events=len(history),
        peak_bytes=peak + before,
        peak_us=when,
        before_bytes=before,
        holders=_holders(at_peak.values()) if history else _holders(_blocks(segments)),
        reserved_bytes=sum(_int(segment.get("total_size")) for segment in segments),
        active_bytes=active,
        out_of_memory=failures,
    )


def _blocks(segments: Sequence[JsonMapping]) -> Iterable[tuple[int, str]]:
    for segment in segments:
        for block in segment.get("blocks") or []:
            if block.get("state") == "active_allocated":
                yield _int(block.get("size")), _stack(block.get("frames"))


def _of_changes(changes: Sequence[Sequence[float]]) -> DeviceMemory:
    """A raw timeline: [nanoseconds, action, bytes, category]; what goes has negative bytes.

    A new version of a tensor leaves one category and enters another with two changes at one time.
    """
    held_bytes = [0] * len(CATEGORIES)
    best, when, total, peak_bytes = list(held_bytes), 0.0, 0, 0
    for place, (at, _, size, category) in enumerate(changes):
        held_bytes[min(max(0, int(category)), len(CATEGORIES) - 1)] += int(size)
        total += int(size)
        at_end = place + 1 == len(changes) or changes[place + 1][0] != at
        if at_end and total > peak_bytes:
            best, when, peak_bytes = list(held_bytes), max(0.0, float(at)) / NANO, total
    return _memory_of_sums(best, when, len(changes), sum(held_bytes))


def _of_sums(times: Sequence[float], sizes: Sequence[Sequence[int]]) -> DeviceMemory:
    """A summed timeline: times, and for each the bytes by category behind a zero."""
    rows = [[int(cell) for cell in row[1 : len(CATEGORIES) + 1]] for row in sizes]
    peak = max(range(len(rows)), key=lambda place: sum(rows[place]))
    return _memory_of_sums(rows[peak], float(times[peak]), len(rows), sum(rows[-1]))


def _memory_of_sums(held: Sequence[int], when: float, events: int, last: int) -> DeviceMemory:
    holders = [
        Holder(what=what, size_bytes=size, blocks=0) for what, size in zip(CATEGORIES, held, strict=False) if size
    ]
    return DeviceMemory(
        device=0,
        events=events,
        peak_bytes=sum(held),
        peak_us=when,
        before_bytes=0,
        holders=tuple(sorted(holders, key=lambda one: -one.size_bytes)),
        reserved_bytes=0,
        active_bytes=last,
        out_of_memory=0,
    )


def _holders(blocks: Iterable[tuple[int, str]]) -> tuple[Holder, ...]:
    sums: dict[str, tuple[int, int]] = {}
    for size, stack in blocks:
        total, many = sums.get(stack, (0, 0))
        sums[stack] = total + size, many + 1
    holders = [Holder(what=what, size_bytes=total, blocks=many) for what, (total, many) in sums.items()]
    return tuple(sorted(holders, key=lambda one: -one.size_bytes)[:LISTED])


def _stack(frames: Any) -> str:
    """The innermost frame of a user's own code, and the innermost of all."""
    texts = [
        (
            str(frame.get("filename", ""))[-120:],
            f"{str(frame.get('filename', ''))[-60:]}:{frame.get('line', 0)} {frame.get('name', '')}",
        )
        for frame in (frames or [])[:60]
        if isinstance(frame, Mapping)
    ]
    user_frame = next((text for file, text in texts if not _LIBRARY.search(file)), "")
    return user_frame or (texts[0][1] if texts else "no stack was recorded")


def _int(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else 0
