"""LLaMA-Factory, Axolotl and torchtitan's presets: what their own files mean, and what an export says."""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import Any

import pytest
import yaml

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.api import import_run
from ridgeline.targets.ledger import UNSPOKEN
from ridgeline.targets.plan_target import training_target
from ridgeline.targets.registry import TARGETS

# the shape of hiyouga/LLaMA-Factory examples/train_full/qwen3_full_sft.yaml, its facts alone
FACTORY = """
model_name_or_path: Qwen/Qwen3-8B
stage: sft
do_train: true
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_config.json
dataset: identity
template: qwen3
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
bf16: true
"""
# the shape of axolotl-ai-cloud/axolotl examples/distributed-parallel/llama-3_1-8b-hsdp-tp.yaml, its facts alone
AXOLOTL = """
base_model: meta-llama/Llama-3.1-8B
dp_shard_size: 4
dp_replicate_size: 2
tensor_parallel_size: 2
fsdp_version: 2
fsdp_config:
  offload_params: false
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  reshard_after_forward: true
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
sequence_len: 2048
sample_packing: true
attn_implementation: flash_attention_2
gradient_accumulation_steps: 1
micro_batch_size: 1
optimizer: adamw_torch_fused
learning_rate: 2e-6
bf16: true
"""


def read(text: str, system: str = "16xh100-sxm") -> tuple[str, Scenario]:
    found = import_run({"config.yaml": text}, system=system)
    return found.target, ridgeline.scenario(found.settings)


def test_llamafactory_recomputes_unless_told_otherwise() -> None:
    target, made = read(FACTORY)
    assert target == "llamafactory"
    assert (made.plan.sharding.shard, made.plan.recompute.kind, made.plan.engine) == ("zero3", "full", "deepspeed")
    assert (made.workload.seq, made.workload.sequences, made.workload.task) == (2048, 32, "finetune")
    _, kept = read(FACTORY + "disable_gradient_checkpointing: true\n")
    assert kept.plan.recompute.kind == "none"


def test_llamafactory_adapters_and_other_stages() -> None:
    found = import_run({"a.yaml": FACTORY.replace("full", "lora") + "lora_target: all\n"}, system="8xh100-sxm")
    lora = ridgeline.scenario(found.settings).workload.lora
    assert lora is not None
    assert (lora.rank, set(lora.targets)) == (8, {"qkv", "out", "up", "gate", "down"})
    found = import_run({"a.yaml": FACTORY.replace("sft", "dpo", 1)}, system="8xh100-sxm")
    assert [part.value for part in found.unread if part.option == "train.stage" and part.matters] == ["dpo"]


def test_axolotl_mesh_of_three_axes() -> None:
    target, made = read(AXOLOTL)
    assert target == "axolotl"
    assert (made.plan.mesh.tp, made.plan.mesh.dp, made.plan.shard_degree) == (2, 8, 4)
    assert (made.plan.sharding.shard, made.workload.sequences, made.workload.packed) == ("zero3", 8, True)
    assert made.plan.switches.sequence_parallel is False


def test_axolotl_qlora_is_told_as_changing_the_step() -> None:
    text = AXOLOTL.replace("tensor_parallel_size: 2", "adapter: qlora\nload_in_4bit: true\nlora_target_linear: true")
    found = import_run({"a.yaml": text}, system="8xh100-sxm")
    assert {part.option for part in found.unread if part.matters} >= {"train.adapter", "train.load_in_4bit"}
    assert found.settings["workload"]["task"] == "lora"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (FACTORY + "tensor_model_parallel_size: 2\n", "Megatron backend"),
        ("model_name_or_path: a/b\nfinetuning_type: lora\nexport_dir: out\n", "merges weights"),
    ],
)
def test_files_of_another_kind_are_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "base_model: [1]\nmicro_batch_size: {}\nfsdp_config: 3\nadapter: 5\nlora_target_modules: {a: 1}\n",
        "base_model: a\nsequence_len: -1\nfsdp: 7\ndeepspeed: [1]\n",
        "finetuning_type: 3\nstage: [a]\nlora_target: 7\npacking: x\ndeepspeed: /etc/passwd\n",
        "finetuning_type: full\nfsdp: [full_shard]\nper_device_train_batch_size: .inf\n",
    ],
)
def test_hostile_files_are_refused_or_read_without_a_crash(text: str) -> None:
    with suppress(InputError):
        import_run({"a.yaml": text}, system="8xh100-sxm")


def files(target: str, plan: dict[str, Any], model: str = "llama3-8b", **work: Any) -> dict[str, str]:
    table = {"model": model, "system": "64xh100-sxm", "workload": {"seq": 8192, "global_batch": 256, **work}}
    return dict(TARGETS[target].write(ridgeline.scenario({**table, "plan": plan})).files)


def test_axolotl_is_told_tensor_parallelism_and_llamafactory_loses_it() -> None:
    plan = {"engine": "torch-eager", "shard": "zero3", "tp": 4}
    told = yaml.safe_load(files("axolotl", plan)["train.yaml"])
    assert (told["tensor_parallel_size"], told["dp_shard_size"]) == (4, 16)
    made = ridgeline.scenario(
        {"model": "llama3-8b", "system": "64xh100-sxm", "workload": {"seq": 8192, "global_batch": 256}, "plan": plan}
    )
    assert "plan.tp" in {part.path for part in TARGETS["llamafactory"].write(made).lost}


def test_llamafactory_is_started_by_whoever_shards() -> None:
    sharded = files("llamafactory", {"engine": "torch-eager", "shard": "zero3"})
    assert "accelerate" in sharded["launch.sh"]
    assert {"train.yaml", "accelerate.yaml"} <= set(sharded)
    zero = files("llamafactory", {"engine": "deepspeed", "shard": "zero3"})
    assert "torchrun" in zero["launch.sh"]
    assert {"train.yaml", "deepspeed.json"} <= set(zero)


def test_a_preset_is_python_that_names_no_hostile_thing() -> None:
    text = files("torchtitan-preset", {"engine": "torchtitan", "shard": "zero3", "tp": 8, "compiled": True})[
        "preset.py"
    ]
    compile(text, "preset.py", "exec")
    assert "def llama3_plan() -> Trainer.Config:" in text
    base = {"hidden": 2048, "layers": 4, "vocab": 32000, "attention": {"heads": 16}, "mlp": {"hidden": 5504}}
    evil = {**base, "name": "x'); import os; os.system('touch owned') #"}
    made = {
        "model": evil,
        "system": "8xh100-sxm",
        "workload": {"seq": 512, "global_batch": 8},
        "plan": {"shard": "zero3"},
    }
    found = TARGETS["torchtitan-preset"].write(ridgeline.scenario(made))
    tree = ast.parse(found.files["preset.py"])
    assert {node.module.split(".")[0] for node in tree.body if isinstance(node, ast.ImportFrom)} == {"torchtitan"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]


def test_primus_spells_out_what_its_own_files_would_switch_on() -> None:
    table = {"model": "gpt3-6.7b", "system": "8xmi300x", "workload": {"seq": 2048, "global_batch": 64}}
    made = ridgeline.scenario({**table, "plan": {"engine": "primus", "shard": "none"}})
    module = yaml.safe_load(TARGETS["primus"].write(made).files["primus.yaml"])["modules"]["pre_trainer"]
    said = module["overrides"]
    assert (module["framework"], module["model"]) == ("megatron", "language_model.yaml")
    assert (said["swiglu"], said["use_distributed_optimizer"], said["num_layers"]) == (False, False, 32)
    with pytest.raises(InputError, match="it runs on chips of AMD, not of NVIDIA"):
        ridgeline.export(ridgeline.scenario({**table, "system": "8xh100-sxm", "plan": {}}), to="primus")


def test_primus_says_deepep_in_its_own_word() -> None:
    plan = {"engine": "primus", "shard": "zero1", "ep": 8, "moe_dispatch": "deepep"}
    work = {"seq": 4096, "global_batch": 64}
    made = ridgeline.scenario({"model": "mixtral-8x7b", "system": "16xmi300x", "workload": work, "plan": plan})
    found = TARGETS["primus"].write(made)
    assert found.expressed["plan.moe_dispatch"].startswith("overrides.")
    again = ridgeline.scenario(import_run(dict(found.files)).settings)
    assert (again.plan.switches.moe_dispatch, again.plan.mesh.ep, again.plan.engine) == ("deepep", 8, "primus")


@pytest.mark.parametrize("to", ["accelerate", "llamafactory", "deepspeed"])
def test_images_of_a_model_that_sees_are_the_datas(to: str) -> None:
    engine = "deepspeed" if to == "deepspeed" else "torch-eager"
    work = {"seq": 8192, "global_batch": 64, "images": 1.0, "task": "finetune"}
    plan = {"engine": engine, "shard": "zero3", "recompute": "full"}
    table = {"model": "qwen2.5-vl-7b", "system": "8xh100-sxm", "workload": work, "plan": plan}
    found = ridgeline.export(ridgeline.scenario(table), to=to)
    lost = {part.path: part.yours for part in found.lost}
    assert lost["workload.images"]
    assert found.check is not None
    assert found.check.verdict == "same"
    assert training_target(to).unsupported_decisions(ridgeline.scenario(table)) == ()
    if to == "llamafactory":
        assert "freeze_vision_tower: false" in found.files["train.yaml"]
        still = ridgeline.scenario({**table, "workload": {**work, "towers": "frozen"}})
        again = ridgeline.export(still, to=to)
        assert "freeze_vision_tower: true" in again.files["train.yaml"]
        assert again.check is not None
        assert again.check.verdict == "same"


@pytest.mark.parametrize("to", ["megatron", "torchtitan", "axolotl"])
def test_videos_and_frozen_towers_are_lost_by_name_elsewhere(to: str) -> None:
    work = {"seq": 8192, "global_batch": 64, "videos": 1.0, "frames": 8, "towers": "frozen"}
    table = {"model": "qwen2.5-vl-7b", "system": "8xh100-sxm", "workload": work, "plan": {"shard": "zero3"}}
    lost = {part.path: part.why for part in ridgeline.export(ridgeline.scenario(table), to=to).lost}
    assert {"workload.videos", "workload.frames", "workload.towers"} <= set(lost)
    assert UNSPOKEN not in lost.values()
