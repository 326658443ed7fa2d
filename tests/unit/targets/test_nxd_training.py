"""NxD Training: degrees in NeuronCores, formats that depend on zero1, chips that it does not run on."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.targets.api import export, import_run
from ridgeline.targets.registry import TARGETS

PUBLISHED = """
name: hf_llama
model_source: hf
trainer: {devices: 64, lnc: 2, num_nodes: 8}
exp_manager:
  checkpoint_callback_params:
    filename: 'hf_llama3_70B--{step}-{consumed_samples}'
    model_parallel_size: ${multiply:${distributed_strategy.tensor_model_parallel_size}, 4}
distributed_strategy:
  tensor_model_parallel_size: 32
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 1
  zero1: True
  sequence_parallel: True
  kv_replicator: 4
data: {micro_batch_size: 1, global_batch_size: 1024, train_dir: /data}
model:
  model_config: /home/me/config.json
  encoder_seq_length: 8192
  max_position_embeddings: ${.encoder_seq_length}
  pipeline_cuts: ["model.layers.18", "model.layers.39", "model.layers.60"]
  activations_checkpoint_granularity: selective
  activations_checkpoint_recompute: [LlamaRMSNorm, ActivationMultiplyMLP, CoreAttention]
  fusions: {flash_attention: True}
  optim: {name: adamw, lr: 1.5e-5}
precision: {type: mixed_precision}
"""


def made(plan: dict[str, Any], system: str = "32xtrn2", model: Any = "llama3-8b") -> Scenario:
    work = {"seq": 4096, "global_batch": 64}
    return ridgeline.scenario({"model": model, "system": system, "workload": work, "plan": plan})


def test_a_published_file_is_read_in_chips() -> None:
    found = import_run({"hf_llama3_70B_trn2_config.yaml": PUBLISHED}, system="128xtrn2")
    plan = found.settings["plan"]
    assert (found.target, found.settings["model"], found.chips) == ("nxd-training", "llama3-70b", 128)
    assert (plan["tp"], plan["pp"], plan["shard"], plan["placement"]) == (8, 4, "zero1", [19, 21, 21, 19])
    assert plan["recompute"] == {"kind": "selective", "parts": ["activation", "norm"]}  # flash has no core attention
    assert assemble(found.settings)[0] is not None


@pytest.mark.parametrize(
    ("system", "problem"),
    [("128xtrn1", "at most 32 ranks of 1 cores"), ("64xh100-sxm", "chips of AWS")],
)
def test_a_file_for_other_chips_is_refused(system: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        import_run({"x.yaml": PUBLISHED}, system=system)


def test_export_for_other_chips_is_refused_both_ways() -> None:
    with pytest.raises(InputError, match="chips of AWS, not of NVIDIA"):
        export(made({"engine": "nxd"}, "16xh100-sxm"), to="nxd-training")
    with pytest.raises(InputError, match="use --to nxd-training"):
        export(made({"engine": "nxd"}), to="megatron")


def test_cores_of_one_chip_cannot_hold_other_data() -> None:
    text = PUBLISHED.replace("tensor_model_parallel_size: 32", "tensor_model_parallel_size: 2")
    with pytest.raises(InputError, match="a multiple of 4"):
        import_run({"x.yaml": text}, system="128xtrn2")


def test_tensor_ranks_are_cores_and_heads_of_keys_are_copied() -> None:
    found = TARGETS["nxd-training"].write(made({"tp": 4, "shard": "zero1", "engine": "nxd"}))
    table = yaml.safe_load(found.files["nxd.yaml"])
    assert (table["trainer"]["devices"], table["trainer"]["num_nodes"], table["trainer"]["lnc"]) == (64, 2, 2)
    mesh = table["distributed_strategy"]
    assert (mesh["tensor_model_parallel_size"], mesh["kv_replicator"]) == (16, 2)
    assert json.loads(found.files["config.json"])["rope_theta"] == 500000.0
    assert "--nproc_per_node=64" in found.files["launch.sh"]
    assert 'model.model_config="$PWD/config.json"' in found.files["launch.sh"]


def test_heads_that_ranks_cannot_share_are_refused() -> None:
    found = export(made({"tp": 16, "engine": "nxd", "shard": "zero1"}), to="nxd-training")
    assert found.check is not None
    assert [lost.path for lost in found.lost] == ["plan.tp"]
    assert "do not share 32 heads" in found.lost[0].why
    assert found.check.verdict == "unreadable"


def test_masters_and_wide_gradients_come_with_zero1_only() -> None:
    alone = export(made({"engine": "nxd", "shard": "none"}), to="nxd-training")
    lost = {part.path for part in alone.lost}
    assert {"workload.optimizer.master", "plan.precision.gradients"} <= lost


def test_models_that_its_classes_lack_are_refused_by_name() -> None:
    for model in ("qwen3-8b", "deepseek-v2-lite", "nemotron-h-8b", "qwen2-vl-7b"):
        check = export(made({"engine": "nxd", "shard": "zero1"}, model=model), to="nxd-training").check
        assert check is not None
        assert check.verdict == "unreadable"
        assert "its classes are Llama's and Mixtral's" in check.why
