"""MindSpeed-LLM: its own words, the shape of its published scripts, and what it cannot say."""

from __future__ import annotations

from typing import Any

import ridgeline
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.api import export, import_run
from ridgeline.targets.decisions import decisions_of
from ridgeline.targets.dialects.megatron.collect import from_script
from ridgeline.targets.options import options
from ridgeline.targets.registry import TARGETS

# arguments of examples/mcore/deepseek3/pretrain_deepseek3_671b_4k_ptd.sh @015ce048, as facts in a script of our own
DEEPSEEK = """
NPUS_PER_NODE=8
NNODES=64
WORLD_SIZE=$(($NPUS_PER_NODE*$NNODES))
TP=4
PP=8
EP=8
LAUNCH="
    --nproc_per_node $NPUS_PER_NODE \\
    --nnodes $NNODES
"
MLA="--multi-head-latent-attention --qk-rope-head-dim 64 --qk-nope-head-dim 128 --q-lora-rank 1536 \\
    --kv-lora-rank 512 --v-head-dim 128 --qk-layernorm"
MOE="
    --moe-grouped-gemm \\
    --moe-token-dispatcher-type alltoall_seq \\
    --first-k-dense-replace 3 --moe-layer-freq 1 --n-shared-experts 1 --num-experts 256 --moe-router-topk 8 \\
    --moe-intermediate-size 2048 --n-group 8 --topk-group 4 --moe-tp-extend-ep
"
MEMORY="--swap-optimizer --swap-optimizer-times 4 --use-distributed-optimizer --recompute-method uniform \\
    --recompute-granularity full --recompute-num-layers 1"
GPT="--noop-layers 61,62,63 --use-flash-attn --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \\
    --expert-model-parallel-size ${EP} --sequence-parallel --context-parallel-size 1 \\
    --context-parallel-algo ulysses_cp_algo --num-layers 64 --hidden-size 7168 --ffn-hidden-size 18432 \\
    --num-attention-heads 128 --seq-length 4096 --max-position-embeddings 163840 --micro-batch-size 1 \\
    --global-batch-size 3840 --untie-embeddings-and-output-weights --disable-bias-linear \\
    --position-embedding-type rope --normalization RMSNorm --swiglu --vocab-size 129280 --bf16 --use-ascend-coc"
python -m torch.distributed.launch $LAUNCH pretrain_gpt.py $GPT $MLA $MOE --mtp-num-layers 1 \\
    --moe-fb-overlap --schedules-method dualpipev $MEMORY | tee run.log
"""

# arguments of examples/mcore/qwen3/pretrain_qwen3_32b_ptd.sh @b50fdd1b, as facts in a script of our own
QWEN = """
NPUS_PER_NODE=8
VPP=4
OPTIMIZE="--use-flash-attn --use-fused-rotary-pos-emb --use-fused-swiglu --use-fused-rmsnorm \\
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
TRAIN="--micro-batch-size 1 --global-batch-size 16 --bf16 --seq-length 4096"
SPLIT="--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --context-parallel-size 1 \\
    --num-layers-per-virtual-pipeline-stage ${VPP} --context-parallel-algo ulysses_cp_algo"
GPT="--use-mcore-models --kv-channels 128 --qk-layernorm --max-position-embeddings 4096 --num-layers 64 \\
    --hidden-size 5120 --ffn-hidden-size 25600 --num-attention-heads 64 --padded-vocab-size 151936 \\
    --untie-embeddings-and-output-weights --disable-bias-linear --position-embedding-type rope \\
    --normalization RMSNorm --swiglu --group-query-attention --num-query-groups 8"
torchrun --nproc_per_node $NPUS_PER_NODE --nnodes 2 pretrain_gpt.py $GPT $OPTIMIZE $TRAIN $SPLIT
"""

TWINS = ("deepseek-v3", "deepseek-r1")  # one architecture, two entries


def made(plan: dict[str, Any], model: Any = "llama3-8b", chips: int = 16, **work: Any) -> Scenario:
    workload = {"seq": 4096, "global_batch": 64, **work}
    return ridgeline.scenario({"model": model, "system": f"{chips}xascend-910b2", "workload": workload, "plan": plan})


def lost(scenario: Scenario) -> dict[str, str]:
    return {part.path: part.why for part in export(scenario, to="mindspeed").lost}


def test_the_published_deepseek_script_is_the_catalog_model() -> None:
    found = import_run({"pretrain.sh": DEEPSEEK}, system="512xascend-910b2")
    assert found.target == "mindspeed"
    assert found.settings["model"] in TWINS
    built = ridgeline.scenario(found.settings)
    mesh = built.plan.mesh
    assert (mesh.tp, mesh.pp, mesh.dp, mesh.ep, mesh.etp) == (4, 8, 16, 32, 1)
    assert (built.plan.schedule.name, built.plan.schedule.chunks) == ("dualpipe-v", 2)
    assert built.placement == (*[4] * 15, 1)
    assert built.plan.offload.optimizer == 1.0
    assert built.plan.recompute.kind == "full"
    assert built.plan.engine == "mindspeed"
    assert built.plan.switches.overlap == {"tp": True, "moe": True}


def test_the_published_qwen_script() -> None:
    built = ridgeline.scenario(import_run({"pretrain.sh": QWEN}, system="16xascend-910b2").settings)
    mesh, schedule = built.plan.mesh, built.plan.schedule
    assert (built.model.hidden, built.model.layers, built.model.vocab) == (5120, 64, 151936)
    assert (mesh.tp, mesh.pp, mesh.dp, schedule.name, schedule.chunks) == (8, 2, 1, "interleaved", 8)
    assert not built.plan.sequence_parallel
    assert built.plan.sharding.shard == "zero1"
    again = ridgeline.scenario(import_run(export(built, to="mindspeed").files).settings)
    assert decisions_of(again) == decisions_of(built)


def test_the_v_schedule_and_what_it_goes_with() -> None:
    plan = {"pp": 2, "ep": 4, "schedule": "dualpipe-v", "engine": "mindspeed", "shard": "zero1"}
    found = from_script("x", export(made(plan, model="qwen3-30b-a3b"), to="mindspeed").files["launch.sh"])
    assert found is not None
    assert found.options["schedules-method"] == "dualpipev"
    assert not {"overlap-grad-reduce", "overlap-param-gather"} & set(found.options)
    with_context = made({**plan, "cp": 2}, model="qwen3-30b-a3b")
    assert "plan.schedule.name" in lost(with_context)


def test_it_writes_what_the_published_script_says() -> None:
    built = ridgeline.scenario(import_run({"pretrain.sh": DEEPSEEK}, system="512xascend-910b2").settings)
    written = export(built, to="mindspeed")
    found = from_script("launch.sh", written.files["launch.sh"])
    assert found is not None
    assert not written.lost
    wanted = {"num-layers": 64, "noop-layers": "61,62,63", "schedules-method": "dualpipev", "first-k-dense-replace": 3}
    wanted |= {"n-shared-experts": 1, "expert-model-parallel-size": 8, "moe-tp-extend-ep": True, "n-group": 8}
    assert {name: found.options[name] for name in wanted} == wanted


def test_its_own_words() -> None:
    plan = {"tp": 2, "cp": 2, "pp": 2, "cp_kind": "all-to-all", "placement": [15, 17], "engine": "mindspeed"}
    found = from_script("x", export(made(plan), to="mindspeed").files["launch.sh"])
    assert found is not None
    assert found.options["context-parallel-algo"] == "ulysses_cp_algo"
    assert found.options["num-layer-list"] == "15,17"
    assert found.options["use-flash-attn"] is True


def test_what_it_cannot_say() -> None:
    assert "plan.shard" in lost(made({"shard": "zero3", "engine": "mindspeed"}))
    assert "plan.schedule.name" in lost(made({"pp": 2, "schedule": "zbv"}))
    assert "plan.graph" in lost(made({"graph": "full"}))
    assert "plan.engine" in lost(made({"engine": "megatron-core"}))
    assert lost(made({"tp": 2, "shard": "zero1", "engine": "mindspeed"})) == {}


def test_every_catalog_model_uses_documented_options() -> None:
    known = options("mindspeed")
    for id in ridgeline.MODELS:
        done = TARGETS["mindspeed"].write(made({}, model=id, chips=1))
        found = from_script("launch.sh", done.files["launch.sh"])
        if any(part.path == "model.hidden" for part in done.lost):  # hybrids, which are refused
            assert found is None
            continue
        assert found is not None
        for name, value in found.options.items():
            for part in value if isinstance(value, list) else [value]:
                assert known.problem(f"--{name}", part) is None, (id, name, part)
