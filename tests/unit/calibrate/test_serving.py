"""Rows of servers under load: every one predicted or refused with a reason, and how near the unflagged ones are."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest

from ridgeline.calibrate.serving import (
    RESIDUALS,
    ServingRow,
    metric_interval,
    serving_row,
    validate_serving,
)
from ridgeline.calibrate.truth.rows import TRUTH, Row, Skipped, kind_of, read_table
from ridgeline.calibrate.validate import validate
from ridgeline.calibrate.validation import Validation, ValidationReport
from ridgeline.core.encode import to_json
from tools.figures.serving import residuals_text


@pytest.fixture(scope="module")
def bundled() -> Validation:
    return validate("serving")


def rows() -> tuple[Row, ...]:
    kind, found = read_table(TRUTH / "serving.csv")
    assert kind == "serving"
    return found


def test_the_table_is_known_by_its_columns() -> None:
    assert kind_of(rows()[0].cells) == "serving"


def test_every_row_is_predicted_or_refused_with_a_reason(bundled: Validation) -> None:
    predicted = {case.row.id for case in bundled.cases}
    refused = {item.id: item.reason for item in bundled.skipped}
    assert predicted | set(refused) == {row.id for row in rows()}
    assert not predicted & set(refused)
    assert all(refused.values())
    flags = {row.id: row["x_flag"] for row in rows()}
    assert not [name for name in refused if not flags[name]]  # no unflagged row


def test_unflagged_rows_cold(bundled: Validation) -> None:
    """The targets are medians of 12 % (E2E) and 20 % (TTFT); a little room for other calibrations of steps."""
    for metric, most in (("e2e_mean_ms", 0.13), ("ttft_mean_ms", 0.20), ("x_tpot_ms", 0.13)):
        off = [abs(case.residual) for case in bundled.cases if case.metric == metric and not case.row["x_flag"]]
        assert len(off) == 19
        assert float(np.median(off)) < most, metric


def test_the_sheet_has_a_case_for_every_metric(bundled: Validation) -> None:
    sheet = to_json(ValidationReport(validation=bundled))
    case = sheet["cases"][0]
    assert {"id", "metric", "measured", "predicted", "low", "high"} <= set(case)
    columns = set(rows()[0].cells)
    assert {one["metric"] for one in sheet["cases"]} <= columns
    assert all(one["low"] <= one["predicted"] <= one["high"] for one in sheet["cases"])


def test_intervals_are_those_of_other_configurations() -> None:
    assert RESIDUALS.exists()
    low, high = metric_interval("e2e_mean_ms", "h100|llama2-70b|tp4|general")
    assert 0.5 < low <= 1 <= high < 2
    assert metric_interval("no such metric", "") == pytest.approx((0.5, 2.0))


def changed(**cells: str) -> Row:
    row = next(row for row in rows() if row["x_model"] == "codellama-34b" and not row["x_flag"])
    return Row(id="mine", table="mine.csv", cells=MappingProxyType(dict(row.cells) | cells))


@pytest.mark.parametrize(
    "cells",
    [
        {"x_rate": ""}, {"x_rate": "many"}, {"x_rate": "-1"}, {"x_rate": "nan"}, {"x_osl": "0"}, {"x_isl": ""},
        {"x_chip": ""}, {"x_chip": "h101"}, {"x_model": "llama9"}, {"tp": "3"}, {"tp": "x"}, {"n": "0"},
        {"engine": "TGI 3"}, {"x_precision": "fp5"}, {"x_gpu_mem_util": "7"}, {"x_isl": "1e9"},
        {"x_max_num_seqs": "zero"}, {"x_model": "llama3.1-405b"}, {"e2e_mean_ms": "?"},
    ],
)  # fmt: skip
def test_rows_of_strangers_never_end_in_a_traceback(cells: dict[str, str]) -> None:
    found = validate_serving([changed(**cells)])
    assert bool(found.cases) != bool(found.skipped)
    assert all(item.reason for item in found.skipped)


def test_prompts_that_come_again_are_found_in_the_cache() -> None:
    read = serving_row(changed())
    assert isinstance(read, ServingRow)
    assert len({request.prompt for request in read.requests}) == 11 * 4
    other = serving_row(changed(workload="random prompts", x_workload="mine"))
    assert isinstance(other, ServingRow)
    assert len({request.prompt for request in other.requests}) == len(other.requests)
    assert not isinstance(serving_row(changed(x_rate="2;4")), Skipped)


def test_stored_residuals_are_those_of_the_shipped_parameters(bundled: Validation) -> None:
    figures = [(case.row, case.metric, case.measured_s / case.predicted_s) for case in bundled.cases]
    assert residuals_text(figures) == RESIDUALS.read_text(), "run `python -m tools figures serving`"
