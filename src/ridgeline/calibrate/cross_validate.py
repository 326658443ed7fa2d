"""Turn the bundled rows into everything `ridgeline fit` ships: parameters, folds, residuals, and what they are worth.

    full fit -> five folds -> one fit without each source, engine, family of chips -> folds without parameter groups

Rows that judge a fit must not reach it through its starting point either, so that folds and left-out fits start from
the defaults; only an ablation starts from where the full fit ended.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.anchor import anchored_by, rows_of
from ridgeline.calibrate.fit import FOLDS, SHIPPED_PRIOR, OffsetLayout, OffsetPrior, calibration_of, fit, fold_of
from ridgeline.calibrate.folds import SHIPPED_FOLDS, Dataset, FittedParameters, Folds, dataset_of, is_frozen, takes_part
from ridgeline.calibrate.learning_curve import Unseen, curve_sheet, unseen
from ridgeline.calibrate.truth.laboratories import laboratory_of
from ridgeline.calibrate.truth.rows import Row, Skipped, headline, read_rows
from ridgeline.calibrate.validate import validation_of
from ridgeline.calibrate.validation import ANCHORED, COVERED, LEFT_OUT, Left, Sheet, accuracy_of, line
from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_text
from ridgeline.core.waits import ProgressCallback, ignore_progress, until_stopped
from ridgeline.cost import PARAMETERS, Calibration
from ridgeline.cost.anchoring import Components
from ridgeline.cost.fitting import SHIPPED_CALIBRATION
from ridgeline.plan.scenario import Scenario
from ridgeline.sim import (
    SHIPPED_RESIDUALS,
    SHIPPED_SUMMARY,
    Residual,
    default_calibration,
    new_source_interval,
    read_residuals,
    summary_text,
)

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


def fit_with(
    *runs: Path | str, calibration: Calibration | None = None, progress: ProgressCallback = ignore_progress
) -> OwnFit:
    """Anchor a calibration, the shipped one unless given, on runs; `InputError` where none of them can be used.

    before      predicted with the prior, the shipped parameters, which never saw the run
    held out    anchored on the runs of other configurations alone: what a further run like it may expect
    after       anchored on all of them: how well it can be followed, no proof of anything

    Runs of one configuration (sizes of the model, chips, batch, sequence, engine) are held out together. Where whoever
    waits asks to stop, the cases are those of the configurations that were held out until then.

    runs   each as `--anchor` takes it: a table of residuals or of runs, a scenario with [measured], TRACE@SCENARIO
    """
    rows = [row for text in runs for row in rows_of(str(text))]
    table, prior = dataset_of(rows), default_calibration() if calibration is None else calibration
    if not table.rows:
        reasons = "; ".join(f"{skip.id}: {skip.reason}" for skip in table.skipped[:3]) or "no rows beside bundled ones"
        raise InputError(Problem(path="--with", given=reasons, expected="at least one run that can be predicted"))
    kinds = [configuration(scenario) for scenario in table.scenarios]
    distinct_kinds = list(dict.fromkeys(kinds))[:MOST_HELD]
    progress(0, len(distinct_kinds), "all runs")
    anchors = anchored_by(prior, table)
    left_out_s = table.predict(anchors)
    waiting_kinds = set(distinct_kinds)
    for kind in until_stopped(distinct_kinds, progress, "without one configuration"):
        waiting_kinds.remove(kind)
        of_kind = np.array([row_kind == kind for row_kind in kinds])
        other_rows = [row for row, row_kind in zip(table.rows, kinds, strict=True) if row_kind != kind]
        refit_calibration = anchored_by(prior, dataset_of(other_rows)) if other_rows else prior
        left_out_s[of_kind] = table.predict(refit_calibration)[of_kind]
    columns = (table.measured_s, table.predict(prior), left_out_s, table.predict(anchors))
    cases = tuple(
        OwnCase(id=row.id, measured_s=real, before_s=old, held_out_s=out, after_s=new)
        for row, kind, real, old, out, new in zip(table.rows, kinds, *(part.tolist() for part in columns), strict=True)
        if kind not in waiting_kinds
    )
    return OwnFit(calibration=anchors, cases=cases, skipped=table.skipped)


def configuration(scenario: Scenario) -> str:
    """What two runs have in common when one says much about the other."""
    model, system = scenario.model, scenario.system
    sizes = f"{model.hidden}x{model.layers} {model.vocab} {scenario.workload.seq} {scenario.workload.tokens}"
    return f"{sizes} {system.chips}x{system.chip.id} {scenario.plan.engine}"


def write_calibration(found: OwnFit, path: Path) -> None:
    """Write the calibration where `--calibration FILE` of other verbs reads it."""
    write_text(path, parameters_text(found.calibration))


CANDIDATES: Mapping[str, OffsetPrior] = MappingProxyType(
    {
        "as shipped": SHIPPED_PRIOR,
        "serving libraries held to strictly": OffsetPrior(serving=1.0),
        "chips and engines closer together": OffsetPrior(apart=0.6),
        "large sources count less": OffsetPrior(source=0.25),
    }
)
OUTER, INNER = 4, 2
Fit = Callable[[Mask, OffsetPrior], Array]  # rows to fit, how strongly held -> seconds of every row


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    """Seconds of every row by a fit that saw nothing of its outer fold, and the candidate chosen for each fold."""

    predicted_s: Array
    chosen: tuple[str, ...]


def dealt(members: Sequence[str], folds: int) -> Index:
    """The fold of every row: members with all their rows, the largest first, dealt in turn and back.

    >>> dealt(["a"] * 5 + ["b"] * 3 + ["c"] * 2 + ["d"], 2).tolist()
    [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0]
    """
    counts = Counter(members)
    order = sorted(counts, key=lambda member: (-counts[member], member))
    turn = [*range(folds), *reversed(range(folds))]
    place = {member: turn[at % len(turn)] for at, member in enumerate(order)}
    return np.array([place[member] for member in members], dtype=np.int64)


def nested_choice(
    members: Sequence[str], measured_s: Array, fitted: Fit, candidates: Mapping[str, OffsetPrior] = CANDIDATES
) -> Nested:
    """Candidate strengths of priors, chosen again for every outer fold by inner folds of what it leaves.

    outer fold   some sources (engines, families of chips) with all their rows: judged, and seen by nothing before
    inner folds  of the members that remain: each candidate is fitted without one and judged on it; the best is chosen
    """
    outer, predicted_s, chosen = dealt(members, OUTER), np.zeros(len(members)), []
    for fold in range(OUTER):
        in_fold = outer == fold
        if not in_fold.any():
            continue
        training_rows = np.flatnonzero(~in_fold)
        inner = dealt([members[int(row)] for row in training_rows], INNER)
        best = min(candidates, key=lambda name: _error(candidates[name], training_rows, inner, measured_s, fitted))
        chosen.append(best)
        predicted_s[in_fold] = fitted(~in_fold, candidates[best])[in_fold]
    return Nested(predicted_s=predicted_s, chosen=tuple(chosen))


def _error(prior: OffsetPrior, rest: Index, inner: Index, measured_s: Array, fitted: Fit) -> float:
    """Mean absolute error of a candidate on inner folds, each by a fit without it and without the outer one."""
    off: list[float] = []
    for fold in range(INNER):
        test_rows = rest[inner == fold]
        if len(test_rows):
            training_mask = np.zeros(len(measured_s), dtype=np.bool_)
            training_mask[rest[inner != fold]] = True
            off += (np.abs(fitted(training_mask, prior)[test_rows] / measured_s[test_rows] - 1)).tolist()
    return float(np.mean(off))


def nested_sheet(table: Dataset | None = None, progress: ProgressCallback = ignore_progress) -> Sheet:
    """What leaving sources, engines and families out costs where the priors are chosen inside folds.

    A choice made with left-out rows in view flatters the error on these very rows. Here no row judges a choice that it
    had a part in.
    """
    rows = [row for row in read_rows() if takes_part(row) and not is_frozen(row)]
    data = dataset_of(rows) if table is None else table
    ticks, sheet = _Ticks(progress, 3 * OUTER * (INNER * len(CANDIDATES) + 1)), {}
    best = headline_of(data)

    def fit_without(kept: Mask, prior: OffsetPrior) -> Array:
        ticks.next("priors chosen inside folds")
        layout, offsets = fit(data, kept, prior=prior, rounds=ROUNDS)
        return data.steps(layout.rates(offsets)).step_s

    lefts: tuple[Left, ...] = ("laboratory", "engine", "family")
    for what in lefts:
        choice = nested_choice(members_of(data, what), data.measured_s, fit_without)
        off = np.abs(choice.predicted_s / data.measured_s - 1)
        name = f"each fold of {PLURAL[what]} left out, priors chosen inside"
        sheet[PLURAL[what]] = {
            "figure": line(name, int(best.sum()), "mape", (0, LEFT_OUT[what]), float(off[best].mean())),
            "all": line(f"{name}, all rows", len(off), "mape", (0, LEFT_OUT[what]), float(off.mean())),
            "chosen": list(choice.chosen),
        }
    return {"candidates": list(CANDIDATES), "outer": OUTER, "inner": INNER, **sheet}


QUICK_ROUNDS, ROUNDS, FINAL_ROUNDS = 2, 3, 5  # of a quick fit, of a comparison, of what ships
PLURAL: Mapping[Left, str] = MappingProxyType({"laboratory": "laboratories", "engine": "engines", "family": "families"})
FEW = 6  # rows of a laboratory, an engine or a family that is left out together with all others of as few


@dataclass(frozen=True, slots=True, kw_only=True)
class Refit:
    """What came out: parameters, residuals as they ship, and the sheet that `docs/accuracy.json` holds."""

    parameters: FittedParameters
    residuals: tuple[Sheet, ...]
    accuracy: Sheet


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """The rows to fit, who is in which fold, and where the full fit ended."""

    table: Dataset
    fold: Index
    layout: OffsetLayout
    offsets: Array
    rounds: int

    def refit(self, chosen: Mask, without: frozenset[str] = frozenset(), rounds: int = 0) -> Array:
        """Offsets fitted to fewer rows or with fewer parameters."""
        start = self.offsets.copy() if without else None
        for index, name in enumerate(self.layout.names):
            if start is not None and PARAMETERS[name.partition("/")[0]].group in without:
                start[index] = 0.0
        return fit(self.table, chosen, start=start, without=without, rounds=rounds or self.rounds)[1]

    def predict_steps(self, offsets: Array) -> Array:
        """Seconds by row under some offsets."""
        return self.table.steps(self.layout.rates(offsets)).step_s


def refit(
    rows: tuple[Row, ...] | None = None, *, quick: bool = False, progress: ProgressCallback = ignore_progress
) -> Refit:
    """Fit the rows (the bundled ones), hold them against fits that never saw them, and sum up.

    quick = fewer rounds, and neither sources nor parameter groups are left out.
    """
    fitted_rows = [row for row in (read_rows() if rows is None else rows) if not is_frozen(row)]
    table = dataset_of([row for row in fitted_rows if takes_part(row)])
    groups = () if quick else tuple(dict.fromkeys(item.group for item in PARAMETERS.values()))
    lefts: tuple[Left, ...] = () if quick else ("laboratory", "engine", "family")
    ticks = _Ticks(
        progress,
        1 + FOLDS + sum(len(set(left_out_folds(members_of(table, what)))) for what in lefts) + FOLDS * len(groups),
    )
    rounds = QUICK_ROUNDS if quick else FINAL_ROUNDS
    ticks.next("all rows")
    layout, offsets = fit(table, np.ones(len(table.rows), dtype=np.bool_), rounds=rounds)
    fold = np.array([fold_of(row.group) for row in table.rows], dtype=np.int64)
    task = _Task(table=table, fold=fold, layout=layout, offsets=offsets, rounds=rounds)
    ticks.judge(table, task.predict_steps(offsets), "in the fit")
    calibrations, left_out_s = _fit_folds(task, ticks)
    ticks.judge(table, left_out_s, "where left out")
    sources: list[Unseen] = []
    without = {what: _left_out(task, what, ticks, sources) for what in lefts}
    residuals = _residuals(table, left_out_s, without)
    parameters = replace(calibrations, residuals=tuple((run.group, run) for run in residuals))
    curve = _curve(table, sources, residuals) if sources else None
    if curve is not None:
        parameters = replace(parameters, full=replace(parameters.full, components=curve[0]))
    validation = validation_of(dataset_of(fitted_rows), parameters)
    accuracy = accuracy_of(validation, parameters)
    for what, predicted_s in without.items():
        low, high = _spans(table, what, residuals)
        coverage: Mask = (low <= table.measured_s / predicted_s) & (table.measured_s / predicted_s <= high)
        accuracy[f"left_out_{PLURAL[what]}"] = _left_out_sheet(table, what, predicted_s, coverage)
    if curve is not None:
        accuracy["learning_curve"] = curve[1]
    if groups:
        accuracy["ablation"] = _ablation(task, groups, left_out_s, ticks)
    return Refit(parameters=parameters, residuals=tuple(_residual_rows(table, residuals)), accuracy=accuracy)


class _Ticks:
    """Tells how many of the fits are done, and how far off the best one is."""

    def __init__(self, progress: ProgressCallback, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0
        self._best = ""

    def next(self, what: str) -> None:
        """A fit begins."""
        self._progress(self._done, self._total, what, self._best)
        self._done += 1

    def judge(self, table: Dataset, predicted_s: Array, what: str) -> None:
        """Rows were predicted."""
        self._best = f"{float(np.abs(predicted_s / table.measured_s - 1).mean()):.1%} off {what}"


def _fit_folds(task: _Task, ticks: _Ticks) -> tuple[FittedParameters, Array]:
    """The full fit and its folds as they ship, and the seconds each row gets from the fold that left it out."""
    table = task.table
    source = f"ridgeline fit on {len(table.rows)} bundled rows in {len({row.group for row in table.rows})} groups"
    full = calibration_of(task.layout, task.offsets, source)
    calibrations: list[Calibration] = []
    left_out_s = np.zeros(len(table.rows))
    for fold in range(FOLDS):
        ticks.next(f"without fold {fold}")
        calibrations.append(
            calibration_of(task.layout, task.refit(task.fold != fold, rounds=task.rounds), f"without fold {fold}")
        )
        left_out_s[task.fold == fold] = table.predict(calibrations[-1])[task.fold == fold]
    left_out = {row.group: int(fold) for row, fold in zip(table.rows, task.fold, strict=True)}
    folds = Folds(calibrations=tuple(calibrations), left_out=MappingProxyType(left_out))
    return FittedParameters(full=full, folds=folds), left_out_s


def _residuals(table: Dataset, held: Array, without: Mapping[Left, Array]) -> tuple[Residual, ...]:
    """How far off each row is by the fold that left its group out, and by the fits that left more out."""

    def off(seconds: Array | None, index: int) -> float | None:
        return None if seconds is None else round(float(seconds[index] / table.measured_s[index] - 1), 4)

    return tuple(
        Residual(
            chip=table.chips[index],
            engine=table.engines[index],
            residual=off(held, index) or 0.0,
            group=row.group,
            source=laboratory_of(row),
            family=table.scenarios[index].system.chip.family,
            without_source=off(without.get("laboratory"), index),
            without_engine=off(without.get("engine"), index),
            without_family=off(without.get("family"), index),
            precision=table.scenarios[index].plan.precision.compute.id,
            seq=table.scenarios[index].workload.seq,
        )
        for index, row in enumerate(table.rows)
    )


def _mape(table: Dataset, predicted: Array) -> tuple[int, float]:
    """Headline rows and their mean error."""
    chosen = headline_of(table)
    return int(chosen.sum()), float(np.abs(predicted / table.measured_s - 1)[chosen].mean()) if chosen.any() else 0.0


def headline_of(table: Dataset) -> Mask:
    ids = {row.id for row in headline(table.rows)}
    return np.array([row.id in ids for row in table.rows], dtype=np.bool_)


def _left_out(task: _Task, what: Left, ticks: _Ticks, laboratories: list[Unseen]) -> Array:
    """Seconds of every row by a fit that saw none of its laboratory, engine or family of chips; the runs of each source
    of a laboratory are gathered, for a user anchors on runs of one machine and software, not of a vendor."""
    members = members_of(task.table, what)
    folds, sources = np.array(left_out_folds(members)), np.array([row.source for row in task.table.rows])
    predicted_s = np.zeros(len(members))
    for fold in dict.fromkeys(folds.tolist()):
        ticks.next(f"without {what} {fold}")
        of_fold = folds == fold
        offsets = task.refit(~of_fold, rounds=ROUNDS)
        predicted_s[of_fold] = task.predict_steps(offsets)[of_fold]
        if what == "laboratory":
            laboratories += [
                unseen(task.table, of_fold & (sources == name), task.layout, offsets, name)
                for name in dict.fromkeys(sources[of_fold].tolist())
            ]
    return predicted_s


def left_out_folds(members: Sequence[str]) -> list[str]:
    """What each row is left out with: its member, or all those of few rows together, which is harder than one by one.

    >>> left_out_folds(["a"] * 6 + ["b", "c"])[-3:]
    ['a', 'few', 'few']
    """
    rows = Counter(members)
    return [name if rows[name] >= FEW else "few" for name in members]


def _curve(table: Dataset, sources: Sequence[Unseen], residuals: Sequence[Residual]) -> tuple[Components, Sheet]:
    """How fast anchoring learns a source that no fit has seen, beside the figures that have targets."""
    spans = _spans(table, "laboratory", residuals)
    components, sheet = curve_sheet(sources, (np.log(spans[0]), np.log(spans[1])), headline_of(table))
    after = next(point for point in sheet["same"] if point["runs"] == 1)
    label, target = "left-out laboratory after one anchoring run", (0.0, ANCHORED)
    sheet["figure"] = line(label, after["headline_rows"], "mape", target, after["headline"])
    sheet["all"] = line(f"{label}, all rows", after["rows"], "mape", target, after["mape"])
    sheet["coverage"] = line(f"{label}, all rows", after["rows"], "coverage90", COVERED, after["coverage90"])
    return components, sheet


def members_of(table: Dataset, what: Left) -> list[str]:
    """Laboratory, engine or family of chips by row; a chip without a family is one of its own."""
    if what == "laboratory":
        return [laboratory_of(row) for row in table.rows]
    if what == "engine":
        return table.engines
    return [scenario.system.chip.family or scenario.system.chip.fitted_id for scenario in table.scenarios]


def _left_out_sheet(table: Dataset, what: Left, predicted: Array, covered: Mask) -> Sheet:
    """The error of each left-out member; the figure is the mean over headline rows, as all published ones."""
    residual, members = predicted / table.measured_s - 1, np.array(members_of(table, what))
    off = np.abs(residual)
    count, mape = _mape(table, predicted)
    entries = {
        member: {
            "n": rows,
            "mape": round(float(off[members == member].mean()), 4),
            "bias": round(float(residual[members == member].mean()), 4),
        }
        for member, rows in sorted(Counter(members.tolist()).items(), key=lambda entry: (-entry[1], entry[0]))
    }
    return {
        "figure": line(f"each {what} left out", count, "mape", (0, LEFT_OUT[what]), mape),
        "all": line(f"each {what} left out, all rows", len(off), "mape", (0, LEFT_OUT[what]), float(off.mean())),
        "coverage": line(f"each {what} left out, all rows", len(off), "coverage90", COVERED, float(covered.mean())),
        PLURAL[what]: entries,
    }


def _spans(table: Dataset, what: Left, residuals: Sequence[Residual]) -> tuple[Array, Array]:
    """Low and high end, over predicted, of the interval each row would get, were nothing of its member known."""
    members, spans = members_of(table, what), np.zeros((2, len(table.rows)))
    ranges: dict[tuple[str, str, str, str, int], tuple[float, float]] = {}
    for index, member in enumerate(members):
        scenario = table.scenarios[index]
        precision, seq = scenario.plan.precision.compute.id, scenario.workload.seq
        key = (member, table.chips[index], table.engines[index], precision, seq)
        if key not in ranges:
            other_runs = [run for run, its in zip(residuals, members, strict=True) if its != member]
            family = scenario.system.chip.family
            span = new_source_interval(1.0, key[1], key[2], other_runs, family=family, precision=precision, seq=seq)
            ranges[key] = (span.low, span.high)
        spans[:, index] = ranges[key]
    return spans[0], spans[1]


def _ablation(task: _Task, groups: tuple[str, ...], held: Array, ticks: _Ticks) -> list[Sheet]:
    """Cross-validated headline error with one group of parameters held at its defaults."""
    best = _mape(task.table, held)[1]
    lines = []
    for group in groups:
        predicted_s = np.zeros(len(held))
        for fold in range(FOLDS):
            ticks.next(f"without {group} and fold {fold}")
            in_fold = task.fold == fold
            predicted_s[in_fold] = task.predict_steps(task.refit(~in_fold, frozenset({group}), rounds=1))[in_fold]
        mape = _mape(task.table, predicted_s)[1]
        names = [item.name for item in PARAMETERS.values() if item.group == group]
        lines.append({"group": group, "parameters": names, "mape": round(mape, 4), "buys": round(mape - best, 4)})
    return sorted(lines, key=lambda entry: -float(entry["buys"]))


def _residual_rows(table: Dataset, residuals: Sequence[Residual]) -> list[Sheet]:
    """Cross-validated residuals as `residuals.json` holds them."""
    columns = "group source chip family engine residual without_source without_engine without_family precision seq"
    return [
        {"id": row.id, "arch": row["arch"]} | {name: getattr(run, name) for name in columns.split()}
        for row, run in zip(table.rows, residuals, strict=True)
    ]


def write_parameters(found: Refit) -> None:
    """Replace the shipped calibration, folds and residuals."""
    write_text(SHIPPED_CALIBRATION, parameters_text(found.parameters.full))
    write_text(SHIPPED_FOLDS, _text(found.parameters.folds.to_table()))
    write_text(SHIPPED_RESIDUALS, '{"rows": [\n' + ",\n".join(map(json.dumps, found.residuals)) + "\n]}\n")
    write_text(SHIPPED_SUMMARY, summary_text(read_residuals(found.residuals)))


def parameters_text(calibration: Calibration) -> str:
    """A calibration as its file holds it."""
    table: Sheet = {"source": calibration.source, "components": asdict(calibration.components)}
    table["offsets"] = dict(sorted(calibration.offsets.items()))
    if calibration.anchored is not None:
        table["anchored"] = calibration.anchored.to_table()
    return _text(table)


def _text(table: Sheet) -> str:
    """JSON with one entry a line, so that a change shows what moved."""
    lines = []
    for key, value in table.items():
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items())
            lines.append(f"{json.dumps(key)}: {{\n{inner}\n}}")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{" + ",\n".join(lines) + "}\n"
