"""Deployments that keep an objective: found, verified, explained, or refused with a reason."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.core.errors import InputError
from ridgeline.plan.scenario_file import assemble
from ridgeline.report.deployment_html import deployment_page, frontier_png, frontier_svg
from ridgeline.report.drawing import refuse_picture
from ridgeline.search.deployment.capacity import capacity
from ridgeline.search.deployment.fleet import outdone
from ridgeline.search.deployment.recommendation import DeploymentAnswer, recommend_deployment
from ridgeline.search.deployment.request import DeploymentRequest
from ridgeline.search.recommendation import SearchTime
from ridgeline.serving.serving_prediction import ServingPrediction, predict_serving

FEW = ["workload.requests=300"]
NARROW = [*FEW, "plan.precision=bf16", "plan.serving.vllm.max_num_batched_tokens=2048", "plan.tp=1,2"]
ALONE = [*NARROW, "plan.tp=1", "plan.serving.pools=none", "plan.serving.vllm.max_num_seqs=256"]
TOOK = SearchTime(seconds=0.0, cpu_seconds=0.0, explain_seconds=0.0)


def asked(model: str = "llama3.1-8b", on: str = "4xh100-sxm", **options: object) -> DeploymentAnswer:
    given = {"rate": 30.0, "isl": 1024, "osl": 128, "ttft": "500ms", "tpot": "30ms", "settings": NARROW, **options}
    return recommend_deployment(DeploymentRequest.from_options(model, on=on, **given))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> DeploymentAnswer:
    return asked()


def test_the_best_keeps_the_objective_with_the_fewest_chips(found: DeploymentAnswer) -> None:
    assert found.best is not None
    assert found.best.met
    assert found.best.whole
    assert found.chosen is not None
    rivals = [one.candidate.chips for one in found.chosen.search.verified if one.met]
    assert found.best.candidate.chips == min(rivals)


def test_same_seed_same_answer() -> None:
    one, again = asked(settings=ALONE), asked(settings=ALONE)
    assert again.best is not None
    assert one.best is not None
    assert again.best.candidate.words == one.best.candidate.words
    assert again.best.prediction.metrics == one.best.prediction.metrics


def test_written_scenario_predicts_the_same(found: DeploymentAnswer) -> None:
    built, problems = assemble(tomllib.loads(found.scenario_text))
    assert not problems
    assert built is not None
    told = predict_serving(built)
    assert isinstance(told, ServingPrediction)
    assert found.best is not None
    assert told.metrics == found.best.prediction.metrics
    assert told.run.chips == found.best.candidate.chips


def test_bounds_are_not_beaten(found: DeploymentAnswer) -> None:
    assert found.chosen is not None
    search = found.chosen.search
    bounds = {one.shape: one for one in search.bounds}
    for held in search.capacities:
        if held.role == "both" and held.shape in bounds and held.kept is not None:
            bound = bounds[held.shape]
            assert held.rate <= bound.rate
            assert 1.0 / held.kept.user_speed >= bound.tpot_s * 0.98


def test_a_replica_that_keeps_nothing_is_no_comparison(found: DeploymentAnswer) -> None:
    assert found.chosen is not None
    search = found.chosen.search
    nothing = replace(search.capacities[0], rate=0.0, kept=None, missed=None)
    bound = next(one for one in search.bounds if one.shape == search.capacities[0].shape)
    assert capacity(search.bench, bound, near=nothing).rate == capacity(search.bench, bound).rate > 0


def test_frontier_is_a_front(found: DeploymentAnswer) -> None:
    speeds = [one.user_speed for one in found.frontier]
    costs = [one.cost for one in found.frontier]
    assert speeds == sorted(speeds, reverse=True)
    assert costs == sorted(costs, reverse=True)  # type: ignore[type-var]


def test_sheet_and_pages(found: DeploymentAnswer) -> None:
    report = found.report(TOOK)
    assert report.best.prediction.limits[0].met
    assert report.why.knobs
    assert "<svg" in deployment_page(report)
    assert frontier_svg(report).startswith("<svg")
    drawn = frontier_png(report)
    assert drawn.startswith(b"\x89PNG")
    assert drawn != frontier_png(replace(report, found=replace(found, frontier=found.frontier[1:])))
    assert frontier_png(replace(report, found=replace(found, frontier=()))).startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"\.png or \.svg"):
        refuse_picture(Path("frontier.jpeg"), "plan")


def test_goodput_fills_the_chips() -> None:
    made = asked(rate=None, on="2xh100-sxm", settings=ALONE, tpot="15ms", objective="goodput")
    assert made.best is not None
    assert made.best.candidate.chips == 2
    assert made.best.met


def test_an_objective_below_the_floor_names_the_nearest() -> None:
    made = asked(tpot="1ms")
    assert made.best is None
    (problem,) = made.problems
    assert "nearest objective" in problem.todo
    assert "TPOT" in problem.todo


def test_too_much_load_names_what_would_hold_it() -> None:
    made = asked(on="1xh100-sxm", rate=300.0, settings=ALONE)
    assert made.best is None
    (problem,) = made.problems
    assert "requests/s" in problem.todo
    assert "nearest objective" in problem.todo


def test_a_model_that_does_not_fit_is_told_in_bytes() -> None:
    made = asked("llama3.1-70b", on="1xh100-sxm")
    assert made.best is None
    assert made.problems[0].path == "memory"
    assert "GiB" in made.problems[0].given


def test_what_two_outdo_is_not_simulated(found: DeploymentAnswer) -> None:
    """Two that hold the load on no more chips than one replica of each pool takes: neither best nor next best."""
    best = found.best
    assert best is not None
    one, several = (replace(best, candidate=replace(best.candidate, replicas=(many,))) for many in (1, 3))
    assert not outdone(best.candidate, [one])
    assert outdone(best.candidate, [one, one])
    assert not outdone(best.candidate, [one, several])  # as few as one of its replicas might do


def test_pins_are_kept() -> None:
    settings = [*ALONE, "plan.tp=2", "plan.serving.vllm.max_num_seqs=64"]
    made = asked(settings=settings)
    assert made.best is not None
    (shape,) = made.best.candidate.shapes
    assert shape.mesh.tp == 2
    assert shape.choice("seqs") == 64


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"rate": -1.0}, "--rate"),
        ({"ttft": "fast"}, "--ttft"),
        ({"settings": ["plan.tp=none"]}, "plan.tp"),
        ({"settings": ["plan.serving.pools=some"]}, "plan.serving.pools"),
        ({"engine": "megatron-core"}, "plan.engine"),
        ({"objective": "beauty"}, "--objective"),
        ({"requests": Path("trace.csv")}, "--isl"),
    ],
)
def test_bad_questions_are_refused(options: dict[str, object], path: str) -> None:
    with pytest.raises(InputError) as wrong:
        asked(**options)  # type: ignore[arg-type]
    assert any(problem.path == path for problem in wrong.value.problems)
