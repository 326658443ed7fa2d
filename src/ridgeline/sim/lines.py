"""Turn placements into sums of sections: what each pipeline rank and each end of the pipeline runs for a microbatch.

A line says how often each section of a cell stands in something: in all virtual stages of a rank, in the first or the
last virtual stage, or, as a mean, in those between. Ranks that hold the same are one line with a count, so that a
pattern is as long as it has distinct ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

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
    rank     number of the rank of each kind that holds the most activations: the first, or the last of a pipeline that
             goes down and back up; `until` of the last one
    ends     whether a kind holds the first and the last virtual stage
    """

    counts: Array
    rank: Index
    until: Index
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


Table = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=1024)
def pattern_of(stages: Table, held: Table, *, distinct: bool = False) -> Pattern:
    """The lines of a placement: sections by virtual stage, virtual stages by rank. `distinct` merges equal ranks."""
    counts = np.array(stages, dtype=np.float64)
    last = len(counts) - 1
    whole = np.array([counts[list(own)].sum(0) for own in held])
    inner = np.array([_mean(counts[[stage for stage in own if 0 < stage < last]]) for own in held])
    ends = np.array([(0 in own, last in own) for own in held])
    rank = until = np.arange(len(held))
    if distinct:
        key = np.concatenate([whole, inner, ends], axis=1)
        _, first, which = np.unique(key, axis=0, return_index=True, return_inverse=True)
        rank = np.sort(first)
        until = np.array([np.flatnonzero(which == which[own])[-1] for own in rank])
    middle = _mean(counts[1:last]) if last > 1 else counts[0]
    lines = np.concatenate([whole[rank], inner[rank], [counts[0], middle, counts[last]]])
    most = until if last in held[0] else rank  # down and back up: later ranks have both chunks sooner
    return Pattern(counts=lines, rank=most, until=until, ends=ends[rank])


def _mean(counts: Array) -> Array:
    return counts.mean(0) if len(counts) else np.zeros(counts.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The lines of rows that have equally many ranks.

    rows      which rows these are
    counts    lines x sections where all rows share a pattern, otherwise lines x sections x rows
    sections  where the sections of each row stand: sections x rows
    number    of the ranks in the pipeline: the first so many lines are theirs, the next theirs without the ends
    """

    rows: Index
    counts: Array
    sections: Index
    number: Index

    @property
    def ranks(self) -> int:
        """Ranks of a row that are told apart."""
        return len(self.number)

    def summed(self, values: Array) -> Array:
        """Columns by section added up to columns by line and row."""
        own = values[:, self.sections]
        total: Array = self.counts @ own if self.counts.ndim == 2 else np.einsum("lsn,csn->cln", self.counts, own)
        return total


def lines_of(pattern: Pattern, places: Index, stride: int) -> Lines:
    """The lines of one pattern for rows whose first sections stand at these places, the next ones `stride` further."""
    sections = np.arange(pattern.counts.shape[1])[:, None] * stride + places
    return Lines(rows=np.arange(len(places)), counts=pattern.counts, sections=sections, number=pattern.until)


def scenario_lines(scenarios: Sequence[Scenario], programs: Sequence[Program]) -> tuple[Lines, ...]:
    """The lines of several scenarios, every rank on its own, as `batch_of` lays out their sections."""
    sizes: dict[int, list[tuple[int, int, Pattern]]] = {}
    offset = 0
    for row, (scenario, program) in enumerate(zip(scenarios, programs, strict=True)):
        pattern = scenario_pattern(scenario, program)
        sizes.setdefault(len(pattern.rank), []).append((row, offset, pattern))
        offset += len(program.sections)
    return tuple(_padded(items, ranks) for ranks, items in sizes.items())


def scenario_pattern(scenario: Scenario, program: Program) -> Pattern:
    """The pattern of one scenario, every rank on its own."""
    plan = scenario.plan
    return pattern_of(program.stages, held_by_rank(plan.mesh.pp, plan.schedule.chunks, plan.schedule.name))


def _padded(items: Sequence[tuple[int, int, Pattern]], ranks: int) -> Lines:
    """Rows with equally many ranks side by side; those with fewer sections hold the first one zero times more."""
    most = max(pattern.counts.shape[1] for _, _, pattern in items)
    counts = np.zeros((2 * ranks + 3, most, len(items)))
    sections = np.empty((most, len(items)), dtype=np.int64)
    for place, (_, offset, pattern) in enumerate(items):
        size = pattern.counts.shape[1]
        counts[:, :size, place] = pattern.counts
        sections[:, place] = offset
        sections[:size, place] += np.arange(size)
    rows = np.array([row for row, _, _ in items])
    return Lines(
        rows=rows, counts=counts[:, :, 0] if len(items) == 1 else counts, sections=sections, number=np.arange(ranks)
    )
