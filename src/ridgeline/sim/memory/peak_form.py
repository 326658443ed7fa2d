"""Turn plans into the linear forms of their ranks' peaks: what a parameter, a saved byte, a workspace add to a peak.

A search that moves layers between ranks asks for the peaks of thousands of layouts of one plan: with these it adds up
what the layers of a rank hold, and needs no schedule and no sharding any more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.records import dataclass
from ridgeline.ir.ops import Num
from ridgeline.lowering.plan_columns import PlanColumns
from ridgeline.sim.closed_form.stage_mix import RankMix, undominated_rows
from ridgeline.sim.memory.footprint import BytesPerParam, SectionFootprint, rank_footprint, rank_params
from ridgeline.sim.memory.peak import (
    FRAGMENTATION,
    MOMENTS,
    model_state,
    moment_bytes,
    resting_widths,
    shard_degrees,
    transient,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakForm:
    """A rank's peak as the largest of linear forms, one for each moment.

        peak = max over moments of  constant + dense D + expert E + trained T + saved S + workspace W

    factors    moments x (dense, expert, trained, saved, workspace) x ranks x rows: bytes of the peak for each
               D, E   parameter the rank holds, dense or of experts; T those trained, where the others are frozen
               S      byte its layers save for the backward of one microbatch: microbatches in flight, less offloaded
               W      byte the backward of its widest layer takes for itself
    constant   moments x ranks x rows: bytes of a rank that holds no section; last norm, logits, buffers, overhead
    """

    factors: Array
    constant: Array

    def peak_bytes(self, held: Array, rows: Index, rank: int | slice = slice(None)) -> Array:
        """Peaks of ranks that hold so much: `held` is (D, E, T, S, W) x ranks x `rows`, or of one rank."""
        peak: Array | None = None
        for factors, constant in zip(
            self.factors[:, :, rank][..., rows], self.constant[:, rank][..., rows], strict=True
        ):
            here = constant + np.einsum("c...,c...->...", factors, held)
            peak = here if peak is None else np.maximum(peak, here, out=here)
        assert peak is not None
        return peak


def peak_form(needs: SectionFootprint, ranks: RankMix, plans: PlanColumns, widths: BytesPerParam) -> PeakForm:
    """The linear forms of ranks, whatever sections they hold, for every row of `needs` and `plans`.

    A moment that never needs more than another one is left out.
    """
    bare = replace(ranks, counts=np.zeros_like(ranks.counts))
    moving = transient(rank_footprint(needs, bare), plans, widths)
    constant = moment_bytes(model_state(rank_params(needs, bare), plans, widths), moving, widths).sum(1)
    held, kept = resting_widths(plans, widths)
    weights, gradients, states = (
        _per_param(level, width, plans) for level, width in ((3, held), (2, widths.gradients), (1, kept))
    )
    on_chip, early = 1 - plans.offload_optimizer, np.where(moving.stay, 1.0, 0.0)
    passing = 1.0 if widths.compiled else 1 + FRAGMENTATION
    trained = ((2, 0),) if widths.frozen else ((0, 0), (1, 1))  # (column of the form, dense or of experts)
    factors = np.zeros((len(MOMENTS), 5, *constant.shape[1:]))
    for moment, name in zip(factors, MOMENTS, strict=True):
        moment[0] += weights[0]
        moment[1] += weights[1]
        for column, kind in trained:
            moment[column] += gradients[kind] * (1.0 if name == "optimizer" else early) + states[kind] * on_chip
        if name != "optimizer":
            moment[3] = moving.in_flight / plans.chunks * (1 - plans.offload) * passing
        if name == "backward":
            moment[4] = passing
    whole = np.concatenate([factors, constant[:, None]], axis=1)
    some = undominated_rows(whole.reshape(len(whole), -1))  # nothing has fewer than zero bytes
    return PeakForm(factors=factors[some], constant=constant[some])


def _per_param(level: int, width: Num, plans: PlanColumns) -> tuple[Array, Array]:
    """Bytes of a dense parameter and of one of experts on one rank."""
    dense, expert = shard_degrees(plans, level)
    return width / dense, width / expert
