"""What a page of a plan says of plans agrees: one price each, one order, and no alternative better than is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from ridgeline.search import PlanReport, PlanRequest, Progress, SearchTime, recommend
from ridgeline.search.training.explain import _differs
from ridgeline.search.training.plan_search import SAME, kind_of
from ridgeline.search.training.shortlist import EQUAL, moving_parts
from ridgeline.sim.predict_step import predict
from ridgeline.sim.prediction import Prediction

# tied embeddings, prediction blocks and v-shaped schedules; rank orders that gain; experts; a model that fits anywhere
CASES = (
    ("deepseek-v2-lite", "16xascend-910c", "mindspeed"), ("deepseek-v3", "512xascend-910c", "mindspeed"),
    ("gemma3-4b", "16xh100-sxm", "torchtitan"), ("gpt3-125m", "8xh100-sxm", "torchtitan"),
    ("gpt3-125m", "8xh100-sxm", "megatron-core"), ("llama3-70b", "64xh100-sxm", "megatron-core"),
    ("llama2-70b", "56xh100-sxm", "megatron-core"), ("mixtral-8x7b", "16xh100-sxm", "megatron-core"),
)  # fmt: skip
BATCHES = (64, 256)


def until_explained(progress: Progress) -> bool:
    """Stops the reasons that take time."""
    return progress.phase == "search" or "why" in progress.what


def page_of(case: tuple[str, str, str], batch: int) -> PlanReport:
    model, system, engine = case
    options = {"on": system, "engine": engine, "global_batch": batch if "56x" not in system else 224, "seq": 4096}
    found = recommend(PlanRequest.from_options(model, **options), until_explained)  # type: ignore[arg-type]
    report = found.report(SearchTime(seconds=1.0, cpu_seconds=1.0, explain_seconds=0.0))
    assert isinstance(report, PlanReport), report
    return report


@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from(CASES), st.sampled_from(BATCHES))
def test_every_statement_agrees_with_the_table(case: tuple[str, str, str], batch: int) -> None:
    report = page_of(case, batch)
    winner, why = report.winner, report.reasons.why
    listed = [row.prediction for row in (*report.plans, *report.kinds)]
    told = [*listed, *(loss.prediction for loss in why.losses), *([why.runner_up.prediction] if why.runner_up else [])]
    for plan in told:
        alone = predict(plan.scenario)
        assert isinstance(alone, Prediction)
        assert alone.step_time_s == plan.step_time_s

    for rows in (report.plans, report.kinds):
        assert rows[0].prediction is winner
        steps = [row.prediction.step_time_s for row in rows[1:]]
        assert steps == sorted(steps)
        assert [row.lost_s for row in rows] == [row.prediction.step_time_s - winner.step_time_s for row in rows]

    swept = report.chosen.search.swept
    fastest_s = min(*(plan.step_time_s for plan in told), *(entry.step_s for entry in swept.best))
    assert winner.step_time_s <= fastest_s * (1 + EQUAL) * (1 + SAME)
    assert (report.fastest is None) == (winner.step_time_s <= fastest_s * (1 + SAME))
    if report.fastest is not None:
        event("the fastest was passed over")
        assert report.fastest.prediction.step_time_s == pytest.approx(fastest_s, rel=SAME)
        assert moving_parts(winner.scenario.plan) < moving_parts(report.fastest.prediction.scenario.plan)

    own = winner.scenario.plan
    for loss in why.losses:
        others = [plan for plan in listed if any(_differs(axis, plan.scenario.plan, own) for axis in loss.axis)]
        others = [plan for plan in others if abs(plan.step_time_s / winner.step_time_s - 1) > SAME]
        assert all(plan.step_time_s >= loss.prediction.step_time_s * (1 - SAME) for plan in others), loss.choice
        assert loss.seconds == loss.prediction.step_time_s - winner.step_time_s
    if why.runner_up is not None and any(kind_of(plan.scenario.plan) != kind_of(own) for plan in listed):
        others = [plan for plan in listed if kind_of(plan.scenario.plan) != kind_of(own)]
        rival = why.runner_up.prediction
        assert kind_of(rival.scenario.plan) != kind_of(own)
        assert all(plan.step_time_s >= rival.step_time_s * (1 - SAME) for plan in others)


def test_the_simplest_of_equals_is_chosen() -> None:
    """51 million parameters on 8 chips: sharding saves less than anybody can measure, and weights are never sharded."""
    model = {
        "name": "mine",
        "hidden": 512,
        "layers": 12,
        "vocab": 32000,
        "attention": {"heads": 8},
        "mlp": {"hidden": 1536},
    }
    request = PlanRequest.from_options("llama3-8b", on="8xh100-sxm")
    for seq in (1024, 8192):
        table = {"model": model, "system": "8xh100-sxm", "workload": {"seq": seq, "global_batch": 1024}}
        found = recommend(replace(request, table=table, systems=()), until_explained)
        assert found.reasons is not None
        assert found.reasons.plans[0].scenario.plan.sharding.shard in ("none", "zero1")
