"""Turn communication kernels of several ranks into matched collectives: the part of each rank, and how clocks differ.

    arrival   start of a rank's part, on the common clock        skew = last arrival - first
    wait      last arrival - own arrival: the rank spins until everybody is there
    transfer  last end - last arrival

Parts belong together when group, name and place in the sequence of that group agree. All parts of a collective end
together, so the median difference of ends between two ranks is the shift of their clocks, where it is more than the
ends scatter. Ranks that share no collective are compared by what they send, only where receives would end before their
sends: that no clock but a wrong one can show.

Sends from a to b and receives of b from a are paired in the order they end, within their group; sizes, where recorded,
must agree. One rank may have been recorded a little longer than the other. Then the first of the shorter row belongs to
that place of the longer one from which on the ends keep the same distance:

    scatter(k) = median |d_i - median d|,  d_i = end of shorter[i] - end of longer[i + k]        the smallest wins
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.trace.classes import COMMUNICATION, Rules
from ridgeline.trace.timeline import Longs, RecordedCollective, Rows, Timeline

SENDS = re.compile(r"send", re.IGNORECASE)
RECEIVES = re.compile(r"recv|receive", re.IGNORECASE)
MOST_MISSING = 64  # of a row that is shorter than the other
SEND, RECEIVE, EITHER = "send", "receive", "either"


@dataclass(frozen=True, slots=True, kw_only=True)
class P2PKey:
    """Who sends to whom in which group; of kernels that may do both, the lower and the higher rank."""

    group: str
    sender: int
    receiver: int
    both_ways: bool
    """Each may send and receive."""


def pair_sends(line: Timeline, rows: Rows) -> tuple[list[tuple[P2PKey, int, Longs]], int]:
    """For every key its pairs, as rows of (send, receive), with the place of the first; and how many have none."""
    sent: dict[P2PKey, list[int]] = {}
    receives: dict[P2PKey, list[int]] = {}
    ranks = sorted(set(line.rank[rows].tolist()))
    records = line.detail.collective.at(rows)
    for row, place, rank in zip(rows.tolist(), records.tolist(), line.rank[rows].tolist(), strict=True):
        record = line.detail.collectives[place] if place >= 0 else RecordedCollective()
        name = record.name or line.names[int(line.name[row])]
        sends, gets = bool(SENDS.search(name[:400])), bool(RECEIVES.search(name[:400]))
        does = EITHER if sends == gets else SEND if sends else RECEIVE
        peer = _peer_rank(record, rank, does, ranks)
        if peer < 0 or peer == rank:
            continue
        low, high = (rank, peer) if does == SEND or (does == EITHER and rank < peer) else (peer, rank)
        into = sent if rank == low else receives
        group = f"{record.group} {record.ranks}".strip()
        into.setdefault(P2PKey(group=group, sender=low, receiver=high, both_ways=does == EITHER), []).append(row)
    pairs, count = [], 0
    for key in sent:
        match = _align_sizes(line, np.array(sent[key]), np.array(receives.get(key, ()), np.int64))
        if match is not None:
            pairs.append((key, *match))
            count += 2 * len(match[1])
    return pairs, len(rows) - count


def _peer_rank(record: RecordedCollective, rank: int, does: str, ranks: Sequence[int]) -> int:
    named_rank = {SEND: record.to_rank, RECEIVE: record.from_rank}.get(does, -1)
    if named_rank >= 0:
        return named_rank
    group = [int(number) for number in re.findall(r"\d{1,9}", record.ranks)] if "..." not in record.ranks else []
    for members in (group, list(ranks)):
        if len(members) == 2 and rank in members:
            return members[1 - members.index(rank)]
        if members:
            return -1
    return -1


def _align_sizes(line: Timeline, send: Longs, receive: Longs) -> tuple[int, Longs] | None:
    """Sends and receives of one key side by side, with how many stand before the first; None when they do not fit."""
    end = line.end_ns
    send, receive = (rows[np.argsort(end[rows], kind="stable")] for rows in (send, receive))
    few, many = sorted((send, receive), key=len)
    missing = len(many) - len(few)
    if not len(few) or missing > min(MOST_MISSING, len(few)):
        return None
    sizes = _sizes(line, few)
    best: tuple[float, float, int] | None = None
    for offset in range(missing + 1):
        part = many[offset : offset + len(few)]
        part_sizes = _sizes(line, part)
        if ((sizes != part_sizes) & (sizes > 0) & (part_sizes > 0)).any():
            continue
        distance_ns = end[few] - end[part]
        middle = float(np.median(distance_ns))
        score = (float(np.median(np.abs(distance_ns - middle))), abs(middle), offset)
        best = score if best is None else min(best, score)
    if best is None:
        return None
    part = many[best[2] : best[2] + len(few)]
    return best[2], np.stack([few, part] if len(send) <= len(receive) else [part, few], axis=1)


def _sizes(line: Timeline, rows: Longs) -> Longs:
    """Elements each of these moves as recorded, 0 where it is not."""
    records = line.detail.collective.at(rows)
    elements = [max(collective.in_elements, collective.out_elements) for collective in line.detail.collectives] or [0]
    return np.where(records >= 0, np.array(elements, np.int64)[np.maximum(records, 0)], 0)


def in_order(found: Sequence[tuple[P2PKey, int, Longs]]) -> Iterator[tuple[P2PKey, int, tuple[int, int]]]:
    """Every pair: its key, its place in the row, (row of the send, row of the receive)."""
    for key, offset, rows in found:
        for place, (send, receive) in enumerate(rows.tolist()):
            yield key, offset + place, (send, receive)


LEAST_SHIFT_NS = 1000
EARLY_NS = 5_000  # a receive that ends so much before its send
TOGETHER_NS, TOGETHER = 10_000, 0.02  # parts of one collective end this close, or this share of its length
EXCHANGE = "exchange"
"""Name of a pair of which either rank may send."""
PAIRWISE = re.compile(r"send|recv|permute|p2p", re.IGNORECASE)
WORD = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|gather|scatter|barrier", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatchedCollective:
    """One collective: the rows of its parts by rank, ascending; or a send and its receive, in this order."""

    group: str
    name: str
    sequence: int
    ranks: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatchedCollectives:
    """All collectives that at least two ranks show, and the clock skew: how far each rank's clock is ahead, in ns."""

    found: tuple[MatchedCollective, ...] = ()
    shift: Mapping[int, int] = field(default_factory=dict)
    unmatched: int = 0
    """Parts whose group has different counts on different ranks, so that places in the sequence mean nothing."""
    pairs: tuple[MatchedCollective, ...] = ()
    """Sends with their receives."""
    alone: int = 0
    """Sends and receives whose other half is not in the timeline, or cannot be told."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shift", MappingProxyType(dict(self.shift)))

    def __len__(self) -> int:
        return len(self.found)

    def row_shifts(self, line: Timeline) -> Longs:
        """How far the clock of every row of a timeline is ahead."""
        return np.array([self.shift.get(rank, 0) for rank in line.tables.ranks] or [0], np.int64)[line.process]

    def arrivals(self, line: Timeline) -> tuple[Longs, Mask]:
        """When the last rank came to each row's collective, on the row's own clock, its start where nobody else is; and
        which rows are matched."""
        arrival_ns, shift = line.start_ns.copy(), self.row_shifts(line)
        for match in self.found:
            rows = np.array(match.rows)
            arrival_ns[rows] = int((line.start_ns[rows] - shift[rows]).max()) + shift[rows]
        is_matched = line.mask(np.array([row for match in self.found for row in match.rows], np.intp))
        return np.clip(arrival_ns, line.start_ns, line.end_ns), is_matched


def is_pairwise(line: Timeline, rows: Rows) -> Mask:
    """Which of these communication spans are sends or receives between two ranks."""
    pairwise_names = np.array([bool(PAIRWISE.search(name[:400])) for name in line.names], np.bool_)
    sends = line.of_kind("send")[rows]
    record = line.detail.collective.at(rows)
    by_record = np.array(
        [bool(PAIRWISE.search(collective.name)) for collective in line.detail.collectives] or [False], np.bool_
    )
    pairwise = np.where(record >= 0, by_record[np.maximum(record, 0)], pairwise_names[line.name[rows]]) | sends
    loose = np.flatnonzero(pairwise & (record < 0) & ~sends)
    if len(loose) and _end_together(line, rows[loose]):
        pairwise[loose] = False
    return np.asarray(pairwise)


def _end_together(line: Timeline, rows: Rows) -> bool:
    """Whether the first of these on each rank end together, the second, and so on, on three or more ranks."""
    rank = line.rank[rows]
    ranks = np.unique(rank)
    many = np.array([int((rank == number).sum()) for number in ranks])
    if len(ranks) < 3 or many[0] < 2 or (many != many[0]).any() or line.predicted:
        return False
    ends = np.stack([np.sort(line.end_ns[rows[rank == number]]) for number in ranks])
    distance_ns = ends - ends[0]
    distance_ns -= np.median(distance_ns, axis=1, keepdims=True).astype(np.int64)
    usual = float(np.median(line.durations_ns(rows)))
    return float(np.median(distance_ns.max(axis=0) - distance_ns.min(axis=0))) <= max(TOGETHER_NS, TOGETHER * usual)


def communication_rows(line: Timeline, rules: Rules, counted: Mask) -> Rows:
    """Rows that count as communication."""
    return np.flatnonzero(counted & rules.in_group(line, COMMUNICATION))


def match_collectives(line: Timeline, rules: Rules, counted: Mask) -> MatchedCollectives:
    """Collectives matched across the ranks of a timeline; none for a single rank or a prediction."""
    rows = communication_rows(line, rules, counted)
    rank = line.rank
    if line.predicted or len(np.unique(rank[rows])) < 2:  # a process of a prediction stands for a whole stage
        return MatchedCollectives()
    pairwise = is_pairwise(line, rows)
    pairs, alone = pair_sends(line, rows[pairwise])
    sends = tuple(
        MatchedCollective(
            group=key.group,
            name=EXCHANGE if key.both_ways else "send",
            sequence=place,
            ranks=(key.sender, key.receiver),
            rows=parts,
        )
        for key, place, parts in in_order(pairs)
    )
    matches, unmatched_rows = _match_groups(line, rows[~pairwise])
    return MatchedCollectives(
        found=matches, shift=_shifts(line, matches, sends), unmatched=unmatched_rows,
        pairs=tuple(sorted(sends, key=lambda one: one.rows)), alone=alone,
    )  # fmt: skip


def _match_groups(line: Timeline, rows: Rows) -> tuple[tuple[MatchedCollective, ...], int]:
    by_key: dict[tuple[str, str], dict[int, list[int]]] = {}
    records = line.detail.collective.at(rows).tolist()
    keys: dict[tuple[int, int], tuple[str, str]] = {}
    names, ranks_of_rows = line.name[rows].tolist(), line.rank[rows].tolist()
    for row, place, name, rank in zip(rows.tolist(), records, names, ranks_of_rows, strict=True):
        found_key = keys.get((place, name))
        if found_key is None:
            found_key = keys[place, name] = _key(line, place, name)
        by_key.setdefault(found_key, {}).setdefault(rank, []).append(row)
    matches: list[MatchedCollective] = []
    unmatched_rows = 0
    for (group, word), rows_of_rank in by_key.items():
        if len(rows_of_rank) < 2:
            continue
        if len({len(parts) for parts in rows_of_rank.values()}) > 1:
            unmatched_rows += sum(map(len, rows_of_rank.values()))
            continue
        ranks = tuple(sorted(rows_of_rank))
        for sequence, parts in enumerate(zip(*(rows_of_rank[rank] for rank in ranks), strict=True)):
            matches.append(MatchedCollective(group=group, name=word, sequence=sequence, ranks=ranks, rows=parts))
    return tuple(sorted(matches, key=lambda one: one.rows[0])), unmatched_rows


def _key(line: Timeline, place: int, name: int) -> tuple[str, str]:
    """Group and name of a part. Groups are as recorded; without a record the kernel's word for what it does decides."""
    if place >= 0:
        record = line.detail.collectives[place]
        return f"{record.group} {record.ranks}".strip(), record.name
    word = WORD.search(line.names[name][:400])
    return "", word[0].lower().replace("_", "") if word else line.names[name]


def _shifts(
    line: Timeline, found: tuple[MatchedCollective, ...], sends: tuple[MatchedCollective, ...]
) -> dict[int, int]:
    """How far ahead of the lowest rank's each clock is; 0 unless the ends of most collectives agree on it."""
    end = line.end_ns
    distances: dict[tuple[int, int], list[int]] = {}
    ranks: set[int] = set()
    for match in found:
        ends = end[list(match.rows)].tolist()
        ranks |= set(match.ranks)
        for rank, value in zip(match.ranks[1:], ends[1:], strict=True):
            distances.setdefault((match.ranks[0], rank), []).append(value - ends[0])
    links = {key: _middle(values) for key, values in distances.items()}
    for (sender, receiver), value in _impossible(end, sends).items():
        links.setdefault((min(sender, receiver), max(sender, receiver)), value if sender < receiver else -value)
    near: dict[int, list[tuple[int, int]]] = {}
    for (low, high), value in links.items():
        near.setdefault(low, []).append((high, value))
        near.setdefault(high, []).append((low, -value))
    shifts: dict[int, int] = {}
    for lowest in sorted({*near, *ranks}):
        if lowest in shifts:
            continue
        shifts[lowest], waiting = 0, [lowest]
        for rank in waiting:  # grows while it is walked
            for neighbour, value in near.get(rank, ()):
                if neighbour not in shifts:
                    shifts[neighbour] = shifts[rank] + value
                    waiting.append(neighbour)
    return shifts


def _middle(values: list[int]) -> int:
    """The median, 0 where it is no more than the values scatter."""
    middle = int(np.median(values))
    scatter = int(np.median(np.abs(np.array(values) - middle)))
    return middle if abs(middle) > max(scatter, LEAST_SHIFT_NS) else 0


def _impossible(end: Longs, sends: tuple[MatchedCollective, ...]) -> dict[tuple[int, int], int]:
    """Clock shifts from sender to receiver that receives need so as not to end before their sends."""
    distances: dict[tuple[int, int], list[int]] = {}
    for one in sends:
        send, receive = one.rows
        distances.setdefault((one.ranks[0], one.ranks[1]), []).append(int(end[receive] - end[send]))
    shifts = {key: _middle(values) for key, values in distances.items()}
    wrong = {key: value for key, value in shifts.items() if value < -EARLY_NS}
    return {
        (sender, receiver): (value - shifts[receiver, sender]) // 2 if (receiver, sender) in shifts else value
        for (sender, receiver), value in wrong.items()
    }
