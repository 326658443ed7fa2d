"""Ranks and gaps of plans among all plans of their problem."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from plan_rank import PlanRank, plan_ranks, problem_of, widen_space

from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import scenario
from ridgeline.search.training.plan_search import find_plan
from ridgeline.search.training.space import space_of


def ran(**plan: Any) -> Scenario:
    work = {"seq": 8192, "global_batch": 64}
    return scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": work, "plan": plan})


def rank(made: Scenario) -> PlanRank:
    (found,) = plan_ranks([made])
    assert found is not None
    return found


def test_the_best_plan_has_nothing_before_it() -> None:
    best = find_plan(ran(), most=1, headroom=0.0).plans[0].scenario
    found = rank(best)
    assert (found.faster, found.best, found.gap_by_part, found.changes) == (0, None, (), ())
    assert (found.share, found.gap_s, found.verdict) == (0.0, 0.0, "near the top")


def test_the_worst_of_a_known_list_is_behind_all_others() -> None:
    plain, full, both = plan_ranks([ran(tp=2, dp=4, recompute=kind) for kind in ("none", "selective", "full")])
    assert plain is not None
    assert full is not None
    assert both is not None
    assert plain.faster < full.faster < both.faster
    assert plain.feasible == full.feasible == both.feasible  # one sweep for all


def test_what_is_left_sums_to_the_gap() -> None:
    found = rank(ran(tp=8, recompute="full"))
    assert found.best is not None
    assert math.fsum(seconds for _, seconds in found.gap_by_part) == pytest.approx(found.gap_s, rel=1e-9)
    assert [seconds for _, seconds in found.gap_by_part] == sorted(
        (seconds for _, seconds in found.gap_by_part), reverse=True
    )
    assert "recompute: full -> none" in found.changes
    assert found.share == found.faster / found.feasible
    assert found.verdict == "beyond the interval"


def test_choices_of_its_own_are_in_the_space() -> None:
    odd = ran(tp=2, dp=4, shard="zero1", shard_degree=2, recompute={"kind": "full", "layers": 3})
    space = widen_space(space_of(odd), [odd.plan])
    assert space.shard_degree == (0, 2)
    assert Recompute(kind="full", layers=3) in space.recompute
    assert space.tp == space_of(odd).tp
    alone, beside = plan_ranks([odd, replace(odd, plan=ran(tp=2, dp=4).plan)])
    assert alone is not None
    assert beside is not None
    assert alone.considered == beside.considered


def test_plans_are_compared_within_a_problem() -> None:
    assert problem_of(ran(tp=8)) == problem_of(ran(tp=2, dp=4, sequence_parallel=False))
    assert problem_of(ran(tp=8)) != problem_of(ran(tp=8, precision="fp8"))
    assert problem_of(ran(tp=8)) != problem_of(ran(tp=8, engine="torchtitan"))


def test_doubts_are_noted() -> None:
    found = rank(ran(dp=8))
    assert not found.own.fits
    assert any("not to fit" in note for note in found.notes)
    assert not rank(ran(tp=8, recompute="full")).notes
    assert any("schedule" in note or "gpipe" in note for note in rank(ran(tp=2, pp=4, schedule="gpipe")).notes)


def test_what_cannot_run_has_no_rank() -> None:
    made = ran(tp=8)
    broken = replace(made, plan=replace(made.plan, mesh=replace(made.plan.mesh, tp=7)))
    assert plan_ranks([broken]) == [None]
    good, bad = plan_ranks([made, broken])
    assert good is not None
    assert bad is None
