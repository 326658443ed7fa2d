"""Turn communication kernels of several ranks into meetings: the parts of one collective, matched across ranks.

Parts belong together when group, name and place in the sequence of that group agree: the third all-reduce of group 0 on
rank 1 meets the third on rank 0. Names come from the profiler's record of the collective, else from the kernel's name.
Sends and receives between two ranks are no meetings: they are told apart by name.

    arrival   start of a rank's part, on the common clock        skew = last arrival - first
    wait      last arrival - own arrival: the rank spins until everybody is there
    transfer  last end - last arrival

Clocks of hosts differ. All parts of a collective end together, so the median difference of ends against the first rank
is taken as a rank's clock shift, where it is more than the ends scatter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.classes import COMMUNICATION, Rules
from ridgeline.trace.timeline import Mask, Timeline

PREDICTED = ("predicted", "Ridgeline")  # one process a stage: nothing in it meets
Longs = NDArray[np.int64]
PAIRWISE = re.compile(r"send|recv|permute|p2p", re.IGNORECASE)
WORD = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|gather|scatter|barrier", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Meeting:
    """One collective: the rows of its parts by rank, ascending."""

    group: str
    name: str
    sequence: int
    ranks: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Meetings:
    """All collectives that at least two ranks show, and how far each rank's clock is ahead, in nanoseconds."""

    found: tuple[Meeting, ...] = ()
    shift: Mapping[int, int] = field(default_factory=dict)
    unmatched: int = 0
    """Parts whose group has different counts on different ranks, so that places in the sequence mean nothing."""

    def __len__(self) -> int:
        return len(self.found)


def is_pairwise(line: Timeline, rows: NDArray[np.intp]) -> Mask:
    """Which of these communication spans are sends or receives between two ranks."""
    named = np.array([bool(PAIRWISE.search(name[:400])) for name in line.names], np.bool_)
    sends = line.of_kind("send")[rows]
    told = line.detail.collective.at(rows)
    by_record = np.array([bool(PAIRWISE.search(one.name)) for one in line.detail.collectives] or [False], np.bool_)
    return np.asarray(np.where(told >= 0, by_record[np.maximum(told, 0)], named[line.name[rows]]) | sends)


def communication_rows(line: Timeline, rules: Rules, counted: Mask) -> NDArray[np.intp]:
    """Rows that count as communication."""
    groups = np.array([rules.group_of(id) == COMMUNICATION for id in line.classes], np.bool_)
    return np.flatnonzero(counted & groups[line.class_])


def meetings(line: Timeline, rules: Rules, counted: Mask) -> Meetings:
    """Collectives matched across the ranks of a timeline; none for a single rank or a prediction."""
    rows = communication_rows(line, rules, counted)
    rank = line.rank
    if len(np.unique(rank[rows])) < 2 or line.about.format in PREDICTED:
        return Meetings()
    rows = rows[~is_pairwise(line, rows)]
    by_key: dict[tuple[str, str], dict[int, list[int]]] = {}
    for row in rows.tolist():
        by_key.setdefault(_key(line, row), {}).setdefault(int(rank[row]), []).append(row)
    found: list[Meeting] = []
    unmatched = 0
    for (group, name), held in by_key.items():
        if len(held) < 2:
            continue
        if len({len(parts) for parts in held.values()}) > 1:
            unmatched += sum(map(len, held.values()))
            continue
        ranks = tuple(sorted(held))
        for sequence, parts in enumerate(zip(*(held[one] for one in ranks), strict=True)):
            found.append(Meeting(group=group, name=name, sequence=sequence, ranks=ranks, rows=parts))
    ordered = tuple(sorted(found, key=lambda one: one.rows[0]))
    return Meetings(found=ordered, shift=_shifts(line, ordered), unmatched=unmatched)


def _key(line: Timeline, row: int) -> tuple[str, str]:
    """Group and name of a part. Groups are as recorded; without a record the kernel's word for what it does decides."""
    place = int(line.detail.collective.at(np.array([row]))[0])
    if place >= 0:
        told = line.detail.collectives[place]
        return f"{told.group} {told.ranks}".strip(), told.name
    name = line.names[int(line.name[row])]
    word = WORD.search(name[:400])
    return "", word[0].lower().replace("_", "") if word else name


def _shifts(line: Timeline, found: tuple[Meeting, ...]) -> dict[int, int]:
    """How far ahead of the first rank's each clock is; 0 unless the ends of most collectives agree on it."""
    end = line.end_ns
    off: dict[int, list[int]] = {}
    for one in found:
        ends = end[list(one.rows)]
        for rank, value in zip(one.ranks, ends.tolist(), strict=True):
            off.setdefault(rank, []).append(int(value - ends[0]))
    shifts = {}
    for rank, values in off.items():
        middle = int(np.median(values))
        scatter = int(np.median(np.abs(np.array(values) - middle)))
        shifts[rank] = middle if abs(middle) > max(scatter, 1000) else 0
    return shifts
