"""Turn residuals of cross-validated runs into the range a prediction is believed to lie in.

    measured / predicted = 1 / (1 + residual)

The runs most like the scenario tell how far off a prediction of its kind is. Their 5 % and 95 % quantiles, taken
further out the fewer runs there are, bound nine of ten measurements.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SHIPPED = Path(__file__).parents[1] / "cost" / "residuals.json"  # written by `ridgeline fit` beside the calibration
ENOUGH = 8  # runs a group must have before it speaks for itself
COVERAGE = 0.9
UNKNOWN = 0.35  # either way, where no residuals are at hand
UNSEEN = (
    1.4  # a source never seen is predicted this much worse than a new run of a known one (left-out sources, 9.3 / 6.6)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """How far off one held-out run was: predicted / measured - 1, and what it ran on."""

    chip: str
    engine: str
    residual: float

    @property
    def log_ratio(self) -> float:
        """log(measured / predicted)."""
        return -math.log1p(self.residual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Seconds between which the measured step is expected with probability `coverage`, and the runs that say so."""

    low: float
    high: float
    coverage: float
    runs: int
    basis: str


def interval(step_s: float, chip: str, engine: str, residuals: Sequence[Residual]) -> Interval:
    """The range of a step time from the runs most like it.

    Same chip and engine if there are enough of them, else same chip or same engine, else all; then the range is wider
    by as much as errors are on sources that no fit has seen.

    >>> runs = [Residual(chip="a", engine="x", residual=r / 100) for r in range(-10, 11)]
    >>> found = interval(1.0, "a", "x", runs)
    >>> round(found.low, 3), round(found.high, 3), found.basis
    (0.91, 1.11, '21 runs on a under x')
    """
    low, high, runs, basis = _factors(chip, engine, residuals)
    return Interval(low=step_s * low, high=step_s * high, coverage=COVERAGE, runs=runs, basis=basis)


def shipped_interval(step_s: float, chip: str, engine: str) -> Interval:
    """The same from the residuals that come with Ridgeline."""
    low, high, runs, basis = _shipped_factors(chip, engine)
    return Interval(low=step_s * low, high=step_s * high, coverage=COVERAGE, runs=runs, basis=basis)


@cache
def _shipped_factors(chip: str, engine: str) -> tuple[float, float, int, str]:
    return _factors(chip, engine, shipped())


def _factors(chip: str, engine: str, residuals: Sequence[Residual]) -> tuple[float, float, int, str]:
    """What to multiply a prediction by for the low and the high end, the runs that say so, and which they are."""
    if len(residuals) < ENOUGH:
        return 1 / (1 + UNKNOWN), 1 + UNKNOWN, 0, f"assumed: {UNKNOWN:.0%} either way, no runs at hand"
    chosen, basis, wider = _similar(chip, engine, residuals)
    ratios = sorted(run.log_ratio for run in chosen)
    tail = (1 - COVERAGE) / 2
    low, high = _outer(ratios, tail), -_outer([-ratio for ratio in reversed(ratios)], tail)
    return math.exp(wider * min(low, 0.0)), math.exp(wider * max(high, 0.0)), len(chosen), f"{len(chosen)} runs {basis}"


def _similar(chip: str, engine: str, residuals: Sequence[Residual]) -> tuple[list[Residual], str, float]:
    """The runs most like this one, which they are, and how much further than theirs its error may reach."""
    both = [run for run in residuals if run.chip == chip and run.engine == engine]
    if len(both) >= ENOUGH:
        return both, f"on {chip} under {engine}", 1.0
    either = [run for run in residuals if run.chip == chip or run.engine == engine]
    if len(either) >= ENOUGH:
        return either, f"on {chip} or under {engine}", UNSEEN
    return list(residuals), "of all kinds", UNSEEN


def _outer(ordered: Sequence[float], tail: float) -> float:
    """The lower `tail` quantile, conservatively for n samples: the value a new one falls below with that chance.

        place = tail (n + 1) - 1, counted from 0;  below 0 the range is extended by the spacing it would take

    With n = 8 there is no fifth percentile among the samples; the smallest is moved out by the mean gap of the lower
    half for each missing place.
    """
    place = tail * (len(ordered) + 1) - 1
    if place < 0:
        half = max(1, len(ordered) // 2)
        gap = (ordered[half] - ordered[0]) / half
        return ordered[0] + place * gap
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def read_residuals(rows: Iterable[object]) -> tuple[Residual, ...]:
    """Rows of a residual table; what is not one, or not a number above -1, is left out."""
    found: list[Residual] = []
    for row in rows:
        value = row.get("residual") if isinstance(row, dict) else None
        if isinstance(row, dict) and isinstance(value, (int, float)) and math.isfinite(value) and value > -1:
            found.append(Residual(chip=str(row.get("chip", "")), engine=str(row.get("engine", "")), residual=value))
    return tuple(found)


@cache
def shipped() -> tuple[Residual, ...]:
    """The residuals that come with Ridgeline; none before the first fit."""
    if not SHIPPED.exists():
        return ()
    return read_residuals(json.loads(SHIPPED.read_text(encoding="utf-8")).get("rows", ()))
