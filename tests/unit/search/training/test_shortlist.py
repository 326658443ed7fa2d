"""What a sweep keeps equals what a look at every single plan finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ridgeline.plan.plan import Plan, Switches
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.search.training import shortlist, sweep
from ridgeline.search.training.plan_search import Search, find_plan
from ridgeline.search.training.shortlist import EqualPlans, PricedEntry, entry, in_order, moving_parts
from ridgeline.search.training.space import choice, space_of
from ridgeline.search.training.sweep import chunks_of, priced_grids
from ridgeline.sim.memory.peak import capacity_of, scenario_headroom
from ridgeline.sim.predict_step import default_calibration, predict
from ridgeline.sim.prediction import Prediction

TABLE: dict[str, Any] = {"model": "llama3-8b", "system": "8xa100-40-sxm", "workload": {"seq": 4096, "global_batch": 32}}


@pytest.fixture(scope="module")
def base() -> Scenario:
    built, _ = assemble(TABLE)
    assert built is not None
    return built


@pytest.fixture(scope="module")
def every(base: Scenario) -> list[PricedEntry]:
    """Every plan of the space that Megatron runs: beyond zero1 without stages, zero2 with one microbatch."""

    def runs(plan: Plan) -> bool:
        shard, mesh = plan.sharding.shard, plan.mesh
        late = shard == "zero2" and TABLE["workload"]["global_batch"] > mesh.dp * plan.microbatch
        return not late and (mesh.pp == 1 or shard in ("none", "zero1"))

    def all_plans() -> Iterator[PricedEntry]:
        space = space_of(base)
        for chunk in chunks_of(priced_grids(base, space, default_calibration()), space):
            for place in range(len(chunk.step_s)):
                one = entry(chunk, place)
                if runs(one.plan):
                    yield one

    return list(all_plans())


@pytest.fixture(scope="module")
def found(base: Scenario) -> Search:
    return find_plan(base)


def test_counts_and_best(base: Scenario, every: list[PricedEntry], found: Search) -> None:
    limit = capacity_of(base) * (1 - scenario_headroom(base).share)
    fitting = sorted(one.step_s for one in every if one.peak_bytes <= limit)
    assert (found.swept.considered, found.swept.feasible) == (len(every), len(fitting))
    assert [one.step_s for one in found.swept.best] == fitting[:64]
    assert fitting[0] <= found.plans[0].step_time_s <= 1.001 * fitting[0]  # of equals the simplest


def test_headroom_is_kept_free(base: Scenario, every: list[PricedEntry]) -> None:
    for headroom in (0.0, 0.3):
        limit = capacity_of(base) * (1 - headroom)
        swept = find_plan(base, headroom=headroom).swept
        assert swept.feasible == sum(one.peak_bytes <= limit for one in every)
        assert all(one.peak_bytes <= limit for one in (*swept.best, *swept.frontier))


def test_frontier(base: Scenario, every: list[PricedEntry], found: Search) -> None:
    limit = capacity_of(base) * (1 - scenario_headroom(base).share)
    fitting = [one for one in every if one.peak_bytes <= limit]
    kept = {(one.step_s, one.peak_bytes) for one in found.swept.frontier}
    beaten = [
        one
        for one in fitting
        if any(a <= one.step_s and b <= one.peak_bytes and (a, b) != (one.step_s, one.peak_bytes) for a, b in kept)
    ]
    unbeaten = {(one.step_s, one.peak_bytes) for one in fitting} - {(one.step_s, one.peak_bytes) for one in beaten}
    assert kept == unbeaten


@pytest.mark.parametrize("axis", ["tp", "pp", "cp", "microbatch", "schedule", "shard", "recompute", "switches"])
def test_the_best_of_every_family(base: Scenario, every: list[PricedEntry], found: Search, axis: str) -> None:
    limit = capacity_of(base) * (1 - scenario_headroom(base).share)
    best: list[PricedEntry] = []
    for one in sorted((one for one in every if one.peak_bytes <= limit), key=lambda one: one.step_s):
        if all(choice(one.plan, axis) != choice(other.plan, axis) for other in best):
            best.append(one)
    assert [one.step_s for one in found.swept.by_choice[axis]] == [one.step_s for one in best]


def test_more_memory_is_answered_by_the_same_sweep(base: Scenario, every: list[PricedEntry], found: Search) -> None:
    for factor in (1.25, 2.0):
        limit = capacity_of(base) * (1 - scenario_headroom(base).share) * factor
        assert found.swept.with_more_memory[factor].step_s == min(
            one.step_s for one in every if one.peak_bytes <= limit
        )


@pytest.mark.parametrize("tolerance", [0.001, 0.01, 0.05])
def test_the_simplest_of_the_fastest_is_kept(
    base: Scenario, every: list[PricedEntry], tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortlist, "EQUAL", tolerance)
    limit = capacity_of(base) * (1 - scenario_headroom(base).share)
    fitting = [one for one in every if one.peak_bytes <= limit]
    fastest_s = min(one.step_s for one in fitting)
    equal = [one for one in fitting if one.step_s <= fastest_s * (1 + tolerance)]
    assert len(equal) > 1 or tolerance < 0.01
    simplest = find_plan(base).swept.simplest
    assert simplest is not None
    assert simplest.step_s <= fastest_s * (1 + tolerance)
    assert moving_parts(simplest.plan) == min(moving_parts(one.plan) for one in equal)


def test_moving_parts_of_a_chunk_are_those_of_its_plans(base: Scenario) -> None:
    space = replace(space_of(base), shard_degree=(0, 2))
    for chunk in chunks_of(priced_grids(base, space, default_calibration()), space):
        weights = EqualPlans().weigh(chunk)
        assert [moving_parts(chunk.plan(place)) for place in range(0, len(weights), 7)] == weights[::7].tolist()


def test_a_pinned_dp_leaves_only_its_plans(base: Scenario, every: list[PricedEntry]) -> None:
    swept = find_plan(base, {"dp": (2,)}).swept
    assert swept.considered == sum(one.plan.mesh.dp == 2 for one in every)
    assert {one.plan.mesh.dp for one in swept.best} == {2}


def test_faster_than_its_own_plan(base: Scenario, every: list[PricedEntry]) -> None:
    limit = capacity_of(base) * (1 - scenario_headroom(base).share)
    usual = [one for one in every if one.peak_bytes <= limit and one.plan.switches == base.plan.switches]
    own = sorted(usual, key=lambda one: one.step_s)[17]  # a plan's own switches are kept by the search around it
    given = replace(base, plan=own.plan)
    assert isinstance(predict(given), Prediction)
    faster = sum(one.step_s < own.step_s * (1 - 1e-9) for one in every if one.peak_bytes <= limit)
    assert abs(find_plan(given).swept.faster - faster) <= 2  # equal plans differ in the last digit


def test_pipelines_the_engine_does_not_run_are_left_out() -> None:
    built, _ = assemble({**TABLE, "system": "8xtpu-v5p", "plan": {"engine": "maxtext"}})
    assert built is not None
    plans = [one.plan for one in find_plan(built).swept.best]
    assert all(plan.schedule.name == "gpipe" for plan in plans if plan.mesh.pp > 1)


def test_a_stopped_search_keeps_what_is_found(base: Scenario) -> None:
    calls = 0

    def stop(priced: int, best_s: float) -> bool:
        nonlocal calls
        calls += 1
        return best_s == float("inf") or calls <= 3

    found = find_plan(base, progress=stop)
    assert calls > 3
    assert not found.swept.complete
    assert found.plans
    assert found.swept.considered < find_plan(base).swept.considered


def test_one_plan_alone_can_be_searched(base: Scenario) -> None:
    pins = {"tp": (1,), "cp": (1,), "pp": (1,), "microbatch": (1,), "shard": ("zero3",)}
    swept = find_plan(base, pins).swept
    assert swept.considered == len(space_of(base, pins).recompute)


# with one replica nothing is exchanged and nothing to shard: plans come in groups of a dozen equals
IDLE = tuple(
    Switches(overlap={"grad-reduce": gradients, "param-gather": weights})
    for gradients in (True, False)
    for weights in (False, True)
)


@pytest.mark.parametrize("size", [1, 7, 40])
def test_equal_plans_come_in_one_order_however_the_sweep_is_cut(
    base: Scenario, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = {"tp": (2, 4), "pp": (2, 4), "cp": (1,), "dp": (1,), "switches": IDLE}
    whole = find_plan(base, pins).swept
    takes = [(one.step_s, one.peak_bytes) for one in whole.best]
    assert len(set(takes)) < len(takes)  # there are equals, and they are told apart
    monkeypatch.setattr(sweep, "CHUNK", size)
    cut = find_plan(base, pins).swept
    assert (cut.best, cut.frontier) == (whole.best, whole.frontier)
    assert (cut.by_choice, cut.with_more_memory) == (whole.by_choice, whole.with_more_memory)


def test_of_equal_plans_the_plainest_comes_first() -> None:
    plain, odd = Plan(), Plan(switches=Switches(sequence_parallel=False))
    odder = replace(odd, microbatch=2)
    made = [PricedEntry(plan=plan, step_s=1.0, peak_bytes=2.0) for plan in (odder, odd, plain)]
    smaller, faster = (
        PricedEntry(plan=odder, step_s=1.0, peak_bytes=1.0),
        PricedEntry(plan=odder, step_s=0.5, peak_bytes=9.0),
    )
    assert list(in_order([*made, smaller, faster])) == [faster, smaller, *reversed(made)]
