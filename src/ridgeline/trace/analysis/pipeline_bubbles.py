"""Turn pipeline stages into their bubbles: how long each idles in the window of all, and whose message it waits for.

    bubble     of a stage: time in the window of all stages in which it neither computes nor takes part in a collective
    waiting    of a gap that a receive ends: from its start until the sender began to send
    transfer   from then until the receive ended
    cool down  behind the last work of the stage
    other      gaps that no receive ends, and what passes between a receive and the work it feeds

A receive that spins until its message comes is waiting, so it counts as bubble. The parts of a bubble add up to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.arrays import Mask
from ridgeline.trace.arrays import Longs
from ridgeline.trace.classes import COMMUNICATION, COMPUTE, COPY, Rules
from ridgeline.trace.graph.match_collectives import EXCHANGE, MatchedCollectives, communication_rows, is_pairwise
from ridgeline.trace.intervals import Cover, cover, covered_ns, gaps
from ridgeline.trace.timeline import Timeline

Times = tuple[Longs, Longs]
CLOSE_NS = 50_000  # from the end of a receive to the work it feeds: an event and a launch lie between


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What a stage waited for one other rank."""

    rank: int
    waiting_ns: int
    transfer_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubble:
    """Idle time of one pipeline stage in the window of all."""

    process: str
    rank: int
    window_ns: int
    busy_ns: int
    warm_up_ns: int
    """Before its first work."""
    cool_down_ns: int
    """Behind its last work."""
    waits: tuple[Wait, ...] = ()
    """Longest first; empty where sends could not be matched with receives."""

    JSON = "process rank window_us bubble_us bubble_share=share warm_up_us cool_down_us waits other_us"

    @property
    def bubble_ns(self) -> int:
        return self.window_ns - self.busy_ns

    @property
    def share(self) -> float:
        return self.bubble_ns / self.window_ns if self.window_ns else 0.0

    @property
    def other_ns(self) -> int:
        """What neither a receive nor the end of the window explains."""
        return self.bubble_ns - self.cool_down_ns - sum(wait.waiting_ns + wait.transfer_ns for wait in self.waits)


def bubbles(
    line: Timeline, rules: Rules, counted: Mask, matched: MatchedCollectives, times: Times
) -> tuple[Bubble, ...]:
    """Bubbles of every chip; none where nothing is sent. ``times`` are starts and ends on the common clock."""
    start, end = times
    talk = communication_rows(line, rules, counted)
    pairs = talk[is_pairwise(line, talk)]
    chips = np.unique(line.process[counted]).tolist()
    if not len(pairs) or len(chips) < 2:
        return ()
    window = int(start[counted].min()), int(end[counted].max())
    groups = np.array([rules.group_of(id) for id in line.classes])[line.class_]
    busy = counted & np.isin(groups, (COMPUTE, COPY, COMMUNICATION))
    busy[pairs] = False
    receives = _receives(matched)
    return tuple(
        _bubble(line, chip, np.flatnonzero(busy & (line.process == chip)), receives, (times, window)) for chip in chips
    )


def _receives(matched: MatchedCollectives) -> Longs:
    """Rows of receives beside the rows of their sends; of an exchange, each is both."""
    rows = [pair.rows for pair in matched.pairs] + [pair.rows[::-1] for pair in matched.pairs if pair.name == EXCHANGE]
    return np.array(rows, np.int64).reshape(-1, 2)[:, ::-1]


def _bubble(
    line: Timeline, chip: int, rows: NDArray[np.intp], received: Longs, given: tuple[Times, tuple[int, int]]
) -> Bubble:
    times, window = given
    works = cover(times[0][rows], times[1][rows])
    inside = covered_ns(works, np.array(window[:1]), np.array(window[1:]))
    between = gaps(works)
    if len(works):  # what comes before the first work is a gap too
        between = Cover(
            start=np.concatenate([[window[0]], between.start]), end=np.concatenate([[works.first], between.end])
        )
    stage_receives = received[line.process[received[:, 0]] == chip]
    return Bubble(
        process=line.processes[chip],
        rank=line.tables.ranks[chip],
        window_ns=window[1] - window[0],
        busy_ns=int(inside[0]),
        warm_up_ns=works.first - window[0] if len(works) else window[1] - window[0],
        cool_down_ns=window[1] - works.last if len(works) else 0,
        waits=tuple(
            sorted(_waits(line, stage_receives, between, times), key=lambda one: -one.waiting_ns - one.transfer_ns)
        ),
    )


def _waits(line: Timeline, received: Longs, between: Cover, times: Times) -> Iterator[Wait]:
    """Gaps by the rank whose message ended them."""
    if not len(received) or not len(between):
        return
    start, end = times
    received = received[np.argsort(end[received[:, 0]], kind="stable")]
    came = end[received[:, 0]]
    place = np.searchsorted(came, between.end, side="right") - 1
    has_receive = (place >= 0) & (came[np.maximum(place, 0)] > between.start)
    has_receive &= between.end - came[np.maximum(place, 0)] <= CLOSE_NS
    message, begun = received[place[has_receive]], between.start[has_receive]
    sent = np.clip(start[message[:, 1]], begun, end[message[:, 0]])
    rank = line.rank[message[:, 1]]
    for number in np.unique(rank).tolist():
        of_rank = rank == number
        yield Wait(
            rank=number,
            waiting_ns=int((sent - begun)[of_rank].sum()),
            transfer_ns=int((end[message[:, 0]] - sent)[of_rank].sum()),
        )
