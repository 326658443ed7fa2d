"""The loop closes: residuals of an explanation are measured runs that `validate` and `fit --with` read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from traces import Recipe, make, write
from typer.testing import CliRunner

from ridgeline.calibrate.anchor import write_residuals
from ridgeline.calibrate.cross_validate import configuration, fit_with
from ridgeline.calibrate.explain import explain
from ridgeline.calibrate.truth.row_scenario import to_scenario
from ridgeline.calibrate.truth.rows import read_rows
from ridgeline.calibrate.validate import validate
from ridgeline.cli.main import command_line
from ridgeline.core.errors import InputError
from ridgeline.cost.calibration import Calibration
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import read_scenario
from ridgeline.sim.predict_step import predict
from ridgeline.sim.prediction import Prediction


@pytest.fixture
def residuals(scenario: Path, tmp_path: Path) -> Path:
    """Steps of 24 products of 3 ms and their company: about three times slower than predicted."""
    trace = write(make(Recipe(layers=24, matmul_us=3000.0)), tmp_path / "run.json")
    write_residuals(explain(scenario, trace, force=True), tmp_path / "residuals.csv")
    return tmp_path / "residuals.csv"


def test_a_residual_file_is_a_measured_run(scenario: Path, residuals: Path, tmp_path: Path) -> None:
    [row] = read_rows(residuals)
    built = to_scenario(row)
    assert isinstance(built, Scenario)
    asked = read_scenario(scenario)
    assert (built.model, built.plan, built.workload) == (asked.model, asked.plan, asked.workload)
    measured = explain(scenario, tmp_path / "run.json", force=True).measured_ns / 1e9
    [case] = validate(residuals).cases
    assert case.measured_s == pytest.approx(measured, abs=1e-6)
    found = predict(asked)
    assert isinstance(found, Prediction)
    assert case.predicted_s == pytest.approx(found.step_time_s, rel=1e-6)
    assert not case.cross_validated


def test_settings_and_files_are_written_out(scenario: Path, tmp_path: Path, residuals: Path) -> None:
    """A scenario that names a file in its folder stays whole when the residuals go elsewhere."""
    (tmp_path / "mine.toml").write_text('base = "llama3.2-1b"\nlayers = 2\n', encoding="utf-8")
    path = tmp_path / "named.toml"
    path.write_text(
        scenario.read_text(encoding="utf-8").replace('{ base = "llama3.2-1b", layers = 4 }', '"mine.toml"'),
        encoding="utf-8",
    )
    done = explain(path, tmp_path / "run.json", settings=["workload.seq=1024"], force=True)
    (tmp_path / "away").mkdir()
    write_residuals(done, tmp_path / "away" / "r.csv")
    (tmp_path / "mine.toml").unlink()
    [row] = read_rows(tmp_path / "away" / "r.csv")
    built = to_scenario(row)
    assert isinstance(built, Scenario)
    assert (built.model.layers, built.workload.seq) == (2, 1024)


def test_two_runs_in_one_file_stay_two(residuals: Path) -> None:
    text = residuals.read_text(encoding="utf-8")
    lines = text.splitlines()
    other = [line.replace("own-run", "own-other") for line in lines[1:]]
    residuals.write_text("\n".join([*lines, *other]) + "\n", encoding="utf-8")
    assert [row.id for row in read_rows(residuals)] == ["own-run", "own-other"]


def test_a_path_in_a_foreign_table_is_refused(residuals: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("{}", encoding="utf-8")
    line = f'own-x,m,h100-sxm,1,torch-eager,forward,matmul,1,1,0,0,,,model,t,"{{""model"": ""{secret}""}}"'
    head = residuals.read_text(encoding="utf-8").splitlines()[0]
    residuals.write_text(f"{head}\n{line}\n", encoding="utf-8")
    [skipped] = validate(residuals).skipped
    assert "inside the file's own folder" in skipped.reason


@pytest.mark.parametrize("seconds", ["", "fast", "nan", "-1", "inf"])
def test_seconds_that_are_none_are_refused(residuals: Path, seconds: str) -> None:
    head = residuals.read_text(encoding="utf-8").splitlines()[0]
    residuals.write_text(f"{head}\nown-x,m,c,1,e,forward,matmul,1,{seconds},0,0,,,model,t,{{}}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"measured_s.*expected seconds"):
        read_rows(residuals)


def test_a_fit_with_residuals_moves_towards_them(residuals: Path, scenario: Path, tmp_path: Path) -> None:
    """The run is far slower than predicted: fitted to it the prediction is slower, held out it is not."""
    done = CliRunner().invoke(
        command_line(), ["fit", "--with", str(residuals), "--quick", "-o", str(tmp_path / "mine.json"), "--json"]
    )
    assert done.exit_code == 0, done.output
    sheet = json.loads(done.stdout)
    [case] = sheet["cases"]
    assert case["measured_s"] > case["after_s"] > case["before_s"]
    assert abs(case["residual"]["held_out_s"]) > abs(case["residual"]["after_s"])
    calibration = Calibration.read(tmp_path / "mine.json")
    found = predict(read_scenario(scenario), calibration)
    assert isinstance(found, Prediction)
    assert found.step_time_s == pytest.approx(case["after_s"], rel=1e-6)
    again = explain(scenario, tmp_path / "run.json", calibration=tmp_path / "mine.json", force=True)
    assert again.predicted_ns / 1e9 == pytest.approx(case["after_s"], rel=0.01)
    told = CliRunner().invoke(
        command_line(), ["predict", str(scenario), "--calibration", str(tmp_path / "mine.json"), "--json"]
    )
    assert json.loads(told.stdout)["step_time_s"] == pytest.approx(case["after_s"], rel=1e-6)


def test_bundled_runs_of_the_same_configuration_are_left_out_together() -> None:
    """A trace of the example is a run of h200-000: one must not be fitted where the other is held out."""
    rows = {row.id: row for row in read_rows()}
    eager, compiled = (to_scenario(rows[id]) for id in ("h200-000", "h200-001"))
    assert isinstance(eager, Scenario)
    assert isinstance(compiled, Scenario)
    mine = configuration(read_scenario("examples/llama3.2-1b-1xh200.toml"))
    assert mine == configuration(eager) != configuration(compiled)


def test_a_table_without_usable_rows_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(
        "id,model_name,gpus,seq_len,global_batch,measured_metric,measured_value\na,nobody,8,8,8,step_time_s,1\n",
        encoding="utf-8",
    )
    with pytest.raises(InputError, match="at least one run"):
        fit_with(table)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"source": "x", "offsets": []}',
        '{"source": "x", "offsets": {"nothing": 1}}',
        '{"source": "x", "offsets": {"memory": true}}',
        '{"source": "x", "offsets": {"memory": 1e9}}',
    ],
)
def test_a_calibration_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="expected"):
        Calibration.read(path)


def test_an_output_without_rows_of_ones_own_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(command_line(), ["fit", "-o", str(tmp_path / "x.json")])
    assert isinstance(done.exception, InputError)
