"""Kinds of published Megatron, Megatron-DeepSpeed and MindSpeed files that were read wrong or refused, one of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.models.spec import CompressedAttention, LatentAttention, ModelSpec, Moe
from ridgeline.targets.api import import_run
from ridgeline.targets.registry import TARGETS, detect

GPT = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024"
BATCH = "--micro-batch-size 2 --global-batch-size 64 --vocab-size 50257"


def imported(text: str, system: str = "8xh100-sxm", name: str = "run.sh") -> Any:
    return import_run({name: text}, system=system)


def model_of(found: Any) -> ModelSpec:
    return ridgeline.scenario(found.settings).model


def test_a_command_that_is_printed_first_is_not_the_one_that_runs() -> None:
    text = (
        f'options="{GPT} {BATCH} --fp16 --deepspeed --zero-stage 1"\nrun="deepspeed --num_gpus 4 train.py $options"\n'
    )
    found = import_run({"run.sh": text + "echo $options\necho $run\neval $run"})
    assert found.target == "megatron-deepspeed"
    assert found.chips == 4


def test_powers_and_optimizers_of_other_vendors() -> None:
    text = (
        f"TOKENS=$((2 ** 22))\nGBS=$(($TOKENS / 1024))\npython train.py {GPT} --micro-batch-size 1 --vocab-size 1000 "
    )
    found = imported(text + "--global-batch-size $GBS --optimizer fusedadamw --bf16 --use-fused-rmsnorm $NORM")
    assert found.target == "megatron"
    assert found.settings["workload"]["global_batch"] == 4096
    assert "optimizer" not in found.settings["workload"]


def test_a_batch_by_schedule_is_its_last() -> None:
    table = "MODEL_ARGS:\n  --step-batch-size-schedule: '0:384 200B:768 400B:1152'\n  --micro-batch-size: 4\n"
    dims = {"num-layers": 4, "hidden-size": 256, "num-attention-heads": 4, "seq-length": 512, "vocab-size": 1000}
    found = imported(table + "".join(f"  --{key}: {value}\n" for key, value in dims.items()), name="model_config.yaml")
    assert found.settings["workload"]["global_batch"] == 1152


def test_experts_of_a_pyramid_with_a_dense_part_beside_them() -> None:
    text = f"deepspeed train.py {GPT} {BATCH} --fp16 --deepspeed --zero-stage 0 --moe-expert-parallel-size 8 "
    found = imported(text + "--num-experts 8 8 8 8 16 16 --mlp-type residual --topk 1")
    spec = model_of(found)
    ffns = [spec.blocks[index].ffn for index in spec.order]
    assert [ffn.experts if isinstance(ffn, Moe) else 0 for ffn in ffns] == [0, 8] * 4 + [0, 16] * 2
    assert all(ffn.shared_hidden == 4 * 768 for ffn in ffns if isinstance(ffn, Moe))
    with pytest.raises(InputError, match="or 6 of them"):
        imported(text + "--num-experts 8 16")


def test_programs_that_do_not_train_are_told_by_their_name_whatever_they_lack() -> None:
    convert = 'if [ "$1" = 7B ]; then A="--num-layers 32"; fi\ntorchrun impl/convert.py $A --load-dir $2 --save $3'
    evaluate = f"deepspeed tasks/eval_harness/evaluate.py {GPT} {BATCH} --deepspeed --deepspeed_config none.json"
    teacher = f"deepspeed pretrain_gpt.py {GPT} {BATCH} --deepspeed --deepspeed_config none.json --mos"
    for text in (convert, evaluate, teacher):
        with pytest.raises(InputError, match="training of a decoder"):
            imported(text)


def test_a_conversion_that_speaks_of_virtual_stages_is_nobodys() -> None:
    text = "NPUS_PER_NODE=8\npython convert.py --num-layers-per-virtual-pipeline-stage 5"
    with pytest.raises(InputError, match=r"recognised|target"):
        detect({"run.sh": text})
    assert not TARGETS["mindspeed"].recognises({"run.sh": text})


LONGCAT = """
NPUS_PER_NODE=8
torchrun --nproc_per_node $NPUS_PER_NODE pretrain_gpt.py --spec spec.longcat_spec layer_spec \\
    --multi-latent-attention --qk-pos-emb-head-dim 64 --qk-head-dim 128 --q-lora-rank 1536 --kv-lora-rank 512 \\
    --v-head-dim 128 --num-experts 16 --num-zero-experts 8 --moe-router-topk 12 --moe-ffn-hidden-size 2048 \\
    --num-layers 2 --hidden-size 3072 --ffn-hidden-size 6144 --num-attention-heads 64 --seq-length 8192 \\
    --micro-batch-size 1 --global-batch-size 16 --padded-vocab-size 131072 --expert-model-parallel-size 8 --bf16 \\
    --untie-embeddings-and-output-weights --disable-bias-linear --normalization RMSNorm --swiglu \\
    --recompute-granularity full --recompute-method block --recompute-num-layers 1
"""


def test_longcat_of_any_size_is_two_layers_for_each() -> None:
    found = imported(LONGCAT, "8xascend-910b2")
    spec = model_of(found)
    experts = spec.layer(0).ffn
    assert spec.layers == 4
    assert all(isinstance(block.mixer, LatentAttention) for block in spec.blocks)
    assert isinstance(experts, Moe)
    assert (experts.experts, experts.topk, experts.idle) == (16, 8, 8)
    assert experts.shared_hidden == 6144
    assert not isinstance(spec.layer(1).ffn, Moe)
    assert found.settings["plan"]["recompute"] == {"kind": "full", "layers": 2}
    assert not [part.option for part in found.unread if part.matters]


DEEPSEEK4 = """
NPUS_PER_NODE=8
torchrun --nproc_per_node $NPUS_PER_NODE pretrain_deepseek4.py --enable-mhc --hc-mult 4 --enable-dsa-indexer \\
    --index-n-heads 64 --index-head-dim 128 --index-topk 512 --multi-latent-attention --qk-pos-emb-head-dim 64 \\
    --qk-head-dim 512 --q-lora-rank 1024 --o-lora-rank 1024 --kv-lora-rank 256 --v-head-dim 128 --kv-compress \\
    --o-groups 8 --sliding-window-size 128 --compress-ratios 0 0 4 128 4 128 --n-hash-layers 3 --num-experts 32 \\
    --moe-router-topk 6 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 --num-layers 4 \\
    --hidden-size 2048 --ffn-hidden-size 4096 --num-attention-heads 64 --seq-length 4096 --micro-batch-size 1 \\
    --global-batch-size 16 --vocab-size 129280 --position-embedding-type deepseek4 --swiglu --bf16 \\
    --untie-embeddings-and-output-weights --disable-bias-linear --normalization RMSNorm
"""


def test_deepseek_v4_of_any_size() -> None:
    spec = model_of(imported(DEEPSEEK4, "8xascend-910b2"))
    mixers = [spec.layer(index).mixer for index in range(spec.layers)]
    assert all(isinstance(mixer, CompressedAttention) and mixer.head_dim == 512 for mixer in mixers)
    assert [mixer.rate for mixer in mixers if isinstance(mixer, CompressedAttention)] == [0, 0, 4, 128]
    assert spec.mtp is None
    assert spec.embedding.further_weights == 4 * 4 * 2048 + 5
    with pytest.raises(InputError, match="compress-ratios"):
        imported(DEEPSEEK4.replace("0 0 4 128 4 128", "0 0 4"), "8xascend-910b2")


def test_work_that_is_no_plain_training_is_told_by_options_stage_and_module() -> None:
    gpt = f"{GPT} {BATCH} --bf16"
    runs = {
        "training by preferences": f"NPUS_PER_NODE=8\ntorchrun train.py {gpt} --stage dpo",
        "a model that sees": f"torchrun train.py {gpt} --patch-size 14",
        "reinforcement learning": f"torchrun train.py {gpt} --grpo-group-size 16",
        "a conversion of checkpoints": f"python deepseek_hf_to_mg.py {gpt}",
        "retrieval": f"python tools/retro/main.py {gpt} --retro-workdir x",
    }
    for said, text in runs.items():
        with pytest.raises(InputError, match=said):
            imported(text)
    found = imported(f"torchrun --nproc-per-node 8 -m examples.inference.offline {gpt} --tensor-model-parallel-size 8")
    assert (found.settings["workload"]["kind"], found.chips) == ("decode", 8)
    seen = import_run({"run.sh": runs["a model that sees"]}, model="qwen2.5-vl-7b")
    assert seen.settings["model"] == "qwen2.5-vl-7b"


def test_words_of_megatron_llama_and_gradients_of_fsdp() -> None:
    text = (
        f"torchrun train.py {GPT} {BATCH} --bf16 --swiglu --RMSNorm --causal-lm --disable-bias-linear --add-dense-bias "
    )
    found = imported(text + "--overlapped-distributed-optimizer --use-rotary-position-embeddings")
    spec = model_of(found)
    assert spec.norm is not None
    assert (spec.norm.kind, spec.embedding.tied, found.settings["plan"]["shard"]) == ("rms", False, "zero1")
    assert found.settings["model"]["attention"]["out_bias"]
    sharded = "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params "
    plan = imported(text + sharded + "--megatron-fsdp-main-grads-dtype bf16").settings["plan"]
    assert (plan["shard"], plan["precision"]["gradients"]) == ("zero3", "bf16")


def test_indexers_that_serve_the_layers_behind_them() -> None:
    text = DSA + " --index-topk-freq 4 --index-skip-topk-offset 3"
    spec = model_of(imported(text, "8xascend-910b2"))
    mixers = [spec.layer(index).mixer for index in range(spec.layers)]
    own = [bool(mixer.indexer and not mixer.indexer.shared) for mixer in mixers if isinstance(mixer, LatentAttention)]
    assert own == [True, True, True, False, False, False, True, False]


DSA = """NPUS_PER_NODE=8
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --ffn-hidden-size 2048 --bf16 --swiglu \\
    --num-attention-heads 16 --multi-latent-attention --kv-lora-rank 512 --q-lora-rank 1024 --qk-head-dim 128 \\
    --qk-pos-emb-head-dim 64 --v-head-dim 128 --enable-dsa-indexer --index-n-heads 32 --index-head-dim 128 \\
    --index-topk 2048 --seq-length 4096 --micro-batch-size 1 --global-batch-size 16 --vocab-size 32000 \\
    --disable-bias-linear --normalization RMSNorm --position-embedding-type rope"""


def test_schedules_of_forks_and_one_expert_in_old_software(tmp_path: Path) -> None:
    text = f"torchrun train.py {GPT} {BATCH} --bf16 --pipeline-model-parallel-size 2 --num-experts 8"
    found = imported(text + " --enable-zero-bubble --zero-bubble-v-schedule")
    assert found.settings["plan"]["schedule"] == "zbv"
    assert any("topk = 2" in note for note in found.assumptions)
    (tmp_path / "megatron").mkdir()
    (tmp_path / "setup.py").touch()
    (tmp_path / "megatron" / "arguments.py").write_text("group.add_argument('--num-experts', type=int)")
    (tmp_path / "run.sh").write_text(text)
    spec = model_of(import_run(tmp_path / "run.sh", system="8xh100-sxm"))
    assert isinstance(spec.layer(0).ffn, Moe)
    assert spec.layer(0).ffn.topk == 1
