"""Turn a folder of ranks into who waits for whom: skew of every collective, stragglers, and the pipeline's bubble.

    skew       last arrival - first arrival at one collective
    caused     of a rank: what the others waited for it where it came last, until the next but last was there

`bubbles` has the pipeline's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.trace.analysis.between_collectives import Between, compute_between
from ridgeline.trace.analysis.pipeline_bubbles import Bubble, bubbles
from ridgeline.trace.arrays import Longs
from ridgeline.trace.classes import Rules
from ridgeline.trace.graph.match_collectives import MatchedCollective, MatchedCollectives, match_collectives
from ridgeline.trace.timeline import Timeline

LISTED = 50  # collectives a report names, by skew


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One collective: who came last, and what that cost, in nanoseconds on the common clock."""

    group: str
    name: str
    sequence: int
    ranks: tuple[int, ...]
    rows: tuple[int, ...]
    start_ns: int
    skew_ns: int
    last: int
    """Rank that came last."""
    waits_ns: tuple[int, ...]
    """By rank, until the last came."""
    transfer_ns: int

    JSON = "group name sequence skew_us last_rank=last ranks wait_us=waits_ns transfer_us span_ids=rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """One rank over all collectives."""

    rank: int
    last: int
    """Collectives it came last to, by more than a microsecond."""
    caused_ns: int
    """What the other ranks together waited for it alone."""
    waited_ns: int
    """What it waited for others."""
    clock_ns: int
    """How far its clock is ahead of the first rank's; taken off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What several ranks show together."""

    arrivals: tuple[Arrival, ...]
    """Largest skew first."""
    collectives: int
    unmatched: int
    stragglers: tuple[Straggler, ...]
    """Most waiting caused first; empty for one rank."""
    bubbles: tuple[Bubble, ...]
    """Empty where nothing is sent between stages."""
    pairs: int = 0
    """Sends with their receives."""
    alone: int = 0
    """Sends and receives whose other half is not in the timeline, or cannot be told."""
    between: Between | None = None
    """Compute between collectives; None without any."""


def rank_report(line: Timeline, rules: Rules, counted: Mask, matched: MatchedCollectives | None = None) -> RankReport:
    """Skew, stragglers and bubbles of a timeline."""
    matched = match_collectives(line, rules, counted) if matched is None else matched
    shift = np.array([matched.shift.get(rank, 0) for rank in line.tables.ranks] or [0], np.int64)[line.process]
    start, end = line.start_ns - shift, line.end_ns - shift
    arrivals = [_arrival(match, start, end) for match in matched.found]
    return RankReport(
        arrivals=tuple(sorted(arrivals, key=lambda one: -one.skew_ns)[:LISTED]),
        collectives=len(arrivals),
        unmatched=matched.unmatched,
        stragglers=_stragglers(arrivals, matched),
        bubbles=bubbles(line, rules, counted, matched, (start, end)),
        pairs=len(matched.pairs),
        alone=matched.alone,
        between=compute_between(line, rules, counted, matched.found),
    )


def _arrival(one: MatchedCollective, start: Longs, end: Longs) -> Arrival:
    rows = list(one.rows)
    came, end_ns = start[rows], end[rows]
    last = int(came.max())
    return Arrival(
        group=one.group, name=one.name, sequence=one.sequence, ranks=one.ranks, rows=one.rows,
        start_ns=int(came.min()), skew_ns=last - int(came.min()), last=one.ranks[int(came.argmax())],
        waits_ns=tuple((last - came).tolist()), transfer_ns=max(0, int(end_ns.max()) - last),
    )  # fmt: skip


def _stragglers(arrivals: list[Arrival], matched: MatchedCollectives) -> tuple[Straggler, ...]:
    last: dict[int, int] = {}
    caused_ns: dict[int, int] = {}
    waited_ns: dict[int, int] = {}
    for arrival in arrivals:
        for rank, wait in zip(arrival.ranks, arrival.waits_ns, strict=True):
            waited_ns[rank] = waited_ns.get(rank, 0) + wait
        if arrival.skew_ns > 1000:
            last[arrival.last] = last.get(arrival.last, 0) + 1
        sorted_waits = sorted(arrival.waits_ns)[
            1
        ]  # the next but last waited this long, and everybody before it at least as long
        caused_ns[arrival.last] = caused_ns.get(arrival.last, 0) + sorted_waits * (len(arrival.ranks) - 1)
    stragglers = [
        Straggler(
            rank=rank,
            last=last.get(rank, 0),
            caused_ns=caused_ns.get(rank, 0),
            waited_ns=waited_ns[rank],
            clock_ns=matched.shift.get(rank, 0),
        )
        for rank in waited_ns
    ]
    return tuple(sorted(stragglers, key=lambda one: (-one.caused_ns, one.rank)))
