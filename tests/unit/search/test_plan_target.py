"""A search within what a target can be told: the same plans as a search without it, less those that it cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ridgeline.core.errors import InputError
from ridgeline.hardware.system import System
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.search.degree_grid import priced_grids
from ridgeline.search.find_plan import find_plan, offered, placed
from ridgeline.search.infeasible import why_not
from ridgeline.search.plan_target import AskedTarget, Untold, named
from ridgeline.search.recommend import recommend
from ridgeline.search.request import PlanRequest
from ridgeline.search.space import NO_PINS, Pins, space_of
from ridgeline.search.told_space import told_space
from ridgeline.search.untold_gains import untold_gains
from ridgeline.sim import default_calibration


class Partial:
    """Software without ZeRO-1, without tensor ranks beside context ranks, that always reduces gradients at the end."""

    id = "partial"

    def __init__(self) -> None:
        self.asked = 0

    def engines(self, system: System) -> tuple[str, ...]:
        if system.chip.vendor != "NVIDIA":
            raise InputError("not on these chips")
        return ("megatron-core",)

    def untold(self, scenario: Scenario) -> tuple[Untold, ...]:
        self.asked += 1
        return tuple(self._untold(scenario))

    def _untold(self, scenario: Scenario) -> Iterator[Untold]:
        plan, mesh = scenario.plan, scenario.plan.mesh
        if plan.sharding.shard == "zero1":
            yield Untold(path="plan.shard", value="zero1", why="it has no ZeRO-1")
        if mesh.tp > 1 and mesh.cp > 1:
            yield Untold(path="plan.cp", value=str(mesh.cp), why="not beside tensor ranks")
        if mesh.dp * mesh.cp > 1 and resolve(scenario).overlap["grad-reduce"]:
            yield Untold(path="plan.overlap.grad-reduce", value="True", why="always off")

    def habits(self, scenario: Scenario) -> Mapping[str, Any]:
        paths = [one.path for one in self._untold(scenario)]
        return {path: False for path in paths if path == "plan.overlap.grad-reduce"}


def _scenario(model: str = "llama3-8b", chips: int = 8) -> Scenario:
    work = {"seq": 8192, "global_batch": 32}
    built, problems = assemble({"model": model, "system": f"{chips}xh100-sxm", "workload": work, "plan": {}})
    assert built is not None, problems
    return built


SMALL = Pins.of({"microbatch": (1, 2)})


def test_the_best_plans_of_a_target_are_the_best_of_all_that_it_can_be_told() -> None:
    scenario, target = _scenario(), Partial()
    found = find_plan(scenario, SMALL, target=AskedTarget(target))
    every = _every_plan(scenario, target)
    assert found.plans
    assert found.swept.feasible == len(every)
    assert found.plans[0].step_time_s == pytest.approx(min(every), rel=1e-9)
    assert not any(target.untold(plan.scenario) for plan in found.plans)
    assert not any(target.untold(replace(scenario, plan=one.plan)) for one in found.swept.frontier)


def _every_plan(scenario: Scenario, target: Partial) -> list[float]:
    """The step of every plan that fits and can be told, asked about one by one."""
    found = find_plan(scenario, SMALL, target=AskedTarget(target))
    space, times = found.space, []
    grids = priced_grids(placed(scenario, SMALL), space, default_calibration())
    for chunk in offered(grids, scenario, space, SMALL):
        for place in range(len(chunk.step_s)):
            told = not target.untold(replace(scenario, plan=chunk.plan(place)))
            if told and chunk.peak_bytes[place] <= found.capacity_bytes:
                times.append(float(chunk.step_s[place]))
    return times


def test_what_a_target_does_by_itself_is_stated_by_the_plan() -> None:
    best = find_plan(_scenario(), SMALL, target=AskedTarget(Partial())).plans[0].scenario
    assert best.plan.switches.overlap["grad-reduce"] is False
    assert resolve(find_plan(_scenario(), SMALL).plans[0].scenario).overlap["grad-reduce"] is True


def test_choices_that_no_plan_can_have_are_not_swept_and_pinned_ones_are() -> None:
    scenario, asked = _scenario(), AskedTarget(Partial())
    assert "zero1" in space_of(scenario).shard
    assert "zero1" not in told_space(space_of(scenario), scenario, NO_PINS, asked).shard
    pins = Pins.of({"shard": "zero1"})
    assert told_space(space_of(scenario, pins), scenario, pins, asked).shard == ("zero1",)


def test_a_kind_of_plans_is_asked_about_once() -> None:
    target = Partial()
    asked = AskedTarget(target)
    first = find_plan(_scenario(), target=asked)
    before = target.asked
    assert before < first.swept.considered / 4
    assert find_plan(_scenario(), target=asked).plans == first.plans
    assert target.asked == before


def test_where_nothing_can_be_told_the_problem_names_what_stands_against_it() -> None:
    found = find_plan(_scenario(), {"shard": "zero1"}, target=AskedTarget(Partial()))
    (problem,) = why_not(found)
    assert not found.plans
    assert problem.path == "--to"
    assert "partial" in problem.expected
    assert "plan.shard = zero1" in problem.expected
    assert "ZeRO-1" in problem.expected


def test_what_a_target_forbids_is_told_with_its_gain() -> None:
    scenario, pins = _scenario(chips=16), Pins.of({"shard": ("zero1", "none"), "microbatch": (1, 2)})
    found = find_plan(scenario, pins, target=AskedTarget(Partial()))
    free = find_plan(scenario, pins)
    gains = untold_gains(found, found.plans[0])
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


def test_decisions_are_named_with_their_values() -> None:
    assert named([Untold(path="plan.tp", value="8", why="")]) == "plan.tp = 8"
