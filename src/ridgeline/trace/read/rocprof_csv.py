"""Turn the tables of rocprofv3 (`*_kernel_trace.csv`, `*_memory_copy_trace.csv`, `*_hip_api_trace.csv`) into columns.

Times are nanoseconds. Every agent is a chip; rows of the three tables are told apart by their columns: `Kernel_Name`,
`Direction`, `Function`. Built from the published columns, not yet proven on tables that a profiler wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ridgeline.trace.read.csv_rows import first, rows_of
from ridgeline.trace.read.join import TracePart
from ridgeline.trace.read.row_columns import RowColumns
from ridgeline.trace.read.source import Source, refuse
from ridgeline.trace.read.timestamps import MISSING, nanoseconds
from ridgeline.trace.side_tables import About
from ridgeline.trace.timeline import KERNEL, MEMCPY, RUNTIME

FORMAT = "rocprofv3 table"
BATCH = 10_000
NAMES = {"Kernel_Name": KERNEL, "Direction": MEMCPY, "Function": RUNTIME}


def recognises(head: bytes) -> bool:
    """Whether a file begins with the header of such a table."""
    line = head.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace")
    return "Start_Timestamp" in line and "End_Timestamp" in line and any(name in line for name in NAMES)


def read(source: Source) -> TracePart:
    """One table as columns; an `InputError` when it holds no span."""
    rows = RowColumns()
    for batch in _batches(source):
        _take(rows, batch)
        if rows.full:
            break
    if not rows.count:
        raise refuse(source.path, "a table without spans", FORMAT, "was anything running?")
    if source.damage:
        rows.warnings.insert(0, f"{source.damage}; the {rows.count:,} rows before that are kept")
    about = About(
        sources=(source.name,), format=FORMAT, kept=rows.kept(), warnings=tuple(rows.warnings),
        dropped={what: count for what, count in rows.dropped.items() if count},
    )  # fmt: skip
    chips = sorted(process for process in rows.processes if process.startswith("chip"))
    ranks = tuple(chips.index(process) if process in chips else 0 for process in rows.processes)
    return rows.part(about, {}, ranks=ranks if len(chips) > 1 else ())


def _batches(source: Source) -> Iterator[list[dict[str, str]]]:
    header: list[str] = []
    batch = []
    for row in rows_of(source):
        if not header:
            header = [cell.strip() for cell in row]
        elif len(row) == len(header):
            batch.append(dict(zip(header, row, strict=True)))
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _take(rows: RowColumns, batch: list[dict[str, str]]) -> None:
    start, end = (
        nanoseconds([row.get(of, "").strip() for row in batch], 1) for of in ("Start_Timestamp", "End_Timestamp")
    )
    good = (start != MISSING) & (end != MISSING) & (end >= start) & (start >= 0)
    rows.dropped["rows without a readable time"] += int((~good).sum())
    kept_rows = [row for row, keep in zip(batch, good.tolist(), strict=True) if keep]
    places = [_place(row) for row in kept_rows]
    rows.add(
        start[good],
        duration=(end - start)[good],
        process=[rows.processes[process] for process, _, _, _ in places],
        stream=[rows.streams[stream] for _, stream, _, _ in places],
        name=[rows.names[name] for _, _, name, _ in places],
        kind=[rows.kinds[kind] for _, _, _, kind in places],
        correlation=np.array([_number(row.get("Correlation_Id", "")) for row in kept_rows], np.int64),
    )


def _place(row: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Process, stream, name and kind of a row."""
    kind = next((kind for column, kind in NAMES.items() if row.get(column, "").strip()), KERNEL)
    if kind == RUNTIME:
        return (
            f"host {first(row, ('Process_Id',)) or 0}",
            f"thread {first(row, ('Thread_Id',)) or 0}",
            row["Function"][:4096],
            kind,
        )
    agent = first(row, ("Agent_Id", "Destination_Agent_Id", "Source_Agent_Id")).replace("Agent ", "") or "0"
    lane = first(row, ("Stream_Id", "Queue_Id")) or "0"
    if kind == MEMCPY:
        return f"chip {agent[:40]}", f"copies {lane[:40]}", f"Memcpy {row['Direction'][:200]}", kind
    return f"chip {agent[:40]}", f"stream {lane[:40]}", row.get("Kernel_Name", "")[:4096], kind


def _number(text: str) -> int:
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) < 18 else 0
