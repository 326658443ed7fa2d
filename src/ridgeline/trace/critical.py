"""Turn a graph of dependencies into its critical path: the chain of spans and waits that made the time what it is.

Walked backwards from the last work to end, each time along the edge that held the point back. What lies on the path
adds up to the span, to the nanosecond: time of work by class, of the host, of launches, of gaps and of waits nothing in
the trace explains. A span off the path has slack: so much later it could have ended without anybody noticing.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.edges import (
    BODY,
    CALL,
    CROSS,
    DEVICE_SYNC,
    EVENT,
    HAND_OVER,
    LAUNCH,
    MEET,
    ORDER,
    QUEUE,
    SEND,
    STREAM,
    SYNC,
)
from ridgeline.trace.graph import NEVER, EdgeCount, Graph

Longs = NDArray[np.int64]
HOST_PARTS = {
    CALL: "host call", ORDER: "host work", HAND_OVER: "host work", LAUNCH: "launch", DEVICE_SYNC: "synchronisation",
    SYNC: "synchronisation", QUEUE: "full queue", STREAM: "between kernels", CROSS: "between streams",
    EVENT: "between streams", SEND: "between ranks", MEET: "between ranks",
}  # fmt: skip
HOST_OP, WAITING, BEFORE = "host op", "unexplained wait", "before the path"
SPANS = 20  # named per path
STEPS = 100  # steps with a path of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPart:
    """One sort of time on the path: a class of work, or what the host and the queues took."""

    id: str
    where: str
    """chip, host or between."""
    ns: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSpan:
    """A span on the path: its row and how long the path went through it."""

    row: int
    ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The path through one window. Parts sum to its length."""

    step: int | None
    """None for the whole span."""
    start_ns: int
    end_ns: int
    parts: tuple[PathPart, ...]
    streams: tuple[PathPart, ...]
    """The same by stream of the chip or thread of the host."""
    spans: tuple[PathSpan, ...]
    """Longest first."""
    many: int
    """Spans on it."""

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """How far from the path the work of a class is."""

    id: str
    spans: int
    critical: int
    """Spans without slack."""
    median_ns: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Critical:
    """The critical path of a timeline, by step and whole."""

    whole: Path
    steps: tuple[Path, ...]
    slack: tuple[Slack, ...]
    slack_ns: Longs
    """Of every span of `Graph.points.work`."""
    edges: tuple[EdgeCount, ...]
    """What the path rests on: dependencies by kind, recorded or inferred."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Walk:
    """Pieces of the path, last first: rows (-1 for waits), codes of labels, from when to when."""

    row: Longs
    label: Longs
    start: Longs
    end: Longs
    labels: tuple[str, ...]


def critical_path(graph: Graph) -> Critical | None:
    """The critical path; None where nothing counts."""
    work = graph.points.work if len(graph.points.work) else graph.points.calls
    if not len(work):
        return None
    walk = _walk(graph, int(graph.points.end(work)[np.argmax(graph.at[graph.points.end(work)])]))
    begin = int(graph.at[graph.points.start(work)].min())
    end = int(graph.at[graph.points.end(work)].max())
    slack = _slack(graph)
    return Critical(
        whole=_path(graph, walk, begin, end, None),
        steps=tuple(_path(graph, walk, *window) for window in windows(graph)),
        slack=tuple(_by_class(graph, work, slack)),
        slack_ns=slack[graph.points.end(work)],
        edges=graph.counts,
    )


def windows(graph: Graph) -> Iterator[tuple[int, int, int]]:
    """Steps as the chips see them: from the last end of the step before (or the first start) to its own last end."""
    at = int(graph.at[graph.points.start(graph.points.work)].min()) if len(graph.points.work) else 0
    for number, until in step_ends(graph, graph.at)[:STEPS]:
        if until > at:
            yield at, until, number
            at = until


def step_ends(graph: Graph, at: Longs) -> list[tuple[int, int]]:
    """Every step with its last end, at given times of the points."""
    work = graph.points.work[graph.line.step[graph.points.work] >= 0]
    numbers, inverse = np.unique(graph.line.step[work], return_inverse=True)
    ends = np.full(len(numbers), NEVER, np.int64)
    np.maximum.at(ends, inverse, at[graph.points.end(work)])
    return list(zip(numbers.tolist(), ends.tolist(), strict=True))


def _binding(graph: Graph) -> Longs:
    """For every point the edge that held it back, -1 for none; of several the first kind."""
    reach = graph.at[graph.src] + graph.lag
    order = np.lexsort((graph.kind, -reach, graph.dst))
    first = np.concatenate([[True], np.diff(graph.dst[order]) != 0]) if len(order) else np.zeros(0, np.bool_)
    found = np.full(len(graph.at), -1, np.int64)
    found[graph.dst[order[first]]] = order[first]
    return found


def _walk(graph: Graph, last: int) -> _Walk:
    binding, at = _binding(graph).tolist(), graph.at.tolist()
    rows = graph.row_of(np.arange(len(at))).tolist()
    source_of, lag, kinds = graph.src.tolist(), graph.lag.tolist(), graph.kind.tolist()
    classes, class_ = graph.line.classes, graph.line.class_
    labels: dict[str, int] = {}
    made: list[tuple[int, int, int, int]] = []

    def add(row: int, label: str, start: int, end: int) -> None:
        if end > start:
            made.append((row, labels.setdefault(label, len(labels)), start, end))

    point, cursor = last, at[last]
    while binding[point] >= 0:
        edge = binding[point]
        source, kind, row = source_of[edge], kinds[edge], rows[point]
        begin = min(at[source], cursor)
        if kind == BODY or (kind == MEET and row >= 0):
            add(row, classes[int(class_[row])] or HOST_OP, begin, cursor)
        elif kind == CALL:
            add(row, HOST_PARTS[kind] if len(graph.points.work) else HOST_OP, begin, cursor)
        else:
            reached = max(begin, min(cursor, at[source] + lag[edge]))
            add(-1, HOST_PARTS[kind] if kind in (STREAM, LAUNCH) else WAITING, reached, cursor)
            add(-1, HOST_PARTS[kind], begin, reached)
        cursor, point = begin, source
    columns = np.array(made, np.int64).reshape(-1, 4).T
    return _Walk(row=columns[0], label=columns[1], start=columns[2], end=columns[3], labels=tuple(labels))


def _path(graph: Graph, walk: _Walk, begin: int, end: int, step: int | None) -> Path:
    line = graph.line
    inside = np.minimum(walk.end, end) - np.maximum(walk.start, begin)
    chosen = inside > 0
    inside, row, label = inside[chosen], walk.row[chosen], walk.label[chosen]
    length = max(1, end - begin)
    known = row >= 0
    chip = known & line.is_work[np.maximum(row, 0)] if len(line) else known
    parts: Tally[tuple[str, str]] = Tally()
    streams: Tally[tuple[str, str]] = Tally()
    for code, on_chip in {(int(code), bool(on)) for code, on in zip(label, chip, strict=True)}:
        name = walk.labels[code]
        own = (label == code) & (chip == on_chip)
        where = "chip" if on_chip else "between" if name.startswith(("between", "unexplained")) else "host"
        parts[name, where] += int(inside[own].sum())
        for track in np.unique(graph.points.track(row[own & known])).tolist():
            process, stream = divmod(int(track), max(1, len(line.streams)))
            on = own & known
            on[known] &= graph.points.track(row[known]) == track
            streams[f"{line.processes[process]} {line.streams[stream]}", where] += int(inside[on].sum())
        streams[name, where] += int(inside[own & ~known].sum())
    if int(inside.sum()) < length and end > begin:
        parts[BEFORE, "between"] += length - int(inside.sum())
        streams[BEFORE, "between"] += length - int(inside.sum())
    spans: Tally[int] = Tally()
    for one, ns in zip(row[known].tolist(), inside[known].tolist(), strict=True):
        spans[one] += ns
    return Path(
        step=step,
        start_ns=begin,
        end_ns=end,
        parts=_parts(parts, length),
        streams=_parts(streams, length),
        spans=tuple(PathSpan(row=one, ns=ns) for one, ns in spans.most_common(SPANS)),
        many=len(spans),
    )


def _parts(tally: Tally[tuple[str, str]], length: int) -> tuple[PathPart, ...]:
    return tuple(
        PathPart(id=id, where=where, ns=ns, share=ns / length) for (id, where), ns in tally.most_common() if ns
    )


def _slack(graph: Graph) -> Longs:
    """How much later each point could have been without the last work ending later."""
    work = graph.points.work if len(graph.points.work) else graph.points.calls
    ends = graph.points.end(work)
    bounds = np.full(len(graph.at), 2**62, np.int64)  # what the host does after the last work holds nobody up
    bounds[ends] = graph.at[ends].max(initial=0)
    late = bounds.tolist()
    delay = graph.delay.tolist()
    edges = zip(graph.src.tolist()[::-1], graph.dst.tolist()[::-1], graph.lag.tolist()[::-1], strict=True)
    for source, target, lag in edges:  # targets descend in the order, so each is final when it is read
        bound = late[target] - delay[target] - lag
        if bound < late[source]:
            late[source] = bound
    return np.array(late, np.int64) - graph.at


def _by_class(graph: Graph, work: NDArray[np.intp], slack: Longs) -> Iterator[Slack]:
    own = slack[graph.points.end(work)]
    codes = graph.line.class_[work]
    for code in np.unique(codes).tolist():
        values = own[codes == code]
        yield Slack(
            id=graph.line.classes[code] or HOST_OP,
            spans=len(values),
            critical=int((values <= 0).sum()),
            median_ns=int(np.median(values)),
        )
