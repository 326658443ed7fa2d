"""What an export says it expressed comes back from an import, for every target and any possible scenario."""

from __future__ import annotations

import contextlib
import shlex
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.core.errors import InputError
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble, scenario
from ridgeline.targets.api import import_run
from ridgeline.targets.decisions import decisions_of
from ridgeline.targets.dialects.megatron_bridge.write import FIELDS
from ridgeline.targets.ledger import UNSPOKEN
from ridgeline.targets.registry import TARGETS, TRAIN


@st.composite
def attention(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.sampled_from((8, 16, 32)))
    if draw(st.integers(0, 3)) == 0:
        ranks = {"q_rank": draw(st.sampled_from((0, 64))), "kv_rank": 32, "nope_dim": 16, "rope_dim": 8, "v_dim": 16}
        return {"kind": "mla", "heads": heads, **ranks}
    found: dict[str, Any] = {"heads": heads, "kv_heads": draw(st.sampled_from((8, heads)))}
    found["head_dim"] = draw(st.sampled_from((32, 64, 128)))
    found["qkv_bias"] = draw(st.booleans())
    found["qk_norm"] = draw(st.sampled_from(("none", "head", "full")))
    found["window"] = draw(st.sampled_from((0, 0, 128)))
    found["positions"] = draw(st.sampled_from(("rope", "rope", "none")))
    return found


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    table: dict[str, Any] = {"hidden": 512, "layers": draw(st.integers(4, 18)), "vocab": draw(st.integers(100, 9999))}
    table |= {"context": draw(st.sampled_from((0, 2048, 8192))), "tied": draw(st.booleans())}
    table["norm"] = draw(st.sampled_from(("rms", "layer")))
    table["attention"] = draw(attention())
    gated = draw(st.booleans())
    act = {"gated": gated, "activation": "silu" if gated else draw(st.sampled_from(("gelu", "relu2", "relu")))}
    table["mlp"] = {"hidden": 2048, **act}
    if draw(st.booleans()):
        shared = draw(st.sampled_from((0, 256, 512)))
        table["moe"] = {"experts": 16, "topk": 4, "hidden": 256, "shared_hidden": shared, **act}
        table["moe"] |= draw(st.sampled_from(({}, {"groups": 4, "group_topk": 2})))
        table["first_dense"] = draw(st.integers(0, 2))
        table["mtp"] = draw(st.integers(0, 2))
    elif draw(st.booleans()):
        table["pattern"] = ["local*2", "full"]
        window = {} if table["attention"].get("kind") == "mla" else {"window": 64}
        table["block"] = {"local": {"attention": window}, "full": {"attention": {"window": 0} if window else {}}}
    return table


@st.composite
def plans(draw: st.DrawFn, sparse: bool) -> dict[str, Any]:
    one_of = st.sampled_from
    plan: dict[str, Any] = {"tp": draw(one_of((1, 2, 4))), "cp": draw(one_of((1, 1, 2))), "pp": draw(one_of((1, 2, 4)))}
    plan["microbatch"] = draw(one_of((1, 2)))
    if sparse:
        plan |= {"ep": draw(one_of((1, 2, 4))), "etp": draw(one_of((1, plan["tp"])))}
        plan["moe_dispatch"] = draw(one_of(("all-to-all", "deepep", "hybridep")))
    if plan["pp"] > 1:
        plan["schedule"] = draw(one_of(("1f1b", {"name": "interleaved", "chunks": 2}, "zbv", "gpipe", "dualpipe-v")))
    plan["shard"] = draw(one_of(("none", "zero1", "zero2", "zero3")))
    parts = draw(
        st.lists(one_of(("attention", "norm", "mlp", "moe", "activation", "latent-up")), max_size=2, unique=True)
    )
    kinds = ("none", "full", {"kind": "full", "layers": 1}, {"kind": "selective", "parts": parts or ["attention"]})
    plan["recompute"] = draw(one_of(kinds))
    plan["offload"] = draw(one_of(({}, {}, {"optimizer": 1.0}, {"optimizer": 0.5}, {"activations": 0.5})))
    names = ("bf16", "fp16", "fp32", "fp8", {"name": "fp8", "scaling": "block"}, {"name": "fp8", "weights": "fp8-e4m3"})
    precision = draw(one_of(names))
    plan["precision"] = precision if isinstance(precision, dict) else {"name": precision}
    plan["precision"] |= draw(one_of(({}, {"gradients": "fp32"}, {"gradients": "bf16"})))
    plan["cp_kind"] = draw(one_of(("ring", "all-to-all")))
    plan["graph"] = draw(one_of(("none", "partial", "full")))
    plan["sequence_parallel"] = draw(st.booleans())
    plan["overlap"] = draw(st.dictionaries(one_of(("grad-reduce", "param-gather", "tp", "pp", "moe")), st.booleans()))
    plan["engine"] = draw(one_of(("megatron-core", "megatron-bridge", "mindspeed", "torchtitan", "deepspeed")))
    return plan


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    model = draw(models())
    plan = draw(plans("moe" in model))
    chips = plan["tp"] * plan["cp"] * plan["pp"] * draw(st.sampled_from((1, 2, 4)))
    optimizer = {
        "name": draw(st.sampled_from(("adamw", "sgd", "momentum", "muon"))),
        "states": draw(st.sampled_from(("fp32", "bf16"))),
    }
    if plan["shard"] != "none" and draw(st.booleans()):
        plan["shard_degree"] = max(1, chips // plan["tp"] // plan["pp"] // 2)
    work = {"seq": 1024, "global_batch": 64, "optimizer": optimizer}
    table = {"model": model, "system": f"{chips}xh100-sxm", "workload": work, "plan": plan}
    built, problems = assemble(table)
    if problems or built is None:  # fall back to what always works, so that few draws are thrown away
        return scenario({**table, "plan": {}, "system": "4xh100-sxm"})
    return built


SPELLED = ("megatron", "megatron-bridge", "mindspeed")  # whose files spell the model itself


@pytest.mark.parametrize("target", TRAIN)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(made=scenarios())
def test_no_decision_is_dropped(target: str, made: Scenario) -> None:
    written = TARGETS[target].write(made)
    lost = [part.path for part in written.lost]
    assert sorted([*written.expressed, *written.implied, *lost]) == sorted(decisions_of(made))
    assert not [part.path for part in written.lost if part.why == UNSPOKEN]


@pytest.mark.parametrize("target", SPELLED)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(made=scenarios())
def test_what_is_expressed_comes_back(target: str, made: Scenario) -> None:
    written = TARGETS[target].write(made)
    before = decisions_of(made)
    found = import_run(written.files, target=target)
    again, problems = assemble(found.settings)
    assert again is not None, problems
    after = by_layer(again)
    changed = {
        path: (before[path], after.get(path), option)
        for path, option in written.expressed.items()
        if after.get(path, by_block(made, again, path)) != before[path]
    }
    assert not changed


def by_layer(made: Scenario) -> dict[str, Any]:
    """All decisions but those of blocks, whose numbers depend on which layers differ."""
    return {path: value for path, value in decisions_of(made).items() if not path.startswith("model.blocks.")}


def by_block(made: Scenario, again: Scenario, path: str) -> Any:
    """What was read for the first layer of the block that a path names."""
    if not path.startswith("model.blocks."):
        return None
    _, _, number, rest = path.split(".", 3)
    layer = made.model.order.index(int(number))
    return decisions_of(again).get(f"model.blocks.{again.model.order[layer]}.{rest}")


STRANGE = (
    "abc",
    "-1",
    "0",
    "1e999",
    "nan",
    "",
    "9" * 30,
    "[1]*3",
    "Et|tL",
    "(((",
    "true",
    "1.5",
    "a b",
    "é\x00",
    "None",
)
BASIC = {
    "num-layers": "8", "hidden-size": "64", "num-attention-heads": "4", "seq-length": "128", "micro-batch-size": "1",
    "global-batch-size": "8", "vocab-size": "100", "num-experts": "4", "pipeline-model-parallel-size": "2",
    "tensor-model-parallel-size": "2", "context-parallel-size": "2", "recompute-granularity": "full",
    "recompute-method": "block", "recompute-num-layers": "1", "cpu-offloading-num-layers": "2", "window-size": "4,0",
    "moe-layer-freq": "2", "optimizer-offload-fraction": "0.5", "noop-layers": "7", "num-layer-list": "4,3",
    "num-layers-per-virtual-pipeline-stage": "2", "first-k-dense-replace": "1", "n-shared-experts": "1",
    "pipeline-model-parallel-layout": "Et*4|t*4L", "mtp-num-layers": "1", "no-rope-freq": "4", "kv-channels": "16",
    "window-attn-skip-freq": "2", "expert-tensor-parallel-size": "1", "moe-intermediate-size": "32",
    "num-virtual-stages-per-pipeline-rank": "2", "decoder-first-pipeline-num-layers": "3", "fp8-recipe": "mxfp8",
}  # fmt: skip


@pytest.mark.parametrize("target", ["megatron", "mindspeed"])
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_strange_values_are_refused_not_crashed_on(target: str, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(BASIC)), max_size=3, unique=True))
    said = BASIC | {name: data.draw(st.sampled_from(STRANGE)) for name in names}
    flags = ["--bf16", "--optimizer-cpu-offload", "--multi-latent-attention", "--use-distributed-optimizer", "--swiglu"]
    chosen = data.draw(st.lists(st.sampled_from(flags), unique=True))
    words = [f"--{name} {shlex.quote(value)}" for name, value in said.items()]
    text = f"python pretrain_gpt.py {' '.join([*words, *chosen])}"
    with contextlib.suppress(InputError):
        assemble(import_run({"run.sh": text}, target=target, system="16xh100-sxm").settings)


@settings(max_examples=100)
@given(data=st.data())
def test_strange_recipes_are_refused_not_crashed_on(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(FIELDS.values())), max_size=6, unique=True))
    values = (
        "None",
        "-1",
        "0",
        "'abc'",
        "[1, 2]",
        "[[]]",
        "torch.x",
        "f(1)",
        "1.5",
        "10**99",
        "[[1]*3]*3",
        "{}",
        "'Et|tL'",
    )
    lines = [f"    cfg.{name} = {data.draw(st.sampled_from(values))}" for name in names]
    start = data.draw(st.sampled_from(("_pretrain_common()", "ConfigContainer()", "3")))
    model = 'AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B")'
    text = (
        f"import megatron.bridge\ndef recipe():\n    cfg = {start}\n    cfg.model = {model}\n"
        + "\n".join(lines)
        + "\n    return cfg\n"
    )
    with contextlib.suppress(InputError):
        assemble(import_run({"recipe.py": text}, system="16xh100-sxm").settings)
