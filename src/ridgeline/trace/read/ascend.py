"""Turn kernel_details.csv of the Ascend profiler into columns, or into shapes for the trace_view.json beside it.

op_summary_*.csv and task_time_*.csv of msprof are such tables too, with other names of columns, of several devices.

A kernel has a name, a type, the core it ran on, start, duration, stream, step, and the shapes of its operands; those on
HCCL are collectives and have a stream of their own. `trace_view.json` is a Chrome trace and read as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.read.csv_rows import first, rows_of
from ridgeline.trace.read.join import TracePart
from ridgeline.trace.read.row_columns import RowColumns
from ridgeline.trace.read.source import Source, refuse
from ridgeline.trace.read.timestamps import MISSING, NANOS, nanoseconds
from ridgeline.trace.side_tables import About, RecordedShape, Sparse
from ridgeline.trace.timeline import KERNEL, MARKER, MEMCPY, SYNC

FORMAT, SUMMARY = "Ascend kernel_details", "msprof summary"
START = ("Start Time(us)", "Task Start Time(us)", "task_start(us)")
DURATION = ("Duration(us)", "Task Duration(us)", "task_time(us)")
NAME = ("Name", "Op Name", "Kernel Name", "kernel_name")
CORE = ("Accelerator Core", "Task Type", "kernel_type")
DEVICE = ("Device_id", "Device_Id", "Device ID", "Device Id")
WAITS = re.compile(r"^(NOTIFY|EVENT|CAPTURE|PLACE_HOLDER|MODEL_|FLIP|WRITE_VALUE)", re.IGNORECASE)
NETWORK = ("HCCL", "COMMUNICATION", "HCCL_SQE", "MIX_COMMUNICATION")
BATCH = 10_000
MOST_SHAPES = 4096  # characters of the operands of a kernel that are still looked at
NEAR = 1000  # nanoseconds two files may differ about the start of a kernel
OUTPUT = "ASCEND_PROFILER_OUTPUT"
_INFO = re.compile(r"^profiler_info_(\d{1,7})\.json$")
TYPES = {
    "FLOAT": "float", "FLOAT32": "float", "FLOAT16": "c10::Half", "DT_BF16": "c10::BFloat16", "BF16": "c10::BFloat16",
    "BFLOAT16": "c10::BFloat16", "INT8": "signed char", "UINT8": "unsigned char", "INT32": "int", "INT64": "long int",
    "BOOL": "bool", "DOUBLE": "double",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one rank's profiler left: its trace, its table of kernels, its number."""

    trace: Path | None
    details: Path | None
    rank: int | None


def recognises(head: bytes) -> bool:
    """Whether a file begins with the header of a table of kernels with their starts."""
    columns = _header(head)
    return any(name in columns for name in START) and any(name in columns for name in DURATION)


def _header(head: bytes) -> list[str]:
    line = head.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace")
    return [name.strip(' \r\t"') for name in line.split(",")]


def outputs(folder: Path) -> list[Output]:
    """The profiler's outputs in a folder: in itself, in its output folder, or one of each per rank."""
    runs = [
        folder,
        *sorted(entry for entry in folder.iterdir() if entry.is_dir() and entry.name.endswith("_ascend_pt")),
    ]
    places = [place for run in runs for place in (run, run / OUTPUT) if place.is_dir()]
    return [output for place in places if (output := _output(place)) is not None]


def _output(folder: Path) -> Output | None:
    inside = {file.name: file for file in folder.iterdir() if file.is_file()}
    trace = inside.get("trace_view.json") or inside.get("trace_view.json.gz")
    details = inside.get("kernel_details.csv") or inside.get("kernel_details.csv.gz")
    if trace is None and details is None:
        return None
    info = [file.name for place in (folder, folder.parent) for file in place.iterdir() if _INFO.match(file.name)]
    ranks = {int(match[1]) for name in info if (match := _INFO.match(name))}
    return Output(trace=trace, details=details, rank=ranks.pop() if len(ranks) == 1 else None)


def read(source: Source) -> TracePart:
    """A table of kernels as a timeline of its own, its steps as marks."""
    rows = RowColumns()
    steps: dict[str, tuple[int, int]] = {}
    for batch in _batches(source):
        _take(rows, batch, steps, source.nanos or NANOS)
        if rows.full:
            break
    if not rows.count:
        raise refuse(source.path, "a table without kernels", FORMAT, "was anything running while the profiler was on?")
    if source.damage:
        rows.warnings.insert(0, f"{source.damage}; the {rows.count:,} kernels before that are kept")
    lost = rows.dropped["kernels without a readable time"]
    if lost:
        rows.warnings.append(f"{lost:,} kernels without a readable time are left out")
    for step, (start, end) in steps.items():
        rows.add(
            np.array([start], np.int64), duration=end - start, name=rows.names[f"step {step}"], kind=rows.kinds[MARKER],
            stream=rows.streams["steps"], process=0,
        )  # fmt: skip
    about = About(
        sources=(source.name,),
        format=FORMAT if START[0] in _header(source.head()) else SUMMARY,
        kept=rows.kept(),
        dropped={what: count for what, count in rows.dropped.items() if count},
        warnings=tuple(rows.warnings),
    )
    chips = sorted(rows.processes, key=lambda one: (len(one), one))
    return rows.part(
        about, {}, ranks=tuple(chips.index(process) for process in rows.processes) if len(chips) > 1 else ()
    )


def records(source: Source) -> Iterator[dict[str, str]]:
    """Rows of the table by column name."""
    header: list[str] = []
    for row in rows_of(source):
        if not header:
            header = [cell.strip() for cell in row]
        elif len(row) == len(header):
            yield dict(zip(header, row, strict=True))


def _batches(source: Source) -> Iterator[list[dict[str, str]]]:
    batch = []
    for row in records(source):
        batch.append(row)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _take(rows: RowColumns, batch: list[dict[str, str]], steps: dict[str, tuple[int, int]], nanos: int) -> None:
    start = nanoseconds([first(row, START).strip() for row in batch], nanos)
    length = nanoseconds([first(row, DURATION).strip() for row in batch], nanos)
    good = (start != MISSING) & (length != MISSING) & (length >= 0) & (start >= 0)
    rows.dropped["kernels without a readable time"] += int((~good).sum())
    kept_rows = [row for row, keep in zip(batch, good.tolist(), strict=True) if keep]
    start, length = start[good], length[good]
    if not kept_rows:
        return
    for place, row in enumerate(kept_rows):
        shape = shape_of(row)
        if shape is not None:
            rows.shapes.add(rows.count + place, rows.shape_table[shape])
        step = row.get("Step Id", "").strip()
        if step.isdecimal() and len(step) < 10:
            begin, end = int(start[place]), int(start[place] + length[place])
            step_span = steps.get(step, (begin, end))
            steps[step] = min(step_span[0], begin), max(step_span[1], end)
    rows.add(
        start,
        duration=length,
        process=[rows.processes[f"chip {first(row, DEVICE)[:20] or 0}"] for row in kept_rows],
        stream=[rows.streams[_stream(row)] for row in kept_rows],
        name=[rows.names[_name(row)] for row in kept_rows],
        kind=[rows.kinds[_kind(row)] for row in kept_rows],
    )


def _name(row: Mapping[str, str]) -> str:
    """Name of a kernel, its type behind it where the name does not say it."""
    name, kind = first(row, NAME)[:1000], first(row, ("Type", "OP Type"))[:200]
    return name if not kind or kind.lower() in name.lower() else f"{name} [{kind}]"


def _stream(row: Mapping[str, str]) -> str:
    id = first(row, ("Stream ID", "Stream Id", "stream_id"))
    return "HCCL" if first(row, CORE).strip() in NETWORK else f"stream {id[:40]}" if id else "stream"


def _kind(row: Mapping[str, str]) -> str:
    core = first(row, CORE).strip()
    if WAITS.match(core):
        return SYNC
    return MEMCPY if core in ("MEMCPY_ASYNC", "SDMA_SQE", "PCIE_DMA_SQE") else KERNEL


def shape_of(row: Mapping[str, str]) -> RecordedShape | None:
    """Operands of a kernel: `"1024,4;4096;"` with types `FLOAT16;INT32;FLOAT`; a scalar has no dims.

    >>> shape_of({"Input Shapes": '"8,4;"', "Input Data Types": "FLOAT16;INT32"})
    RecordedShape(dims=((8, 4), ()), types=('c10::Half', 'int'), concrete=())
    """
    shapes, types = first(row, ("Input Shapes",)).strip().strip('"'), first(row, ("Input Data Types",)).strip()
    if not shapes or len(shapes) > MOST_SHAPES or len(types) > MOST_SHAPES:
        return None
    dims = tuple(
        tuple(int(dim) for dim in part.split(",") if dim.strip().isdecimal() and len(dim) < 19)
        for part in shapes.split(";")
    )
    return RecordedShape(dims=dims, types=tuple(TYPES.get(type_.strip(), type_.strip()) for type_ in types.split(";")))


def attach_shapes(part: TracePart, source: Source) -> TracePart:
    """The part of a trace with the shapes of the table beside it: kernels of equal name and, within 1 us, start."""
    table = read(source)
    kernels = np.flatnonzero(part.kind == part.tables.kinds.index(KERNEL)) if KERNEL in part.tables.kinds else ()
    rows, theirs = _matches(part, np.asarray(kernels, np.intp), table)
    many = int((table.kind == table.tables.kinds.index(KERNEL)).sum()) if KERNEL in table.tables.kinds else 0
    warnings = list(table.about.warnings)
    if len(rows) < many:
        trace = part.about.sources[0]
        warnings.append(
            f"{source.name}: {len(rows):,} of its {many:,} kernels are in {trace}; the others are left out"
            if len(rows)
            else f"{source.name}: none of its {many:,} kernels is in {trace}; is it of another run? It is left out"
        )
    codes = table.detail.shape.at(theirs)
    has_shape = codes >= 0
    offset = len(part.detail.shapes)
    shape_rows = np.concatenate([part.detail.shape.rows, rows[has_shape].astype(np.int32)])
    values = np.concatenate([part.detail.shape.values, codes[has_shape] + offset])
    order = np.argsort(shape_rows, kind="stable")
    detail = replace(
        part.detail,
        shape=Sparse(rows=shape_rows[order], values=values[order]),
        shapes=(*part.detail.shapes, *table.detail.shapes),
    )
    return replace(part, detail=detail, about=replace(part.about, warnings=(*part.about.warnings, *warnings)))


def _matches(part: TracePart, kernels: NDArray[np.intp], table: TracePart) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows of kernels in the trace, and the rows of the table that are the same kernel."""
    by_name: dict[str, int] = {name.split(" [", 1)[0]: code for code, name in enumerate(table.tables.names)}
    matches: list[NDArray[np.intp]] = [np.zeros(0, np.intp)]
    theirs: list[NDArray[np.intp]] = [np.zeros(0, np.intp)]
    for code in np.unique(part.name[kernels]).tolist():
        table_rows = by_name.get(part.tables.names[code])
        if table_rows is None:
            continue
        named_kernels = kernels[part.name[kernels] == code]
        rows = np.flatnonzero(table.name == table_rows)
        rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
        place = np.searchsorted(table.start_ns[rows], part.start_ns[named_kernels] - NEAR)
        inside = place < len(rows)
        near = np.zeros(len(named_kernels), np.bool_)
        near[inside] = np.abs(table.start_ns[rows[place[inside]]] - part.start_ns[named_kernels[inside]]) <= NEAR
        matches.append(named_kernels[near])
        theirs.append(rows[place[near]])
    return np.concatenate(matches), np.concatenate(theirs)
