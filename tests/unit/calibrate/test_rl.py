"""Published post-training runs: read as scenarios, predicted, and compared in pairs."""

from __future__ import annotations

import json
from types import MappingProxyType

import numpy as np
import pytest

from ridgeline.calibrate.rl_fit import RowPhases, combine, rows_at
from ridgeline.calibrate.truth.rl_rows import RlRow, rl_row, shipped_lengths
from ridgeline.calibrate.truth.rows import TRUTH, Row, Skipped, read_table
from ridgeline.calibrate.validate import validate
from ridgeline.calibrate.validation import Validation
from ridgeline.core.encode import to_json
from ridgeline.rl import RlPrediction, predict_rl, shipped_parameters


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


def test_the_fit_combines_phases_as_the_prediction_does() -> None:
    parameters = shipped_parameters()
    rows = [one for one in read_table(TRUTH / "rl.csv")[1] if one.id in ("nemorl06-07", "verl-h20-7b-async-64")]
    for phases in rows_at(rows, shipped_lengths()):
        assert isinstance(phases, RowPhases)
        found = predict_rl(phases.read.scenario, parameters=parameters, draws=3)
        assert isinstance(found, RlPrediction)
        assert combine(phases, parameters)["step_time_s"] == pytest.approx(found.step_time_s, rel=0.03)
