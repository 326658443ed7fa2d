"""Turn placements into sums of sections: what each pipeline rank and each end of the pipeline runs for a microbatch.

A line says how often each section of a cell stands in something: in all virtual stages of a rank, in the first or the
last virtual stage, or, as a mean, in those between. Ranks that hold the same are one line with a count, so that a
pattern is as long as it has distinct ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.ir.program import Program
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import SCHEDULES

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Distinct ranks of one placement.

    counts   a line each: for every rank all it holds, for every rank the mean of its inner virtual stages, then the
             first, the mean inner and the last virtual stage
    rank     number of the first rank of each kind, which holds the most activations
    ends     whether a kind holds the first and the last virtual stage
    """

    counts: Array
    rank: Index
    ends: NDArray[np.bool_]


def held_by_rank(pp: int, chunks: int, schedule: str) -> tuple[tuple[int, ...], ...]:
    """Virtual stages of each pipeline rank, as the schedule places them: in loops, or down and back up.

    >>> held_by_rank(2, 2, "interleaved"), held_by_rank(2, 2, "zbv")
    (((0, 2), (1, 3)), ((0, 3), (1, 2)))
    """
    kind = SCHEDULES.get(schedule)
    if kind is not None and kind.v_shaped and pp > 1:
        return tuple((rank, 2 * pp - 1 - rank) for rank in range(pp))
    return tuple(tuple(chunk * pp + rank for chunk in range(chunks)) for rank in range(pp))


def pattern_of(stages: Sequence[Sequence[int]], held: Sequence[Sequence[int]], *, distinct: bool = False) -> Pattern:
    """The lines of a placement: sections by virtual stage, virtual stages by rank. `distinct` merges equal ranks."""
    counts = np.array(stages, dtype=np.float64)
    last = len(counts) - 1
    whole = np.array([counts[list(own)].sum(0) for own in held])
    inner = np.array([_mean(counts[[stage for stage in own if 0 < stage < last]]) for own in held])
    ends = np.array([(0 in own, last in own) for own in held])
    rank = np.arange(len(held))
    if distinct:
        key = np.concatenate([whole, inner, ends], axis=1)
        rank = np.sort(np.unique(key, axis=0, return_index=True)[1])
    middle = _mean(counts[1:last]) if last > 1 else counts[0]
    lines = np.concatenate([whole[rank], inner[rank], [counts[0], middle, counts[last]]])
    return Pattern(counts=lines, rank=rank, ends=ends[rank])


def _mean(counts: Array) -> Array:
    return counts.mean(0) if len(counts) else np.zeros(counts.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Patterns of many rows as columns. Entries are sparse (section, count), grouped by line.

    firsts      where each line's entries begin
    held        line of what a rank holds, `inner` of its mean inner stage; both by rank, grouped by row
    row         row of each rank
    rank, ends  number of a rank, and whether it holds the first and the last virtual stage
    first, middle, last   lines of the ends and the mean between them, by row
    """

    section: Index
    count: Array
    firsts: Index
    held: Index
    inner: Index
    row: Index
    rank: Index
    ends: NDArray[np.bool_]
    first: Index
    middle: Index
    last: Index

    @property
    def begins(self) -> Index:
        """Where each row's ranks begin."""
        return np.searchsorted(self.row, np.arange(len(self.first)))


def lines_of(items: Sequence[tuple[Pattern, Index]], stride: int = 1) -> Lines:
    """The lines of several patterns, each for rows whose first section stands at the places given.

    The next section of a row stands `stride` further.
    """
    parts = [_repeated(pattern, places, stride) for pattern, places in items]
    if len(parts) == 1:
        return parts[0]
    rows = np.cumsum([0, *(len(part.first) for part in parts)])
    lines = np.cumsum([0, *(len(part.firsts) for part in parts)])
    entries = np.cumsum([0, *(len(part.section) for part in parts)])
    by_line, by_row = ("held", "inner", "first", "middle", "last"), ("row",)
    shifts = {"firsts": entries} | dict.fromkeys(by_line, lines) | dict.fromkeys(by_row, rows)

    def joined(name: str) -> NDArray[Any]:
        columns = [getattr(part, name) for part in parts]
        if name in shifts:
            columns = [column + shift for column, shift in zip(columns, shifts[name], strict=False)]
        return np.concatenate(columns)

    return Lines(**{field.name: joined(field.name) for field in fields(Lines)})


def _repeated(pattern: Pattern, places: Index, stride: int) -> Lines:
    """One pattern's lines, once for each row."""
    counts, rows, kinds = pattern.counts, len(places), len(pattern.rank)
    present = counts > 0
    present[~present.any(1), 0] = True  # a line must have an entry, if only of zero
    line, section = np.nonzero(present)
    sizes = np.tile(np.bincount(line, minlength=len(counts)), rows)
    start = np.arange(rows) * len(counts)
    held = (start[:, None] + np.arange(kinds)).ravel()
    ends = start + 2 * kinds
    return Lines(
        section=(places[:, None] + section * stride).ravel(),
        count=np.tile(counts[line, section], rows),
        firsts=np.cumsum(sizes) - sizes,
        held=held,
        inner=held + kinds,
        row=np.repeat(np.arange(rows), kinds),
        rank=np.tile(pattern.rank, rows),
        ends=np.tile(pattern.ends, (rows, 1)),
        first=ends,
        middle=ends + 1,
        last=ends + 2,
    )


def scenario_lines(scenarios: Sequence[Scenario], programs: Sequence[Program]) -> Lines:
    """The lines of several scenarios, every rank on its own, as `batch_of` lays out their sections."""
    offset, items = 0, []
    for scenario, program in zip(scenarios, programs, strict=True):
        plan = scenario.plan
        held = held_by_rank(plan.mesh.pp, plan.schedule.chunks, plan.schedule.name)
        items.append((pattern_of(program.stages, held), np.array([offset])))
        offset += len(program.sections)
    return lines_of(items)
