"""`validate`, `diff` and `explain` do what the kind of their file asks for; what fits no kind is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import Recipe, make, write

import ridgeline
from ridgeline.calibrate.explain import Explanation
from ridgeline.calibrate.next_measurement import NextMeasurements
from ridgeline.calibrate.prediction_diff import PredictionDiff, PredictionDiffs
from ridgeline.calibrate.request_log import BenchExplanation, LogFit
from ridgeline.calibrate.validation import Validation
from ridgeline.core.errors import InputError
from ridgeline.cost import ProfileDiff
from ridgeline.runtime.bringup import ReportDiff
from ridgeline.serving import StepPricing, WhySlow, predict_serving, refuse_impossible
from ridgeline.serving.measured import Replay
from ridgeline.serving.step_cost import LinearStepCost
from ridgeline.trace import Diff, DiffRuns

TRAIN = "examples/llama3.2-1b-1xh200.toml"
SERVE = "examples/serve-llama3.1-8b-1xh100.toml"
REPORTS = ("docs/bringup/cpu.json", "docs/bringup/h200-eager.json")
PROFILE = Path(ridgeline.__file__).parent / "cost" / "profiles" / "cpu.json"
RECORDING = Path("tests/data/serving/priority_prefix.json.gz")
FEW = ["workload.requests=40"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Requests that a server with a step cost of five numbers answered."""
    built = ridgeline.read_scenario(SERVE, ["workload.requests=60"])
    cost = LinearStepCost(step_s=6e-3, decode_s=4e-5, kv_token_s=1e-8, prefill_token_s=2e-5, attention_pair_s=1e-10)
    served = refuse_impossible(predict_serving(built, StepPricing(cost=cost))).run.served
    path = tmp_path_factory.mktemp("log") / "requests.jsonl"
    columns = zip(
        served.prompt_tokens, served.output_tokens, served.sent_s, served.first_token_s, served.finished_s, strict=True
    )
    keys = ("input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts")
    lines = [json.dumps(dict(zip(keys, np.array(row, dtype=float).tolist(), strict=True))) for row in columns]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of a load generator: twelve requests, a second apart."""
    many = 12
    table = {
        "endpoint_type": "openai", "model_id": "tiny", "request_rate": 1.0, "max_concurrency": None, "duration": 14.0,
        "request_throughput": 0.8, "input_lens": [100] * many, "output_lens": [3] * many, "errors": [""] * many,
        "start_times": [100.0 + at for at in range(many)], "ttfts": [0.1] * many, "latencies": [0.14] * many,
        "itls": [[0.02, 0.02]] * many,
    }  # fmt: skip
    path = tmp_path_factory.mktemp("bench") / "result.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("traces")
    return [write(make(Recipe(steps=1, layers=2, matmul_us=us)), folder / f"{us:.0f}.json") for us in (100.0, 110.0)]


class TestValidate:
    def test_a_log_of_requests_is_fitted(self, log: Path) -> None:
        found = ridgeline.validate(log)
        assert isinstance(found, LogFit)
        assert found.own
        assert found.errors.requests == 60

    def test_a_log_beside_another_has_the_numbers_of_that(self, log: Path) -> None:
        found = ridgeline.validate(log, anchor=log)
        assert isinstance(found, LogFit)
        assert not found.own

    def test_a_recording_is_replayed(self) -> None:
        found = ridgeline.validate(RECORDING)
        assert isinstance(found, Replay)
        assert found.differing_steps == 0

    def test_a_scenario_says_what_to_measure_next(self) -> None:
        assert isinstance(ridgeline.validate(next_=TRAIN), NextMeasurements)
        assert isinstance(ridgeline.validate(next_=ridgeline.read_scenario(TRAIN)), NextMeasurements)

    def test_rows_are_held_against_predictions(self) -> None:
        assert isinstance(ridgeline.validate(where=["source=h200"]), Validation)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"path": "rows.csv", "next_": TRAIN}, "a scenario alone"),
            ({"calibration": Path("mine.json")}, "--next SCENARIO"),
            ({"anchor": "run.csv"}, "--next SCENARIO"),
        ],
    )
    def test_what_fits_no_kind(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words):
            ridgeline.validate(**options)


class TestDiff:
    def test_reports(self) -> None:
        assert isinstance(ridgeline.diff(*REPORTS), ReportDiff)

    def test_profiles(self) -> None:
        assert isinstance(ridgeline.diff(PROFILE, str(PROFILE)), ProfileDiff)

    def test_scenarios(self) -> None:
        built = ridgeline.read_scenario(TRAIN, ["workload.global_batch=8"])
        assert isinstance(ridgeline.diff(TRAIN, TRAIN), PredictionDiff)
        assert isinstance(ridgeline.diff(TRAIN, built), PredictionDiff)
        assert isinstance(ridgeline.diff(TRAIN, [built]), PredictionDiff)
        assert isinstance(ridgeline.diff(TRAIN, [Path(TRAIN), built]), PredictionDiffs)
        assert isinstance(ridgeline.diff(TRAIN, settings=["workload.global_batch=8"]), PredictionDiff)

    def test_traces(self, traces: list[Path]) -> None:
        lines = [ridgeline.read_timeline(trace) for trace in traces]
        assert isinstance(ridgeline.diff(*traces), Diff)
        assert isinstance(ridgeline.diff(*lines), Diff)
        assert isinstance(ridgeline.diff(traces[0], traces), DiffRuns)

    def test_a_scenario_and_a_trace(self, traces: list[Path]) -> None:
        found = ridgeline.diff(TRAIN, [traces[0]])
        assert isinstance(found, Diff)
        assert found.by == "class"
        assert isinstance(ridgeline.diff(TRAIN, [TRAIN, traces[0]]), DiffRuns)

    @pytest.mark.parametrize("sides", [(), (None,), ([],)])
    def test_one_trace_alone(self, sides: tuple[Any, ...], traces: list[Path]) -> None:
        with pytest.raises(InputError, match="name what to compare it with"):
            ridgeline.diff(traces[0], *sides)

    def test_settings_need_a_scenario(self, traces: list[Path]) -> None:
        with pytest.raises(InputError, match="both are traces"):
            ridgeline.diff(*traces, settings=["plan.tp=2"])

    def test_requests_have_no_timeline_to_compare_with_a_trace(self, traces: list[Path]) -> None:
        with pytest.raises(InputError, match="expected train"):
            ridgeline.diff(SERVE, traces[0])

    def test_a_report_and_a_trace(self, traces: list[Path]) -> None:
        with pytest.raises(InputError):
            ridgeline.diff(REPORTS[0], traces[0])


class TestExplain:
    def test_a_trace(self, traces: list[Path]) -> None:
        assert isinstance(ridgeline.explain(TRAIN, traces[0], force=True), Explanation)

    def test_results_of_a_load_generator(self, bench: Path) -> None:
        cold = ridgeline.explain(SERVE, bench)
        assert isinstance(cold, BenchExplanation)
        anchored = ridgeline.explain(SERVE, bench, anchor=bench)
        assert isinstance(anchored, BenchExplanation)
        assert cold.anchored is None
        assert anchored.anchored is not None

    def test_requests_without_a_trace(self) -> None:
        assert isinstance(ridgeline.explain(SERVE, settings=FEW), WhySlow)
        assert isinstance(ridgeline.explain(ridgeline.read_scenario(SERVE, FEW)), WhySlow)

    def test_a_step_without_a_trace(self) -> None:
        with pytest.raises(InputError, match="no trace of a train scenario"):
            ridgeline.explain(TRAIN)
