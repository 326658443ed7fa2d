"""Fitting: it finds what was planted, gives the same twice, and leaves out what it says it leaves out."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from command import run

from ridgeline.calibrate import cross_validate as refitting
from ridgeline.calibrate import fit as fitting
from ridgeline.calibrate.cross_validate import Refit, refit
from ridgeline.calibrate.fit import Array, OffsetLayout, calibration_of, fit, fold_of, layout_of
from ridgeline.calibrate.folds import Dataset, bundled_rows, dataset_of, shipped_folds
from ridgeline.calibrate.truth.rows import Row
from ridgeline.calibrate.validation import differences
from ridgeline.cost.calibration import PARAMETERS, SHIPPED_CALIBRATION, Calibration, owners
from ridgeline.report import accuracy as tables

# slower products, not faster ones: an A100 is little short of what a matrix unit reaches at best already
PLANTED = {"matmul_wide": -0.9, "traffic": 0.5, "fixed": -0.5}


@cache
def some() -> tuple[Row, ...]:
    """Runs of one chip under one engine, models of many sizes."""
    rows = [row for row in bundled_rows().values() if row.source == "llmfoundry" and row.chip == "a100-80-sxm"]
    return tuple(rows[::3][:16])


@cache
def planted() -> Dataset:
    """The same runs, as if measured on a machine with known parameters."""
    table = dataset_of(some())
    return replace(table, measured_s=table.predict(Calibration(offsets=PLANTED)))


def everything(table: Dataset) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.ones(len(table.rows), dtype=np.bool_)


def test_it_finds_what_was_planted() -> None:
    table = planted()
    layout, offsets = fit(table, everything(table))
    found, truth = calibration_of(layout, offsets, "test"), Calibration(offsets=PLANTED)
    assert table.predict(found) == pytest.approx(table.measured_s, rel=0.03)
    where = (table.scenarios[0].system.chip, table.scenarios[0].engine)
    planted_value, default = truth.value("matmul_wide", *where), PARAMETERS["matmul_wide"].default
    assert found.value("matmul_wide", *where) == pytest.approx(planted_value, rel=0.04)
    assert abs(found.value("matmul_wide", *where) - planted_value) < 0.5 * abs(default - planted_value)


def test_a_group_that_is_switched_off_stays_at_its_defaults() -> None:
    table = planted()
    layout, offsets = fit(table, everything(table), without=frozenset({"compute"}), rounds=3)
    found = calibration_of(layout, offsets, "test")
    for name, item in PARAMETERS.items():
        if item.group == "compute":
            chip, engine = table.scenarios[0].system.chip, table.scenarios[0].engine
            expected = item.default * owners(chip, engine).known_share(name)
            assert found.value(name, chip, engine) == pytest.approx(expected, rel=1e-3)


def test_rows_left_out_have_no_say() -> None:
    """A row that is not chosen may be measured at anything: the fit stays the same."""
    table = planted()
    chosen = everything(table)
    chosen[::5] = False
    wrong = replace(table, measured_s=np.where(chosen, table.measured_s, 1000.0))
    first, second = (calibration_of(*fit(one, chosen, rounds=4), "test").offsets for one in (table, wrong))
    assert first == second


def test_folds_are_fixed_by_the_group() -> None:
    assert fold_of("3cc519398b") == fold_of("3cc519398b")
    shares = np.bincount([fold_of(row.group) for row in bundled_rows().values()], minlength=fitting.FOLDS)
    assert shares.min() > 0.1 * shares.sum()
    assert all(fold_of(group) == fold for group, fold in shipped_folds().left_out.items())


@cache
def quick() -> Refit:
    return refit(some()[:8], quick=True)


def test_refit_gives_the_same_twice() -> None:
    first, second = quick(), refit(some()[:8], quick=True)
    assert first.parameters == second.parameters
    assert first.residuals == second.residuals
    assert differences(first.accuracy, second.accuracy) == []
    assert {row["id"] for row in first.residuals} == {row.id for row in some()[:8]}
    assert set(first.parameters.folds.left_out) == {row.group for row in some()[:8]}


def test_progress_counts_every_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int, str, str]] = []

    def unmoved(table: Dataset, *_: object, start: Array | None = None, **__: object) -> tuple[OffsetLayout, Array]:
        layout = layout_of(table)
        return layout, np.zeros(len(layout.names)) if start is None else start

    monkeypatch.setattr(refitting, "fit", unmoved)
    found = refit(some(), progress=lambda *what: told.append(what))
    groups = {item.group for item in PARAMETERS.values()}
    assert [done for done, *_ in told] == list(range(told[0][1]))
    assert told[0][1] == 1 + fitting.FOLDS * (1 + len(groups)) + 3  # one source, one engine, one family of chips
    assert "off in the fit" in told[1][3]
    assert "off where left out" in told[-1][3]
    assert {entry["group"] for entry in found.accuracy["ablation"]} == groups
    assert all(entry["buys"] == 0 for entry in found.accuracy["ablation"])
    assert set(found.accuracy["left_out_laboratories"]["laboratories"]) == {"mosaic"}
    assert set(found.accuracy["left_out_engines"]["engines"]) == {"llm-foundry"}
    assert set(found.accuracy["left_out_families"]["families"]) == {"ampere"}


class TestCommand:
    @pytest.fixture(autouse=True)
    def few_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The verb fits some rows, once each."""
        monkeypatch.setattr(refitting, "read_rows", some)
        monkeypatch.setattr(refitting, "QUICK_ROUNDS", 1)

    def test_quick_prints_and_writes_nothing(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = SHIPPED_CALIBRATION.read_bytes()
        code, out, _ = run(capsys, monkeypatch, "fit", "--quick", "--json")
        assert code == 0
        sheet = json.loads(out)
        assert sheet["fitted"] == len(some())
        assert {item["name"] for item in sheet["parameters"]} == set(PARAMETERS)
        code, out, _ = run(capsys, monkeypatch, "fit", "--quick")
        assert "| headline, mean |" in out
        assert SHIPPED_CALIBRATION.read_bytes() == before

    def test_writing_needs_a_checkout(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(tables, "__file__", str(tmp_path / "a" / "b" / "c" / "d.py"))
        code, _, err = run(capsys, monkeypatch, "fit")
        assert code == 2
        assert "source checkout" in err

    def test_without_scipy_it_says_so(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("ridgeline.calibrate.cross_validate", "ridgeline.calibrate.fit"):
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "scipy.optimize", None)
        code, _, err = run(capsys, monkeypatch, "fit", "--quick")
        assert code == 2
        assert "pip install scipy" in err

    def test_check_tells_what_is_stale(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ridgeline.report.stale_tables", lambda: ["sets[0].reached: 0.1 is now 0.2"])
        code, _, err = run(capsys, monkeypatch, "fit", "--check")
        assert code == 1
        assert "0.1 is now 0.2" in err
        assert "run `ridgeline fit`" in err


def test_written_files_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = quick()
    for name in ("SHIPPED_CALIBRATION", "SHIPPED_FOLDS", "SHIPPED_RESIDUALS", "SHIPPED_SUMMARY"):
        monkeypatch.setattr(refitting, name, tmp_path / f"{name}.json")
    refitting.write_parameters(found)
    full = json.loads((tmp_path / "SHIPPED_CALIBRATION.json").read_text(encoding="utf-8"))
    own = found.parameters.full
    assert full == {"source": own.source, "components": asdict(own.components), "offsets": dict(own.offsets)}
    assert (
        json.loads((tmp_path / "SHIPPED_FOLDS.json").read_text(encoding="utf-8")) == found.parameters.folds.to_table()
    )
    rows = json.loads((tmp_path / "SHIPPED_RESIDUALS.json").read_text(encoding="utf-8"))["rows"]
    assert rows == list(found.residuals)


def test_tables_go_between_their_markers(tmp_path: Path) -> None:
    (tmp_path / "docs" / "concepts").mkdir(parents=True)
    (tmp_path / "README.md").write_text("a\n<!-- accuracy -->\nold\n<!-- /accuracy -->\nb\n", encoding="utf-8")
    sheet = quick().accuracy
    written = tables.write_tables(sheet, tmp_path)
    assert [path.name for path in written] == ["accuracy.json", "README.md"]
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert text.startswith("a\n<!-- accuracy -->\n| set | rows | target | reached |\n")
    assert text.endswith("|\n<!-- /accuracy -->\nb\n")
    assert "old" not in text
