"""Turn measured rows into a table that prices all of them at once, and fits that each left out a fifth into a file.

A bundled row took part in the fit of the shipped parameters, so holding them against it proves little. It is predicted
with the parameters of the fold that never saw its group; `folds.json` keeps those parameters and who was left out.

    frozen   a source of `training_more.csv` whose sha256(name), first eight hex digits, mod 5 is 0 or 2

Fitting parameters without a source is not enough: whoever chooses the shape of a model by watching the error of a
left-out source has fitted to it. `ridgeline validate --frozen` opens these and nothing else does. Once opened and
looked into, a source is fitted like any other (`OPENED`): kept out any longer it would serve nobody.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.truth.row_scenario import measured_step_s, to_scenario
from ridgeline.calibrate.truth.rows import Row, Skipped, read_rows
from ridgeline.core.arrays import Array
from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, MissingNumber
from ridgeline.cost import Calibration, Profile, default_calibration, shipped_profiles
from ridgeline.cost.pricing import Machines, ParameterColumns
from ridgeline.plan.scenario import Scenario
from ridgeline.sim import SHIPPED_RESIDUALS, Residual, read_residuals
from ridgeline.sim.batches import StepBatch, StepTimes


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
        return self.steps(ParameterColumns.of(calibration, self.scenarios)).step_s


def dataset_of(
    rows: Iterable[Row],
    profiles: Mapping[str, Profile] | None = None,
    scenario_of: Callable[[Row], Scenario | Skipped] = to_scenario,
) -> Dataset:
    """The table of those rows that can be predicted, kernels priced by profiles where there are any.

    profiles   by chip; absent: those that ship with Ridgeline
    """
    usable: list[tuple[Row, Scenario, float]] = []
    skipped_rows: list[Skipped] = []
    for row in rows:
        if isinstance(scenario := scenario_of(row), Skipped):
            skipped_rows.append(scenario)
        elif isinstance(measured_s := _predictable_s(row, scenario), Skipped):
            skipped_rows.append(measured_s)
        else:
            usable.append((row, scenario, measured_s))
    scenarios = tuple(scenario for _, scenario, _ in usable)
    return Dataset(
        rows=tuple(row for row, _, _ in usable),
        scenarios=scenarios,
        measured_s=np.array([measured_s for _, _, measured_s in usable]),
        batch=StepBatch.of(scenarios, shipped_profiles() if profiles is None else profiles),
        skipped=tuple(skipped_rows),
    )


def _predictable_s(row: Row, scenario: Scenario) -> float | Skipped:
    """The measured seconds of a row whose system has every number that a prediction needs, or why there are none."""
    measured_s = measured_step_s(row, scenario)
    try:
        Machines.of([scenario.system])
    except (MissingNumber, InputError) as missing:
        return measured_s if isinstance(measured_s, Skipped) else Skipped(id=row.id, reason=str(missing))
    return measured_s


TABLE = "training_more.csv"  # of the older tables every source has been watched already
MODULUS, CLASSES = 5, (0, 2)
# when each was opened; docs/LOG.md has what it showed (75 rows, 25.4 % off, 73 % inside the interval)
OPENED: Mapping[str, str] = MappingProxyType(dict.fromkeys(("lumi", "pax", "torchao", "v100", "vocabpp"), "2026-11-15"))


def frozen_name(source: str) -> bool:
    """Whether the rule takes a source of that name.

    >>> [name for name in ("caraml", "jupiter", "pax", "torchao", "v100") if frozen_name(name)]
    ['pax', 'torchao', 'v100']
    """
    return int(hashlib.sha256(source.encode()).hexdigest()[:8], 16) % MODULUS in CLASSES


def is_frozen(row: Row) -> bool:
    """Whether a bundled row belongs to a source that is still frozen."""
    return row.table == TABLE and frozen_name(row.source) and row.source not in OPENED


SHIPPED_FOLDS = Path(__file__).parent / "folds.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """A calibration for each fold, and for each group the fold whose fit left it out.

    >>> folds = Folds(calibrations=(Calibration(offsets={}, source="fold 0"),), left_out={"a": 0})
    >>> folds.without("a").source, folds.without("never fitted")
    ('fold 0', None)
    """

    calibrations: tuple[Calibration, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def without(self, group: str) -> Calibration | None:
        """The calibration that never saw a group; None for a group that took no part in any fit."""
        fold = self.left_out.get(group)
        return None if fold is None else self.calibrations[fold]

    def to_table(self) -> JsonObject:
        """As `folds.json` holds it: the groups of each fold, and each offset under every fold."""
        names = sorted({name for item in self.calibrations for name in item.offsets})
        count = len(self.calibrations)
        return {
            "left_out": [sorted(g for g, at in self.left_out.items() if at == fold) for fold in range(count)],
            "offsets": {name: [item.offsets.get(name, 0.0) for item in self.calibrations] for name in names},
        }


def folds_from(table: JsonMapping) -> Folds:
    """What `to_table` wrote."""
    groups: Sequence[Sequence[str]] = table["left_out"]
    return Folds(
        calibrations=tuple(
            Calibration(
                offsets=MappingProxyType({name: values[fold] for name, values in table["offsets"].items()}),
                source=f"bundled rows without fold {fold}",
                profiles=shipped_profiles(),
            )
            for fold in range(len(groups))
        ),
        left_out=MappingProxyType({group: fold for fold, members in enumerate(groups) for group in members}),
    )


@cache
def shipped_folds() -> Folds:
    """The folds that come with Ridgeline, fitted by `ridgeline fit`."""
    return folds_from(json.loads(SHIPPED_FOLDS.read_text(encoding="utf-8")))


def takes_part(row: Row) -> bool:
    """Whether a row is fitted: pretraining, not flagged as a regression, not of a frozen source.

    What is less sure or less complete counts less (`fit.weights`) instead of not at all.
    """
    return row["x_task"] == "pretrain" and "KNOWN_REGRESSION" not in row["x_flag"] and not is_frozen(row)


@cache
def bundled_rows() -> Mapping[str, Row]:
    """The rows that ship with Ridgeline, by id."""
    return MappingProxyType({row.id: row for row in read_rows()})


def is_bundled(row: Row) -> bool:
    """Whether a row is one of Ridgeline's own, cell by cell; a column that one side lacks counts as blank.

    >>> row = bundled_rows()["h200-003"]
    >>> is_bundled(row), is_bundled(Row(id=row.id, table="mine.csv", cells={**row.cells, "gpus": "2"}))
    (True, False)
    """
    bundled_row = bundled_rows().get(row.id)
    if bundled_row is None or bundled_row is row:
        return bundled_row is row
    return all(bundled_row[column] == row[column] for column in bundled_row.cells.keys() | row.cells.keys())


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedParameters:
    """All that a prediction is made with: the full fit, the folds, and residuals beside the group each belongs to."""

    full: Calibration
    folds: Folds = Folds()
    residuals: tuple[tuple[str, Residual], ...] = ()


def shipped_parameters(profiles: Mapping[str, Profile] | None = None) -> FittedParameters:
    """What comes with Ridgeline; with other profiles than those that do."""
    parameters = _read_parameters()
    if profiles is None:
        return parameters
    folds = replace(
        parameters.folds,
        calibrations=tuple(replace(calibration, profiles=profiles) for calibration in parameters.folds.calibrations),
    )
    return replace(parameters, full=replace(parameters.full, profiles=profiles), folds=folds)


@cache
def _read_parameters() -> FittedParameters:
    rows = json.loads(SHIPPED_RESIDUALS.read_text(encoding="utf-8"))["rows"]
    rows_by_id = bundled_rows()
    groups = [rows_by_id[row["id"]].group if row["id"] in rows_by_id else row["id"] for row in rows]
    return FittedParameters(
        full=default_calibration(),
        folds=shipped_folds(),
        residuals=tuple(zip(groups, read_residuals(rows), strict=True)),
    )
