"""Turn a stream of JSON bytes into the members around its event list and the events, a batch at a time.

A trace is `{"key": value, …, "traceEvents": [event, event, …], "key": value}` or the bare list. Only one chunk is held:
a batch ends where one event ends and the next begins, guessed from the end of the chunk and proved by decoding it. When
the guess or the text is wrong, the chunk is scanned token by token: what can be read is kept, what cannot is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from ridgeline.core.units import BINARY

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class EventBatch(Generic[T]):
    """Some events, decoded."""

    events: list[T]


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


class JsonStream(Generic[T]):
    """Reads one stream; ``decode`` takes a JSON list of events, ``decode_one`` one event; both raise otherwise."""

    def __init__(
        self, chunks: Iterator[bytes], decode: Callable[[bytes], list[T]], decode_one: Callable[[bytes], T]
    ) -> None:
        self._chunks, self._decode, self._decode_one = chunks, decode, decode_one
        self._data, self._ended = b"", False
        self.fate = Fate()

    def __iter__(self) -> Iterator[Member | EventBatch[T]]:
        self._data = self._data.removeprefix(b"\xef\xbb\xbf")
        first = self._peek()
        if first == b"\xef" and self._data.startswith(b"\xef\xbb\xbf"):
            self._data = self._data[3:]
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
        """Append the next chunk; False when there is none."""
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

    def _members(self) -> Iterator[Member | EventBatch[T]]:
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

    def _events(self) -> Iterator[EventBatch[T]]:
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
                    yield EventBatch(events)
                if list_closed:
                    self.fate.closed = True
                    return
                if not at_end and at == 0:
                    return
                continue
            self._data = self._data[cut:]
            yield EventBatch(batch)

    def _fast(self, cut: int) -> list[T] | None:
        try:
            return self._decode(b"[" + self._data[:cut] + b"]")
        except UNREADABLE:
            return None

    def _slow(self) -> tuple[list[T], int, bool]:
        """Events of the buffer one by one, how far they go, and whether the list ends there."""
        events: list[T] = []
        data, at = self._data, 0
        while True:
            at = _skip(data, at)
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

    def _decode_event(self, raw: bytes) -> T | None:
        for text in (raw, None):
            try:
                event = self._decode_one(mend(raw) if text is None else text)
            except UNREADABLE:
                continue
            self.fate.mended += text is None
            return event
        self.fate.unreadable += 1
        return None


def _skip(data: bytes, at: int) -> int:
    while at < len(data) and data[at] in b" \t\r\n,":
        at += 1
    return at


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
