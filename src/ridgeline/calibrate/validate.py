"""Turn measured rows into a Validation: what was predicted for each, how far off that was, and which were skipped.

validate()                             the bundled rows, each with parameters whose fit never saw its group
validate("mine.csv")                   a table of your own, with the shipped parameters
validate("collectives")                 the bundled measurements of collectives
validate("published")                   runs that papers tell of, with the plans their authors ran
validate("kernels")                     the bundled measurements of kernels
validate("serving")                     the bundled measurements of servers under load
validate("inference")                   the bundled measurements of serving: phases, static batches, maximum load
validate(where=["x_chip=h100-sxm"])    some of the rows

Turn the list of published runs into scenarios beside what their authors measured.

    published.toml   which runs: rows of the truth tables by id, with what a row leaves blank and its source settles
    published.csv    rows that no fitted table has; they take part in no fit

A run whose row took part in the fit is predicted by the fold that left its configuration out. Unlike a row of a truth
table, a run is what its authors tell of it: where that is more than the row's cells, the scenario has more.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.collective_times import timed_of
from ridgeline.calibrate.collectives import MeasuredCollective, measured_of
from ridgeline.calibrate.folds import (
    OPENED,
    Dataset,
    Folds,
    bundled_rows,
    dataset_of,
    is_bundled,
    is_frozen,
    shipped_folds,
)
from ridgeline.calibrate.inference import INFERENCE, inference_answers
from ridgeline.calibrate.kernels import KERNELS, is_priceable, kernel_interval, price_kernels, unpriceable
from ridgeline.calibrate.profile_sources import profiles_of
from ridgeline.calibrate.serving import SERVING, serving_cases
from ridgeline.calibrate.truth.csv_cells import Skipped
from ridgeline.calibrate.truth.kernel_rows import kernel_of
from ridgeline.calibrate.truth.row_scenario import measured_step_s, to_scenario
from ridgeline.calibrate.truth.rows import COLLECTIVES, TRUTH, Kind, Row, read_rows, read_table
from ridgeline.calibrate.truth.rows import where as pick
from ridgeline.calibrate.validation import Validation, ValidationCase, peak_of
from ridgeline.core.arrays import Array
from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import InputError, Problem, near
from ridgeline.core.table import decode
from ridgeline.cost import Calibration, Choice, Profile, owners, parameter_columns, shipped_profiles
from ridgeline.cost.fitting import shipped_calibration as shipped_calibration
from ridgeline.plan.check import check
from ridgeline.plan.plan import Plan, plan_table
from ridgeline.plan.scenario import Scenario
from ridgeline.serving import Priced
from ridgeline.sim import SHIPPED_RESIDUALS, Residual, StepBatch, interval, new_source_interval, read_residuals

LIST, ROWS = TRUTH / "published.toml", TRUTH / "published.csv"
NO_PLAN: JsonMapping = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One run as its authors tell of it.

    row      its cells, what `published.toml` settles among them
    plan     decisions that no column holds, as a scenario's [plan]
    why      where that is known from
    """

    row: Row
    plan: JsonMapping = field(default_factory=lambda: NO_PLAN)
    why: str = ""

    @property
    def is_fitted(self) -> bool:
        """Whether its configuration took part in the fit."""
        return self.row.id in bundled_rows() and shipped_folds().without(self.row.group) is not None

    @property
    def scenario(self) -> Scenario | Skipped:
        """What was run, assumptions and all; or why that cannot be said."""
        row_scenario = to_scenario(self.row)
        if isinstance(row_scenario, Skipped) or not self.plan:
            return row_scenario
        plan = decode(Plan, {**plan_table(row_scenario.plan), "engine": row_scenario.plan.engine, **self.plan}, "plan")
        note_starts = {"schedule": "vpp = ", "recompute": "recompute = "}
        settled_notes = tuple(note_starts[key] for key in self.plan if key in note_starts)
        open_notes = (note for note in row_scenario.assumptions if not note.startswith((*settled_notes, "placement: ")))
        amended_scenario = replace(
            row_scenario, plan=plan, assumptions=(*(f"{key}: {self.why}" for key in self.plan), *open_notes)
        )
        wrong = check(amended_scenario)
        return Skipped(id=self.row.id, reason=str(wrong[0])) if wrong else amended_scenario


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Every published run, in the order of the list.

    >>> [run.row.id for run in published_runs()][:2], published_runs()[0].is_fitted
    (['sc21-0001', 'sc21-0002'], False)
    """
    rows = {**bundled_rows(), **{row.id: row for row in read_rows(ROWS)}}
    entries = tomllib.loads(LIST.read_text(encoding="utf-8"))["run"]
    return tuple(_run(entry, rows) for entry in entries)


def _run(entry: JsonMapping, rows: Mapping[str, Row]) -> PublishedRun:
    id = str(entry["row"])
    if id not in rows:
        close = ", ".join(near(id, rows)) or "a row of a truth table"
        raise InputError(Problem(path="run.row", given=repr(id), expected=close, where=LIST.name))
    row = rows[id]
    cells = MappingProxyType({**row.cells, **entry.get("cells", {})})
    return PublishedRun(
        row=replace(row, cells=cells), plan=MappingProxyType(entry.get("plan", {})), why=entry.get("why", "")
    )


def published_table(
    runs: Sequence[PublishedRun], profiles: Mapping[str, Profile] | None = None
) -> tuple[Dataset, list[bool]]:
    """Runs as a table to predict, and whether each took part in the fit."""
    usable: list[tuple[PublishedRun, Scenario, float]] = []
    skipped_rows: list[Skipped] = []
    for run in runs:
        scenario = run.scenario
        measured_s = scenario if isinstance(scenario, Skipped) else measured_step_s(run.row, scenario)
        if isinstance(scenario, Skipped) or isinstance(measured_s, Skipped):
            skipped_rows += [skip for skip in (scenario, measured_s) if isinstance(skip, Skipped)][:1]
        else:
            usable.append((run, scenario, measured_s))
    scenarios = tuple(scenario for _, scenario, _ in usable)
    table = Dataset(
        rows=tuple(run.row for run, _, _ in usable),
        scenarios=scenarios,
        measured_s=np.array([measured_s for _, _, measured_s in usable]),
        batch=StepBatch.of(scenarios, shipped_profiles() if profiles is None else profiles),
        skipped=tuple(skipped_rows),
    )
    return table, [run.is_fitted for run, _, _ in usable]


PUBLISHED = "published"  # name of the table of published runs
PREDICTED: tuple[Kind, ...] = (
    "training",
    "collectives",
    "kernels",
    "serving",
    "inference",
)  # kinds of tables that predictions exist for
BUNDLED_TABLES: Mapping[str, str] = MappingProxyType(
    {"collectives": COLLECTIVES, "kernels": KERNELS, "serving": SERVING, "inference": INFERENCE}
)


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
        full=shipped_calibration(),
        folds=shipped_folds(),
        residuals=tuple(zip(groups, read_residuals(rows), strict=True)),
    )


def validate(
    path: Path | str | None = None, where: Iterable[str] = (), *, frozen: bool = False, profile: Choice = None
) -> Validation:
    """Predict the rows of a table, or the bundled ones, and hold each prediction against its measurement.

    frozen    only the bundled rows of frozen sources, which are left out otherwise
    profile   measured kernels: a file, `none`, or `aiconfigurator:CHIP`; absent: those that ship with Ridgeline

    >>> checked = validate(where=["source=h200"])
    >>> len(checked.cases), all(case.cross_validated for case in checked.cases)
    (7, True)
    """
    profiles = profiles_of(profile)
    if path is None:
        rows = tuple(row for row in read_rows() if is_frozen(row) == frozen)
        if frozen and not rows:
            raise InputError(_all_opened())
        table = dataset_of(pick(rows, where), profiles)
        strangers = [False] * len(table.rows) if frozen else None  # no fit has seen anything of their sources
        return validation_of(table, shipped_parameters(profiles), own=strangers)
    if frozen:
        raise InputError(Problem(path="--frozen", given=str(path), expected="no FILE: frozen sources are bundled rows"))
    if str(path) == PUBLISHED and not Path(path).exists():
        runs = published_runs()
        selected_ids = {row.id for row in pick([run.row for run in runs], where)}
        table, fitted_ids = published_table([run for run in runs if run.row.id in selected_ids], profiles)
        return validation_of(table, shipped_parameters(profiles), own=fitted_ids)
    bundled_table = None if Path(path).exists() else BUNDLED_TABLES.get(str(path))
    kind, rows = read_table(TRUTH / bundled_table if bundled_table else path, PREDICTED)
    if kind == "collectives":
        return collectives_of(pick(rows, where))
    if kind == "kernels":
        return kernels_of(pick(rows, where), profiles)
    if kind == "serving":
        return serving_of(pick(rows, where), profiles if profile is not None else None)
    if kind == "inference":
        return serving_runs_of(pick(rows, where), profiles)
    return validation_of(dataset_of(pick(rows, where), profiles), shipped_parameters(profiles))


def _all_opened() -> Problem:
    given_text = f"no source left: {', '.join(OPENED)} were opened on {max(OPENED.values())} and are fitted since"
    return Problem(path="--frozen", given=given_text, expected="a frozen source", todo="leave --frozen out")


def serving_of(rows: Sequence[Row], profiles: Mapping[str, Profile] | None) -> Validation:
    """The cases of a table of servers under load, one for every metric of a row."""
    prices = Priced(calibration=shipped_parameters(profiles).full) if profiles is not None else None
    cases, skipped_rows = serving_cases(rows, prices)
    return Validation(
        kind="serving",
        cases=tuple(
            ValidationCase(
                row=case.row,
                chip=case.row.chip,
                engine=case.row["engine"],
                measured_s=case.measured,
                predicted_s=case.predicted,
                low_s=case.low,
                high_s=case.high,
                cross_validated=False,
                parts=MappingProxyType({case.metric: case.predicted}),
                assumptions=case.assumptions,
                metric=case.metric,
            )
            for case in cases
        ),
        skipped=skipped_rows,
    )


def kernels_of(rows: Sequence[Row], profiles: Mapping[str, Profile]) -> Validation:
    """The cases of a table of kernels; a published row's own figure is left out of what prices it."""
    read = [kernel_of(row) for row in rows]
    priceable = [item for item in read if not isinstance(item, Skipped) and is_priceable(item)]
    cases = [
        ValidationCase(
            row=item.row,
            chip=item.chip,
            engine=item.kernel.impl,
            measured_s=item.kernel.seconds,
            predicted_s=price.seconds,
            low_s=price.seconds * low,
            high_s=price.seconds * high,
            cross_validated=price.how.startswith("library"),
            parts=MappingProxyType({item.kernel.op: price.seconds}),
            assumptions=(price.how, *item.notes),
        )
        for item, price in zip(priceable, price_kernels(priceable, profiles), strict=True)
        for low, high in (kernel_interval(item, price),)
    ]
    skipped_rows = tuple(
        item if isinstance(item, Skipped) else Skipped(id=item.row.id, reason=unpriceable(item))
        for item in read
        if isinstance(item, Skipped) or not is_priceable(item)
    )
    return Validation(kind="kernels", cases=tuple(cases), skipped=skipped_rows)


def serving_runs_of(rows: Sequence[Row], profiles: Mapping[str, Profile]) -> Validation:
    """The cases of a table of serving runs, each in its metric's own unit."""
    answers, skipped_rows = inference_answers(rows, replace(shipped_calibration(), profiles=profiles))
    cases = [
        ValidationCase(
            row=answer.item.row,
            chip=answer.item.scenario.system.chip.id,
            engine=answer.item.scenario.engine.id,
            measured_s=answer.item.measured,
            predicted_s=answer.predicted,
            low_s=answer.low,
            high_s=answer.high,
            cross_validated=answer.cross_validated,
            parts=MappingProxyType({answer.item.kind: answer.predicted}),
            assumptions=answer.item.notes,
            metric=answer.item.row["metric"],
        )
        for answer in answers
    ]
    return Validation(kind="inference", cases=tuple(cases), skipped=tuple(skipped_rows))


def collectives_of(rows: Sequence[Row]) -> Validation:
    """The cases of a table of collectives; a bundled row is predicted by numbers whose fit never saw its system."""
    read = [measured_of(row) for row in rows]
    answers, refusals = timed_of([item for item in read if isinstance(item, MeasuredCollective)])
    cases = tuple(
        ValidationCase(
            row=item.measured.row,
            chip=item.measured.system.chip.id,
            engine=item.measured.question.software,
            measured_s=item.measured.seconds,
            predicted_s=item.seconds,
            low_s=item.low,
            high_s=item.high,
            cross_validated=item.left_out,
            parts=MappingProxyType({item.measured.kind: item.seconds}),
            assumptions=item.measured.notes,
            size=item.measured.size,
        )
        for item in answers
    )
    skipped_rows = tuple(item for item in read if isinstance(item, Skipped))
    return Validation(kind="collectives", cases=cases, skipped=(*skipped_rows, *refusals))


def validation_of(table: Dataset, parameters: FittedParameters, own: Sequence[bool] | None = None) -> Validation:
    """The cases of a table: bundled rows without their own group, all others with the full fit.

    own = whether each row is a bundled one, where that is known better than from its cells.
    """
    own = [is_bundled(row) for row in table.rows] if own is None else own
    fold_calibrations = [
        parameters.folds.without(row.group) if is_own else None for row, is_own in zip(table.rows, own, strict=True)
    ]
    predicted_s, parts = _predict_steps(table, [calibration or parameters.full for calibration in fold_calibrations])
    intervals = _StepIntervals(parameters.residuals)
    cases: list[ValidationCase] = []
    skipped_rows = list(table.skipped)
    for index, (row, chip, engine) in enumerate(zip(table.rows, table.chips, table.engines, strict=True)):
        seconds = float(predicted_s[index])
        if not math.isfinite(seconds) or seconds <= 0:
            precision = table.scenarios[index].plan.precision.compute.id
            reason = f"precision: {chip} has no published rate for {precision}, or a size is beyond reason"
            skipped_rows.append(Skipped(id=row.id, reason=reason))
            continue
        if own[index]:
            low, high = intervals.interval_of(chip, engine, row.group)
        else:
            low, high = intervals.stranger_interval(chip, engine, table.scenarios[index])
        cases.append(
            ValidationCase(
                row=row,
                chip=chip,
                engine=engine,
                known_as=owners(table.scenarios[index].system.chip, table.scenarios[index].engine),
                measured_s=float(table.measured_s[index]),
                predicted_s=seconds,
                low_s=seconds * low,
                high_s=seconds * high,
                cross_validated=own[index],
                parts=MappingProxyType({name: float(column[index]) for name, column in parts.items()}),
                assumptions=table.scenarios[index].assumptions,
                peak=peak_of(row, table.scenarios[index]),
            )
        )
    return Validation(kind="training", cases=tuple(cases), skipped=tuple(skipped_rows))


def _predict_steps(table: Dataset, used: Sequence[Calibration]) -> tuple[Array, dict[str, Array]]:
    """Seconds by row and their parts, each row under its own calibration."""
    distinct = {id(item): item for item in used}
    predicted_s = np.zeros(len(used))
    parts: dict[str, Array] = {}
    for key, calibration in distinct.items():
        of_calibration = np.array([id(item) == key for item in used])
        with np.errstate(all="ignore"):
            steps = table.steps(parameter_columns(calibration, table.scenarios), by_part=True)
        predicted_s[of_calibration] = steps.step_s[of_calibration]
        for name, column in steps.parts.items():
            parts.setdefault(name, np.zeros(len(used)))[of_calibration] = column[of_calibration]
    return predicted_s, parts


class _StepIntervals:
    """Intervals around one second, remembered by what they depend on."""

    def __init__(self, residuals: Sequence[tuple[str, Residual]]) -> None:
        self._all = residuals
        self._groups = {group for group, _ in residuals}
        self._known: dict[tuple[str, str, str | None], tuple[float, float]] = {}

    def interval_of(self, chip: str, engine: str, group: str) -> tuple[float, float]:
        """Low and high for a prediction of 1 s of a known source, from residuals of other groups than this one."""
        key = (chip, engine, group if group in self._groups else None)
        if key not in self._known:
            other_runs = [item for owner, item in self._all if owner != key[2]]
            span = interval(1.0, chip, engine, other_runs)
            self._known[key] = (span.low, span.high)
        return self._known[key]

    def stranger_interval(self, chip: str, engine: str, scenario: Scenario) -> tuple[float, float]:
        """The same for a source that took no part in the fit."""
        precision, seq, family = scenario.plan.precision.compute.id, scenario.workload.seq, scenario.system.chip.family
        key = (chip, engine, f"{family}, {precision}, {seq}")
        if key not in self._known:
            all_runs = [item for _, item in self._all]
            span = new_source_interval(1.0, chip, engine, all_runs, family=family, precision=precision, seq=seq)
            self._known[key] = (span.low, span.high)
        return self._known[key]
