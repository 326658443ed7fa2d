"""Turn sections of many cells into the peaks of the plans that use them: what a search asks of memory, in one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.lowering.plan_columns import PlanColumns
from ridgeline.sim.closed_form.stage_mix import RankMix
from ridgeline.sim.memory.footprint import BytesPerParam, RankParams, SectionFootprint, rank_footprint, rank_params
from ridgeline.sim.memory.peak import ModelState, Transient, model_state, peak_bytes, transient


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModel:
    """Peaks of all plans of some cells.

    footprint   what sections need, by section and cell
    per_param   bytes of a parameter, columns by structure; habits of the software are the same in all
    structure   of every cell
    host        bytes of host memory for each chip
    """

    footprint: SectionFootprint
    per_param: BytesPerParam
    structure: Index
    host: float

    def at(self, cells: Index) -> MemoryModel:
        """These cells, in this order."""
        return replace(self, footprint=self.footprint.at(cells), structure=self.structure[cells])

    def transient(self, ranks: RankMix, plans: PlanColumns, own: slice) -> Transient:
        """What comes and goes during a step of some rows."""
        return transient(rank_footprint(self.footprint.at(own), ranks), plans, self.per_param)

    def params(self, ranks: RankMix) -> RankParams:
        """Parameters of every rank, before sharding has its say."""
        return rank_params(self.footprint, ranks)

    def state(self, params: RankParams, plans: PlanColumns) -> ModelState:
        """Weights, gradients and optimizer states of every cell, as sharding leaves them."""
        return model_state(params, plans, self._per_param())

    def peak_bytes(self, state: ModelState, moving: Transient) -> Array:
        """The fullest rank of every plan; infinite where more is offloaded than a chip's share of its host."""
        return peak_bytes(state, moving, self.per_param, self.host)

    def _per_param(self) -> BytesPerParam:
        """Bytes of a parameter as columns by cell."""
        by = self.per_param
        weights, gradients, optimizer, gathered, reduced = (
            np.asarray(column)[self.structure]
            for column in (by.weights, by.gradients, by.optimizer, by.gathered, by.reduced)
        )
        return replace(
            by, weights=weights, gradients=gradients, optimizer=optimizer, gathered=gathered, reduced=reduced
        )


def by_structure(each: Sequence[BytesPerParam]) -> BytesPerParam:
    """Bytes of a parameter of several structures as one, in columns."""

    def column(name: str) -> Array:
        return np.array([getattr(one, name) for one in each], dtype=np.float64)

    return replace(
        each[0],
        weights=column("weights"),
        gradients=column("gradients"),
        optimizer=column("optimizer"),
        gathered=column("gathered"),
        reduced=column("reduced"),
    )
