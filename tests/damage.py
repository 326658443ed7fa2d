"""Damage trace files, and see that what comes of it is read or refused: no other exception, never much memory."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from exports import DETAILS, NODES, RAW, ascend_trace, chakra, details_page, nsys, xla_trace
from traces import Recipe, make

from ridgeline.core.encode import to_json
from ridgeline.core.errors import InputError
from ridgeline.trace import Timeline
from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.read.readers import read_timeline

ROOM = 96 * 2**20  # bytes that reading and analysing a small file may take, whatever it says about itself
ODD: list[Any] = [
    None, True, -1, 0, 2**31, 2**63, 2**200, -(2**70), 1e308, "", "NaN", "7", "nan", "1e400", [], {}, [[1]],
    {"a": {"b": []}}, "\ud83d",
]  # fmt: skip


def survives(
    content: bytes, name: str = "t.json", *, bounded: bool = False, beside: bytes | None = None
) -> Timeline | None:
    """Read, and analyse what was read; None when it was refused. ``beside`` is a table of counters."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        counters = None
        if beside is not None:
            counters = Path(folder) / "counters.csv"
            counters.write_bytes(beside)
        if bounded:
            tracemalloc.start()
        try:
            line = read_timeline(path)
            json.dumps(to_json(analyze(line, counters=counters)), allow_nan=False)
        except InputError:
            return None
        finally:
            if bounded:
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert peak < ROOM, f"{peak:,} bytes for a file of {len(content):,}"
    assert len(line) == 0 or int(line.durations_ns().min()) >= 0
    return line


def _sqlite() -> bytes:
    with TemporaryDirectory() as folder:
        return nsys(Path(folder) / "t.sqlite").read_bytes()


SMALL = json.dumps(make(Recipe(layers=2, steps=1, world=2))).encode()
FORMATS: dict[str, tuple[str, bytes]] = {
    "Kineto": ("t.json", SMALL),
    "Nsight Systems": ("t.sqlite", _sqlite()),
    "Ascend trace": ("trace_view.json", json.dumps(ascend_trace()).encode()),
    "Ascend table": ("kernel_details.csv", DETAILS.encode()),
    "Chakra": ("t.et", chakra(*NODES)),
    "XLA": ("t.json", json.dumps(xla_trace()).encode()),
}
"""A small file of every format that is read, by its name."""
PACKED = {format: (f"{name}.gz", gzip.compress(content, mtime=0)) for format, (name, content) in FORMATS.items()}
TABLES = {"raw page": RAW.encode(), "details page": details_page().encode()}
"""Counters of Nsight Compute, in both forms."""
