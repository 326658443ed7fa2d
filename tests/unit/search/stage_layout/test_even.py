"""Plans that an engine can be told, against every other such plan of a small model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from ridgeline.plan.capability import unsupported_decisions
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import scenario
from ridgeline.search.choices import selective_parts
from ridgeline.search.stage_layout.refine import Refined, Refinement, even, lacking, refine, refinement
from ridgeline.sim.predict_step import default_calibration, predict
from ridgeline.sim.prediction import Prediction

CALIBRATION = default_calibration()


def small(layers: int = 6, **plan: Any) -> Scenario:
    table = {
        "model": {"base": "llama3-8b", "layers": layers},
        "system": "32xh100-sxm",
        "workload": {"seq": 8192, "global_batch": 32},
        "plan": {"tp": 8, "pp": 2, "dp": 2, "engine": "megatron-core", "microbatch": 2, **plan},
    }
    return scenario(table)


def predicted(built: Scenario) -> Prediction:
    found = predict(built, CALIBRATION)
    assert isinstance(found, Prediction), found
    return found


def refined(plans: list[Prediction], event_s: float | None, budget_bytes: float) -> Refinement:
    found = refinement(plans, event_s, budget_bytes)
    assert found is not None
    return found


def recomputes(built: Scenario, stages: int) -> Iterator[Recompute]:
    """Every way to recompute that Megatron can be told, written down by hand."""
    yield Recompute()
    yield from (Recompute(kind="selective", parts=parts) for parts in selective_parts(built))
    yield Recompute(kind="full")
    yield from (Recompute(kind="full", layers=layers) for layers in range(1, built.model.layers))


def every(built: Scenario) -> Iterator[Scenario]:
    stages = built.plan.virtual_stages
    for held in product(range(built.model.layers + 1), repeat=stages):
        if sum(held) == built.model.layers and all(held[1:-1]):
            for recompute in recomputes(built, stages):
                yield replace(built, plan=replace(built.plan, placement=held, recompute=recompute))


@pytest.mark.parametrize("share", [0.05, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("plan", [{}, {"recompute": "full"}, {"schedule": {"name": "interleaved", "chunks": 2}}])
def test_the_best_of_all_that_can_be_told(share: float, plan: dict[str, Any]) -> None:
    built = small(**plan)
    full, none = (
        predicted(replace(built, plan=replace(built.plan, recompute=Recompute(kind=kind)))).memory.peak_bytes
        for kind in ("full", "none")
    )
    budget = full + share * (none - full)
    made = even(built, CALIBRATION, budget_bytes=budget)
    assert isinstance(made, Refined)
    assert made.fits
    assert not [note for note in unsupported_decisions(made.scenario) if "recompute" in note]
    able = [one for one in map(predicted, every(built)) if one.memory.peak_bytes <= budget]
    assert made.prediction.step_time_s <= min(one.step_time_s for one in able) * (1 + 1e-3)


def test_what_cannot_fit_stays() -> None:
    made = even(small(), CALIBRATION, budget_bytes=1.0)
    assert isinstance(made, Refined)
    assert (made.fits, made.changes) == (False, ())


def test_what_is_recommended_fits_and_can_be_told() -> None:
    start = predicted(small(12, recompute={"kind": "full", "parts": ["norm", "activation"]}))
    budget = start.memory.peak_bytes * 1.25
    made = refined([start], None, budget)
    assert made.changes
    assert made.prediction.memory.peak_bytes <= budget
    assert made.prediction.step_time_s < start.step_time_s
    assert not [note for note in unsupported_decisions(made.prediction.scenario) if "recompute" in note]
    assert made.beyond is not None
    assert made.beyond.prediction.step_time_s < made.prediction.step_time_s
    assert "megatron-core is not known to" in lacking(made.beyond)


def test_an_engine_that_takes_anything_is_recommended_everything() -> None:
    built = small(12, recompute="full", engine="torch-eager")
    start = predicted(built)
    budget = start.memory.peak_bytes * 1.02
    best = refine(built, CALIBRATION, budget_bytes=budget)
    assert isinstance(best, Refined)
    made = refined([start], None, budget)
    assert made.prediction.step_time_s <= best.prediction.step_time_s
    assert made.beyond is None


def test_where_nothing_is_better_the_winner_is_recommended() -> None:
    first = even(small(4), CALIBRATION, budget_bytes=80e9)
    assert isinstance(first, Refined)
    made = refined([first.prediction], None, 80e9)
    assert (made.prediction is first.prediction, made.changes) == (True, ())


def test_a_plan_that_events_call_slower_is_not_recommended() -> None:
    start = predicted(small(12, recompute="full"))
    made = refined([start], 1e-6, start.memory.peak_bytes * 1.5)
    assert (made.prediction is start, made.event_s) == (True, 1e-6)


def test_a_stopped_refinement_recommends_nothing() -> None:
    start = predicted(small(12, recompute="full"))
    asked: list[str] = []

    def go_on(what: str) -> bool:
        asked.append(what)
        return len(asked) < 2

    assert refinement([start, start], None, start.memory.peak_bytes * 1.02, go_on) is None
    assert len(asked) > 1


def test_plans_that_become_equal_are_refined_once() -> None:
    built = small(8, pp=4, dp=1, recompute="full")
    same = replace(built, plan=replace(built.plan, recompute=Recompute(kind="full", layers=8)))
    budget = predicted(built).memory.peak_bytes * 1.2
    assert len(refined([predicted(built), predicted(same)], None, budget).refined) == 1
