"""Other software is searched under its own habits; a gain is told with what it rests on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from ridgeline.core.encode import to_json
from ridgeline.plan.capability import unsupported_decisions
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.report.plan import software
from ridgeline.search.recommendation import SearchTime
from ridgeline.search.training.gains import OtherEngine, able_engines, other_engines, under, what_if
from ridgeline.search.training.plan_search import Search, find_plan
from ridgeline.search.training.recommendation import PlanReport, recommend
from ridgeline.search.training.request import PlanRequest
from ridgeline.sim import predict

SMALL = ("plan.tp=1,2", "plan.pp=1", "plan.cp=1", "plan.microbatch=1")
TP8 = {"tp": 8, "pp": (1, 2), "cp": 1, "microbatch": 1, "shard": "zero1"}


def built(model: str, system: str, **plan: object) -> Scenario:
    work = {"seq": 4096, "global_batch": 256}
    made, _ = assemble({"model": model, "system": system, "workload": work, "plan": plan})
    assert made is not None
    return made


@pytest.fixture(scope="module")
def dense() -> Search:
    return find_plan(built("llama3-8b", "8xh100-sxm", engine="megatron-core"), {"cp": 1, "microbatch": (1, 2)})


@pytest.fixture(scope="module")
def others(dense: Search) -> tuple[OtherEngine, ...]:
    return other_engines(dense, dense.plans[0])


def test_engines_that_run_on_the_chip_and_know_the_format() -> None:
    known = {one.id for one in able_engines(built("llama3-8b", "8xh100-sxm", engine="megatron-core"))}
    assert {"megatron-bridge", "torchtitan", "hai-llm", "maxtext"} <= known
    assert not known & {"megatron-core", "generic", "mindspeed", "primus", "megatron-2021", "t5x"}
    narrow = {one.id for one in able_engines(built("llama3-8b", "8xh100-sxm", engine="nemo", precision="fp8"))}
    assert "meta-internal" not in narrow
    assert {one.id for one in able_engines(built("llama3-8b", "8xascend-910b2", engine="mindspeed"))} == set()


def test_every_engine_says_where_it_runs() -> None:
    for id in ENGINES:
        assert ENGINES[id].supports.vendors or id == "generic"


def test_the_best_plan_of_each_fits_and_is_what_it_can_do(dense: Search, others: tuple[OtherEngine, ...]) -> None:
    assert [one.gain for one in others] == sorted((one.gain for one in others), reverse=True)
    for one in others:
        made = one.prediction
        assert made.scenario.engine is one.engine
        assert made.memory.peak_bytes <= dense.capacity_bytes
        assert unsupported_decisions(made.scenario) == ()
        ratio = dense.plans[0].step_time_s / made.step_time_s
        assert one.gain == pytest.approx(ratio - 1)
    runs = {one.engine.id: one.runs for one in others}
    assert runs["nemo"] > 50 > runs["hai-llm"]


def test_a_coarse_search_is_never_better_than_a_whole_one(dense: Search, others: tuple[OtherEngine, ...]) -> None:
    for one in others[:3]:
        whole = find_plan(under(dense.scenario, one.engine), dense.pins, most=1, headroom=dense.headroom)
        assert whole.plans[0].step_time_s <= one.prediction.step_time_s * (1 + 1e-9)


def test_what_another_engine_has_is_named() -> None:
    search = find_plan(built("mixtral-8x7b", "32xh100-sxm", engine="paddlenlp"), {"pp": 1, "cp": 1, "microbatch": 1})
    found = {one.engine.id: one for one in other_engines(search, search.plans[0])}
    assert any(word in found["hai-llm"].has for word in ("overlap of moe", "dispatch by deepep"))


def test_pins_hold_for_other_engines(dense: Search) -> None:
    pinned = find_plan(dense.scenario, {"tp": 2, "pp": 2, "cp": 1, "microbatch": 1})
    for one in other_engines(pinned, pinned.plans[0]):
        assert (one.prediction.scenario.plan.mesh.tp, one.prediction.scenario.plan.mesh.pp) == (2, 2)


def test_it_can_be_stopped(dense: Search) -> None:
    assert other_engines(dense, dense.plans[0], go_on=lambda _: False) == ()


def test_features_are_tried_where_something_is_exposed() -> None:
    search = find_plan(built("mixtral-8x7b", "32xh100-sxm", engine="paddlenlp"), {"pp": 1, "ep": 8})
    found = {change.kind: change for change in what_if(search, search.plans[0]) if change.is_feature}
    assert "moe_dispatch" in found
    assert "paddlenlp is not known to have" in found["moe_dispatch"].what
    assert found["moe_dispatch"].how == "--set plan.moe_dispatch=deepep"
    assert found["moe_dispatch"].prediction.scenario.plan.switches.moe_dispatch == "deepep"
    assert found["moe_dispatch"].gain > 0


def test_what_the_engine_can_be_told_is_not_called_unknown() -> None:
    search = find_plan(built("llama3-70b", "64xh100-sxm", engine="megatron-core"), TP8)
    found = {change.kind: change for change in what_if(search, search.plans[0]) if change.is_feature}
    assert found["overlap.tp"].what == "overlap of tp"
    assert found["overlap.tp"].gain > 0
    again = predict(found["overlap.tp"].prediction.scenario)
    assert again.step_time_s == found["overlap.tp"].prediction.step_time_s  # type: ignore[union-attr]


def test_the_sheet_and_the_page_tell_of_them() -> None:
    request = PlanRequest.from_options(
        "llama3-8b", on="8xh100-sxm", seq=4096, global_batch=64, settings=SMALL, refine=False
    )
    found = recommend(request)
    report = found.report(SearchTime(seconds=0, cpu_seconds=0, explain_seconds=0))
    assert isinstance(report, PlanReport)
    sheet, reasons = to_json(report), report.reasons
    assert [one["engine"] for one in sheet["engines"]] == [one.engine.id for one in reasons.engines]
    assert sheet["engines"][0]["how"] == f"--engine {sheet['engines'][0]['engine']}"
    slow = tuple(replace(one, prediction=one.winner) for one in reasons.engines)
    assert software(replace(report, reasons=replace(reasons, what_if=(), engines=slow))) == []
    first = reasons.engines[0]
    theirs = replace(first.engine, id="theirs", availability="closed")
    closed = SimpleNamespace(
        engine=theirs, runs=1, gain=0.5, has=("zbv",), how="", availability="closed", prediction=first.prediction
    )
    engines = (cast("OtherEngine", closed),)
    (row,) = software(replace(report, reasons=replace(reasons, what_if=(), engines=engines)))
    assert row[:2] == ("engine theirs (closed, 1 run measured): zbv", "+50.0%")


def test_the_best_dispatcher_leaves_an_own_choice_alone() -> None:
    scenario = built("mixtral-8x7b", "32xh100-sxm", engine="megatron-core")
    own = replace(scenario.plan.switches, moe_dispatch="all-to-all", overlap={"moe": False})
    kept = find_plan(replace(scenario, plan=replace(scenario.plan, switches=own)), {"ep": 8}, most=1).plans[0]
    free = find_plan(scenario, {"ep": 8}, most=1).plans[0]
    assert kept.scenario.plan.switches.moe_dispatch == "all-to-all"
    assert free.scenario.plan.switches.moe_dispatch == "deepep"
    assert free.step_time_s <= kept.step_time_s
