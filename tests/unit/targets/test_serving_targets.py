"""Exports to serving engines: every decision has a fate, what is expressed comes back, what is strange is told."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import run
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.targets.api import export, import_run
from ridgeline.targets.decisions import serving_decisions_of
from ridgeline.targets.imports.option_reader import read_arguments
from ridgeline.targets.ledger import UNSPOKEN
from ridgeline.targets.options import options
from ridgeline.targets.registry import SERVE, TARGETS, detect

LLAMA = "meta-llama/Meta-Llama-3-8B"
ENGINES = ("vllm", "sglang", "tensorrt-llm")
WORK = {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 12}, "isl": 1024, "osl": 211}


def made(plan: dict[str, Any], model: str = "llama3-8b", system: str = "8xh100-sxm", **work: Any) -> Scenario:
    return ridgeline.scenario({"model": model, "system": system, "workload": WORK | work, "plan": plan})


@st.composite
def serving_scenarios(draw: st.DrawFn) -> Scenario:
    one_of = st.sampled_from
    engine = draw(one_of(ENGINES))
    sparse = draw(st.booleans())
    tp, ranks, replicas = draw(one_of((1, 2, 4))), draw(one_of((1, 1, 2))), draw(one_of((1, 1, 2, 4)))
    plan: dict[str, Any] = {"engine": engine, "tp": tp, "pp": draw(one_of((1, 1, 2)))}
    plan |= {"ep": draw(one_of((1, tp * ranks, 2)))} if sparse else {}
    formats = ("bf16", "fp16", {"compute": "fp8-e4m3", "weights": "fp8-e4m3"}, {"weights": "int8"}, "nvfp4")
    precision = draw(one_of(formats))
    plan["precision"] = precision if isinstance(precision, dict) else {"name": precision}
    plan["precision"] |= draw(one_of(({}, {"kv": "fp8-e4m3"}, {"kv": "int8"}, {"scaling": "block"})))
    plan |= draw(one_of(({}, {"graph": "none"}, {"graph": "partial"}, {"graph": "full", "compiled": True})))
    plan |= draw(one_of(({}, {"moe_dispatch": "deepep"}))) if sparse else {}
    drafts = {"speculation": {"draft": draw(one_of(("mtp", "ngram", "eagle"))), "draft_tokens": 2}}
    plan |= draw(one_of(({}, drafts)))
    serving: dict[str, Any] = {"data_parallel_size": ranks}
    serving["router"] = draw(one_of(("round-robin", "least-loaded", "prefix-aware")))
    serving |= draw(one_of(({}, {"replicas": replicas}, {"mtbf": "10 h"})))
    knobs = {
        "vllm": draw(one_of(({}, {"max_num_seqs": 64, "enable_prefix_caching": False, "async_scheduling": True,
                                  "gpu_memory_utilization": 0.85, "version": "0.19.0"}))),
        "sglang": draw(one_of(({}, {"chunked_prefill_size": 4096, "disable_radix_cache": True, "page_size": 16}))),
    }  # fmt: skip
    serving |= {engine: knobs[engine]} if knobs.get(engine) else {}
    if draw(st.integers(0, 3)) == 0:
        pools = [{"role": "prefill", "replicas": 1, "tp": 2}, {"role": "decode", "replicas": 1, "dp": ranks}]
        serving |= {"pools": pools}
    plan["serving"] = serving
    arrivals = draw(one_of((
        {"kind": "poisson", "rate": 3}, {"kind": "gamma", "rate": 3, "burstiness": 0.5},
        {"kind": "constant", "rate": 2}, {"kind": "closed-loop", "concurrency": 8}, {"kind": "sessions", "rate": 1},
        {"kind": "on-off", "rate": 3, "on": "1 s", "off": "1 s"},
    )))  # fmt: skip
    extra = draw(one_of(({}, {"prefix": 64, "range_ratio": 0.25, "seed": 7}, {"requests": 50, "max_new_tokens": 999})))
    objective = draw(one_of(({}, {"ttft": "500 ms"}, {"tpot": "30 ms", "itl": "50 ms", "percentile": 95})))
    work = {**WORK, "arrivals": arrivals, "objective": objective, **extra}
    chips = plan["tp"] * plan["pp"] * ranks * replicas
    chip = draw(one_of(("b200-sxm", "mi300x", "tpu-v5p")))
    table = {"model": "qwen3-30b-a3b" if sparse else "llama3-8b", "system": f"{chips}x{chip}", "workload": work}
    built, problems = assemble({**table, "plan": plan})
    assume(built is not None and not problems)
    assert built is not None
    return built


@pytest.mark.parametrize("target", SERVE)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenario=serving_scenarios())
def test_no_decision_is_dropped_and_the_expressed_come_back(target: str, scenario: Scenario) -> None:
    written = TARGETS[target].write(scenario)
    before = serving_decisions_of(scenario)
    places = [*written.expressed, *written.implied, *(part.path for part in written.lost)]
    assert sorted(places) == sorted(before)
    assert not [part.path for part in written.lost if part.why == UNSPOKEN]

    assert detect(written.files).id == target
    found = import_run(dict(written.files), target=target)
    assert not [part for part in found.unread if part.why.startswith("no option")]
    built, problems = assemble({**found.settings, "system": scenario.system.name})
    assert built is not None, problems
    after = serving_decisions_of(built)
    wrong = {path: (before[path], after.get(path)) for path in written.expressed if before[path] != after.get(path)}
    assert not wrong


@pytest.mark.parametrize("target", SERVE)
def test_a_training_scenario_is_refused(target: str) -> None:
    work = {"kind": "train", "seq": 4096, "global_batch": 8}
    scenario = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": work, "plan": {}})
    with pytest.raises(InputError, match="serve"):
        export(scenario, to=target)


def test_a_serving_scenario_is_refused_by_software_that_trains() -> None:
    with pytest.raises(InputError, match="train"):
        export(made({"engine": "vllm"}), to="megatron")


def test_every_option_written_is_one_the_engine_documents() -> None:
    scenario = made({"engine": "vllm", "serving": {"vllm": {"max_num_seqs": 64}}})
    for name, value in read_arguments(
        _words(export(scenario, to="vllm").files["launch.sh"]), options("vllm")
    ).options.items():
        assert options("vllm").problem(f"--{name}", value) is None


def _words(script: str) -> list[str]:
    return script.partition("ARGS=(")[2].partition(")")[0].split()


def test_a_router_is_expressed_where_the_server_has_one() -> None:
    plan = {"engine": "vllm", "tp": 2, "serving": {"replicas": 4, "router": "least-loaded"}}
    assert export(made(plan), to="vllm").expressed["plan.serving.router"] == "--data-parallel-size"
    plan["serving"] = {"replicas": 4, "router": "prefix-aware"}
    assert "plan.serving.router" in [part.path for part in export(made(plan), to="vllm").lost]
    assert export(made(plan), to="dynamo").expressed["plan.serving.router"] == "--router-mode"
    plan = {"engine": "sglang", "tp": 2, "serving": {"replicas": 4, "router": "round-robin"}}
    assert export(made(plan), to="sglang").expressed["plan.serving.router"] == "--load-balance-method"


def test_experts_go_over_tensor_and_data_ranks_together_in_vllm() -> None:
    sparse = {"engine": "vllm", "tp": 2, "ep": 4, "serving": {"data_parallel_size": 2}}
    found = export(made(sparse, "qwen3-30b-a3b", "4xh100-sxm"), to="vllm")
    assert found.expressed["plan.ep"] == "--enable-expert-parallel"
    lost = export(made(sparse | {"ep": 2}, "qwen3-30b-a3b", "4xh100-sxm"), to="vllm").lost
    assert "plan.ep" in [part.path for part in lost]


@pytest.mark.parametrize(
    ("line", "plan"),
    [
        ("vllm serve $M -tp 4 --max_num_seqs=64 --no-enable-prefix-caching --kv-cache-dtype fp8",
         {"tp": 4, "engine": "vllm"}),
        ("python -m vllm.entrypoints.openai.api_server --model $M --tensor-parallel-size 4",
         {"tp": 4, "engine": "vllm"}),
        ("CUDA_VISIBLE_DEVICES=0 nohup python3 -m sglang.launch_server --model $M --tp 4",
         {"tp": 4, "engine": "sglang"}),
        ("trtllm-serve $M --tp_size 4 --max_num_tokens 4096",
         {"tp": 4, "engine": "tensorrt-llm", "serving": {"replicas": 1, "tensorrt_llm": {"max_num_tokens": 4096}}}),
        ("python3 -m dynamo.vllm --model $M --tensor-parallel-size 4", {"tp": 4, "engine": "vllm"}),
    ],
)  # fmt: skip
def test_command_lines_that_people_write(line: str, plan: dict[str, Any]) -> None:
    found = import_run({"run.sh": f"M={LLAMA}\n{line}"})
    assert found.settings["model"] == "llama3-8b"
    assert plan.items() <= found.settings["plan"].items()
    built, problems = assemble({**found.settings, "system": "4xh100-sxm"})
    assert built is not None, problems


def test_a_misspelt_option_is_told_with_the_near_ones() -> None:
    found = import_run({"run.sh": f"vllm serve {LLAMA} --max-num-seq 64 --tensor-paralel-size 2"})
    [strange] = [part for part in found.unread if part.why.startswith("no option")]
    assert strange.option == "--tensor-paralel-size"
    assert "--tensor-parallel-size" in strange.why
    assert found.settings["plan"]["serving"]["vllm"]["max_num_seqs"] == 64  # argparse takes a beginning that is clear


def test_what_is_not_priced_is_listed_and_nothing_is_silent() -> None:
    line = "vllm serve $M --swap-space 4 --enable-lora --max-loras 2 --disable-log-stats"
    found = import_run({"run.sh": f"M={LLAMA}\n{line}"})
    names = {part.option for part in found.unread}
    assert {"enable-lora", "max-loras"} <= names
    assert any("assumed" in note for note in found.assumptions)


def test_a_yaml_of_vllm_serve_is_read() -> None:
    text = f"model: {LLAMA}\ntensor-parallel-size: 2\nmax-num-seqs: 32\n"
    found = import_run({"config.yaml": text})
    assert (found.target, found.settings["plan"]["tp"], found.settings["model"]) == ("vllm", 2, "llama3-8b")


@pytest.mark.parametrize(
    "text", ["vllm serve", "vllm serve m --kv-cache-dtype int7", "vllm serve m -tp 0", "echo vllm"]
)
def test_bad_command_lines_are_told(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(text, encoding="utf-8")
    code, _, err = run(capsys, monkeypatch, "import", str(path))
    assert code == 2
    assert err


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("target", SERVE)
def test_a_shell_passes_what_the_reader_reads(target: str, tmp_path: Path) -> None:
    """The reader that never runs a script agrees with a shell that does."""
    serving = {"replicas": 4, "router": "prefix-aware", "vllm": {"max_num_seqs": 64}}
    files = export(made({"engine": "vllm", "tp": 2, "serving": serving}), to=target).files
    name = "worker.sh" if target == "dynamo" else "launch.sh"
    for program in ("vllm", "python3", "trtllm-serve"):
        fake = tmp_path / program
        fake.write_text("#!/bin/bash\nprintf '%s\\0' \"$@\"\n", encoding="utf-8")
        fake.chmod(0o755)
    (tmp_path / name).write_text(files[name], encoding="utf-8")
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin", "REPLICA": "1"}
    done = subprocess.run(["bash", name], cwd=tmp_path, env=path, capture_output=True, check=True)
    ran = done.stdout.decode().split("\0")[:-1]
    known = [options("tensorrt-llm" if target == "tensorrt-llm" else "sglang" if target == "sglang" else "vllm")]
    shell = read_arguments(ran, *known, options("dynamo")).options
    assert str(shell.get("port", 8001)) == "8001"  # the second replica
    if target != "tensorrt-llm":
        assert shell.get("tp-size", shell.get("tensor-parallel-size")) == 2


def test_the_load_generator_is_told_the_load() -> None:
    objective = {"ttft": "500 ms", "e2e": "8 s", "percentile": 90}
    text = export(made({"engine": "vllm"}, prefix=24, range_ratio=0.5, objective=objective), to="vllm").files[
        "bench.sh"
    ]
    assert "--random-input-len 1000" in text
    assert "--random-prefix-len 24" in text
    assert "--goodput ttft:500 e2el:8000" in text
    assert "--metric-percentiles 50,90,90" in text


def test_export_prints_what_is_lost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "serve.json"
    plan = {"engine": "vllm", "serving": {"replicas": 2, "router": "prefix-aware"}}
    table.write_text(json.dumps({"model": "llama3-8b", "system": "2xh100-sxm", "workload": WORK, "plan": plan}))
    code, out, err = run(capsys, monkeypatch, "export", str(table), "--to", "vllm")
    assert code == 0
    assert "vllm serve" in out
    assert "yours plan.serving.router" in err


PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {  # lines as documentation has them -> the plan, in part
    "counts with letters": (
        "vllm serve deepseek-ai/DeepSeek-R1 -tp 8 --max-model-len 130k --max-num-batched-tokens 8K"
        " --enable_expert_parallel"
        """ --speculative-config '{"method": "deepseek_mtp", "num_speculative_tokens": 1}'""",
        {
            "tp": 8, "ep": 8, "speculation": {"draft": "mtp", "draft_tokens": 1},
            "serving": {"vllm": {"max_model_len": 130_000, "max_num_batched_tokens": 8192}, "replicas": 1,
                        "data_parallel_size": 1},
        },
    ),
    "an image": (
        "docker run --runtime nvidia --gpus all -v ~/models:/models --env A=b -p 8000:8000"
        " --ipc=host vllm/vllm-openai:latest --model meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 -O3",
        {"engine": "vllm", "tp": 4, "compiled": True},
    ),
    "an image with a command": (
        "docker run --gpus all --shm-size 32g -p 30000:30000 -v ~/models:/models --env A=b --ipc=host"
        " lmsysorg/sglang:latest python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --tp 2",
        {"engine": "sglang", "tp": 2},
    ),
    "a router": (
        "python -m sglang_router.launch_server --model-path meta-llama/Meta-Llama-3-8B-Instruct --dp 2 --tp 2"
        " --router-policy round_robin",
        {"tp": 2, "serving": {"replicas": 2, "router": "round-robin"}},
    ),
    "graphs of decodes": (
        "python -m vllm.entrypoints.openai.api_server --model mistralai/Mixtral-8x7B-Instruct-v0.1 --dtype=bfloat16 -O0"
        """ --tensor-parallel-size=2 --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}'""",
        {"tp": 2, "compiled": False, "graph": "full"},
    ),
    "attention ranks": (
        "python -m sglang.launch_server --model deepseek-ai/DeepSeek-V3.2-Exp --tp 8 --dp 8 --enable-dp-attention",
        {"tp": 1, "dp": 8, "serving": {"replicas": 1, "data_parallel_size": 8}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_lines_mean_what_their_programs_do(name: str) -> None:
    line, means = PUBLISHED[name]
    found = import_run({"run.sh": line})
    assert {key: found.settings["plan"].get(key) for key in means} == means
    assert "model" in found.settings
    assert not [one for one in found.unread if "no option of" in one.why and "router" not in one.option]


def test_unread_options_that_change_scheduling_are_told_as_such() -> None:
    """What is not simulated is never said to change nothing."""
    words = {
        "vllm": f"vllm serve {LLAMA} --prefill-schedule-interval 2 --kv-transfer-config '{{}}' --seed 1",
        "sglang": f"python -m sglang.launch_server --model-path {LLAMA} --enable-mixed-chunk --random-seed 1",
    }
    told = {name: {part.option: part for part in import_run({"run.sh": text}).unread} for name, text in words.items()}
    assert told["vllm"]["prefill-schedule-interval"].why == "scheduling that is not simulated"
    assert told["vllm"]["kv-transfer-config"].why == "a KV cache that is not simulated"
    assert told["sglang"]["enable-mixed-chunk"].matters
    assert not told["vllm"]["seed"].matters
    assert not told["sglang"]["random-seed"].matters
