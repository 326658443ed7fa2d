"""Turn spans into columns: a step of a large run is a few hundred thousand intervals, a few dozen bytes each.

A span is one interval on one stream of one process; what repeats (process, stream, name, kind, class) is a small
integer into a table of texts. Rows are in one fixed order, so that equal content is equal bytes. Predicted and measured
work have the same columns: what a prediction does not know (launches, shapes) is absent, not another type.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.units import DECIMAL
from ridgeline.trace.side_tables import About, SideTables

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]
Classes = NDArray[np.int16]
Mask = NDArray[np.bool_]

KERNEL, MEMCPY, MEMSET = "kernel", "memcpy", "memset"
HOST, RUNTIME, PYTHON, ANNOTATION = "host", "runtime", "python", "annotation"
MARKER, SYNC, OVERHEAD = "marker", "sync", "overhead"
NOT_WORK = (HOST, RUNTIME, PYTHON, ANNOTATION, MARKER, SYNC, OVERHEAD)
"""Kinds that do not occupy a chip: a host op, a call of the runtime, a Python function, an annotation of the host or
(marker) of a device stream, a wait, the profiler's own cost. Every other kind is work of a chip: kernel, memcpy,
memset, and the kinds of a prediction (forward, send, optimizer)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One interval, for small use: tests, readers' edges, a row taken out of a Timeline."""

    process: str
    stream: str
    name: str
    start_s: float
    duration_s: float
    kind: str = ""
    """What sort of interval: kernel, memcpy, host, runtime …; of a prediction: forward, send, optimizer."""

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counter:
    """A quantity that changes at instants, like bytes held: ``values[i]`` holds from ``times_s[i]`` on."""

    process: str
    name: str
    times_s: Floats
    values: Floats

    def __post_init__(self) -> None:
        if self.times_s.shape != self.values.shape or self.times_s.ndim != 1:
            raise ValueError(f"counter {self.name!r} has {self.times_s.shape} times for {self.values.shape} values")
        _freeze(self.times_s, self.values)

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
class Timeline:
    """All intervals of a step or a run, by column; 42 bytes a span.

        start_s, duration_s            float64, seconds since `about.origin_ns`, exact to the nanosecond over a week
        process, stream, name, kind    int32 codes: positions in the table of texts of the plural name
        class_                         int16 code into `classes`; `classes.classify` sets it, 0 before
        step                           int32, the step's number as the trace counts, -1 outside any
        launch                         int32, row of the runtime call that launched this work, -1 when not in the trace

    The order of processes and streams is the order they are shown in. Rows are ordered by (start, kind, sequence): of
    what starts at the same instant the kind that stands earlier in its table comes first, and within a kind the order
    given is kept. `detail` has what few spans carry (bytes, shapes), `about` where all of it comes from.
    """

    start_s: Floats
    duration_s: Floats
    process: Codes
    stream: Codes
    name: Codes
    kind: Codes
    class_: Classes
    step: Codes
    launch: Codes
    tables: Tables = Tables()
    counters: tuple[Counter, ...] = ()
    detail: SideTables = SideTables()
    about: About = About()

    def __post_init__(self) -> None:
        columns: dict[str, NDArray[Any]] = {
            "start_s": self.start_s,
            "duration_s": self.duration_s,
            "step": self.step,
            "launch": self.launch,
        }
        columns.update({column: codes for column, codes, _ in self._coded()})
        lengths = {column: len(values) for column, values in columns.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"columns of a timeline must be equally long, got {lengths}")
        for column, codes, table in self._coded():
            if len(codes) and (int(codes.min()) < 0 or int(codes.max()) >= len(table)):
                raise ValueError(f"{column} has codes outside its table of {len(table)} texts")
        if len(self) and (int(self.launch.min()) < -1 or int(self.launch.max()) >= len(self)):
            raise ValueError(f"launch has rows outside the {len(self)} of the timeline")
        if len(self.tables.ranks) != len(self.tables.processes):
            raise ValueError(f"{len(self.tables.ranks)} ranks for {len(self.tables.processes)} processes")
        if not (np.isfinite(self.start_s).all() and np.isfinite(self.duration_s).all()):
            raise ValueError("starts and durations must be finite")
        if len(self) and float(self.duration_s.min()) < 0:
            raise ValueError(f"durations must not be negative, got {float(self.duration_s.min())}")
        _freeze(*columns.values())

    def _coded(self) -> tuple[tuple[str, NDArray[Any], tuple[str, ...]], ...]:
        return (
            ("process", self.process, self.processes),
            ("stream", self.stream, self.streams),
            ("name", self.name, self.names),
            ("kind", self.kind, self.kinds),
            ("class_", self.class_, self.classes),
        )

    @classmethod
    def of(cls, spans: Iterable[Span], counters: Iterable[Counter] = (), streams: Sequence[str] = ()) -> Self:
        """Columns from spans. Texts are numbered as they first appear; ``streams`` puts some in front.

        >>> line = Timeline.of([Span(process="stage 0", stream="compute", name="F0", start_s=1, duration_s=2)])
        >>> line.span_s, line.busy_s("stage 0", "compute")
        (2.0, 2.0)
        """
        rows = list(spans)
        tables: list[dict[str, int]] = [{}, {text: code for code, text in enumerate(streams)}, {}, {}]
        codes = np.array(
            [
                [table.setdefault(text, len(table)) for table, text in zip(tables, _texts(span), strict=True)]
                for span in rows
            ],
            dtype=np.int32,
        ).reshape(len(rows), 4)
        return cls.of_columns(
            start_s=np.array([span.start_s for span in rows], dtype=np.float64),
            duration_s=np.array([span.duration_s for span in rows], dtype=np.float64),
            codes=codes,
            tables=tuple(tuple(table) for table in tables),
            counters=tuple(counters),
        )

    @classmethod
    def of_columns(
        cls,
        *,
        start_s: Floats,
        duration_s: Floats,
        codes: Codes,
        tables: Sequence[tuple[str, ...]],
        counters: Sequence[Counter] = (),
    ) -> Self:
        """From columns in any order; ``codes`` has one row a span: process, stream, name, kind, into ``tables``.

        Every process is a rank of its own, in the order of the table.
        """
        order = np.lexsort((codes[:, 3], start_s))
        process, stream, name, kind = (np.ascontiguousarray(column, dtype=np.int32) for column in codes[order].T)
        processes, streams, names, kinds = tables
        return cls(
            start_s=start_s[order],
            duration_s=duration_s[order],
            process=process,
            stream=stream,
            name=name,
            kind=kind,
            class_=np.zeros(len(order), np.int16),
            step=np.full(len(order), -1, np.int32),
            launch=np.full(len(order), -1, np.int32),
            tables=Tables(
                processes=processes, streams=streams, names=names, kinds=kinds, ranks=tuple(range(len(processes)))
            ),
            counters=tuple(counters),
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
        return len(self.start_s)

    def __iter__(self) -> Iterator[Span]:
        columns = (self.process, self.stream, self.name, self.start_s, self.duration_s, self.kind)
        for process, stream, name, start, duration, kind in zip(*(c.tolist() for c in columns), strict=True):
            yield Span(
                process=self.processes[process],
                stream=self.streams[stream],
                name=self.names[name],
                start_s=start,
                duration_s=duration,
                kind=self.kinds[kind],
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timeline) and _same(self, other)

    @property
    def end_s(self) -> Floats:
        """End of every span."""
        return self.start_s + self.duration_s

    @property
    def start_ns(self) -> NDArray[np.int64]:
        """Start of every span in whole nanoseconds, for arithmetic in which touching ends are equal."""
        return _nanoseconds(self.start_s)

    @property
    def end_ns(self) -> NDArray[np.int64]:
        """End of every span in whole nanoseconds; a span that ends where another starts has the same number."""
        return _nanoseconds(self.start_s) + _nanoseconds(self.duration_s)

    def starts_of(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Starts of some rows in whole nanoseconds; all of them need not be worked out for these."""
        return _nanoseconds(self.start_s[rows])

    def ends_of(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Ends of some rows."""
        return self.starts_of(rows) + _nanoseconds(self.duration_s[rows])

    @property
    def span_s(self) -> float:
        """From the first start to the last end, 0 for an empty timeline."""
        return float(self.end_s.max() - self.start_s.min()) if len(self) else 0.0

    def of_kind(self, *kinds: str) -> Mask:
        """Which rows have one of these kinds.

        >>> a = Span(process="p", stream="s", name="a", start_s=0, duration_s=2, kind="kernel")
        >>> Timeline.of([a]).of_kind("kernel", "memcpy").tolist()
        [True]
        """
        return np.array([kind in kinds for kind in self.kinds], np.bool_)[self.kind]

    @property
    def is_work(self) -> Mask:
        """Which rows occupy a chip: kernels, copies and everything a prediction draws, not what the host does."""
        return ~self.of_kind(*NOT_WORK)

    def rows(self, process: str, stream: str | None = None) -> Mask:
        """Which rows belong to a process, or to one of its streams."""
        found: Mask = self.process == _code(self.processes, process)
        return found if stream is None else found & (self.stream == _code(self.streams, stream))

    def busy_s(self, process: str, stream: str | None = None) -> float:
        """Time in which at least one span is open; overlapping spans are counted once.

        >>> a = Span(process="p", stream="s", name="a", start_s=0, duration_s=2)
        >>> b = Span(process="p", stream="t", name="b", start_s=1, duration_s=3)
        >>> Timeline.of([a, b]).busy_s("p")
        4.0
        """
        chosen = self.rows(process, stream)
        if not chosen.any():
            return 0.0
        start, end = self.start_s[chosen], np.maximum.accumulate(self.end_s[chosen])
        gaps = np.maximum(start[1:] - end[:-1], 0.0)
        return float(end[-1] - start[0] - gaps.sum())

    def with_classes(self, class_: Classes, classes: tuple[str, ...]) -> Self:
        """The same timeline with every span put in a class."""
        return replace(self, class_=class_, tables=replace(self.tables, classes=classes))


def _texts(span: Span) -> tuple[str, str, str, str]:
    return span.process, span.stream, span.name, span.kind


def _code(table: tuple[str, ...], text: str) -> int:
    return table.index(text) if text in table else -1


def _nanoseconds(seconds: Floats) -> NDArray[np.int64]:
    scaled = seconds * DECIMAL["G"]
    return np.rint(scaled, out=scaled).astype(np.int64)


def _freeze(*columns: NDArray[Any]) -> None:
    for column in columns:
        column.flags.writeable = False


def _same(one: Counter | Timeline, other: Counter | Timeline) -> bool:
    return all(
        np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs
        for mine, theirs in ((getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    )
