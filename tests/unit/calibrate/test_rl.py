"""Published post-training runs: read as scenarios, predicted, and compared in pairs."""

from __future__ import annotations

import json
from types import MappingProxyType

import numpy as np
import pytest

from ridgeline.calibrate.rl_fit import LeftOut, RowPhases, _calibrate_entry, combine, rows_at
from ridgeline.calibrate.truth.rl_rows import RlRow, rl_row, shipped_lengths
from ridgeline.calibrate.truth.rows import TRUTH, Row, Skipped, read_table
from ridgeline.calibrate.validate import validate
from ridgeline.calibrate.validation import Validation
from ridgeline.core.encode import to_json
from ridgeline.rl import RlPrediction, predict_rl, shipped_parameters

KNOWN = ("nemorl06-07", "verl-h20-7b-async-64", "verl-h20-30ba3b-colo-128")


@pytest.fixture(scope="module")
def found() -> Validation:
    return validate("rl")


def test_every_row_is_a_case_or_has_a_reason(found: Validation) -> None:
    assert found.rows == 37
    assert len(found.cases) >= 28
    assert all(item.reason for item in found.skipped)
    assert {case.metric for case in found.cases} == {"step_time_s", "t_sync_s", "tokens_per_s"}


def test_figures_are_those_that_are_promised(found: Validation) -> None:
    steps = [abs(case.residual) for case in found.cases if case.metric == "step_time_s"]
    assert np.median(steps) < 0.2
    assert all(pair.agrees for pair in found.pairs)
    assert len(found.pairs) == 9
    assert (found.errors.coverage90 or 0) >= 0.85


def test_cases_print_what_judges_read(found: Validation) -> None:
    document = json.loads(json.dumps(to_json(found)))
    for case in document["cases"]:
        assert {"id", "metric", "measured", "predicted", "low", "high"} <= set(case)
        assert case["low"] < case["predicted"] < case["high"]
    assert document["cases"][0]["phases"]["t_train_s"]["predicted"] > 0
    assert set(document["pairs"][0]) >= {"pair", "measured_ratio", "predicted_ratio"}


def row(**cells: str) -> RlRow | Skipped:
    base = {
        "x_measure": "step", "x_chip": "h100-sxm", "x_model": "qwen3-30b-a3b", "n": "32", "step_time_s": "100",
        "prompts_x_samples": "64x32", "response_len_max": "4096", "x_family": "nemo-rl",
    }  # fmt: skip
    return rl_row(Row(id="r", table="t", cells=MappingProxyType({**base, **cells})))


def test_unseen_rows_are_read_by_their_words() -> None:
    read = row(trainer_parallelism="[TP,CP,EP,PP,VPP]=[2,1,8,1,n/a]", rollout_engine_tp="vLLM [TP,PP]=[4,1]")
    assert isinstance(read, RlRow)
    assert (read.scenario.plan.mesh.tp, read.scenario.plan.mesh.ep, read.scenario.plan.rl.rollout.tp) == (2, 8, 4)
    split = row(x_placement="disaggregated", x_train_chips="16", x_rollout_chips="16", x_staleness="1")
    assert isinstance(split, RlRow)
    assert split.scenario.plan.rl.train_chips == 16
    stranger = row(x_family="someone-else", x_model="llama3.1-8b", framework="Another RL")
    assert isinstance(stranger, RlRow)


@pytest.mark.parametrize(
    ("cells", "word"),
    [
        ({"x_chip": ""}, "chip"), ({"x_model": ""}, "model"), ({"n": ""}, "chips"), ({"x_measure": "run"}, "x_measure"),
        ({"step_time_s": ""}, "step_time_s"), ({"prompts_x_samples": "?"}, "prompts"), ({"n": "24"}, "dp"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_predicted_say_why(cells: dict[str, str], word: str) -> None:
    read = row(**cells, trainer_parallelism="[TP,EP]=[5,1]") if cells.get("n") else row(**cells)
    assert isinstance(read, Skipped)
    assert word in read.reason


def test_lengths_that_nobody_prints_are_those_of_the_models_class() -> None:
    means = {}
    for name in ("Qwen3-8B-Base", "Qwen3-8B"):
        read = row(x_model="qwen3-8b", model=name, x_family="someone-else", response_len_max="16384")
        assert isinstance(read, RlRow)
        assert read.length_spread == pytest.approx(0.6)
        assert any("known to a factor of two" in note for note in read.scenario.assumptions)
        means[name] = read.scenario.workload.data.response_tokens.mean
    assert means["Qwen3-8B"] > 3 * means["Qwen3-8B-Base"]
    agent = row(x_model="qwen3-8b", algorithm="GRPO, <= 9 turns", x_family="someone-else", model="Qwen3-8B-Base")
    assert isinstance(agent, RlRow)
    assert agent.scenario.workload.agent is not None
    assert agent.scenario.workload.data.response_tokens.mean > means["Qwen3-8B-Base"]
    stated = row(response_len_mean="900")
    assert isinstance(stated, RlRow)
    assert stated.length_spread == 0


def test_a_guessed_length_widens_the_interval(found: Validation) -> None:
    reach = {case.row.id: case.high_s / case.predicted_s for case in found.cases}
    assert reach["msrl-06"] > reach["nemorl06-05"]
    assert reach["verl-h20-7b-colo-32"] > 1.4


def test_what_a_row_leaves_open_is_named() -> None:
    throughput = {"x_measure": "throughput", "tokens_per_s": "100", "n": "", "x_family": "mindspeed-rl"}
    read = row(**throughput, x_chip="ascend-910b2", x_model="qwen2.5-32b", algorithm="PPO", trainer_parallelism="")
    assert isinstance(read, RlRow)
    assert read.scenario.system.chips == 32  # states of an actor and a critic
    assert any("32 ranks" in note for note in read.scenario.assumptions)
    single = row(n="1", prompts_x_samples="16x1", x_family="verl", x_model="", model="Qwen2.5-0.5B-Instruct")
    assert isinstance(single, RlRow)
    assert (single.scenario.workload.data.prompts, single.scenario.workload.data.samples) == (8, 2)
    assert single.scenario.plan.mesh.ranks == 1
    large = row(x_model="deepseek-v3", n="256", x_family="someone-else", trainer_parallelism="[EP,PP]=[16,16]")
    assert isinstance(large, RlRow)
    assert large.scenario.plan.rl.rollout.chips >= 32  # 1.3 TB of weights


def test_one_number_of_a_model_is_judged_on_rows_that_it_did_not_see() -> None:
    def entry(id: str, predicted: float, model: str = "m") -> LeftOut:
        return LeftOut(id=id, family="f", model=model, metric="step_time_s", measured=100.0, cold=predicted)

    rows = [entry("a", 200.0), entry("b", 200.0), entry("c", 100.0), entry("alone", 50.0, "other")]
    numbers = {one.id: _calibrate_entry(one, rows) for one in rows}
    assert numbers["alone"] is None
    assert numbers["c"] == pytest.approx(100 / 2 ** (2 / 3))  # two rows twice too slow, drawn to 1 by one
    assert numbers["a"] == pytest.approx(200 / 2 ** (1 / 3))


def test_the_fit_combines_phases_as_the_prediction_does() -> None:
    parameters = shipped_parameters()
    rows = [
        one
        for one in read_table(TRUTH / "rl.csv")[1]
        if one.id in ("nemorl06-07", "verl-h20-7b-async-64", "verl-h20-30ba3b-colo-128")
    ]
    for phases in rows_at(rows, shipped_lengths()):
        assert isinstance(phases, RowPhases)
        found = predict_rl(phases.read.scenario, parameters=parameters, draws=3)
        assert isinstance(found, RlPrediction)
        assert combine(phases, parameters)["step_time_s"] == pytest.approx(found.step_time_s, rel=0.03)
