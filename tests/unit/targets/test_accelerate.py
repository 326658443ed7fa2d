"""Accelerate, TRL and the Trainer: what their own files and scripts mean, and what an export of a plan says."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import yaml

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.targets.api import import_run
from ridgeline.targets.registry import TARGETS
from ridgeline.targets.target import Export

# the shape of trl/accelerate_configs/fsdp2.yaml and zero3.yaml, their facts alone
FSDP2 = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
  fsdp_version: 2
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
ZERO2 = """
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 2, offload_optimizer_device: cpu, gradient_accumulation_steps: 4}
mixed_precision: bf16
num_processes: 8
"""
SCRIPT = """
accelerate launch --config_file fsdp2.yaml train.py \\
    --model_name_or_path Qwen/Qwen3-8B --max_length 2048 --packing true --per_device_train_batch_size 2 \\
    --gradient_accumulation_steps 4 --gradient_checkpointing --learning_rate 2e-5 \\
    --use_peft --lora_r 32 --lora_target_modules q_proj k_proj v_proj
"""


def settings(files: dict[str, str]) -> dict[str, Any]:
    found = import_run(files, system="8xh100-sxm")
    assert found.target == "accelerate"
    return dict(found.settings)


def test_a_script_and_its_launch_configuration_are_read_together() -> None:
    found = settings({"run.sh": SCRIPT, "fsdp2.yaml": FSDP2})
    made = ridgeline.scenario(found)
    assert (made.model.id, made.workload.seq, made.workload.sequences) == ("qwen3-8b", 2048, 2 * 4 * 8)
    assert (made.plan.sharding.shard, made.plan.recompute.kind, made.plan.engine) == ("zero3", "full", "torch-eager")
    assert made.workload.lora is not None
    assert (made.workload.lora.rank, tuple(made.workload.lora.targets)) == (32, ("qkv",))
    assert made.plan.precision.weights.id == "bf16"


def test_deepspeed_inside_the_launch_configuration_is_read() -> None:
    train = "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 1\nmax_length: 4096\nbf16: true\n"
    made = ridgeline.scenario(settings({"zero2.yaml": ZERO2, "train.yaml": train}))
    assert (made.plan.engine, made.plan.sharding.shard, made.plan.offload.optimizer) == ("deepspeed", "zero2", 1.0)
    assert made.workload.sequences == 4 * 8


def test_ddp_keeps_fp32_weights() -> None:
    train = "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 1\nmax_length: 4096\nbf16: true\n"
    made = ridgeline.scenario(settings({"train.yaml": train}))
    assert made.plan.sharding.shard == "none"
    assert (made.plan.precision.weights.id, made.plan.precision.compute.id) == ("fp32", "bf16")


def test_a_zero_file_that_is_not_here_is_told_by_its_name() -> None:
    train = "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 1\nmax_length: 64\ndeepspeed: {}\n"
    found = import_run({"train.yaml": train.format("configs/zero3.json")}, system="8xh100-sxm")
    assert found.settings["plan"]["shard"] == "zero3"
    assert [part.value for part in found.unread if part.option == "deepspeed"] == ["configs/zero3.json"]
    lost = import_run({"train.yaml": train.format("mine.json")}, system="8xh100-sxm")
    assert [part.matters for part in lost.unread if part.option == "deepspeed"] == [True]


@pytest.mark.parametrize(
    "text",
    [
        "per_device_train_batch_size: [1, 2]\nmodel_name_or_path: 7\n",
        "per_device_train_batch_size: 1\nmodel_name_or_path: {a: b}\nlora_target_modules: 3\nuse_peft: true\n",
        "distributed_type: FSDP\nfsdp_config: 3\nparallelism_config: [1]\ndeepspeed_config: x\n",
        "num_train_epochs: 1\ndeepspeed: ../../../../etc/passwd\n",
        "num_train_epochs: 1\nper_device_train_batch_size: 99999999999999999999\n",
    ],
)
def test_hostile_files_are_refused_or_read_without_a_crash(text: str) -> None:
    with contextlib.suppress(InputError):
        import_run({"train.yaml": text}, system="8xh100-sxm")


def export(plan: dict[str, Any], system: str = "64xh100-sxm", **work: Any) -> Export:
    table = {"model": "llama3-8b", "system": system, "workload": {"seq": 8192, "global_batch": 256, **work}}
    return TARGETS["accelerate"].write(ridgeline.scenario({**table, "plan": plan}))


def test_hybrid_sharding_becomes_two_degrees() -> None:
    made = export({"engine": "torch-eager", "shard": "zero3", "shard_degree": 8, "cp": 2}, packed=False)
    launch = yaml.safe_load(made.files["accelerate.yaml"])
    assert launch["distributed_type"] == "FSDP"
    sizes = {key.rpartition("config_")[2]: value for key, value in launch["parallelism_config"].items()}
    # dp = 64 / 2 = 32; a shard over 8 ranks is 4 data ranks x 2 context ranks, held 8 times
    assert sizes == {"dp_shard_size": 4, "dp_replicate_size": 8, "cp_size": 2}


def test_what_the_trainer_cannot_do_is_said_and_its_ranks_take_data() -> None:
    made = export({"engine": "torch-eager", "shard": "zero3", "pp": 2, "tp": 2})
    lost = {part.path: part.why for part in made.lost}
    assert {"plan.pp", "plan.tp", "plan.dp", "plan.placement"} <= set(lost)
    train = yaml.safe_load(made.files["train.yaml"])
    assert train["per_device_train_batch_size"] * train["gradient_accumulation_steps"] * 64 == 256


def test_it_does_not_run_on_tpus() -> None:
    lost = {part.path: part.why for part in export({"shard": "zero3"}, "tpu-v5p:4x4x4").lost}
    assert lost["system.chips"].startswith("it runs on chips of NVIDIA, AMD, Intel and Huawei")
