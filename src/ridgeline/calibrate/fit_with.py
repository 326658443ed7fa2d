"""Turn measured runs of your own into the calibration they anchor, and what it is worth on them.

    before      predicted with the prior, the shipped parameters, which never saw the run
    held out    anchored on the runs of other configurations alone: what a further run like it may expect
    after       anchored on all of them: how well it can be followed, no proof of anything

The calibration is that of `--anchor` (`anchor.anchored_by`): written to a file and named by `--calibration` it predicts
the same. Runs of one configuration (sizes of the model, chips, batch, sequence, engine) are held out together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ridgeline.calibrate.anchor import anchored_by
from ridgeline.calibrate.anchor_runs import rows_of
from ridgeline.calibrate.cross_validate import Progress, parameters_text, silent
from ridgeline.calibrate.dataset import Dataset, dataset_of
from ridgeline.calibrate.truth.csv_cells import Skipped
from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_text
from ridgeline.cost.calibration import Calibration
from ridgeline.plan.scenario import Scenario
from ridgeline.sim import default_calibration

MOST_HELD = 64  # configurations that are held out in turn; of further ones the calibration itself is told


PREDICTED = ("before_s", "held_out_s", "after_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCase:
    """One run of the user's: measured, and predicted three times, in seconds."""

    id: str
    measured_s: float
    before_s: float
    held_out_s: float
    after_s: float

    JSON = "* residual"

    @property
    def residual(self) -> dict[str, float]:
        """Each prediction over the measurement, less one."""
        return {which: getattr(self, which) / self.measured_s - 1 for which in PREDICTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFit:
    """A calibration that runs of the user's anchored, and how each of them is predicted."""

    calibration: Calibration
    cases: tuple[OwnCase, ...]
    skipped: tuple[Skipped, ...]

    JSON = "kind='own fit' source=calibration.source rows mape=mapes cases skipped offsets=calibration.offsets"

    @property
    def rows(self) -> int:
        """Runs that were used."""
        return len(self.cases)

    @property
    def mapes(self) -> dict[str, float]:
        """Mean absolute residual of each prediction."""
        return {which: self.mape(which) for which in PREDICTED}

    def mape(self, which: str) -> float:
        """Mean absolute residual of `before_s`, `held_out_s` or `after_s`."""
        return float(np.mean([abs(getattr(case, which) / case.measured_s - 1) for case in self.cases]))


def fit_with(*runs: Path | str, calibration: Calibration | None = None, progress: Progress = silent) -> OwnFit:
    """Anchor a calibration, the shipped one unless given, on runs; `InputError` where none of them can be used.

    runs   each as `--anchor` takes it: a table of residuals or of runs, a scenario with [measured], TRACE@SCENARIO
    """
    rows = [row for text in runs for row in rows_of(str(text))]
    table, prior = dataset_of(rows), default_calibration() if calibration is None else calibration
    if not table.rows:
        told = "; ".join(f"{one.id}: {one.reason}" for one in table.skipped[:3]) or "no rows beside bundled ones"
        raise InputError(Problem(path="--with", given=told, expected="at least one run that can be predicted"))
    kinds = [configuration(scenario) for scenario in table.scenarios]
    each = list(dict.fromkeys(kinds))[:MOST_HELD]
    progress("all runs", 0, 1 + len(each))
    found = anchored_by(prior, table)
    held = table.predict(found)
    for done, kind in enumerate(each, 1):
        progress("without one configuration", done, 1 + len(each))
        mine = np.array([own == kind for own in kinds])
        others = [row for row, own in zip(table.rows, kinds, strict=True) if own != kind]
        again = anchored_by(prior, dataset_of(others)) if others else prior
        held[mine] = table.predict(again)[mine]
    return OwnFit(calibration=found, cases=tuple(_cases(table, prior, held, found)), skipped=table.skipped)


def _cases(table: Dataset, prior: Calibration, held: Array, calibration: Calibration) -> list[OwnCase]:
    before, after = table.predict(prior), table.predict(calibration)
    columns = zip(table.rows, table.measured_s, before, held, after, strict=True)
    return [
        OwnCase(id=row.id, measured_s=float(real), before_s=float(old), held_out_s=float(out), after_s=float(new))
        for row, real, old, out, new in columns
    ]


def configuration(scenario: Scenario) -> str:
    """What two runs have in common when one says much about the other."""
    model, system = scenario.model, scenario.system
    sizes = f"{model.hidden}x{model.layers} {model.vocab} {scenario.workload.seq} {scenario.workload.tokens}"
    return f"{sizes} {system.chips}x{system.chip.id} {scenario.plan.engine}"


def write_calibration(found: OwnFit, path: Path) -> None:
    """Write the calibration where `--calibration FILE` of other verbs reads it."""
    write_text(path, parameters_text(found.calibration))
