"""Turn residuals of cross-validated runs into the range a prediction is believed to lie in.

    measured / predicted = 1 / (1 + residual)

The runs most like the scenario tell how far off a prediction of its kind is. Their 5 % and 95 % quantiles, taken
further out the fewer there are, bound nine of ten measurements.

A scenario is a new configuration, not one more run of an old one, and runs of one configuration are off alike. So every
configuration has one vote, shared among its runs, and configurations are what is counted where few are few (two-layer
conformal prediction: Dunn, Wasserman and Ramdas, arXiv:1809.07441).
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

SHIPPED_RESIDUALS = (
    Path(__file__).parents[1] / "cost" / "residuals.json"
)  # written by `ridgeline fit` beside the calibration
ENOUGH = 8  # configurations of a kind before it speaks for itself
COVERAGE = 0.9
ROUNDING = 1e-9  # of votes
UNKNOWN = 0.35  # either way, where no residuals are at hand
UNSEEN = (
    1.4  # a source never seen is predicted this much worse than a new run of a known one (left-out sources, 9.3 / 6.6)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """How far off one held-out run was: predicted / measured - 1, what it ran on, and which configuration it measured.

    A run without a group is a configuration of its own.
    """

    chip: str
    engine: str
    residual: float
    group: str = ""

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
    if sum(_votes(residuals)) < ENOUGH:
        return 1 / (1 + UNKNOWN), 1 + UNKNOWN, 0, f"assumed: {UNKNOWN:.0%} either way, no runs at hand"
    chosen, basis, wider = _similar(chip, engine, residuals)
    ratios = sorted(zip((run.log_ratio for run in chosen), _votes(chosen), strict=True))
    tail = (1 - COVERAGE) / 2
    low, high = _outer(ratios, tail), -_outer([(-ratio, vote) for ratio, vote in reversed(ratios)], tail)
    return math.exp(wider * min(low, 0.0)), math.exp(wider * max(high, 0.0)), len(chosen), f"{len(chosen)} runs {basis}"


def _votes(runs: Sequence[Residual]) -> list[float]:
    """What each run counts: the runs of a configuration one together, so that the sum is that of configurations."""
    often = Counter(run.group for run in runs)
    return [1 / often[run.group] if run.group else 1.0 for run in runs]


def _similar(chip: str, engine: str, residuals: Sequence[Residual]) -> tuple[list[Residual], str, float]:
    """The runs most like this one, which they are, and how much further than theirs its error may reach."""
    both = [run for run in residuals if run.chip == chip and run.engine == engine]
    if _enough(both):
        return both, f"on {chip} under {engine}", 1.0
    either = [run for run in residuals if run.chip == chip or run.engine == engine]
    if _enough(either):
        return either, f"on {chip} or under {engine}", UNSEEN
    return list(residuals), "of all kinds", UNSEEN


def _enough(runs: Sequence[Residual]) -> bool:
    return round(sum(_votes(runs))) >= ENOUGH


def _outer(ordered: Sequence[tuple[float, float]], tail: float) -> float:
    """The lower `tail` quantile of values with votes, conservatively for n votes: what a new configuration falls below
    with that chance.

        place = tail (n + 1) votes from below;  before the first value it is extended by the spacing it would take

    With n = 8 there is no fifth percentile among the values; the smallest is moved out by the mean gap of the lower
    half for each missing vote.

    >>> _outer([(float(value), 1.0) for value in range(1, 20)], 0.05)
    1.0
    >>> _outer([(1.0, 0.5), (1.5, 0.5), *((float(value), 1.0) for value in range(2, 20))], 0.05)
    1.5
    """
    values = [value for value, _ in ordered]
    below = list(accumulate(vote for _, vote in ordered))
    place = tail * (below[-1] + 1)
    if place < below[0]:
        half = max(1, round(below[-1]) // 2)
        middle = min(bisect_right(below, half + ROUNDING), len(values) - 1)
        return values[0] - (below[0] - place) * (values[middle] - values[0]) / half
    at = bisect_right(below, place + ROUNDING) - 1
    after = min(at + 1, len(values) - 1)
    step = below[after] - below[at]
    return values[at] + ((place - below[at]) / step * (values[after] - values[at]) if step else 0.0)


def read_residuals(rows: Iterable[object]) -> tuple[Residual, ...]:
    """Rows of a residual table; what is not one, or not a number above -1, is left out."""
    found: list[Residual] = []
    for row in rows:
        value = row.get("residual") if isinstance(row, dict) else None
        if isinstance(row, dict) and isinstance(value, (int, float)) and math.isfinite(value) and value > -1:
            chip, engine, group = (str(row.get(name, "")) for name in ("chip", "engine", "group"))
            found.append(Residual(chip=chip, engine=engine, residual=value, group=group))
    return tuple(found)


@cache
def shipped() -> tuple[Residual, ...]:
    """The residuals that come with Ridgeline; none before the first fit."""
    if not SHIPPED_RESIDUALS.exists():
        return ()
    return read_residuals(json.loads(SHIPPED_RESIDUALS.read_text(encoding="utf-8")).get("rows", ()))
