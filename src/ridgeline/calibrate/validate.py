"""Turn measured rows into a Validation: what was predicted for each, how far off that was, and which were skipped.

validate()                             the bundled rows, each with parameters whose fit never saw its group
validate("mine.csv")                   a table of your own, with the shipped parameters
validate("collectives")                the bundled measurements of collectives; so "kernels", "serving" (servers under
                                       load) and "inference" (phases, static batches, maximum load)
validate("published")                  runs that papers tell of, with the plans their authors ran
validate(where=["x_chip=h100-sxm"])    some of the rows

    published.toml   which runs: rows of the truth tables by id, with what a row leaves blank and its source settles
    published.csv    rows that no fitted table has; they take part in no fit

A run whose row took part in the fit is predicted by the fold that left its configuration out. Unlike a row of a truth
table, a run is what its authors tell of it: where that is more than the row's cells, the scenario has more.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.collectives import validate_collectives
from ridgeline.calibrate.folds import (
    OPENED,
    Dataset,
    FittedParameters,
    bundled_rows,
    dataset_of,
    is_bundled,
    is_frozen,
    shipped_folds,
    shipped_parameters,
)
from ridgeline.calibrate.fusion import validate_fusion
from ridgeline.calibrate.inference import validate_inference
from ridgeline.calibrate.kernels import validate_kernels
from ridgeline.calibrate.profile_sources import profiles_of
from ridgeline.calibrate.rl import validate_rl
from ridgeline.calibrate.serving import validate_serving
from ridgeline.calibrate.truth.row_scenario import to_scenario
from ridgeline.calibrate.truth.rows import TRUTH, Kind, Row, Skipped, read_rows, read_table
from ridgeline.calibrate.truth.rows import where as pick
from ridgeline.calibrate.validation import Validation, ValidationCase, peak_of
from ridgeline.core.arrays import Array
from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import InputError, Problem, near
from ridgeline.core.table import decode
from ridgeline.core.waits import ProgressCallback, ignore_progress, until_stopped
from ridgeline.cost import Calibration, Choice, default_calibration, owners
from ridgeline.cost.pricing import ParameterColumns
from ridgeline.plan.check import check
from ridgeline.plan.plan import Plan, plan_table
from ridgeline.plan.scenario import Scenario
from ridgeline.serving import StepPricing
from ridgeline.sim import Residual, interval, new_source_interval

LIST, ROWS = TRUTH / "published.toml", TRUTH / "published.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One run as its authors tell of it.

    row      its cells, what `published.toml` settles among them
    plan     decisions that no column holds, as a scenario's [plan]
    why      where that is known from
    """

    row: Row
    plan: JsonMapping = field(default_factory=lambda: MappingProxyType({}))
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


PUBLISHED = "published"  # name of the table of published runs
# kinds of tables that predictions exist for; all but training are one bundled file each
PREDICTED: tuple[Kind, ...] = ("training", "collectives", "kernels", "serving", "inference", "rl", "fusion")
Span = tuple[float, float]


def validate(
    path: Path | str | None = None, where: Iterable[str] = (), *, frozen: bool = False, profile: Choice = None,
    progress: ProgressCallback = ignore_progress,
) -> Validation:  # fmt: skip
    """Predict the rows of a table, or the bundled ones, and hold each prediction against its measurement.

    frozen    only the bundled rows of frozen sources, which are left out otherwise
    profile   measured kernels: a file, `none`, or `aiconfigurator:CHIP`; absent: those that ship with Ridgeline
    progress  hears of every row; where it answers False the rows until then are validated

    >>> checked = validate(where=["source=h200"])
    >>> len(checked.cases), all(case.cross_validated for case in checked.cases)
    (7, True)
    """
    profiles = profiles_of(profile)
    if path is None:
        rows = tuple(row for row in read_rows() if is_frozen(row) == frozen)
        if frozen and not rows:
            opened_text = (
                f"no source left: {', '.join(OPENED)} were opened on {max(OPENED.values())} and are fitted since"
            )
            raise InputError(
                Problem(path="--frozen", given=opened_text, expected="a frozen source", todo="leave --frozen out")
            )
        table = dataset_of(until_stopped(pick(rows, where), progress, "rows"), profiles)
        strangers = [False] * len(table.rows) if frozen else None  # no fit has seen anything of their sources
        return validation_of(table, shipped_parameters(profiles), own=strangers)
    if frozen:
        raise InputError(Problem(path="--frozen", given=str(path), expected="no FILE: frozen sources are bundled rows"))
    if str(path) == PUBLISHED and not Path(path).exists():
        runs = {run.row.id: run for run in published_runs()}
        selected_rows = until_stopped(pick([run.row for run in runs.values()], where), progress, "published runs")
        table = dataset_of(selected_rows, profiles, lambda row: runs[row.id].scenario)
        return validation_of(table, shipped_parameters(profiles), own=[runs[row.id].is_fitted for row in table.rows])
    is_bundled_table = str(path) in PREDICTED[1:] and not Path(path).exists()
    kind, rows = read_table(TRUTH / f"{path}.csv" if is_bundled_table else path, PREDICTED)
    selected_rows = until_stopped(pick(rows, where), progress, f"rows of {kind}")
    match kind:
        case "collectives":
            return validate_collectives(selected_rows)
        case "kernels":
            return validate_kernels(selected_rows, profiles)
        case "serving":
            prices = None if profile is None else StepPricing(calibration=shipped_parameters(profiles).full)
            return validate_serving(selected_rows, prices)
        case "rl":
            return validate_rl(selected_rows)
        case "fusion":
            return validate_fusion(selected_rows)
        case "inference":
            return validate_inference(selected_rows, replace(default_calibration(), profiles=profiles))
        case "training":
            return validation_of(dataset_of(selected_rows, profiles), shipped_parameters(profiles))


def validation_of(table: Dataset, parameters: FittedParameters, own: Sequence[bool] | None = None) -> Validation:
    """The cases of a table: bundled rows without their own group, all others with the full fit.

    own = whether each row is a bundled one, where that is known better than from its cells.
    """
    own = [is_bundled(row) for row in table.rows] if own is None else own
    folds = [parameters.folds.without(row.group) if own[index] else None for index, row in enumerate(table.rows)]
    predicted_s, parts = _predict_steps(table, [calibration or parameters.full for calibration in folds])
    known_span, stranger_span = _step_spans(parameters.residuals)
    cases: list[ValidationCase] = []
    skipped_rows = list(table.skipped)
    columns = zip(table.rows, table.scenarios, table.chips, table.engines, predicted_s.tolist(), own, strict=True)
    for index, (row, scenario, chip, engine, seconds, is_own) in enumerate(columns):
        precision = scenario.plan.precision.compute.id
        if not math.isfinite(seconds) or seconds <= 0:
            reason = f"precision: {chip} has no published rate for {precision}, or a size is beyond reason"
            skipped_rows.append(Skipped(id=row.id, reason=reason))
            continue
        if is_own:
            span = known_span(chip, engine, row.group)
        else:
            span = stranger_span(chip, engine, scenario.system.chip.family, precision, scenario.workload.seq)
        step_parts = MappingProxyType({name: float(column[index]) for name, column in parts.items()})
        cases.append(
            ValidationCase.of(
                row, float(table.measured_s[index]), seconds, span, parts=step_parts, chip=chip, engine=engine,
                known_as=owners(scenario.system.chip, scenario.engine), cross_validated=is_own,
                assumptions=scenario.assumptions, peak=peak_of(row, scenario),
            )
        )  # fmt: skip
    return Validation(kind="training", cases=tuple(cases), skipped=tuple(skipped_rows))


def _predict_steps(table: Dataset, used: Sequence[Calibration]) -> tuple[Array, dict[str, Array]]:
    """Seconds by row and their parts, each row under its own calibration."""
    distinct = {id(item): item for item in used}
    predicted_s = np.zeros(len(used))
    parts: dict[str, Array] = {}
    for key, calibration in distinct.items():
        of_calibration = np.array([id(item) == key for item in used])
        with np.errstate(all="ignore"):
            steps = table.steps(ParameterColumns.of(calibration, table.scenarios), by_part=True)
        predicted_s[of_calibration] = steps.step_s[of_calibration]
        for name, column in steps.parts.items():
            parts.setdefault(name, np.zeros(len(used)))[of_calibration] = column[of_calibration]
    return predicted_s, parts


def _step_spans(residuals: Sequence[tuple[str, Residual]]) -> tuple[Callable[..., Span], Callable[..., Span]]:
    """Low and high around one second: of a known source by residuals of other groups, and of one that nothing saw."""

    @cache
    def known_span(chip: str, engine: str, group: str) -> Span:
        span = interval(1.0, chip, engine, [item for owner, item in residuals if owner != group])
        return span.low, span.high

    @cache
    def stranger_span(chip: str, engine: str, family: str, precision: str, seq: int) -> Span:
        runs = [item for _, item in residuals]
        span = new_source_interval(1.0, chip, engine, runs, family=family, precision=precision, seq=seq)
        return span.low, span.high

    return known_span, stranger_span
