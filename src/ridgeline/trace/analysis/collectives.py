"""Turn communication of ranks into collectives by type and size, who waits for whom, and the pipeline's bubble.

    payload     bytes of the full tensor: in for all-reduce, reduce-scatter, all-to-all; out for all-gather
    wire        bytes each of R ranks sends: payload (R-1)/R, twice that for an all-reduce; payload for the others
    busbw       wire / transfer, as nccl-tests count                    transfer  from the last arrival to the end
    bound       wire / bandwidth of the link: no algorithm is faster    wait      from the own arrival to the last

Where only one rank is in the trace, arrivals of the others are not seen and `transfer` is the whole span: waiting for
others is in it, and the fastest call of a kind says most about the link.

    skew       last arrival - first arrival at one collective
    caused     of a rank: what the others waited for it where it came last, until the next but last was there

    bubble     of a stage: time in the window of all stages in which it neither computes nor takes part in a collective
    waiting    of a gap that a receive ends: from its start until the sender began to send
    transfer   from then until the receive ended
    cool down  behind the last work of the stage
    other      gaps that no receive ends, and what passes between a receive and the work it feeds

    c[k, r]    compute of rank r between collectives k - 1 and k, both of all ranks
    uneven     mean over k of max over r of c[k, r]  /  mean over k and r of c[k, r]  -  1

A receive that spins until its message comes is waiting, so it counts as bubble; the parts of a bubble add up to it.
Where c differs, all wait at k for whoever has most, though sums may be even: work that were even at every k would take
mean over r of c[k, r].
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.units import DECIMAL
from ridgeline.hardware.chip import Chip
from ridgeline.trace.classes import COMMUNICATION, COMPUTE, COPY, Rules
from ridgeline.trace.graph.match_collectives import (
    EXCHANGE,
    WORD,
    MatchedCollective,
    MatchedCollectives,
    communication_rows,
    is_pairwise,
    match_collectives,
)
from ridgeline.trace.intervals import Cover, cover, covered_ns, gaps
from ridgeline.trace.timeline import Longs, RecordedCollective, Rows, Timeline

WIDTHS = {
    "Byte": 1, "Char": 1, "Bool": 1, "Half": 2, "BFloat16": 2, "Float": 4, "Int": 4, "Long": 8, "Double": 8,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "ComplexFloat": 8,
}  # fmt: skip
LONGEST = 3
PAIR = re.compile(r"send_?recv|send|recv|permute", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSize:
    """All collectives of one type, payload and group size; times in nanoseconds."""

    name: str
    payload_bytes: int
    """0 where the trace does not record it."""
    group_size: int
    """0 where the trace does not record it."""
    calls: int
    """Of all ranks together."""
    total_ns: int
    transfer_ns: int
    """Median over calls."""
    fastest_ns: int
    wait_ns: int
    """Of all ranks together, for the last to arrive; 0 where ranks are not matched."""
    matched: bool
    last: Mapping[int, int]
    """How often each rank came last, by more than a microsecond."""
    wire_bytes: float
    link_bytes_per_s: float | None
    rows: tuple[int, ...]
    """The longest calls."""

    JSON = """
        name payload_bytes group_size calls total_us transfer_us fastest_us wait_us matched last_ranks=last
        busbw_gbytes_per_s=busbw/G link_gbytes_per_s=link_bytes_per_s/G share_of_link bound_us span_ids=rows
    """

    @property
    def busbw(self) -> float | None:
        """Wire bytes over the median transfer."""
        return self.wire_bytes / (self.transfer_ns / DECIMAL["G"]) if self.wire_bytes and self.transfer_ns else None

    @property
    def bound_ns(self) -> float | None:
        """What the link alone needs for the bytes."""
        if not self.wire_bytes or not self.link_bytes_per_s:
            return None
        return self.wire_bytes / self.link_bytes_per_s * DECIMAL["G"]

    @property
    def share_of_link(self) -> float | None:
        return self.busbw / self.link_bytes_per_s if self.busbw and self.link_bytes_per_s else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Talk:
    """Every communication span: what it is, what it moves, when the last rank came."""

    rows: Rows
    kind: tuple[str, ...]
    payload: Longs
    """0 where it is not recorded."""
    group: Longs
    wire: Array
    arrived: Longs
    """When the last rank came to it, on this rank's clock; its own start where ranks are not matched."""
    matched: Mask


def plain(name: str) -> str:
    """The type of a collective in one spelling.

    >>> plain("_allgather_base"), plain("all_to_allv"), plain("ncclDevKernel_ReduceScatter_Sum_bf16")
    ('allgather', 'alltoall', 'reducescatter')
    """
    pair = None if re.search("all_?to_?all", name, re.IGNORECASE) else PAIR.search(name[:400])
    word = pair or WORD.search(name[:400])
    return word[0].lower().replace("_", "") if word else ""


def wire_bytes(kind: str, payload: float, ranks: int) -> float:
    """Bytes each rank sends, as nccl-tests' bus bandwidth counts them.

    >>> wire_bytes("allreduce", 8, 4), wire_bytes("allgather", 8, 4), wire_bytes("broadcast", 8, 4)
    (12.0, 6.0, 8.0)
    """
    if kind in ("allreduce", "allgather", "reducescatter", "alltoall"):
        return payload * (ranks - 1) / ranks * (2 if kind == "allreduce" else 1) if ranks > 1 else 0.0
    return float(payload)


def payload_bytes(one: RecordedCollective) -> int:
    """The full tensor, from what was recorded of a rank's part."""
    return max(one.in_elements, one.out_elements) * WIDTHS.get(one.dtype, 0)


def talk_of(line: Timeline, rows: Rows, matched: MatchedCollectives) -> Talk:
    """What each of these communication spans is."""
    places = line.detail.collective.at(rows)
    names = {code: plain(line.names[code]) for code in np.unique(line.name[rows]).tolist()}
    records = [
        (plain(collective.name), payload_bytes(collective), collective.group_size)
        for collective in line.detail.collectives
    ]
    kind, payload, group = [], np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for at, (row, place) in enumerate(zip(rows.tolist(), places.tolist(), strict=True)):
        word = ""
        if place >= 0:
            word, payload[at], group[at] = records[place]
        kind.append(word or names[int(line.name[row])] or line.classes[int(line.class_[row])])
    wire = np.array(
        [wire_bytes(*call) for call in zip(kind, payload.tolist(), group.tolist(), strict=True)], np.float64
    )
    arrival_ns, is_matched = matched.arrivals(line)
    met = is_matched[rows]
    kind = ["alltoall" if word == "sendrecv" and all_ else word for word, all_ in zip(kind, met.tolist(), strict=True)]
    return Talk(
        rows=rows, kind=tuple(kind), payload=payload, group=group, wire=wire, arrived=arrival_ns[rows], matched=met
    )


def link_of(chip: Chip | None, group_size: int) -> float | None:
    """Bandwidth of the links inside a domain, for a group that fits one; beyond, the path is not in the trace."""
    if chip is None or chip.scaleup.bandwidth is None:
        return None
    domain = chip.scaleup.domain
    return chip.scaleup.bandwidth.value if domain is None or group_size <= domain.value else None


def collective_sizes(
    line: Timeline, talk: Talk, matched: MatchedCollectives, chip: Chip | None
) -> tuple[CollectiveSize, ...]:
    """Communication by type, payload and group, most time first; sends and receives are among them."""
    last = _last(line, matched)
    by: dict[tuple[str, int, int], list[int]] = {}
    for at, key in enumerate(zip(talk.kind, talk.payload.tolist(), talk.group.tolist(), strict=True)):
        by.setdefault(key, []).append(at)
    sizes = []
    for (kind, payload, group), places in by.items():
        size_rows = np.array(places)
        rows = talk.rows[size_rows]
        duration = line.durations_ns(rows)
        transfer = line.end_ns[rows] - talk.arrived[size_rows]
        came = Tally(last[row] for row in rows.tolist() if row in last)
        sizes.append(
            CollectiveSize(
                name=kind, payload_bytes=payload, group_size=group, calls=len(rows), total_ns=int(duration.sum()),
                transfer_ns=int(np.median(transfer)), fastest_ns=int(transfer.min()),
                wait_ns=int((duration - transfer).sum()), matched=bool(talk.matched[size_rows].any()),
                last=dict(sorted(came.items())), wire_bytes=float(talk.wire[size_rows[0]]),
                link_bytes_per_s=link_of(chip, group) if group > 1 else None,
                rows=tuple(line.longest(rows, LONGEST).tolist()),
            )
        )  # fmt: skip
    return tuple(sorted(sizes, key=lambda one: -one.total_ns))


def _last(line: Timeline, matched: MatchedCollectives) -> dict[int, int]:
    """Of each collective the row of the rank that came last, by more than a microsecond, and that rank."""
    last_ranks, start_ns = {}, line.start_ns - matched.row_shifts(line)
    for match in matched.found:
        came = start_ns[list(match.rows)]
        if int(came.max() - came.min()) > 1000:
            last_ranks[match.rows[int(came.argmax())]] = match.ranks[int(came.argmax())]
    return last_ranks


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


def _bubble(line: Timeline, chip: int, rows: Rows, received: Longs, given: tuple[Times, tuple[int, int]]) -> Bubble:
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


FEWEST = 4  # collectives to speak of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Between:
    """Compute between collectives of all ranks."""

    compute_ns: Array
    """By collective and rank."""
    rows: Rows
    """Spans of compute that stand before one of them."""
    at: Longs
    """Which collective each stands before."""
    rank: Longs
    """Whose each is, as a column."""

    @property
    def uneven(self) -> float:
        """How much longer the longest rank computes than the mean, from one collective to the next."""
        return float(self.compute_ns.max(axis=1).sum() / max(1.0, self.compute_ns.mean(axis=1).sum()) - 1)

    @property
    def even(self) -> float:
        """The same for the sums of ranks."""
        total = self.compute_ns.sum(axis=0)
        return float(total.max() / max(1.0, total.mean()) - 1)

    @property
    def shares(self) -> Array:
        """Of each row: how long it would be if all ranks computed as long before each collective."""
        share = self.compute_ns.mean(axis=1, keepdims=True) / np.maximum(1.0, self.compute_ns)
        return np.asarray(share[self.at, self.rank])


def compute_between(line: Timeline, rules: Rules, counted: Mask, found: Sequence[MatchedCollective]) -> Between | None:
    """The compute between collectives that every rank takes part in, in the order of their starts."""
    world = max((len(match.ranks) for match in found), default=0)
    world_matches = [match for match in found if len(match.ranks) == world]
    if world < 2 or len(world_matches) < FEWEST or len({match.ranks for match in world_matches}) != 1:
        return None
    world_matches.sort(key=lambda one: int(line.start_ns[one.rows[0]]))
    groups = np.array([rules.group_of(id) == COMPUTE for id in line.classes], np.bool_)
    time = np.zeros((len(world_matches), world))
    rows, at, rank = [], [], []
    for column in range(world):
        ends = np.array([line.start_ns[match.rows[column]] for match in world_matches])
        if (np.diff(ends) < 0).any():
            return None  # ranks disagree about the order
        process = line.process[world_matches[0].rows[column]]
        compute_rows = np.flatnonzero(counted & groups[line.class_] & (line.process == process))
        place = np.searchsorted(ends, line.start_ns[compute_rows], side="right")
        compute_rows, place = compute_rows[place < len(world_matches)], place[place < len(world_matches)]
        np.add.at(time[:, column], place, line.durations_ns(compute_rows))
        rows.append(compute_rows)
        at.append(place)
        rank.append(np.full(len(compute_rows), column))
    return Between(
        compute_ns=time, rows=np.concatenate(rows), at=np.concatenate(at).astype(np.int64),
        rank=np.concatenate(rank).astype(np.int64),
    )  # fmt: skip


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
