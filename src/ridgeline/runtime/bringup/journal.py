"""What a process is about to do on a device, where another process can read it after it died.

journal.begin(entry)    before an op runs: its name, module, phase, format
journal.end()           it came back
journal.read()          the last entry, whether it is still running, and since when
"""

from __future__ import annotations

import json
import mmap
import struct
import time
from dataclasses import asdict, dataclass
from pathlib import Path

SIZE = 16384
_HEAD = struct.Struct("<QQI")  # running, since (ns of the monotonic clock), bytes of the entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An op on its way to the device.

    signature   formats, shapes and strides of its arguments, as one line
    """

    op: str = ""
    module: str = ""
    phase: str = ""
    dtype: str = ""
    signature: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """The last entry; running_s: how long it has been running, 0 where it came back."""

    entry: Entry
    running: bool
    running_s: float


class Journal:
    """A page of shared memory behind a file."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), SIZE)

    def begin(self, entry: Entry) -> None:
        """Say what runs from now on."""
        text = json.dumps(asdict(entry)).encode()
        if len(text) > SIZE - _HEAD.size:
            text = json.dumps(asdict(Entry(op=entry.op[:200], module=entry.module[:200], phase=entry.phase))).encode()
        _HEAD.pack_into(self._page, 0, 0, 0, 0)
        self._page[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._page, 0, 1, time.monotonic_ns(), len(text))

    def end(self) -> None:
        """It came back."""
        _, since, length = _HEAD.unpack_from(self._page, 0)
        _HEAD.pack_into(self._page, 0, 0, since, length)

    def read(self) -> Glimpse:
        """What was last begun."""
        running, since, length = _HEAD.unpack_from(self._page, 0)
        try:
            entry = Entry(**json.loads(self._page[_HEAD.size : _HEAD.size + length])) if length else Entry()
        except ValueError:  # seen while it was written
            return Glimpse(entry=Entry(), running=False, running_s=0.0)
        return Glimpse(
            entry=entry, running=bool(running), running_s=(time.monotonic_ns() - since) / 1e9 if running else 0.0
        )
