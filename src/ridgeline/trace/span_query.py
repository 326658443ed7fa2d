"""Turn traces into tables that SQL, pandas or any other program can ask: one row a span, one a change of a counter.

    spans      id, rank, process, stream, name, kind, class, group_, step, start_us, end_us, duration_us, launch_id,
               op_id, op, bytes, operands, types, collective, elements, ranks
    counters   process, name, time_us, value

SQL runs in SQLite, in memory, on a copy of what was read. It is asked by people and by programs that people let ask,
so it can only read: everything but selecting is refused by an authorizer, nothing else can be attached or loaded, and
rows, bytes and time are bounded.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.units import BINARY
from ridgeline.trace.classes import built_in, launching_ops
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.read.source import Progress
from ridgeline.trace.timeline import Timeline

SCHEMA: Mapping[str, str] = {
    "id": "INTEGER PRIMARY KEY", "rank": "INTEGER", "process": "TEXT", "stream": "TEXT", "name": "TEXT", "kind": "TEXT",
    "class": "TEXT", "group_": "TEXT", "step": "INTEGER", "start_us": "REAL", "end_us": "REAL", "duration_us": "REAL",
    "launch_id": "INTEGER", "op_id": "INTEGER", "op": "TEXT", "bytes": "INTEGER", "operands": "TEXT", "types": "TEXT",
    "collective": "TEXT", "elements": "INTEGER", "ranks": "TEXT",
}  # fmt: skip
"""Columns of `spans`: id is the row of the timeline that every other output of Ridgeline speaks of; null for none."""
LARGEST_VALUE = int(16 * BINARY["Mi"])  # bytes of one value SQLite may build
BATCH = 20_000
CHECKED = 10_000  # instructions between looks at the clock
READS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
FORBIDDEN = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "zeroblob", "randomblob"})
MOST_ROWS, MOST_SECONDS = 1_000_000, 3600.0
ALL_SPANS = "SELECT * FROM spans"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswer:
    """Rows of an answer; ``truncated`` where there were more than were asked for.

    total      rows in all, where that is known: of all spans
    draws_s    seconds that are left to print the rows in
    """

    sql: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    truncated: bool
    warnings: tuple[str, ...] = ()
    """What is doubtful about the trace as it was read."""
    total: int | None = None
    draws_s: float = MOST_SECONDS

    JSON = "kind='query' * -draws_s -total total?"

    def frame(self) -> Any:
        """The same as a pandas DataFrame; pandas must be installed."""
        from pandas import DataFrame  # type: ignore[import-not-found, import-untyped, unused-ignore]

        return DataFrame(self.rows, columns=list(self.columns))


def query(
    *traces: Path | str | Timeline,
    sql: str = "",
    limit: int = 10_000,
    seconds: float = 60.0,
    unit: str | None = None,
    progress: Progress | None = None,
) -> QueryAnswer:
    """Ask traces, or one timeline, in SQL: at most ``limit`` rows, found and printed within ``seconds``.

    sql   absent: all spans

    >>> from ridgeline.trace.timeline import Span
    >>> span = Span(process="chip 0", stream="7", name="gemm", kind="kernel", start_ns=0, duration_ns=2000)
    >>> line = Timeline.of([span])
    >>> query(line, sql="SELECT name, duration_us FROM spans").rows
    (('gemm', 2.0),)
    """
    if not 0 < limit <= MOST_ROWS or not 0 < seconds <= MOST_SECONDS:
        given_text = f"{limit} rows in {seconds} s"
        expected_text = f"1 to {MOST_ROWS:,} rows, up to {MOST_SECONDS:g} seconds"
        raise InputError(Problem(path="limit", given=given_text, expected=expected_text))
    lines = [trace for trace in traces if isinstance(trace, Timeline)]
    files = [trace for trace in traces if not isinstance(trace, Timeline)]
    line = lines[0] if lines else read_timeline(*files, unit=unit, progress=progress)
    with closing(_fill_database(line)) as base:
        begin = time.monotonic()
        answer = _answer_query(base, sql or ALL_SPANS, limit, seconds)
        left_s = max(0.0, seconds - (time.monotonic() - begin))
    total = len(line) if sql in ("", ALL_SPANS) else None
    return replace(answer, warnings=line.about.warnings, total=total, draws_s=left_s)


def _fill_database(line: Timeline) -> sqlite3.Connection:
    base = sqlite3.connect(":memory:")
    columns = ", ".join(f"{name} {kind}" for name, kind in SCHEMA.items())
    base.execute(f"CREATE TABLE spans ({columns})")
    base.execute("CREATE TABLE counters (process TEXT, name TEXT, time_us REAL, value REAL)")
    with base:
        base.executemany(f"INSERT INTO spans VALUES ({', '.join('?' * len(SCHEMA))})", _rows(line))
        base.executemany("INSERT INTO counters VALUES (?, ?, ?, ?)", _changes(line))
    return base


def _changes(line: Timeline) -> Iterator[tuple[str, str, float, float]]:
    for counter in line.counters:
        for at, value in zip(counter.times_ns.tolist(), counter.values.tolist(), strict=True):
            yield counter.process, counter.name, at / 1000, value


def _rows(line: Timeline) -> Iterator[tuple[object, ...]]:
    rules = built_in()
    groups = [rules.group_of(id) if id else None for id in line.classes]
    classes = [id or None for id in line.classes]
    op = np.full(len(line), -1, np.int32)
    work = np.flatnonzero(line.launch >= 0)
    op[work] = launching_ops(line, work)
    shapes = [(shape.words(), " ".join(shape.types)) for shape in line.detail.shapes]
    ranks = line.rank
    for first in range(0, len(line), BATCH):
        part = np.arange(first, min(first + BATCH, len(line)))
        op_rows = op[part]
        shape = line.detail.shape.at(np.where(op_rows >= 0, op_rows, part))
        columns = (
            part, ranks[part], line.process[part], line.stream[part], line.name[part], line.kind[part],
            line.class_[part], line.step[part], line.start_ns[part], line.end_ns[part], line.launch[part], op_rows,
            line.detail.size_bytes.at(part), shape, line.detail.collective.at(part),
        )  # fmt: skip
        for id, rank, process, stream, name, kind, code, step, start, end, launch, above, size, operands, talk in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            collective = line.detail.collectives[talk] if talk >= 0 else None
            yield (
                id,
                rank,
                line.processes[process],
                line.streams[stream],
                line.names[name],
                line.kinds[kind],
                classes[code],
                groups[code],
                step if step >= 0 else None,
                start / 1000,
                end / 1000,
                (end - start) / 1000,
                launch if launch >= 0 else None,
                above if above >= 0 else None,
                line.names[int(line.name[above])] if above >= 0 else None,
                size if size >= 0 else None,
                *(shapes[operands] if operands >= 0 else (None, None)),
                collective.name if collective else None,
                max(collective.in_elements, collective.out_elements) if collective else None,
                collective.ranks or None if collective else None,
            )


def _answer_query(base: sqlite3.Connection, sql: str, limit: int, seconds: float) -> QueryAnswer:
    until = time.monotonic() + seconds
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
    base.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    base.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000)
    base.execute("PRAGMA query_only = ON")
    base.execute("PRAGMA trusted_schema = OFF")
    base.set_authorizer(_authorize)
    base.set_progress_handler(lambda: int(time.monotonic() > until), CHECKED)
    try:
        cursor = base.execute(sql)
        records = cursor.fetchmany(limit + 1)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as wrong:
        raise _refuse_query(sql, str(wrong), time.monotonic() > until, seconds) from None
    columns = tuple(str(column[0]) for column in cursor.description or ())
    rows = tuple(tuple(value.hex() if isinstance(value, bytes) else value for value in row) for row in records[:limit])
    return QueryAnswer(sql=sql, columns=columns, rows=rows, truncated=len(records) > limit)


def _authorize(action: int, _first: str | None, second: str | None, *_: object) -> int:
    """Reading is allowed, and every function but those that reach beyond the database or build large values."""
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FORBIDDEN:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in READS else sqlite3.SQLITE_DENY


def _refuse_query(sql: str, why: str, late: bool, seconds: float) -> InputError:
    if late:
        given_text, todo = f"a query that takes more than {seconds:g} s", "ask for less, or allow more with --seconds"
    elif "not authorized" in why or "prohibited" in why:
        given_text, todo = f"{sql[:200]!r} ({why})", "a query may only SELECT from spans and counters"
    else:
        given_text = f"{sql[:200]!r} ({why})"
        todo = f"spans has {', '.join(SCHEMA)}; counters has process, name, time_us, value"
    return InputError(Problem(path="sql", given=given_text, expected="one SELECT over spans and counters", todo=todo))
