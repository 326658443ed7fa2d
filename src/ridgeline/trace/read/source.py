"""Turn a file into a stream of byte chunks, inflated on the way when it is compressed; and say what unread files are.

Input is hostile: a compressed file that grows more than `MOST_RATIO` times is refused (real traces compress 13 to 30
times, a bomb a thousand), and damage ends the stream with a reason instead of an exception, so that what came before it
can be kept.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import read_table
from ridgeline.core.units import BINARY

CHUNK = int(4 * BINARY["Mi"])  # bytes handed on at a time
PIECE = int(256 * BINARY["Ki"])  # compressed bytes inflated at a time: what damage can cost is less
MOST_UNPACKED = int(64 * BINARY["Gi"])  # bytes of a temporary file
MOST_RATIO = 200  # inflated bytes per compressed byte
SMALL = int(64 * BINARY["Mi"])  # inflated bytes below which the ratio does not matter
GZIP = b"\x1f\x8b"

Progress = Callable[[int, int], object]
"""Called with bytes of files read so far, and bytes of all of them."""


class TraceSource:
    """One file as chunks. ``damage`` says after the last chunk why the stream ended early, empty when it did not."""

    def __init__(self, path: Path, tell: Callable[[int], None] | None = None, nanos: int = 0) -> None:
        self.path, self.damage = path, ""
        self.nanos = nanos
        """Nanoseconds in the unit of the file's times, when the user said so; 0 to find out."""
        self._tell = tell

    @property
    def name(self) -> str:
        return self.path.name

    def head(self, size: int = 65536) -> bytes:
        """The first bytes, inflated: enough to recognise a format by. ``damage`` says why there are none."""
        first = TraceSource(self.path)
        for chunk in first.chunks(size):
            return chunk[:size]
        self.damage = first.damage
        return b""

    def chunks(self, size: int = CHUNK) -> Iterator[bytes]:
        """The content, at most about ``size`` bytes at a time."""
        try:
            with self.path.open("rb") as stream:
                magic = stream.read(2)
                stream.seek(0)
                raw = self._raw(iter(lambda: stream.read(min(size, CHUNK)), b""))
                yield from self._inflate_chunks(raw, size) if magic == GZIP else raw
        except OSError as wrong:
            raise refuse(self.path, wrong.strerror or "unreadable", "a readable file", "check the path") from None

    def read_all(self, most: int, expected: str, todo: str) -> bytes:
        """The whole content; an `InputError` when it is larger than a format can be."""
        data = bytearray()
        for chunk in self.chunks():
            data += chunk
            if len(data) > most:
                raise refuse(self.path, f"more than {most:,} bytes", expected, todo)
        return bytes(data)

    @contextmanager
    def unpacked_file(self) -> Iterator[Path]:
        """The file, or a temporary copy of it inflated, for what must be read out of order; removed afterwards."""
        if not self._is_packed():
            if self._tell is not None:
                self._tell(self.path.stat().st_size)
            yield self.path
            return
        with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
            copy = Path(folder) / "unpacked"
            room = min(MOST_UNPACKED, shutil.disk_usage(folder).free // 2)
            written = 0
            with copy.open("wb") as stream:
                for chunk in self.chunks():
                    written += len(chunk)
                    if written > room:
                        raise refuse(
                            self.path, f"a file that inflates to more than {room:,} bytes",
                            "one that fits in half of the free space of the temporary folder",
                            "decompress it on a larger disk and name that file, or set TMPDIR",
                        )  # fmt: skip
                    stream.write(chunk)
            yield copy

    def _is_packed(self) -> bool:
        try:
            with self.path.open("rb") as stream:
                return stream.read(2) == GZIP
        except OSError as wrong:
            raise refuse(self.path, wrong.strerror or "unreadable", "a readable file", "check the path") from None

    def _raw(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self._tell is not None:
                self._tell(len(chunk))
            yield chunk

    def _inflate_chunks(self, chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
        inflate = zlib.decompressobj(wbits=31)
        read_bytes = given_bytes = 0
        at_end = False
        for chunk in chunks:
            for piece in _pieces(chunk, PIECE):
                read_bytes += len(piece)
                remainder = piece
                while remainder:
                    if at_end:  # files may be several gzip members put end to end; zeros behind the last are padding
                        remainder = remainder.lstrip(b"\0")
                        if not remainder.startswith(GZIP):
                            self.damage = "something else follows the gzip data" if remainder else ""
                            break
                        inflate, at_end = zlib.decompressobj(wbits=31), False
                    before = inflate.copy()
                    try:
                        out = inflate.decompress(remainder, size)
                    except zlib.error as wrong:
                        self.damage = f"the gzip data is damaged ({str(wrong).rpartition(': ')[2]})"
                        yield _salvage_bytes(before, remainder)
                        return
                    given_bytes += len(out)
                    self._check_ratio(given_bytes, read_bytes)
                    if out:
                        yield out
                    at_end = inflate.eof
                    remainder = inflate.unused_data if at_end else inflate.unconsumed_tail
        if not at_end and not self.damage:
            self.damage = "the gzip data ends early"

    def _check_ratio(self, given: int, taken: int) -> None:
        if given > SMALL and given > MOST_RATIO * taken:
            raise refuse(
                self.path,
                f"{taken} compressed bytes that inflate to more than {given}",
                f"at most {MOST_RATIO} times as many (traces compress 13 to 30 times)",
                "if the file is honest, decompress it first",
            )


def refuse(path: Path, given: str, expected: str, todo: str) -> InputError:
    """The error of a file that cannot be used."""
    return InputError(Problem(path="", given=given, expected=expected, todo=todo, where=str(path)))


def _pieces(chunk: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(chunk), size):
        yield chunk[at : at + size]


def _salvage_bytes(inflate: zlib._Decompress, rest: bytes) -> bytes:
    pieces = []
    for piece in _pieces(rest, 64):
        try:
            pieces.append(inflate.decompress(piece, CHUNK))
        except zlib.error:
            break
    return b"".join(pieces)


@cache
def _formats() -> JsonMapping:
    return read_table(Path(__file__).parent / "formats.toml").data


def what_it_is(path: Path, head: bytes) -> tuple[str, str]:
    """What a file is, and what to do; empty where nobody knows.

    >>> what_it_is(Path("run.nsys-rep"), b"...")
    ('a report of Nsight Systems', 'nsys export --type sqlite FILE')
    """
    endings, beginnings = _formats()["endings"].items(), _formats()["beginnings"].items()
    entries = [entry for ending, entry in endings if path.name.lower().endswith(ending)]
    entries += [entry for pattern, entry in beginnings if re.match(pattern.encode("latin-1"), head)]
    what, todo = entries[0] if entries else ("", "")
    return what, todo


def doubt(format: str) -> tuple[str, ...]:
    """The warning about a format whose reader is unproven; none about others.

    >>> doubt("rocpd database")[0][:40], doubt("Kineto JSON")
    ('unproven reader: rocpd database is read ', ())
    """
    built_from = _formats()["unproven"].get(format)
    if built_from is None:
        return ()
    return (
        f"unproven reader: {format} is read by {built_from}; no file of the profiler was at hand to check it: "
        "hold the first figures against the profiler's own",
    )
