"""The shipped parameters are as accurate as the documentation says, and do not get worse unnoticed."""

from __future__ import annotations

import doctest
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ridgeline.calibrate.folds import takes_part
from ridgeline.calibrate.validate import validate
from ridgeline.calibrate.validation import Validation, figures
from ridgeline.report.accuracy import PAGES, TABLES, stale_tables, with_tables

DOCS = Path(__file__).parents[2] / "docs"
STORED: dict[str, Any] = json.loads((DOCS / "accuracy.json").read_text(encoding="utf-8"))
ROOM = {"mape": 0.005, "median_ape": 0.005, "coverage90": 0.02}


@cache
def bundled() -> Validation:
    return validate()


@pytest.mark.parametrize("stored", STORED["sets"], ids=lambda item: f"{item['set']} {item['measure']}")
def test_no_set_got_worse(stored: dict[str, Any]) -> None:
    now = next(
        item for item in figures(bundled()) if (item["set"], item["measure"]) == (stored["set"], stored["measure"])
    )
    assert now["rows"] == stored["rows"]
    if stored["measure"] == "coverage90":
        assert abs(now["reached"] - stored["reached"]) <= ROOM["coverage90"]
    else:
        assert now["reached"] <= stored["reached"] + ROOM[stored["measure"]]


def test_every_bundled_row_is_held_out() -> None:
    found = bundled()
    assert all(case.cross_validated for case in found.cases)
    assert sum(takes_part(case.row) for case in found.cases) == STORED["fitted"]
    assert len(found.cases) + len(found.skipped) == STORED["rows"] == 1695


def test_tables_are_up_to_date() -> None:
    assert stale_tables(found=bundled()) == []


def test_a_changed_figure_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "docs" / "concepts").mkdir(parents=True)
    page = DOCS / "concepts" / "accuracy.md"
    changed = json.loads(json.dumps(STORED))
    changed["sets"][0]["reached"] = 0.001
    (tmp_path / "docs" / "accuracy.json").write_text(json.dumps(changed), encoding="utf-8")
    (tmp_path / "docs" / "concepts" / "accuracy.md").write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    stale = stale_tables(tmp_path, bundled())
    assert any("sets[0].reached" in line for line in stale)
    assert any("accuracy.md shows other figures" in line for line in stale)


def test_the_page_holds_every_table() -> None:
    texts = [(DOCS.parent / page).read_text(encoding="utf-8") for page in PAGES]
    assert all(any(f"<!-- {name} -->" in text for text in texts) for name in TABLES)
    assert all(with_tables(text, STORED) == text for text in texts)


@pytest.mark.parametrize("page", ["concepts/accuracy.md", "how-to/validate-and-fit.md"])
def test_pages_run(page: str) -> None:
    assert doctest.testfile(str(DOCS / page), module_relative=False).failed == 0
