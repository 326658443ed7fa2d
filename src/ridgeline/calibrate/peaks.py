"""Turn rows that state their peak memory into Peaks: bytes measured beside bytes predicted, on the fullest chip."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.calibrate.truth.rows import Row
from ridgeline.core.units import BINARY
from ridgeline.plan.scenario import Scenario
from ridgeline.sim import Prediction, predict

COLUMN = "x_peak_bytes"  # bytes the framework's allocator held at most, on the fullest chip
NOTED = re.compile(r"peak allocated (\d+(?:\.\d+)?) GiB")  # the same, as notes of own runs have it


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What the framework's allocator holds on the fullest chip, in bytes: without what driver and libraries take."""

    measured: float
    predicted: float

    @property
    def residual(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1


def peak_of(row: Row, scenario: Scenario) -> Peak | None:
    """Both peaks of a row; None where it states none that can be read, or the scenario cannot run."""
    measured = _stated(row)
    if not math.isfinite(measured) or measured <= 0:
        return None
    found = predict(scenario)
    return (
        Peak(measured=measured, predicted=float(found.memory.allocated_bytes))
        if isinstance(found, Prediction)
        else None
    )


def _stated(row: Row) -> float:
    """Bytes that a row says were allocated at most, in its column or its notes; nan where it says nothing."""
    try:
        return float(row[COLUMN])
    except ValueError:
        noted = NOTED.search(row["notes"])
        return float(noted[1]) * BINARY["Gi"] if noted else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakErrors:
    """How far off some peaks are together, as fractions.

    short  the largest shortfall: how much more a run held than was predicted
    """

    n: int
    mape: float
    bias: float
    short: float


def peak_errors(peaks: Sequence[Peak]) -> PeakErrors | None:
    """Mean |residual|, mean residual and the largest shortfall; None without any peak.

    >>> peak_errors([Peak(measured=4.0, predicted=3.0), Peak(measured=4.0, predicted=7.0)])
    PeakErrors(n=2, mape=0.5, bias=0.25, short=0.25)
    """
    if not peaks:
        return None
    residuals = np.array([peak.residual for peak in peaks])
    return PeakErrors(
        n=len(peaks),
        mape=float(np.abs(residuals).mean()),
        bias=float(residuals.mean()),
        short=float(max(0.0, -residuals.min())),
    )
