"""Turn measured rows of servers under load into cases: every metric of a row beside what its simulation gives.

Steps are priced by the shipped parameters, which no such row took part in; the one number that rows gave is the time
of the front end. Intervals are residuals of other configurations in the bundled table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ridgeline.calibrate.truth.csv_cells import Skipped
from ridgeline.calibrate.truth.rows import TRUTH, Row
from ridgeline.calibrate.truth.serving_row import THROUGHPUT, ServingRow, serving_row
from ridgeline.core.errors import InputError, MissingNumber
from ridgeline.serving.deployment import Priced, instances_of, unservable
from ridgeline.serving.metrics import ServingMetrics
from ridgeline.serving.serving_prediction import FRONT_END_S, served_by

SERVING = "serving.csv"
RESIDUALS = TRUTH / "serving_residuals.json"
MILLI = 1e-3
COVERED = (0.05, 0.95)
WIDE = math.log(2.0)  # half a width, in logarithms, of what the bundled rows do not tell
FEWEST = 4  # residuals of other configurations from which an interval is taken
PERCENTILES = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCase:
    """One metric of a row: measured and predicted in the column's unit, and where nine of ten are expected."""

    row: Row
    metric: str
    measured: float
    predicted: float
    low: float
    high: float
    assumptions: tuple[str, ...]


def serving_cases(
    rows: Sequence[Row], priced: Priced | None = None
) -> tuple[tuple[ServingCase, ...], tuple[Skipped, ...]]:
    """The cases of a table, and the rows that are refused, each with its reason."""
    cases: list[ServingCase] = []
    skipped: list[Skipped] = []
    for row in rows:
        read = serving_row(row)
        found = read if isinstance(read, Skipped) else predict_row(read, priced)
        if isinstance(found, Skipped):
            skipped.append(found)
        else:
            assert isinstance(read, ServingRow)
            cases += _cases(read, found)
    return tuple(cases), tuple(skipped)


def predict_row(read: ServingRow, priced: Priced | None = None) -> Mapping[str, float] | Skipped:
    """What is predicted for a row, by column and in its unit; or why nothing is."""
    try:
        instances = instances_of(read.scenario, priced)
        reasons = tuple(unservable(instances, read.requests))
        if reasons:
            return Skipped(id=read.row.id, reason="; ".join(map(str, reasons))[:300])
        found = served_by(read.scenario, instances, read.requests)
    except (InputError, MissingNumber) as wrong:
        return Skipped(id=read.row.id, reason=str(wrong).replace("\n", "; ")[:300])
    return dict(_columns(read, found.metrics))


def _columns(read: ServingRow, told: ServingMetrics) -> Iterator[tuple[str, float]]:
    before = FRONT_END_S if read.queued else 0.0  # where TTFT counts from the queue, the front end is not in it
    for name, spread in (("ttft", told.ttft), ("tpot", told.tpot), ("e2e", told.e2e)):
        less = 0.0 if name == "tpot" else before
        yield f"{name}_mean_ms", (spread.mean - less) / MILLI
        for one in PERCENTILES:
            yield f"{name}_p{one:g}_ms", (spread.percentiles[one] - less) / MILLI
    yield "x_tpot_ms", told.tpot.mean / MILLI
    each = read.printed_tokens or told.output_tokens / max(told.requests, 1)
    yield THROUGHPUT, told.requests_per_s * each


def _cases(read: ServingRow, predicted: Mapping[str, float]) -> Iterator[ServingCase]:
    for metric, measured in read.measured.items():
        value = predicted[metric]
        low, high = around(metric, read.row.group)
        yield ServingCase(
            row=read.row,
            metric=metric,
            measured=measured,
            predicted=value,
            low=value * low,
            high=value * high,
            assumptions=read.scenario.assumptions,
        )


def around(metric: str, group: str) -> tuple[float, float]:
    """Low and high about a prediction of 1: quantiles of measured / predicted in other configurations."""
    found = [math.log(ratio) for other, ratio in _residuals().get(metric, ()) if other != group and ratio > 0]
    if len(found) < FEWEST:
        return math.exp(-WIDE), math.exp(WIDE)
    low, high = np.quantile(found, COVERED)
    return math.exp(min(float(low), 0.0)), math.exp(max(float(high), 0.0))


@cache
def _residuals() -> Mapping[str, list[tuple[str, float]]]:
    """(configuration, measured / predicted) of the bundled rows without a flag, by metric."""
    if not RESIDUALS.exists():
        return {}
    stored = json.loads(RESIDUALS.read_text(encoding="utf-8"))
    return {metric: [(str(group), float(ratio)) for group, ratio in rows] for metric, rows in stored.items()}


def residuals_text(figures: Iterable[tuple[Row, str, float]]) -> str:
    """What intervals are taken from: measured / predicted by metric, of rows without a flag."""
    stored: dict[str, list[tuple[str, float]]] = {}
    for row, metric, ratio in figures:
        if not row["x_flag"]:
            stored.setdefault(metric, []).append((row.group, round(ratio, 4)))
    return json.dumps(stored, indent=1) + "\n"
