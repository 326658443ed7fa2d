"""Turn an SQLite database into columns, by the profiler whose tables it has: Nsight Systems, msprof, or rocprofv3.

The file is hostile input: it is opened read-only and immutable, only real tables are read (no views or virtual tables,
which could run whatever their author liked), and the texts in it are never used as SQL.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from ridgeline.core.units import BINARY
from ridgeline.trace.read import msprof_database, nsys, rocpd
from ridgeline.trace.read.join import TracePart
from ridgeline.trace.read.nsys_tables import BROKEN
from ridgeline.trace.read.source import Source, refuse
from ridgeline.trace.read.sqlite_rows import tables_of

FORMATS: Mapping[str, tuple[Callable[[frozenset[str]], bool], Callable[[Source, sqlite3.Connection], TracePart]]] = {
    msprof_database.FORMAT: (msprof_database.recognises, msprof_database.read),
    rocpd.FORMAT: (rocpd.recognises, rocpd.read),
}
"""By name: whether these are its tables, and its reader. Every other database is taken for an export of nsys."""
FORMAT = ", ".join((nsys.FORMAT, *FORMATS))
MAGIC = b"SQLite format 3\0"
LARGEST_VALUE = int(16 * BINARY["Mi"])  # bytes of one value SQLite may build


def recognises(head: bytes) -> bool:
    """Whether a file begins like an SQLite database."""
    return head.startswith(MAGIC)


def read(source: Source) -> TracePart:
    """One database as columns; an `InputError` when it is nobody's, or holds no work."""
    with source.unpacked_file() as path:
        try:
            with closing(open_sqlite(path)) as base:
                names = frozenset(tables_of(base))
                reader = next((read for knows, read in FORMATS.values() if knows(names)), nsys.read)
                return reader(source, base)
        except BROKEN as wrong:
            why = source.damage or str(wrong)
            raise refuse(
                source.path, f"an SQLite database that cannot be read ({why})", FORMAT, "export or fetch it again"
            ) from None


def open_sqlite(path: Path) -> sqlite3.Connection:
    """A database that nobody can change, and that can reach nothing else."""
    base = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    base.text_factory = lambda raw: raw.decode("utf-8", "replace")
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
    base.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    for setting in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON", "mmap_size = 0"):
        base.execute(f"PRAGMA {setting}")
    return base
