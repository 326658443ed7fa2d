"""Turn what only some spans carry into sparse side tables: bytes moved, shapes of operands, what a collective moved.

A side table holds the rows it knows, ascending, and one value each; most spans of a trace have none, so a column would
be mostly empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.documents import JsonMapping

Rows = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sparse:
    """Values of some rows: ``rows`` ascends, ``values[i]`` belongs to ``rows[i]``."""

    rows: Rows = field(default_factory=lambda: np.zeros(0, np.int32))
    values: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        if self.rows.shape != self.values.shape or self.rows.ndim != 1:
            raise ValueError(f"a side table has {self.rows.shape} rows for {self.values.shape} values")
        self.rows.flags.writeable = False
        self.values.flags.writeable = False

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sparse)
            and np.array_equal(self.rows, other.rows)
            and np.array_equal(self.values, other.values)
        )

    def at(self, rows: NDArray[Any], default: int = -1) -> NDArray[np.int64]:
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

    def moved(self, place: NDArray[Any]) -> Sparse:
        """The same values after rows moved: row ``r`` is now row ``place[r]``, gone when that is negative."""
        target = place[self.rows]
        in_range = target >= 0
        order = np.argsort(target[in_range], kind="stable")
        return Sparse(rows=target[in_range][order].astype(np.int32), values=self.values[in_range][order])


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedShape:
    """The operands of a host op as the profiler recorded them, by position; scalars have no dims."""

    dims: tuple[Any, ...] = ()
    """A tuple of ints per operand; a tuple of such tuples for a list of tensors."""
    types: tuple[str, ...] = ()
    """Their element types in the profiler's words: ``c10::BFloat16``, ``float``, ``Scalar``."""
    concrete: tuple[str, ...] = ()
    """Values of the scalar operands, where they were kept."""


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

    def moved(self, place: NDArray[Any]) -> SideTables:
        """The same details after rows were put in another order, see `Sparse.moved`."""
        return SideTables(
            size_bytes=self.size_bytes.moved(place),
            shape=self.shape.moved(place),
            shapes=self.shapes,
            collective=self.collective.moved(place),
            collectives=self.collectives,
            after=_edges_moved(self.after, place),
            forward=_edges_moved(self.forward, place),
        )


def _edges_moved(edges: Sparse, place: NDArray[Any]) -> Sparse:
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
