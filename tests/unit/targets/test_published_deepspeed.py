"""Configurations that DeepSpeed's own examples and BLOOM's training publish: keys and values are theirs."""

from __future__ import annotations

import json
from typing import Any

import ridgeline
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.api import import_run
from ridgeline.targets.target import Imported

RATES = {"total_num_steps": 1000, "warmup_min_ratio": 0, "warmup_num_steps": 100, "cos_min_ratio": 0.001}
# deepspeedai/DeepSpeedExamples training/expert_parallel/configs/ds_autoep_zero1_qwen3_5_moe.json @44e04e2e
EXPERTS: dict[str, Any] = {
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "expert_parallel": {
        "enabled": True,
        "autoep_size": 8,
        "preset_model": "qwen3_5_moe",
        "load_balance_coeff": None,
    },
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "scheduler": {"type": "WarmupCosineLR", "params": {**RATES, "warmup_type": "linear"}},
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "steps_per_print": 10,
}
# deepspeedai/DeepSpeedExamples training/tensor_parallel/hf_integration/configs/ds_config.json @ff01ee0d
TENSOR: dict[str, Any] = {
    "bf16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": dict.fromkeys(("total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto"),
    },
    "zero_optimization": {"stage": 2, "gather_16bit_weights_on_model_save": True},
    "tensor_parallel": {"autotp_size": 4},
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 1,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}
# deepspeedai/DeepSpeedExamples benchmarks/autosp/configs/autosp_config.json @f8d19a7d
SEQUENCE: dict[str, Any] = {
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 0},
    "compile": {"deepcompile": True, "passes": ["autosp"]},
    "gradient_accumulation_steps": 1,
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": 1,
    "train_micro_batch_size_per_gpu": 1,
    "wall_clock_breakdown": False,
    "sequence_parallel_size": 2,
}
# microsoft/DeepSpeedExamples Megatron-LM-v1.1.5-ZeRO3/examples/ds_zero_stage_3_config_release.json @bdf8e59a
RELEASE: dict[str, Any] = {
    "train_batch_size": 64,
    "gradient_accumulation_steps": 1,
    "steps_per_print": 1,
    "zero_optimization": {
        "stage": 3,
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e8,
        "stage3_param_persitance_threshold": 1e5,
        "stage3_prefetch_bucket_size": 5e7,
        "contiguous_gradients": True,
        "cpu_offload": True,
        "cpu_offload_params": True,
        "cpu_offload_use_pin_memory": True,
        "overlap_comm": True,
        "reduce_bucket_size": 90000000,
        "sub_group_size": 4e8,
    },
    "gradient_clipping": 1.0,
    "fp16": {"enabled": True, "loss_scale": 1024, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1},
    "wall_clock_breakdown": True,
    "zero_allow_untested_optimizer": False,
}
# bigscience-workshop/bigscience train/tr11-176B-ml/tr11-176B-ml.slurm @003b2505: the file it writes, values filled in
BLOOM: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "train_batch_size": 2048,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 0},
    "bf16": {"enabled": True},
    "steps_per_print": 2000,
    "wall_clock_breakdown": False,
}


def read(table: dict[str, Any], model: str, system: str, **workload: Any) -> tuple[Imported, Scenario]:
    found = import_run({"ds_config.json": json.dumps(table)}, system=system, model=model)
    settings = {**found.settings, "workload": {"seq": 2048, **found.settings["workload"], **workload}}
    return found, ridgeline.scenario(settings)


def test_expert_parallel() -> None:
    found, made = read(EXPERTS, "qwen3-30b-a3b", "16xh100-sxm")
    assert found.target == "deepspeed"
    assert (made.plan.mesh.ep, made.plan.mesh.dp, made.plan.microbatch) == (8, 16, 2)
    assert made.workload.sequences == 16 * 2  # two sequences on each rank, nothing accumulated
    assert made.plan.sharding.shard == "zero1"
    assert {part.option for part in found.unread} == {
        "expert_parallel.preset_model", "expert_parallel.load_balance_coeff", "optimizer.params.lr", "scheduler.type",
        *(f"scheduler.params.{name}" for name in (*RATES, "warmup_type")), "steps_per_print",
    }  # fmt: skip


def test_tensor_parallel_with_words_left_to_the_trainer() -> None:
    found, made = read(TENSOR, "llama3-8b", "8xh100-sxm", global_batch=16)
    assert (made.plan.mesh.tp, made.plan.mesh.dp, made.plan.sharding.shard) == (4, 2, "zero2")
    assert not made.plan.sequence_parallel
    assert "precision = bf16: the file leaves it to the script" in found.assumptions
    assert "train_batch_size = auto: left to the software" in found.assumptions


def test_sequence_parallel() -> None:
    _, made = read(SEQUENCE, "llama3-8b", "2xh100-sxm")
    assert (made.plan.mesh.cp, made.plan.mesh.dp, made.plan.switches.cp_kind) == (2, 1, "all-to-all")
    assert made.plan.sharding.shard == "none"
    assert made.plan.switches.compiled is True


def test_the_names_of_the_first_offload() -> None:
    found, made = read(RELEASE, "gpt3-13b", "16xa100-40-sxm")
    assert (made.plan.sharding.shard, made.plan.offload.optimizer) == ("zero3", 1.0)
    assert made.plan.switches.overlap["grad-reduce"] is True
    assert made.plan.precision.weights.id == "fp16"
    assert made.workload.sequences == 64
    told = {part.option: part.why for part in found.unread if part.matters}
    assert told["zero_optimization.offload_param"] == "changes the step: weights in host memory are not priced"


def test_bloom() -> None:
    """Its file says batches and formats; tp 4 and pp 12 on 384 chips are arguments of its script."""
    found = import_run({"ds_config.json": json.dumps(BLOOM)}, system="384xa100-80-sxm", model="bloom-176b")
    plan = {**found.settings["plan"], "tp": 4, "pp": 12, "recompute": "full"}
    made = ridgeline.scenario({**found.settings, "workload": {**found.settings["workload"], "seq": 2048}, "plan": plan})
    assert (made.model.layers, made.plan.mesh.dp, made.plan.microbatch) == (70, 8, 2)
    assert made.microbatches == 2048 // (8 * 2)
    assert made.plan.sharding.shard == "none"
