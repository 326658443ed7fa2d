"""Turn annotations of the host into step numbers, and into records of collectives whose kernels carry none.

Host spans belong to the step whose annotation (`ProfilerStep#7`, `step 7`) they start in, work to the step of the call
that launched it, unlinked work to the step whose mark on its device covers it (of XLA on a host: whose annotation it
starts in). Annotations without a number are counted from 0. Without any a step ends where an optimizer's annotation
ends. Older profilers write what a communication kernel moves only beside its launch: `nccl:all_to_all` with the
operands of the call, or the op `c10d::alltoall_base_` around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.trace.timeline import (
    ANNOTATION,
    HOST,
    KERNEL,
    MARKER,
    NOT_WORK,
    Codes,
    Dims,
    Longs,
    RecordedCollective,
    RecordedShape,
    Rows,
    SideTables,
    Sparse,
    Timeline,
)

NUMBERED = re.compile(
    r"^(?:ProfilerStep|(?:train(?:ing)?[ _])?(?:step|iteration|iter))[ _#:=]{0,2}(\d{1,9})$", re.IGNORECASE
)
PLAIN = re.compile(r"^(?:train(?:ing)?[ _-]?)?(?:step|iteration|iter)$", re.IGNORECASE)
OPTIMIZER = re.compile(r"^Optimizer\.step#")
XLA = "XLA"
TAIL = 0.2  # of a step: what follows the last optimizer and is shorter than this still belongs to it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """Steps in time: ascending starts, ends, numbers."""

    start: Longs
    end: Longs
    number: Longs

    def at(self, times: Longs) -> Codes:
        """The step each instant lies in, -1 outside all."""
        place = np.searchsorted(self.start, times, side="right") - 1
        inside = (place >= 0) & (times < self.end[np.maximum(place, 0)])
        return np.where(inside, self.number[np.maximum(place, 0)], -1).astype(np.int32)


def mark_steps(line: Timeline) -> Timeline:
    """The timeline with the step of every span filled in."""
    step = np.full(len(line), -1, np.int32)
    work, rank = line.is_work, line.rank
    host = line.of_kind(*(kind for kind in NOT_WORK if kind != MARKER))
    for rank_id in sorted(set(line.tables.ranks)):
        of_rank = rank == rank_id
        windows = _windows(line, of_rank & line.of_kind(ANNOTATION))
        if windows is not None:
            rows = np.flatnonzero(of_rank & host)
            step[rows] = windows.at(line.start_ns[rows])
    rows = np.flatnonzero(work & (line.launch >= 0))
    step[rows] = step[line.launch[rows]]
    for rank_id in sorted(set(line.tables.ranks)):
        of_rank = rank == rank_id
        for process in np.unique(line.process[of_rank]).tolist():
            _by_marks(line, step, of_rank & (line.process == process))
    return replace(line, step=step)


def _by_marks(line: Timeline, step: Codes, own: Mask) -> None:
    """Unlinked work and marks of one device get the step whose mark covers their start."""
    windows = _windows(line, own & line.of_kind(MARKER), optimizers=False)
    if windows is None and line.about.format.startswith(XLA):
        windows = _windows(line, line.of_kind(ANNOTATION), optimizers=False)
    if windows is None:
        return
    rows = np.flatnonzero(own & (line.launch < 0) & (line.is_work | line.of_kind(MARKER)))
    step[rows] = windows.at(line.start_ns[rows])


def _windows(line: Timeline, chosen: Mask, *, optimizers: bool = True) -> Windows | None:
    rows = np.flatnonzero(chosen)
    numbers = {code: int(match[1]) for code, match in _matching(line, rows, NUMBERED)}
    if numbers:
        marked_rows = rows[np.isin(line.name[rows], list(numbers))]
        start, end = line.start_ns[marked_rows], line.end_ns[marked_rows]
        number = np.array([numbers[code] for code in line.name[marked_rows].tolist()], np.int64)
        return Windows(start=start, end=end, number=number)
    plain = rows[np.isin(line.name[rows], [code for code, _ in _matching(line, rows, PLAIN)])]
    if len(plain) > 1:
        return Windows(start=line.start_ns[plain], end=line.end_ns[plain], number=np.arange(len(plain)))
    ends = [code for code, _ in _matching(line, rows, OPTIMIZER)] if optimizers else []
    marked_rows = rows[np.isin(line.name[rows], ends)]
    if not len(marked_rows):
        return None
    end = np.sort(line.end_ns[marked_rows])
    start = np.concatenate([[np.iinfo(np.int64).min], end[:-1]])
    rank = line.rank == line.rank[marked_rows[0]]
    last = int(line.end_ns[rank].max())
    typical = int(np.median(np.diff(end))) if len(end) > 1 else int(end[0] - line.start_ns[rank].min())
    if last - end[-1] < TAIL * typical:
        end[-1] = last + 1
    return Windows(start=start, end=end, number=np.arange(len(end)))


def _matching(line: Timeline, rows: Rows, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
    for code in np.unique(line.name[rows]).tolist():
        match = pattern.match(line.names[code])
        if match:
            yield code, match


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


def name_collectives(line: Timeline) -> Timeline:
    """The timeline with a record for every communication kernel whose launch stands inside a span that names it."""
    kernels = np.flatnonzero(line.of_kind(KERNEL) & (line.launch >= 0) & line.match_names(KERNELS))
    kernels = kernels[line.detail.collective.at(kernels) < 0]
    if not len(kernels):
        return line
    host = line.of_kind(HOST, ANNOTATION)
    detail = line.detail
    for pattern in (SPAN, OP):
        spans = np.flatnonzero(host & line.match_names(pattern))
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


def _count(dims: Dims) -> int:
    return sum(_count(dim) for dim in dims) if dims and isinstance(dims[0], tuple) else prod(dims)
