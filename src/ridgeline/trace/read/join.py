"""Turn what readers found in files into one Timeline: ranks numbered, tables joined, launches linked, steps marked.

A reader gives one `TracePart` a file: columns in any order, codes into the part's own tables, times in whole
nanoseconds on the clock of the trace; `RowColumns` makes it of rows found a few at a time. Of several captures of one
rank, none of which overlaps another, the last is read (`last_captures`).
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.trace.read.host_marks import mark_steps
from ridgeline.trace.timeline import (
    NO_LAYER,
    RUNTIME,
    UNKNOWN,
    About,
    Bytes,
    Codes,
    Column,
    Counter,
    Layers,
    Longs,
    RecordedCollective,
    RecordedShape,
    SideTables,
    Sparse,
    Tables,
    Timeline,
)

K = TypeVar("K")
OVERLAP = "overlapAnalysis"
"""Property of a timeline: by rank, what the vendor's own tool says of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracePart:
    """What one file gave.

    ``correlation`` joins work to the runtime call that launched it: equal numbers belong together, 0 and less to none.
    A file is one rank, ``rank``, None when it does not say; or its tables give the rank of each of its processes.
    ``phase`` and ``layer`` are columns of a file that Ridgeline wrote, None of every other.
    """

    start_ns: Longs
    duration_ns: Longs
    process: Codes
    stream: Codes
    name: Codes
    kind: Codes
    correlation: Longs
    tables: Tables
    rank: int | None = None
    detail: SideTables = field(default_factory=SideTables)
    counters: tuple[CounterChanges, ...] = ()
    about: About = field(default_factory=About)
    phase: Bytes | None = None
    layer: Layers | None = None
    origin_ns: int | None = None
    """Where nanosecond 0 is to be, None for the first start."""
    predicted: bool = False
    piece: bool = False
    """Whether it is a part of the time of its rank, of which other parts hold the rest."""
    overlap: Mapping[str, int] = field(default_factory=dict)
    """What the vendor's tool says of it, in nanoseconds: computing, communication, not overlapped, free."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CounterChanges:
    """A counter as a reader finds it: times on the clock of the trace."""

    process: str
    name: str
    times_ns: Longs
    values: Array

    def in_order(self, origin: int) -> Counter:
        order = np.argsort(self.times_ns, kind="stable")
        times = self.times_ns[order] - origin
        return Counter(process=self.process, name=self.name, times_ns=times, values=self.values[order])


def join(parts: Sequence[TracePart]) -> Timeline:
    """One timeline of all parts; nanosecond 0 is the first start of any.

    What a column was made of is let go as soon as it can be: where the caller holds the parts no longer, a span takes
    about twice the bytes of its columns at most.
    """
    ranks, doubts = ranks_of(parts)
    parts = [_with_rank_names(part, rank, len(parts)) for part, rank in zip(parts, ranks, strict=True)]
    origins = (
        int(part.start_ns.min()) if part.origin_ns is None else part.origin_ns for part in parts if len(part.start_ns)
    )
    origin = min(origins, default=0)
    is_predicted = bool(parts) and all(part.predicted for part in parts)
    offsets = np.cumsum([0, *(len(part.start_ns) for part in parts)]).tolist()
    launches = [_link_launches(part, offset) for part, offset in zip(parts, offsets, strict=False)]
    launch = np.concatenate([*launches, np.zeros(0, np.int32)])
    detail, about = _details(parts), _about(parts, origin, doubts)
    warnings = _overlaps(parts, ranks)
    if warnings:
        about = replace(about, properties={**about.properties, OVERLAP: warnings})
    counters = tuple(changes.in_order(origin) for part in parts for changes in part.counters)
    tables, columns = _join_tables(parts, ranks)
    columns["start"] = _stack_columns([part.start_ns for part in parts], np.int64)
    columns["duration"] = _stack_columns([part.duration_ns for part in parts], np.int64)
    columns["phase"] = _fill_column([part.phase for part in parts], parts, UNKNOWN, np.int8)
    columns["layer"] = _fill_column([part.layer for part in parts], parts, NO_LAYER, np.int16)
    del parts
    order = np.lexsort((columns["kind"], columns["start"])).astype(np.int32)
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    launch = np.where(launch >= 0, place[launch] if len(place) else launch, -1).astype(np.int32)[order]
    detail = detail.moved(place)
    del place
    start = columns.pop("start")[order]
    start -= origin
    end = columns.pop("duration")[order]
    end += start
    line = Timeline(
        start_ns=start,
        end_ns=end,
        class_=np.zeros(len(order), np.int16),
        step=np.full(len(order), -1, np.int32),
        launch=launch,
        **{column: columns.pop(column)[order] for column in list(columns)},
        tables=tables,
        counters=counters,
        detail=detail,
        about=about,
        predicted=is_predicted,
    )
    return mark_steps(line)


def _overlaps(parts: Sequence[TracePart], ranks: Sequence[int]) -> dict[str, dict[str, int]]:
    """What vendors' tools say, by rank; of several pieces of a rank together."""
    overlaps: dict[str, Tally[str]] = {}
    for part, rank in zip(parts, ranks, strict=True):
        if part.overlap:
            overlaps.setdefault(str(rank), Tally()).update(part.overlap)
    return {rank: dict(sums) for rank, sums in overlaps.items()}


def _fill_column(
    columns: Sequence[Column | None], parts: Sequence[TracePart], value: int, dtype: type[np.integer]
) -> Column:
    """A column that few files have: a single value for the rows of the others, which takes no room yet."""
    sizes = [len(part.start_ns) for part in parts]
    if all(column is None for column in columns):
        return np.broadcast_to(np.array(value, dtype), sum(sizes))
    pieces = [
        np.full(size, value, dtype) if column is None else column for column, size in zip(columns, sizes, strict=True)
    ]
    return _stack_columns(pieces, dtype)


def ranks_of(parts: Sequence[TracePart]) -> tuple[list[int], list[str]]:
    """A rank for every part: what it says, else the number in its file's name, else the first that is free.

    A part with ranks of its own keeps them, counted from the first number that no part before it has.
    """
    sources_of_rank: dict[int, str] = {}
    doubts: list[str] = []
    ranks: list[int] = []
    for part in parts:
        source = next(iter(part.about.sources), "")
        if part.tables.ranks:
            base = 0 if len(parts) == 1 else max(sources_of_rank, default=-1) + 1
            sources_of_rank.update({base + rank: source for rank in part.tables.ranks})
            ranks.append(base)
            continue
        rank_match = re.search(r"rank[-_]?(\d{1,7})", source, re.IGNORECASE)
        wanted_rank = (
            part.rank if part.rank is not None else int(rank_match[1]) if rank_match and len(parts) > 1 else None
        )
        free = next(rank for rank in range(len(sources_of_rank) + 1) if rank not in sources_of_rank)
        if part.piece and wanted_rank is not None:
            sources_of_rank[wanted_rank] = source
            ranks.append(wanted_rank)
            continue
        if wanted_rank in sources_of_rank:
            doubts.append(
                f"{source} and {sources_of_rank[wanted_rank]} both say rank {wanted_rank}; {source} "
                f"is shown as rank {free}"
            )
        rank = free if wanted_rank is None or wanted_rank in sources_of_rank else wanted_rank
        sources_of_rank[rank] = source
        ranks.append(rank)
    return ranks, doubts


def _with_rank_names(part: TracePart, rank: int, count: int) -> TracePart:
    """The part with the rank in front of its process names, unless it has ranks of its own and is alone."""
    if part.tables.ranks and count == 1:
        return part
    process_ranks = part.tables.ranks or (0,) * len(part.tables.processes)
    names = {
        process: f"rank {rank + shift} {process}"
        for process, shift in zip(part.tables.processes, process_ranks, strict=True)
    }
    return replace(
        part,
        tables=replace(part.tables, processes=tuple(names.values())),
        counters=tuple(
            replace(counter, process=names.get(counter.process, f"rank {rank} {counter.process}"))
            for counter in part.counters
        ),
    )


def _join_tables(parts: Sequence[TracePart], ranks: Sequence[int]) -> tuple[Tables, dict[str, Column]]:
    joint: dict[str, dict[str, int]] = {"process": {}, "stream": {}, "name": {}, "kind": {}}
    plural = {"process": "processes", "stream": "streams", "name": "names", "kind": "kinds"}
    codes: dict[str, list[Codes]] = {column: [] for column in joint}
    owner: dict[str, int] = {}
    for part, rank in zip(parts, ranks, strict=True):
        for place, process in enumerate(part.tables.processes):
            owner.setdefault(process, rank + part.tables.ranks[place] if part.tables.ranks else rank)
        for column, table in joint.items():
            texts: tuple[str, ...] = getattr(part.tables, plural[column])
            new_codes = np.array([table.setdefault(text, len(table)) for text in texts], np.int32)
            old_codes: Codes = getattr(part, column)
            codes[column].append(new_codes[old_codes] if len(old_codes) else old_codes)
    tables = Tables(
        processes=tuple(joint["process"]),
        streams=tuple(joint["stream"]),
        names=tuple(joint["name"]),
        kinds=tuple(joint["kind"]),
        ranks=tuple(owner[process] for process in joint["process"]),
    )
    return tables, {column: _stack_columns(pieces, np.int32) for column, pieces in codes.items()}


def _stack_columns(pieces: Sequence[Column], dtype: type[np.integer]) -> Column:
    if len(pieces) == 1:
        return np.asarray(pieces[0], dtype)
    return np.concatenate([*pieces, np.zeros(0, dtype)]).astype(dtype, copy=False)


def _link_launches(part: TracePart, offset: int) -> Codes:
    """For every row of a part the row of the call that launched it; ``offset`` rows of other parts stand before."""
    launch = np.full(len(part.start_ns), -1, np.int32)
    calls = part.kind == (part.tables.kinds.index(RUNTIME) if RUNTIME in part.tables.kinds else -1)
    calls &= part.correlation > 0
    work = np.flatnonzero((part.correlation > 0) & ~calls)
    rows = np.flatnonzero(calls)
    if not len(rows) or not len(work):
        return launch
    rows = rows[np.lexsort((part.start_ns[rows], part.correlation[rows]))]
    call_ids, work_ids = part.correlation[rows], part.correlation[work]
    place = np.minimum(np.searchsorted(call_ids, work_ids), len(call_ids) - 1)
    launch[work] = np.where(call_ids[place] == work_ids, rows[place] + offset, -1)
    return launch


def _details(parts: Sequence[TracePart]) -> SideTables:
    """The side tables of all parts as one: rows shifted, equal shapes and collectives shared."""
    if len(parts) == 1:
        return parts[0].detail
    offsets = np.cumsum([0, *(len(part.start_ns) for part in parts)])[:-1].tolist()
    details = [part.detail for part in parts]
    shapes: dict[RecordedShape, int] = {}
    groups: dict[RecordedCollective, int] = {}
    shape_codes = [[shapes.setdefault(shape, len(shapes)) for shape in detail.shapes] for detail in details]
    group_codes = [
        [groups.setdefault(collective, len(groups)) for collective in detail.collectives] for detail in details
    ]
    return SideTables(
        size_bytes=_side([(detail.size_bytes, row, None) for detail, row in zip(details, offsets, strict=True)]),
        shape=_side([(detail.shape, *more) for detail, *more in zip(details, offsets, shape_codes, strict=True)]),
        shapes=tuple(shapes),
        collective=_side(
            [(detail.collective, *more) for detail, *more in zip(details, offsets, group_codes, strict=True)]
        ),
        collectives=tuple(groups),
        after=_edges([(detail.after, row) for detail, row in zip(details, offsets, strict=True)]),
        forward=_edges([(detail.forward, row) for detail, row in zip(details, offsets, strict=True)]),
    )


def _edges(tables: Iterable[tuple[Sparse, int]]) -> Sparse:
    """Dependencies of all parts: both ends are rows, so both are shifted."""
    pairs = [(table.rows.astype(np.int64) + offset, table.values + offset) for table, offset in tables]
    return Sparse(
        rows=_stack_columns([rows for rows, _ in pairs], np.int32),
        values=_stack_columns([values for _, values in pairs], np.int64),
    )


def _side(tables: Iterable[tuple[Sparse, int, Sequence[int] | None]]) -> Sparse:
    rows, values = [], []
    for table, offset, codes in tables:
        rows.append(table.rows.astype(np.int64) + offset)
        values.append(table.values if codes is None or not len(table) else np.array(codes, np.int64)[table.values])
    return Sparse(rows=_stack_columns(rows, np.int32), values=_stack_columns(values, np.int64))


def _about(parts: Sequence[TracePart], origin: int, doubts: Sequence[str]) -> About:
    abouts = [part.about for part in parts]
    kept_counts, dropped_counts = Tally[str](), Tally[str]()
    properties: JsonObject = {}
    warnings: list[str] = []
    world = max((about.world_size for about in abouts), default=0)
    for about in abouts:
        kept_counts.update(about.kept)
        dropped_counts.update(about.dropped)
        properties |= {key: value for key, value in about.properties.items() if key not in properties}
        prefix = f"{about.sources[0]}: " if len(parts) > 1 and about.sources else ""
        warnings += [prefix + warning for warning in about.warnings]
    here = {part.rank for part in parts if part.rank is not None}
    if 1 < len(here) < world:
        missing = (
            f"{len(here)} of {world} ranks are here: what the others did, and whether one of them came last, is unknown"
        )
        doubts = [*doubts, missing]
    return About(
        sources=tuple(source for about in abouts for source in about.sources),
        format=" + ".join(dict.fromkeys(about.format for about in abouts)),
        chips=tuple(chip for about in abouts for chip in about.chips),
        world_size=world,
        origin_ns=origin,
        kept={key: count for key, count in kept_counts.most_common() if count},
        dropped={key: count for key, count in dropped_counts.most_common() if count},
        warnings=(*warnings, *doubts),
        properties=properties,
    )


STAMPED = re.compile(r"^(?:.*/)?(.+?)[._-](\d{10,19})(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$")
MINUTE = 60 * 10**9


def last_captures(parts: Sequence[TracePart]) -> tuple[list[TracePart], list[str]]:
    """Of the captures of every rank the last, in the order given; and what to say about the others.

    Files are of the same rank where both say so, or their names are alike up to the time. Those that overlap in time
    are several ranks of which two give the same number.
    """
    owners: dict[object, list[int]] = {}
    for place, part in enumerate(parts):
        if (owner := _owner(part)) is not None:
            owners.setdefault(owner, []).append(place)
    left_out: dict[int, str] = {}
    for places in owners.values():
        if len(places) < 2 or len({len(parts[place].start_ns) > 0 for place in places}) != 1:
            continue
        by_time = sorted(places, key=lambda place: int(parts[place].start_ns.min()))
        windows = [_window(parts[place]) for place in by_time]
        if any(after[0] < before[1] for before, after in pairwise(windows)):
            continue
        kept_source = parts[by_time[-1]].about.sources[0]
        for place, window in zip(by_time[:-1], windows, strict=False):
            distance_ns = windows[-1][0] - window[0]
            minutes, seconds = f"{distance_ns / MINUTE:.0f} minutes", f"{distance_ns / 10**9:.3g} seconds"
            left_out[place] = (
                f"{parts[place].about.sources[0]} is another capture of the rank of {kept_source}, "
                f"{minutes if distance_ns >= MINUTE else seconds} before it, and is left out: "
                "name it alone to analyse it"
            )
    kept_parts = [part for place, part in enumerate(parts) if place not in left_out]
    return kept_parts, [left_out[place] for place in sorted(left_out)] + _separate_captures(kept_parts)


def _separate_captures(parts: Sequence[TracePart]) -> list[str]:
    """A doubt about files without ranks that ran one after the other."""
    silent = [part for part in parts if part.rank is None and not part.piece and not part.tables.ranks]
    windows = sorted(_window(part) for part in silent if len(part.start_ns))
    if len(windows) < 2 or len(silent) < len(parts) or any(two[0] < earlier[1] for earlier, two in pairwise(windows)):
        return []
    return [
        f"none of the {len(silent)} files says its rank, and no two overlap in time: they are read as ranks; if they "
        "are captures of one, or several runs, name one alone or compare them with ridgeline diff"
    ]


def _owner(part: TracePart) -> object:
    if part.piece or part.tables.ranks or not part.about.sources or not len(part.start_ns):
        return None
    stamp = STAMPED.match(part.about.sources[0])
    return part.rank if part.rank is not None else stamp[1] if stamp else None


def _window(part: TracePart) -> tuple[int, int]:
    return int(part.start_ns.min()), int((part.start_ns + part.duration_ns).max())


# -- rows of a reader as columns ---------------------------------------------------------------------------------------


COLUMNS = ("start", "duration", "process", "stream", "name", "kind", "correlation")
MOST_SPANS = 100_000_000
Values = Column | Sequence[int] | int


class Interned(dict[K, int]):
    """Numbers for things in the order they first appear."""

    def __missing__(self, key: K) -> int:
        self[key] = code = len(self)
        return code


@dataclass(slots=True)
class SideColumn:
    """A side table while it grows."""

    rows: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)

    def add(self, row: int, value: int) -> None:
        self.rows.append(row)
        self.values.append(value)

    def done(self, place: Column) -> Sparse:
        """The table, rows that were dropped left out: row ``r`` is now ``place[r]``, gone when negative."""
        return Sparse(rows=np.array(self.rows, np.int32), values=np.array(self.values, np.int64)).moved(place)


class RowColumns:
    """Rows of one file while they are read; texts get their codes from the tables `processes` to `kinds`."""

    def __init__(self) -> None:
        self.processes, self.streams, self.names, self.kinds = (Interned[str]() for _ in range(4))
        self.sizes, self.shapes, self.collectives, self.after = SideColumn(), SideColumn(), SideColumn(), SideColumn()
        self.shape_table: Interned[RecordedShape] = Interned()
        self.collective_table: Interned[RecordedCollective] = Interned()
        self.dropped: Tally[str] = Tally()
        self.warnings: list[str] = []
        self.count = 0
        self._pieces: dict[str, list[Column]] = {column: [] for column in COLUMNS}

    @property
    def full(self) -> bool:
        return self.count >= MOST_SPANS

    def add(self, start: Longs, **columns: Values) -> None:
        """Add rows: starts in nanoseconds, and the other columns as arrays, or as one value for all of these rows."""
        for column in COLUMNS:
            values = start if column == "start" else columns.get(column, 0)
            wide = np.int64 if column in ("start", "duration", "correlation") else np.int32
            self._pieces[column].append(np.broadcast_to(np.asarray(values, wide), start.shape))
        self.count += len(start)

    def add_places(
        self, start: Longs, duration: Values, places: Iterable[tuple[str, str, str, str]], correlation: Values = 0
    ) -> None:
        """Add rows by the texts of their process, stream, name and kind."""
        tables = (self.processes, self.streams, self.names, self.kinds)
        codes = [[table[text] for table, text in zip(tables, place, strict=True)] for place in places]
        process, stream, name, kind = np.array(codes, np.int32).reshape(-1, 4).T
        self.add(
            start, duration=duration, process=process, stream=stream, name=name, kind=kind, correlation=correlation
        )

    def add_shape(self, row: int, shape: RecordedShape | None) -> None:
        if shape is not None:
            self.shapes.add(row, self.shape_table[shape])

    def readable(self, start: Longs, end: Longs, what: str = "spans") -> Mask:
        """Which rows have times that can be; the others are counted as dropped."""
        good: Mask = (start >= 0) & (end >= start)
        self.dropped[f"{what} without a readable time"] += int((~good).sum())
        return good

    def column(self, name: str) -> Column:
        """A column, whole."""
        pieces = self._pieces[name]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)

    def chip_ranks(self, order: Callable[[str], int | str | tuple[int, str]]) -> tuple[int, ...]:
        """A rank for every process: chips in an order of their names, hosts with the first; none for a single chip."""
        chips = sorted((process for process in self.processes if process.startswith("chip")), key=order)
        place = {chip: rank for rank, chip in enumerate(chips)}
        return tuple(place.get(process, 0) for process in self.processes) if len(chips) > 1 else ()

    def part(
        self,
        source: str,
        format: str,
        *,
        chips: Iterable[str] = (),
        ranks: tuple[int, ...] = (),
        rank: int | None = None,
        properties: JsonMapping = MappingProxyType({}),
        texts: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> TracePart:
        """Everything as a part; ``texts`` gives the tables whose codes stand for something else than their texts."""
        counts = np.bincount(self.column("kind"), minlength=len(self.kinds)).tolist()
        place = np.arange(self.count)
        return TracePart(
            start_ns=self.column("start").astype(np.int64, copy=False),
            duration_ns=self.column("duration").astype(np.int64, copy=False),
            process=self.column("process").astype(np.int32, copy=False),
            stream=self.column("stream").astype(np.int32, copy=False),
            name=self.column("name").astype(np.int32, copy=False),
            kind=self.column("kind").astype(np.int32, copy=False),
            correlation=self.column("correlation").astype(np.int64, copy=False),
            tables=Tables(
                processes=tuple(texts.get("processes", tuple(self.processes))),
                streams=tuple(texts.get("streams", tuple(self.streams))),
                names=tuple(texts.get("names", tuple(self.names))),
                kinds=tuple(self.kinds),
                ranks=ranks,
            ),
            rank=rank,
            detail=SideTables(
                size_bytes=self.sizes.done(place),
                shape=self.shapes.done(place),
                shapes=tuple(self.shape_table),
                collective=self.collectives.done(place),
                collectives=tuple(self.collective_table),
                after=Sparse(rows=np.array(self.after.rows, np.int32), values=np.array(self.after.values, np.int64)),
            ),
            about=About(
                sources=(source,),
                format=format,
                chips=tuple(chips),
                kept={kind: count for kind, count in zip(self.kinds, counts, strict=True) if count},
                dropped={what: count for what, count in self.dropped.items() if count},
                warnings=tuple(self.warnings),
                properties=properties,
            ),
        )
