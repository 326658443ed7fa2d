"""Refined plans against every other one: on small models all layouts go through `predict` and the best is compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from ridgeline.plan.engine import engine
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import scenario
from ridgeline.search.stage_layout.layouts import Layouts, layout_table, recomputes_of
from ridgeline.search.stage_layout.refine import Refined, event_step_s, refine
from ridgeline.sim.predict_step import default_calibration, predict
from ridgeline.sim.prediction import Impossible, Prediction

CALIBRATION = default_calibration()


def small(layers: int = 4, model: str = "llama3-8b", **plan: Any) -> Scenario:
    """A few layers on a few ranks of an engine that does not offload activations."""
    pp = plan.get("pp", 2)
    table = {
        "model": {"base": model, "layers": layers},
        "system": f"{16 * pp}xh100-sxm",
        "workload": {"seq": 8192, "global_batch": 16 * pp},
        "plan": {"tp": 8, "pp": pp, "dp": 2, "engine": "torchtitan", "microbatch": 2, **plan},
    }
    return scenario(table)


def predicted(built: Scenario) -> Prediction:
    found = predict(built, CALIBRATION)
    assert isinstance(found, Prediction), found
    return found


def found(built: Scenario, budget: float | None = None) -> Refined:
    made = refine(built, CALIBRATION, budget_bytes=budget)
    assert isinstance(made, Refined)
    return made


def between(built: Scenario, share: float) -> float:
    """A budget between the peaks with everything and with nothing recomputed."""
    full, none = (
        predicted(replace(built, plan=replace(built.plan, recompute=Recompute(kind=kind)))).memory.peak_bytes
        for kind in ("full", "none")
    )
    return full + share * (none - full)


def placements(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    for inner in product(range(layers + 1), repeat=stages - 1):
        held = (*inner, layers - sum(inner))
        if held[-1] >= 0 and all(held[1:-1]):
            yield held


def plans(built: Scenario, *, move: bool = True) -> Iterator[Scenario]:
    """Every layout of a plan: placements, counts of recomputed layers by stage, kinds."""
    plan = built.plan
    held_by_stage = placements(built.model.layers, plan.virtual_stages) if move else [built.placement]
    for held in held_by_stage:
        for kind in recomputes_of(built):
            for again in product(*(range(number + 1) for number in held)):
                if kind.kind != "none" or not any(again):
                    yield replace(built, plan=replace(plan, placement=held, recompute=replace(kind, layers=again)))


def best_step(candidates: Iterator[Scenario], budget: float) -> float:
    made = [predicted(candidate) for candidate in candidates]
    return min(one.step_time_s for one in made if one.memory.peak_bytes <= budget)


CASES = {
    "1f1b": ({"pp": 2}, 5, 0.33),
    "1f1b, three ranks, tight": ({"pp": 3}, 4, 0.07),
    "interleaved": ({"pp": 2, "schedule": {"name": "interleaved", "chunks": 2}, "recompute": "full"}, 4, 0.4),
    "v-shaped": ({"pp": 2, "schedule": "zbv", "recompute": "selective"}, 3, 0.2),
    "no pipeline": ({"pp": 1}, 4, 0.6),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_best_of_all_layouts(name: str) -> None:
    plan, layers, share = CASES[name]
    built = small(layers, **plan)
    budget = between(built, share)
    made = found(built, budget)
    assert made.fits
    assert made.prediction.step_time_s == pytest.approx(best_step(plans(built), budget), rel=1e-6)


def test_blocks_that_differ() -> None:
    """Three dense layers, then experts, and a prediction block on the last stage."""
    built = small(5, "deepseek-v3", pp=2, microbatch=1, ep=4)
    budget = between(built, 0.35)
    assert found(built, budget).prediction.step_time_s == pytest.approx(best_step(plans(built), budget), rel=1e-6)


def test_recompute_is_chosen_before_layers_move() -> None:
    built = small(6, pp=2, placement=[4, 2])
    budget = between(built, 0.25)
    made = found(built, budget)
    assert not made.start.memory.peak_bytes <= budget
    first = made.changes[0]
    assert first.after.scenario.placement == (4, 2)
    assert first.after.memory.peak_bytes <= budget
    assert first.after.step_time_s == pytest.approx(best_step(plans(built, move=False), budget), rel=1e-6)
    assert first.saved_s < 0 < first.freed_bytes
    assert made.prediction.step_time_s <= first.after.step_time_s


def test_layouts_are_priced_as_predict_does() -> None:
    built = small(7, "deepseek-v3", pp=2, schedule={"name": "interleaved", "chunks": 2}, microbatch=1, ep=4)
    table = layout_table(built, CALIBRATION)
    rng = np.random.default_rng(1)
    held = np.array([[2, 1, 3, 1], [0, 3, 2, 2], [1, 1, 1, 4]])
    again = rng.integers(0, held + 1)
    for policy, kind in enumerate(table.policies):
        rows = Layouts(layers=held, recomputed=again, policy=np.full(len(held), policy))
        steps, peaks = table.step_s(rows), table.peaks(rows)
        for row in range(len(held)):
            recompute = replace(kind.recompute, layers=tuple(map(int, again[row])))
            placed = replace(built.plan, placement=tuple(map(int, held[row])), recompute=recompute)
            one = predicted(replace(built, plan=placed))
            assert steps[row] == pytest.approx(one.step_time_s, rel=1e-12)
            assert peaks[:, row] == pytest.approx([stage.peak_bytes for stage in one.memory.stages], rel=1e-12)


def test_a_plan_that_fits_is_never_made_slower() -> None:
    for recompute in ("none", "selective", "full"):
        made = found(small(8, pp=4, recompute=recompute))
        assert made.fits
        assert made.saved_s >= 0
        assert sum(made.scenario.placement) == 8
        assert sum(change.saved_s for change in made.changes) == pytest.approx(made.saved_s)


def test_nothing_to_do_leaves_the_plan_alone() -> None:
    once = found(small(6, pp=2, recompute="full"))
    twice = found(once.scenario)
    assert twice.changes == ()
    assert twice.scenario.plan == once.scenario.plan


def test_what_cannot_fit_is_said() -> None:
    made = found(small(4, pp=2), 1.0)
    assert not made.fits
    assert made.changes == ()
    assert made.prediction == made.start


def test_an_impossible_plan_keeps_its_reasons() -> None:
    built = small(4, pp=2)
    odd = replace(built, plan=replace(built.plan, mesh=replace(built.plan.mesh, tp=5)))
    assert isinstance(refine(odd, CALIBRATION), Impossible)


def test_offload_where_the_engine_can() -> None:
    plain = small(6, pp=2)
    able = plain.with_engine(engine({"base": "torch-eager", "overlaps": ["grad-reduce", "param-gather", "offload"]}))
    budget = between(able, 0.1)
    made, without = found(able, budget), found(plain, budget)
    assert made.scenario.plan.offload.activations > 0
    assert without.scenario.plan.offload.activations == 0
    assert "offloaded" in made.changes[-1].what


def test_the_same_every_time() -> None:
    built = small(8, pp=4)
    budget = between(built, 0.3)
    one, other = found(built, budget), found(built, budget)
    assert one.scenario.plan == other.scenario.plan
    assert [change.what for change in one.changes] == [change.what for change in other.changes]


def test_finalists_are_run_event_by_event() -> None:
    built = small(8, pp=4, recompute="full")
    made = refine(built, CALIBRATION, budget_bytes=between(built, 0.5), event_driven=True)
    assert isinstance(made, Refined)
    before, after = made.event_s
    assert before is not None
    assert after is not None
    assert after < before
    assert event_step_s(made.scenario, CALIBRATION) == after


def test_a_long_model_is_placed_where_memory_is() -> None:
    """126 layers: early ranks hold more microbatches, so that late ones take layers and early ones recompute."""
    table = {
        "model": "llama3.1-405b", "system": "16384xh100-sxm", "workload": {"seq": 8192, "global_batch": 2048},
        "plan": {"tp": 8, "pp": 16, "dp": 128, "shard": "zero1", "schedule": "1f1b", "engine": "torchtitan"},
    }  # fmt: skip
    made = found(scenario(table), 70e9)
    assert made.fits
    assert not made.start.memory.peak_bytes <= 70e9
    layers = made.scenario.plan.recompute.layers
    assert isinstance(layers, tuple)
    assert sum(layers[:8]) > sum(layers[8:])
    assert sum(made.scenario.placement) == 126
    assert made.changes[0].after.scenario.placement == scenario(table).placement
    assert made.prediction.step_time_s < made.changes[0].after.step_time_s
