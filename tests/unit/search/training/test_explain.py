"""Reasons: differences that sum, alternatives that are the best of their kind, changes that are searched again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.plan.scenario_file import assemble
from ridgeline.search.training.explain import choice_words, difference, explain, given_plan, why_not
from ridgeline.search.training.gains import neighbour_pins, what_if, worth
from ridgeline.search.training.plan_search import Search, find_plan
from ridgeline.sim.predict_step import predict
from ridgeline.sim.prediction import Prediction


def searched(pins: dict[str, tuple[object, ...]] | None = None, **table: object) -> Search:
    work = {"seq": 4096, "global_batch": 64}
    built, _ = assemble({"model": "llama3-8b", "system": "16xa100-40-sxm", "workload": work, **table})
    assert built is not None
    return find_plan(built, pins or {})


@pytest.fixture(scope="module")
def found() -> Search:
    return searched()


def test_losses_sum_and_are_the_best_otherwise(found: Search) -> None:
    winner = found.plans[0]
    why = explain(found, winner)
    assert {"tp", "pp"} <= {axis for loss in why.losses for axis in loss.axis}
    for loss in why.losses:
        assert loss.seconds >= -1e-9
        assert loss.seconds == pytest.approx(loss.prediction.step_time_s - winner.step_time_s)
        assert sum(loss.parts.values()) == pytest.approx(loss.seconds, abs=1e-9)
        sizes = [abs(part) for part in loss.parts.values()]
        assert sizes == sorted(sizes, reverse=True)
        assert loss.overlaps == (loss.prediction.interval.low < winner.interval.high)
    assert [loss.seconds for loss in why.losses] == sorted(loss.seconds for loss in why.losses)
    other = next(loss for loss in why.losses if "tp" in loss.axis)
    again = find_plan(found.scenario, {"tp": tuple(tp for tp in found.space.tp if tp != winner.scenario.plan.mesh.tp)})
    assert other.prediction.step_time_s == pytest.approx(again.plans[0].step_time_s, rel=1e-9)


def test_switches_are_told_by_what_differs(found: Search) -> None:
    plan = found.plans[0].scenario.plan
    own = replace(plan, mesh=replace(plan.mesh, tp=2, cp=2))
    other = replace(own, switches=replace(own.switches, cp_kind="all-to-all", graph="full", overlap={"tp": True}))
    assert choice_words(other, "switches", own) == "heads exchanged over cp, graph full, overlap {'tp': True}"
    assert choice_words(own, "switches", other) == "a ring over cp, graph as usual, overlap as usual"
    off = replace(own, switches=replace(own.switches, sequence_parallel=False))
    assert choice_words(off, "switches", own) == "no sequence parallelism"


def test_difference_names_parts_of_either(found: Search) -> None:
    winner = found.plans[0]
    piped = find_plan(found.scenario, {"pp": (4,)}).plans[0]
    parts = difference(piped, winner)
    assert parts["bubble"] > 0
    assert sum(parts.values()) == pytest.approx(piped.step_time_s - winner.step_time_s)
    assert sum(difference(winner, winner).values()) == 0


def test_rank_of_a_given_plan(found: Search) -> None:
    slow = find_plan(found.scenario, {"pp": (4,), "recompute": (found.space.recompute[-1],)}).plans[0]
    given = replace(found.scenario, plan=slow.scenario.plan)
    again = find_plan(given)
    own = given_plan(again, given, again.plans[0])
    assert own is not None
    assert own.prediction.step_time_s == pytest.approx(slow.step_time_s)
    assert own.faster > 10
    assert own.loss.seconds == pytest.approx(slow.step_time_s - again.plans[0].step_time_s)
    assert given_plan(found, replace(given, plan=replace(given.plan, microbatch=7)), found.plans[0]) is None


def test_changes_are_searched_again(found: Search) -> None:
    winner = found.plans[0]
    tried = what_if(found, winner)
    gains = [change.gain for change in tried]
    assert gains == sorted(gains, reverse=True)
    kinds = {change.kind for change in tried}
    assert {"memory", "link", "offload"} <= kinds
    assert "precision" not in kinds  # an A100 multiplies nothing that Megatron trains in faster than bf16
    for change in tried:
        again = predict(change.prediction.scenario)
        assert isinstance(again, Prediction)
        assert again.step_time_s == pytest.approx(change.prediction.step_time_s)
        assert change.gain == pytest.approx(again.tokens_per_s_per_chip / winner.tokens_per_s_per_chip - 1)
        assert change.kind != "link" or change.gain >= -1e-9  # more bandwidth is never slower
    told = worth(tried)
    assert len(told) <= 3
    assert len({change.kind for change in told}) == len(told)


def test_a_narrower_format_is_tried_where_the_chip_has_one() -> None:
    built, _ = assemble({"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 4096, "global_batch": 64}})
    assert built is not None
    found = find_plan(built)
    best = next(change for change in what_if(found, found.plans[0]) if change.kind == "precision")
    assert best.how == "--set plan.precision=fp8"
    assert best.prediction.scenario.plan.precision.compute.peak == "fp8"
    assert best.gain > 0


def test_a_pin_is_taken_away() -> None:
    found = searched({"tp": (8,), "pp": (2,)})
    free = {change.kind: change for change in what_if(found, found.plans[0]) if change.kind in ("tp", "pp")}
    for axis, other in (("tp", {"pp": (2,)}), ("pp", {"tp": (8,)})):
        again = find_plan(found.scenario, other)
        assert free[axis].prediction.step_time_s == pytest.approx(again.plans[0].step_time_s)


def test_changes_tried_before_it_was_stopped_are_told(found: Search) -> None:
    winner = found.plans[0]
    asked: list[str] = []

    def go_on(what: str) -> bool:
        asked.append(what)
        return len(set(asked)) < 3

    some, every = what_if(found, winner, go_on=go_on), what_if(found, winner)
    assert len(set(asked)) == 3
    assert 0 < len(some) < len(every)
    assert asked[-1] not in {change.what for change in some}
    assert {change.what for change in some} < {change.what for change in every}


def test_around_is_one_step_each_way(found: Search) -> None:
    plan = replace(found.plans[0].scenario.plan, microbatch=4)
    plan = replace(plan, mesh=replace(plan.mesh, tp=1, pp=2))
    near = neighbour_pins(found, plan)
    assert (near.tp, near.pp, near.microbatch) == ((1, 2), (1, 2, 4), (2, 4, 8))


def test_nothing_fits() -> None:
    found = searched(model="llama3-70b", system="8xa100-40-sxm")
    assert not found.plans
    (reason,) = why_not(found)
    assert reason.path == "memory"
    nearest = found.swept.nearest
    assert nearest is not None
    missing = (nearest.peak_bytes - found.capacity_bytes) / 2**30
    assert f"{missing:.1f} GiB too much" in reason.expected
    chips = int(reason.todo.split("use ")[1].split(" chips")[0])
    assert searched(model="llama3-70b", system=f"{chips}xa100-40-sxm").plans
    assert not searched(model="llama3-70b", system=f"{chips // 2}xa100-40-sxm").plans


@pytest.mark.parametrize(
    ("pins", "path"),
    [
        ({"tp": (3,)}, "plan.tp"),
        ({"ep": (2,)}, "plan.ep"),
        ({"pp": (5,)}, "plan.pp"),
        ({"tp": (8,), "pp": (4,)}, "plan"),
    ],
)
def test_nothing_can_be_laid_out(pins: dict[str, tuple[object, ...]], path: str) -> None:
    found = searched(pins)
    assert found.swept.considered == 0
    assert [reason.path for reason in why_not(found)] == [path]
    assert not why_not(searched({"tp": (2,)}))
