"""Turn a SQLite export of Nsight Systems into columns: kernels, copies, runtime calls, waits and NVTX ranges.

A chip is one device of one process, and a rank of its own; ranks are numbered by device, then by process. A range that
PyTorch's `emit_nvtx` wrote (it ends in `op_id = …`) is a host op, any other an annotation. Only real tables are read.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.core.documents import JsonObject
from ridgeline.trace.read.join import Interned, RowColumns, TracePart
from ridgeline.trace.read.source import TraceSource, refuse
from ridgeline.trace.timeline import ANNOTATION, HOST, KERNEL, MEMCPY, MEMSET, OVERHEAD, RUNTIME, SYNC, Codes, Longs

FORMAT = "Nsight Systems SQLite"
BROKEN = (sqlite3.Error, UnicodeError, OverflowError)
"""What reading a damaged database raises; names of columns and messages about them may be no text at all."""
BATCH = 50_000  # rows fetched at a time
LARGEST = 2**62  # nanoseconds and ids: what is beyond is none
LONGEST = 4096  # characters of a name
THREAD = 2**24  # a global thread id is its process's id plus a number below this
ALONE = 2**33  # correlation ids of one process are below this
RANGES = (59, 60, 70, 71)  # push-pop and start-end ranges of NVTX; other events have no duration
COPIES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
WAITS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
NOT_READ = {"OSRT_API": "calls of the operating system", "CUDA_GPU_MEMORY_USAGE_EVENTS": "memory events"}
_EMITTED = re.compile(r"^(.*?)(?:, (?:seq|op_id|sizes|input_op_ids) = .*)$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteTable:
    """One table that is read: which of its columns are the name, and what its rows are."""

    name: str
    kind: str
    names: tuple[str, ...] = ()
    """Columns with ids of texts, the first that is there is taken."""
    code: str = ""
    """Column whose number stands for a name of this module's tables."""


WORK = (
    SqliteTable(name="CUPTI_ACTIVITY_KIND_KERNEL", kind=KERNEL, names=("demangledName", "shortName", "mangledName")),
    SqliteTable(name="CUPTI_ACTIVITY_KIND_MEMCPY", kind=MEMCPY, code="copyKind"),
    SqliteTable(name="CUPTI_ACTIVITY_KIND_MEMSET", kind=MEMSET),
    SqliteTable(name="CUPTI_ACTIVITY_KIND_GRAPH_TRACE", kind=KERNEL),
    SqliteTable(name="CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", kind=SYNC, code="syncType"),
)
CALLS = (
    SqliteTable(name="CUPTI_ACTIVITY_KIND_RUNTIME", kind=RUNTIME, names=("nameId",)),
    SqliteTable(name="PROFILER_OVERHEAD", kind=OVERHEAD, names=("nameId",)),
)
FIXED = {MEMCPY: "Memcpy", MEMSET: "Memset", SYNC: "Synchronize", KERNEL: "CUDA graph", OVERHEAD: "profiler"}
"""Names of rows whose table has no texts."""


class NsysExport:
    """Reads one open database."""

    def __init__(self, source: TraceSource, base: sqlite3.Connection) -> None:
        self.source, self.base, self.rows = source, base, RowColumns()
        self.tables = self._tables()
        self.chips: Interned[tuple[int, int]] = Interned()
        self.hosts: Interned[int] = Interned()
        self.streams: Interned[tuple[str, int]] = Interned()
        self.texts: Interned[tuple[str, int | str]] = Interned()
        self.broken = ""
        self.only = self._only_process()

    def collect(self) -> None:
        """Read every table; an `InputError` when none has a span."""
        self._need_work()
        for table in WORK:
            self._read_guarded(self._work, table)
        for table in CALLS:
            self._read_guarded(self._calls, table)
        self._read_guarded(self._ranges)
        if not self.rows.count:
            given_text = f"an export without spans{f' ({self.broken})' if self.broken else ''}"
            todo = "was anything running while the profiler was on?"
            raise refuse(self.source.path, given_text, "kernels, copies or calls of the runtime", todo)

    # -- the schema ---------------------------------------------------------------------------------------------------

    def _tables(self) -> dict[str, frozenset[str]]:
        """Columns of every table that is one: views and virtual tables have no page, computed columns are not told."""
        tables = self.base.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0").fetchall()
        read_tables = {table.name for table in (*WORK, *CALLS)} | set(NOT_READ) | {
            "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU", "PROCESSES", "ThreadNames", "META_DATA_EXPORT",
            "TARGET_INFO_SESSION_START_TIME",
        }  # fmt: skip
        present = read_tables & {name for (name,) in tables}
        return {
            name: frozenset(row[1] for row in self.base.execute(f"PRAGMA table_info({name})"))
            for name in sorted(present)
        }

    def _only_process(self) -> int:
        """The one process that makes calls, 0 when there are several: whose work it is in tables that do not say."""
        if "globalTid" not in self.tables.get("CUPTI_ACTIVITY_KIND_RUNTIME", frozenset()):
            return 0
        tid = _number("globalTid")
        try:
            ends = self.base.execute(f"SELECT min({tid}), max({tid}) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()
        except BROKEN:
            return 0
        low, high = (int(end or 0) - int(end or 0) % THREAD for end in ends)
        return low if low == high else 0

    def _need_work(self) -> None:
        if any(table.name in self.tables for table in (*WORK, *CALLS)) or "NVTX_EVENTS" in self.tables:
            return
        raise refuse(
            self.source.path, "an SQLite database without tables of Nsight Systems", FORMAT,
            "write one with: nsys export --type sqlite REPORT.nsys-rep",
        )  # fmt: skip

    def _read_guarded(self, reading: Callable[..., None], *table: SqliteTable) -> None:
        """Read one table; where the file is damaged keep what came before and say so."""
        try:
            reading(*table)
        except BROKEN as wrong:
            self.broken = str(wrong)
            name = table[0].name if table else "NVTX_EVENTS"
            self.rows.warnings.append(f"{name} is damaged ({wrong}); the rows before that are kept")

    # -- rows ---------------------------------------------------------------------------------------------------------

    def select(self, table: str, columns: Sequence[str]) -> Iterator[list[tuple[Any, ...]]]:
        """Rows of a table a batch at a time; a column it does not have is 0."""
        have = self.tables.get(table)
        if have is None:
            return
        columns_text = ", ".join(_number(column) if column in have else "0" for column in columns)
        cursor = self.base.execute(f"SELECT {columns_text} FROM {table}")
        while batch := cursor.fetchmany(BATCH):
            yield batch
            if self.rows.full:
                self.rows.warnings.append("more rows than can be kept; the rest of the file was not read")
                return

    def _timed_rows(self, table: SqliteTable, columns: Sequence[str]) -> Iterator[Longs]:
        """Rows with times that make sense, as a matrix: start, end, then the columns."""
        if not {"start", "end"} <= self.tables.get(table.name, frozenset()):
            return
        for batch in self.select(table.name, ("start", "end", *columns)):
            rows = np.array(batch, np.int64)
            good = (rows[:, 0] >= 0) & (rows[:, 1] >= rows[:, 0]) & (rows[:, 1] < LARGEST)
            self.rows.dropped[f"rows of {table.name} without a readable time"] += int((~good).sum())
            if good.any():
                yield rows[good]

    def _work(self, table: SqliteTable) -> None:
        have = self.tables.get(table.name, frozenset())
        name = next((column for column in table.names if column in have), table.code)
        columns = ("deviceId", "streamId", "correlationId", "globalPid", name or "start", "bytes")
        kind = self.rows.kinds[table.kind]
        for rows in self._timed_rows(table, columns):
            device, stream, correlation, pid = rows[:, 2], rows[:, 3], rows[:, 4], rows[:, 5]
            if "globalPid" not in have:
                pid = np.full(len(rows), self.only, np.int64)
            if "bytes" in have:
                has_size = np.flatnonzero((rows[:, 7] > 0) & (rows[:, 7] < LARGEST))
                self.rows.sizes.rows += (has_size + self.rows.count).tolist()
                self.rows.sizes.values += rows[has_size, 7].tolist()
            chips = [self.chips[pair] for pair in zip(pid.tolist(), device.tolist(), strict=True)]
            self.rows.add(
                rows[:, 0],
                duration=rows[:, 1] - rows[:, 0],
                process=chips,
                stream=[self.streams["stream", number] for number in stream.tolist()],
                name=self._names(table, rows[:, 6]),
                kind=kind,
                correlation=self._correlation(correlation, pid),
            )

    def _names(self, table: SqliteTable, given: Longs) -> list[int]:
        if table.names:
            return [self.texts["id", id_] for id_ in given.tolist()]
        words = COPIES if table.kind == MEMCPY else WAITS if table.kind == SYNC else {}
        prefix = FIXED[table.kind]
        return [self._text(f"{prefix} {words[code]}" if code in words else prefix) for code in given.tolist()]

    def _text(self, text: str) -> int:
        """The code of a text that does not stand in the table of texts."""
        return self.texts["text", text]

    def _correlation(self, correlation: Longs, pid: Longs) -> Longs:
        """Ids are unique within a process only: those of several are kept apart."""
        process = np.array([self.hosts[pid_] for pid_ in pid.tolist()], np.int64)
        good = (correlation > 0) & (correlation < ALONE)
        return np.where(good, correlation + process * ALONE, 0)

    def _calls(self, table: SqliteTable) -> None:
        kind = self.rows.kinds[table.kind]
        for rows in self._timed_rows(table, ("globalTid", "nameId", "correlationId")):
            tid = rows[:, 2]
            pid = tid - tid % THREAD
            self.rows.add(
                rows[:, 0],
                duration=rows[:, 1] - rows[:, 0],
                process=self._host(pid),
                stream=[self.streams["thread", thread] for thread in tid.tolist()],
                name=[self.texts["id", row] for row in rows[:, 3].tolist()],
                kind=kind,
                correlation=self._correlation(rows[:, 4], pid) if table.kind == RUNTIME else 0,
            )

    def _host(self, pid: Longs) -> Longs:
        """Codes of host processes: negative until the chips are numbered, which come first."""
        return -1 - np.array([self.hosts[pid_] for pid_ in pid.tolist()], np.int64)

    def _ranges(self) -> None:
        have = self.tables.get("NVTX_EVENTS", frozenset())
        if not {"start", "globalTid"} <= have:
            return
        text = f"CASE WHEN typeof(text) = 'text' THEN substr(text, 1, {LONGEST}) END" if "text" in have else "NULL"
        columns = ("start", "end", "eventType", "globalTid", "textId")
        columns_text = ", ".join(_number(column) if column in have else "0" for column in columns)
        cursor = self.base.execute(f"SELECT {columns_text}, {text} FROM NVTX_EVENTS")
        while (batch := cursor.fetchmany(BATCH)) and not self.rows.full:
            ranges = [row for row in batch if row[2] in RANGES]
            self.rows.dropped["NVTX marks and names"] += len(batch) - len(ranges)
            good = [row for row in ranges if 0 <= row[0] <= row[1] < LARGEST]
            self.rows.dropped["NVTX ranges never ended"] += len(ranges) - len(good)
            if good:
                self._add_ranges(good)

    def _add_ranges(self, ranges: Sequence[tuple[Any, ...]]) -> None:
        numbers = np.array([row[:5] for row in ranges], np.int64)
        tid = numbers[:, 3]
        labels = [self._range(row[5], row[4]) for row in ranges]
        self.rows.add(
            numbers[:, 0],
            duration=numbers[:, 1] - numbers[:, 0],
            process=self._host(tid - tid % THREAD),
            stream=[self.streams["thread", thread] for thread in tid.tolist()],
            name=[name for name, _ in labels],
            kind=[kind for _, kind in labels],
        )

    def _range(self, text: str | None, id: int) -> tuple[int, int]:
        """Name and kind of a range: those of `emit_nvtx` lose their numbers and are host ops."""
        if text is None:
            return self.texts["id", id], self.rows.kinds[ANNOTATION]
        match = _EMITTED.match(text)
        return self._text(match[1] if match else text), self.rows.kinds[HOST if match else ANNOTATION]

    def warn(self) -> None:
        """Count what is not read, and say what was lost."""
        if self.source.damage:
            self.rows.warnings.insert(0, f"{self.source.damage}; what could be read before that is kept")
        for table, what in NOT_READ.items():
            if table in self.tables:
                self.rows.dropped[what] += int(self.base.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        lost = sum(count for what, count in self.rows.dropped.items() if "without a readable time" in what)
        if lost:
            self.rows.warnings.append(f"{lost:,} rows without a readable time are left out")


def _number(column: str) -> str:
    """A column of this module as a whole number, whatever stands in the file; -1 where it is empty."""
    return f'coalesce(CAST("{column}" AS INTEGER), -1)'


NUMBER = 2**24  # a process's or thread's own number, within its global id
_VERSION = re.compile(r"_v\d{3,6}$")  # of the interface of a runtime call: cudaLaunchKernel_v7000


def read(source: TraceSource, base: sqlite3.Connection) -> TracePart:
    """An open export as columns; an `InputError` when it holds no work."""
    export = NsysExport(source, base)
    export.collect()
    chips, processes, ranks, process_codes = _processes(export)
    gpus = _gpus(export)
    names = tuple(gpus.get(device, ("", 0))[0] for _, device in chips)
    properties: JsonObject = _facts(export)
    if any(names):
        properties["deviceProperties"] = [
            {"id": device, "name": gpus[device][0], "totalGlobalMem": gpus[device][1]}
            for _, device in chips
            if device in gpus
        ]
    texts = {"processes": processes, "streams": _streams(export), "names": _texts(export)}
    export.warn()
    part = export.rows.part(
        source.name, FORMAT, chips=filter(None, names), ranks=ranks, properties=properties, texts=texts
    )
    return replace(part, process=process_codes[part.process])


def _processes(export: NsysExport) -> tuple[list[tuple[int, int]], list[str], tuple[int, ...], Codes]:
    """Chips in the order of their ranks, all process names, their ranks, and the code of every code so far.

    Codes so far: a chip's place in the order it was met, or -1 less the place of a host process.
    """
    kernels = export.rows.column("kind") == export.rows.kinds[KERNEL]
    process = export.rows.column("process").astype(np.int64)
    busy = {int(code) for code in np.unique(process[kernels])} if kernels.any() else set(range(len(export.chips)))
    met = list(export.chips)
    order = sorted((pid, device) for place, (pid, device) in enumerate(met) if place in busy or not busy)
    order.sort(key=lambda chip: chip[1])
    rank = {chip: place for place, chip in enumerate(order)}
    home = {pid: chip for chip in reversed(order) for pid in (chip[0],)}
    hosts = list(export.hosts)
    shared = len({device for _, device in order}) < len(order)
    labels = _labels(export)
    processes = [f"chip {device}{f' of process {pid // NUMBER % NUMBER}' if shared else ''}" for pid, device in order]
    processes += [f"host {labels.get(pid, pid // NUMBER % NUMBER)}" for pid in hosts]
    ranks = [*range(len(order)), *(rank[home[pid]] if pid in home else 0 for pid in hosts)]
    process_codes = np.zeros(len(met) + len(hosts), np.int32)
    for place, chip in enumerate(met):  # waits are told of a device the process does no work on: its own chip is meant
        home_chip = chip if chip in rank else home.get(chip[0], order[0] if order else chip)
        process_codes[place] = rank.get(home_chip, 0)
    for place in range(len(hosts)):
        process_codes[-1 - place] = len(order) + place
    if not order:  # a file without work: only hosts
        return [], processes, tuple(ranks), process_codes
    counts: Tally[str] = Tally()
    for place, name in enumerate(processes):  # a number behind one that was there before
        counts[name] += 1
        processes[place] = name if counts[name] == 1 else f"{name} ({counts[name]})"
    return order, processes, tuple(ranks), process_codes


def _labels(export: NsysExport) -> dict[int, str]:
    pairs = _pairs(export, "PROCESSES", "globalPid", "name")
    return {pid: f"{pid // NUMBER % NUMBER} {name[:60]}" for pid, name in pairs if pid in export.hosts}


def _pairs(export: NsysExport, table: str, id: str, text: str) -> Iterator[tuple[int, str]]:
    """A number and a text of every row of a table that has both."""
    if not {id, text} <= export.tables.get(table, frozenset()):
        return
    try:
        yield from export.base.execute(
            f"SELECT CAST({id} AS INTEGER), substr({text}, 1, {LONGEST}) FROM {table} "
            f"WHERE typeof({text}) = 'text' AND typeof({id}) = 'integer'"
        )
    except BROKEN as wrong:
        export.rows.warnings.append(f"{table} is damaged ({wrong}); some names are missing")


def _texts(export: NsysExport) -> list[str]:
    code_of_id = {id: code for (sort, id), code in export.texts.items() if sort == "id"}
    texts = [str(text) if sort == "text" else f"name {text}" for sort, text in export.texts]
    for id, text in _pairs(export, "StringIds", "id", "value"):
        if id in code_of_id:
            texts[code_of_id[id]] = _VERSION.sub("", text)
    return texts


def _select(export: NsysExport, table: str, needs: set[str], sql: str) -> list[tuple[Any, ...]]:
    """Rows of a query; none where the table lacks a column it needs, or is damaged."""
    if not needs <= export.tables.get(table, frozenset()):
        return []
    try:
        return export.base.execute(sql).fetchall()
    except BROKEN:
        return []


def _streams(export: NsysExport) -> list[str]:
    sql = "SELECT CAST(globalTid AS INTEGER), CAST(nameId AS INTEGER) FROM ThreadNames"
    rows = _select(export, "ThreadNames", {"globalTid", "nameId"}, sql)
    thread_names = {tid: id for tid, id in rows if ("thread", tid) in export.streams}
    wanted = set(thread_names.values())
    ids = {id: text for id, text in _pairs(export, "StringIds", "id", "value") if id in wanted} if wanted else {}
    streams = []
    for kind, number in export.streams:
        if kind == "stream":
            streams.append(f"stream {number}" if 0 <= number < 2**32 - 1 else "all streams")
        else:
            streams.append(f"thread {number % NUMBER} {ids.get(thread_names.get(number, -1), '')[:60]}".strip())
    return streams


def _gpus(export: NsysExport) -> dict[int, tuple[str, int]]:
    has_memory = "totalMemory" in export.tables.get("TARGET_INFO_GPU", frozenset())
    memory = "CAST(totalMemory AS INTEGER)" if has_memory else "0"
    columns = f"CAST(id AS INTEGER), substr(name, 1, 100), {memory}"
    sql = f"SELECT {columns} FROM TARGET_INFO_GPU WHERE typeof(name) = 'text' LIMIT 4096"
    rows = _select(export, "TARGET_INFO_GPU", {"id", "name"}, sql)
    return {id: (name, size or 0) for id, name, size in rows if id is not None}


def _facts(export: NsysExport) -> JsonObject:
    sql = (
        "SELECT name, substr(value, 1, 100) FROM META_DATA_EXPORT "
        "WHERE name IN ('EXPORT_PRODUCT_VERSION', 'EXPORT_SCHEMA_VERSION') LIMIT 8"
    )
    return {str(name): str(value) for name, value in _select(export, "META_DATA_EXPORT", {"name", "value"}, sql)}
