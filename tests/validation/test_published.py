"""For every published run the search finds a plan at least as fast as the one its authors ran."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.calibrate.validate import published_runs
from ridgeline.plan.scenario import Scenario
from ridgeline.search.training.plan_search import find_plan
from ridgeline.search.training.request import PlanRequest, cases
from ridgeline.search.training.space import Pins, Space, choice
from ridgeline.sim import Prediction, predict, scenario_headroom
from tools.__main__ import main as tools

RUNS = {run.row.id: run for run in published_runs()}


def priced(id: str) -> tuple[Scenario, Prediction, float]:
    """A run's scenario, its own plan priced, and the memory that a plan must leave free for it to be allowed."""
    scenario = RUNS[id].scenario
    assert isinstance(scenario, Scenario)
    own = predict(scenario)
    assert isinstance(own, Prediction)
    usual = scenario_headroom(scenario).share
    left = 1 - own.memory.peak_bytes / own.memory.capacity_bytes
    return scenario, own, max(0.0, min(usual, left - 1e-9)) if own.fits else usual


@pytest.mark.parametrize("id", RUNS)
def test_a_search_finds_nothing_slower(id: str) -> None:
    scenario, own, headroom = priced(id)
    found = find_plan(scenario, most=1, headroom=headroom)
    assert found.plans, "a plan that fits"
    assert found.plans[0].step_time_s <= own.step_time_s * (1 + 1e-9)


@pytest.mark.parametrize("id", RUNS)
def test_a_search_pinned_to_the_plan_is_the_plan(id: str) -> None:
    scenario, own, headroom = priced(id)
    pins = Pins.of({axis: (choice(scenario.plan, axis),) for axis in Space.__slots__})
    found = find_plan(scenario, pins, most=1, headroom=headroom).swept
    assert found.considered == 1
    entry = found.best[0] if own.fits else found.nearest
    assert entry is not None
    assert entry.step_s == pytest.approx(own.step_time_s, rel=1e-9)
    assert entry.peak_bytes == pytest.approx(own.memory.peak_bytes, rel=1e-9)


def test_the_default_engine_is_told_what_deepseek_did() -> None:
    settings = ["plan.precision=fp8", "plan.pp=8,16", "plan.cp=1,2", "plan.tp=1,2", "plan.etp=1", "plan.microbatch=1"]
    request = PlanRequest.from_options(
        "deepseek-v3", on="2048xh800-sxm", seq=4096, global_batch=15360, settings=settings
    )
    case = next(iter(cases(request, [])))
    assert case.scenario.engine.id == "megatron-core"
    best = find_plan(case.scenario, case.pins, most=1).plans[0]
    plain = replace(case.scenario.plan.switches, moe_dispatch="all-to-all", overlap={"moe": False})
    before = find_plan(replace(case.scenario, plan=replace(case.scenario.plan, switches=plain)), case.pins, most=1)
    _, own, _ = priced("paper-0009")
    assert best.step_time_s < 0.8 * before.plans[0].step_time_s
    assert best.step_time_s < 1.1 * own.step_time_s, "within a tenth of the authors' plan under their own software"
    switches = best.scenario.plan.switches
    assert (switches.moe_dispatch, dict(switches.overlap)) == ("deepep", {"moe": True})
    assert best.scenario.plan.schedule.name == "interleaved", "where Megatron-Core hides dispatch"


def test_the_command_of_the_page_tells_some_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page_path = Path(__file__).parents[2] / "docs" / "concepts" / "published-runs.md"
    before = page_path.read_text(encoding="utf-8")

    def run(*options: str) -> str:
        assert tools(["docs", "published", "--where", "gpus=2800,2048", *options]) == 0
        return capsys.readouterr().out

    told = {one["id"]: one for one in json.loads(run("--json"))}
    assert set(told) == {"mtnlg-0001", "paper-0009"}
    assert told["mtnlg-0001"]["published_s"] == 50.2
    assert [told[id]["fitted"] for id in ("mtnlg-0001", "paper-0009")] == [False, True]
    assert all(one["found_s"] <= one["priced_s"] for one in told.values() if one["fits"])
    assert all((one["low_s"] <= one["published_s"] <= one["high_s"]) == one["inside"] for one in told.values())
    page = run()
    assert "| MT-NLG-530B on 2800 a100-80-sxm (`mtnlg-0001`) |" in page
    assert "DeepSeek-V3 on 2048 h800-sxm (`paper-0009`) *" in page, "what took part in the fit is marked"
    assert page_path.read_text(encoding="utf-8") == before
