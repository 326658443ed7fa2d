"""Turn measured prices of a step's ops into what share of the step they are, and how far they were stretched."""

from __future__ import annotations

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.records import dataclass
from ridgeline.cost.pricing import SAME, MeasuredOps, OpPrices


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvidence:
    """What a step's kernel prices rest on, as shares of the step's time; the rest of it is no kernel's.

    profile        what was measured, and when
    measured       kernels of the very shape that was timed
    interpolated   kernels between measured ones, or near them
    fitted         kernels that the fitted model prices, wholly or in part
    furthest       doublings from the furthest kernel that a profile prices to the nearest one measured
    """

    profile: str
    measured: float
    interpolated: float
    fitted: float
    furthest: float

    def __str__(self) -> str:
        parts = (
            f"{self.measured:.0%} of the step measured, {self.interpolated:.0%} interpolated, {self.fitted:.0%} fitted"
        )
        return f"kernels: {parts}, by the profile of {self.profile}; furthest {self.furthest:.1f} doublings"


def kernel_evidence(
    ops: OpPrices, measured: MeasuredOps, often: tuple[Array, Array], spent: tuple[float, float], profile: str
) -> KernelEvidence:
    """What the prices of products and attention rest on.

    often   how often each product, and each attention kernel, runs
    spent   shares of the step that products, and attention, take
    """
    kinds = (
        (ops.matmul_s * often[0], measured.matmul_distance, measured.matmul_fitted, spent[0]),
        (ops.attend_s * often[1], measured.attend_distance, measured.attend_fitted, spent[1]),
    )
    shares, furthest = np.zeros(3), 0.0
    for seconds, distance, fitted, share in kinds:
        if not seconds.sum() > 0:
            continue
        part = seconds / seconds.sum() * share
        same = distance <= SAME
        shares += [part[same].sum(), (part * (1 - fitted))[~same].sum(), (part * fitted)[~same].sum()]
        reached = distance[(fitted < 1) & (seconds > 0)]
        furthest = max(furthest, float(reached.max(initial=0.0)))
    return KernelEvidence(
        profile=profile,
        measured=float(shares[0]),
        interpolated=float(shares[1]),
        fitted=float(shares[2]),
        furthest=furthest,
    )
