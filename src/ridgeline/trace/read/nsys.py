"""Turn a SQLite export of Nsight Systems into columns (`nsys_tables` reads the rows, `nsys_names` names them).

A chip is one device of one process, and a rank of its own; ranks are numbered by device, then by process. Threads are
the streams of the host process they belong to. A range that PyTorch's `emit_nvtx` wrote (it ends in `op_id = …`) is a
host op, any other an annotation, and so a step where it is named like one, see `mark_steps`.

The file is hostile input: it is opened read-only and immutable, and the texts in it are never used as SQL.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from ridgeline.core.units import BINARY
from ridgeline.trace.read import nsys_tables
from ridgeline.trace.read.join import TracePart
from ridgeline.trace.read.nsys_names import named
from ridgeline.trace.read.nsys_tables import BROKEN, NsysExport
from ridgeline.trace.read.source import Source, refuse

FORMAT = nsys_tables.FORMAT
MAGIC = b"SQLite format 3\0"
LARGEST_VALUE = int(16 * BINARY["Mi"])  # bytes of one value SQLite may build


def recognises(head: bytes) -> bool:
    """Whether a file begins like an SQLite database."""
    return head.startswith(MAGIC)


def read(source: Source) -> TracePart:
    """One export as columns; an `InputError` when the database is no export or holds no work."""
    with source.unpacked() as path:
        try:
            with closing(_opened(path)) as base:
                export = NsysExport(source, base)
                export.collect()
                return named(export)
        except BROKEN as wrong:
            why = source.damage or str(wrong)
            raise refuse(
                source.path, f"an SQLite database that cannot be read ({why})", FORMAT, "export or fetch it again"
            ) from None


def _opened(path: Path) -> sqlite3.Connection:
    base = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    base.text_factory = lambda raw: raw.decode("utf-8", "replace")
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
    base.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    for setting in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON", "mmap_size = 0"):
        base.execute(f"PRAGMA {setting}")
    return base
