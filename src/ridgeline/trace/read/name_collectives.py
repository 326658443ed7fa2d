"""Turn the spans around a launch into the record of a collective, for communication kernels that carry none.

Older profilers write what a kernel moves only beside its launch, as a span of the host: `nccl:all_to_all` with the
operands of the call, or the op `c10d::alltoall_base_` around it. The kernel's name says less: an all-to-all of NCCL is
a kernel named SendRecv, and without the record it looks like a pipeline's sends.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.side_tables import RecordedCollective, RecordedShape, SideTables, Sparse
from ridgeline.trace.timeline import ANNOTATION, HOST, KERNEL, Timeline

SPAN = re.compile(r"^(?:nccl|rccl|hccl|xccl|ccl|ucc|mpi|gloo):(\w+)(?: (\d{1,7})(->|<-)(\d{1,7}))?")
OP = re.compile(r"^c10d::(\w+?)_?$")
KERNELS = re.compile(r"[nrhx]ccl|oneccl|ccl_?kernel", re.IGNORECASE)
BACK = 4  # spans that began last, among which the one around a launch is sought
WORDS = {
    "float": "Float", "double": "Double", "c10::Half": "Half", "c10::BFloat16": "BFloat16", "long int": "Long",
    "long": "Long", "int": "Int", "unsigned char": "Byte", "signed char": "Char", "short": "Short", "bool": "Byte",
    "c10::Float8_e4m3fn": "Float8_e4m3fn", "c10::Float8_e5m2": "Float8_e5m2",
}  # fmt: skip
"""Types of operands as a record of a collective calls them."""
Rows = NDArray[np.intp]


def name_collectives(line: Timeline) -> Timeline:
    """The timeline with a record for every communication kernel whose launch stands inside a span that names it."""
    kernels = np.flatnonzero(line.of_kind(KERNEL) & (line.launch >= 0) & line.named(KERNELS))
    kernels = kernels[line.detail.collective.at(kernels) < 0]
    if not len(kernels):
        return line
    host = line.of_kind(HOST, ANNOTATION)
    detail = line.detail
    for pattern in (SPAN, OP):
        spans = np.flatnonzero(host & line.named(pattern))
        enclosing = _enclosing_spans(line, kernels, spans)
        detail = _record_collectives(line, detail, kernels[enclosing >= 0], enclosing[enclosing >= 0], pattern)
        kernels = kernels[enclosing < 0]
    return replace(line, detail=detail)


def _enclosing_spans(line: Timeline, kernels: Rows, spans: Rows) -> Rows:
    """For each kernel the last-begun of these spans around its launch, on the thread of that; -1 for none."""
    enclosing = np.full(len(kernels), -1, np.intp)
    call = line.launch[kernels].astype(np.intp)
    span_tracks, call_tracks = line.tracks(spans), line.tracks(call)
    for track in np.unique(span_tracks).tolist():
        rows, track_calls = spans[span_tracks == track], np.flatnonzero(call_tracks == track)
        times = line.start_ns[call[track_calls]]
        place = np.searchsorted(line.start_ns[rows], times, side="right") - 1
        for back in range(BACK):
            at = place - back
            row = rows[np.maximum(at, 0)]
            inside = (at >= 0) & (times < line.end_ns[row]) & (enclosing[track_calls] < 0)
            enclosing[track_calls[inside]] = row[inside]
    return enclosing


def _record_collectives(
    line: Timeline, detail: SideTables, kernels: Rows, around: Rows, pattern: re.Pattern[str]
) -> SideTables:
    if not len(kernels):
        return detail
    table: dict[RecordedCollective, int] = {collective: place for place, collective in enumerate(detail.collectives)}
    shape = line.detail.shape.at(around)
    codes = [
        table.setdefault(_record(line, int(name), int(place), pattern), len(table))
        for name, place in zip(line.name[around].tolist(), shape.tolist(), strict=True)
    ]
    rows = np.concatenate([detail.collective.rows, kernels.astype(np.int32)])
    values = np.concatenate([detail.collective.values, np.array(codes, np.int64)])
    order = np.argsort(rows, kind="stable")
    return replace(detail, collective=Sparse(rows=rows[order], values=values[order]), collectives=tuple(table))


def _record(line: Timeline, name: int, shape: int, pattern: re.Pattern[str]) -> RecordedCollective:
    match = pattern.match(line.names[name])
    word = match[1] if match else ""
    ends = (int(match[2]), match[3], int(match[4])) if match and pattern is SPAN and match[2] else None
    operands = line.detail.shapes[shape] if shape >= 0 else RecordedShape()
    elements, dtype = _payload(operands)
    size = line.about.world_size
    gathers, scatters = "gather" in word, "scatter" in word
    return RecordedCollective(
        name=word,
        dtype=dtype,
        in_elements=elements,
        out_elements=elements * size if gathers and size else elements // size if scatters and size else elements,
        group_size=size,
        from_rank=ends[2] if ends and ends[1] == "<-" else -1,
        to_rank=ends[2] if ends and ends[1] == "->" else -1,
    )


def _payload(operands: RecordedShape) -> tuple[int, str]:
    """Elements of the first operand, which is what a rank puts in, and their type; 0 and empty where nobody says."""
    for dims, kind in zip(operands.dims, operands.types, strict=False):
        if dims and kind in WORDS:
            return _count(dims), WORDS[kind]
    return 0, ""


def _count(dims: Any) -> int:
    return sum(_count(dim) for dim in dims) if dims and isinstance(dims[0], tuple) else prod(dims)
