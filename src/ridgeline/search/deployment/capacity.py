"""Turn one replica into its capacity: the highest rate at which it keeps the objective, by bisection on the rate."""

from __future__ import annotations

from ridgeline.core.records import dataclass
from ridgeline.search.deployment.bound import Bound
from ridgeline.search.deployment.shape import Shape
from ridgeline.search.deployment.trial import Bench, Trial
from ridgeline.serving.fleet.fleet_loop import Role

STABLE = 0.95  # of the best case: beyond that a queue grows without end, however short the load shows it
QUIET = 0.12  # of the best case: a rate at which users are served fast, a point of the frontier
LOWEST = 0.06  # of the best case: a replica that cannot do so much is given up
HALVINGS = 4
FINER = 5  # where the rate itself is what is asked for
ROUGH = 2  # halvings where a replica is a point of the frontier and nothing else
BELOW = (0.8, 0.5)  # of a rate that another replica holds


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
        last = self.missed or self.kept
        return last.worst if last is not None else ""


def capacity(
    bench: Bench, bound: Bound, role: Role = "both", *, near: Capacity | None = None, halvings: int = HALVINGS
) -> Capacity:  # fmt: skip
    """The highest rate of a replica under the objective; told another's, how it compares with that.

    The best case is tried first: where a replica holds nearly that, nothing needs to be halved; then a quiet rate, for
    one that misses even there is given up. Another's comparison is at its own rates: more is held where it missed, as
    much where it kept. One that keeps nothing is no comparison.
    """
    near = near if near is not None and near.rate else None
    ceiling = STABLE * {"both": bound.rate, "prefill": bound.prefill_rate, "decode": bound.decode_rate}[role]
    tpot = max(min(bench.objective.tpot or 0.1, 0.1), bound.tpot_s) if role != "prefill" else 0.0
    maximum = bench.length(ceiling, tpot)
    trials: list[Trial] = []

    def holds(rate: float) -> bool:
        result = bench.trial(bound.shape, rate, maximum, role)
        trials.extend([result] if result is not None else [])
        return result is not None and result.met

    low, high = 0.0, ceiling
    if near:
        missed_at = near.missed.rate if near.missed else near.rate * 1.08
        for rate in (min(missed_at, ceiling), *(near.rate * share for share in (1.0, *BELOW))):
            if rate <= ceiling and holds(rate):
                low = rate
                break
            high = rate
    elif holds(ceiling):
        low = ceiling
        if role == "both":
            holds(QUIET * ceiling)
    else:
        for rate in (QUIET * ceiling, LOWEST * ceiling):
            if holds(rate):
                low = rate
                break
            high = rate
    for _ in range(0 if not low or (near and low <= near.rate) else halvings):
        rate = (low + high) / 2
        if high - low < 0.03 * ceiling:
            break
        low, high = (rate, high) if holds(rate) else (low, rate)
    selection = [trial for trial in trials if trial.met and trial.rate <= low]
    missed = [trial for trial in trials if not trial.met and trial.rate > low]
    return Capacity(
        shape=bound.shape,
        role=role,
        rate=low,
        kept=max(selection, key=lambda one: one.rate, default=None),
        missed=min(missed, key=lambda one: one.rate, default=None),
        tried=tuple(sorted(trials, key=lambda one: one.rate)),
    )
