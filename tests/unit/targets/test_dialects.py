"""One small file of our own for every dialect that is read, with what it has to mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.targets.api import import_run
from ridgeline.targets.registry import TARGETS

GPT = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024"
BATCH = "--micro-batch-size 2 --global-batch-size 64 --vocab-size 50257"


def settings(found: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return dict(found.settings["workload"]), dict(found.settings["plan"])


def test_old_megatron_recompute_and_model_parallel_size() -> None:
    text = f"python pretrain_gpt.py {GPT} --batch-size 4 --model-parallel-size 2 --checkpoint-activations --fp16"
    _, plan = settings(import_run({"run.sh": text + " --vocab-size 50257"}))
    assert (plan["recompute"], plan["tp"], plan["microbatch"]) == ("full", 2, 4)


def test_model_args_of_a_table_and_its_environment() -> None:
    text = """
MODEL_ARGS:
  --num-layers: 4
  --hidden-size: 256
  --num-attention-heads: 4
  --seq-length: ${SEQ_LEN}
  --micro-batch-size: 1
  --global-batch-size: 16
  --tensor-model-parallel-size: 2
  --vocab-size: 1000
  --bf16: true
"""
    with pytest.raises(InputError, match="--env SEQ_LEN"):
        import_run({"model_config.yaml": text})
    found = import_run({"model_config.yaml": text}, environment={"SEQ_LEN": "512"}, system="8xh100-sxm")
    assert found.target == "megatron"
    assert ridgeline.scenario(found.settings).workload.seq == 512


def test_a_hybrid_pattern_spells_layers_and_stages() -> None:
    text = (
        "torchrun pretrain_mamba.py --hybrid-layer-pattern 'M-M*|M-E-' --hidden-size 512 --num-attention-heads 8 "
        + (
            "--num-experts 8 --moe-router-topk 2 --pipeline-model-parallel-size 2 --seq-length 1024 --swiglu "
            "--disable-bias-linear --position-embedding-type none " + BATCH
        )
    )
    found = import_run({"run.sh": text}, system="8xh100-sxm")
    spec = ridgeline.scenario(found.settings).model
    kinds = [(getattr(b.mixer, "kind", ""), getattr(b.ffn, "kind", "")) for b in (spec.blocks[i] for i in spec.order)]
    assert kinds == [
        *[("mamba2", ""), ("", "mlp"), ("mamba2", ""), ("attention", "")],
        *[("mamba2", ""), ("", "mlp"), ("", "moe"), ("", "mlp")],
    ]


def test_megatron_deepspeed_stage_from_the_file_the_script_writes() -> None:
    text = f"""
ZERO=2
cat <<EOT > ds.json
{{ "zero_optimization": {{ "stage": $ZERO, "offload_optimizer": {{ "device": "cpu" }} }} }}
EOT
deepspeed --num_gpus 8 pretrain_gpt.py {GPT} {BATCH} --fp16 --deepspeed --deepspeed_config ds.json \\
    --ds-sequence-parallel-size 4 --num-experts 8 --moe-expert-parallel-size 2 --no-pipeline-parallel
"""
    found = import_run({"run.sh": text})
    _, plan = settings(found)
    assert found.target == "megatron-deepspeed"
    assert (plan["shard"], plan["cp"], plan["cp_kind"], plan["ep"]) == ("zero2", 4, "all-to-all", 2)
    assert plan["offload"] == {"optimizer": 1.0}
    spec = ridgeline.model(found.settings["model"])
    assert [getattr(spec.blocks[index].ffn, "topk", 0) for index in spec.order[:4]] == [0, 1, 0, 1]
    assert found.chips == 8
    with pytest.raises(InputError, match="stage of ZeRO"):
        import_run({"run.sh": f"deepspeed pretrain_gpt.py {GPT} {BATCH} --deepspeed --deepspeed_config gone.json"})
    with pytest.raises(InputError, match="read and not written"):
        TARGETS["megatron-deepspeed"].write(None)  # type: ignore[arg-type]


def test_arguments_cases_and_sourced_files(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").touch()
    (tmp_path / "sizes.sh").write_text("LAYERS=12\n")
    path = tmp_path / "run.sh"
    path.write_text(
        f"""source ./sizes.sh
TP=$1
case $2 in
  small) HEADS=12 ;;
  *) HEADS=16 ;;
esac
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size 768 --num-attention-heads $HEADS \\
    --seq-length 1024 {BATCH} --tensor-model-parallel-size $TP
"""
    )
    with pytest.raises(InputError, match=r"1 TP, 2 \(small\); say them in order with --arg"):
        import_run(path)
    whole = import_run(f"NCCL_DEBUG=INFO bash {path} 4 small", system="16xh100-sxm")
    assert settings(whole)[1]["tp"] == 4
    found = import_run(path, arguments=("2", "small"), system="16xh100-sxm")
    assert settings(found)[1]["tp"] == 2
    assert ridgeline.model(found.settings["model"]).layers == 12
    assert any("16 chips, where the files start the run on 8" in note for note in found.assumptions)


def test_what_is_no_training_of_a_decoder_is_refused() -> None:
    for extra in ("--num-tokens-to-generate 8 --img-h 224", "--encoder-num-layers 2", "--perform-rl-step"):
        with pytest.raises(InputError, match="training of a decoder"):
            import_run({"run.sh": f"torchrun pretrain_gpt.py {GPT} {BATCH} {extra}"})


def test_a_script_that_returns_and_a_recipe_that_holds_itself_end() -> None:
    text = f"set -e\nreturn 0 2>/dev/null\ntorchrun pretrain_gpt.py {GPT} {BATCH}"
    with pytest.raises(InputError):
        import_run({"run.sh": text})
    recipe = """from megatron.bridge import AutoBridge
def mine_pretrain_config() -> ConfigContainer:
    cfg = ConfigContainer()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()
    cfg.model.parent, cfg.model.other = cfg, cfg
    cfg.again = cfg
    cfg.model.seq_length = 4096
    cfg.train.global_batch_size, cfg.train.micro_batch_size = 8, 1
    return cfg
"""
    assert settings(import_run({"mine.py": recipe}))[0]["seq"] == 4096


def test_a_model_named_by_the_caller_rescues_a_file_without_one() -> None:
    text = (
        "torchrun train.py --tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 8 --seq-length 4096"
    )
    found = import_run({"run.sh": text}, target="megatron", model="llama3-8b", system="8xh100-sxm")
    assert ridgeline.scenario(found.settings).model.id == "llama3-8b"


def test_a_recipe_follows_its_checkout_and_keeps_adapters(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").touch()
    (tmp_path / "base.py").write_text(
        "def start(seq=2048):\n    cfg = ConfigContainer(train=T(global_batch_size=8 * 4, micro_batch_size=1))\n"
        "    cfg.dataset.seq_length = seq\n    return cfg\n"
    )
    path = tmp_path / "mine.py"
    path.write_text(
        """from megatron.bridge import AutoBridge
from megatron.bridge.peft.lora import LoRA
import os
from base import start
def mine_peft_8gpu_config():
    cfg = start(seq=4 * 1024)
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()
    cfg.model.context_parallel_size = int(os.environ.get("CP", 2))
    for name in ("tensor", "pipeline"):
        setattr(cfg.model, f"{name}_model_parallel_size", 1)
    cfg.peft = LoRA(target_modules=["linear_qkv"], dim=8)
    return cfg
"""
    )
    workload, plan = settings(import_run(path))
    assert (workload["seq"], workload["global_batch"], plan["cp"]) == (4096, 32, 2)
    assert workload["lora"] == {"rank": 8, "targets": ["qkv"]}
    assert settings(import_run(path, environment={"CP": "4"}))[1]["cp"] == 4


def test_torchtitan_presets_with_expressions(tmp_path: Path) -> None:
    text = """from torchtitan.trainer import Trainer
def llama3_8b() -> Trainer.Config:
    n = 4096
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * n, max_context_length=n),
        parallelism=ParallelismConfig(tensor_parallel_degree=2 ** 2),
    )
def llama3_8b_open() -> Trainer.Config:
    config = llama3_8b()
    config.training.max_context_length = longest()
    return config
"""
    workload, plan = settings(import_run({"config_registry.py::llama3_8b": text}))
    assert (workload["seq"], plan["microbatch"], plan["tp"]) == (4096, 2, 4)


def test_primus_extends_and_overrides(tmp_path: Path) -> None:
    models = tmp_path / "primus" / "configs" / "models" / "megatron"
    models.mkdir(parents=True)
    (tmp_path / "LICENSE").touch()
    (models / "base.yaml").write_text("swiglu: true\nadd_bias_linear: false\nnormalization: RMSNorm\nimg_h: 224\n")
    (models / "tiny.yaml").write_text(
        "extends: [base.yaml]\nnum_layers: 4\nhidden_size: 256\nnum_attention_heads: 4\nvocab_size: 1000\n"
        "position_embedding_type: rope\nuntie_embeddings_and_output_weights: true\n"
    )
    path = tmp_path / "run.yaml"
    path.write_text(
        "modules:\n  pre_trainer:\n    framework: megatron\n    config: pre_trainer.yaml\n    model: tiny.yaml\n"
        "    overrides: { seq_length: 512, micro_batch_size: 2, global_batch_size: 32,\n"
        "      tensor_model_parallel_size: '${TP:2}', use_distributed_optimizer: true, bf16: true }\n"
    )
    found = import_run(path, system="8xmi300x")
    workload, plan = settings(found)
    assert (found.target, workload["seq"], plan["tp"], plan["shard"]) == ("primus", 512, 2, "zero1")
    assert ridgeline.model(found.settings["model"]).blocks[0].ffn.gated  # type: ignore[union-attr]


def test_verl_supervised_training() -> None:
    text = (
        "torchrun --nnodes=1 --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer data.train_batch_size=32 "
        "data.max_length=2048 data.micro_batch_size_per_gpu=2 model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct "
        "model.lora_rank=16 ulysses_sequence_parallel_size=2"
    )
    found = import_run({"run.sh": text})
    workload, plan = settings(found)
    assert (found.settings["model"], workload["task"], workload["seq"]) == ("qwen2.5-0.5b", "lora", 2048)
    assert (plan["cp"], plan["dp"], plan["microbatch"], found.chips) == (2, 2, 2, 4)


XPK = """MAXTEXT_ARGS="model_name=llama3.1-8b per_device_batch_size=2 max_target_length=8192 remat_policy=full"
xpk workload create --device-type=tpu7x-4x4x4 --num-slices=1 \\
  --command="set -e && python3 -m maxtext.trainers.pre_train.train maxtext/configs/base.yml ${MAXTEXT_ARGS} | tee log"
"""
JOBSET = """kind: JobSet
spec:
  replicatedJobs:
  - replicas: 1
    template: { spec: { template: { spec: { nodeSelector: {
      cloud.google.com/gke-tpu-accelerator: tpu7x, cloud.google.com/gke-tpu-topology: 4x4x4 } } } } }
    command:
    - bash
    - -c
    - python3 -m MaxText.train base.yml model_name=llama3.1-8b per_device_batch_size=2 max_target_length=8192
"""


@pytest.mark.parametrize(("name", "text"), [("run.sh", XPK), ("manifest.yaml", JOBSET)])
def test_maxtext_through_xpk_and_a_manifest(name: str, text: str) -> None:
    found = import_run({name: text})
    workload, plan = settings(found)
    assert (found.target, found.settings["model"], workload["seq"]) == ("maxtext", "llama3.1-8b", 8192)
    assert (found.chips, plan["microbatch"]) == (64, 4)  # two devices of a chip, two sequences each


def test_maxtext_axes_left_to_the_machine_and_parameter_scales() -> None:
    text = "python3 -m MaxText.train base.yml model_name=mixtral-8x7b per_device_batch_size=1 ici_fsdp_parallelism=1 "
    text += "max_target_length=1024 ici_expert_parallelism=-1"
    with pytest.raises(InputError, match="--on"):
        import_run({"run.sh": text})
    assert settings(import_run({"run.sh": text}, system="8xtpu-v5p"))[1]["ep"] == 8
    scaled = "python3 -m MaxText.train base.yml global_parameter_scale=128 per_device_batch_size=1 remat_policy=full"
    assert import_run({"run.sh": scaled}).settings["model"] == "maxtext-128b"


def test_what_changes_the_step_is_told_apart() -> None:
    text = f"torchrun pretrain_gpt.py {GPT} {BATCH} --lr 1e-4 --fine-grained-activation-offloading"
    found = import_run({"run.sh": text})
    assert [part.option for part in found.unread if part.matters] == ["fine-grained-activation-offloading"]
    assert "lr" in [part.option for part in found.unread if not part.matters]
