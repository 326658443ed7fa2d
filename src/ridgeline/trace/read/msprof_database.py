"""Turn the database of msprof or of torch_npu (`msprof_*.db`, `ascend_pytorch_profiler_*.db`) into columns.

    TASK                   everything that ran on a device: kernels where COMPUTE_TASK_INFO names them, copies, waits
    COMMUNICATION_OP       collectives; the tasks each is made of (COMMUNICATION_TASK_INFO) become marks
    CANN_API, PYTORCH_API  calls of the runtime and ops of the host; equal connection ids link a call to its tasks
    STEP_TIME              steps
    STRING_IDS             the texts behind all names; NPU_INFO names the chips

Built from the published tables, not yet proven on a database that a profiler wrote. Times are nanoseconds.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.trace.arrays import Longs
from ridgeline.trace.read.ascend import shape_of
from ridgeline.trace.read.join import TracePart
from ridgeline.trace.read.row_columns import RowColumns
from ridgeline.trace.read.source import Source, refuse
from ridgeline.trace.read.sqlite_rows import NONE, numbers_in, tables_of, texts_in
from ridgeline.trace.timeline import HOST, KERNEL, MARKER, MEMCPY, RUNTIME, SYNC

FORMAT = "msprof database"
THREAD = 2**32  # a global thread id is the process's id times this, and the thread's
COPIES = re.compile(r"^(MEMCPY|SDMA|PCIE_DMA)", re.IGNORECASE)
WAITS = re.compile(r"^(NOTIFY|EVENT|CAPTURE|WAIT|FLIP|PLACE_HOLDER|MODEL_)", re.IGNORECASE)
RUNTIME_LEVELS = ("runtime", "node", "acl", "model", "communication")


def recognises(tables: frozenset[str]) -> bool:
    """Whether a database has msprof's tables."""
    return "STRING_IDS" in tables and bool(tables & {"TASK", "COMMUNICATION_OP", "CANN_API"})


def read(source: Source, base: sqlite3.Connection) -> TracePart:
    """An open database as columns; an `InputError` when it holds no span."""
    reading = _Reading(base)
    reading.work()
    reading.calls()
    rows = reading.rows
    if not rows.count:
        raise refuse(source.path, "a database without tasks", FORMAT, "was anything running while the profiler was on?")
    return rows.recorded(source.name, FORMAT, tuple(reading.chips.values()), reading.ranks())


class _Reading:
    """Collects the spans of one database."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self.base, self.rows, self.tables = base, RowColumns(), frozenset(tables_of(base))
        self.texts = texts_in(base, "STRING_IDS", "id", "value")
        self.chips = texts_in(base, "NPU_INFO", "id", "name") if "NPU_INFO" in self.tables else {}

    def work(self) -> None:
        """Tasks, collectives and steps."""
        names_of_task = {task: (name, shape) for task, name, shape in self._task_names()}
        talking = {
            int(task) for (tasks,) in self._in("COMMUNICATION_TASK_INFO", "globalTaskId") for task in tasks.tolist()
        }
        columns = ("startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "taskType", "streamId")
        for start, end, device, link, task, kind, stream in self._in("TASK", *columns):
            good = self._good(start, end)
            start, end, device, link, task, kind, stream = (
                column[good] for column in (start, end, device, link, task, kind, stream)
            )
            labels = [
                self._what(names_of_task, talking, *pair) for pair in zip(task.tolist(), kind.tolist(), strict=True)
            ]
            for place, task_id in enumerate(task.tolist()):
                shape = names_of_task[task_id][1] if task_id in names_of_task else None
                if shape is not None:
                    self.rows.shapes.add(self.rows.count + place, self.rows.shape_table[shape])
            self.rows.add(
                start,
                duration=end - start,
                process=[self.rows.processes[f"chip {number}"] for number in device.tolist()],
                stream=[self.rows.streams[f"stream {number}"] for number in stream.tolist()],
                name=[self.rows.names[name] for name, _ in labels],
                kind=[self.rows.kinds[kind] for _, kind in labels],
                correlation=np.maximum(link + 1, 0),
            )
        self._collectives()
        for number, start, end in self._in("STEP_TIME", "id", "startNs", "endNs"):
            for chip in [process for process in self.rows.processes if process.startswith("chip ")]:
                self._flat(start, end, chip, "steps", [f"step {number}" for number in number.tolist()], MARKER)

    def _collectives(self) -> None:
        columns = ("startNs", "endNs", "opName", "deviceId")
        for start, end, name, device in self._in("COMMUNICATION_OP", *columns):
            for chip_number in np.unique(device).tolist():
                of_chip = device == chip_number
                names = [self._text(code, "hccl") for code in name[of_chip].tolist()]
                chip = f"chip {chip_number}" if chip_number != NONE else next(iter(self.rows.processes), "chip 0")
                labels = [text if "hc" in text.lower() else f"hccl {text}" for text in names]
                self._flat(start[of_chip], end[of_chip], chip, "HCCL", labels, KERNEL)

    def _task_names(self) -> Iterator[tuple[int, str, object]]:
        columns = ("globalTaskId", "name", "opType", "inputShapes", "inputDataTypes")
        for task, name, op, shapes, types in self._in("COMPUTE_TASK_INFO", *columns):
            for row in zip(*(column.tolist() for column in (task, name, op, shapes, types)), strict=True):
                text, kind = self._text(row[1]), self._text(row[2])
                label = text if not kind or kind.lower() in text.lower() else f"{text} [{kind}]"
                operands = {"Input Shapes": self._text(row[3]), "Input Data Types": self._text(row[4])}
                yield row[0], label, shape_of(operands)

    def _what(self, named: dict[int, tuple[str, object]], talking: set[int], task: int, kind: int) -> tuple[str, str]:
        """Name and kind of a task."""
        text = self._text(kind)
        if task in talking:
            return text or "transfer", MARKER
        if task in named:
            return named[task][0], KERNEL
        if COPIES.match(text):
            return text, MEMCPY
        return (text, SYNC) if not text or WAITS.match(text) else (text, KERNEL)

    def calls(self) -> None:
        """Calls of the runtime and ops of the host."""
        levels = texts_in(self.base, "ENUM_API_TYPE", "id", "name") if "ENUM_API_TYPE" in self.tables else {}
        for table, name_column in (("CANN_API", "name"), ("PYTORCH_API", "name")):
            columns = ("startNs", "endNs", "globalTid", "connectionId", name_column, "type")
            for start, end, thread, link, name, level in self._in(table, *columns):
                good = self._good(start, end)
                calls = np.array(
                    [levels.get(code, "node") in RUNTIME_LEVELS for code in level[good].tolist()], np.bool_
                )
                kind = np.where(calls & (table == "CANN_API"), self.rows.kinds[RUNTIME], self.rows.kinds[HOST])
                links = np.where(kind == self.rows.kinds[RUNTIME], np.maximum(link[good] + 1, 0), 0)
                self.rows.add(
                    start[good],
                    duration=(end - start)[good],
                    process=[self.rows.processes[f"host {thread_id // THREAD}"] for thread_id in thread[good].tolist()],
                    stream=[self.rows.streams[f"thread {thread_id % THREAD}"] for thread_id in thread[good].tolist()],
                    name=[self.rows.names[self._text(text_id, "call")] for text_id in name[good].tolist()],
                    kind=kind,
                    correlation=links,
                )

    def ranks(self) -> tuple[int, ...]:
        """A rank for every process: chips by their number, the host with the first."""
        chips = sorted(
            (process for process in self.rows.processes if process.startswith("chip ")), key=lambda one: int(one[5:])
        )
        place = {chip: rank for rank, chip in enumerate(chips)}
        return tuple(place.get(process, 0) for process in self.rows.processes)

    def _flat(self, start: Longs, end: Longs, chip: str, stream: str, names: list[str], kind: str) -> None:
        good = self._good(start, end)
        self.rows.add(
            start[good],
            duration=(end - start)[good],
            process=self.rows.processes[chip],
            stream=self.rows.streams[stream],
            name=[self.rows.names[name] for name, keep in zip(names, good.tolist(), strict=True) if keep],
            kind=self.rows.kinds[kind],
        )

    def _good(self, start: Longs, end: Longs) -> Mask:
        good = (start >= 0) & (end >= start)
        self.rows.dropped["spans without a readable time"] += int((~good).sum())
        return good

    def _in(self, table: str, *columns: str) -> Iterator[tuple[Longs, ...]]:
        if table in self.tables and not self.rows.full:
            yield from numbers_in(self.base, table, columns)

    def _text(self, code: int, otherwise: str = "") -> str:
        return self.texts.get(code, otherwise)
