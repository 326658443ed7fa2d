"""Objectives: arithmetic of money, energy, days and frontiers, by hand."""

from __future__ import annotations

import pytest

from ridgeline.core.errors import InputError
from ridgeline.plan.plan import Plan
from ridgeline.plan.scenario_file import assemble
from ridgeline.search.goodput import goodput
from ridgeline.search.training.objectives import (
    Goal,
    PlanOutcome,
    Point,
    amount,
    chosen,
    frontier,
    outcome,
    pair,
    points,
    quarters,
    rank_plans,
    run_of,
    sizes_of,
    systems_without_price,
    tokens_of,
)  # fmt: skip
from ridgeline.search.training.plan_search import Search, find_plan

SMALL = {"tp": (1, 2), "pp": (1,), "cp": (1,), "microbatch": (1, 2)}


def searched(system: str, **more: object) -> Search:
    table = {"model": "llama3-8b", "system": system, "workload": {"seq": 4096, "global_batch": 64}, **more}
    built, _ = assemble(table)
    assert built is not None
    return find_plan(built, SMALL)


@pytest.fixture(scope="module")
def eight() -> Search:
    return searched("8xh100-sxm", chip={"price": "3 USD/h", "tdp": "700 W"})


@pytest.fixture(scope="module")
def sixteen() -> Search:
    return searched("16xh100-sxm", chip={"price": "3 USD/h", "tdp": "700 W"})


def test_amounts_of_a_step(eight: Search) -> None:
    best = eight.plans[0]
    assert amount(best, "time") == best.step_time_s
    assert amount(best, "cost") == pytest.approx(8 * 3.0 * best.step_time_s / 3600)
    assert amount(best, "energy") == pytest.approx(8 * 700 * best.step_time_s)
    assert amount(best, "chips") == 8
    assert amount(best, "memory") == best.memory.peak_bytes


def test_days_count_failures(eight: Search) -> None:
    best = eight.plans[0]
    run = run_of(best, Goal(tokens=1e12))
    assert run is not None
    speed = 64 * 4096 / best.step_time_s
    useful = goodput(best.scenario, best.step_time_s).useful
    assert useful < 1
    assert run.days == pytest.approx(1e12 / speed / useful / 86400)
    assert run.cost_usd == pytest.approx(run.days * 24 * 8 * 3.0)
    assert run.energy_j == pytest.approx(run.days * 86400 * 8 * 700)
    assert run_of(best, Goal()) is None


def test_choice_between_sizes(eight: Search, sixteen: Search) -> None:
    def choose(goal: Goal) -> int:
        found = chosen([outcome(eight, goal), outcome(sixteen, goal)], goal)
        return found.scenario.system.chips if found else 0

    assert choose(Goal(objective="time")) == 16
    costs = {one.scenario.system.chips: amount(one.plans[0], "cost") or 0.0 for one in (eight, sixteen)}
    assert choose(Goal(objective="cost")) == min(costs, key=lambda chips: costs[chips])
    slow, fast = (run_of(one.plans[0], Goal(tokens=1e12)) for one in (eight, sixteen))
    assert slow is not None
    assert fast is not None
    assert choose(Goal(objective="chips", tokens=1e12, days=slow.days * 1.01)) == 8
    assert choose(Goal(objective="chips", tokens=1e12, days=(slow.days + fast.days) / 2)) == 16
    assert choose(Goal(objective="chips", tokens=1e12, days=fast.days * 0.99)) == 0


def test_memory_takes_the_small_end_of_the_frontier(eight: Search) -> None:
    plans = rank_plans(eight, Goal(objective="memory"), 3)
    peaks = [plan.memory.peak_bytes for plan in plans]
    assert peaks == sorted(peaks)
    assert peaks[0] == pytest.approx(min(entry.peak_bytes for entry in eight.swept.frontier))


def test_missing_price_is_said() -> None:
    found = searched("8xtpu-v5p")
    assert systems_without_price([found.scenario.system], "cost") == ("tpu-v5p",)
    assert systems_without_price([found.scenario.system], "time") == ()
    goal = Goal(objective="cost")
    assert outcome(found, goal).value("cost") is None
    assert chosen([outcome(found, goal)], goal) is None
    assert all(point.cost is None for point in points([found]))


def test_frontier_by_hand() -> None:
    def at(name: str, time: float, memory: float, chips: int, cost: float | None = 1.0) -> Point:
        return Point(system=name, chips=chips, plan=Plan(), time=time, memory=memory, cost=cost, energy=None)

    made = [at("a", 1, 9, 8), at("b", 2, 9, 4), at("c", 3, 5, 8, None), at("d", 3, 6, 2), at("e", 4, 7, 2)]
    assert [point.system for point in frontier(made, "time", "memory")] == ["a", "c"]  # d: as slow as c, but larger
    assert [point.system for point in frontier(made, "time", "chips")] == ["a", "b", "d"]
    assert [point.system for point in frontier(made, "chips", "memory")] == ["d", "c"]
    assert [point.system for point in frontier(made, "time", "cost")] == ["a"]
    assert frontier(made, "time", "energy") == ()


@pytest.mark.parametrize("first", ["time", "memory", "cost", "energy", "chips"])
@pytest.mark.parametrize("second", ["time", "memory", "cost", "energy", "chips"])
def test_frontiers_of_time_and_memory_hold_all_others(eight: Search, sixteen: Search, first: str, second: str) -> None:
    """Money, energy and chips of a system are its time times a constant, so nothing outside can be on a frontier."""
    if first == second:
        return
    kept = frontier(points([eight, sixteen]), first, second)
    everything = [
        Point(
            system=one.scenario.system.name,
            chips=one.scenario.system.chips,
            plan=entry.plan,
            time=entry.step_s,
            memory=entry.peak_bytes,
            cost=entry.step_s * one.scenario.system.chips * 3.0 / 3600,
            energy=entry.step_s * one.scenario.system.chips * 700,
        )
        for one in (eight, sixteen)
        for entry in one.swept.best
    ]
    for point in everything:
        own = point.amount(first) or 0.0, point.amount(second) or 0.0
        assert any(
            (other.amount(first) or 0.0) <= own[0] * (1 + 1e-12)
            and (other.amount(second) or 0.0) <= own[1] * (1 + 1e-12)
            for other in kept
        )


@pytest.mark.parametrize("text", ["", "T", "-2T", "2X", "nan", "inf", "1e40"])
def test_tokens_refused(text: str) -> None:
    with pytest.raises(InputError, match="--tokens"):
        tokens_of(text)


@pytest.mark.parametrize("text", ["", "8..", "..8", "0", "-8", "16..8", "8;9", "1..2..3", "99999999999"])
def test_sizes_refused(text: str) -> None:
    with pytest.raises(InputError, match="--chips"):
        sizes_of(text, 8)


def test_sizes_and_pairs() -> None:
    assert sizes_of("64..4096", 8) == (64, 128, 256, 512, 1024, 2048, 4096)
    assert sizes_of("72..600", 72) == (72, 128, 144, 256, 288, 512, 576)
    assert sizes_of("64,48", 8) == (48, 64)
    assert quarters(8, 9) == ()
    assert pair("time, cost") == ("time", "cost")
    for text in ("time", "time,time", "time,speed"):
        with pytest.raises(InputError, match="--frontier"):
            pair(text)


def test_goals_that_cannot_be_met_are_told() -> None:
    assert [problem.path for problem in Goal(objective="chips").problems()] == ["--objective"]
    assert [problem.path for problem in Goal(days=3).problems()] == ["--days"]
    assert not list(Goal(objective="chips", tokens=1e12, days=3).problems())


def test_an_outcome_without_a_plan_has_no_value(eight: Search) -> None:
    assert PlanOutcome(search=eight, best=None).value("time") is None
