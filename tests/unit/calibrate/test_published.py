"""Published runs are rows of truth tables with what their sources settle; none is predicted by a fit that saw it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from ridgeline.calibrate import validate as published
from ridgeline.calibrate.folds import bundled_rows, dataset_of, is_frozen, shipped_folds
from ridgeline.calibrate.truth.rows import Skipped, read_rows
from ridgeline.calibrate.validate import (
    ROWS,
    PublishedRun,
    published_runs,
    shipped_parameters,
    validate,
)
from ridgeline.calibrate.validation import Validation
from ridgeline.core.errors import InputError
from ridgeline.plan.scenario import Scenario


@pytest.fixture(scope="module")
def checked() -> Validation:
    return validate("published")


def run(id: str) -> PublishedRun:
    return next(one for one in published_runs() if one.row.id == id)


def scenario(id: str) -> Scenario:
    made = run(id).scenario
    assert isinstance(made, Scenario)
    return made


def test_every_run_is_predicted_and_has_a_source(checked: Validation) -> None:
    assert not checked.skipped
    assert len(checked.cases) == len(published_runs()) >= 20
    for one in published_runs():
        assert not is_frozen(one.row)
        assert all(one.row[column] for column in ("source", "source_url_or_repo_path", "flops_convention"))
        assert one.why or not one.plan, "what goes beyond a row says where it is known from"


def test_rows_of_their_own_take_part_in_no_fit() -> None:
    own = read_rows(ROWS)
    assert not {row.id for row in own} & set(bundled_rows())
    assert {row.id for row in own} <= {one.row.id for one in published_runs()}
    assert not any(run(row.id).is_fitted for row in own)


def test_a_run_of_the_fit_is_predicted_by_the_fold_that_left_it_out(checked: Validation) -> None:
    cases = {case.row.id: case for case in checked.cases}
    assert {id for id, case in cases.items() if case.cross_validated} == {
        one.row.id for one in published_runs() if one.is_fitted
    }
    one = run("paper-0006")
    held = shipped_folds().without(one.row.group)
    assert held is not None
    table = dataset_of([one.row], scenario_of=lambda _: one.scenario)
    assert one.is_fitted
    assert cases["paper-0006"].predicted_s == pytest.approx(float(table.predict(held)[0]), rel=1e-4)
    assert cases["paper-0006"].predicted_s != pytest.approx(
        float(table.predict(shipped_parameters().full)[0]), rel=1e-4
    )


def test_seconds_follow_from_what_was_published(checked: Validation) -> None:
    measured = {case.row.id: case.measured_s for case in checked.cases}
    assert measured["mtnlg-0002"] == 44.4
    # the paper's own days for 300 B tokens: 84 on 384 chips, 156 for 530 B on 560
    for id, days, batch in (("sc21-0001", 84, 1536), ("sc21-0004", 156, 2240)):
        assert measured[id] * 300e9 / (batch * 2048) / 86400 == pytest.approx(days, rel=0.02)
    assert measured["paper-0009"] * 2048 / 3600 * 14.8e12 / (15360 * 4096) == pytest.approx(2.664e6, rel=0.01)


def test_what_a_source_settles_is_in_the_scenario() -> None:
    glm, llama, deepseek = scenario("paper-0007"), scenario("misc-0228"), scenario("paper-0009")
    assert (glm.plan.recompute.kind, glm.plan.sharding.shard) == ("full", "zero1")
    assert (llama.plan.schedule.name, llama.plan.schedule.chunks, llama.plan.mesh.cp) == ("interleaved", 8, 16)
    assert not any(note.startswith("vpp") for note in llama.assumptions)
    assert (deepseek.plan.schedule.name, deepseek.plan.switches.moe_dispatch) == ("dualpipe-v", "deepep")
    assert deepseek.engine.id == "hai-llm"
    assert scenario("apertus-0001").plan.schedule.chunks == 5  # 80 layers, 8 stages, two layers a virtual stage


def test_some_of_the_runs() -> None:
    assert {case.row.id for case in validate("published", ["gpus=2048"]).cases} == {"paper-0009"}
    with pytest.raises(InputError, match="gpus"):
        validate("published", ["gpus=2047"])


def test_a_plan_that_cannot_run_is_told() -> None:
    wrong = replace(run("misc-0226"), plan=MappingProxyType({"schedule": {"name": "interleaved", "chunks": 80}}))
    assert isinstance(wrong.scenario, Skipped)
    assert dataset_of([wrong.row], scenario_of=lambda _: wrong.scenario).skipped[0].id == "misc-0226"


def test_an_unknown_row_names_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "published.toml"
    listed.write_text('[[run]]\nrow = "misc-9999"\n')
    monkeypatch.setattr(published, "LIST", listed)
    with pytest.raises(InputError, match=r"misc-9999.*misc-"):
        published.published_runs.__wrapped__()
