"""Turn CSV tables of kernels into columns: of the Ascend profiler, of msprof, of rocprofv3.

Ascend, msprof    kernel_details.csv, op_summary_*.csv, task_time_*.csv; beside a trace_view.json, which is a Chrome
                  trace, only the shapes are taken
rocprofv3         *_kernel_trace.csv, *_memory_copy_trace.csv, *_hip_api_trace.csv, in nanoseconds, told apart by
                  their columns; not yet proven on tables that a profiler wrote
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np

from ridgeline.core.units import BINARY
from ridgeline.trace.read.join import RowColumns, TracePart
from ridgeline.trace.read.source import TraceSource, refuse
from ridgeline.trace.read.timestamps import NANOS, nanoseconds
from ridgeline.trace.timeline import KERNEL, MARKER, MEMCPY, RUNTIME, SYNC, RecordedShape, Rows, Sparse

LONGEST_LINE = int(4 * BINARY["Mi"])


def rows_of(source: TraceSource) -> Iterator[list[str]]:
    """Rows of a file; a line that is too long or no CSV ends them, and ``source.damage`` says so."""
    reader = csv.reader(_lines(source))
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as wrong:
            source.damage = source.damage or f"line {reader.line_num:,} is no CSV ({wrong})"
            return


def _lines(source: TraceSource) -> Iterator[str]:
    decode = codecs.getincrementaldecoder("utf-8-sig")("replace")
    remainder = ""
    for chunk in source.chunks():
        *complete_lines, remainder = (remainder + decode.decode(chunk)).split("\n")
        yield from complete_lines
        if len(remainder) > LONGEST_LINE:
            source.damage = f"a line of more than {LONGEST_LINE:,} characters"
            return
    if remainder:
        yield remainder


def number(text: str) -> float | None:
    """The number in a cell, with commas between thousands; None for N/A and everything else that is none.

    >>> number("1,215,000.50"), number("N/A"), number("nan")
    (1215000.5, None, None)
    """
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if abs(value) < 1e60 else None


def first(row: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The first of these columns that has something in it.

    >>> first({"Name": "", "Op Name": "MatMul"}, ("Name", "Op Name"))
    'MatMul'
    """
    return next((row[name] for name in names if row.get(name, "").strip() not in ("", "N/A")), "")


KERNEL_DETAILS, SUMMARY = "Ascend kernel_details", "msprof summary"
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
TYPES = {
    "FLOAT": "float", "FLOAT32": "float", "FLOAT16": "c10::Half", "DT_BF16": "c10::BFloat16", "BF16": "c10::BFloat16",
    "BFLOAT16": "c10::BFloat16", "INT8": "signed char", "UINT8": "unsigned char", "INT32": "int", "INT64": "long int",
    "BOOL": "bool", "DOUBLE": "double",
}  # fmt: skip


def recognises_ascend(head: bytes) -> bool:
    """Whether a file begins with the header of a table of kernels with their starts."""
    columns = _header(head)
    return any(name in columns for name in START) and any(name in columns for name in DURATION)


def _header(head: bytes) -> list[str]:
    line = head.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace")
    return [name.strip(' \r\t"') for name in line.split(",")]


def read_ascend(source: TraceSource) -> TracePart:
    """A table of kernels as a timeline of its own, its steps as marks."""
    rows, steps = RowColumns(), dict[str, tuple[int, int]]()
    for batch in _batches(source):
        _take_kernels(rows, batch, steps, source.nanos or NANOS)
        if rows.full:
            break
    if not rows.count:
        todo = "was anything running while the profiler was on?"
        raise refuse(source.path, "a table without kernels", KERNEL_DETAILS, todo)
    if source.damage:
        rows.warnings.insert(0, f"{source.damage}; the {rows.count:,} kernels before that are kept")
    if lost := rows.dropped["kernels without a readable time"]:
        rows.warnings.append(f"{lost:,} kernels without a readable time are left out")
    chip = next(iter(rows.processes))
    for step, (start, end) in steps.items():
        rows.add_places(np.array([start], np.int64), end - start, [(chip, "steps", f"step {step}", MARKER)])
    format = KERNEL_DETAILS if START[0] in _header(source.head()) else SUMMARY
    return rows.part(source.name, format, ranks=rows.chip_ranks(lambda name: (len(name), name)))


def records(source: TraceSource) -> Iterator[dict[str, str]]:
    """Rows of the table by column name."""
    header: list[str] = []
    for row in rows_of(source):
        if not header:
            header = [cell.strip() for cell in row]
        elif len(row) == len(header):
            yield dict(zip(header, row, strict=True))


def _batches(source: TraceSource) -> Iterator[list[dict[str, str]]]:
    table = records(source)
    return iter(lambda: list(islice(table, BATCH)), [])


def _take_kernels(rows: RowColumns, batch: list[dict[str, str]], steps: dict[str, tuple[int, int]], nanos: int) -> None:
    start, length = (nanoseconds([first(row, of).strip() for row in batch], nanos) for of in (START, DURATION))
    good = rows.readable(start, start + length, "kernels")
    kernels = [row for row, keep in zip(batch, good.tolist(), strict=True) if keep]
    start, length = start[good], length[good]
    for place, row in enumerate(kernels):
        rows.add_shape(rows.count + place, shape_of(row))
        step = row.get("Step Id", "").strip()
        if step.isdecimal() and len(step) < 10:
            begin, end = int(start[place]), int(start[place] + length[place])
            step_span = steps.get(step, (begin, end))
            steps[step] = min(step_span[0], begin), max(step_span[1], end)
    chips = (f"chip {first(row, DEVICE)[:20] or 0}" for row in kernels)
    places = ((chip, _stream(row), _name(row), _kind(row)) for chip, row in zip(chips, kernels, strict=True))
    rows.add_places(start, length, places)


def _name(row: Mapping[str, str]) -> str:
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


def attach_shapes(part: TracePart, source: TraceSource) -> TracePart:
    """The part of a trace with the shapes of the table beside it: kernels of equal name and, within 1 us, start."""
    table = read_ascend(source)
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


def _matches(part: TracePart, kernels: Rows, table: TracePart) -> tuple[Rows, Rows]:
    """Rows of kernels in the trace, and the rows of the table that are the same kernel."""
    by_name: dict[str, int] = {name.split(" [", 1)[0]: code for code, name in enumerate(table.tables.names)}
    matches: list[Rows] = [np.zeros(0, np.intp)]
    theirs: list[Rows] = [np.zeros(0, np.intp)]
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


# -- rocprofv3 ---------------------------------------------------------------------------------------------------------


ROCPROF = "rocprofv3 table"
TIMES = ("Start_Timestamp", "End_Timestamp")
NAMES = {"Kernel_Name": KERNEL, "Direction": MEMCPY, "Function": RUNTIME}


def recognises_rocprof(head: bytes) -> bool:
    """Whether a file begins with the header of such a table."""
    columns = ",".join(_header(head))
    return "Start_Timestamp" in columns and "End_Timestamp" in columns and any(name in columns for name in NAMES)


def read_rocprof(source: TraceSource) -> TracePart:
    """One table as columns; an `InputError` when it holds no span."""
    rows = RowColumns()
    for batch in _batches(source):
        start, end = (nanoseconds([row.get(of, "").strip() for row in batch], 1) for of in TIMES)
        good = rows.readable(start, end, "rows")
        spans = [row for row, keep in zip(batch, good.tolist(), strict=True) if keep]
        correlation = [_number(row.get("Correlation_Id", "").strip()) for row in spans]
        rows.add_places(start[good], (end - start)[good], map(_place, spans), correlation)
        if rows.full:
            break
    if not rows.count:
        raise refuse(source.path, "a table without spans", ROCPROF, "was anything running?")
    if source.damage:
        rows.warnings.insert(0, f"{source.damage}; the {rows.count:,} rows before that are kept")
    return rows.part(source.name, ROCPROF, ranks=rows.chip_ranks(str))


def _place(row: Mapping[str, str]) -> tuple[str, str, str, str]:
    kind = next((kind for column, kind in NAMES.items() if row.get(column, "").strip()), KERNEL)
    if kind == RUNTIME:
        process, thread = (first(row, (id,)) or "0" for id in ("Process_Id", "Thread_Id"))
        return f"host {process}", f"thread {thread}", row["Function"][:4096], kind
    agent = first(row, ("Agent_Id", "Destination_Agent_Id", "Source_Agent_Id")).replace("Agent ", "") or "0"
    lane = first(row, ("Stream_Id", "Queue_Id")) or "0"
    if kind == MEMCPY:
        return f"chip {agent[:40]}", f"copies {lane[:40]}", f"Memcpy {row['Direction'][:200]}", kind
    return f"chip {agent[:40]}", f"stream {lane[:40]}", row.get("Kernel_Name", "")[:4096], kind


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 18 else 0
