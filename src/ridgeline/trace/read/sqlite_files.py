"""Turn an SQLite database into columns, by the profiler whose tables it has: Nsight Systems, msprof, or rocprofv3.

The file is hostile input: it is opened read-only and immutable, only real tables are read (no views or virtual tables,
which could run whatever their author liked), and the texts in it are never used as SQL. Times are nanoseconds.

    TASK                     everything that ran on a device: kernels where COMPUTE_TASK_INFO names them, copies, waits
    COMMUNICATION_OP         collectives; the tasks each is made of (COMMUNICATION_TASK_INFO) become marks
    CANN_API, PYTORCH_API    calls of the runtime and ops of the host; equal connection ids link a call to its tasks

    rocpd_kernel_dispatch    kernels; rocpd_memory_copy has copies, rocpd_region calls and ranges of the host
    rocpd_event              joins them: equal stack ids are one call and what it launched

Tables of rocpd end in the id of the process that wrote them. Both are built from published tables, not yet proven on a
database that a profiler wrote.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.units import BINARY
from ridgeline.trace.read import nsys
from ridgeline.trace.read.join import RowColumns, TracePart
from ridgeline.trace.read.kernel_tables import shape_of
from ridgeline.trace.read.nsys import BROKEN
from ridgeline.trace.read.source import TraceSource, refuse
from ridgeline.trace.timeline import ANNOTATION, HOST, KERNEL, MARKER, MEMCPY, RUNTIME, SYNC, Longs, RecordedShape

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


class _Database:
    """An open database of a profiler, and the rows found in it."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self.base, self.rows, self.tables = base, RowColumns(), tables_of(base)

    def numbers(self, table: str, columns: str) -> Iterator[tuple[Longs, ...]]:
        """Batches of some columns, blanks between their names; nothing where the table is not there."""
        if table in self.tables and not self.rows.full:
            yield from numbers_in(self.base, table, columns.split())

    def spans(self, table: str, columns: str) -> Iterator[tuple[Longs, ...]]:
        """The same, start and end first, without rows whose times cannot be."""
        for start, end, *values in self.numbers(table, columns):
            good = self.rows.readable(start, end)
            yield start[good], end[good], *(column[good] for column in values)

    def texts(self, table: str, *columns: str) -> dict[int, str]:
        return texts_in(self.base, table, "id", *columns) if table in self.tables else {}

    def part(self, source: TraceSource, format: str, chips: Iterable[str], without: str, todo: str) -> TracePart:
        """Everything as a part: the first chip named, ranks by the numbers of the chips; an `InputError` when empty."""
        if not self.rows.count:
            raise refuse(source.path, f"a database without {without}", format, todo)
        ranks = self.rows.chip_ranks(lambda name: int(name[5:]))
        return self.rows.part(source.name, format, chips=list(dict.fromkeys(chips))[:1], ranks=ranks)


# -- msprof ------------------------------------------------------------------------------------------------------------


MSPROF = "msprof database"
THREAD = 2**32  # a global thread id is the process's id times this, and the thread's
COPIES = re.compile(r"^(MEMCPY|SDMA|PCIE_DMA)", re.IGNORECASE)
WAITS = re.compile(r"^(NOTIFY|EVENT|CAPTURE|WAIT|FLIP|PLACE_HOLDER|MODEL_)", re.IGNORECASE)
RUNTIME_LEVELS = ("runtime", "node", "acl", "model", "communication")


def _has_msprof_tables(tables: frozenset[str]) -> bool:
    return "STRING_IDS" in tables and bool(tables & {"TASK", "COMMUNICATION_OP", "CANN_API"})


def read_msprof(source: TraceSource, base: sqlite3.Connection) -> TracePart:
    """An open database as columns; an `InputError` when it holds no span."""
    database = _Msprof(base)
    database.take_tasks()
    database.take_collectives()
    database.take_steps()
    database.take_calls()
    chips = database.texts("NPU_INFO", "name").values()
    return database.part(source, MSPROF, chips, "tasks", "was anything running while the profiler was on?")


class _Msprof(_Database):
    def __init__(self, base: sqlite3.Connection) -> None:
        super().__init__(base)
        self.strings = self.texts("STRING_IDS", "value")

    def take_tasks(self) -> None:
        named_tasks = {task: (name, shape) for task, name, shape in self._named_tasks()}
        talking = {
            task for (tasks,) in self.numbers("COMMUNICATION_TASK_INFO", "globalTaskId") for task in tasks.tolist()
        }
        columns = "startNs endNs deviceId connectionId globalTaskId taskType streamId"
        for start, end, device, link, task, kind, stream in self.spans("TASK", columns):
            places: list[tuple[str, str, str, str]] = []
            for chip, lane, id, code in _rows(device, stream, task, kind):
                name, shape = named_tasks.get(id, (None, None))
                self.rows.add_shape(self.rows.count + len(places), shape)
                places.append((f"chip {chip}", f"stream {lane}", *self._name_task(name, code, talks=id in talking)))
            self.rows.add_places(start, end - start, places, np.maximum(link + 1, 0))

    def _named_tasks(self) -> Iterator[tuple[int, str, RecordedShape | None]]:
        for batch in self.numbers("COMPUTE_TASK_INFO", "globalTaskId name opType inputShapes inputDataTypes"):
            for task, *codes in _rows(*batch):
                text, kind, shapes, types = (self.strings.get(code, "") for code in codes)
                label = text if not kind or kind.lower() in text.lower() else f"{text} [{kind}]"
                yield task, label, shape_of({"Input Shapes": shapes, "Input Data Types": types})

    def _name_task(self, name: str | None, code: int, *, talks: bool) -> tuple[str, str]:
        """Name and kind of a task, ``name`` where it is a kernel."""
        text = self.strings.get(code, "")
        if talks:
            return text or "transfer", MARKER
        if name is not None:
            return name, KERNEL
        if COPIES.match(text):
            return text, MEMCPY
        return text, SYNC if not text or WAITS.match(text) else KERNEL

    def take_collectives(self) -> None:
        for start, end, name, device in self.spans("COMMUNICATION_OP", "startNs endNs opName deviceId"):
            order = np.argsort(device, kind="stable")
            places = []
            for code, chip in _rows(name[order], device[order]):
                text = self.strings.get(code, "hccl")
                process = f"chip {chip}" if chip != NONE else next(iter(self.rows.processes), "chip 0")
                places.append((process, "HCCL", text if "hc" in text.lower() else f"hccl {text}", KERNEL))
            self.rows.add_places(start[order], (end - start)[order], places)

    def take_steps(self) -> None:
        chips = [process for process in self.rows.processes if process.startswith("chip ")]
        for start, end, number in self.spans("STEP_TIME", "startNs endNs id"):
            for chip in chips:
                self.rows.add_places(
                    start, end - start, [(chip, "steps", f"step {id}", MARKER) for id in number.tolist()]
                )

    def take_calls(self) -> None:
        """Calls of the runtime and ops of the host."""
        levels = self.texts("ENUM_API_TYPE", "name")
        columns = "startNs endNs globalTid connectionId name type"
        for table in ("CANN_API", "PYTORCH_API"):
            for start, end, thread, link, name, level in self.spans(table, columns):
                calls = [levels.get(code, "node") in RUNTIME_LEVELS for code in level.tolist()]
                is_call = np.array(calls, np.bool_) & (table == "CANN_API")
                places = (
                    (
                        f"host {id // THREAD}",
                        f"thread {id % THREAD}",
                        self.strings.get(code, "call"),
                        RUNTIME if call else HOST,
                    )
                    for id, code, call in _rows(thread, name, is_call)
                )
                self.rows.add_places(start, end - start, places, np.where(is_call, np.maximum(link + 1, 0), 0))


def _rows(*columns: NDArray[np.generic]) -> Iterator[tuple[int, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


# -- rocprofv3 ---------------------------------------------------------------------------------------------------------


ROCPD = "rocpd database"
CALLS = re.compile(r"^(hip|hsa|nccl|rccl|rocblas|roctx)[A-Z_]\w*$")
RANGES = re.compile(r"MARKER|ROCTX", re.IGNORECASE)
GPU = re.compile(r"gpu", re.IGNORECASE)
APART = 2**40  # stack ids of one process are below this
DISPATCH = "rocpd_kernel_dispatch"


def _has_rocpd_tables(tables: frozenset[str]) -> bool:
    return any(name.lstrip("_").startswith(DISPATCH) for name in tables)


def read_rocpd(source: TraceSource, base: sqlite3.Connection) -> TracePart:
    """An open database as columns; an `InputError` when it holds no span."""
    database = _Rocpd(base)
    names = [name.lstrip("_") for name in database.tables]
    suffixes = [name.removeprefix(DISPATCH) for name in names if name.startswith(DISPATCH)]
    for place, suffix in enumerate(suffixes):
        database.take_process(suffix, place * APART)
    return database.part(source, ROCPD, database.chips, "kernels", "was anything running?")


class _Rocpd(_Database):
    def __init__(self, base: sqlite3.Connection) -> None:
        super().__init__(base)
        self.chips: list[str] = []

    def _table(self, word: str, suffix: str) -> str:
        return next((name for name in self.tables if name.lstrip("_") == f"rocpd_{word}{suffix}"), "")

    def take_process(self, suffix: str, apart: int) -> None:
        """Add what one process recorded."""
        strings = self.texts(self._table("string", suffix), "string", "value")
        symbols = self._table("info_kernel_symbol", suffix)
        kernels = self.texts(symbols, "display_name", "formatted_kernel_name", "kernel_name")
        agents = self._agents(suffix)
        categories, stacks = self._events(suffix, strings)

        def link(events: Longs) -> Longs:
            """Numbers that a call shares with what it launched; 0 for none."""
            ids = [stacks.get(event, 0) for event in events.tolist()]
            return np.array([id + apart if id > 0 else 0 for id in ids], np.int64)

        spans = self.spans(
            self._table("kernel_dispatch", suffix), "start end agent_id kernel_id queue_id stream_id event_id"
        )
        for start, end, agent, kernel, queue, stream, event in spans:
            places = [
                (agents.get(chip, f"chip {chip}"), f"stream {lane}", kernels.get(id, f"kernel {id}"), KERNEL)
                for chip, lane, id in _rows(agent, np.where(stream > 0, stream, queue), kernel)
            ]
            self.rows.add_places(start, end - start, places, link(event))
        spans = self.spans(
            self._table("memory_copy", suffix), "start end dst_agent_id src_agent_id name_id stream_id event_id size"
        )
        for start, end, to, origin, name, stream, event, size in spans:
            for place, copy_bytes in enumerate(size.tolist()):
                self.rows.sizes.add(self.rows.count + place, max(0, copy_bytes))
            chips = [agents.get(target) or agents.get(source) or "chip 0" for target, source in _rows(to, origin)]
            names = [strings.get(id, "Memcpy") for id in name.tolist()]
            lanes = [f"copies {lane}" for lane in stream.tolist()]
            places = [(*place, MEMCPY) for place in zip(chips, lanes, names, strict=True)]
            self.rows.add_places(start, end - start, places, link(event))
        for start, end, pid, tid, name, event in self.spans(
            self._table("region", suffix), "start end pid tid name_id event_id"
        ):
            texts = [strings.get(id, "") for id in name.tolist()]
            is_range = np.array([bool(RANGES.search(categories.get(id, ""))) for id in event.tolist()], np.bool_)
            calls = np.array([bool(CALLS.match(text)) for text in texts], np.bool_) & ~is_range
            for kind, of_kind in ((ANNOTATION, is_range), (RUNTIME, calls), (HOST, ~is_range & ~calls)):
                rows = np.flatnonzero(of_kind)
                places = [
                    (f"host {process}", f"thread {thread}", texts[row], kind)
                    for row, process, thread in _rows(rows, pid[rows], tid[rows])
                ]
                links = link(event[rows]) if kind == RUNTIME else 0
                self.rows.add_places(start[rows], (end - start)[rows], places, links)

    def _agents(self, suffix: str) -> dict[int, str]:
        """Chips by the id of their agent; hosts are agents too and are left out."""
        table = self._table("info_agent", suffix)
        kinds, names = self.texts(table, "type"), self.texts(table, "product_name", "model_name", "name")
        chips = [agent for agent in sorted(kinds) if GPU.search(kinds[agent])]
        self.chips += [names[chip] for chip in chips if names.get(chip)]
        return {agent: f"chip {place}" for place, agent in enumerate(chips)}

    def _events(self, suffix: str, strings: dict[int, str]) -> tuple[dict[int, str], dict[int, int]]:
        categories: dict[int, str] = {}
        stacks: dict[int, int] = {}
        events = self.numbers(self._table("event", suffix), "id category_id stack_id correlation_id")
        for id, category, stack, correlation in events:
            categories |= {event: strings.get(code, "") for event, code in _rows(id, category)}
            stacks.update(_rows(id, np.where(stack > 0, stack, correlation)))  # type: ignore[arg-type]
        return categories, stacks


# -- any of them -------------------------------------------------------------------------------------------------------


FORMATS: Mapping[
    str, tuple[Callable[[frozenset[str]], bool], Callable[[TraceSource, sqlite3.Connection], TracePart]]
] = {
    MSPROF: (_has_msprof_tables, read_msprof),
    ROCPD: (_has_rocpd_tables, read_rocpd),
}
"""By name: whether these are its tables, and its reader. Every other database is taken for an export of nsys."""
FORMAT = ", ".join((nsys.FORMAT, *FORMATS))
MAGIC = b"SQLite format 3\0"
LARGEST_VALUE = int(16 * BINARY["Mi"])  # bytes of one value SQLite may build


def recognises(head: bytes) -> bool:
    """Whether a file begins like an SQLite database."""
    return head.startswith(MAGIC)


def read(source: TraceSource) -> TracePart:
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
