"""Measured peak memory beside the predicted one, and the columns that say what an optimizer keeps."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import ridgeline
from ridgeline.calibrate.truth.row_scenario import to_scenario
from ridgeline.calibrate.truth.rows import Row, read_rows
from ridgeline.calibrate.validate import validate
from ridgeline.calibrate.validation import COLUMN, peak_of
from ridgeline.plan.scenario import Scenario

WITNESS = Path(__file__).parents[3] / "benchmarks" / "witness_h200.csv"
GIB = 2**30


def scenario_of(row: Row) -> Scenario:
    made = to_scenario(row)
    assert isinstance(made, Scenario), made
    return made


def test_optimizer_columns_halve_the_state() -> None:
    """Adam in bf16 without a master copy keeps 4 bytes a parameter beside weights and gradients, not 12."""
    row = next(row for row in read_rows(WITNESS) if row.id == "llama3-8b-1x4096-compiled")
    said = scenario_of(row).workload.optimizer
    silent = Row(id=row.id, table=row.table, cells={k: v for k, v in row.cells.items() if "x_optimizer" not in k})
    less, more = ridgeline.predict(scenario_of(row)), ridgeline.predict(scenario_of(silent))
    assert (said.states.id, said.master) == ("bf16", None)
    assert isinstance(less, ridgeline.Prediction)
    assert isinstance(more, ridgeline.Prediction)
    parameters = float(row["params_b"]) * 1e9
    assert more.memory.peak_bytes - less.memory.peak_bytes == pytest.approx(8 * parameters, rel=0.05)


@pytest.mark.parametrize("cell", ["", "much", "nan", "-1", "0", "inf"])
def test_a_peak_that_says_nothing_is_left_out(cell: str) -> None:
    row = read_rows(WITNESS)[0]
    silent = Row(id=row.id, table=row.table, cells={**row.cells, COLUMN: cell})
    assert peak_of(silent, scenario_of(silent)) is None


def test_validation_reports_memory(tmp_path: Path) -> None:
    """A row whose measured peak is set to half its prediction is 100 % over; the other one exact."""
    rows = [row for row in read_rows(WITNESS) if row["model_name"] == "gpt3-350m"][:2]
    table = tmp_path / "mine.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0].cells))
        writer.writeheader()
        for row, share in zip(rows, (1.0, 0.5), strict=True):
            found = ridgeline.predict(scenario_of(row))
            assert isinstance(found, ridgeline.Prediction)
            writer.writerow({**row.cells, COLUMN: float(found.memory.allocated_bytes) * share})
    memory = validate(table).memory
    assert memory is not None
    assert (memory.n, memory.short) == (2, 0.0)
    assert memory.mape == pytest.approx(0.5)


def test_own_rows_state_their_peak_in_their_notes() -> None:
    found = validate(where=["source=h200"]).memory
    assert found is not None
    assert found.n == 7
    assert found.mape < 0.04


def test_the_witness_is_predicted_whole() -> None:
    """Runs that took no part in any fit: nothing skipped, and a prediction that is off by a tenth on average fails."""
    found = validate(WITNESS)
    assert len(found.cases) == 20
    assert not found.skipped
    assert not any(case.cross_validated for case in found.cases)
    assert found.errors.mape is not None
    assert found.errors.mape < 0.10
    assert found.memory is not None
    assert found.memory.n == 20
    assert found.memory.mape < 0.10
