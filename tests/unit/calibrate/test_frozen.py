"""Frozen sources: fixed by their names, in no fit, in no table unless asked for."""

from __future__ import annotations

import pytest
from command import run

from ridgeline.calibrate.folds import bundled, shipped_folds, takes_part
from ridgeline.calibrate.frozen import is_frozen
from ridgeline.calibrate.validate import shipped


def test_the_list_is_the_one_that_was_written_down() -> None:
    frozen = [row for row in bundled().values() if is_frozen(row)]
    assert {row.source for row in frozen} == {"v100", "pax", "torchao", "vocabpp", "lumi"}
    assert len(frozen) == 75


def test_no_fit_sees_them() -> None:
    frozen = [row for row in bundled().values() if is_frozen(row)]
    assert not any(takes_part(row) for row in frozen)
    own = {row.group for row in frozen}
    assert not own & set(shipped_folds().left_out)
    assert not own & {group for group, _ in shipped().residuals}


def test_they_are_bundled_rows_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, told = run(capsys, monkeypatch, "validate", "mine.csv", "--frozen")
    assert code == 2
    assert "frozen sources are bundled rows" in told
