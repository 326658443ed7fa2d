"""Turn rows that a reader finds a few at a time into the columns of a TracePart, with texts numbered as they appear."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.read.chrome_columns import MOST_SPANS, Interned, SideColumn
from ridgeline.trace.read.join import TracePart
from ridgeline.trace.side_tables import About, RecordedCollective, RecordedShape, SideTables, Sparse
from ridgeline.trace.timeline import Tables

COLUMNS = ("start", "duration", "process", "stream", "name", "kind", "correlation")
Values = NDArray[Any] | Sequence[int] | int


class RowColumns:
    """Rows of one file while they are read; texts get their codes from the tables `processes` to `kinds`."""

    def __init__(self) -> None:
        self.processes, self.streams, self.names, self.kinds = Interned(), Interned(), Interned(), Interned()
        self.sizes, self.shapes, self.collectives = SideColumn(), SideColumn(), SideColumn()
        self.after = SideColumn()
        self.shape_table, self.collective_table = Interned(), Interned()
        self.dropped: Tally[str] = Tally()
        self.warnings: list[str] = []
        self.count = 0
        self._pieces: dict[str, list[NDArray[Any]]] = {column: [] for column in COLUMNS}

    @property
    def full(self) -> bool:
        return self.count >= MOST_SPANS

    def add(self, start: NDArray[np.int64], **columns: Values) -> None:
        """Add rows: starts in nanoseconds, and the other columns as arrays, or as one value for all of these rows."""
        for column in COLUMNS:
            values = start if column == "start" else columns.get(column, 0)
            wide = np.int64 if column in ("start", "duration", "correlation") else np.int32
            self._pieces[column].append(np.broadcast_to(np.asarray(values, wide), start.shape))
        self.count += len(start)

    def column(self, name: str) -> NDArray[Any]:
        """A column, whole."""
        pieces = self._pieces[name]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)

    def recorded(self, name: str, format: str, chips: Sequence[str], ranks: tuple[int, ...] = ()) -> TracePart:
        """Everything of a file as a part: the first chip it names, and its ranks where there are several."""
        about = About(
            sources=(name,),
            format=format,
            chips=tuple(dict.fromkeys(chips))[:1],
            kept=self.kept(),
            dropped={what: count for what, count in self.dropped.items() if count},
            warnings=tuple(self.warnings),
        )
        return self.part(about, {}, ranks=ranks if len(set(ranks)) > 1 else ())

    def part(
        self, about: About, texts: Mapping[str, Sequence[str]], ranks: tuple[int, ...] = (), rank: int | None = None
    ) -> TracePart:
        """Everything as a part; ``texts`` gives the tables whose codes stand for something else than their texts."""
        tables = Tables(
            processes=tuple(texts.get("processes", tuple(self.processes))),
            streams=tuple(texts.get("streams", tuple(self.streams))),
            names=tuple(texts.get("names", tuple(self.names))),
            kinds=tuple(self.kinds),
            ranks=ranks,
        )
        return TracePart(
            start_ns=self.column("start"),
            duration_ns=self.column("duration"),
            process=self.column("process").astype(np.int32),
            stream=self.column("stream").astype(np.int32),
            name=self.column("name").astype(np.int32),
            kind=self.column("kind").astype(np.int32),
            correlation=self.column("correlation"),
            tables=tables,
            rank=rank,
            detail=self._detail(),
            about=about,
        )

    def kept(self) -> dict[str, int]:
        """Rows by kind."""
        counts = np.bincount(self.column("kind").astype(np.int64), minlength=len(self.kinds)).tolist()
        return {kind: count for kind, count in zip(self.kinds, counts, strict=True) if count}

    def _detail(self) -> SideTables:
        place = np.arange(self.count)
        shapes: tuple[RecordedShape, ...] = tuple(self.shape_table)
        collectives: tuple[RecordedCollective, ...] = tuple(self.collective_table)
        after = Sparse(rows=np.array(self.after.rows, np.int32), values=np.array(self.after.values, np.int64))
        return SideTables(
            size_bytes=self.sizes.done(place),
            shape=self.shapes.done(place),
            shapes=shapes,
            collective=self.collectives.done(place),
            collectives=collectives,
            after=after,
        )
