"""Turn measured rows into one table that prices all of them at once under any calibration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.calibrate.cells import Skipped
from ridgeline.calibrate.measured import measured_step_s
from ridgeline.calibrate.rows import Row
from ridgeline.calibrate.scenarios import to_scenario
from ridgeline.core.errors import InputError, MissingNumber
from ridgeline.cost.parameters import Calibration
from ridgeline.cost.rates import Machines, Rates, machines_of, rates_of
from ridgeline.lowering.program import lower
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.batch import Batch, batch_of
from ridgeline.sim.lines import Lines, scenario_lines
from ridgeline.sim.run import Runs, runs_of
from ridgeline.sim.slots import padded_of, rows_of
from ridgeline.sim.step import Steps, step_seconds

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows that can be predicted, lowered once, beside what was measured; and those that cannot, with the reason."""

    rows: tuple[Row, ...]
    scenarios: tuple[Scenario, ...]
    measured_s: Array
    batch: Batch
    lines: tuple[Lines, ...]
    runs: Runs
    machines: Machines
    padded: Array
    skipped: tuple[Skipped, ...] = ()

    @property
    def chips(self) -> list[str]:
        """Chip id by row."""
        return [scenario.system.chip.id for scenario in self.scenarios]

    @property
    def engines(self) -> list[str]:
        """Engine id by row."""
        return [scenario.plan.engine for scenario in self.scenarios]

    def steps(self, rates: Rates, *, by_class: bool = False) -> Steps:
        """Step times of all rows under these parameters; a breakdown by class where it is asked for."""
        rows = rows_of(self.machines, rates, self.runs)
        return step_seconds(self.batch, self.lines, self.runs, rows, self.padded, by_class=by_class)

    def predict(self, calibration: Calibration) -> Array:
        """Seconds of a step by row."""
        return self.steps(rates_of(calibration, self.chips, self.engines)).step_s


def table_of(rows: Iterable[Row]) -> Table:
    """The table of those rows that can be predicted."""
    kept: list[tuple[Row, Scenario, float]] = []
    skipped: list[Skipped] = []
    for row in rows:
        made = _usable(row)
        if isinstance(made, Skipped):
            skipped.append(made)
        else:
            kept.append((row, *made))
    scenarios = tuple(entry[1] for entry in kept)
    programs = [lower(scenario) for scenario in scenarios]
    batch = batch_of(programs)
    machines = machines_of([scenario.system for scenario in scenarios])
    return Table(
        rows=tuple(entry[0] for entry in kept),
        scenarios=scenarios,
        measured_s=np.array([entry[2] for entry in kept]),
        batch=batch,
        lines=scenario_lines(scenarios, programs),
        runs=runs_of(scenarios),
        machines=machines,
        padded=padded_of(batch, machines),
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
