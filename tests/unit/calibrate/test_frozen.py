"""Frozen sources: fixed by their names, in no fit until they are opened."""

from __future__ import annotations

import pytest
from command import run

from ridgeline.calibrate.folds import OPENED, TABLE, bundled_rows, frozen_name, is_frozen, takes_part


def test_the_rule_picks_what_was_written_down_and_all_of_it_is_opened() -> None:
    picked = [row for row in bundled_rows().values() if row.table == TABLE and frozen_name(row.source)]
    assert {row.source for row in picked} == {"v100", "pax", "torchao", "vocabpp", "lumi"} == set(OPENED)
    assert len(picked) == 75
    assert not any(is_frozen(row) for row in picked)
    assert sum(takes_part(row) for row in picked) > 60


@pytest.mark.parametrize(
    ("given", "told"),
    [(["mine.csv"], "frozen sources are bundled rows"), ([], "were opened on 2026-11-15 and are fitted since")],
)
def test_nothing_is_left_to_open(
    given: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, said = run(capsys, monkeypatch, "validate", *given, "--frozen")
    assert code == 2
    assert told in " ".join(said.split())
