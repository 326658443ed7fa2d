"""Turn the capture of a graph into what the kernels of its replays compute: the ops, in the order they were captured.

While a stream is captured, ops run and call launches, but nothing runs on the chip; a replay later runs all of it from
one call. The n-th launch of the capture is the n-th span of the replay:

    capture    calls that launch, between StreamBeginCapture and StreamEndCapture of a thread, in ops with operands
    replay     the spans that one GraphLaunch launched, in the order they began
    the same   as many of both, and, where several captures have as many, the smallest whose tokens hold the step's

The capture may be in the trace itself, or in files recorded when the engine started (`--capture PATH`); a file
that does not show begin and end is one capture of the launches of which nothing ran.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.arrays import Mask
from ridgeline.ir.kernel import Kernel
from ridgeline.trace.analysis.inference import Inference
from ridgeline.trace.analysis.op_kernels import op_kernel
from ridgeline.trace.analysis.served_shapes import PricedSpan
from ridgeline.trace.call_stack import parents
from ridgeline.trace.classes import GRAPH
from ridgeline.trace.side_tables import RecordedShape
from ridgeline.trace.timeline import RUNTIME, Timeline

BEGIN = re.compile(r"StreamBeginCapture", re.IGNORECASE)
END = re.compile(r"StreamEndCapture", re.IGNORECASE)
LAUNCHES = re.compile(
    r"Launch(Cooperative)?Kernel|ModuleLaunch|Memcpy\w*Async|MemcpyWithStream|Memset\w*Async", re.IGNORECASE
)
UP = 6  # ops looked at above a launch until one has a formula and shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedOp:
    """The op around a captured launch; empty where none has a formula and operands."""

    call: int
    op: str = ""
    operands: str = ""
    kernel: Kernel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The launches of one captured graph, in order."""

    launches: tuple[CapturedOp, ...]
    tokens: int
    """First dimension that most of its operands share, 0 for none."""


def captures(line: Timeline) -> tuple[Capture, ...]:
    """The graphs that were captured while a timeline was recorded."""
    calls = np.flatnonzero(line.of_kind(RUNTIME))
    begins, ends = calls[line.named(BEGIN, calls)], calls[line.named(END, calls)]
    launching = calls[line.named(LAUNCHES, calls) & ~line.named(GRAPH, calls)]
    if not len(begins) or not len(ends):
        return _whole_capture(line, launching)
    above = parents(line)
    captures_ = []
    for begin in begins.tolist():
        track = line.tracks(np.array([begin]))[0]
        later = ends[(line.tracks(ends) == track) & (line.start_ns[ends] >= line.end_ns[begin])]
        if not len(later):
            continue
        track_launches = launching[line.tracks(launching) == track]
        start = line.start_ns[track_launches]
        track_launches = track_launches[(start >= line.end_ns[begin]) & (start < line.start_ns[later[0]])]
        if len(track_launches):
            captures_.append(_capture(line, track_launches, above))
    return tuple(captures_)


def _whole_capture(line: Timeline, launching: NDArray[np.intp]) -> tuple[Capture, ...]:
    """A file that shows a capture without its begin and end: the launches of which nothing ran."""
    launching = launching[~np.isin(launching, line.launch)]
    if len(launching) < 2:
        return ()
    tracks = line.tracks(launching)
    busiest = np.bincount(np.unique(tracks, return_inverse=True)[1]).argmax()
    return (_capture(line, launching[tracks == np.unique(tracks)[busiest]], parents(line)),)


def _capture(line: Timeline, calls: NDArray[np.intp], above: NDArray[np.int32]) -> Capture:
    launches, firsts = [], Counter[int]()
    for call in calls.tolist():
        at, annotation = int(above[call]), None
        for _ in range(UP):
            if at < 0:
                break
            code = int(line.detail.shape.at(np.array([at]))[0])
            work = op_kernel(line.names[line.name[at]], line.detail.shapes[code]) if code >= 0 else None
            if work is not None:
                shape = line.detail.shapes[code]
                annotation = CapturedOp(call=at, op=line.names[line.name[at]], operands=operands_of(shape), kernel=work)
                firsts.update([dims[0] for dims in shape.dims[:1] if len(dims) > 1 and isinstance(dims[0], int)])
                break
            at = int(above[at])
        launches.append(annotation or CapturedOp(call=call))
    return Capture(launches=tuple(launches), tokens=firsts.most_common(1)[0][0] if firsts else 0)


def operands_of(shape: RecordedShape) -> str:
    """Sizes of the operands of an op in words."""
    return " ".join("x".join(map(str, dims)) for dims in shape.dims if dims and not isinstance(dims[0], tuple))


def replayed_spans(
    line: Timeline, counted: Mask, known: Sequence[Capture], engine: Inference | None
) -> tuple[PricedSpan, ...]:
    """What the spans of every replay compute, by the capture it is the replay of; nothing where none fits."""
    if not known:
        return ()
    launched_rows = np.flatnonzero(counted & (line.launch >= 0))
    launched_rows = launched_rows[line.named(GRAPH, line.launch[launched_rows])]
    spans: list[PricedSpan] = []
    for call in np.unique(line.launch[launched_rows]).tolist():
        rows = launched_rows[line.launch[launched_rows] == call]
        rows = rows[np.argsort(line.start_ns[rows], kind="stable")]
        chosen = _fitting(known, len(rows), _tokens(line, call, engine))
        if chosen is not None:
            spans += _pair_launches(rows.tolist(), chosen, call)
    return tuple(spans)


def _pair_launches(rows: Sequence[int], chosen: Capture, call: int) -> Iterator[PricedSpan]:
    for row, launch in zip(rows, chosen.launches, strict=True):
        if launch.kernel is not None:
            yield PricedSpan(
                row=row, op=launch.op, operands=launch.operands, kernel=launch.kernel, call=(call, launch.call)
            )


def _tokens(line: Timeline, call: int, engine: Inference | None) -> int:
    """Tokens of the step in which a call was made, 0 where nobody says."""
    at = int(line.start_ns[call])
    for step in engine.steps if engine is not None else ():
        if line.start_ns[step.row] <= at < line.end_ns[step.row]:
            return step.tokens
    return 0


def _fitting(known: Sequence[Capture], spans: int, tokens: int) -> Capture | None:
    """The capture of a replay with so many spans; None where it cannot be told."""
    fitting = [capture for capture in known if len(capture.launches) == spans]
    if len({capture.launches for capture in fitting}) <= 1:
        return fitting[0] if fitting else None
    holding = [capture for capture in fitting if capture.tokens >= tokens > 0]
    return min(holding, key=lambda one: one.tokens) if holding else None
