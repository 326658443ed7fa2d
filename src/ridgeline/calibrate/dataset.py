"""Turn measured rows into one table that prices all of them at once under any calibration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.calibrate.truth.csv_cells import Skipped
from ridgeline.calibrate.truth.row_scenario import to_scenario
from ridgeline.calibrate.truth.row_step_time import measured_step_s
from ridgeline.calibrate.truth.rows import Row
from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, MissingNumber
from ridgeline.cost.calibration import Calibration
from ridgeline.cost.machine import ParameterColumns, machines_of, parameter_columns
from ridgeline.cost.profile import Profile, shipped_profiles
from ridgeline.plan.scenario import Scenario
from ridgeline.sim import StepBatch, StepTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Rows that can be predicted, lowered once, beside what was measured; and those that cannot, with the reason."""

    rows: tuple[Row, ...]
    scenarios: tuple[Scenario, ...]
    measured_s: Array
    batch: StepBatch
    skipped: tuple[Skipped, ...] = ()

    @property
    def chips(self) -> list[str]:
        """Chip id by row."""
        return [scenario.system.chip.fitted_id for scenario in self.scenarios]

    @property
    def engines(self) -> list[str]:
        """Engine id by row."""
        return [scenario.engine.fitted_id for scenario in self.scenarios]

    def steps(self, rates: ParameterColumns, *, by_part: bool = False) -> StepTimes:
        """Step times of all rows under these parameters; a breakdown by part where it is asked for."""
        return self.batch.steps(rates, by_part=by_part)

    def predict(self, calibration: Calibration) -> Array:
        """Seconds of a step by row."""
        return self.steps(parameter_columns(calibration, self.scenarios)).step_s


def dataset_of(rows: Iterable[Row], profiles: Mapping[str, Profile] | None = None) -> Dataset:
    """The table of those rows that can be predicted, kernels priced by profiles where there are any.

    profiles   by chip; absent: those that ship with Ridgeline
    """
    kept: list[tuple[Row, Scenario, float]] = []
    skipped: list[Skipped] = []
    for row in rows:
        made = _usable(row)
        if isinstance(made, Skipped):
            skipped.append(made)
        else:
            kept.append((row, *made))
    scenarios = tuple(entry[1] for entry in kept)
    return Dataset(
        rows=tuple(entry[0] for entry in kept),
        scenarios=scenarios,
        measured_s=np.array([entry[2] for entry in kept]),
        batch=StepBatch.of(scenarios, shipped_profiles() if profiles is None else profiles),
        skipped=tuple(skipped),
    )


def _usable(row: Row) -> tuple[Scenario, float] | Skipped:
    """The row's scenario and measured seconds, or why it has none."""
    scenario = to_scenario(row)
    if isinstance(scenario, Skipped):
        return scenario
    measured = measured_step_s(row, scenario)
    if isinstance(measured, Skipped):
        return measured
    try:
        machines_of([scenario.system])
    except (MissingNumber, InputError) as missing:
        return Skipped(id=row.id, reason=str(missing))
    return scenario, measured
