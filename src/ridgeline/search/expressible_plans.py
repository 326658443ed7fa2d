"""Turn priced plans that fit into those among them that a target of an export can express."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.core.arrays import Index
from ridgeline.core.documents import JsonObject
from ridgeline.plan.capability import Capability, PlanFacts
from ridgeline.plan.decisions import PlanSizes
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Sharding
from ridgeline.plan.scenario import Scenario
from ridgeline.search.shortlist import Entry
from ridgeline.search.sweep import Chunk


class ExpressiblePlans:
    """The plans of one search that a target supports: its table, held against columns of plans."""

    def __init__(self, capability: Capability, scenario: Scenario) -> None:
        self._capability, self._scenario = capability, scenario

    def keep(self, chunk: Chunk) -> Chunk:
        """Those of a chunk's plans that can be expressed."""
        structure = chunk.grid.structure[chunk.cell]
        able = np.empty(len(structure), dtype=np.bool_)
        for index in np.unique(structure):
            rows = np.flatnonzero(structure == index)
            facts = PlanFacts.of(_of_structure(chunk, int(index)), _sizes(chunk, rows))
            able[rows] = self._capability.supported(facts)
        return chunk if able.all() else chunk.taken(np.flatnonzero(able))

    def can(self, entry: Entry) -> bool:
        """Whether this very plan can be expressed."""
        return not self._capability.unsupported_decisions(replace(self._scenario, plan=entry.plan))

    def plainest(self, entry: Entry) -> Entry:
        """The entry without switches for ranks that are not there, where it can still be expressed."""
        switches, mesh = entry.plan.switches, entry.plan.mesh
        plain: JsonObject = {"cp_kind": "ring"} if mesh.cp == 1 else {}
        plain |= {"sequence_parallel": self._scenario.plan.switches.sequence_parallel} if mesh.tp == 1 else {}
        plainer = replace(entry, plan=replace(entry.plan, switches=replace(switches, **plain)))
        return plainer if plainer.plan != entry.plan and self.can(plainer) else entry


def _of_structure(chunk: Chunk, structure: int) -> Scenario:
    """The scenario that a chunk's plans of one structure share, but for their sizes."""
    scenario = chunk.grid.scenarios[structure]
    plan = replace(
        scenario.plan,
        mesh=Mesh(pp=chunk.pp, order=scenario.plan.mesh.order),
        schedule=chunk.schedule,
        sharding=Sharding(shard=chunk.shard),
        offload=chunk.offload,
    )
    return replace(scenario, plan=plan)


def _sizes(chunk: Chunk, rows: Index) -> PlanSizes:
    """The sizes of some of a chunk's plans, as columns."""
    cell = chunk.cell[rows]
    degrees: JsonObject = {
        name: np.asarray(getattr(chunk.grid.degrees, name))[cell] for name in ("tp", "cp", "ep", "etp", "microbatch")
    }
    return PlanSizes(pp=chunk.pp, dp=chunk.dp[rows], shard_degree=chunk.degree[rows], **degrees)
