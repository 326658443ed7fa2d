"""A serve scenario beside results of a load generator: causes sum, an anchor explains, repeats are one load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run

import ridgeline
from ridgeline.calibrate.request_log import METRICS, explain_bench
from ridgeline.core.errors import InputError
from ridgeline.plan.scenario import Scenario
from ridgeline.serving.bench_result import BenchRun
from ridgeline.serving.deployment import StepPricing
from ridgeline.serving.load import load_of
from ridgeline.serving.serving_prediction import predict_serving, refuse_impossible
from ridgeline.serving.step_cost import LinearStepCost

TRUE = LinearStepCost(
    step_s=2e-2, decode_s=4e-4, kv_token_s=2e-7, prefill_token_s=3e-4, attention_pair_s=1e-9
)  # what the server takes; the scenario's chip is far faster
TABLE = {
    "model": "llama3-8b", "system": "1xh100-sxm", "plan": {"engine": "vllm"},
    "workload": {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 2}, "isl": 256, "osl": 32, "requests": 40,
                 "range_ratio": 0.5},
}  # fmt: skip


def scenario(rate: float = 2.0, seed: int = 0) -> Scenario:
    return ridgeline.scenario(TABLE, [f"workload.arrivals.rate={rate}", f"workload.seed={seed}"])


def measured(rate: float, seed: int, slower: float = 1.0) -> BenchRun:
    """What a load generator would have seen of a server with the true step cost."""
    made = scenario(rate, seed)
    found = refuse_impossible(predict_serving(made, StepPricing(cost=TRUE))).run.served
    order = np.argsort(found.sent_s)
    sent = {request.id: request.arrival_s for request in load_of(made.workload)}  # type: ignore[arg-type]
    return BenchRun(
        source=f"run-{rate:g}-{seed}", tool="vllm bench serve", model="", request_rate=rate, max_concurrency=None,
        failed=0, duration_s=found.duration_s, sent_s=np.array([sent[found.ids[at]] for at in order]),
        ttft_s=found.ttft_s[order] * slower, e2e_s=found.e2e_s[order] * slower,
        prompt_tokens=found.prompt_tokens[order], output_tokens=found.output_tokens[order], pauses=(),
    )  # fmt: skip


def test_an_anchor_explains_other_loads() -> None:
    runs = [measured(rate, seed) for rate in (1.0, 4.0) for seed in (1, 2, 3)]
    found = explain_bench(scenario(), runs, anchor=measured(2.0, 9))
    assert [(load.request_rate, load.repeats) for load in found.loads] == [(1.0, 3), (4.0, 3)]
    for load in found.loads:
        for metric in METRICS:
            assert abs(load.residual(metric)) < 0.05
            assert load.cold[metric] < 0.8 * load.measured[metric]


def test_a_start_far_from_the_machine_is_mended_by_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU a prompt token takes a twentieth of a step; proportions of an accelerator end beside it."""
    from ridgeline.calibrate import request_log

    monkeypatch.setattr(request_log, "START", request_log.START * np.array([1e3, 1e3, 1.0, 1e-8, 1.0]))
    found = explain_bench(scenario(), [measured(1.0, 1), measured(4.0, 1)], anchor=measured(2.0, 9))
    assert all(abs(load.residual(metric)) < 0.08 for load in found.loads for metric in METRICS)
    monkeypatch.setattr(request_log, "POOR", np.inf)
    found = explain_bench(scenario(), [measured(1.0, 1)], anchor=measured(2.0, 9))
    assert max(abs(found.loads[0].residual(metric)) for metric in METRICS) > 0.2


def test_causes_sum_to_the_gap() -> None:
    [load] = explain_bench(scenario(), [measured(2.0, 1, slower=1.3)], anchor=measured(2.0, 9)).loads
    assert list(load.causes) == ["decode steps", "prompt steps", "rest"]
    for metric in METRICS:
        total = sum(cause[metric] for cause in load.causes.values())
        assert total == pytest.approx(load.measured[metric] - load.cold[metric])
        assert load.causes["rest"][metric] > 0


def test_without_an_anchor_all_is_rest() -> None:
    found = explain_bench(scenario(), [measured(2.0, 1)])
    assert (found.cost, list(found.loads[0].causes)) == (None, ["rest"])
    assert found.loads[0].cold == found.loads[0].predicted


def test_a_training_scenario_is_refused() -> None:
    work = {"kind": "train", "seq": 4096, "global_batch": 8}
    made = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": work, "plan": {}})
    with pytest.raises(InputError, match="serves requests"):
        explain_bench(made, [])


def test_explain_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = measured(2.0, 1)
    result: dict[str, Any] = {
        "endpoint_type": "openai", "request_rate": 2.0, "request_throughput": 2.0, "duration": one.duration_s,
        "input_lens": one.prompt_tokens.tolist(), "output_lens": one.output_tokens.tolist(),
        "ttfts": one.ttft_s.tolist(), "latencies": one.e2e_s.tolist(), "itls": [[]] * one.requests,
        "start_times": (one.sent_s + 5).tolist() if one.sent_s is not None else [],
    }  # fmt: skip
    path, table = tmp_path / "run.json", tmp_path / "serve.json"
    path.write_text(json.dumps(result), encoding="utf-8")
    table.write_text(json.dumps(TABLE), encoding="utf-8")
    code, out, _ = run(capsys, monkeypatch, "explain", str(table), str(path), "--json")
    sheet = json.loads(out)
    assert (code, sheet["kind"], len(sheet["loads"])) == (0, "explain-bench", 1)
    assert sheet["loads"][0]["measured_s"]["e2e"] == pytest.approx(float(np.median(one.e2e_s)))
    code, out, _ = run(capsys, monkeypatch, "explain", str(table), str(path), "--anchor", str(path))
    assert code == 0
    assert "anchored on run.json" in out
