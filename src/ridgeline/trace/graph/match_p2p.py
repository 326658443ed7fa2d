"""Turn sends and receives of several ranks into pairs: what one rank sent and the other received.

A record of the profiler names the other rank (`Dst Rank` of a send, `Src Rank` of a receive). Without it the other is
known where a group, or the whole timeline, has two ranks. Sends from a to b and receives of b from a are taken in the
order they end, within their group; the sizes, where recorded, must agree. A kernel that may do both (`SendRecv` without
a record) belongs to the one of the other rank at the same place.

One rank may have been recorded a little longer than the other. Then the first of the shorter row belongs to that place
of the longer one from which on the ends keep the same distance:

    scatter(k) = median |d_i - median d|,  d_i = end of shorter[i] - end of longer[i + k]        the smallest wins
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.arrays import Longs
from ridgeline.trace.side_tables import RecordedCollective
from ridgeline.trace.timeline import Timeline

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


def pair_sends(line: Timeline, rows: NDArray[np.intp]) -> tuple[list[tuple[P2PKey, int, Longs]], int]:
    """For every key its pairs, as rows of (send, receive), with the place of the first; and how many have none."""
    sent: dict[P2PKey, list[int]] = {}
    receives: dict[P2PKey, list[int]] = {}
    ranks = sorted(set(line.rank[rows].tolist()))
    records = line.detail.collective.at(rows)
    for row, place, rank in zip(rows.tolist(), records.tolist(), line.rank[rows].tolist(), strict=True):
        record = line.detail.collectives[place] if place >= 0 else RecordedCollective()
        does = _does(record.name or line.names[int(line.name[row])])
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


def _does(name: str) -> str:
    sends, receives = bool(SENDS.search(name[:400])), bool(RECEIVES.search(name[:400]))
    return EITHER if sends == receives else SEND if sends else RECEIVE


def _peer_rank(record: RecordedCollective, rank: int, does: str, ranks: Sequence[int]) -> int:
    """The rank at the other end, -1 when nothing says."""
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
