"""A search within what a target can express: the same plans as a search without it, less those that it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.core.errors import InputError
from ridgeline.hardware.system import System
from ridgeline.plan.capability import PlanFacts, UnsupportedDecision, read_capability
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.search.training.explain import why_not
from ridgeline.search.training.expressible import expressible_space
from ridgeline.search.training.gains import target_gains
from ridgeline.search.training.plan_search import find_plan, place_layers, supported_chunks
from ridgeline.search.training.recommendation import recommend
from ridgeline.search.training.request import PlanRequest
from ridgeline.search.training.space import NO_PINS, Pins, space_of
from ridgeline.search.training.sweep import priced_grids
from ridgeline.sim import default_calibration

PARTIAL = read_capability(
    {
        "engines": ["megatron-core"],
        "limits": [
            {"shard": ["none", "zero2", "zero3"], "overlap.grad-reduce": [False]},
            {"when": {"tp": [">1"]}, "cp": [1]},
        ],
    }
)
REASONS = {"shard": "it has no ZeRO-1", "cp": "not beside tensor ranks", "overlap.grad-reduce": "always off"}


class Partial:
    """Software without ZeRO-1, without tensor ranks beside context ranks, that always reduces gradients at the end."""

    id = "partial"
    capability = PARTIAL

    def engines(self, system: System) -> tuple[str, ...]:
        if system.chip.vendor != "NVIDIA":
            raise InputError("not on these chips")
        return PARTIAL.engines

    def unsupported_decisions(self, scenario: Scenario) -> tuple[UnsupportedDecision, ...]:
        values = PlanFacts.of(scenario).values
        return tuple(
            UnsupportedDecision(
                path=f"plan.{limit.decision}", value=str(values[limit.decision]), why=REASONS[limit.decision]
            )
            for limit in PARTIAL.unsupported_decisions(scenario)
        )


def _scenario(model: str = "llama3-8b", chips: int = 8) -> Scenario:
    work = {"seq": 8192, "global_batch": 32}
    built, problems = assemble({"model": model, "system": f"{chips}xh100-sxm", "workload": work, "plan": {}})
    assert built is not None, problems
    return built


SMALL = Pins.of({"microbatch": (1, 2)})


def test_the_best_plans_of_a_target_are_the_best_of_all_that_it_can_be_told() -> None:
    scenario, target = _scenario(), Partial()
    found = find_plan(scenario, SMALL, target=target)
    every = _every_plan(scenario, target)
    assert found.plans
    assert found.swept.feasible == len(every)
    assert found.plans[0].step_time_s == pytest.approx(min(every), rel=1e-9)
    assert not any(target.unsupported_decisions(plan.scenario) for plan in found.plans)
    assert not any(target.unsupported_decisions(replace(scenario, plan=one.plan)) for one in found.swept.frontier)


def _every_plan(scenario: Scenario, target: Partial) -> list[float]:
    """The step of every plan that fits and can be told, asked about one by one."""
    found = find_plan(scenario, SMALL, target=target)
    space, times = found.space, []
    grids = priced_grids(place_layers(scenario, SMALL), space, default_calibration())
    for chunk in supported_chunks(grids, scenario, space, SMALL):
        for place in range(len(chunk.step_s)):
            told = not target.unsupported_decisions(replace(scenario, plan=chunk.plan(place)))
            if told and chunk.peak_bytes[place] <= found.capacity_bytes:
                times.append(float(chunk.step_s[place]))
    return times


def test_what_a_target_does_by_itself_is_stated_by_the_plan() -> None:
    best = find_plan(_scenario(), SMALL, target=Partial()).plans[0].scenario
    assert best.plan.switches.overlap["grad-reduce"] is False
    assert resolve(find_plan(_scenario(), SMALL).plans[0].scenario).overlap["grad-reduce"] is True


def test_choices_that_no_plan_can_have_are_not_swept_and_pinned_ones_are() -> None:
    scenario = _scenario()
    assert "zero1" in space_of(scenario).shard
    assert "zero1" not in expressible_space(space_of(scenario), scenario, NO_PINS, PARTIAL).shard
    pins = Pins.of({"shard": "zero1"})
    assert expressible_space(space_of(scenario, pins), scenario, pins, PARTIAL).shard == ("zero1",)


def test_where_nothing_can_be_told_the_problem_names_what_stands_against_it() -> None:
    found = find_plan(_scenario(), {"shard": "zero1"}, target=Partial())
    (problem,) = why_not(found)
    assert not found.plans
    assert problem.path == "--to"
    assert "partial" in problem.expected
    assert "plan.shard = zero1" in problem.expected
    assert "ZeRO-1" in problem.expected


def test_what_a_target_forbids_is_told_with_its_gain() -> None:
    scenario, pins = _scenario(chips=16), Pins.of({"shard": ("zero1", "none"), "microbatch": (1, 2)})
    found = find_plan(scenario, pins, target=Partial())
    free = find_plan(scenario, pins)
    gains = target_gains(found, found.plans[0])
    assert gains
    assert gains[0].gain == pytest.approx(found.plans[0].step_time_s / free.plans[0].step_time_s - 1)
    assert gains[0].gain > 0.1
    assert "plan.shard" in [one.path for one in gains[0].untold]


def test_a_request_takes_the_engine_of_its_target_and_refuses_another() -> None:
    asked = PlanRequest.from_options("llama3-8b", on="8xh100-sxm", global_batch=32, settings=["plan.pp=1"])
    found = recommend(replace(asked, target=Partial()), lambda progress: progress.phase == "search")
    assert found.chosen is not None
    assert found.reasons is not None
    assert found.chosen.scenario.plan.engine == "megatron-core"
    assert "engine = megatron-core: what partial runs" in found.reasons.assumptions
    other = PlanRequest.from_options("llama3-8b", on="8xh100-sxm", engine="torchtitan")
    with pytest.raises(InputError, match="an engine that partial runs: megatron-core"):
        recommend(replace(other, target=Partial()))
    with pytest.raises(InputError, match="not on these chips"):
        recommend(replace(PlanRequest.from_options("llama3-8b", on="64xtpu-v5p"), target=Partial()))
