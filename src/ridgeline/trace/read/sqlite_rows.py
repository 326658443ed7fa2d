"""Turn a real table of an SQLite database into batches of whole numbers, whatever its author put into it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence

import numpy as np

from ridgeline.trace.arrays import Longs

BATCH = 50_000  # rows fetched at a time
LARGEST = 2**62  # nanoseconds and ids: what is beyond is none
LONGEST = 4096  # characters of a text
NONE = -1
_NAME = re.compile(r"^[A-Za-z_][\w-]{0,127}$")


def tables_of(base: sqlite3.Connection) -> list[str]:
    """Names of the real tables: views and virtual tables have no page of their own."""
    tables = base.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0").fetchall()
    return [name for (name,) in tables if isinstance(name, str) and _NAME.match(name)]


def columns_of(base: sqlite3.Connection, table: str) -> list[str]:
    """Names of the stored columns of a table; computed ones are left out."""
    return [row[1] for row in base.execute(f'PRAGMA table_info("{table}")') if _NAME.match(str(row[1]))]


def numbers_in(base: sqlite3.Connection, table: str, columns: Sequence[str]) -> Iterator[tuple[Longs, ...]]:
    """Batches of a table's columns as whole numbers; `NONE` for what is none, and for a column that is not there."""
    known_columns = set(columns_of(base, table))
    columns_text = ", ".join(
        f'CASE WHEN typeof("{column}") = \'integer\' AND abs("{column}") < {LARGEST} THEN "{column}" ELSE {NONE} END'
        if column in known_columns
        else str(NONE)
        for column in columns
    )
    cursor = base.execute(f'SELECT {columns_text} FROM "{table}"')
    while batch := cursor.fetchmany(BATCH):
        rows = np.array(batch, np.int64).reshape(-1, len(columns))
        yield tuple(np.ascontiguousarray(column) for column in rows.T)


def texts_in(base: sqlite3.Connection, table: str, key: str, *texts: str) -> dict[int, str]:
    """Texts of a table by id: the first of these columns that is there."""
    known_columns = columns_of(base, table)
    column = next((text for text in texts if text in known_columns), None)
    if column is None or key not in known_columns:
        return {}
    text = f'CAST(substr("{column}", 1, {LONGEST}) AS TEXT)'
    cursor = base.execute(f'SELECT "{key}", {text} FROM "{table}" WHERE typeof("{key}") = \'integer\'')
    return {int(id): text or "" for id, text in cursor}
