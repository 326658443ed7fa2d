"""A plan of post-training: what is searched, what is pinned, and what is said of going asynchronous."""

from __future__ import annotations

import tomllib

import pytest

from ridgeline.core.encode import to_json
from ridgeline.core.errors import InputError
from ridgeline.plan.scenario_file import scenario
from ridgeline.rl import RlPrediction, predict_rl
from ridgeline.search.rl.find import RlSearch, best_of
from ridgeline.search.rl.recommendation import RlAnswer, recommend_rl
from ridgeline.search.rl.request import RlRequest, pinned_decisions
from ridgeline.search.rl.space import splits, trainer_shapes

SMALL = [
    "workload.prompts=32", "workload.samples=4", "workload.mini_batch=16",
    'workload.response_tokens={kind="lognormal", mean=800, high=4096}',
]  # fmt: skip


def asked(*settings: str, on: str = "16xh100-sxm", **options: str) -> RlRequest:
    return RlRequest.from_options("qwen2.5-7b", on=on, settings=[*SMALL, *settings], **options)  # type: ignore[typeddict-item]


@pytest.fixture(scope="module")
def answer() -> RlAnswer:
    return recommend_rl(asked())


def test_the_best_fits_and_is_the_fastest(answer: RlAnswer) -> None:
    assert answer.best is not None
    assert answer.best.prediction.fits
    assert answer.best.seconds <= 1.03 * min(answer.placements.values())
    assert {"colocated", "async"} <= set(answer.by_placement)
    assert answer.go_async is (answer.ratio is not None and answer.ratio < 0.95)
    assert ("go " if answer.go_async else "do not go") in answer.advice
    assert all(gain.saved_s > 0 for gain in answer.gains)


def test_the_file_that_is_written_is_what_was_predicted(answer: RlAnswer) -> None:
    assert answer.scenario_text is not None
    assert answer.best is not None
    found = predict_rl(scenario(tomllib.loads(answer.scenario_text)))
    assert isinstance(found, RlPrediction)
    assert found.step_time_s == pytest.approx(answer.best.seconds, rel=1e-6)


def test_the_answer_is_printed_as_json(answer: RlAnswer) -> None:
    document = to_json(answer)
    assert document["kind"] == "rl-plan"
    assert document["recommended"]["kind"] == "rl"
    assert document["plans"][0]["step_time_s"] <= document["plans"][-1]["step_time_s"]


def test_pins_are_kept() -> None:
    found = recommend_rl(asked("plan.rl.placement=async", "plan.rl.train_chips=8", "plan.rl.staleness=1", "plan.tp=1"))
    assert found.best is not None
    plan = found.best.scenario.plan
    assert (plan.rl.placement, plan.rl.train_chips, plan.rl.staleness, plan.mesh.tp) == ("async", 8, 1.0, 1)
    assert found.ratio is None


def test_the_fewest_chips_keep_the_step_time() -> None:
    found = recommend_rl(asked(step_time="300 s", on="32xh100-sxm"))
    assert found.best is not None
    assert found.chips is not None
    assert found.chips <= 16
    assert found.best.seconds <= 300
    late = recommend_rl(asked(step_time="1 s", on="8xh100-sxm"))
    assert late.best is None
    assert late.problems[0].path == "--step-time"


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (["plan.microbatch=2"], "plan.microbatch"), (["workload.prompts=-1"], "workload.prompts"),
        (["plan.tpp=2"], "plan.tpp"),
    ],
)  # fmt: skip
def test_what_cannot_be_pinned_is_said(settings: list[str], path: str) -> None:
    with pytest.raises(InputError) as caught:
        asked(*settings)
    assert path in {problem.path for problem in caught.value.problems}


def test_pins_by_the_name_of_the_search() -> None:
    assert pinned_decisions(["plan.rl.rollout.tp=4", "plan.engine=vllm"]) == {"rollout_tp": 4}


def test_splits_are_whole_nodes() -> None:
    base = asked(on="64xh100-sxm").base
    assert all(0 < train < 64 and train % 8 == 0 for train in splits(base, {}))
    assert splits(base, {"train_chips": 24}) == [24]
    assert all(shape.tp * shape.pp * shape.cp <= 64 for shape in trainer_shapes(base, 64, {}))


def test_less_staleness_is_preferred_within_two_per_cent() -> None:
    search = RlSearch(base=asked().base, pins={"placement": "async", "train_chips": 8})
    found = search.run()
    best = best_of(found)
    assert best is not None
    near = [one for one in found if one.seconds <= 1.02 * found[0].seconds]
    assert best.prediction.staleness.bound == min(one.prediction.staleness.bound for one in near)
