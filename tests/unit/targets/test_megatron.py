"""Megatron-LM: documented options only, published shapes of scripts, layouts and what cannot be said."""

from __future__ import annotations

from typing import Any

import pytest

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.api import export, import_run
from ridgeline.targets.dialects.megatron.collect import from_script
from ridgeline.targets.dialects.megatron.names import flags_of, layout_of, pattern_of, placement_of
from ridgeline.targets.options import options

# the arguments of examples/gpt3/train_gpt3_175b_distributed.sh @157006d6, as facts in a script of our own
GPT3 = """
GPUS_PER_NODE=8
NUM_NODES=16
LAUNCH=(--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES)
MODEL=(--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048
    --max-position-embeddings 2048 --attention-backend auto # or another
)
TRAIN=(--micro-batch-size 1 --global-batch-size 1536 --rampup-batch-size 16 16 5859375 --fp16 --lr 6.0e-5)
SPLIT=(--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16)
torchrun ${LAUNCH[@]} pretrain_gpt.py ${MODEL[@]} ${TRAIN[@]} ${SPLIT[@]} --vocab-file $3
"""
# the same of examples/llama/train_llama3_8b_h100_fp8.sh @157006d6: defaults, a condition, elements of two words
LLAMA = """
TP_SIZE=1
DTYPE="fp8"
MODEL_ARGS=(--use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
  --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 --max-position-embeddings 8192
  --position-embedding-type rope --swiglu --attention-backend fused --untie-embeddings-and-output-weights
  --disable-bias-linear)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 128 --bf16 --grad-reduce-in-bf16 --manual-gc)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=("--fp8-format hybrid" "--fp8-amax-history-len 1024" "--fp8-param-gather")
fi
DATA_ARGS=()
if [[ "${3:-MOCK}" == "MOCK" ]] || [[ -z "$3" ]]; then
    DATA_ARGS+=("--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128256" "--split '99,1,0'")
fi
TRAINING_ARGS+=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${DTYPE_ARGS[@]} \\
    --tensor-model-parallel-size $TP_SIZE --context-parallel-size 1 --sequence-parallel ${DATA_ARGS[@]}
"""

TWINS = ("deepseek-v3", "deepseek-r1")  # one architecture, two entries


def made(plan: dict[str, Any], model: Any = "llama3-8b", chips: int = 16, **work: Any) -> Scenario:
    workload = {"seq": 4096, "global_batch": 64, **work}
    return ridgeline.scenario({"model": model, "system": f"{chips}xh100-sxm", "workload": workload, "plan": plan})


def lost(scenario: Scenario, to: str = "megatron") -> dict[str, str]:
    return {part.path: part.why for part in export(scenario, to=to).lost}


def test_the_published_gpt3_script_is_the_catalog_model() -> None:
    found = import_run({"train.sh": GPT3}, system="128xa100-80-sxm")
    built = ridgeline.scenario(found.settings)
    assert found.target == "megatron"
    assert built.model.id == "gpt3-175b"
    assert (built.plan.mesh.tp, built.plan.mesh.pp, built.plan.mesh.dp) == (8, 16, 1)
    assert built.plan.precision.compute.id == "fp16"
    assert built.plan.precision.gradients is not None
    assert built.plan.precision.gradients.id == "fp16"
    assert not built.plan.sequence_parallel
    assert built.plan.sharding.shard == "none"
    assert any("vocab" in note for note in found.assumptions)
    assert any("ramp-up" in note for note in found.assumptions)


def test_the_published_llama_script_with_its_condition() -> None:
    found = import_run({"train.sh": LLAMA}, system="8xh100-sxm")
    built = ridgeline.scenario(found.settings)
    assert (built.model.hidden, built.model.layers, built.model.vocab) == (4096, 32, 128256)
    assert built.model.blocks[0].norm.kind == "layer"  # the script asks for no other
    assert built.plan.precision.compute.id == "fp8-e4m3"
    assert built.plan.precision.weights.id == "fp8-e4m3"
    assert built.plan.precision.scaling == "tensor"
    assert built.plan.sharding.shard == "zero1"
    assert built.plan.mesh.dp == 8


def test_mixture_of_experts_with_a_layout_and_modules() -> None:
    text = (
        "python pretrain_gpt.py --num-layers 61 --hidden-size 7168 --num-attention-heads 128 --ffn-hidden-size 18432 "
        "--vocab-size 129280 --untie-embeddings-and-output-weights --normalization RMSNorm --swiglu "
        "--disable-bias-linear --position-embedding-type rope --multi-latent-attention --qk-layernorm "
        "--q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 "
        "--num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-layer-freq '([0]*3+[1]*58)' "
        "--moe-shared-expert-intermediate-size 2048 --moe-router-num-groups 8 --moe-router-group-topk 4 "
        "--mtp-num-layers 1 --max-position-embeddings 163840 --seq-length 4096 --micro-batch-size 1 "
        "--global-batch-size 8192 --bf16 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 8 "
        "--expert-model-parallel-size 32 --pipeline-model-parallel-layout 'Et*3|(tt|)*29mL' "
        "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep --recompute-granularity selective "
        "--recompute-modules mla_up_proj mlp --use-distributed-optimizer --fp8-format e4m3 --fp8-recipe mxfp8"
    )
    found = import_run({"run.sh": text.replace("(tt|)*29mL", "(tt|)*14tt|mL")}, system="256xb200-sxm")
    assert found.settings["model"] in TWINS
    assert found.settings["plan"]["placement"] == [3, *[2] * 15, 0]
    found = import_run({"run.sh": text}, system="256xb200-sxm")
    plan = found.settings["plan"]
    assert plan["moe_dispatch"] == "hybridep"
    assert plan["recompute"] == {"kind": "selective", "parts": ["latent-up", "mlp"]}
    assert plan["precision"]["compute"] == "mxfp8"


def test_layouts() -> None:
    assert layout_of((7, 8, 8, 7)) == "Et*7|t*8|t*8|t*7L"
    assert placement_of("Et|(tt|)*22L") == (1, *[2] * 22, 0)
    assert placement_of("Et*2|(tt|)*22t|(tt|)*7mL") == (2, *[2] * 22, 1, *[2] * 7, 0)
    for placement in ((1, 2, 3), (0, 5, 5, 0), (4,), (2, 3) * 120):
        assert placement_of(layout_of(placement, mtp=2)) == placement
    for wrong in ("Ex|L", "E(t|L", "(t*9999)*9999", "t" * 30000):
        with pytest.raises(InputError):
            placement_of(wrong)


def test_patterns() -> None:
    assert flags_of("[1,1,1,0]*2", 8) == (True, True, True, False) * 2
    assert flags_of("([0]+[1]*3)", 4) == (False, True, True, True)
    assert flags_of("([1]*2+[0]*1)*2", 6) == (True, True, False) * 2
    assert flags_of("[0]+([1]+[0]*2)*2", 7) == (False, True, False, False, True, False, False)
    for flags in ((True,), (False, True, True), (True, False) * 150):
        assert flags_of(pattern_of(flags), len(flags)) == flags
    for wrong in ("[2]*4", "__import__('os')", "[1]*3", "[1]*9999*9999"):
        with pytest.raises(InputError):
            flags_of(wrong, 4)


def test_what_megatron_cannot_say() -> None:
    assert "plan.schedule.name" in lost(made({"pp": 2, "schedule": "zbv"}))
    assert "plan.recompute.parts" in lost(made({"recompute": {"kind": "selective", "parts": ["mixer"]}}))
    assert "plan.offload.activations" in lost(made({"pp": 2, "offload": {"activations": 0.5}}))
    assert "workload.optimizer.name" in lost(made({}, optimizer="adam"))
    assert "plan.engine" in lost(made({"engine": "torchtitan"}))
    assert "model.order" in lost(made({}, model="gemma3-12b")) or "model.vision.hidden" in lost(
        made({}, model="gemma3-12b")
    )
    assert lost(made({"tp": 2, "shard": "zero1"})) == {}


def test_every_catalog_model_is_accounted_for_and_documented() -> None:
    known = options("megatron")
    for id in ridgeline.MODELS:
        scenario = made({}, model=id, chips=1)
        script = export(scenario, to="megatron").files["launch.sh"]
        found = from_script("launch.sh", script)
        if found is None:  # layers that Megatron lacks: the file says so, and `export` exits with 1
            assert "they do not hold the model" in script, id
            continue
        for name, value in found.options.items():
            for part in value if isinstance(value, list) else [value]:
                assert known.problem(f"--{name}", part) is None, (id, name, part)


def test_the_table_of_arguments_alone_says_the_same() -> None:
    scenario = made({"tp": 2, "pp": 2, "shard": "zero1", "recompute": {"kind": "selective", "parts": ["mlp", "norm"]}})
    files = export(scenario, to="megatron").files
    from_table = import_run({"args.yaml": files["args.yaml"]}).settings
    assert from_table == import_run(files).settings


def test_the_width_that_megatron_makes_up() -> None:
    text = "python x.py --num-layers 2 --hidden-size 4096 --num-attention-heads 32 --seq-length 64 --vocab-size 9 "
    plain = import_run({"x.sh": text + "--bf16"}, target="megatron", system="1xh100-sxm").settings["model"]
    gated = import_run({"x.sh": text + "--swiglu --bf16"}, target="megatron", system="1xh100-sxm").settings["model"]
    assert plain["mlp"]["hidden"] == 16384
    assert gated["mlp"]["hidden"] == 10880  # int(4 x 4096 x 2 / 3 / 64) x 64


def test_an_option_that_is_not_documented_is_caught() -> None:
    known = options("megatron")
    assert known.problem("--tensor-parallel", 8) is not None
    assert known.problem("--normalization", "BatchNorm") is not None
    assert known.problem("--normalization", "RMSNorm") is None
    assert known.problem("--bf16", True) is None


def test_a_script_without_a_run_is_told_so() -> None:
    with pytest.raises(InputError, match="num-layers"):
        import_run({"train.sh": "echo hello"}, target="megatron")
    with pytest.raises(InputError, match="hidden-size"):
        import_run({"train.sh": "python x.py --num-layers 2"}, target="megatron")
