"""Megatron-Bridge: recipes are read by their syntax, documented fields only, the shape of published ones."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.api import export, import_run
from ridgeline.targets.dialects.megatron_bridge.read import read_recipe
from ridgeline.targets.options import options

# the fields that recipes/llama/llama3.py @0d5f5558 sets for two of its models, as facts in a file of our own
LLAMA = """
import torch
from megatron.bridge import AutoBridge

LONG: int = 16384


def llama3_8b() -> "ConfigContainer":
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider(load_weights=False)
    cfg.model.context_parallel_size = 2
    cfg.model.sequence_parallel = False
    cfg.model.seq_length = 8192
    cfg.train.global_batch_size = 512
    cfg.train.micro_batch_size = 1
    cfg.model.cuda_graph_impl = "none"
    cfg.model.cuda_graph_scope = "full"
    cfg.model.attention_backend = None
    cfg.ddp.overlap_grad_reduce = True
    cfg.ddp.overlap_param_gather = True
    cfg.ddp.use_distributed_optimizer = True
    cfg.ddp.grad_reduce_in_fp32 = True
    cfg.ddp.data_parallel_sharding_strategy = "no_shard"
    return cfg


def llama3_8b_16k() -> "ConfigContainer":
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider(load_weights=False)
    cfg.dataset.seq_length = LONG
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.pipeline_dtype = torch.bfloat16
    cfg.model.context_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = LONG
    cfg.train.global_batch_size = 512
    cfg.train.micro_batch_size = 1
    cfg.optimizer.exp_avg_dtype = torch.float32
    cfg.ddp.use_distributed_optimizer = True
    cfg.mixed_precision = "bf16_with_fp8_current_scaling_mixed"
    return cfg
"""
# the same of recipes/deepseek/deepseek_v3.py @05d003fb: parameters with defaults, a container built at the end
DEEPSEEK = """
def deepseek(hf_path: str = "deepseek-ai/DeepSeek-V3", seq_length: int = 4096, global_batch_size: int = 4096):
    bridge = AutoBridge.from_hf_pretrained(hf_path)
    model_cfg = bridge.to_megatron_provider(load_weights=False)
    model_cfg.tensor_model_parallel_size = 2
    model_cfg.pipeline_model_parallel_size = 16
    model_cfg.expert_model_parallel_size = 64
    model_cfg.expert_tensor_parallel_size = 1
    model_cfg.sequence_parallel = True
    model_cfg.seq_length = seq_length
    model_cfg.mtp_num_layers = 1
    model_cfg.recompute_granularity = "selective"
    last = ["mtp"] * 1 + ["loss"]
    model_cfg.pipeline_model_parallel_layout = (
        [["embedding"] + ["decoder"] * 4] + [["decoder"] * 4] * 14 + [["decoder"] + last]
    )
    opt_config = OptimizerConfig()
    opt_config.use_precision_aware_optimizer = True
    opt_config.exp_avg_dtype = torch.bfloat16
    if torch.cuda.memory_allocated():
        kept = 1
    cfg = ConfigContainer(
        model=model_cfg,
        train=TrainingConfig(global_batch_size=global_batch_size, micro_batch_size=1),
        optimizer=opt_config,
        ddp=DistributedDataParallelConfig(grad_reduce_in_fp32=False, overlap_grad_reduce=True,
            overlap_param_gather=True, use_distributed_optimizer=True),
        mixed_precision=MixedPrecisionConfig(bf16=True, grad_reduce_in_fp32=False),
    )
    return cfg  # imports megatron.bridge elsewhere
"""

# what the 0.6.2 release sets for Llama 3 70B on 32 GPUs and, from it, in a recipe that changes one thing
LLAMA_70B = """
from megatron.bridge import AutoBridge

def llama3_70b():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-70B").to_megatron_provider(load_weights=False)
    cfg.dataset.seq_length = 8192
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_layout = None
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.context_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = 8192
    cfg.train.global_batch_size = 512
    cfg.train.micro_batch_size = 1
    cfg.model.recompute_granularity = None
    cfg.ddp.overlap_grad_reduce = False
    cfg.ddp.use_distributed_optimizer = True
    cfg.ddp.use_megatron_fsdp = False
    cfg.ddp.data_parallel_sharding_strategy = "no_shard"
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True, tp_comm_overlap_cfg=userbuffers)
    cfg.mixed_precision = bf16_mixed()
    return cfg

def llama3_70b_low(precision: str):
    cfg = llama3_70b()
    cfg.mixed_precision = precision
    cfg.train.global_batch_size = 128
    set_layout(cfg.model)
    return cfg

def llama3_70b_fp8():
    cfg = llama3_70b_low("bf16_with_fp8_current_scaling_mixed")
    return cfg

def loop_a():
    cfg = loop_b()
    cfg.model.seq_length = 1
    return cfg

def loop_b():
    cfg = loop_a()
    cfg.model.seq_length = 2
    return cfg
"""


def made(plan: dict[str, Any], model: Any = "llama3-8b", chips: int = 16, **work: Any) -> Scenario:
    workload = {"seq": 4096, "global_batch": 64, **work}
    return ridgeline.scenario({"model": model, "system": f"{chips}xh100-sxm", "workload": workload, "plan": plan})


def test_a_published_recipe_is_picked_by_name(tmp_path: Path) -> None:
    path = tmp_path / "llama3.py"
    path.write_text(LLAMA)
    with pytest.raises(InputError, match="llama3_8b_16k"):
        import_run(path)
    built = ridgeline.scenario(import_run(f"{path}::llama3_8b", system="16xh100-sxm").settings)
    assert built.model.id == "llama3-8b"
    assert (built.plan.mesh.cp, built.plan.mesh.dp, built.plan.sharding.shard) == (2, 8, "zero1")
    assert built.plan.precision.compute.id == "bf16"
    assert built.plan.precision.gradients is not None
    assert built.plan.precision.gradients.id == "fp32"
    assert built.workload.seq == 8192
    long = ridgeline.scenario(import_run(f"{path}::llama3_8b_16k", system="16xh100-sxm").settings)
    assert (long.plan.mesh.tp, long.plan.mesh.pp, long.plan.mesh.cp, long.workload.seq) == (4, 2, 2, 16384)
    assert long.plan.precision.compute.id == "fp8-e4m3"
    assert long.plan.precision.weights.id == "fp8-e4m3"


def test_a_published_recipe_that_builds_a_container() -> None:
    found = import_run({"deepseek_v3.py": DEEPSEEK}, system="1024xh100-sxm")
    assert found.target == "megatron-bridge"
    built = ridgeline.scenario(found.settings)
    assert built.model.id == "deepseek-v3"
    assert built.placement == (*[4] * 15, 1)
    assert (built.plan.mesh.ep, built.plan.mesh.etp, built.plan.mesh.dp) == (64, 1, 32)
    assert built.plan.precision.gradients is not None
    assert built.plan.precision.gradients.id == "bf16"
    assert getattr(built.workload, "optimizer").states.id == "bf16"  # noqa: B009
    assert any("memory_allocated" in note for note in found.assumptions)


def test_the_70b_recipe_of_the_release(tmp_path: Path) -> None:
    path = tmp_path / "llama3.py"
    path.write_text(LLAMA_70B)
    built = ridgeline.scenario(import_run(f"{path}::llama3_70b", system="32xh100-sxm").settings)
    mesh = built.plan.mesh
    assert built.model.id == "llama3-70b"
    assert (mesh.tp, mesh.pp, mesh.cp, mesh.dp) == (4, 4, 2, 1)
    assert (built.plan.schedule.name, built.plan.schedule.chunks) == ("interleaved", 5)
    assert built.placement == (4,) * 20
    # an object for overlap asks for that of tensor ranks, and turns that of gradients on whatever ddp says
    for name in ("tp", "grad-reduce"):
        assert built.plan.switches.overlap.get(name, name in built.engine.overlaps)


def test_a_recipe_that_changes_another(tmp_path: Path) -> None:
    path = tmp_path / "llama3.py"
    path.write_text(LLAMA_70B)
    found = import_run(f"{path}::llama3_70b_fp8", system="32xh100-sxm")
    built = ridgeline.scenario(found.settings)
    assert (built.plan.precision.compute.id, built.workload.sequences, built.plan.mesh.tp) == ("fp8-e4m3", 128, 4)
    assert any("set_layout" in note for note in found.assumptions)
    unspelled = import_run(f"{path}::llama3_70b_low", system="32xh100-sxm")
    assert ridgeline.scenario(unspelled.settings).plan.precision.compute.id == "bf16"
    assert any("read as bf16_mixed" in note for note in unspelled.assumptions)
    with pytest.raises(InputError):  # two that call each other end
        import_run(f"{path}::loop_a", system="32xh100-sxm")


def test_settings_that_are_kept_twice_are_said_twice() -> None:
    fields = read_recipe(export(made({"shard": "none"}), to="megatron-bridge").files["recipe.py"]).fields
    assert fields["ddp.use_distributed_optimizer"] is fields["optimizer.use_distributed_optimizer"] is False
    assert fields["ddp.overlap_param_gather"] is fields["optimizer.overlap_param_gather"] is False
    assert fields["ddp.overlap_grad_reduce"] is fields["comm_overlap.overlap_grad_reduce"] is True
    moe = made({"ep": 8, "overlap": {"moe": True}, "shard": "zero1"}, model="qwen3-30b-a3b")
    fields = read_recipe(export(moe, to="megatron-bridge").files["recipe.py"]).fields
    assert fields["comm_overlap.overlap_moe_expert_parallel_comm"] is True
    graph = read_recipe(export(made({"graph": "full"}), to="megatron-bridge").files["recipe.py"]).fields
    assert graph["rerun_state_machine.check_for_nan_in_loss"] is False


def test_what_the_common_recipe_sets_is_known() -> None:
    text = """
import megatron.bridge
def mine():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()
    cfg.ddp.use_megatron_fsdp = True
    return cfg
"""
    built = ridgeline.scenario(import_run({"mine.py": text}, system="8xh100-sxm").settings)
    assert (built.workload.seq, built.workload.sequences, built.plan.microbatch) == (4096, 32, 2)
    assert built.plan.sharding.shard == "zero3"
    assert built.plan.precision.compute.id == "bf16"


def test_nothing_of_a_recipe_runs(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    text = f"import megatron.bridge\nopen({str(marker)!r}, 'w')\n" + LLAMA
    read_recipe(text, "llama3_8b")
    assert not marker.exists()


def test_the_written_recipe_is_python_of_documented_fields() -> None:
    known = options("megatron-bridge")
    plan = {"tp": 2, "pp": 2, "schedule": "interleaved", "shard": "zero3", "precision": "fp8", "recompute": "full"}
    for id in ("llama3-8b", "deepseek-v3", "gpt3-175b", "qwen3-30b-a3b", "gpt-oss-120b"):
        text = export(made({} if id == "deepseek-v3" else plan, model=id), to="megatron-bridge").files["recipe.py"]
        ast.parse(text)
        for name in read_recipe(text).fields:
            assert name in known.values, (id, name)


def test_what_it_cannot_say() -> None:
    lost = {
        part.path for part in export(made({"pp": 2, "schedule": "zbv", "compiled": True}), to="megatron-bridge").lost
    }
    assert {"plan.schedule.name", "plan.compiled", "plan.engine"} <= lost
    assert export(made({"tp": 2, "shard": "zero1", "engine": "megatron-bridge"}), to="megatron-bridge").lost == ()


@given(st.text(alphabet="abcfg.=()[]{}*+-\n '\"1,:#", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        read_recipe(text)


COMMON = """
from megatron.bridge.training.config import ConfigContainer
MIDDLE = [["decoder"] * 4] * 6
STAGES = {(1, 1): None, (4, 2): [["embedding"] + ["decoder"] * 5, *MIDDLE, ["decoder"] * 3 + ["loss"]]}

def even(layers, stages):
    each, more = divmod(layers, stages)
    found = []
    for stage in range(stages):
        one = ["embedding"] if stage == 0 else []
        one.extend(["decoder"] * (each + (1 if stage < more else 0)))
        found.append(one)
    return found

def tuned_common() -> ConfigContainer:
    cfg = ConfigContainer()
    cfg.train.global_batch_size = 48
    cfg.train.micro_batch_size = 2
    cfg.dataset.seq_length = 2048
    return cfg
"""
OF_A_WHEEL = """
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import STAGES, even, tuned_common

def table_sft_config():
    cfg = tuned_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()
    cfg.model.pipeline_model_parallel_size, cfg.model.virtual_pipeline_model_parallel_size = 4, 2
    layout = STAGES[(4, 2)] if (4, 2) in STAGES else None
    if layout is not None:
        cfg.model.pipeline_model_parallel_layout = [list(stage) for stage in layout]
    cfg.mixed_precision = "mine_bf16_with_fp8_current_scaling_mixed"
    return cfg

def even_sft_config():
    cfg = table_sft_config()
    cfg.model.pipeline_model_parallel_size, cfg.model.virtual_pipeline_model_parallel_size = 3, None
    cfg.model.pipeline_model_parallel_layout = even(cfg.model.num_layers, 3)
    return cfg

def two_lengths_config():
    cfg = table_sft_config()
    cfg.model = Provider(num_layers=8, hidden_size=512, num_attention_heads=8, vocab_size=1024, seq_length=65536)
    return cfg
"""


def test_recipes_of_an_unpacked_wheel_find_what_they_build_on(tmp_path: Path) -> None:
    folder = tmp_path / "unpacked" / "megatron" / "bridge" / "recipes"
    folder.mkdir(parents=True)
    (tmp_path / "unpacked" / "megatron_bridge-0.6.2.dist-info").mkdir()
    (folder / "common.py").write_text(COMMON)
    path = folder / "mine.py"
    path.write_text(OF_A_WHEEL)
    plan = import_run(f"{path}::table_sft_config").settings["plan"]
    assert (plan["microbatch"], plan["placement"]) == (2, [5, *[4] * 6, 3])
    assert plan["precision"]["compute"] == "fp8-e4m3"  # a model's own kind of a named precision
    found = import_run(f"{path}::even_sft_config").settings
    assert (found["workload"]["global_batch"], found["plan"]["placement"]) == (48, [11, 11, 10])
    long = import_run(f"{path}::two_lengths_config")
    assert long.settings["workload"]["seq"] == 2048
    assert any("65536 of the model and 2048 of the data" in note for note in long.assumptions)


def test_a_recipe_without_what_it_builds_on_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OF_A_WHEEL)
    with pytest.raises(
        InputError, match=r"builds on tuned_common of megatron\.bridge\.recipes\.common, which is not here"
    ):
        import_run(f"{tmp_path / 'mine.py'}::table_sft_config")


@pytest.mark.parametrize(
    ("model", "targets", "lost"),
    [
        ("llama3-8b", ["qkv", "out"], []),
        ("llama3-8b", ["qkv", "up", "gate", "down"], []),
        ("llama3-8b", ["up"], ["workload.lora.targets"]),
        ("qwen3-30b-a3b", ["qkv", "out"], []),
        ("deepseek-v2-lite", ["qkv"], ["workload.task", "workload.lora.rank", "workload.lora.targets"]),
    ],
)
def test_adapters_of_plain_layers_are_written(model: str, targets: list[str], lost: list[str]) -> None:
    work = {"seq": 4096, "global_batch": 64, "task": "lora", "lora": {"rank": 16, "targets": targets}}
    plan = {"engine": "megatron-bridge", "tp": 2}
    found = ridgeline.export(
        ridgeline.scenario({"model": model, "system": "8xh100-sxm", "workload": work, "plan": plan}),
        to="megatron-bridge",
    )
    assert [part.path for part in found.lost if part.path.startswith("workload.")] == lost
    assert ("cfg.peft = LoRA(" in found.files["recipe.py"]) == ("PRETRAINED:?" in found.files["launch.sh"])
    assert ("workload.lora.rank" in lost) == ("LoRA" not in found.files["recipe.py"])
    if not lost:
        assert found.check is not None
        assert found.check.verdict == "same"
