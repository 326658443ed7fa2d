"""Servers in scripts with variables, Kubernetes, compose files and Helm values are read as what runs in them."""

from __future__ import annotations

import pytest

from ridgeline.targets.api import import_run
from ridgeline.targets.target import Imported

SERVE = "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size {} --max-num-seqs 256"


def read(name: str, text: str, **call: object) -> Imported:
    return import_run({name: text}, system="16xh100-sxm", **call)  # type: ignore[arg-type]


@pytest.mark.parametrize("command", [SERVE, "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp {}"])
def test_variables_and_arguments_of_a_script_are_the_callers(command: str) -> None:
    text = f"TP=${{TP:-4}}\n{command.format('$TP')}\n"
    assert read("run.sh", text).settings["plan"]["tp"] == 4
    assert read("run.sh", text, environment={"TP": "2"}).settings["plan"]["tp"] == 2
    assert read("run.sh", f"{command.format('$1')}\n", arguments=("8",)).settings["plan"]["tp"] == 8


DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
spec:
  replicas: 3
  template:
    spec:
      containers:
      - image: vllm/vllm-openai:v0.11.0
        env: [{name: TP, value: "4"}]
        %s
        resources: {limits: {nvidia.com/gpu: "4"}}
---
apiVersion: v1
kind: Service
"""


@pytest.mark.parametrize(
    "command",
    [
        f'command: [/bin/sh, -c]\n        args: ["{SERVE.format("$(TP)")}"]',
        f'command: [bash, -c, "{SERVE.format("$TP")}"]',
        "args: [--model, meta-llama/Llama-3.1-70B-Instruct, --tensor-parallel-size, $(TP), --max-num-seqs, '256']",
    ],
)
def test_a_deployment(command: str) -> None:
    found = read("pod.yaml", DEPLOYMENT % command)
    assert (found.target, found.settings["model"]) == ("vllm", "llama3.1-70b")
    plan = found.settings["plan"]
    assert (plan["tp"], plan["dp"], plan["serving"]["replicas"]) == (4, 3, 3)
    assert plan["serving"]["vllm"]["max_num_seqs"] == 256


def test_a_compose_file_with_aliases() -> None:
    text = (
        "x-common: &common {environment: [HF_TOKEN=x]}\nservices:\n  sgl:\n    <<: *common\n"
        "    image: lmsysorg/sglang\n"
        "    entrypoint: python3 -m sglang.launch_server\n    command: --model-path Qwen/Qwen3-32B --tp 2\n"
    )
    found = read("compose.yml", text)
    assert (found.target, found.settings["model"], found.settings["plan"]["tp"]) == ("sglang", "qwen3-32b", 2)


def test_values_of_a_production_stack() -> None:
    text = (
        "servingEngineSpec:\n  modelSpec:\n  - modelURL: meta-llama/Llama-3.1-8B-Instruct\n    replicaCount: 2\n"
        "    vllmConfig: {maxModelLen: 8192, tensorParallelSize: 2, noSuchOption: 3,"
        " extraArgs: [--max-num-seqs, '64']}\n"
    )
    found = read("values.yaml", text)
    plan = found.settings["plan"]
    assert (plan["tp"], plan["serving"]["replicas"]) == (2, 2)
    assert plan["serving"]["vllm"] == {"max_model_len": 8192, "max_num_seqs": 64}
    assert [part.option for part in found.doubtful] == ["--noSuchOption"]


def test_an_option_of_an_earlier_version_changes_nothing() -> None:
    found = read("run.sh", SERVE.format(2) + " --disable-log-requests --my-knob 3\n")
    assert [part.option for part in found.doubtful] == ["--my-knob"]
