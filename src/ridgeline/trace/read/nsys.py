"""Turn a SQLite export of Nsight Systems into columns (`nsys_tables` reads the rows, `nsys_names` names them).

A chip is one device of one process, and a rank of its own; ranks are numbered by device, then by process. Threads are
the streams of the host process they belong to. A range that PyTorch's `emit_nvtx` wrote (it ends in `op_id = …`) is a
host op, any other an annotation, and so a step where it is named like one, see `mark_steps`.

The file is hostile input: `sqlite_files` opens it, and the texts in it are never used as SQL.
"""

from __future__ import annotations

import sqlite3

from ridgeline.trace.read import nsys_tables
from ridgeline.trace.read.join import TracePart
from ridgeline.trace.read.nsys_names import name_columns
from ridgeline.trace.read.nsys_tables import NsysExport
from ridgeline.trace.read.source import Source

FORMAT = nsys_tables.FORMAT


def read(source: Source, base: sqlite3.Connection) -> TracePart:
    """An open export as columns; an `InputError` when it holds no work."""
    export = NsysExport(source, base)
    export.collect()
    return name_columns(export)
