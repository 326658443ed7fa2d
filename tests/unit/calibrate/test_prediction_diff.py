"""Two predictions compared by class: the changes sum to the difference, of training, prefill, decode and serving."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import ridgeline
from ridgeline.calibrate.prediction_diff import PredictionDiff, PredictionDiffs, TimeChange
from ridgeline.core.encode import answer_json
from ridgeline.core.errors import InputError
from ridgeline.report.results import page, verb_schema

TRAIN = "examples/llama3-70b-64xh100.toml"
PREFILL = "examples/deepseek-v3-prefill-8xh200.toml"
DECODE = "examples/llama3-70b-decode-4xh100.toml"
SERVE = "examples/serve-llama3.1-8b-1xh100.toml"
FEW = "workload.requests=60"
TWICE = 'chip.hbm.bandwidth="6.7 TB/s"'
CHANGES = {
    TRAIN: ("plan.recompute=full", "workload.global_batch=256", TWICE, "plan.engine=torch-eager"),
    PREFILL: ("workload.batch=16", "workload.seq=8192", TWICE),
    DECODE: ("workload.batch=2", "workload.context=8192", "plan.precision=bf16", "plan.engine=sglang", TWICE),
}


def compare(scenario: str, *changes: str) -> PredictionDiff:
    found = ridgeline.diff(scenario, settings=changes)
    assert isinstance(found, PredictionDiff)
    return found


def assert_sums(time: TimeChange) -> None:
    """Classes sum to the difference and to both times; so do the bounds, where a time has some."""
    whole = max(time.before_s, time.after_s)
    assert sum(change.difference_s for change in time.classes) == pytest.approx(time.difference_s, abs=1e-12 * whole)
    for side in ("before", "after"):
        total = getattr(time, f"{side}_s")
        assert sum(getattr(change, f"{side}_s") for change in time.classes) == pytest.approx(total, rel=1e-12)
        if bounds := getattr(time, f"{side}_bounds"):
            assert sum(bounds.values()) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("scenario", CHANGES)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_classes_sum_to_the_difference(scenario: str, data: st.DataObject) -> None:
    changes = data.draw(st.lists(st.sampled_from(CHANGES[scenario]), min_size=1, max_size=2, unique=True))
    found = compare(scenario, *changes)
    assert_sums(found.time)
    own = ridgeline.predict(ridgeline.read_scenario(scenario, changes))
    assert found.after.time_s == own.step_time_s


def test_more_tensor_ranks_show_as_their_traffic() -> None:
    found = compare(TRAIN, "plan.tp=4", "plan.pp=4")
    assert found.time.classes[0].name == "tp"
    assert not found.after.fits
    assert not any(figure.name == "cost of a million tokens" and figure.after for figure in found.figures)


def test_twice_the_memory_bandwidth_of_a_decode() -> None:
    """What memory bounds takes half as long; the network and the host take over."""
    found = compare(DECODE, TWICE)
    changes = {change.name: change for change in found.time.classes}
    assert changes["kv-cache"].after_s == pytest.approx(changes["kv-cache"].before_s / 2)
    assert changes["network"].difference_s == pytest.approx(0, abs=1e-15)
    shares = [bounds["memory"] / whole for bounds, whole in (
        (found.time.before_bounds, found.time.before_s), (found.time.after_bounds, found.time.after_s))]  # fmt: skip
    assert shares[1] < shares[0]
    assert "4xh100-sxm with hbm.bandwidth x 2" in re.sub("<[^>]*>", "", page(found))


def test_a_bound_that_changes_is_named() -> None:
    found = compare(DECODE, "workload.batch=2048")
    matmul = next(change for change in found.time.classes if change.name == "matmul")
    assert (matmul.before_bound, matmul.after_bound) == ("memory", "compute")


def test_requests_under_load() -> None:
    found = compare(SERVE, FEW, "workload.arrivals.rate=24")
    assert found.serving is not None
    assert_sums(found.time)
    assert found.serving.decode_step is not None
    assert_sums(found.serving.decode_step)
    assert found.serving.after.batch > found.serving.before.batch
    ttft = next(metric for metric in found.serving.metrics if metric.metric == "ttft")
    own = ridgeline.predict(ridgeline.read_scenario(SERVE, [FEW, "workload.arrivals.rate=24"]))
    assert ttft.after_s == own.metrics.ttft.figures
    assert {"throughput", "batch of a replica, on average", "cache of a replica"} <= {
        figure.name for figure in found.figures
    }


def test_what_limits_a_full_deployment_is_said() -> None:
    few_seats = "plan.serving.vllm.max_num_seqs=4"
    found = compare(SERVE, FEW, few_seats)
    assert found.serving is not None
    assert (found.serving.before.limit, found.serving.after.limit) == ("tokens", "max_num_seqs")
    assert found.serving.after.batch <= 4


def test_files_values_and_several() -> None:
    built = [ridgeline.read_scenario(TRAIN, [setting]) for setting in ("plan.tp=8", "plan.recompute=full")]
    several = ridgeline.diff(built[0], built)
    assert isinstance(several, PredictionDiffs)
    assert several.runs[0].time.difference_s == 0
    assert several.runs[1].slower > 0
    sheet = answer_json(several)
    assert list(Draft202012Validator(verb_schema("diff")).iter_errors(sheet)) == []
    assert "no difference" not in page(several)
    both = ridgeline.diff(TRAIN, TRAIN, settings=["plan.recompute=full"])
    assert isinstance(both, PredictionDiff)
    assert both.time.difference_s == 0


@pytest.mark.parametrize("scenario", [TRAIN, DECODE, SERVE])
def test_what_is_printed_is_what_the_schema_says(scenario: str) -> None:
    setting = "plan.recompute=full" if scenario == TRAIN else FEW if scenario == SERVE else "workload.batch=8"
    sheet = json.loads(json.dumps(answer_json(compare(scenario, setting)), allow_nan=False))
    assert sheet["kind"] == "prediction diff"
    assert list(Draft202012Validator(verb_schema("diff")).iter_errors(sheet)) == []


@pytest.mark.parametrize(
    ("sides", "options", "words"),
    [
        ((TRAIN, DECODE), {}, "train in llama3-70b-64xh100.toml, decode in llama3-70b-decode-4xh100.toml"),
        ((TRAIN,), {}, "--set KEY=VALUE"),
        ((TRAIN, TRAIN), {"policy": "compute"}, "a trace among A and B"),
        ((TRAIN, TRAIN), {"classes": Path("rules.toml")}, "a trace among A and B"),
        ((TRAIN,), {"settings": ["plan.tp=3"]}, "plan.tp"),
    ],
)
def test_what_cannot_be_compared_is_refused(sides: tuple[str, ...], options: dict, words: str) -> None:
    with pytest.raises(InputError, match="got") as refused:
        ridgeline.diff(*sides, **options)
    assert words in str(refused.value)
