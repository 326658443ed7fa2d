"""NeMo 1: the YAML of its GPT trainer and of its launcher means what Megatron's options would."""

from __future__ import annotations

from typing import Any

import pytest

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.plan.resolve import resolve
from ridgeline.targets.api import import_run
from ridgeline.targets.registry import TARGETS

PRETRAIN = """
run: {name: llama3_70b, results_dir: '${base_results_dir}/${.name}'}
trainer: {num_nodes: 16, devices: 8, precision: bf16, max_steps: 100}
exp_manager:
  checkpoint_callback_params:
    model_parallel_size: ${multiply:${training.model.tensor_model_parallel_size}, 4}
model:
  micro_batch_size: 1
  global_batch_size: 2048
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 5
  context_parallel_size: 2
  encoder_seq_length: 8192
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 80
  hidden_size: 8192
  ffn_hidden_size: 28672
  num_attention_heads: 64
  num_query_groups: 8
  normalization: rmsnorm
  bias: false
  activation: fast-swiglu
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  tokenizer: {library: huggingface, type: meta-llama/Meta-Llama-3-70B}
  megatron_amp_O2: true
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 2
  sequence_parallel: true
  ub_tp_comm_overlap: true
  fp8: true
  fp8_hybrid: true
  seed: 1234
  optim: {name: distributed_fused_adam, lr: 1.0e-4, overlap_grad_sync: true, overlap_param_sync: true}
  data: {seq_length: 8192}
"""


def read(text: str, **more: Any) -> Any:
    return import_run({"llama3_70b.yaml": text}, **more)


def test_a_launcher_file_is_read_in_full() -> None:
    found = read(PRETRAIN, system="128xh100-sxm")
    assert (found.target, found.settings["model"], found.chips) == ("nemo", "llama3-70b", 128)
    built = ridgeline.scenario(found.settings)
    mesh, plan = built.plan.mesh, built.plan
    assert (mesh.tp, mesh.pp, mesh.cp, mesh.dp) == (4, 4, 2, 4)
    assert (plan.schedule.name, plan.schedule.chunks, plan.sharding.shard) == ("interleaved", 5, "zero1")
    assert (plan.recompute.kind, plan.recompute.layers, plan.precision.compute.id) == ("full", 2, "fp8-e4m3")
    assert resolve(built).overlap["tp"] is True
    assert (built.workload.seq, built.workload.sequences, plan.engine) == (8192, 2048, "nemo")
    assert not [part.option for part in found.unread if part.matters]


def test_nemos_defaults_are_not_megatrons() -> None:
    plain = "\n".join(
        line for line in PRETRAIN.splitlines()
        if not any(key in line for key in ("bias:", "activation:", "normalization:", "share_", "position_embedding"))
    )  # fmt: skip
    model = ridgeline.scenario(read(plain, system="128xh100-sxm").settings).model
    assert (model.blocks[0].norm.kind, model.embedding.tied, model.blocks[0].ffn.gated) == ("layer", True, False)
    assert model.blocks[0].mixer.positions == "learned"


@pytest.mark.parametrize(
    ("scheme", "task"), [("peft: {peft_scheme: lora, lora_tuning: {adapter_dim: 8}}", "lora"), ("", "finetune")]
)
def test_a_file_for_fine_tuning_names_a_checkpoint(scheme: str, task: str) -> None:
    lines = [line for line in PRETRAIN.splitlines() if not line.startswith(("  num_", "  hidden", "  ffn"))]
    text = "\n".join(lines) + f"\n  restore_from_path: /models/llama2-7b.nemo\n  {scheme}\n"
    found = read(text, system="64xh100-sxm")
    assert (found.settings["model"], found.settings["workload"]["task"]) == ("llama2-7b", task)


def test_fsdp_and_narrow_gradients() -> None:
    text = PRETRAIN.replace("  seed: 1234", "  fsdp: true\n  fsdp_sharding_strategy: full\n  seed: 1234")
    text = text.replace("overlap_grad_sync: true", "overlap_grad_sync: true, grad_sync_dtype: bf16")
    plan = read(text).settings["plan"]
    assert (plan["shard"], plan["precision"]["gradients"]) == ("zero3", "bf16")


@pytest.mark.parametrize("key", ["encoder: {num_layers: 2}", "mm_cfg: {llm: {}}", "dpo: {beta: 0.1}"])
def test_other_work_is_refused(key: str) -> None:
    with pytest.raises(InputError, match="training of a decoder"):
        read(f"{PRETRAIN}  {key}\n")


def test_it_is_read_and_not_written() -> None:
    made = ridgeline.scenario(
        {"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 4096, "global_batch": 8}, "plan": {}}
    )
    with pytest.raises(InputError, match="read and not written"):
        TARGETS["nemo"].write(made)


def test_a_number_of_nodes_left_to_the_launcher_is_not_one() -> None:
    text = PRETRAIN.replace("num_nodes: 16, ", "")
    assert import_run({"llama3-70b-256gpus-bf16.yaml": text}).chips == 256
    assert import_run({"llama3-70b.yaml": text}).chips is None
    assert import_run({"llama3-70b.yaml": PRETRAIN.replace("num_nodes: 16", "num_nodes: 1")}).chips is None


def test_what_a_run_is_named_after() -> None:
    tuned = "run: {name: squad_llama2_7b, model_train_name: llama2_7b}\n"
    tuned += "trainer: {num_nodes: 1, devices: 8, precision: bf16}\n"
    tuned += "model:\n  micro_batch_size: 1\n  global_batch_size: 128\n  tensor_model_parallel_size: 2\n"
    tuned += "  restore_from_path: ${base_results_dir}/x.nemo\n  data: {train_ds: {max_seq_length: 2048}}\n"
    found = import_run({"squad.yaml": tuned})
    assert found.settings["model"] == "llama2-7b"
    assert (found.settings["workload"]["seq"], found.settings["workload"]["task"]) == (2048, "finetune")
    for name, given in (
        ("convert_hf_llama2", "conversion"),
        ("eval_squad", "an evaluation"),
        ("rlhf_rm_2b", "a reward"),
    ):
        with pytest.raises(InputError, match=given):
            import_run({"squad.yaml": tuned.replace("squad_llama2_7b", name)})
    with pytest.raises(InputError, match="layers of griffin, which no key spells"):
        import_run({"squad.yaml": tuned.replace("squad_llama2_7b, model_train_name: llama2_7b", "griffin_sft")})
    with pytest.raises(InputError, match="no dimensions, and mine_2 as its checkpoint"):
        import_run({"squad.yaml": tuned.replace("llama2_7b", "mine_2")})
