"""Requests: options in words become one question, and what is wrong with them is told in those words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeline.core.errors import InputError
from ridgeline.search.request import read_request
from ridgeline.search.training.objectives import Goal
from ridgeline.search.training.request import PlanRequest, cases
from ridgeline.search.training.space import space_of

SCENARIO = """
model = "llama3-8b"
system = "16xh100-sxm"
[workload]
seq = 4096
tokens_per_batch = 262144
[plan]
tp = 2
engine = "torchtitan"
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(SCENARIO, encoding="utf-8")
    return str(path)


def test_a_name_and_a_system_are_enough() -> None:
    asked = PlanRequest.from_options("llama3-8b", on="8xh100-sxm, 16xh100-sxm")
    assert asked == PlanRequest(table={"model": "llama3-8b"}, systems=("8xh100-sxm", "16xh100-sxm"))
    made = list(cases(asked, []))
    assert [case.scenario.system.chips for case in made] == [8, 16]
    assert all(case.scenario.plan.engine == "megatron-core" for case in made)
    assert "engine = megatron-core: not given; the default" in made[0].scenario.assumptions
    assert not made[0].given


def test_the_default_engine_is_the_systems() -> None:
    asked = PlanRequest.from_options("llama3-8b", on="8xh100-sxm,8xtpu-v5p,8xascend-910b")
    engines = [case.scenario.plan.engine for case in cases(asked, [])]
    assert engines == ["megatron-core", "maxtext", "mindspeed"]
    asked = PlanRequest.from_options("llama3-8b", on="8xtpu-v5p", engine="levanter")
    assert [case.scenario.plan.engine for case in cases(asked, [])] == ["levanter"]


def test_an_engine_of_ones_own_is_searched_as_it_is_described(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    text = 'model = "llama3-8b"\nsystem = "8xtpu-v5p"\n[workload]\nseq = 4096\nglobal_batch = 32\n'
    path.write_text(text + '[engine]\nbase = "torchtitan"\n[engine.supports]\nshard = ["zero3"]\n', encoding="utf-8")
    (case,) = cases(PlanRequest.from_options(str(path)), [])
    assert (case.scenario.plan.engine, space_of(case.scenario).shard) == ("torchtitan", ("zero3",))
    assert not [note for note in case.scenario.assumptions if note.startswith("engine = ")]


def test_options_are_laid_over_a_scenario(scenario: str) -> None:
    asked = PlanRequest.from_options(scenario, global_batch=32, settings=["plan.pp=2", "workload.seq=2048"])
    assert asked.table["workload"] == {"seq": 4096, "global_batch": 32}, "a batch in tokens gives way"
    assert asked.settings == ("workload.seq=2048",)
    (case,) = cases(asked, [])
    assert (case.scenario.workload.seq, case.scenario.workload.sequences) == (2048, 32)
    assert (case.given, case.pins.pinned, case.pins.pp) == (True, ("pp",), (2,))
    assert (case.scenario.plan.engine, case.scenario.plan.mesh.tp) == ("torchtitan", 2)


def test_goal_and_shares() -> None:
    asked = PlanRequest.from_options("llama3-8b", on="8xh100-sxm", tokens="2T", days=30, headroom="5%", chips="8..16")
    assert asked.goal == Goal(objective="chips", tokens=2e12, days=30)
    assert (asked.headroom, asked.chips, asked.top, asked.frontier) == (0.05, "8..16", 5, None)
    asked = PlanRequest.from_options(
        "llama3-8b", on="8xh100-sxm", objective="cost", headroom="0.1", frontier="time,cost"
    )
    assert (asked.goal.objective, asked.headroom, asked.frontier) == ("cost", 0.1, ("time", "cost"))


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, "--on"),
        ({"on": "8xh100-sxm", "days": -1.0}, "--days"),
        ({"on": "8xh100-sxm", "objective": "speed"}, "--objective"),
        ({"on": "8xh100-sxm", "headroom": "all"}, "--headroom"),
        ({"on": "8xh100-sxm", "frontier": "time"}, "--frontier"),
        ({"on": "8xh100-sxm", "tokens": "lots"}, "--tokens"),
        ({"on": "8xh100-sxm", "settings": ["plan.tpp=1"]}, "plan.tpp"),
        ({"on": "8xh100-sxm", "engine": "megatro"}, "plan.engine"),
    ],
)
def test_refusals(options: dict[str, Any], path: str) -> None:
    with pytest.raises(InputError) as caught:
        PlanRequest.from_options("llama3-8b", **options)
    assert [problem.path for problem in caught.value.problems] == [path]


def test_a_scenario_stays_in_its_folder_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "mine.toml").write_text('base = "llama3-8b"\nlayers = 8\n', encoding="utf-8")
    path = tmp_path / "inner" / "run.toml"
    path.write_text('model = "../mine.toml"\nsystem = "8xh100-sxm"\n', encoding="utf-8")
    with pytest.raises(InputError, match="inside the file's own folder"):
        read_request(str(path))
    assert read_request(str(path), ["model=llama3-8b"])["system"] == "8xh100-sxm"
    (tmp_path / "inner" / "mine.toml").write_text('base = "llama3-8b"\nlayers = 8\n', encoding="utf-8")
    path.write_text('model = "mine.toml"\nsystem = "8xh100-sxm"\n', encoding="utf-8")
    assert read_request(str(path))["model"] == str((tmp_path / "inner" / "mine.toml").resolve())
