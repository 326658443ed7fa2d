"""What a validation is: rows of a table beside their predictions, and how far off they are together.

Turn rows that state their peak memory into Peaks: bytes measured beside bytes predicted, on the fullest chip.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.collective_times import size_class
from ridgeline.calibrate.truth.csv_cells import Skipped
from ridgeline.calibrate.truth.rows import Kind, Row
from ridgeline.core.units import BINARY
from ridgeline.cost import Owners
from ridgeline.plan.engine import ENGINES
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
    measured_bytes = _stated_bytes(row)
    if not math.isfinite(measured_bytes) or measured_bytes <= 0:
        return None
    prediction = predict(scenario)
    return (
        Peak(measured=measured_bytes, predicted=float(prediction.memory.allocated_bytes))
        if isinstance(prediction, Prediction)
        else None
    )


def _stated_bytes(row: Row) -> float:
    """Bytes that a row says were allocated at most, in its column or its notes; nan where it says nothing."""
    try:
        return float(row[COLUMN])
    except ValueError:
        match = NOTED.search(row["notes"])
        return float(match[1]) * BINARY["Gi"] if match else math.nan


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationCase:
    """One row beside its prediction, in seconds, or in the unit of `metric` where it names one.

    low_s, high_s    where nine of ten measurements are expected
    cross_validated  a bundled row, predicted with parameters whose fit never saw its group
    parts            what the prediction consists of
    peak             memory, where the row states it
    known_as         what calibrations know its chip and engine by
    size             bytes of a collective
    metric           the column that was measured, where a row has several; the figures are then in its unit
    """

    row: Row
    chip: str
    engine: str
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    cross_validated: bool
    parts: Mapping[str, float]
    assumptions: tuple[str, ...] = ()
    peak: Peak | None = None
    known_as: Owners | None = None
    size: float | None = None
    metric: str = ""

    JSON = """
        id=row.id measured=measured_s predicted=predicted_s residual low=low_s high=high_s cross_validated
        peak_memory_bytes=peak metric?
    """

    @property
    def residual(self) -> float:
        """predicted / measured - 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def covered(self) -> bool:
        """Whether the measurement lies in the interval."""
        return self.low_s <= self.measured_s <= self.high_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far off some cases are together, as fractions; None where there is no case."""

    n: int
    mape: float | None = None
    median_ape: float | None = None
    p90_ape: float | None = None
    bias: float | None = None
    coverage90: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupError:
    """Cases of one group, and their mean absolute residual."""

    n: int
    mape: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEngine:
    """What `x_engine` names and no engine is, the engine that took its place, and in how many rows."""

    given: str
    taken: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Every case of a table, and the rows nothing could be predicted for."""

    kind: Kind
    cases: tuple[ValidationCase, ...]
    skipped: tuple[Skipped, ...]

    JSON = """
        kind rows predicted skipped mape=errors.mape median_ape=errors.median_ape p90_ape=errors.p90_ape
        bias=errors.bias coverage90=errors.coverage90 memory unknown_engines groups cases
    """

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return len(self.cases) + len(self.skipped)

    @property
    def predicted(self) -> int:
        """Rows, or metrics of rows, with a prediction."""
        return len(self.cases)

    @property
    def unknown_engines(self) -> tuple[UnknownEngine, ...]:
        """Engines of rows that Ridgeline does not have."""
        counts = Counter((case.row["x_engine"], case.engine) for case in self.cases if case.row["x_engine"])
        return tuple(
            UnknownEngine(given=given_text, taken=engine_id, rows=count)
            for (given_text, engine_id), count in counts.most_common()
            if ENGINES.resolve(given_text) is None
        )

    @property
    def groups(self) -> dict[str, dict[str, GroupError]]:
        """Errors by grouping and group."""
        return {
            grouping: {name: GroupError(n=errors.n, mape=errors.mape) for name, errors in self.by(grouping).items()}
            for grouping in self.groupings
        }

    @property
    def errors(self) -> Errors:
        """All cases together."""
        return errors_of(self.cases)

    @property
    def memory(self) -> PeakErrors | None:
        """The peaks of all cases that state one."""
        return peak_errors([case.peak for case in self.cases if case.peak])

    @property
    def groupings(self) -> Mapping[str, Callable[[ValidationCase], str]]:
        """What cases of this kind of table are told apart by."""
        return BY_KIND.get(self.kind, GROUPINGS)

    def by(self, grouping: str) -> dict[str, Errors]:
        """Errors by one of the table's groupings (`accelerator`, `source`, ...), most cases first."""
        groups: dict[str, list[ValidationCase]] = {}
        for case in self.cases:
            groups.setdefault(self.groupings[grouping](case), []).append(case)
        return {name: errors_of(groups[name]) for name in sorted(groups, key=lambda name: (-len(groups[name]), name))}


GROUPINGS: Mapping[str, Callable[[ValidationCase], str]] = MappingProxyType(
    {
        "accelerator": lambda case: case.chip,
        "source": lambda case: case.row.source,
        "framework": lambda case: case.engine,
        "arch": lambda case: case.row["arch"] or "unstated",
    }
)
BY_KIND: Mapping[Kind, Mapping[str, Callable[[ValidationCase], str]]] = MappingProxyType(
    {
        "training": GROUPINGS,
        "collectives": MappingProxyType(
            {
                "accelerator": lambda case: case.chip,
                "source": lambda case: case.row.source,
                "collective": lambda case: case.row["collective"],
                "library": lambda case: case.engine,
                "size": lambda case: size_class(case.size or 0.0),
            }
        ),
        "serving": MappingProxyType(
            {
                "metric": lambda case: case.metric,
                "flag": lambda case: case.row["x_flag"] or "none",
                "model": lambda case: case.row["x_model"],
                "accelerator": lambda case: case.chip,
            }
        ),
        "inference": MappingProxyType(
            {
                "kind": lambda case: next(iter(case.parts)),
                "metric": lambda case: case.metric,
                "engine": lambda case: case.engine,
                "accelerator": lambda case: case.chip,
                "source": lambda case: case.row.source,
            }
        ),
        "kernels": MappingProxyType(
            {
                "accelerator": lambda case: case.chip,
                "source": lambda case: case.row.source,
                "library": lambda case: case.engine,
                "op": lambda case: next(iter(case.parts)),
                "priced by": lambda case: case.assumptions[0],
            }
        ),
    }
)


def errors_of(cases: Sequence[ValidationCase]) -> Errors:
    """Mean, median and 90 % quantile of |residual|, mean residual, and the share of measurements in the interval."""
    if not cases:
        return Errors(n=0)
    residuals = np.array([case.residual for case in cases])
    off = np.abs(residuals)
    return Errors(
        n=len(cases),
        mape=float(off.mean()),
        median_ape=float(np.median(off)),
        p90_ape=float(np.quantile(off, 0.9)),
        bias=float(residuals.mean()),
        coverage90=sum(case.covered for case in cases) / len(cases),
    )
