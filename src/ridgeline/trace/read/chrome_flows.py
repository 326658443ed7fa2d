"""Turn the flow arrows of a trace into links between its spans.

    fwdbwd    from the op that ran forward to the node of autograd that runs it backward: kept
    ac2g      from the call that launched work to that work: kept only while no work has a correlation id, which says
              the same; all other arrows are counted

An arrow is two events, `s` and `f`, of one id. Each points to a thread and an instant; the span meant is the last there
that began by then and has not ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.arrays import Longs
from ridgeline.trace.read.timestamps import MISSING

Codes = NDArray[np.int32]
BACKWARD, LAUNCH = "backward", "launch"
SORTS = {
    "fwdbwd": BACKWARD, "fwd_bwd": BACKWARD, "forward_backward": BACKWARD, "fwd-bwd": BACKWARD,
    "ac2g": LAUNCH, "async_cpu_to_gpu": LAUNCH, "async_gpu": LAUNCH,
}  # fmt: skip
MOST_ID = 2**53


class Flows:
    """Ends of arrows while a file is read: ids, threads and instants, by sort."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[tuple[Longs, Codes, Longs, NDArray[np.bool_]]]] = {BACKWARD: [], LAUNCH: []}
        self._words: dict[str, int] = {}
        self.wanted = {BACKWARD, LAUNCH}

    def drop(self, sort: str) -> int:
        """Let the arrows of a sort go and take no more; says how many ends there were."""
        self.wanted.discard(sort)
        return sum(len(piece[0]) for piece in self._pieces.pop(sort, ()))

    def add(self, sort: str, events: Sequence[Any], tracks: Sequence[int], at: Longs) -> None:
        """Ends of arrows of one sort."""
        ids = np.array([self._id(event.id) for event in events], np.int64)
        begins = np.array([event.ph == "s" for event in events], np.bool_)
        self._pieces[sort].append((ids, np.array(tracks, np.int32), at, begins))

    def _id(self, id: Any) -> int:
        if type(id) is int and 0 <= id < MOST_ID:
            return id
        return MOST_ID + self._words.setdefault(str(id)[:100], len(self._words))

    def pairs(self, sort: str, spans: Spans) -> tuple[Longs, Longs]:
        """Rows where arrows of a sort begin and where they end; one that begins may end at several."""
        pieces = self._pieces.get(sort)
        empty = np.zeros(0, np.int64)
        if not pieces:
            return empty, empty
        ids, track, at, begins = (np.concatenate(column) for column in zip(*pieces, strict=True))
        good = at != MISSING
        sources = np.flatnonzero(begins & good)
        sources = sources[np.argsort(ids[sources], kind="stable")]
        targets = np.flatnonzero(~begins & good)
        if not len(sources) or not len(targets):
            return empty, empty
        place = np.searchsorted(ids[sources], ids[targets], side="right") - 1
        match = sources[np.maximum(place, 0)]
        matching = (place >= 0) & (ids[match] == ids[targets])
        match, targets = match[matching], targets[matching]
        begun = spans.at(track[match], at[match], work=False)
        end_spans = spans.at(track[targets], at[targets], work=sort == LAUNCH)
        complete = (begun >= 0) & (end_spans >= 0)
        return begun[complete], end_spans[complete]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """Spans of a file to be found by thread and instant: those of a chip, and calls or ops of a host."""

    track: Codes
    start: Longs
    end: Longs
    work: NDArray[np.bool_]
    host: NDArray[np.bool_]

    def at(self, track: Codes, times: Longs, *, work: bool) -> Longs:
        """The row each instant of a thread lies in, the one that began last; -1 for none."""
        span_rows = np.full(len(times), -1, np.int64)
        chosen = self.work if work else self.host
        for number in np.unique(track).tolist():
            rows = np.flatnonzero(chosen & (self.track == number))
            if not len(rows):
                continue
            rows = rows[np.argsort(self.start[rows], kind="stable")]
            on_track = np.flatnonzero(track == number)
            place = np.searchsorted(self.start[rows], times[on_track], side="right") - 1
            row = rows[np.maximum(place, 0)]
            span_rows[on_track] = np.where((place >= 0) & (times[on_track] <= self.end[row]), row, -1)
        return span_rows
