"""Turn bytes in the protobuf wire format into fields, and a stream of length-delimited messages into messages.

Only the wire format is known here, no schema. Input is hostile: a length is believed only when it is below
`LARGEST_MESSAGE` and inside what holds it, and a number only when it ends within ten bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.core.units import BINARY

LARGEST_MESSAGE = int(64 * BINARY["Mi"])
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MOST_VARINT = 10  # bytes of a 64-bit number
WORD = 2**64

Field = tuple[int, int | bytes]
"""A field's number and its value: a number for varints and fixed ones, bytes for everything that has a length."""


class Damaged(Exception):
    """The bytes are not in the wire format."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place and the place behind it.

    >>> varint(bytes([0xAC, 0x02, 0x07]), 0)
    (300, 2)
    """
    value = shift = 0
    for place in range(at, min(len(data), at + MOST_VARINT)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value % WORD, place + 1
        shift += 7
    raise Damaged("a number does not end")


def signed_int(value: int) -> int:
    """A number of the wire as the signed one it stands for.

    >>> signed_int(2**64 - 1), signed_int(7)
    (-1, 7)
    """
    return value - WORD if value >= WORD // 2 else value


def fields(message: bytes) -> Iterator[Field]:
    """The fields of a message in their order; groups, which nobody writes any more, are damage."""
    at, end = 0, len(message)
    while at < end:
        tag, at = varint(message, at)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise Damaged("a field has the number 0")
        if wire == VARINT:
            value, at = varint(message, at)
            yield number, value
            continue
        if wire == BYTES:
            length, at = varint(message, at)
        else:
            length = {FIXED64: 8, FIXED32: 4}.get(wire, -1)
        if length < 0 or at + length > end:
            raise Damaged(f"field {number} is longer than what holds it")
        raw = message[at : at + length]
        at += length
        yield number, raw if wire == BYTES else int.from_bytes(raw, "little")


def readable_fields(message: bytes) -> Iterator[Field]:
    """The fields of a message up to where it is damaged or cut."""
    try:
        yield from fields(message)
    except Damaged:
        return


def numbers(value: int | bytes) -> list[int]:
    """The numbers of a repeated field's entry, packed or single.

    >>> numbers(bytes([1, 0xAC, 0x02])), numbers(5)
    ([1, 300], [5])
    """
    if isinstance(value, int):
        return [value]
    numbers_, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        numbers_.append(number)
    return numbers_


def messages(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The messages of a stream in which each stands behind its length; `Damaged` where that cannot be."""
    data = b""
    for chunk in chunks:
        data += chunk
        at = 0
        while True:
            try:
                length, begin = varint(data, at)
            except Damaged:
                if len(data) - at >= MOST_VARINT:
                    raise
                break
            if length > LARGEST_MESSAGE:
                raise Damaged(f"a message of {length:,} bytes")
            if begin + length > len(data):
                break
            yield data[begin : begin + length]
            at = begin + length
        data = data[at:]
    if data:
        raise Damaged("the last message is cut")
