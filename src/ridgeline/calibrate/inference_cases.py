"""Turn rows of an inference table into answers: each beside its prediction, and the fit that makes them.

inference_answers(rows)     rows that took part in the fit by parameters that saw nothing of their configuration (own
                            rows apart, which are few and of one machine), all others by the shipped ones
refit_serving()             the shipped parameters, derived again from the bundled rows
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from ridgeline.calibrate.inference import PricedRun, price_run, run_columns, run_values
from ridgeline.calibrate.serving_fit import cross_validate_serving, fold_of
from ridgeline.calibrate.truth.csv_cells import Skipped
from ridgeline.calibrate.truth.inference_rows import Inference, inference_of
from ridgeline.calibrate.truth.rows import TRUTH, Row, read_table
from ridgeline.core.files import write_text
from ridgeline.cost.calibration import (
    SHIPPED_SERVING,
    Calibration,
    ServingCalibration,
    default_calibration,
    shipped_serving,
)

INFERENCE = "inference.csv"
WIDE = (0.4, 2.5)  # around a prediction of a kind that no row was fitted of


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One row beside its prediction, in the metric's own unit."""

    item: Inference
    predicted: float
    low: float
    high: float
    cross_validated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedServing:
    """What ships: the parameters of every fold, rows that were fitted, and quantiles of their residuals by kind."""

    folds: tuple[ServingCalibration, ...] = ()
    fitted: frozenset[str] = frozenset()
    spread: Mapping[str, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))


@cache
def shipped_folds() -> ShippedServing:
    """The folds that ship, none before there are any."""
    data: Any = json.loads(SHIPPED_SERVING.read_text(encoding="utf-8")) if SHIPPED_SERVING.exists() else {}
    return ShippedServing(
        folds=tuple(ServingCalibration(offsets=one) for one in data.get("folds", ())),
        fitted=frozenset(data.get("fitted", ())),
        spread={kind: (low, high) for kind, (low, high) in data.get("spread", {}).items()},
    )


def priced_runs(rows: Sequence[Row], calibration: Calibration | None = None) -> tuple[list[PricedRun], list[Skipped]]:
    """Rows as priced runs, and those that cannot be predicted with their reasons."""
    used = calibration or default_calibration()
    runs: list[PricedRun] = []
    skipped: list[Skipped] = []
    for row in rows:
        item = inference_of(row)
        if isinstance(item, Skipped):
            skipped.append(item)
            continue
        made = price_run(item, used)
        reason = made if isinstance(made, str) else made.contradiction
        if reason or isinstance(made, str):
            skipped.append(Skipped(id=row.id, reason=reason))
        else:
            runs.append(made)
    return runs, skipped


def kind_of_run(run: PricedRun) -> str:
    """What residuals are told apart by: the kind of row and what it measured."""
    return f"{run.item.kind}/{run.item.asked}"


def inference_answers(
    rows: Sequence[Row], calibration: Calibration | None = None
) -> tuple[list[Answer], list[Skipped]]:  # fmt: skip
    """Every row that can be predicted beside its prediction, and the rest with the reason."""
    runs, skipped = priced_runs(rows, calibration)
    known = shipped_folds()
    held = [run.item.row.id in known.fitted and run.item.kind != "own" and bool(known.folds) for run in runs]
    fold = [fold_of(run.item.group) if mine else -1 for run, mine in zip(runs, held, strict=True)]
    predicted = np.zeros(len(runs))
    for place in set(fold):
        mine = np.array([one == place for one in fold])
        own = [run for run, one in zip(runs, mine, strict=True) if one]
        serving = shipped_serving() if place < 0 else known.folds[place]
        predicted[mine] = run_columns(own).predicted(run_values(own, serving))
    answers = []
    for run, value, crossed in zip(runs, predicted.tolist(), held, strict=True):
        low, high = known.spread.get(kind_of_run(run), WIDE)
        answers.append(
            Answer(item=run.item, predicted=value, low=value * low, high=value * high, cross_validated=crossed)
        )
    return answers, skipped


def refit_serving() -> dict[str, Any]:
    """Fit the bundled rows, write the parameters that ship, and say what they are worth."""
    _, rows = read_table(TRUTH / INFERENCE, ("inference",))
    runs, skipped = priced_runs(rows)
    found = cross_validate_serving(runs, f"{len(runs)} rows of {INFERENCE}")
    measured = np.array([run.item.measured for run in runs])
    own = run_columns(runs).predicted(run_values(runs, found.full))
    predicted = np.where([run.item.kind == "own" for run in runs], own, found.predicted)
    off = np.log(predicted / measured)
    kinds = np.array([kind_of_run(run) for run in runs])
    spread, errors = {}, {}
    for kind in sorted(set(kinds.tolist())):
        mine = off[kinds == kind]
        least, most = np.quantile(mine, [0.05, 0.95])
        margin = 1 + 3 / len(mine)
        spread[kind] = [round(float(np.exp(-most * margin)), 4), round(float(np.exp(-least * margin)), 4)]
        errors[kind] = {"n": len(mine), "mape": round(float(np.abs(np.exp(mine) - 1).mean()), 4)}
    table = {
        "source": found.full.source,
        "offsets": dict(sorted(found.full.offsets.items())),
        "spread": spread,
        "errors": errors,
        "fitted": [run.item.row.id for run in runs],
        "folds": [dict(sorted(one.offsets.items())) for one in found.folds],
    }
    write_text(SHIPPED_SERVING, json.dumps(table, indent=1) + "\n")
    return {"rows": len(rows), "predicted": len(runs), "skipped": len(skipped), "errors": errors}
