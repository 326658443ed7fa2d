"""Turn a stream of JSON bytes into the members around its event list and small records of the events, batch by batch.

A trace is `{"key": value, …, "traceEvents": [event, event, …], "key": value}` or the bare list. Only one chunk is held:
a batch ends where one event ends and the next begins, guessed from the end of the chunk and proved by decoding it. When
the guess or the text is wrong, the chunk is scanned token by token: what can be read is kept, what cannot is counted.

    X span; B, E its begin and end; M names of processes and threads; C counter; i instant; s, t, f flow arrows
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any

import msgspec

from ridgeline.core.units import BINARY
from ridgeline.trace.read.timestamps import NANOS, needs_decimals

LARGEST_MEMBER = int(64 * BINARY["Mi"])  # bytes of a value beside the events that is still looked at
LARGEST_EVENT = int(16 * BINARY["Mi"])
TRIES = 64  # opening braces looked at, from the end of a chunk backwards
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]]|"', re.DOTALL)
_KEY = re.compile(rb'"((?:[^"\\]++|\\.)*+)"\s*:\s*', re.DOTALL)
_SCALAR = re.compile(rb"[^,}\]\s]+")
_SPACE = b" \t\r\n"
_NEXT = re.compile(rb'[}\]]\s*,\s*(\{\s*"(?:ph|name|cat|args|ts|pid|tid|dur|id)"\s*:)')
_NOT_JSON = re.compile(rb"(?<=[:\[,])(\s*)(?:-?(?:nan|inf(?:inity)?)(?:\(\w*\))?)(?=\s*[,}\]])", re.IGNORECASE)
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CONTROL = re.compile(rb"[\x00-\x1f]")


@dataclass(frozen=True, slots=True)
class Member:
    """A key beside the events with its value as JSON text."""

    key: str
    raw: bytes


@dataclass(slots=True)
class Fate:
    """How reading went: filled in while the stream is read."""

    unreadable: int = 0
    """Events that were no JSON, or no event."""
    mended: int = 0
    """Events read after replacing what JSON does not allow: nan, inf, stray control characters and backslashes."""
    closed: bool = False
    """The event list, and the object around it, came to their end."""
    listed: bool = False
    """There was an event list."""


class NotJson(Exception):
    """The stream does not begin like a trace."""


class JsonStream:
    """Reads one stream: members beside the events, and batches of events, by ``decode``, which takes a JSON list."""

    def __init__(self, chunks: Iterator[bytes], decode: Callable[[bytes], Sequence[Event]]) -> None:
        self._chunks, self._decode = chunks, decode
        self._data, self._ended = b"", False
        self.fate = Fate()

    def __iter__(self) -> Iterator[Member | Sequence[Event]]:
        if self._peek() == b"\xef":
            self._data = self._data.removeprefix(b"\xef\xbb\xbf")
        first = self._peek()
        if first == b"[":
            self._data = self._data[1:]
            yield from self._events()
        elif first == b"{":
            self._data = self._data[1:]
            yield from self._members()
        else:
            raise NotJson(first.decode("latin-1"))

    # -- the buffer ---------------------------------------------------------------------------------------------------

    def _more(self) -> bool:
        if self._ended:
            return False
        chunk = next(self._chunks, b"")
        self._ended = not chunk
        self._data += chunk
        return not self._ended

    def _peek(self, skip: bytes = _SPACE) -> bytes:
        """The next byte that matters, which is then the first of the buffer; empty at the end."""
        while True:
            self._data = self._data.lstrip(skip)
            if self._data or not self._more():
                return self._data[:1]

    # -- members of the object ----------------------------------------------------------------------------------------

    def _members(self) -> Iterator[Member | Sequence[Event]]:
        while True:
            first = self._peek(_SPACE + b",")
            if first == b"}":
                self.fate.closed = True
                return
            key = self._key() if first == b'"' else None
            if key is None:
                return
            if key == "traceEvents" and self._peek() == b"[":
                self._data = self._data[1:]
                yield from self._events()
                if not self.fate.closed:
                    return
                self.fate.closed = False
                continue
            raw = self._value()
            if raw is None:
                return
            if raw:
                yield Member(key, raw)

    def _key(self) -> str | None:
        while True:
            match = _KEY.match(self._data)
            if match and (match.end() < len(self._data) or self._ended):
                self._data = self._data[match.end() :]
                try:
                    return str(msgspec.json.decode(b'"' + match[1] + b'"'))
                except UNREADABLE:
                    return match[1].decode("utf-8", "replace")
            if len(self._data) > LARGEST_MEMBER or not self._more():
                return None

    def _value(self) -> bytes | None:
        """The next value's text; empty when it was too large to keep, None when it does not end."""
        first = self._peek()
        if first in (b"{", b"["):
            return self._nested_value()
        while True:
            match = (_TOKEN if first == b'"' else _SCALAR).match(self._data)
            if match and (match.end() < len(self._data) or self._ended) and match[0] != b'"':
                self._data = self._data[match.end() :]
                return match[0]
            if len(self._data) > LARGEST_MEMBER or not self._more():
                return None

    def _nested_value(self) -> bytes | None:
        depth, at, lost = 0, 0, False
        while True:
            for token in _TOKEN.finditer(self._data, at):
                mark = token[0]
                if mark in b"{[":
                    depth += 1
                elif mark in b"}]":
                    depth -= 1
                elif mark == b'"':  # the string goes on in the next chunk
                    break
                at = token.end()
                if depth == 0:
                    raw, self._data = self._data[:at], self._data[at:]
                    return b"" if lost else raw
            if at > LARGEST_MEMBER:
                self._data, at, lost = self._data[at:], 0, True
            if len(self._data) - at > LARGEST_MEMBER or not self._more():
                return None

    # -- events of the list -------------------------------------------------------------------------------------------

    def _events(self) -> Iterator[Sequence[Event]]:
        self.fate.listed = True
        while True:
            first = self._peek(_SPACE + b",")
            if first in (b"", b"]"):
                self.fate.closed = first == b"]"
                self._data = self._data[1:]
                return
            at_end = self._more()
            cut = _boundary(self._data)
            batch = self._fast(cut) if cut else None
            if batch is None:
                events, at, list_closed = self._slow()
                self._data = self._data[at:]
                if events:
                    yield events
                if list_closed:
                    self.fate.closed = True
                    return
                if not at_end and at == 0:
                    return
                continue
            self._data = self._data[cut:]
            yield batch

    def _fast(self, cut: int) -> Sequence[Event] | None:
        try:
            return self._decode(b"[" + self._data[:cut] + b"]")
        except UNREADABLE:
            return None

    def _slow(self) -> tuple[list[Event], int, bool]:
        """Events of the buffer one by one, how far they go, and whether the list ends there."""
        events: list[Event] = []
        data, at = self._data, 0
        while True:
            while at < len(data) and data[at] in b" \t\r\n,":
                at += 1
            if data[at : at + 1] == b"]":
                return events, at + 1, True
            end = _event_end(data, at)
            if end < 0:
                if not self._ended and len(data) - at < LARGEST_EVENT:
                    return events, at, False
                next_event = _NEXT.search(data, at + 1)
                if next_event is None:
                    return events, len(data) if self._ended else max(at, len(data) - LARGEST_EVENT // 16), False
                self.fate.unreadable += 1
                at = next_event.start(1)
                continue
            event = self._decode_event(data[at:end])
            if event is not None:
                events.append(event)
            elif (inner := _NEXT.search(data, at + 1, end)) is not None:
                end = inner.start(1)  # a lost quote or brace swallowed the events behind it
            at = end

    def _decode_event(self, raw: bytes) -> Event | None:
        for text in (raw, None):
            try:
                event = decode_one(mend(raw) if text is None else text)
            except UNREADABLE:
                continue
            self.fate.mended += text is None
            return event
        self.fate.unreadable += 1
        return None


def _boundary(data: bytes) -> int:
    """Where the last event but one ends, judged by what stands around opening braces; 0 when none is found."""
    at = len(data)
    for _ in range(TRIES):
        at = data.rfind(b"{", 0, at)
        if at <= 0:
            return 0
        back = at - 1
        while back >= 0 and data[back] in _SPACE:
            back -= 1
        if data[back : back + 1] == b",":
            end = data[max(0, back - 64) : back].rstrip(_SPACE)
            if end.endswith(b"}") and data[at + 1 : at + 64].lstrip(_SPACE).startswith(b'"'):
                return back
    return 0


def _event_end(data: bytes, at: int) -> int:
    """Where the value at ``at`` ends, -1 when it does not in this buffer."""
    if data[at : at + 1] not in (b"{", b"["):
        match = _SCALAR.match(data, at)
        return match.end() if match and match.end() < len(data) else -1
    depth = 0
    for token in _TOKEN.finditer(data, at):
        mark = token[0]
        if mark in b"{[":
            depth += 1
        elif mark in b"}]":
            depth -= 1
            if depth <= 0:
                return token.end()
        elif mark == b'"':
            return -1
    return -1


def mend(raw: bytes) -> bytes:
    """The text with what profilers write and JSON forbids replaced: nan and inf, control characters, stray backslashes.

    >>> mend(b'{"GB/s": inf, "path": "C:\\\\Windows"}')
    b'{"GB/s": null, "path": "C:/Windows"}'
    """
    text = _NOT_JSON.sub(rb"\1null", raw)
    text = _CONTROL.sub(b" ", text)
    text = _BAD_ESCAPE.sub(b"/", text)
    return text.decode("utf-8", "replace").encode()


NOTHING = msgspec.Raw()
SAMPLE = 64  # spans of a batch whose times are looked at to choose the way of reading numbers


class Args(msgspec.Struct, gc=False):
    """The arguments that are read; everything else is skipped without being built."""

    correlation: object = None
    correlation_id: object = None
    connection_id: object = None
    stream: object = None
    bytes: object = None
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=NOTHING)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NOTHING)
    collective: object = msgspec.field(name="Collective name", default=None)
    dtype: object = None
    in_elements: object = msgspec.field(name="In msg nelems", default=None)
    out_elements: object = msgspec.field(name="Out msg nelems", default=None)
    group_size: object = msgspec.field(name="Group size", default=None)
    group: object = msgspec.field(name="Process Group Name", default=None)
    ranks: object = msgspec.field(name="Process Group Ranks", default=None)
    from_rank: object = msgspec.field(name="Src Rank", default=None)
    to_rank: object = msgspec.field(name="Dst Rank", default=None)
    hlo_category: object = None
    hlo_op: object = None
    device_ordinal: object = None
    step_num: object = None
    name: object = None
    labels: object = None
    value: object = None
    allocated: object = msgspec.field(name="Total Allocated", default=None)
    reserved: object = msgspec.field(name="Total Reserved", default=None)
    device: object = msgspec.field(name="Device Id", default=None)
    device_type: object = msgspec.field(name="Device Type", default=None)


class Event(msgspec.Struct, gc=False):
    """One event, as far as it is read. The types say what profilers write; other types take the slow way."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: int | float | str | None = None
    dur: int | float | str | None = None
    args: Args | None = None
    id: object = None


class OwnArgs(Args, gc=False):
    """The arguments of a file that Ridgeline wrote; apart, so that reading others does not pay for it."""

    phase: object = None
    layer: object = None


class OwnEvent(Event, gc=False):
    """An event of such a file."""

    args: OwnArgs | None = None


class DecimalEvent(Event, gc=False):
    """The same with times as decimals: for fractions of microseconds since 1970, which no float holds."""

    ts: Decimal | None = None  # type: ignore[assignment]
    dur: Decimal | None = None  # type: ignore[assignment]


class _Loose(msgspec.Struct, gc=False):
    ph: object = ""
    cat: object = ""
    name: object = ""
    pid: object = ""
    tid: object = ""
    ts: object = None
    dur: object = None
    args: object = None
    id: object = None


class _Times(msgspec.Struct, gc=False):
    ts: Decimal | None = None
    dur: Decimal | None = None


_fast = msgspec.json.Decoder(list[Event])
_own_events = msgspec.json.Decoder(list[OwnEvent])
_exact = msgspec.json.Decoder(list[DecimalEvent])
_loose_event = msgspec.json.Decoder(_Loose)
_one_exact = msgspec.json.Decoder(_Times)
FINE = 1e9  # a float beyond this may have lost digits that a unit of seconds needs


class EventDecoder:
    """Decodes batches; once a time is seen that needs decimals, all further batches are read with decimals.

    ``own`` is to be set once a file says that Ridgeline wrote it.
    """

    def __init__(self, nanos: int = 0) -> None:
        self._decimals, self._nanos = False, nanos or NANOS
        self.own = False

    def __call__(self, raw: bytes) -> Sequence[Event]:
        if self._decimals:
            return _exact.decode(raw)
        events = _own_events.decode(raw) if self.own else _fast.decode(raw)
        times = list(islice((event.ts for event in events if event.ts is not None), SAMPLE))
        if needs_decimals(times, self._nanos):
            self._decimals = True
            return _exact.decode(raw)
        return events


def decode_one(raw: bytes) -> Event:
    """An event with whatever types it has; texts are made texts, arguments that are no table are left out."""
    loose = _loose_event.decode(raw)
    if not isinstance(loose.ph, str):
        raise ValueError("not an event")
    if isinstance(loose.ts, float) and abs(loose.ts) > FINE and not loose.ts.is_integer():
        exact = _one_exact.decode(raw)
        loose.ts, loose.dur = exact.ts, exact.dur
    return Event(
        ph=loose.ph,
        cat=_text(loose.cat),
        name=_text(loose.name),
        pid=_text_or_int(loose.pid),
        tid=_text_or_int(loose.tid),
        ts=_time(loose.ts),
        dur=_time(loose.dur),
        args=_loose_args(loose.args),
        id=loose.id,
    )


def _time(value: object) -> Any:
    """A time of whatever type can be one; a decimal where a float would have lost digits."""
    return value if isinstance(value, (int, float, str, Decimal)) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)[:200]


def _text_or_int(value: object) -> int | str:
    return value if isinstance(value, int) and not isinstance(value, bool) else _text(value)


def _loose_args(value: object) -> Args | None:
    if not isinstance(value, dict):
        return None
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=OwnArgs)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        return None
