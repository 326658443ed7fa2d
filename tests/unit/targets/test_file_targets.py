"""Targets whose configuration is a file: what published configurations mean, and what bad ones are told."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.api import import_run
from ridgeline.targets.registry import TARGETS, detect
from ridgeline.targets.target import Export, Imported

FILED = ("torchtitan", "deepspeed", "maxtext", "verl")


def scenario(plan: dict[str, Any], model: Any = "llama3-8b", **workload: Any) -> Scenario:
    table = {"model": model, "system": "64xh100-sxm", "workload": {"seq": 8192, "global_batch": 256, **workload}}
    return ridgeline.scenario({**table, "plan": plan})


def export(target: str, plan: dict[str, Any], model: Any = "llama3-8b", **workload: Any) -> Export:
    return TARGETS[target].write(scenario(plan, model, **workload))


def losses(made: Export) -> dict[str, str]:
    return {lost.path: lost.why for lost in made.lost if not lost.path.startswith("model.")}


# ---- configurations as their own projects publish them (facts only, in our own words)

# pytorch/torchtitan train_configs/llama3_405b.toml @01424cb2: a preset for 128 H100
TITAN_405B = """
[model]
name = "llama3"
flavor = "405B"
converters = "float8"
[optimizer]
name = "AdamW"
lr = 8e-5
[training]
batch_size = 2
seq_len = 8192
compile = true
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
pipeline_parallel_degree = 1
context_parallel_degree = 1
[activation_checkpoint]
mode = "full"
[float8]
filter_fqns = "output"
"""


def test_torchtitan_405b_on_128_chips() -> None:
    found = import_run({"llama3_405b.toml": TITAN_405B}, system="128xh100-sxm")
    made = ridgeline.scenario(found.settings)
    assert found.target == "torchtitan"
    assert (made.model.id, made.plan.mesh.tp, made.plan.mesh.dp, made.plan.microbatch) == ("llama3.1-405b", 8, 16, 2)
    assert made.workload.sequences == 16 * 2  # 128 / 8 data-parallel ranks, 2 sequences each
    assert made.plan.sharding.shard == "zero3"
    assert made.plan.recompute.kind == "full"
    assert made.plan.precision.compute.id == "fp8-e4m3"
    assert made.plan.switches.overlap["tp"] is True
    assert {left.option for left in found.unread} == {"optimizer.lr", "float8.filter_fqns"}


# the same preset as version 0.3.0 has it in Python (models/llama3/config_registry.py, llama3_405b), its facts alone
TITAN_CODE = """
from torchtitan.trainer import Trainer

def llama3_base() -> Trainer.Config:
    spec = model_registry("405B", converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"])])
    return Trainer.Config(
        hf_assets_path="./assets/hf/Llama-3.1-405B",
        model_spec=spec,
        optimizer=default_adamw(lr=8e-5),
        training=TrainingConfig(local_batch_size=1, seq_len=8192),
        activation_checkpoint=FullAC.Config(),
        compile=CompileConfig(enable=True, enable_async_tensor_parallel=True),
    )

def llama3_405b() -> Trainer.Config:
    config = llama3_base()
    config.training.local_batch_size = 2
    config.parallelism = ParallelismConfig(tensor_parallel_degree=8)
    return config
"""


def test_torchtitan_in_python_means_the_same() -> None:
    found = import_run({"config_registry.py::llama3_405b": TITAN_CODE}, system="128xh100-sxm")
    made = ridgeline.scenario(found.settings)
    assert found.target == "torchtitan"
    assert (made.model.id, made.plan.mesh.tp, made.plan.mesh.dp, made.plan.microbatch) == ("llama3.1-405b", 8, 16, 2)
    assert (made.plan.recompute.kind, made.plan.sharding.shard) == ("full", "zero3")
    assert (made.plan.precision.compute.id, made.plan.precision.scaling) == ("fp8-e4m3", "row")
    assert made.plan.switches.overlap["tp"] is True
    assert made.plan.switches.compiled is True


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("config_registry.py", TITAN_CODE, "2 functions"),
        ("config_registry.py::llama4", TITAN_CODE, "llama3_405b, llama3_base"),
        ("config_registry.py", "import torchtitan\nTrainer.Config(", "no Python"),
    ],
)
def test_torchtitan_functions_that_cannot_be_read(name: str, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        import_run({name: text})


# AI-Hypercomputer/maxtext configs/gpu/a3/llama_3.1_405b/128vm.sh @5505348a: 128 nodes of 8 H100
MAXTEXT_405B = """
python3 -m maxtext.trainers.pre_train.train base.yml hardware=gpu steps=10 model_name=llama3.1-405b \\
    attention=cudnn_flash_te remat_policy=full per_device_batch_size=1.0 max_target_length=8192 \\
    dcn_fsdp_parallelism=128 ici_fsdp_parallelism=8 dcn_data_parallelism=1 max_segments_per_seq=32
"""


def test_maxtext_405b_on_1024_chips() -> None:
    found = import_run({"128vm.sh": MAXTEXT_405B}, system="1024xh100-sxm")
    made = ridgeline.scenario(found.settings)
    assert found.target == "maxtext"
    assert (made.model.id, made.plan.mesh.dp, made.plan.shard_degree) == ("llama3.1-405b", 1024, 1024)
    assert (made.workload.sequences, made.workload.seq, made.plan.microbatch) == (1024, 8192, 1)
    assert made.plan.recompute.kind == "full"
    assert made.plan.precision.compute.id == "bf16"


def test_maxtext_without_a_mesh_takes_all_chips() -> None:
    text = 'model_name: "llama3-8b"\nper_device_batch_size: 12\nmax_target_length: 8192\nremat_policy: "full"\n'
    found = import_run({"llama3_8b.yml": text}, system="16xh100-sxm")
    made = ridgeline.scenario(found.settings)
    assert (made.plan.mesh.dp, made.workload.sequences) == (16, 192)
    assert "global_batch = 192: 12 sequences on each of 16 data-parallel ranks" in found.assumptions


# volcengine/verl examples/grpo_trainer/run_qwen2-7b_math.sh @3f388066: one node of 8
VERL_FSDP = """
python3 -m verl.trainer.main_ppo \\
    data.train_batch_size=1024 data.max_prompt_length=1024 data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \\
    actor_rollout_ref.model.enable_gradient_checkpointing=True \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 trainer.n_gpus_per_node=8 trainer.nnodes=1 $@
"""


def test_verl_grpo_on_one_node() -> None:
    found = import_run({"run.sh": VERL_FSDP}, system="8xh100-sxm", target="verl-update")
    made = ridgeline.scenario(found.settings)
    assert found.target == "verl-update"
    assert (made.model.id, made.plan.mesh.dp, made.plan.microbatch) == ("qwen2-7b", 8, 16)
    assert (made.workload.sequences, made.workload.seq) == (256 * 5, 2048)
    assert made.plan.sharding.shard == "zero3"
    assert made.plan.recompute.kind == "full"
    assert made.plan.offload.optimizer == 0
    assert any(left.option == "actor_rollout_ref.rollout.tensor_model_parallel_size" for left in found.unread)


# volcengine/verl examples/grpo_trainer/run_qwen3moe-30b_megatron_96gb.sh @6e7fdc2e, its variables included
VERL_MEGATRON = """
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 8))
COMMON_EP=${COMMON_EP:-8}
ACTOR_EP=${ACTOR_EP:-$COMMON_EP}
COMMON_VPP=${COMMON_VPP:-null}
python3 -m verl.trainer.main_ppo --config-path=./config --config-name='ppo_megatron_trainer' \\
    data.max_prompt_length=${max_prompt_length} data.max_response_length=${max_response_length} \\
    actor_rollout_ref.rollout.n=16 actor_rollout_ref.model.path="Qwen/Qwen3-30B-A3B-Base" \\
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_mini_batch_size=128 \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((max_prompt_length + max_response_length)) \\
    +actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_offload_fraction=1. \\
    +actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload=True \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1 \\
    actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size=${COMMON_VPP} \\
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=${ACTOR_EP} \\
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_token_dispatcher_type="flex" \\
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_enable_deepep=True \\
    trainer.n_gpus_per_node=8 trainer.nnodes=4
"""


def test_verl_megatron_with_experts() -> None:
    found = import_run({"run.sh": VERL_MEGATRON}, system="32xh100-sxm", target="verl-update")
    made = ridgeline.scenario(found.settings)
    assert (made.model.id, made.plan.mesh.ep, made.plan.mesh.dp) == ("qwen3-30b-a3b", 8, 32)
    assert (made.workload.seq, made.workload.sequences, made.plan.microbatch) == (10240, 2048, 1)
    assert made.plan.offload.optimizer == 1
    assert made.plan.sharding.shard == "zero1"
    assert made.plan.switches.moe_dispatch == "deepep"
    assert made.plan.engine == "megatron-core"


# the shape of DeepSpeed's own stage-3 examples: batch sizes by rank, words left to the script
DEEPSPEED_AUTO = """{
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2,
  "bf16": {"enabled": "auto"},
  "gradient_clipping": "auto",
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "stage3_prefetch_bucket_size": 50000000
  }
}"""


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ({"embedding_width": 512}, "model.embedding.width"),
        ({"embedding_norm": "layer"}, "model.embedding.norm.kind"),
        ({"head_bias": True}, "model.embedding.head_bias"),
    ],
)
def test_a_model_with_parts_that_llama_lacks_is_not_written_as_one(part: dict[str, Any], path: str) -> None:
    sizes = {"hidden": 1024, "layers": 4, "vocab": 32000, "mlp": {"hidden": 4096}}
    heads = {"attention": {"heads": 8, "kv_heads": 8, "head_dim": 128}}
    assert "LlamaConfig" in export("deepspeed", {}, sizes | heads).files["train.py"]
    made = export("deepspeed", {}, sizes | heads | part)
    assert "train.py" not in made.files
    assert "LlamaConfig has no such part" in {lost.path: lost.why for lost in made.lost}[path]


def test_deepspeed_stage_3_with_the_model_from_elsewhere() -> None:
    found = import_run({"ds_config.json": DEEPSPEED_AUTO}, system="16xh100-sxm")
    settings = dict(found.settings) | {"model": "llama3-8b"}
    settings["workload"] = {**settings["workload"], "seq": 2048}
    made = ridgeline.scenario(settings)
    assert (made.plan.mesh.dp, made.plan.microbatch, made.workload.sequences) == (16, 4, 16 * 8)
    assert made.plan.sharding.shard == "zero3"
    assert made.plan.offload.optimizer == 1
    assert "precision = bf16: the file leaves it to the script" in found.assumptions


# ---- what a target cannot do is said, and the nearest is written


@pytest.mark.parametrize(
    ("target", "plan", "path"),
    [
        ("torchtitan", {"shard": "zero1"}, "plan.shard"),
        ("torchtitan", {"cp": 2, "cp_kind": "all-to-all", "shard": "zero3"}, "plan.cp_kind"),
        ("torchtitan", {"pp": 2, "schedule": "zero-bubble-h1"}, "plan.schedule.name"),
        ("torchtitan", {"recompute": "selective"}, "plan.recompute.parts"),
        ("deepspeed", {"pp": 2}, "plan.pp"),
        ("deepspeed", {"shard": "zero3", "shard_degree": 8}, "plan.shard_degree"),
        ("deepspeed", {"recompute": "full"}, "plan.recompute.kind"),
        ("deepspeed", {"precision": "fp8"}, "plan.precision.compute"),
        ("maxtext", {"pp": 2}, "plan.schedule.name"),
        ("maxtext", {"shard": "zero2"}, "plan.shard"),
        ("maxtext", {"offload": {"optimizer": 0.5}}, "plan.offload.optimizer"),
        ("verl", {"shard": "zero3", "engine": "torch-eager", "recompute": "selective"}, "plan.recompute.kind"),
        ("verl", {"tp": 2, "shard": "zero2"}, "plan.shard"),
    ],
)
def test_what_is_lost_is_said(target: str, plan: dict[str, Any], path: str) -> None:
    assert path in losses(export(target, plan))


def test_hybrid_sharding_becomes_torchtitans_two_degrees() -> None:
    made = export("torchtitan", {"tp": 4, "cp": 2, "shard": "zero3", "shard_degree": 4, "engine": "torchtitan"})
    text = made.files["job.toml"]
    # dp = 64 / (4 * 2) = 8; a shard over 4 ranks is 2 data ranks x 2 context ranks, replicated 4 times
    assert "data_parallel_shard_degree = 2\n" in text
    assert "data_parallel_replicate_degree = 4\n" in text


def test_torchtitan_takes_pipeline_microbatches_out_of_one_batch() -> None:
    text = export("torchtitan", {"pp": 4, "microbatch": 2, "engine": "torchtitan"}).files["job.toml"]
    # dp = 16: each rank handles 256 / 16 = 16 sequences, in 8 microbatches of 2
    assert "local_batch_size = 16\n" in text
    assert "pipeline_parallel_microbatch_size = 2\n" in text


def test_maxtext_spreads_outer_axes_between_nodes() -> None:
    text = export("maxtext", {"tp": 8, "pp": 2, "shard": "zero3", "engine": "maxtext"}).files["maxtext.yml"]
    # 8 nodes of 8: the pipeline takes 2 of them, fsdp 4; tensor parallelism stays inside
    assert "dcn_pipeline_parallelism: 2\n" in text
    assert "dcn_fsdp_parallelism: 4\n" in text
    assert "ici_tensor_sequence_parallelism: 8\n" in text
    assert "ici_fsdp_parallelism: 1\n" in text
    assert "per_device_batch_size: 4.0\n" in text  # 256 sequences over 64 chips, in one pass


def test_verl_chooses_its_backend() -> None:
    assert "- ppo_trainer\n" in export("verl", {"shard": "zero3", "engine": "torch-eager"}).files["verl.yaml"]
    assert "- ppo_megatron_trainer\n" in export("verl", {"tp": 2, "shard": "zero1"}).files["verl.yaml"]


@pytest.mark.parametrize("target", FILED)
def test_a_written_folder_is_recognised_and_names_its_system(target: str) -> None:
    files = export(target, {"shard": "zero3"}).files
    assert detect(files).id == target
    assert detect(export(target, {"pp": 4}, "deepseek-v3").files).id == target
    assert import_run(dict(files)).settings["system"] == "64xh100-sxm"
    assert {"launch.sh", "launch.sbatch"} < set(files)


# ---- input is hostile


def read(target: str, name: str, text: str) -> Imported:
    return TARGETS[target].read({name: text})


@pytest.mark.parametrize(
    ("target", "name", "text", "told"),
    [
        (
            "torchtitan",
            "a.toml",
            TITAN_405B.replace("= 8\n", '= "x"\n'),
            "a.toml:16 parallelism.tensor_parallel_degree",
        ),
        ("torchtitan", "a.toml", TITAN_405B.replace('"full"', '"ful"'), "a.toml:21 activation_checkpoint.mode"),
        ("torchtitan", "a.toml", TITAN_405B.replace("seq_len = 8192", "seq_len = -1"), "a.toml:11 training.seq_len"),
        ("deepspeed", "a.json", '{\n"zero_optimization": {"stage": 7}}', "a.json:2 zero_optimization.stage"),
        ("deepspeed", "a.json", '{"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 9}}}', "ratio"),
        ("deepspeed", "a.json", "{}", "zero_optimization"),
        ("maxtext", "a.yml", "model_name: llama3-8b\nper_device_batch_size: -3\n", "a.yml:2 per_device_batch_size"),
        ("maxtext", "a.yml", "model_name: llama3-8b\nremat_policy: ful\n", "did you mean 'full'?"),
        ("verl", "a.yaml", "actor_rollout_ref: {actor: {ppo_mini_batch_size: 0}}", "ppo_mini_batch_size"),
        ("verl", "a.yaml", "trainer: {nnodes: 1}", "actor_rollout_ref"),
    ],
)
def test_bad_values_are_told_with_their_place(target: str, name: str, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told.replace("?", r"\?")):
        read(target, name, text)


def test_a_file_that_is_no_configuration_is_not_recognised() -> None:
    with pytest.raises(InputError, match="which no target recognises"):
        detect({"a.json": '{"x": 1}', "b.toml": "x = 1", "c.yml": "x: 1"})
    assert not any(TARGETS[target].recognises({"a.json": "[", "b.toml": "[", "c.yml": "&a *a"}) for target in FILED)


# ---- recompute that differs by stage is written as much everywhere as anywhere


BY_STAGE = {"kind": "full", "layers": [5, 0, 0, 0]}


def test_recompute_by_stage_is_covered() -> None:
    """llama3-8b in 4 stages of 8 layers, of which the first recomputes 5."""
    plan = {"pp": 4, "recompute": BY_STAGE}
    titan = export("torchtitan", {**plan, "engine": "torchtitan"})
    # one layer in 8 // 5 = 1: all of them
    assert 'mode = "full"\n' in titan.files["job.toml"]
    assert "one way for all layers; written: full, which" in losses(titan)["plan.recompute.layers"]
    two = export("torchtitan", {**plan, "recompute": {"kind": "full", "layers": [3, 0, 0, 0]}, "engine": "torchtitan"})
    assert 'selective_ac_option = "2"\n' in two.files["job.toml"]  # 8 // 3: one in two, 4 layers of each stage
    text = export("maxtext", {**plan, "engine": "maxtext"}).files["maxtext.yml"]
    assert yaml.safe_load(text)["remat_policy"] == "full"
    made = export("verl", plan)
    assert "recompute_num_layers: 5\n" in made.files["verl.yaml"]
    assert "written: full (5 layers of each stage)" in losses(made)["plan.recompute.layers"]
    assert "activation_checkpoint_interval" in export("deepspeed", plan).files["ds_config.json"]


@pytest.mark.parametrize("target", FILED)
def test_what_the_rest_does_is_accounted_for(target: str) -> None:
    made = export(target, {"pp": 4, "recompute": {**BY_STAGE, "rest": "selective"}})
    assert "plan.recompute.rest" in losses(made)


def test_verl_spells_a_last_stage_without_layers() -> None:
    """32 layers as 11, 11, 10 and none: Megatron refuses a zero, so the layout is spelt."""
    made = export("verl", {"pp": 4, "placement": [11, 11, 10, 0]})
    actor = yaml.safe_load(made.files["verl.yaml"])["actor_rollout_ref"]["actor"]
    layer = actor["megatron"]["override_transformer_config"]
    assert layer["pipeline_model_parallel_layout"] == "Et*11|t*11|t*10|L"
    back = ridgeline.scenario(import_run(dict(made.files)).settings)
    assert back.placement == (11, 11, 10, 0)


@pytest.mark.parametrize(
    ("parts", "policy"),
    [
        (["attention"], "minimal"),
        (["norm"], "minimal_with_context"),
        (["mlp"], "save_dot_with_context_except_mlp"),
        (["mlp", "attention"], "save_dot_except_mlp"),
        (["mixer"], "full"),
        (["alternate"], "full"),
    ],
)
def test_maxtext_takes_the_first_policy_that_covers(parts: list[str], policy: str) -> None:
    text = export("maxtext", {"recompute": {"kind": "selective", "parts": parts}}).files["maxtext.yml"]
    assert yaml.safe_load(text)["remat_policy"] == policy


def test_maxtext_pipeline_takes_a_multiple_of_its_stages() -> None:
    """64 chips in 16 stages, 4 data-parallel ranks of 64 sequences: 8 microbatches of 8 become 16 of 4."""
    made = export("maxtext", {"pp": 16, "microbatch": 8})
    assert "num_pipeline_microbatches: 16\n" in made.files["maxtext.yml"]
    assert "written with 16 of 4" in losses(made)["plan.microbatch"]


def test_maxtext_counts_two_devices_for_an_ironwood_chip() -> None:
    table = {"model": "llama3-70b", "system": "tpu-v7x:4x4x4", "workload": {"seq": 8192, "global_batch": 256}}
    made = ridgeline.scenario({**table, "plan": {"shard": "zero3", "microbatch": 2, "recompute": "full"}})
    text = TARGETS["maxtext"].write(made).files["maxtext.yml"]
    assert "ici_fsdp_parallelism: 128\n" in text  # 64 chips, 128 devices
    assert "per_device_batch_size: 1.0\n" in text  # 2 sequences a chip
    back = ridgeline.scenario(import_run({"maxtext.yml": text}).settings)
    assert (back.plan.mesh.dp, back.plan.microbatch, back.workload.sequences) == (64, 2, 256)
