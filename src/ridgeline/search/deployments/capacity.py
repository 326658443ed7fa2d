"""Turn one replica into its capacity: the highest rate at which it keeps the objective, by bisection on the rate."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.search.deployments.bound import Bound
from ridgeline.search.deployments.shape import Shape
from ridgeline.search.deployments.trial import Bench, Trial
from ridgeline.serving.fleet import Role

HALVINGS = 5
LOWEST = 0.04  # of the bound: a replica that cannot do so much is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one replica holds.

    rate     requests per second; 0 where it keeps the objective at no rate that was tried
    kept     the trial at that rate; None where there is none
    missed   the lowest rate that was tried and misses the objective; None where all were kept
    tried    every trial, lowest rate first
    """

    shape: Shape
    role: Role
    rate: float
    kept: Trial | None
    missed: Trial | None
    tried: tuple[Trial, ...]

    @property
    def breaks(self) -> str:
        """The limit that is missed first when the rate rises."""
        return (self.missed or self.kept).worst if self.missed or self.kept else ""  # type: ignore[union-attr]


def capacity(
    bench: Bench, bound: Bound, role: Role = "both", *, between: tuple[float, float] | None = None,
    halvings: int = HALVINGS,
) -> Capacity:  # fmt: skip
    """The highest rate of a replica under the objective.

    between   rates to search between; absent: up to the bound
    """
    ceiling = {"both": bound.rate, "prefill": bound.prefill_rate, "decode": bound.decode_rate}[role]
    low, high = between or (0.0, ceiling)
    tpot = min(bench.objective.tpot or 0.1, 0.1)
    most = bench.length(high, max(tpot, bound.tpot_s) if role != "prefill" else 0.0)
    tried: list[Trial] = []
    best: Trial | None = None
    missed: Trial | None = None
    rate = (low + high) / 2 if between is None else low
    for _ in range(halvings):
        if rate < LOWEST * ceiling:
            break
        found = bench.trial(bound.shape, rate, most, role)
        if found is None:
            break
        tried.append(found)
        if found.met:
            best, low = found, rate
        else:
            missed, high = found, rate
            if between is not None and best is None:
                low = min(low, rate * 0.8)
        rate = high if between is not None and missed is None and rate < high else (low + high) / 2
    return Capacity(
        shape=bound.shape,
        role=role,
        rate=best.rate if best else 0.0,
        kept=best,
        missed=missed,
        tried=tuple(sorted(tried, key=lambda one: one.rate)),
    )
