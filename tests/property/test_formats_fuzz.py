"""Files of every format, cut, flipped, spliced and filled with odd values: read or refused, in little memory."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from damage import FORMATS, ODD, PACKED, SMALL, TABLES, survives
from exports import ascend_trace, xla_trace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.trace.read import kineto
from ridgeline.trace.read import readers as reading

every = pytest.mark.parametrize("format", FORMATS)
places = st.floats(0, 1, exclude_max=True)
KEYS = ("ph", "name", "pid", "tid", "ts", "dur", "args")
CELLS: list[Any] = [
    None, -1, 0, 2**62, 2**63 - 1, -(2**63), 1.5, float("inf"), "", "x", "1e999", b"\xff\x00", "9" * 400,
]  # fmt: skip
TEXTS = ("", "nan", "-1", "1e999", "9" * 400, '"', "ms", "x" * 10_000, "\0")
fixtures = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)


@pytest.mark.parametrize("format", FORMATS)
def test_the_files_are_whole(format: str) -> None:
    """What is damaged below is good before: every format gives spans, packed and not."""
    for name, content in (FORMATS[format], PACKED[format]):
        line = survives(content, name, bounded=True)
        assert line is not None
        assert len(line) > 3


@every
@given(at=places, packed=st.booleans())
@fixtures
def test_cut_anywhere(format: str, at: float, packed: bool) -> None:
    name, content = (PACKED if packed else FORMATS)[format]
    survives(content[: int(at * len(content))], name, bounded=True)


@every
@given(flips=st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=12), packed=st.booleans())
@fixtures
def test_flipped_bytes(format: str, flips: list[tuple[float, int]], packed: bool) -> None:
    name, content = (PACKED if packed else FORMATS)[format]
    damaged = bytearray(content)
    for at, byte in flips:
        damaged[int(at * len(damaged))] = byte
    survives(bytes(damaged), name, bounded=True)


@every
@given(one=places, other=places, length=st.integers(1, 400))
@fixtures
def test_pieces_in_the_wrong_place(format: str, one: float, other: float, length: int) -> None:
    """A piece is written over another, so that lengths, offsets and braces no longer fit."""
    name, content = FORMATS[format]
    source, target = int(one * len(content)), int(other * len(content))
    piece = content[source : source + length]
    survives(content[:target] + piece + content[target + len(piece) :], name, bounded=True)
    survives(content[:target] + piece + content[target:], name, bounded=True)


@pytest.mark.parametrize("make", [ascend_trace, xla_trace], ids=["Ascend", "XLA"])
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from(KEYS), st.sampled_from(ODD)),
        min_size=1,
        max_size=6,
    )
)
@fixtures
def test_odd_values_in_other_dialects(make: Any, changes: list[tuple[int, str, Any]]) -> None:
    trace = make()
    events = trace if isinstance(trace, list) else trace["traceEvents"]
    for place, key, value in changes:
        events[place % len(events)][key] = deepcopy(value)
    survives(json.dumps(trace).encode())


@given(
    changes=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.sampled_from(CELLS)), max_size=8),
    lost=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=3),
)
@fixtures
def test_odd_cells_and_missing_columns_of_a_database(
    changes: list[tuple[int, int, Any]], lost: list[tuple[int, int]]
) -> None:
    """Versions of Nsight Systems differ in their columns, and SQLite lets any cell hold anything."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.sqlite"
        path.write_bytes(FORMATS["Nsight Systems"][1])
        base = sqlite3.connect(path)
        tables = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table, column, value in changes:
            name = tables[table % len(tables)]
            columns = [row[1] for row in base.execute(f"PRAGMA table_info({name})")]
            with suppress(sqlite3.IntegrityError):  # a key takes only numbers
                base.execute(f'UPDATE {name} SET "{columns[column % len(columns)]}" = ? WHERE rowid % 2', (value,))
        for table, column in lost:
            name = tables[table % len(tables)]
            columns = [row[1] for row in base.execute(f"PRAGMA table_info({name})")]
            if len(columns) > 1:
                try:
                    base.execute(f'ALTER TABLE {name} DROP COLUMN "{columns[column % len(columns)]}"')
                except sqlite3.OperationalError:  # a key cannot be dropped
                    base.execute(f"DROP TABLE {name}")
                    tables.remove(name)
        base.commit()
        base.close()
        survives(path.read_bytes(), "t.sqlite", bounded=True)


@pytest.mark.parametrize("table", [*TABLES, "Ascend table"])
@given(
    changes=st.lists(
        st.tuples(places, places, st.sampled_from(TEXTS)),
        min_size=1,
        max_size=6,
    ),
    cut=places,
)
@fixtures
def test_odd_cells_of_tables(table: str, changes: list[tuple[float, float, str]], cut: float) -> None:
    text = (TABLES.get(table) or FORMATS[table][1]).decode()
    rows = list(csv.reader(io.StringIO(text)))
    for row, column, value in changes:
        cells = rows[int(row * len(rows))]
        if cells:
            cells[int(column * len(cells))] = value
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    damaged = out.getvalue().encode()
    for content in (damaged, damaged[: int(cut * len(damaged))]):
        if table in TABLES:
            survives(SMALL, beside=content)
        else:
            survives(content, FORMATS[table][0], bounded=True)


class TestTheTests:
    """What these tests would say of a reader that is not careful."""

    def test_another_exception_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def careless(source: Any) -> Any:
            raise KeyError("ts")

        readers = (reading.Reader(name="x", recognises=kineto.recognises, read=careless),)
        monkeypatch.setattr(reading, "READERS", readers)
        with pytest.raises(KeyError):
            survives(SMALL)

    def test_memory_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def greedy(source: Any) -> Any:
            bytearray(200 * 2**20)
            return kineto.read(source)

        readers = (reading.Reader(name="x", recognises=kineto.recognises, read=greedy),)
        monkeypatch.setattr(reading, "READERS", readers)
        with pytest.raises(AssertionError, match="bytes for a file of"):
            survives(SMALL, bounded=True)
