"""Turn priced plans that fit into those among them that a target of an export can be told.

A space of choices that can be told each by itself (`told_space`) mostly holds nothing else, so at first every plan of
it is kept, and what a sweep keeps at last is asked about plan by plan. Where some of that cannot be told, the sweep is
done again and asks about kinds of plans, the fastest of each: what a target can be told depends on what a plan chooses
and on which axes it has, and where even that is not enough on how the ranks of one axis divide those of another.

    ANY     every plan of the space
    COARSE  kinds by choices and axes
    FINE    and by how axes divide each other
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ridgeline.core.arrays import Index, Mask
from ridgeline.plan.scenario import Scenario, default_placement
from ridgeline.search.degree_grid import DegreeGrid
from ridgeline.search.plan_target import AskedTarget
from ridgeline.search.shortlist import Entry
from ridgeline.search.sweep import Chunk

ANY, COARSE, FINE = LEVELS = (0, 1, 2)


class ToldPlans:
    """The plans of one search that a target can be told, asked about at one of the levels."""

    def __init__(self, asked: AskedTarget, scenario: Scenario, level: int = FINE) -> None:
        self._asked, self._scenario, self._level = asked, scenario, level
        self._words: dict[int, tuple[DegreeGrid, Sequence[str]]] = {}

    def kept(self, chunk: Chunk) -> Chunk:
        """Those of a chunk's plans that can be told, as far as the level asks."""
        if self._level == ANY:
            return chunk
        codes = _codes(chunk, self._scenario, fine=self._level == FINE)
        order = np.lexsort((chunk.step_s, codes))
        fresh = np.concatenate([[True], np.diff(codes[order]) != 0])
        firsts = order[fresh]  # the fastest of each kind
        told = np.array([self._is_told(chunk, int(place), int(codes[place])) for place in firsts])
        if told.all():
            return chunk
        mine = np.empty(len(order), dtype=np.bool_)
        mine[order] = told[np.cumsum(fresh) - 1]
        return chunk.taken(np.flatnonzero(mine))

    def can(self, one: Entry) -> bool:
        """Whether this very plan can be told."""
        return not self._asked.untold(replace(self._scenario, plan=one.plan))

    def plainest(self, one: Entry) -> Entry:
        """The entry without switches for ranks that are not there, where it can still be told."""
        own, mesh = one.plan.switches, one.plan.mesh
        plain: dict[str, Any] = {"cp_kind": "ring"} if mesh.cp == 1 else {}
        plain |= {"sequence_parallel": self._scenario.plan.switches.sequence_parallel} if mesh.tp == 1 else {}
        made = replace(one, plan=replace(one.plan, switches=replace(own, **plain)))
        return made if made.plan != one.plan and self.can(made) else one

    def _is_told(self, chunk: Chunk, place: int, code: int) -> bool:
        structure = int(chunk.grid.structure[chunk.cell[place]])
        head = self._level, chunk.pp > 1, chunk.schedule.name, chunk.schedule.chunks > 1, chunk.shard, chunk.offload
        kind = self._structures(chunk.grid)[structure], head, self._is_even(chunk), code // len(chunk.grid.scenarios)
        return not self._asked.of_kind(self._scenario, kind, lambda: chunk.plan(place))

    def _structures(self, grid: DegreeGrid) -> Sequence[str]:
        """What each structure of a grid is, in words."""
        if id(grid) not in self._words:
            plans = (one.plan for one in grid.scenarios)
            self._words[id(grid)] = grid, [f"{one.recompute!r} {one.precision!r} {one.switches!r}" for one in plans]
        return self._words[id(grid)][1]

    def _is_even(self, chunk: Chunk) -> bool:
        """Whether all virtual stages hold as many layers."""
        stages = chunk.pp * chunk.schedule.chunks
        placed = chunk.grid.scenarios[0].plan.placement or default_placement(self._scenario.model, stages)
        return len(set(placed)) == 1


def _codes(chunk: Chunk, scenario: Scenario, *, fine: bool) -> Index:
    """A number for each plan of a chunk, equal for plans that a target is told in the same words.

    In it are the structure, which axes there are, and where `fine` how the ranks of one axis divide those of another.
    """
    grid, cell, pp = chunk.grid, chunk.cell, chunk.pp
    tp, cp, ep, etp, microbatch = (
        np.asarray(getattr(grid.degrees, name))[cell] for name in ("tp", "cp", "ep", "etp", "microbatch")
    )
    count = scenario.workload.sequences / (chunk.dp * microbatch)
    flags: list[Mask] = [tp > 1, ep > 1, etp > 1, etp == tp]
    if fine:
        flags += [chunk.dp > 1, ep % tp == 0, chunk.dp % ep == 0, count % pp == 0, count >= 2 * pp - 1]
    codes = np.asarray(cp > 1, dtype=np.int64)
    for flag in flags:
        codes = 2 * codes + flag.astype(np.int64)
    return np.asarray(codes * len(grid.scenarios) + grid.structure[cell])
