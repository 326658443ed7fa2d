"""Turn a database of rocprofv3 (rocpd, the format ROCm 7 writes by itself) into columns.

    rocpd_kernel_dispatch    kernels: agent, queue, stream, times; named by rocpd_info_kernel_symbol
    rocpd_memory_copy        copies: from and to an agent, bytes
    rocpd_region             calls of HIP, HSA, RCCL and ranges of ROCTx on threads of the host
    rocpd_event              joins them: equal stack ids are one call and what it launched
    rocpd_info_agent         the chips; every GPU is a rank

Tables end in the id of the process that wrote them (`rocpd_region_0123…`); several are read one after the other. Built
from the published schema, not yet proven on a database that a profiler wrote. Times are nanoseconds.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.trace.arrays import Longs
from ridgeline.trace.read.join import TracePart
from ridgeline.trace.read.row_columns import RowColumns
from ridgeline.trace.read.source import Source, refuse
from ridgeline.trace.read.sqlite_rows import numbers_in, tables_of, texts_in
from ridgeline.trace.timeline import ANNOTATION, HOST, KERNEL, MEMCPY, RUNTIME

FORMAT = "rocpd database"
CALLS = re.compile(r"^(hip|hsa|nccl|rccl|rocblas|roctx)[A-Z_]\w*$")
RANGES = re.compile(r"MARKER|ROCTX", re.IGNORECASE)
GPU = re.compile(r"gpu", re.IGNORECASE)
APART = 2**40  # stack ids of one process are below this


def recognises(tables: frozenset[str]) -> bool:
    """Whether a database has rocpd's tables."""
    return any(name.lstrip("_").startswith("rocpd_kernel_dispatch") for name in tables)


def read(source: Source, base: sqlite3.Connection) -> TracePart:
    """An open database as columns; an `InputError` when it holds no span."""
    reading = _Reading(base)
    for place, suffix in enumerate(reading.suffixes()):
        reading.take(suffix, place * APART)
    rows = reading.rows
    if not rows.count:
        raise refuse(source.path, "a database without kernels", FORMAT, "was anything running?")
    return rows.recorded(source.name, FORMAT, reading.chips, reading.ranks())


class _Reading:
    """Collects the spans of one database."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self.base, self.rows, self.tables = base, RowColumns(), tables_of(base)
        self.chips: list[str] = []

    def suffixes(self) -> list[str]:
        """What stands behind the names of the tables of each process."""
        word = "rocpd_kernel_dispatch"
        return [name.lstrip("_").removeprefix(word) for name in self.tables if name.lstrip("_").startswith(word)]

    def take(self, suffix: str, apart: int) -> None:
        """Add what one process recorded."""
        strings = self._texts("string", suffix, "string", "value")
        kernels = self._texts("info_kernel_symbol", suffix, "display_name", "formatted_kernel_name", "kernel_name")
        agents = self._agents(suffix)
        stacks = self._stacks(suffix, apart)
        columns = ("start", "end", "agent_id", "kernel_id", "queue_id", "stream_id", "event_id")
        for start, end, agent, kernel, queue, stream, event in self._in("kernel_dispatch", suffix, *columns):
            lane = np.where(stream > 0, stream, queue)
            names = [kernels.get(id_, f"kernel {id_}") for id_ in kernel.tolist()]
            self._add(start, end, [agents.get(id_, f"chip {id_}") for id_ in agent.tolist()],
                      [f"stream {number}" for number in lane.tolist()], names, KERNEL, stacks(event))  # fmt: skip
        copy_columns = ("start", "end", "dst_agent_id", "src_agent_id", "name_id", "stream_id", "event_id", "size")
        for start, end, to, begin, name, stream, event, size in self._in("memory_copy", suffix, *copy_columns):
            first = self.rows.count
            chips = [
                agents.get(target) or agents.get(origin) or "chip 0"
                for target, origin in zip(to.tolist(), begin.tolist(), strict=True)
            ]
            kept_rows = self._add(start, end, chips, [f"copies {number}" for number in stream.tolist()],
                             [strings.get(id_, "Memcpy") for id_ in name.tolist()], MEMCPY, stacks(event))  # fmt: skip
            for place, copy_bytes in enumerate(size[kept_rows].tolist()):
                self.rows.sizes.add(first + place, max(0, copy_bytes))
        for start, end, pid, tid, name, event in self._in(
            "region", suffix, "start", "end", "pid", "tid", "name_id", "event_id"
        ):
            texts = [strings.get(id_, "") for id_ in name.tolist()]
            for kind, of_kind in self._kinds(texts, event, suffix, strings):
                self._add(
                    start[of_kind],
                    end[of_kind],
                    [f"host {number}" for number in pid[of_kind].tolist()],
                    [f"thread {number}" for number in tid[of_kind].tolist()],
                    [text for text, keep in zip(texts, of_kind.tolist(), strict=True) if keep],
                    kind,
                    stacks(event[of_kind]) if kind == RUNTIME else np.zeros(int(of_kind.sum()), np.int64),
                )

    def _kinds(
        self, texts: list[str], event: Longs, suffix: str, strings: dict[int, str]
    ) -> Iterator[tuple[str, Mask]]:
        """Regions by kind: calls of the runtime, ranges that a user marked, everything else."""
        category = {
            int(id): strings.get(int(code), "")
            for ids, codes in self._in("event", suffix, "id", "category_id")
            for id, code in zip(ids.tolist(), codes.tolist(), strict=True)
        }
        is_range = np.array([bool(RANGES.search(category.get(id_, ""))) for id_ in event.tolist()], np.bool_)
        calls = np.array([bool(CALLS.match(text)) for text in texts], np.bool_) & ~is_range
        for kind, of_kind in ((ANNOTATION, is_range), (RUNTIME, calls), (HOST, ~is_range & ~calls)):
            if of_kind.any():
                yield kind, of_kind

    def _agents(self, suffix: str) -> dict[int, str]:
        """Chips by the id of their agent; hosts are agents too and are left out."""
        kinds = self._texts("info_agent", suffix, "type")
        names = self._texts("info_agent", suffix, "product_name", "model_name", "name")
        chips = [kind for kind in sorted(kinds) if GPU.search(kinds[kind])]
        self.chips += [names[chip] for chip in chips if names.get(chip)]
        return {agent: f"chip {place}" for place, agent in enumerate(chips)}

    def _stacks(self, suffix: str, apart: int) -> Callable[[Longs], Longs]:
        """What turns ids of events into numbers that a call shares with what it launched."""
        parents: dict[int, int] = {}
        for id, stack, link in self._in("event", suffix, "id", "stack_id", "correlation_id"):
            stack_id = np.where(stack > 0, stack, link)
            parents.update(zip(id.tolist(), stack_id.tolist(), strict=True))
        return lambda events: np.array(
            [parents[event] + apart if parents.get(event, 0) > 0 else 0 for event in events.tolist()], np.int64
        )

    def ranks(self) -> tuple[int, ...]:
        """Every chip with work is a rank; hosts belong to the first."""
        chips = sorted(
            (process for process in self.rows.processes if process.startswith("chip ")), key=lambda one: int(one[5:])
        )
        place = {chip: rank for rank, chip in enumerate(chips)}
        return tuple(place.get(process, 0) for process in self.rows.processes)

    def _add(
        self, start: Longs, end: Longs, processes: list[str], streams: list[str], names: list[str], kind: str,
        links: Longs,
    ) -> Mask:  # fmt: skip
        good = (start >= 0) & (end >= start)
        self.rows.dropped["spans without a readable time"] += int((~good).sum())
        kept_rows = np.flatnonzero(good).tolist()
        self.rows.add(
            start[good],
            duration=(end - start)[good],
            process=[self.rows.processes[processes[row]] for row in kept_rows],
            stream=[self.rows.streams[streams[row]] for row in kept_rows],
            name=[self.rows.names[names[row]] for row in kept_rows],
            kind=self.rows.kinds[kind],
            correlation=links[good],
        )
        return good

    def _table(self, word: str, suffix: str) -> str:
        table_name = f"rocpd_{word}{suffix}"
        return next((name for name in self.tables if name.lstrip("_") == table_name), "")

    def _texts(self, word: str, suffix: str, *columns: str) -> dict[int, str]:
        table = self._table(word, suffix)
        return texts_in(self.base, table, "id", *columns) if table else {}

    def _in(self, word: str, suffix: str, *columns: str) -> Iterator[tuple[Longs, ...]]:
        table = self._table(word, suffix)
        if table and not self.rows.full:
            yield from numbers_in(self.base, table, columns)
