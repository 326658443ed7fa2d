"""Turn placements into mixes of sections: what pipeline ranks and the ends of the pipeline run for a microbatch.

A mix says how often each section of a cell stands in something: in all virtual stages of a rank, in the first or the
last virtual stage, or, as a mean, in those between. Only ranks that may be the bottleneck, or the fullest, are told
apart: one that holds no more of anything than another does, and stands no worse, is left out, whatever sections cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.records import dataclass
from ridgeline.ir.program import Program
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import virtual_stages_by_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class MixRoles:
    """Which mixes are what, by their place among `counts`.

    ranks    all virtual stages of a rank, for every rank that may be the bottleneck
    number   of those ranks in the pipeline, by row
    inner    the mean of a rank's inner virtual stages, for every rank that may be the slowest of them
    ends     the first, the mean inner and the last virtual stage
    """

    ranks: Index
    number: Index
    inner: Index
    ends: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementMix:
    """The mixes of one placement, each once, and their roles."""

    counts: Array
    roles: MixRoles


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMix:
    """What ranks of one placement hold: sections by rank, its number, whether it has the first, the last stage."""

    counts: Array
    number: Index
    first: Mask
    last: Mask


Table = tuple[tuple[int, ...], ...]


def undominated_rows(rows: Array) -> Index:
    """Places of rows that no other row equals or exceeds in everything; of equal ones the first.

    >>> undominated_rows(np.array([[1, 0], [2, 0], [0, 3], [2, 0]])).tolist()
    [1, 2]
    """
    above = (rows[:, None] >= rows).all(2)
    equal = above & above.T
    return np.flatnonzero(~((above & ~equal).any(0) | np.triu(equal, 1).any(0)))


@lru_cache(maxsize=1024)
def placement_mix(stages: Table, held: Table) -> PlacementMix:
    """The mixes of a placement: sections by virtual stage, virtual stages by rank.

    A rank that stands further down waits longer for its first microbatch, so that of equal ranks the last one counts.
    """
    counts = np.array(stages, dtype=np.float64)
    last = len(counts) - 1
    whole = np.array([counts[list(own)].sum(0) for own in held])
    inner = np.array([_mean(counts[[stage for stage in own if 0 < stage < last]]) for own in held])
    number = undominated_rows(np.column_stack([whole, np.arange(len(held))]))
    slow = undominated_rows(inner)
    middle = _mean(counts[1:last]) if last > 1 else counts[0]
    lines, place = np.unique(
        np.concatenate([whole[number], inner[slow], [counts[0], middle, counts[last]]]), axis=0, return_inverse=True
    )
    place = place.ravel()
    roles = MixRoles(ranks=place[: len(number)], number=number[:, None], inner=place[len(number) : -3], ends=place[-3:])
    return PlacementMix(counts=lines, roles=roles)


@lru_cache(maxsize=1024)
def rank_mix(stages: Table, held: Table, *, fullest: bool = False) -> RankMix:
    """What ranks hold: all of them, or those that may be the fullest.

    Activations in flight never grow from a rank to the next, or never shrink in a pipeline that goes down and back up,
    where later ranks have both chunks sooner; the last stage has the logits, and a copy of the embedding where it needs
    one and that is elsewhere.
    """
    counts = np.array(stages, dtype=np.float64)
    whole = np.array([counts[list(own)].sum(0) for own in held])
    first, last = np.array([(0 in own, len(counts) - 1 in own) for own in held]).T
    number = np.arange(len(held))
    if fullest:
        sooner = number if last[0] else -number
        number = undominated_rows(np.column_stack([whole, sooner, last, last & ~first]))
    return RankMix(counts=whole[number], number=number, first=first[number], last=last[number])


def _mean(counts: Array) -> Array:
    return counts.mean(0) if len(counts) else np.zeros(counts.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMix:
    """The mixes of rows whose mixes have the same roles.

    rows      which rows these are
    counts    mixes x sections where all rows share a placement, otherwise mixes x sections x rows
    sections  where the sections of each row stand: sections x rows; None where columns come that way
    """

    rows: Index
    counts: Array
    roles: MixRoles
    sections: Index | None = None

    def summed(self, values: Array) -> Array:
        """Columns by section added up to columns by mix and row."""
        return sum_by_count(self.counts, values if self.sections is None else values[:, self.sections])


def sum_by_count(counts: Array, values: Array) -> Array:
    """Columns x sections x rows added up to columns x mixes x rows."""
    total: Array = counts @ values if counts.ndim == 2 else np.einsum("lsn,csn->cln", counts, values)
    return total


def stage_mixes(scenarios: Sequence[Scenario], programs: Sequence[Program]) -> tuple[StageMix, ...]:
    """The mixes of several scenarios, as `op_table` lays out their sections."""
    sizes: dict[tuple[int, int], list[tuple[int, int, PlacementMix]]] = {}
    offset = 0
    for row, (scenario, program) in enumerate(zip(scenarios, programs, strict=True)):
        mix = placement_mix(program.stages, _stage_table(scenario))
        sizes.setdefault((len(mix.roles.ranks), len(mix.roles.inner)), []).append((row, offset, mix))
        offset += len(program.sections)
    return tuple(_pad_mixes(items, *size) for size, items in sizes.items())


def scenario_mix(scenario: Scenario, program: Program, rows: int) -> StageMix:
    """The mix of one scenario in so many rows, section s of row r standing at s rows + r."""
    mix = placement_mix(program.stages, _stage_table(scenario))
    places = np.arange(len(program.sections) * rows).reshape(-1, rows)
    return StageMix(rows=np.arange(rows), counts=mix.counts, roles=mix.roles, sections=places)


def scenario_rank_mix(scenario: Scenario, program: Program) -> RankMix:
    """What every rank of a scenario holds."""
    return rank_mix(program.stages, _stage_table(scenario))


def _stage_table(scenario: Scenario) -> Table:
    plan = scenario.plan
    return virtual_stages_by_rank(plan.mesh.pp, plan.schedule.chunks, plan.schedule.name)


def _pad_mixes(items: Sequence[tuple[int, int, PlacementMix]], ranks: int, inner: int) -> StageMix:
    """Rows with as many mixes side by side; those with fewer sections hold the first one zero times more."""
    most = max(mix.counts.shape[1] for _, _, mix in items)
    counts = np.zeros((ranks + inner + 3, most, len(items)))
    sections = np.empty((most, len(items)), dtype=np.int64)
    for place, (_, offset, mix) in enumerate(items):
        roles, size = mix.roles, mix.counts.shape[1]
        counts[:, :size, place] = mix.counts[np.concatenate([roles.ranks, roles.inner, roles.ends])]
        sections[:, place] = offset
        sections[:size, place] += np.arange(size)
    places = np.arange(len(counts))
    return StageMix(
        rows=np.array([row for row, _, _ in items]),
        counts=counts[:, :, 0] if len(items) == 1 else counts,
        roles=MixRoles(
            ranks=places[:ranks],
            number=np.concatenate([mix.roles.number for _, _, mix in items], axis=1),
            inner=places[ranks:-3],
            ends=places[-3:],
        ),
        sections=sections,
    )
