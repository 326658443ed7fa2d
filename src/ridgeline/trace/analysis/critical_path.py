"""Turn a graph of dependencies into its critical path: the chain of spans and waits that made the time what it is.

Walked backwards from the last work to end, each time along the edge that held the point back. What lies on the path
adds up to the span, to the nanosecond: time of work by class, of the host, of launches, of gaps and of waits nothing in
the trace explains. A span off the path has slack: so much later it could have ended without anybody noticing.
"""

from __future__ import annotations

from array import array
from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.trace.graph import edges
from ridgeline.trace.graph.dependency_graph import NEVER, DependencyGraph, EdgeCount, by_parts
from ridgeline.trace.timeline import Longs, Rows

HOST_PARTS = {
    edges.CALL: "host call", edges.ORDER: "host work", edges.HAND_OVER: "host work", edges.LAUNCH: "launch",
    edges.DEVICE_SYNC: "synchronisation", edges.SYNC: "synchronisation", edges.POLLING: "synchronisation",
    edges.QUEUE: "full queue", edges.STREAM: "between kernels", edges.CROSS: "between streams",
    edges.EVENT: "between streams", edges.SEND: "between ranks", edges.COLLECTIVE: "between ranks",
    edges.RECEIVE: "between ranks",
}  # fmt: skip
HOST_OP, WAITING, BEFORE = "host op", "unexplained wait", "before the path"
SPANS = 20  # named per path
STEPS = 100  # steps with a path of their own


P = TypeVar("P", bound="PathPart")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPart:
    """One sort of time on the path: a class of work, or what the host and the queues took."""

    id: str
    where: str
    """chip, host or between."""
    ns: int
    share: float

    JSON = "part=id where us=ns share"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStream(PathPart):
    """Time on the path by stream of a chip or thread of a host."""

    JSON = "stream=id us=ns share"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSpan:
    """A span on the path: its row and how long the path went through it."""

    row: int
    name: str
    ns: int

    JSON = "span_id=row name us=ns"


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The path through one window. Parts sum to its length."""

    step: int | None
    """None for the whole span."""
    start_ns: int
    end_ns: int
    parts: tuple[PathPart, ...]
    streams: tuple[PathStream, ...]
    """The same by stream of the chip or thread of the host."""
    spans: tuple[PathSpan, ...]
    """Longest first."""
    many: int
    """Spans on it."""

    JSON = "step? length_us spans_on_it=many parts streams spans"

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

    JSON = "class=id spans critical median_us"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathPieces:
    """Pieces of the path, last first: rows (-1 for waits), codes of labels, whether work, from when to when."""

    row: Longs
    label: Longs
    chip: Mask
    start: Longs
    end: Longs
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CriticalPaths:
    """The critical path of a timeline, by step and whole."""

    whole: CriticalPath
    steps: tuple[CriticalPath, ...]
    slack: tuple[Slack, ...]
    slack_ns: Longs
    """Of every span of `Graph.points.work`."""
    edges: tuple[EdgeCount, ...]
    """What the path rests on: dependencies by kind, recorded or inferred."""
    pieces: PathPieces
    """All of it, to be drawn."""

    JSON = "*whole steps slack dependencies=edges"


def critical_path(graph: DependencyGraph) -> CriticalPaths | None:
    """The critical path; None where nothing counts."""
    work = graph.points.counted_rows
    if not len(work):
        return None
    walk = _walk(graph, int(graph.points.end(work)[np.argmax(graph.at[graph.points.end(work)])]))
    begin = int(graph.at[graph.points.start(work)].min())
    end = int(graph.at[graph.points.end(work)].max())
    slack = _slack(graph)
    return CriticalPaths(
        whole=_path(graph, walk, begin, end, None),
        steps=tuple(_path(graph, walk, *window) for window in windows(graph)),
        slack=tuple(_by_class(graph, work, slack)),
        slack_ns=slack[graph.points.end(work)],
        edges=graph.counts,
        pieces=walk,
    )


def windows(graph: DependencyGraph) -> Iterator[tuple[int, int, int]]:
    """Steps as the chips see them: from the last end of the step before (or the first start) to its own last end."""
    at = int(graph.at[graph.points.start(graph.points.work)].min()) if len(graph.points.work) else 0
    for number, until in step_ends(graph, graph.at)[:STEPS]:
        if until > at:
            yield at, until, number
            at = until


def step_ends(graph: DependencyGraph, at: Longs) -> list[tuple[int, int]]:
    """Every step with its last end, at given times of the points."""
    work = graph.points.work[graph.line.step[graph.points.work] >= 0]
    numbers, inverse = np.unique(graph.line.step[work], return_inverse=True)
    ends = np.full(len(numbers), NEVER, np.int64)
    np.maximum.at(ends, inverse, at[graph.points.end(work)])
    return list(zip(numbers.tolist(), ends.tolist(), strict=True))


def _binding(graph: DependencyGraph) -> Longs:
    """For every point the edge that held it back, -1 for none; of several the first kind."""
    binding_edge = np.full(len(graph.at), -1, np.int64)
    if not len(graph.dst):
        return binding_edge
    first = np.flatnonzero(np.concatenate([[True], graph.dst[1:] != graph.dst[:-1]]))  # edges of one target together
    many = np.diff(np.concatenate([first, [len(graph.dst)]]))
    reach = graph.at[graph.src] + graph.lag
    kind = np.where(reach == np.repeat(np.maximum.reduceat(reach, first), many), graph.kind, len(edges.EDGES))
    best = np.flatnonzero(kind == np.repeat(np.minimum.reduceat(kind, first), many))[::-1]
    binding_edge[graph.dst[best]] = best  # of several the first, which is written last
    return binding_edge


def _walk(graph: DependencyGraph, last: int) -> PathPieces:
    binding = _binding(graph)
    before = np.full(len(graph.at), -1, np.int64)
    before[binding >= 0] = graph.src[binding[binding >= 0]]
    chain, step = [last], before.data
    while (source := step[chain[-1]]) >= 0:
        chain.append(source)
    points = np.array(chain, np.int64)
    target, source_of = points[:-1], points[1:]
    edge = binding[target]
    cursor = np.minimum.accumulate(graph.at[points])
    begin, until = cursor[1:], cursor[:-1]
    kind, row = graph.kind[edge], graph.row_of(target)
    body = (kind == edges.BODY) | (
        np.isin(kind, (edges.COLLECTIVE, edges.RECEIVE)) & (row >= 0) & (source_of >= len(graph.points.at))
    )
    by_itself = body | (kind == edges.CALL)
    reach_ns = np.where(by_itself, begin, np.clip(graph.at[source_of] + graph.lag[edge], begin, until))
    names, class_codes, waits, kinds = _labels(graph)
    labels = np.where(body, class_codes[graph.line.class_[np.maximum(row, 0)]], kinds[kind])
    short = np.isin(kind, (edges.STREAM, edges.LAUNCH)) & (
        until - reach_ns <= np.where(kind == edges.LAUNCH, edges.LONGEST_DELAY_NS, edges.CLOSE_NS)
    )
    late = np.where(by_itself, labels, np.where(short, kinds[kind], waits))
    columns = (
        np.stack([np.where(by_itself, row, -1), np.full(len(row), -1)], axis=1).ravel(),
        np.stack([late, kinds[kind]], axis=1).ravel(),
        np.stack([reach_ns, begin], axis=1).ravel(),
        np.stack([until, reach_ns], axis=1).ravel(),
    )
    lasting = columns[3] > columns[2]
    row, label, start, end = (column[lasting] for column in columns)
    chip = (row >= 0) & graph.line.is_work[np.maximum(row, 0)]
    return PathPieces(row=row, label=label, chip=chip, start=start, end=end, labels=names)


def _labels(graph: DependencyGraph) -> tuple[tuple[str, ...], Longs, int, Longs]:
    """Labels of a path: all of them, then codes by class, of an unexplained wait, and by kind of edge."""
    table: dict[str, int] = {}
    parts = HOST_PARTS if len(graph.points.work) else {**HOST_PARTS, edges.CALL: HOST_OP}
    classes = np.array([table.setdefault(id or HOST_OP, len(table)) for id in graph.line.classes] or [0], np.int64)
    waits = table.setdefault(WAITING, len(table))
    kinds = np.array(
        [table.setdefault(parts.get(code, HOST_OP), len(table)) for code in range(len(edges.EDGES))], np.int64
    )
    return tuple(table), classes, waits, kinds


def _path(graph: DependencyGraph, walk: PathPieces, begin: int, end: int, step: int | None) -> CriticalPath:
    line = graph.line
    # pieces descend and touch
    first, last = int(np.searchsorted(-walk.start, -end, side="right")), int(np.searchsorted(-walk.end, -begin))
    row, label, chip = walk.row[first:last], walk.label[first:last], walk.chip[first:last]
    inside = np.minimum(walk.end[first:last], end) - np.maximum(walk.start[first:last], begin)
    length = max(1, end - begin)
    has_row = row >= 0
    track = np.where(has_row, graph.points.line.tracks(np.maximum(row, 0)), -1)
    parts: Tally[tuple[str, str]] = Tally()
    streams: Tally[tuple[str, str]] = Tally()
    for (code, on_chip, track_code), ns in _sums(inside, label, chip, track):
        name = walk.labels[code]
        where = "chip" if on_chip else "between" if name.startswith(("between", "unexplained")) else "host"
        parts[name, where] += ns
        process, stream = divmod(track_code, max(1, len(line.streams)))
        streams[f"{line.processes[process]} {line.streams[stream]}" if track_code >= 0 else name, where] += ns
    if (before := length - int(inside.sum())) > 0 and end > begin:
        parts[BEFORE, "between"] += before
        streams[BEFORE, "between"] += before
    rows, spans = _longest(row[has_row], inside[has_row])
    return CriticalPath(
        step=step,
        start_ns=begin,
        end_ns=end,
        parts=_parts(PathPart, parts, length),
        streams=_parts(PathStream, streams, length),
        spans=tuple(PathSpan(row=span_row, name=line.names[int(line.name[span_row])], ns=ns) for span_row, ns in spans),
        many=rows,
    )


def _sums(inside: Longs, label: Longs, chip: Mask, track: Longs) -> Iterator[tuple[tuple[int, bool, int], int]]:
    """Time by label, place and track, in the order they first appear."""
    if not len(inside):
        return
    key = (label * 2 + chip) * (int(track.max()) + 2) + track + 1
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    sums = np.zeros(len(first), np.int64)
    np.add.at(sums, inverse, inside)
    for place in np.argsort(first).tolist():
        at = int(first[place])
        yield (int(label[at]), bool(chip[at]), int(track[at])), int(sums[place])


def _longest(row: Longs, ns: Longs) -> tuple[int, list[tuple[int, int]]]:
    rows, first, inverse = np.unique(row, return_index=True, return_inverse=True)
    sums = np.zeros(len(rows), np.int64)
    np.add.at(sums, inverse, ns)
    order = np.lexsort((first, -sums))[:SPANS]
    return len(rows), list(zip(rows[order].tolist(), sums[order].tolist(), strict=True))


def _parts(kind: type[P], tally: Tally[tuple[str, str]], length: int) -> tuple[P, ...]:
    return tuple(kind(id=id, where=where, ns=ns, share=ns / length) for (id, where), ns in tally.most_common() if ns)


def _slack(graph: DependencyGraph) -> Longs:
    """How much later each point could have been without the last work ending later."""
    work = graph.points.counted_rows
    ends = graph.points.end(work)
    bounds = np.full(len(graph.at), 2**62, np.int64)  # what the host does after the last work holds nobody up
    bounds[ends] = graph.at[ends].max(initial=0)
    late = array("q", bounds.tobytes())
    needed_ns = graph.delay[graph.dst] + graph.lag
    for source, target, need in by_parts(graph.src[::-1], graph.dst[::-1], needed_ns[::-1]):
        bound = late[target] - need  # targets descend in the order, so each is final when it is read
        if bound < late[source]:
            late[source] = bound
    return np.frombuffer(late, np.int64) - graph.at


def _by_class(graph: DependencyGraph, work: Rows, slack: Longs) -> Iterator[Slack]:
    end_slack = slack[graph.points.end(work)]
    codes = graph.line.class_[work]
    for code in np.unique(codes).tolist():
        values = end_slack[codes == code]
        id, critical = graph.line.classes[code] or HOST_OP, int((values <= 0).sum())
        yield Slack(id=id, spans=len(values), critical=critical, median_ns=int(np.median(values)))
