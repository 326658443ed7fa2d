"""What goes between the process that asks and those that touch the device: jobs and answers, pickled on a pipe."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

from ridgeline.runtime.bringup.findings import BringUp
from ridgeline.runtime.bringup.observations import Rates
from ridgeline.runtime.bringup.target import Target

LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An attempt: from which part and position on, with what is known so far; without a target only faults are named.

    healed    ops and signatures that the host computes, since they ended an earlier attempt
    personality    whose arithmetic the fake device has
    only      kinds of parts; empty: all of them
    rates     what is possible on the chip, for the speed of its ops; graph_breaks: ask dynamo too
    cwd       the folder of whoever asks, and the modules that it finds (paths)
    """

    target: Target | None = None
    device: str = ""
    journal: str = ""
    found: BringUp | None = None
    at: int = 0
    position: int = 0
    room: int = 0
    seed: int = 0
    faults: str = ""
    fault: str = ""
    folder: str = ""
    healed: frozenset[str] = frozenset()
    only: tuple[str, ...] = ()
    rates: Rates | None = None
    graph_breaks: bool = False
    cwd: str = ""
    paths: tuple[str, ...] = ()
    personality: str = ""


def put(stream: BinaryIO, value: Any) -> None:
    """Write one value."""
    payload = pickle.dumps(value)
    stream.write(LENGTH.pack(len(payload)) + payload)
    stream.flush()


def take(stream: BinaryIO) -> Any:
    """Read one value; None at the end."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    payload = stream.read(length)
    return pickle.loads(payload) if len(payload) == length else None
