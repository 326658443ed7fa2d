"""What a process is about to do on a device, where another process can read it after it died.

journal.begin(entry)    before an op runs: its name, module, phase, format
journal.end()           it came back
journal.read()          the last entry, whether it is still running, and since when
"""

from __future__ import annotations

import json
import mmap
import time
from dataclasses import asdict, dataclass
from pathlib import Path

SIZE = 16384
TURN, SINCE, LENGTH, HEAD = 0, 1, 2, 3  # words: odd while an op runs; ns of the monotonic clock; bytes of the entry


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
    """A page of shared memory behind a file; its turn is one more before anything else is written, and after."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            page = memoryview(mmap.mmap(file.fileno(), SIZE))
        self._words, self._text = page.cast("Q"), page[HEAD * 8 :]

    def begin(self, entry: Entry) -> None:
        """Say what runs from now on."""
        text = json.dumps(asdict(entry)).encode()
        if len(text) > len(self._text):
            text = json.dumps(asdict(Entry(op=entry.op[:200], module=entry.module[:200], phase=entry.phase))).encode()
        self.end()
        self._text[: len(text)] = text
        self._words[SINCE], self._words[LENGTH] = time.monotonic_ns(), len(text)
        self._words[TURN] += 1

    def end(self) -> None:
        """It came back."""
        if self._words[TURN] % 2:
            self._words[TURN] += 1

    def read(self) -> Glimpse:
        """What was last begun; nothing runs where the page changes while it is read."""
        turn, since, length = self._words[TURN], self._words[SINCE], self._words[LENGTH]
        text = bytes(self._text[:length])
        running = bool(turn % 2) and self._words[TURN] == turn
        try:
            entry = Entry(**json.loads(text)) if text else Entry()
        except ValueError:  # between two ops
            entry = Entry()
        return Glimpse(entry=entry, running=running, running_s=(time.monotonic_ns() - since) / 1e9 if running else 0.0)
