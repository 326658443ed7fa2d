"""What `ridgeline validate` says beside the headline, and of engines that nobody knows."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from ridgeline.calibrate.validate import validate
from ridgeline.calibrate.validation import Validation, ValidationReport
from ridgeline.core.encode import to_json
from ridgeline.report.accuracy import beside_table, stale_tables, strangers_table, write_current
from ridgeline.report.validate import draw_validation

HEAD = (
    "id,model_name,arch,x_chip,x_engine,gpus,seq_len,global_batch,micro_batch,tp,pp,precision,recompute,"
    "measured_metric,measured_value\n"
)
ROW = "mine_{},llama3-8b,dense,h100-sxm,{},8,8192,64,1,{},1,bf16,none,step_time_s,12\n"


def drawn(found: Validation) -> str:
    screen = Console(file=io.StringIO(), width=160)
    draw_validation(found, screen)
    return screen.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.fixture(scope="module")
def bundled() -> Validation:
    return validate()


def test_an_unknown_engine_is_said_with_what_was_taken(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    names = ("warpspeed", "warpspeed", "megatron-core", "mcore", "our-megatron-fork")
    table.write_text(HEAD + "".join(ROW.format(at, name, 8) for at, name in enumerate(names)), encoding="utf-8")
    found = validate(table)
    assert to_json(ValidationReport(validation=found))["unknown_engines"] == [
        {"given": "warpspeed", "taken": "generic", "rows": 2},
        {"given": "our-megatron-fork", "taken": "megatron-core", "rows": 1},
    ]
    assert "x_engine 'warpspeed' is not an engine Ridgeline knows: generic was taken in its place, in 2 row(s)" in (
        drawn(found)
    )
    assert not to_json(ValidationReport(validation=validate(where=["source=h200"])))["unknown_engines"]


def test_what_is_hard_stands_beside_the_headline(bundled: Validation) -> None:
    sets = to_json(ValidationReport(validation=bundled))["sets"]
    wanted = {"all", "headline", "dense", "mixture of experts", "hybrid", "default engine"}  # all sources take part
    assert wanted == set(sets)
    assert sets["all"]["n"] == len(bundled.cases)
    head = drawn(bundled).splitlines()[2]
    assert all(name in head for name in wanted)


def test_the_documentation_shows_them_from_the_same_data(bundled: Validation) -> None:
    root = Path(__file__).parents[3]
    sheet = json.loads((root / "docs" / "accuracy.json").read_text(encoding="utf-8"))
    pages = (("README.md", strangers_table), ("docs/concepts/accuracy.md", strangers_table))
    for page, table in (*pages, ("docs/concepts/accuracy.md", beside_table)):
        assert table(sheet) in (root / page).read_text(encoding="utf-8"), "run `ridgeline fit --tables`"


def test_tables_alone_are_written_without_a_fit(bundled: Validation, tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    (tmp_path / "docs" / "concepts").mkdir(parents=True)
    sheet = json.loads((root / "docs" / "accuracy.json").read_text(encoding="utf-8"))
    sheet["beside"] = []
    (tmp_path / "docs" / "accuracy.json").write_text(json.dumps(sheet), encoding="utf-8")
    (tmp_path / "README.md").write_text("<!-- accuracy-beside -->\n<!-- /accuracy-beside -->\n", encoding="utf-8")
    assert stale_tables(tmp_path, bundled)
    assert set(write_current(tmp_path, bundled)) == {tmp_path / "docs" / "accuracy.json", tmp_path / "README.md"}
    assert stale_tables(tmp_path, bundled) == []
    assert (
        json.loads((tmp_path / "docs" / "accuracy.json").read_text(encoding="utf-8"))["ablation"] == sheet["ablation"]
    )
