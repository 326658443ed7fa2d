"""Turn communication spans into collectives by type and size: bus bandwidth, waiting, who came last, and the bound.

    payload     bytes of the full tensor: in for all-reduce, reduce-scatter, all-to-all; out for all-gather
    wire        bytes each of R ranks sends: payload (R-1)/R, twice that for an all-reduce; payload for the others
    busbw       wire / transfer, as nccl-tests count                    transfer  from the last arrival to the end
    bound       wire / bandwidth of the link: no algorithm is faster    wait      from the own arrival to the last

Where only one rank is in the trace, arrivals of the others are not seen and `transfer` is the whole span: waiting for
others is in it, and the fastest call of a kind says most about the link.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.units import DECIMAL
from ridgeline.hardware.chip import Chip
from ridgeline.trace.graph.match_collectives import WORD, MatchedCollectives
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
    told = line.detail.collective.at(rows)
    names = {code: plain(line.names[code]) for code in np.unique(line.name[rows]).tolist()}
    records = [
        (plain(collective.name), payload_bytes(collective), collective.group_size)
        for collective in line.detail.collectives
    ]
    kind, payload, group = [], np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for at, (row, place) in enumerate(zip(rows.tolist(), told.tolist(), strict=True)):
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
