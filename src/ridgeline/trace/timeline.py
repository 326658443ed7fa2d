"""Turn spans into columns: a step of a large run is a few hundred thousand intervals, a few dozen bytes each.

A span is one interval on one stream of one process; what repeats (process, stream, name, kind, class) is a small
integer into a table of texts. Times are whole nanoseconds, and rows are in one fixed order, so that equal content is
equal bytes. Predicted and measured work have the same columns. What few spans carry stands in sparse side tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.documents import JsonMapping
from ridgeline.core.records import NotebookValue
from ridgeline.core.units import DECIMAL

Rows = NDArray[np.intp]
"""Rows of a timeline, to choose by."""
Longs = NDArray[np.int64]
"""Nanoseconds, and points of a graph."""
Codes = NDArray[np.int32]
"""Positions in a table of texts, or rows of a timeline."""
Classes = NDArray[np.int16]
Layers = NDArray[np.int16]
Bytes = NDArray[np.int8]
"""Positions in a small table: phases, kinds of edges."""


Column: TypeAlias = NDArray[Any]
"""A column of numbers of any width."""
Dims: TypeAlias = tuple[Any, ...]
"""Sizes of a tensor; a tuple of such tuples for a list of tensors."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sparse:
    """Values of some rows: ``rows`` ascends, ``values[i]`` belongs to ``rows[i]``."""

    rows: Codes = field(default_factory=lambda: np.zeros(0, np.int32))
    values: Longs = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        if self.rows.shape != self.values.shape or self.rows.ndim != 1:
            raise ValueError(f"a side table has {self.rows.shape} rows for {self.values.shape} values")
        _freeze(self.rows, self.values)

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sparse) and _same(self, other)

    def at(self, rows: NDArray[np.integer], default: int = -1) -> Longs:
        """The values of these rows, ``default`` where the table has none.

        >>> known = Sparse(rows=np.array([2, 5], np.int32), values=np.array([20, 50]))
        >>> known.at(np.array([5, 3, 2])).tolist()
        [50, -1, 20]
        """
        values = np.full(len(rows), default, np.int64)
        if len(self.rows) and len(rows):
            place = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
            hit = self.rows[place] == rows
            values[hit] = self.values[place[hit]]
        return values

    def moved(self, place: NDArray[np.integer]) -> Sparse:
        """The same values after rows moved: row ``r`` is now row ``place[r]``, gone when that is negative."""
        target = place[self.rows]
        in_range = target >= 0
        order = np.argsort(target[in_range], kind="stable")
        return Sparse(rows=target[in_range][order].astype(np.int32), values=self.values[in_range][order])


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedShape:
    """The operands of a host op as the profiler recorded them, by position; scalars have no dims."""

    dims: tuple[Dims, ...] = ()
    types: tuple[str, ...] = ()
    """Their element types in the profiler's words: ``c10::BFloat16``, ``float``, ``Scalar``."""
    concrete: tuple[str, ...] = ()
    """Values of the scalar operands, where they were kept."""

    def words(self, most: int | None = None) -> str:
        """Sizes of the operands that are tensors: 128x64 64x32."""
        dims = [dim for dim in self.dims if dim and not isinstance(dim[0], tuple)]
        return " ".join("x".join(map(str, dim)) for dim in dims[:most])

    def __str__(self) -> str:
        """Operands as people write them.

        >>> str(RecordedShape(dims=((8, 4), (), (4, 2)), types=("c10::BFloat16", "Scalar", "float")))
        '8x4 BFloat16, 4x2 float'
        """
        types = (*self.types, *("",) * len(self.dims))
        operands = [
            f"{'x'.join(map(str, dims))} {kind.removeprefix('c10::')}".strip()
            for dims, kind in zip(self.dims, types, strict=False)
            if dims and not isinstance(dims[0], tuple)
        ]
        return ", ".join(operands)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCollective:
    """What a communication kernel moved, as the profiler recorded it; 0 and empty where it did not."""

    name: str = ""
    dtype: str = ""
    in_elements: int = 0
    out_elements: int = 0
    group_size: int = 0
    group: str = ""
    ranks: str = ""
    from_rank: int = -1
    """Of a receive: the rank that sends, -1 where it is not recorded."""
    to_rank: int = -1
    """Of a send."""

    def __str__(self) -> str:
        parts = [self.name, self.dtype]
        if self.in_elements or self.out_elements:
            parts.append(f"{self.in_elements:,} elements in, {self.out_elements:,} out")
        if self.group_size:
            parts.append(f"group of {self.group_size}")
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideTables:
    """The side tables of a timeline. ``shape`` and ``collective`` hold positions in the tuples beside them."""

    size_bytes: Sparse = field(default_factory=Sparse)
    shape: Sparse = field(default_factory=Sparse)
    shapes: tuple[RecordedShape, ...] = ()
    collective: Sparse = field(default_factory=Sparse)
    collectives: tuple[RecordedCollective, ...] = ()
    after: Sparse = field(default_factory=Sparse)
    """Dependencies a trace records: the value is the row that had to end before this one began. A row stands here once
    for each of them, so the rows ascend but repeat, and `Sparse.at` does not apply."""
    forward: Sparse = field(default_factory=Sparse)
    """Of a node of autograd the row of the op that ran forward; rows may repeat, as in `after`."""

    def moved(self, place: NDArray[np.integer]) -> SideTables:
        """The same details after rows were put in another order, see `Sparse.moved`."""
        return replace(
            self,
            size_bytes=self.size_bytes.moved(place),
            shape=self.shape.moved(place),
            collective=self.collective.moved(place),
            after=_edges_moved(self.after, place),
            forward=_edges_moved(self.forward, place),
        )


def _edges_moved(edges: Sparse, place: NDArray[np.integer]) -> Sparse:
    """Dependencies after rows moved: both ends move, and an edge of which either end is gone is gone."""
    if not len(edges):
        return edges
    target = place[edges.values]
    in_range = target >= 0
    return Sparse(rows=edges.rows[in_range], values=target[in_range].astype(np.int64)).moved(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Where a timeline comes from, and what its reader kept, dropped and doubted."""

    sources: tuple[str, ...] = ()
    """Names of the files, in the order of their ranks; empty for what was not read from files."""
    format: str = ""
    """What wrote it: a trace format, or `predicted`."""
    chips: tuple[str, ...] = ()
    """Names of the chips as the trace gives them, one per rank, empty where it does not."""
    world_size: int = 0
    """Ranks of the whole run, of which the timeline may hold few; 0 when unknown."""
    origin_ns: int = 0
    """Absolute nanosecond of the timeline's nanosecond 0, on the clock of the trace."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """Spans kept, by kind."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """What was not kept, and why, with counts: flow arrows, unfinished spans, unreadable text."""
    warnings: tuple[str, ...] = ()
    """What a reader of the numbers must know: a truncated file, clocks that cannot be compared, odd units."""
    properties: JsonMapping = field(default_factory=dict)
    """Facts of the trace as they stood in it: device properties, distributed information, versions."""

    def __post_init__(self) -> None:
        for name in ("kept", "dropped", "properties"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))


KERNEL, MEMCPY, MEMSET = "kernel", "memcpy", "memset"
HOST, RUNTIME, PYTHON, ANNOTATION = "host", "runtime", "python", "annotation"
MARKER, SYNC, OVERHEAD = "marker", "sync", "overhead"
NOT_WORK = (HOST, RUNTIME, PYTHON, ANNOTATION, MARKER, SYNC, OVERHEAD)
"""Kinds that do not occupy a chip: a host op, a call of the runtime, a Python function, an annotation of the host or
(marker) of a device stream, a wait, the profiler's own cost. Every other kind is work of a chip: kernel, memcpy,
memset, and the kinds of a prediction (forward, send, optimizer)."""


class StepPhase(IntEnum):
    """Part of a training step. Recomputed forward work and gradient reduction belong to backward, gathering the updated
    weights to the optimizer. Other: none of them, or a trace that does not say. Unknown: nobody has looked."""

    UNKNOWN = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    OTHER = 4


UNKNOWN, FORWARD, BACKWARD, OPTIMIZER, OTHER = StepPhase
PHASES = tuple(phase.name.lower() for phase in StepPhase)
NO_LAYER = -1
SEARCHED = 200  # characters of a name
MOST_LAYERS = int(np.iinfo(np.int16).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One interval, for small use: tests, readers' edges, a row taken out of a Timeline."""

    process: str
    stream: str
    name: str
    start_ns: int
    duration_ns: int
    kind: str = ""
    """What sort of interval: kernel, memcpy, host, runtime …; of a prediction: forward, send, optimizer."""
    phase: str = PHASES[UNKNOWN]
    layer: int = NO_LAYER

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counter:
    """A quantity that changes at instants, like bytes allocated: ``values[i]`` holds from ``times_ns[i]`` on."""

    process: str
    name: str
    times_ns: Longs
    values: Array

    def __post_init__(self) -> None:
        if self.times_ns.shape != self.values.shape or self.times_ns.ndim != 1:
            raise ValueError(f"counter {self.name!r} has {self.times_ns.shape} times for {self.values.shape} values")
        if self.times_ns.dtype != np.int64:
            raise ValueError(f"counter {self.name!r} has times of {self.times_ns.dtype}, expected whole nanoseconds")
        _freeze(self.times_ns, self.values)

    @property
    def peak(self) -> float:
        """The largest value, 0 if there is none."""
        return float(self.values.max(initial=0.0))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counter) and _same(self, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The texts behind the codes of a timeline; ``ranks[p]`` is the rank process ``p`` belongs to."""

    processes: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    classes: tuple[str, ...] = ("",)
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline(NotebookValue):
    """All intervals of a step or a run, by column; 45 bytes a span.

        start_ns, end_ns               int64, whole nanoseconds since `about.origin_ns`
        process, stream, name, kind    int32 codes: positions in the table of texts of the plural name
        class_                         int16 code into `classes`; `classes.classify` sets it, 0 before
        step                           int32, the step's number as the trace counts, -1 outside any
        launch                         int32, row of the runtime call that launched this work, -1 when not in the trace
        phase                          int8 code into `PHASES`; the simulator writes it, `analysis.phases` marks it, 0
                                       (unknown) before
        layer                          int16, counted from the input, `NO_LAYER` for none; likewise

    The order of processes and streams is the order they are shown in. Rows are ordered by (start, kind, sequence): of
    what starts at the same instant the kind that stands earlier in its table comes first, and within a kind the order
    given is kept. `detail` has what few spans carry (bytes, shapes), `about` where all of it comes from, and
    `predicted` says that nobody measured it.
    """

    start_ns: Longs
    end_ns: Longs
    process: Codes
    stream: Codes
    name: Codes
    kind: Codes
    class_: Classes
    step: Codes
    launch: Codes
    phase: Bytes
    layer: Layers
    tables: Tables = Tables()
    counters: tuple[Counter, ...] = ()
    detail: SideTables = field(default_factory=SideTables)
    about: About = field(default_factory=About)
    predicted: bool = False

    def __post_init__(self) -> None:
        tables = {
            "process": self.processes, "stream": self.streams, "name": self.names, "kind": self.kinds,
            "class_": self.classes, "phase": PHASES,
        }  # fmt: skip
        columns: dict[str, NDArray[np.integer]] = {
            column: getattr(self, column) for column in ("start_ns", "end_ns", "step", "launch", "layer", *tables)
        }
        lengths = {column: len(values) for column, values in columns.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"columns of a timeline must be equally long, got {lengths}")
        if self.start_ns.dtype != np.int64 or self.end_ns.dtype != np.int64:
            raise ValueError(f"times must be whole nanoseconds, got {self.start_ns.dtype} and {self.end_ns.dtype}")
        for column, table in tables.items():
            codes = columns[column]
            if len(codes) and (int(codes.min()) < 0 or int(codes.max()) >= len(table)):
                raise ValueError(f"{column} has codes outside its table of {len(table)} texts")
        if len(self) and (int(self.launch.min()) < -1 or int(self.launch.max()) >= len(self)):
            raise ValueError(f"launch has rows outside the {len(self)} of the timeline")
        if len(self.tables.ranks) != len(self.tables.processes):
            raise ValueError(f"{len(self.tables.ranks)} ranks for {len(self.tables.processes)} processes")
        if (self.end_ns < self.start_ns).any():
            raise ValueError(f"durations must not be negative, got {int(self.durations_ns().min())} ns")
        _freeze(*columns.values())

    @classmethod
    def of(
        cls,
        spans: Iterable[Span],
        counters: Iterable[Counter] = (),
        streams: Sequence[str] = (),
        *,
        predicted: bool = False,
    ) -> Self:
        """Columns from spans. Texts are numbered as they first appear; ``streams`` puts some in front.

        >>> line = Timeline.of([Span(process="stage 0", stream="compute", name="F0", start_ns=1, duration_ns=2)])
        >>> line.span_ns, line.busy_ns("stage 0", "compute")
        (2, 2)
        """
        rows = list(spans)
        tables: list[dict[str, int]] = [{}, {text: code for code, text in enumerate(streams)}, {}, {}]
        texts = [(span.process, span.stream, span.name, span.kind) for span in rows]
        codes = [[table.setdefault(text, len(table)) for table, text in zip(tables, row, strict=True)] for row in texts]
        start = _as_longs([span.start_ns for span in rows])
        return cls.of_columns(
            start_ns=start,
            end_ns=start + _as_longs([span.duration_ns for span in rows]),
            codes=np.array(codes, np.int32).reshape(len(rows), 4),
            phase=np.array([PHASES.index(span.phase) for span in rows], np.int8),
            layer=np.array([span.layer for span in rows], np.int16),
            tables=tuple(tuple(table) for table in tables),
            counters=tuple(counters),
            predicted=predicted,
        )

    @classmethod
    def of_phases(cls, rows: Iterable[tuple[str, str, str, int, int]], *, predicted: bool = False) -> Self:
        """Phases of processes: process, stream, name, and when each began and ended, in nanoseconds."""
        phases = (
            Span(process=process, stream=stream, name=name, kind="phase", start_ns=begin, duration_ns=end - begin)
            for process, stream, name, begin, end in rows
        )
        return cls.of(phases, predicted=predicted)

    @classmethod
    def of_columns(
        cls,
        *,
        start_ns: Longs,
        end_ns: Longs,
        codes: Codes,
        phase: Bytes,
        layer: Layers,
        tables: Sequence[tuple[str, ...]],
        counters: tuple[Counter, ...] = (),
        sends: Mapping[int, int] = MappingProxyType({}),
        predicted: bool = False,
    ) -> Self:
        """From columns in any order; ``codes`` has one row a span: process, stream, name, kind, into ``tables``.

        Every process is a rank of its own, in the order of the table; names are numbered anew in the order of the rows,
        as a reader of a file finds them. ``sends`` gives the rank that a row sends to.
        """
        order = np.lexsort((codes[:, 3], start_ns))
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        process, stream, name, kind = (np.ascontiguousarray(column, dtype=np.int32) for column in codes[order].T)
        processes, streams, texts, kinds = tables
        name, names = _by_appearance(name, texts)
        ranks = sorted(set(sends.values()))
        receivers = np.array([ranks.index(rank) for rank in sends.values()], np.int64)
        send_table = Sparse(rows=np.array(list(sends), np.int32), values=receivers)
        records = tuple(RecordedCollective(to_rank=rank) for rank in ranks)
        return cls(
            start_ns=start_ns[order],
            end_ns=end_ns[order],
            process=process,
            stream=stream,
            name=name,
            kind=kind,
            class_=np.zeros(len(order), np.int16),
            step=np.full(len(order), -1, np.int32),
            launch=np.full(len(order), -1, np.int32),
            phase=phase[order],
            layer=layer[order],
            tables=Tables(
                processes=processes, streams=streams, names=names, kinds=kinds, ranks=tuple(range(len(processes)))
            ),
            counters=counters,
            detail=SideTables(collective=send_table.moved(place), collectives=records),
            about=About(format="predicted" if predicted else ""),
            predicted=predicted,
        )

    @property
    def processes(self) -> tuple[str, ...]:
        return self.tables.processes

    @property
    def streams(self) -> tuple[str, ...]:
        return self.tables.streams

    @property
    def names(self) -> tuple[str, ...]:
        return self.tables.names

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.tables.kinds

    @property
    def classes(self) -> tuple[str, ...]:
        return self.tables.classes

    @property
    def rank(self) -> Codes:
        """Rank of every span: that of its process."""
        return np.array(self.tables.ranks, np.int32)[self.process]

    def __len__(self) -> int:
        return len(self.start_ns)

    def __iter__(self) -> Iterator[Span]:
        columns = (self.process, self.stream, self.name, self.start_ns, self.durations_ns(), self.kind, self.phase)
        rows = zip(*(column.tolist() for column in (*columns, self.layer)), strict=True)
        for process, stream, name, start, duration, kind, phase, layer in rows:
            yield Span(
                process=self.processes[process],
                stream=self.streams[stream],
                name=self.names[name],
                start_ns=start,
                duration_ns=duration,
                kind=self.kinds[kind],
                phase=PHASES[phase],
                layer=layer,
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timeline) and _same(self, other)

    def durations_ns(self, rows: NDArray[np.integer] | slice = slice(None)) -> Longs:
        """Length of these spans."""
        return self.end_ns[rows] - self.start_ns[rows]

    @property
    def span_ns(self) -> int:
        """From the first start to the last end, 0 for an empty timeline."""
        return int(self.end_ns.max() - self.start_ns.min()) if len(self) else 0

    @property
    def span_s(self) -> float:
        """The same in seconds."""
        return self.span_ns / DECIMAL["G"]

    def tracks(self, rows: NDArray[np.integer] | slice = slice(None)) -> Longs:
        """One number per stream of a process, or thread of a host, of each of these rows."""
        return self.process[rows].astype(np.int64) * max(1, len(self.streams)) + self.stream[rows]

    def match_names(self, pattern: re.Pattern[str], rows: NDArray[np.integer] | slice = slice(None)) -> Mask:
        """Which of these rows have a name in which a pattern is found; of long names the beginning is searched."""
        codes = self.name[rows]
        matching = np.zeros(max(1, len(self.names)), np.bool_)
        matching[codes] = True  # names of other rows are not looked at: those of Python functions are many
        for code in np.flatnonzero(matching).tolist():
            matching[code] = bool(pattern.search(self.names[code][:SEARCHED])) if self.names else False
        return matching[codes]

    def of_kind(self, *kinds: str) -> Mask:
        """Which rows have one of these kinds.

        >>> a = Span(process="p", stream="s", name="a", start_ns=0, duration_ns=2, kind="kernel")
        >>> Timeline.of([a]).of_kind("kernel", "memcpy").tolist()
        [True]
        """
        return np.array([kind in kinds for kind in self.kinds], np.bool_)[self.kind]

    @property
    def is_work(self) -> Mask:
        """Which rows occupy a chip: kernels, copies and everything a prediction draws, not what the host does."""
        return ~self.of_kind(*NOT_WORK)

    def of_class(self, *ids: str) -> Mask:
        """Which rows have one of these classes."""
        return np.array([id in ids for id in self.classes], np.bool_)[self.class_]

    def mask(self, rows: NDArray[np.integer]) -> Mask:
        """Which rows are among these."""
        mask = np.zeros(len(self), np.bool_)
        mask[rows] = True
        return mask

    def longest(self, rows: Rows, count: int | None = None) -> Rows:
        """These rows by their length, the longest first."""
        return rows[np.argsort(-self.durations_ns(rows), kind="stable")[:count]]

    def rows(self, process: str, stream: str | None = None) -> Mask:
        """Which rows belong to a process, or to one of its streams."""
        mask: Mask = self.process == _code(self.processes, process)
        return mask if stream is None else mask & (self.stream == _code(self.streams, stream))

    def busy_ns(self, process: str, stream: str | None = None) -> int:
        """Time in which at least one span is open; overlapping spans are counted once.

        >>> a = Span(process="p", stream="s", name="a", start_ns=0, duration_ns=2)
        >>> b = Span(process="p", stream="t", name="b", start_ns=1, duration_ns=3)
        >>> Timeline.of([a, b]).busy_ns("p")
        4
        """
        chosen = self.rows(process, stream)
        if not chosen.any():
            return 0
        start, end = self.start_ns[chosen], np.maximum.accumulate(self.end_ns[chosen])
        gaps = np.maximum(start[1:] - end[:-1], 0)
        return int(end[-1] - start[0] - gaps.sum())

    def with_classes(self, class_: Classes, classes: tuple[str, ...]) -> Self:
        """The same timeline with every span put in a class."""
        return replace(self, class_=class_, tables=replace(self.tables, classes=classes))


def _by_appearance(codes: Codes, texts: Sequence[str]) -> tuple[Codes, tuple[str, ...]]:
    """The same texts with codes in the order in which rows first have them; texts of no row are dropped."""
    used, first, place = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    code = np.empty(len(order), np.int32)
    code[order] = np.arange(len(order), dtype=np.int32)
    return code[place], tuple(texts[int(code_)] for code_ in used[order])


def _code(table: tuple[str, ...], text: str) -> int:
    return table.index(text) if text in table else -1


def nanoseconds_of(seconds: ArrayLike) -> Longs:
    """Seconds as the nearest whole nanoseconds, for what is computed in seconds: equal seconds stay equal.

    >>> nanoseconds_of([0.1, 1.4e-9]).tolist()
    [100000000, 1]
    """
    return np.rint(np.asarray(seconds, np.float64) * DECIMAL["G"]).astype(np.int64)


def _as_longs(values: Sequence[int]) -> Longs:
    array = np.array(values)
    if len(array) and array.dtype.kind != "i":
        raise ValueError(f"times must be whole nanoseconds, got {array.dtype}")
    return array.astype(np.int64)


def _freeze(*columns: NDArray[np.generic]) -> None:
    for column in columns:
        column.flags.writeable = False


def _same(one: Sparse | Counter | Timeline, other: Sparse | Counter | Timeline) -> bool:
    return all(
        np.array_equal(ours, theirs) if isinstance(ours, np.ndarray) else ours == theirs
        for ours, theirs in ((getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    )
