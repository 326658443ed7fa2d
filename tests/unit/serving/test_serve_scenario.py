"""A scenario file with a load becomes requests, priced steps, a fleet and its metrics; what cannot be is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.ir.forward_steps import forward_steps
from ridgeline.plan.scenario_file import apply_settings
from ridgeline.plan.workload import Serve
from ridgeline.serving.deployment import StepPricing, instances_of, price_of
from ridgeline.serving.load import load_of
from ridgeline.serving.serving_prediction import FRONT_END_S, ServingPrediction, predict_serving
from ridgeline.serving.slow_requests import why_slow
from ridgeline.serving.step_cost import Price, PricedSteps
from ridgeline.sim import Impossible

EXAMPLE = "examples/serve-llama3.1-8b-1xh100.toml"
PAIR = "examples/serve-disaggregated-llama3.1-70b.toml"


def table_error(table: PricedSteps, price: Price, steps: Sequence[tuple[int, int, int, int]]) -> float:
    """The largest relative error of a table over (prompt tokens, context, decodes, cached tokens) of steps."""
    columns = np.array(steps, dtype=float).T
    exact = price(
        forward_steps(
            prefill_tokens=columns[0],
            prefill_pairs=columns[0] * (columns[1] + columns[0] / 2),
            decodes=columns[2],
            kv_tokens=columns[3],
        )
    )
    tabled = []
    for prompt, context, decodes, kv_tokens in steps:
        if prompt:
            tabled.append(table.mixed_step_seconds([(prompt, context)], decodes, kv_tokens))
        else:
            fixed, slope = table.decode_line(decodes)
            tabled.append(fixed + slope * kv_tokens)
    return float(np.max(np.abs(np.array(tabled) / exact - 1)))


def scenario(workload: dict[str, Any] | None = None, **plan: Any) -> ridgeline.Scenario:
    asked = {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 8}, "requests": 120, "isl": 512, "osl": 64}
    made = {"model": "llama3.1-8b", "system": plan.pop("system", "1xh100-sxm"), "plan": plan}
    return ridgeline.scenario(made | {"workload": asked | (workload or {})})


def predicted(workload: dict[str, Any] | None = None, **plan: Any) -> ServingPrediction:
    found = predict_serving(scenario(workload, **plan))
    assert isinstance(found, ServingPrediction), found
    return found


@pytest.mark.parametrize(
    ("arrivals", "least"),
    [
        ({"kind": "gamma", "rate": 10, "burstiness": 0.3}, 11.9),
        ({"kind": "constant", "rate": 10}, 11.8),
        ({"kind": "on-off", "rate": 20, "on": "2 s", "off": "3 s"}, 10.0),
        ({"kind": "closed-loop", "concurrency": 4, "think": "0.1 s"}, 5.0),
        ({"kind": "sessions", "rate": 5, "turns": 4, "system_tokens": 100}, 5.0),
    ],
)
def test_loads_of_every_kind(arrivals: dict[str, Any], least: float) -> None:
    found = predicted({"arrivals": arrivals})
    assert found.metrics.requests == 120
    assert found.metrics.duration_s > least
    again = predicted({"arrivals": arrivals})
    assert found.metrics == again.metrics  # the same seed, the same result


def test_a_setting_replaces_the_load_of_a_file(tmp_path: Path) -> None:
    """Arrivals of another kind leave nothing of those before; a file of lengths makes those of the table give way."""
    table = {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 4}, "isl": 100, "osl": 10, "range_ratio": 0.5}
    trace = tmp_path / "some.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,374,44\n2023-11-16 18:15:47.6,9,5\n"
    )

    def asked(*settings: str) -> dict[str, Any]:
        data: dict[str, Any] = {"workload": dict(table)}
        assert not apply_settings(data, settings)
        work: dict[str, Any] = data["workload"]
        return work

    closed = asked('workload.arrivals={kind="closed-loop",concurrency=4}')
    assert closed["arrivals"] == {"kind": "closed-loop", "concurrency": 4}
    assert closed["isl"] == 100
    assert asked("workload.arrivals={rate=8}")["arrivals"] == {"kind": "poisson", "rate": 8}
    assert set(asked(f"workload.arrivals={trace}")) == {"kind", "arrivals"}
    assert set(asked(f"workload.lengths={trace}")) == {"kind", "arrivals", "lengths"}
    assert asked(f"workload.arrivals={trace}", "workload.isl=7")["isl"] == 7  # said twice: refused by the workload


def test_a_seed_is_another_load_of_the_same_length() -> None:
    one, other = (load_of(scenario({"seed": seed, "range_ratio": 0.5}).workload) for seed in (0, 1))  # type: ignore[arg-type]
    assert one != other
    assert one[-1].arrival_s == pytest.approx(other[-1].arrival_s)
    assert all(256 <= request.prompt_tokens <= 768 and 32 <= request.output_tokens <= 96 for request in one)


def test_clients_may_allow_more_than_answers_have() -> None:
    work = scenario({"max_new_tokens": 4096, "prefix": 128}).workload
    assert isinstance(work, Serve)
    made = load_of(work)
    assert {request.max_new_tokens for request in made} == {4096}
    assert {request.prompt_tokens for request in made} == {512}
    assert predicted({"prefix": 128}).metrics.hit_share == pytest.approx(128 / 512 * 119 / 120)


def test_traces_bring_times_and_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,100,10\n2,200,20\n4,300,30\n")
    asked = {"kind": "serve", "arrivals": "azure.csv"}
    table = {"model": "llama3.1-8b", "system": "1xh100-sxm", "workload": asked}
    work = ridgeline.scenario(table, folder=tmp_path).workload
    assert isinstance(work, Serve)
    made = load_of(work)
    assert [(one.arrival_s, one.prompt_tokens, one.output_tokens) for one in made] == [
        (0.0, 100, 10), (2.0, 200, 20), (4.0, 300, 30),
    ]  # fmt: skip
    faster = {"kind": "trace", "file": "azure.csv", "rate": 2}
    work = ridgeline.scenario(table | {"workload": asked | {"arrivals": faster}}, folder=tmp_path).workload
    assert isinstance(work, Serve)
    assert load_of(work)[-1].arrival_s == pytest.approx(1.0)


@pytest.mark.parametrize("arrivals", ["../else.csv", "/etc/passwd"])
def test_traces_outside_the_folder_are_refused(arrivals: str, tmp_path: Path) -> None:
    table = {"model": "llama3.1-8b", "system": "1xh100-sxm", "workload": {"kind": "serve", "arrivals": arrivals}}
    with pytest.raises(InputError, match=r"workload\.arrivals"):
        ridgeline.scenario(table, folder=tmp_path)


@pytest.mark.parametrize(
    ("workload", "path"),
    [
        ({"arrivals": {"kind": "poisson", "rate": 0}}, "arrivals.rate"),
        ({"arrivals": {"kind": "poisson", "rate": -3}}, "arrivals.rate"),
        ({"arrivals": {"kind": "poison", "rate": 3}}, "arrivals.kind"),
        ({"arrivals": {"kind": "gamma", "rate": 3, "burstiness": 0}}, "burstiness"),
        ({"isl": 0}, "isl"),
        ({"isl": None}, "isl"),
        ({"requests": 10**9}, "requests"),
        ({"objective": {"ttft": "0 s"}}, "objective.ttft"),
        ({"objective": {"ttft": "1 s", "percentile": 101}}, "percentile"),
        ({"objective": {"ttft": 5}}, "objective.ttft"),
        ({"prefix": 512}, "prefix"),
        ({"lengths": "some.csv"}, "isl"),
    ],
)
def test_impossible_loads_are_refused_where_they_are_written(workload: dict[str, Any], path: str) -> None:
    with pytest.raises(InputError, match=path):
        scenario(
            {key: value for key, value in workload.items() if value is not None} | {"isl": workload.get("isl", 512)}
        )


@pytest.mark.parametrize(
    "serving",
    [
        {"vllm": {"max_num_seqs": 8}, "sglang": {}},
        {"vllm": {"gpu_memory_utilization": 1.2}},
        {"replicas": 2},
        {"data_parallel_size": 3},
        {"pools": [{"role": "prefill"}]},
        {"pools": [{"role": "prefill", "tp": 4}, {"role": "decode"}]},
        {"autoscale": {"max_replicas": 9, "target_ongoing_requests": 5}},
        {"router": "random"},
    ],
)
def test_impossible_deployments_are_refused(serving: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"plan\.serving"):
        scenario(serving=serving)


@pytest.mark.parametrize(
    "arrivals",
    [
        {"kind": "poisson", "rate": 1e-6},
        {"kind": "poisson", "rate": 1e-320},
        {"kind": "constant", "rate": 1e-320},
        {"kind": "on-off", "rate": 5, "on": "1 s", "off": "1e9 s"},
        {"kind": "gamma", "rate": 1, "burstiness": 1e-300},
        {"kind": "closed-loop", "concurrency": 4, "think": "1e12 s"},
    ],
)
@pytest.mark.filterwarnings("error")
def test_loads_beyond_a_year_are_refused(arrivals: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="a year of simulated time at most"):
        predict_serving(scenario({"arrivals": arrivals}))


def test_more_failures_than_a_run_can_play_are_refused() -> None:
    with pytest.raises(InputError, match=r"plan\.serving\.mtbf"):
        predict_serving(
            scenario({"arrivals": {"kind": "poisson", "rate": 1e-3}}, serving={"mtbf": "1 ms", "restart": "1 ms"})
        )


def test_what_does_not_fit_is_told() -> None:
    large = predict_serving(ridgeline.read_scenario(EXAMPLE, ["model=llama3-70b"]))
    assert isinstance(large, Impossible)
    assert "before any cache" in str(large)
    long = predict_serving(scenario({"isl": 140_000}))
    assert isinstance(long, Impossible)
    assert "too long" in str(long)


@pytest.mark.parametrize(
    ("model", "plan"),
    [("llama3.1-8b", {}), ("qwen3-30b-a3b", {"tp": 2}), ("llama3.1-70b", {"tp": 4}), ("deepseek-v3", {"tp": 8})],
)
def test_tables_are_the_prices_they_were_made_of(model: str, plan: dict[str, int]) -> None:
    made = ridgeline.scenario(
        {
            "model": model, "system": f"{plan.get('tp', 1)}xh200-sxm", "plan": {"engine": "vllm", **plan},
            "workload": {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 1}, "isl": 9, "osl": 9},
        }
    )  # fmt: skip
    one = instances_of(made)[0]
    assert isinstance(one.cost, PricedSteps)
    dice = np.random.default_rng(0)
    steps = [
        (int(p), int(c), int(d), int(d * k))
        for p, c, d, k in zip(
            dice.integers(64, 4000, 60), dice.integers(0, 4000, 60), dice.integers(0, 200, 60),
            dice.integers(1, 4000, 60), strict=True,
        )
    ]  # fmt: skip
    assert table_error(one.cost, price_of(one.scenario, StepPricing()), steps) < 0.07
    alone = [
        (0, 0, int(d), int(d * k)) for d, k in zip(dice.integers(1, 250, 60), dice.integers(16, 9000, 60), strict=True)
    ]
    assert table_error(one.cost, price_of(one.scenario, StepPricing()), alone) < 0.03


def test_engines_and_knobs_change_the_answer() -> None:
    load = {"arrivals": {"kind": "poisson", "rate": 40}, "requests": 200}
    roomy = predicted(load, serving={"vllm": {"max_num_seqs": 256}})
    tight = predicted(load, serving={"vllm": {"max_num_seqs": 8}})
    assert tight.metrics.ttft.mean > 5 * roomy.metrics.ttft.mean
    starved = predicted(load, serving={"vllm": {"num_gpu_blocks_override": 200}})
    assert starved.run.served.preemptions.sum() > 0
    other = predicted(load, engine="sglang", serving={"sglang": {"chunked_prefill_size": 1024}})
    batches = predicted(load, serving={"static": {"batch_size": 16}})
    assert len({roomy.metrics.e2e.mean, other.metrics.e2e.mean, batches.metrics.e2e.mean}) == 3


def test_pipelines_and_ranks_in_step_serve() -> None:
    assert predicted(system="2xh100-sxm", pp=2).metrics.requests == 120
    paired = predicted(system="2xh100-sxm", serving={"data_parallel_size": 2})
    apart = predicted(system="2xh100-sxm")
    assert paired.instances[0].ranks == 2
    assert paired.metrics.tpot.mean >= apart.metrics.tpot.mean


def test_disaggregation_moves_the_cache_that_prompts_have() -> None:
    found = predict_serving(ridgeline.read_scenario(PAIR, ["workload.requests=60"]))
    assert isinstance(found, ServingPrediction)
    tokens = int(found.run.served.prompt_tokens.sum())
    assert found.run.transfer_bytes == tokens * 80 * 8 * 128 * 2 * 2  # layers, heads, width, keys and values, bf16
    assert found.metrics.time["transfer"] > 0
    assert found.metrics.time["stalled"] < 0.01 * found.metrics.time["decode"]


def test_why_requests_are_slow() -> None:
    crowded = ridgeline.read_scenario(EXAMPLE, ["workload.arrivals.rate=60", "workload.requests=300"])
    found = predict_serving(crowded, sample=True)
    assert isinstance(found, ServingPrediction)
    told = why_slow(found)
    assert told.cause == "queue"
    assert told.queue is not None
    assert told.queue.limit == "max_num_seqs"
    assert told.remedies[0].found < told.found
    assert told.kept_rate is not None
    assert told.kept_rate < 60
    assert told.slowest[0].seconds == pytest.approx(found.run.served.ttft_s.max())
    assert sum(told.slowest[0].parts.values()) == pytest.approx(told.slowest[0].seconds)
    assert told.least["ttft"] < found.metrics.ttft.mean


def test_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    few = ("--set", "workload.requests=50")
    code, out, _ = run(capsys, monkeypatch, "predict", EXAMPLE, *few)
    assert code == 0
    assert "TTFT" in out
    page = tmp_path / "requests.html"
    code, out, _ = run(capsys, monkeypatch, "timeline", EXAMPLE, *few, "--html", str(page))
    assert code == 0
    assert "Replica 0" in page.read_text()
    code, out, _ = run(capsys, monkeypatch, "explain", EXAMPLE, *few)
    assert code == 0
    assert "slowest" in out
    code, _, err = run(capsys, monkeypatch, "explain", "examples/llama3-70b-64xh100.toml")
    assert code == 2
    assert "trace" in err


def test_a_log_of_requests_gives_five_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = predicted({"requests": 60, "range_ratio": 0.8}).run.served
    log = tmp_path / "run.jsonl.gz"
    with gzip.open(log, "wt") as lines:
        for place, name in enumerate(found.ids):
            row = {
                "request_id": name, "input_toks": int(found.prompt_tokens[place]),
                "output_toks": int(found.output_tokens[place]),
                "queued_ts": 5.0 + FRONT_END_S + float(found.sent_s[place]),
                "first_token_ts": 5.0 + float(found.first_token_s[place]),
                "last_token_ts": 5.0 + float(found.finished_s[place]),
            }  # fmt: skip
            lines.write(json.dumps(row) + "\n")
    code, out, _ = run(capsys, monkeypatch, "validate", str(log), "--json")
    assert code == 0
    told = json.loads(out)
    assert len(told["numbers"]) == 5
    assert told["errors"]["e2e_mape"] < 0.05
    assert told["held_out"]["requests"] == 30
    anchored = ridgeline.predict(scenario({"requests": 60, "range_ratio": 0.8}), anchor=str(log))
    assert isinstance(anchored, ServingPrediction)
    assert anchored.metrics.e2e.mean == pytest.approx(float(found.e2e_s.mean()), rel=0.03)
    assert anchored.metrics.ttft.mean == pytest.approx(float(found.ttft_s.mean()), rel=0.06)


def test_a_prompt_passes_every_stage_and_stages_work_side_by_side() -> None:
    """Two stages: a lone prompt takes as long as on one chip or longer, a round of a full budget twice over as long as
    its slowest stage twice, and decodes of many no longer than both halves one after the other."""
    made = ridgeline.scenario(
        {
            "model": "llama3-8b", "system": "2xh100-sxm", "plan": {"engine": "vllm", "pp": 2},
            "workload": {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 4}, "isl": 512, "osl": 64},
        }
    )  # fmt: skip
    one = replace(made, plan=replace(made.plan, mesh=replace(made.plan.mesh, pp=1)))
    steps = forward_steps(
        prefill_tokens=[2048.0, 16384.0, 0.0], prefill_pairs=[2048.0**2 / 2, 4 * 4096.0**2 / 2, 0.0],
        prefills=[1.0, 4.0, 0.0], decodes=[0.0, 0.0, 256.0], kv_tokens=[0.0, 0.0, 256 * 1024.0],
    )  # fmt: skip
    staged = price_of(made, StepPricing(), 8192)(steps)
    flat = price_of(one, StepPricing(), 8192)(steps)
    assert flat[0] < staged[0] < 1.3 * flat[0]
    assert staged[1] < 0.7 * flat[1]
    assert 0.5 * flat[2] < staged[2] < 1.5 * flat[2]
    assert instances_of(made)[0].settings.max_num_batched_tokens == 2 * 8192
