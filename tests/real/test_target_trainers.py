"""Exports against the parsers of trainers: Accelerate and TRL, LLaMA-Factory, Axolotl, torchtitan 0.3.

Skipped where the packages are absent; `make test-targets` installs them:

    accelerate==1.15.0 trl==1.16.0 transformers==5.22.2 peft; llamafactory==0.9.5 and axolotl==0.19.0 without what they
    depend on, but omegaconf and pillow; torchtitan==0.3.0 (in the group `titan`)
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import ridgeline
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.options import options
from ridgeline.targets.registry import TARGETS

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

PLANS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("llama3-8b", {"shard": "zero3", "recompute": "full"}, {}),
    ("llama3-8b", {"shard": "zero2", "shard_degree": 8, "microbatch": 2}, {"task": "finetune"}),
    ("llama3-70b", {"shard": "zero3", "cp": 4, "engine": "torch-compile", "offload": ["optimizer"]}, {"packed": False}),
    ("qwen3-8b", {"shard": "zero3", "engine": "deepspeed", "offload": ["optimizer"]}, {}),
    ("qwen3-8b", {"shard": "zero1", "tp": 2, "engine": "deepspeed"}, {}),
    ("qwen3-8b", {"shard": "zero3", "cp": 2, "cp_kind": "all-to-all", "engine": "deepspeed"}, {"packed": False}),
    ("qwen3-8b", {"shard": "none", "precision": "bf16"}, {"task": "lora", "lora": {"rank": 8, "targets": ["qkv"]}}),
    ("qwen3-30b-a3b", {"shard": "zero3", "recompute": "full"}, {"optimizer": {"states": "bf16", "master": "none"}}),
)


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def made(model: str, plan: dict[str, Any], work: dict[str, Any]) -> Scenario:
    work = {"seq": 4096, "global_batch": 512, **work}
    plan = {"engine": "torch-eager", **plan}
    return ridgeline.scenario({"model": model, "system": "64xh100-sxm", "workload": work, "plan": plan})


def written(target: str, scenario: Scenario, folder: Path) -> Path:
    for name, text in TARGETS[target].write(scenario).files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.skipif(not version("accelerate"), reason="accelerate is not installed")
@pytest.mark.parametrize(("model", "plan", "work"), PLANS)
def test_accelerate_accepts(
    model: str, plan: dict[str, Any], work: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher's own parser makes the environment that its plugins then read."""
    launch = importlib.import_module("accelerate.commands.launch")
    from accelerate.utils.launch import prepare_multi_gpu_env

    scenario = made(model, plan, work)
    monkeypatch.chdir(written("accelerate", scenario, tmp_path))
    words = "--config_file accelerate.yaml --machine_rank 1 --main_process_ip h --main_process_port 1 --num_machines 8"
    args = launch.launch_command_parser().parse_args([*words.split(), "-m", "trl.scripts.sft"])
    args, _, _ = launch._validate_launch_command(args)
    assert (args.num_processes, args.num_machines, args.machine_rank) == (64, 8, 1)
    mesh, shard = scenario.plan.mesh, scenario.plan.sharding.shard
    assert (args.use_fsdp, args.use_deepspeed) == (
        scenario.plan.engine != "deepspeed" and shard != "none", scenario.plan.engine == "deepspeed",
    )  # fmt: skip
    if args.use_fsdp:
        for name, value in prepare_multi_gpu_env(args).items():
            monkeypatch.setenv(name, value)
        from accelerate import FullyShardedDataParallelPlugin, ParallelismConfig

        plugin, split = FullyShardedDataParallelPlugin(), ParallelismConfig()
        assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, shard == "zero3")
        assert split.dp_shard_size * split.cp_size == scenario.plan.shard_degree
        assert (split.cp_size, split.total_size) == (mesh.cp, 64)


@pytest.mark.skipif(not version("trl"), reason="TRL is not installed")
@pytest.mark.parametrize(("model", "plan", "work"), PLANS)
def test_trl_accepts(
    model: str, plan: dict[str, Any], work: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sft = importlib.import_module("trl.scripts.sft")
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda *_: True, raising=False)
    scenario = made(model, plan, work)
    monkeypatch.chdir(written("accelerate", scenario, tmp_path))
    _, train, weights, _ = sft.make_parser().parse_args_and_config(["--config", "train.yaml", "--use_cpu"])
    assert train.max_length == 4096
    ranks = 64 // (scenario.plan.mesh.tp * scenario.plan.mesh.cp)
    assert train.per_device_train_batch_size * train.gradient_accumulation_steps * ranks == 512
    assert train.gradient_checkpointing == (scenario.plan.recompute.kind == "full")
    assert weights.use_peft == (scenario.workload.lora is not None)


@pytest.mark.skipif(not version("llamafactory"), reason="LLaMA-Factory is not installed")
@pytest.mark.parametrize(("model", "plan", "work"), PLANS)
def test_llamafactory_accepts(
    model: str, plan: dict[str, Any], work: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")  # it asks for an older transformers than TRL does
    parser = importlib.import_module("llamafactory.hparams.parser")
    scenario = made(model, plan, work)
    monkeypatch.chdir(written("llamafactory", scenario, tmp_path))
    table = yaml.safe_load((tmp_path / "train.yaml").read_text(encoding="utf-8"))
    if table.pop("deepspeed", None):  # the Trainer imports DeepSpeed, which is held against its own parser elsewhere
        assert json.loads((tmp_path / "deepspeed.json").read_text(encoding="utf-8"))["zero_optimization"]
    _, data, train, tuning, _ = parser._parse_train_args({**table, "use_cpu": True})
    assert data.packing == scenario.workload.packed
    assert data.cutoff_len == 4096 - data.packing  # packed sequences are padded to a multiple, by one word
    assert tuning.finetuning_type == ("lora" if scenario.workload.lora else "full")
    ranks = 64 // (scenario.plan.mesh.tp if scenario.plan.engine == "deepspeed" else 1)
    assert train.per_device_train_batch_size * train.gradient_accumulation_steps * ranks == 512


@pytest.mark.skipif(not version("axolotl"), reason="Axolotl is not installed")
@pytest.mark.parametrize(("model", "plan", "work"), PLANS)
def test_axolotl_accepts(
    model: str, plan: dict[str, Any], work: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own schema, with the checks of combinations that belong to it; kernels that it asks for are stood in for."""
    schema = importlib.import_module("axolotl.utils.schemas.config")
    monkeypatch.setitem(sys.modules, "ring_flash_attn", ModuleType("ring_flash_attn"))
    scenario = made(model, plan, work)
    path = written("axolotl", scenario, tmp_path) / "train.yaml"
    read = schema.AxolotlInputConfig(**yaml.safe_load(path.read_text(encoding="utf-8")))
    assert (read.sequence_len, read.sample_packing) == (4096, scenario.workload.packed)
    if scenario.plan.engine != "deepspeed" and scenario.plan.sharding.shard != "none":
        assert read.dp_shard_size * read.context_parallel_size == scenario.plan.shard_degree
        assert read.fsdp_config.reshard_after_forward == (scenario.plan.sharding.shard == "zero3")


TITANS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama3-8b", {"shard": "zero3", "recompute": "full"}),
    ("llama3-8b", {"shard": "none", "compiled": False}),
    ("llama3-70b", {"shard": "zero2", "tp": 4, "pp": 4, "schedule": "interleaved", "microbatch": 2}),
    ("llama3.1-405b", {"shard": "zero3", "tp": 8, "cp": 4, "recompute": {"kind": "selective", "parts": ["alternate"]}}),
    ("qwen3-30b-a3b", {"shard": "zero3", "shard_degree": 16, "ep": 8, "offload": ["optimizer"]}),
    ("deepseek-v3", {"shard": "zero3", "ep": 32, "tp": 2, "sequence_parallel": False}),
    ("gpt-oss-20b", {"shard": "zero3", "ep": 4, "pp": 2, "schedule": "zbv"}),
)


@pytest.mark.skipif(not version("torchtitan").startswith("0.3"), reason="torchtitan 0.3 is not installed")
@pytest.mark.parametrize(("model", "plan"), TITANS)
def test_torchtitan_accepts(model: str, plan: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own manager imports the module that was written and validates what the function returns."""
    config = importlib.import_module("torchtitan.config")
    scenario = made(model, {"engine": "torchtitan", **plan}, {})
    monkeypatch.syspath_prepend(str(written("torchtitan-preset", scenario, tmp_path)))
    monkeypatch.delitem(sys.modules, "preset", raising=False)
    (name,) = re.findall(r"^def (\w+)", (tmp_path / "preset.py").read_text(encoding="utf-8"), re.MULTILINE)
    read = config.ConfigManager().parse_args(["--module", "preset", "--config", name, "--training.steps", "50"])
    mesh, split = scenario.plan.mesh, read.parallelism
    assert (split.tensor_parallel_degree, split.pipeline_parallel_degree) == (mesh.tp, mesh.pp)
    assert (split.context_parallel_degree, split.expert_parallel_degree) == (mesh.cp, mesh.ep)
    assert split.data_parallel_shard_degree * split.data_parallel_replicate_degree == mesh.dp
    assert (read.training.seq_len, read.training.global_batch_size, read.training.steps) == (4096, 512, 50)
    assert len(read.model_spec.model.layers) == scenario.model.layers
    if mesh.pp > 1:
        parts = split.module_fqns_per_model_part
        assert [sum(name.startswith("layers.") for name in part) for part in parts] == list(scenario.placement)


@pytest.mark.parametrize("target", ["accelerate", "llamafactory", "axolotl", "torchtitan-preset"])
def test_the_recorded_list_is_of_the_version_that_is_installed(target: str) -> None:
    package = target.removesuffix("-preset")
    if not version(package) or (target == "torchtitan-preset" and not version(package).startswith("0.3")):
        pytest.skip(f"{target} is not installed")
    assert options(target).version == version(package)
