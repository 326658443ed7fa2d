"""Turn measured runs of your own, beside the bundled ones, into a calibration and what it is worth on your runs.

    before      predicted with the shipped parameters, which never saw the run
    held out    with a fit that saw everything but the run's fold: what a further run like it may expect
    after       with the calibration that was fitted to it as well: how well it can be followed, no proof of anything

All runs of one configuration (sizes of the model, chips, batch, sequence, engine), bundled ones too, are in one fold:
none of them is fitted where another is held out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ridgeline.calibrate.cross_validate import FINAL_ROUNDS, QUICK_ROUNDS, Progress, parameters_text, silent
from ridgeline.calibrate.dataset import Dataset, dataset_of
from ridgeline.calibrate.fit import FOLDS, calibration_of, fit, fold_of
from ridgeline.calibrate.folds import is_bundled, takes_part
from ridgeline.calibrate.truth.csv_cells import Skipped
from ridgeline.calibrate.truth.rows import read_rows
from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_text
from ridgeline.cost.calibration import Calibration, shipped
from ridgeline.plan.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCase:
    """One run of the user's: measured, and predicted three times, in seconds."""

    id: str
    measured_s: float
    before_s: float
    held_out_s: float
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFit:
    """A calibration fitted to the bundled rows and the user's, and how each of the latter is predicted."""

    calibration: Calibration
    cases: tuple[OwnCase, ...]
    skipped: tuple[Skipped, ...]

    def mape(self, which: str) -> float:
        """Mean absolute residual of `before_s`, `held_out_s` or `after_s`."""
        return float(np.mean([abs(getattr(case, which) / case.measured_s - 1) for case in self.cases]))


def fit_with(path: Path, *, quick: bool = False, progress: Progress = silent) -> OwnFit:
    """Fit the bundled rows and those of a table together; `InputError` when the table has no row that can be used."""
    own = [row for row in read_rows(path) if not is_bundled(row)]
    mine = dataset_of(own)
    if not mine.rows:
        told = "; ".join(f"{one.id}: {one.reason}" for one in mine.skipped[:3]) or "no rows beside bundled ones"
        raise InputError(Problem(path="--with", given=told, expected="at least one run that can be predicted"))
    rows = [row for row in read_rows() if takes_part(row)]
    table = dataset_of([*rows, *mine.rows])
    count, first = len(mine.rows), len(table.rows) - len(mine.rows)
    rounds = QUICK_ROUNDS if quick else FINAL_ROUNDS
    fold = np.array([fold_of(configuration(scenario)) for scenario in table.scenarios])
    wanted = sorted(set(fold[first:].tolist()))
    progress("all rows", 0, 1 + len(wanted))
    layout, offsets = fit(table, np.ones(len(table.rows), np.bool_), rounds=rounds)
    source = f"ridgeline fit on {first} bundled rows and {count} of {path.name}"
    calibration = calibration_of(layout, offsets, source)
    held = np.zeros(len(table.rows))
    for done, left in enumerate(wanted, 1):
        progress(f"without fold {left} of {FOLDS}", done, 1 + len(wanted))
        again = calibration_of(layout, fit(table, fold != left, rounds=rounds)[1], f"without fold {left}")
        held[fold == left] = table.predict(again)[fold == left]
    return OwnFit(
        calibration=calibration,
        cases=tuple(_cases(table, held, calibration))[first:],
        skipped=mine.skipped,
    )


def _cases(table: Dataset, held: Array, calibration: Calibration) -> list[OwnCase]:
    before, after = table.predict(shipped()), table.predict(calibration)
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
