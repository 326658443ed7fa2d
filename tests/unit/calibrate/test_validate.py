"""Predictions held against rows: bundled ones without their own group, strangers with the shipped parameters."""

from __future__ import annotations

import csv
import doctest
import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from command import run

import ridgeline
from ridgeline.calibrate import folds, validation
from ridgeline.calibrate import validate as module
from ridgeline.calibrate.folds import (
    FittedParameters,
    Folds,
    bundled_rows,
    dataset_of,
    folds_from,
    is_bundled,
    shipped_parameters,
)
from ridgeline.calibrate.next_measurement import NextMeasurements
from ridgeline.calibrate.truth.rows import Row
from ridgeline.calibrate.validate import validate, validation_of
from ridgeline.calibrate.validation import ValidationReport, likely, runs_known
from ridgeline.core.encode import to_json
from ridgeline.core.errors import InputError
from ridgeline.cost.calibration import Calibration
from ridgeline.report import accuracy as tables
from ridgeline.report import validate as sheets
from ridgeline.report import validate as validate_html
from ridgeline.report.validate import worst
from ridgeline.report.validate_html import validation_page
from ridgeline.serving.measured import Replay
from ridgeline.sim.prediction_interval import Residual

KEYS = {
    "kind", "rows", "predicted", "skipped", "mape", "median_ape", "p90_ape", "bias", "coverage90", "groups", "cases",
    "memory", "sets", "unknown_engines",
}  # fmt: skip
ID = "h200-003"


def write(path: Path, rows: Iterable[dict[str, str]]) -> Path:
    """A table in the bundled schema."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(bundled_rows()[ID].cells))
        writer.writeheader()
        writer.writerows(rows)
    return path


def cells(**changes: str) -> dict[str, str]:
    return {**bundled_rows()[ID].cells, "id": "mine-1", **changes}


@pytest.mark.parametrize(
    "tested",
    [folds, module, validation, tables, sheets, validate_html],
    ids=lambda tested: tested.__name__,
)
def test_doctests(tested: object) -> None:
    assert doctest.testmod(tested).failed == 0  # type: ignore[arg-type]


class TestWhoIsPredictedHow:
    def test_a_stranger_gets_the_shipped_parameters(self, tmp_path: Path) -> None:
        found = validate(write(tmp_path / "mine.csv", [cells()]))
        assert [case.cross_validated for case in found.cases] == [False]
        table = dataset_of([Row(id="mine-1", table="mine.csv", cells=cells())])
        assert found.cases[0].predicted_s == pytest.approx(float(table.predict(shipped_parameters().full)[0]))

    def test_a_bundled_row_gets_the_fold_that_never_saw_it(self, tmp_path: Path) -> None:
        row = bundled_rows()[ID]
        found = validate(write(tmp_path / "same.csv", [dict(row.cells)]))
        fold = shipped_parameters().folds.without(row.group)
        assert fold is not None
        assert found.cases[0].cross_validated
        assert found.cases[0].predicted_s == pytest.approx(float(dataset_of([row]).predict(fold)[0]))
        assert found.cases[0].predicted_s == validate(where=[f"id={ID}"]).cases[0].predicted_s

    def test_one_changed_cell_makes_a_stranger(self) -> None:
        row = bundled_rows()[ID]
        assert is_bundled(Row(id=ID, table="x", cells={name: text for name, text in row.cells.items() if text}))
        assert not is_bundled(Row(id=ID, table="x", cells={**row.cells, "measured_value": "1"}))
        assert not is_bundled(Row(id="another", table="x", cells=row.cells))

    def test_folds_never_saw_their_groups(self) -> None:
        """Two groups under two folds: moving the fold of one moves the prediction of that one only."""
        first, second = bundled_rows()["h200-000"], bundled_rows()["h200-005"]
        assert first.group != second.group
        slow, fast = Calibration(offsets={"matmul_wide": -2.0}), Calibration(offsets={"matmul_wide": 2.0})
        made = Folds(calibrations=(slow, fast), left_out={first.group: 0, second.group: 1})
        table = dataset_of([first, second])
        found = validation_of(table, FittedParameters(full=Calibration(offsets={}), folds=made))
        expected = [table.predict(slow)[0], table.predict(fast)[1]]
        assert [case.predicted_s for case in found.cases] == pytest.approx(expected)

    def test_its_own_residual_is_not_in_its_interval(self) -> None:
        row = bundled_rows()[ID]
        others = [("other", Residual(chip="h200-sxm", engine="torch-compile", residual=0.0))] * 20
        own = [(row.group, Residual(chip="h200-sxm", engine="torch-compile", residual=3.0))] * 20
        parameters = FittedParameters(full=Calibration(offsets={}), residuals=(*others, *own))
        case = validation_of(dataset_of([row]), parameters).cases[0]
        assert case.low_s == pytest.approx(case.high_s)
        stranger = Row(id="mine", table="x", cells=row.cells)
        wide = validation_of(dataset_of([stranger]), parameters).cases[0]
        assert wide.low_s < 0.5 * wide.high_s

    def test_folds_survive_their_file(self) -> None:
        told = shipped_parameters().folds.to_table()
        again = folds_from(json.loads(json.dumps(told)))
        assert again.left_out == shipped_parameters().folds.left_out
        for old, new in zip(shipped_parameters().folds.calibrations, again.calibrations, strict=True):
            assert {name: x for name, x in old.offsets.items() if x} == {n: x for n, x in new.offsets.items() if x}


class TestHostileRows:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"measured_value": "nan", "x_step_time_s": ""}, "measured_value"),
            ({"measured_value": "-3", "x_step_time_s": ""}, "measured_value"),
            ({"measured_value": "1e30", "x_step_time_s": ""}, "measured_value"),
            ({"x_step_time_s": "1e30"}, "not believable"),
            ({"hidden": "1e30"}, "hidden"),
            ({"layers": "-2"}, "layers"),
            ({"gpus": "nan"}, "gpus"),
            ({"x_chip": "abacus"}, "x_chip"),
            ({"x_chip": "", "accelerator": "abacus"}, "accelerator"),
            ({"model_name": "nobody knows", "hidden": ""}, "hidden"),
            ({"seq_len": ""}, "seq_len"),
            ({"x_chip": "a100-80-sxm", "precision": "nvfp4"}, "nvfp4"),
            ({"measured_metric": "feelings", "x_step_time_s": ""}, "measured_metric"),
        ],
    )
    def test_skipped_with_a_reason(self, changes: dict[str, str], reason: str, tmp_path: Path) -> None:
        found = validate(write(tmp_path / "mine.csv", [cells(**changes)]))
        assert found.cases == ()
        assert reason in found.skipped[0].reason
        sheet = to_json(ValidationReport(validation=found))
        assert (sheet["rows"], sheet["predicted"], sheet["mape"]) == (1, 0, None)
        json.dumps(sheet, allow_nan=False)
        assert "No row could be predicted" in validation_page(found, "mine.csv")

    def test_one_bad_row_spoils_nothing(self, tmp_path: Path) -> None:
        found = validate(write(tmp_path / "mine.csv", [cells(), cells(id="mine-2", gpus="0")]))
        assert [case.row.id for case in found.cases] == ["mine-1"]
        assert [item.id for item in found.skipped] == ["mine-2"]

    def test_an_empty_table(self, tmp_path: Path) -> None:
        sheet = to_json(ValidationReport(validation=validate(write(tmp_path / "none.csv", []))))
        assert (sheet["rows"], sheet["coverage90"], sheet["cases"]) == (0, None, [])

    def test_serving_runs_are_told_by_their_columns(self, tmp_path: Path) -> None:
        path = tmp_path / "other.csv"
        path.write_text("id,accelerator,model,isl,osl,metric,value\na,b,c,1,1,us,1\n", encoding="utf-8")
        found = validate(path)
        assert (found.kind, len(found.cases)) == ("inference", 0)
        assert found.skipped[0].reason.startswith("metric: us is not predicted")

    def test_other_tables_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "other.csv"
        path.write_text("id,colour\na,red\n", encoding="utf-8")
        with pytest.raises(InputError, match="a table without"):
            validate(path)


class TestSheet:
    def test_keys_and_sums(self) -> None:
        found = validate(where=["source=h200,automodel"])
        sheet = to_json(ValidationReport(validation=found))
        assert set(sheet) == KEYS
        assert sheet["kind"] == "training"
        assert sheet["rows"] == sheet["predicted"] + len(sheet["skipped"])
        for case in sheet["cases"]:
            assert set(case) == {
                "id",
                "measured",
                "predicted",
                "residual",
                "low",
                "high",
                "cross_validated",
                "peak_memory_bytes",
            }
            assert case["residual"] == pytest.approx(case["predicted"] / case["measured"] - 1)
            assert 0 < case["low"] <= case["predicted"] <= case["high"]
        off = [abs(case["residual"]) for case in sheet["cases"]]
        assert sheet["mape"] == pytest.approx(math.fsum(off) / len(off))
        for grouping in ("accelerator", "source", "framework", "arch"):
            groups = sheet["groups"][grouping].values()
            assert sum(group["n"] for group in groups) == sheet["predicted"]
            assert math.fsum(group["n"] * group["mape"] for group in groups) == pytest.approx(math.fsum(off))

    def test_parts_sum_to_the_prediction(self) -> None:
        for case in validate(where=["source=h200,tpu"]).cases:
            assert math.fsum(case.parts.values()) == pytest.approx(case.predicted_s)

    def test_worst_rows_have_reasons(self) -> None:
        found = validate(where=["source=mlperf"])
        listed = worst(found)
        assert len(listed) == 10
        assert all(reason for _, reason in listed)
        sizes = [abs(case.residual) for case, _ in listed]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] == max(abs(case.residual) for case in found.cases)

    def test_reasons_read_the_breakdown(self) -> None:
        case = validate(where=[f"id={ID}"]).cases[0]
        known = runs_known(shipped_parameters())
        told = {name: replace(case, parts={name: 9.0, "matmul": 1.0}) for name in ("ep", "kernel", "bubble")}
        many = known + Counter({case.chip: 100, case.engine: 100})
        assert likely(told["ep"], many) == "expert dispatch is 90% of the prediction"
        assert "host-bound small model" in likely(told["kernel"], many)
        assert "bubble" in likely(told["bubble"], many)
        assert "few measured runs" in likely(case, known) or known[case.chip] >= validation.FEW
        assert "no measured runs" in likely(case, Counter())
        assumed = replace(case, assumptions=("recompute = none: unknown in the table",))
        assert likely(assumed, many).startswith("recompute was assumed")


class TestPage:
    def test_nothing_is_fetched_and_text_is_escaped(self, tmp_path: Path) -> None:
        evil = "<script>alert(1)</script>\x1b&\"'"
        found = validate(write(tmp_path / "mine.csv", [cells(id=evil, arch=evil), cells(id=evil, gpus="0")]))
        made = validation_page(found, evil)
        assert not re.search(r"https?:|//[a-z]|<script|<link|<img|url\(|\x1b", made)
        assert made.count("<svg") == 6
        assert "&lt;script&gt;" in made

    def test_every_case_is_a_dot(self) -> None:
        found = validate(where=["source=h200"])
        assert validation_page(found, "x").count("<circle") == 7 * 5


class TestCommand:
    def test_json_and_html(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table, made = write(tmp_path / "mine.csv", [cells()]), tmp_path / "page.html"
        code, out, _ = run(capsys, monkeypatch, "validate", str(table), "--json", "--html", str(made))
        assert code == 0
        assert set(json.loads(out)) == {"schema_version", *KEYS}
        assert made.read_text(encoding="utf-8").startswith("<!doctype html>")

    def test_tables(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        code, out, _ = run(capsys, monkeypatch, "validate", "--where", "source=h200,ascend")
        assert code == 0
        for text in ("h200-sxm", "ascend", "furthest off", "inside the 90 % interval"):
            assert text in out

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--where", "colour=red"], "colour"),
            (["--where", "x_chop=h100-sxm"], "x_chip"),
            (["--where", "gpus"], "column=value"),
            (["absent.csv"], "no such file"),
            (["--where", "source=h200", "--html", "no/such/folder/x.html"], "folder"),
        ],
    )
    def test_bad_input(
        self,
        arguments: list[str],
        message: str,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        code, _, err = run(capsys, monkeypatch, "validate", *arguments)
        assert code == 2
        assert message in err
        assert "Traceback" not in err

    def test_validating_needs_no_scipy(self) -> None:
        code = (
            "import sys; sys.modules['scipy'] = None\n"
            "import ridgeline; assert len(ridgeline.validate(where=['source=h200']).cases) == 7"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def test_library_has_the_verb(self) -> None:
        """The function takes every kind of file that the command does."""
        recording = Path(__file__).parents[2] / "data" / "serving" / "priority_prefix.json.gz"
        assert isinstance(ridgeline.validate(recording), Replay)
        assert isinstance(ridgeline.validate(next_="examples/llama3-70b-64xh100.toml"), NextMeasurements)
        rows = ["source=h200"]
        assert ridgeline.validate(where=rows) == validate(where=rows)
        with pytest.raises(InputError, match="--next SCENARIO"):
            ridgeline.validate(anchor="runs.csv")
