"""Laws of the targets whose configuration is a file: nothing is dropped, and what is expressed reads back the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.targets.api import import_run
from ridgeline.targets.decisions import decisions_of
from ridgeline.targets.ledger import UNSPOKEN
from ridgeline.targets.megatron.write_plan import without_fused_norms
from ridgeline.targets.option_reader import flatten, tables
from ridgeline.targets.options import options
from ridgeline.targets.recompute_fallback import same_everywhere
from ridgeline.targets.registry import TARGETS
from ridgeline.targets.verl.write import needs_megatron

FILED = ("torchtitan", "deepspeed", "maxtext", "verl")
ENGINES = ("torchtitan", "deepspeed", "maxtext", "torch-eager", "megatron-core")
MODELS: tuple[Any, ...] = (
    "llama3-8b", "llama3.1-8b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v2-lite", "gpt2", "deepseek-v3",
    {"hidden": 2048, "layers": 24, "vocab": 32000, "attention": {"heads": 16, "kv_heads": 4}, "mlp": {"hidden": 5504}},
)  # fmt: skip
KINDS = ("none", "full", "selective")
PARTS = (["attention"], ["alternate"], ["norm", "activation"], ["norm", "activation", "attention"], ["mlp", "norm"])
FORMATS = (
    "bf16", "fp16", "fp32", "fp8", "mxfp8", {"name": "fp8", "scaling": "row"}, {"name": "bf16", "gradients": "fp32"},
)  # fmt: skip


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    degree = st.sampled_from((1, 1, 2, 4))
    plan: dict[str, Any] = {axis: draw(degree) for axis in ("tp", "pp", "cp", "ep")}
    plan |= {"etp": draw(st.sampled_from((1, 1, 2))), "microbatch": draw(st.sampled_from((1, 2, 4)))}
    if plan["pp"] > 1:
        plan["schedule"] = draw(
            st.sampled_from(("1f1b", "gpipe", "interleaved", "zbv", "dualpipe-v", "zero-bubble-h1"))
        )
    plan["shard"] = draw(st.sampled_from(("none", "zero1", "zero2", "zero3")))
    if plan["shard"] != "none" and draw(st.booleans()):
        plan["shard_degree"] = draw(st.sampled_from((2, 4, 8)))
    plan["recompute"] = {"kind": draw(st.sampled_from(KINDS)), "parts": draw(st.sampled_from(PARTS))}
    if draw(st.booleans()) and plan["recompute"]["kind"] != "none":
        stages = plan["pp"] * (2 if plan.get("schedule") in ("interleaved", "zbv", "dualpipe-v") else 1)
        each = st.lists(st.integers(0, 3), min_size=stages, max_size=stages)
        plan["recompute"]["layers"] = draw(st.one_of(st.sampled_from((0, 2)), each))
        plan["recompute"]["rest"] = draw(st.sampled_from(("none", "none", "selective")))
    share = st.sampled_from((0.0, 0.0, 0.5, 1.0))
    plan["offload"] = {"optimizer": draw(share), "activations": draw(share)}
    plan["precision"] = draw(st.sampled_from(FORMATS))
    plan["cp_kind"] = draw(st.sampled_from(("ring", "all-to-all")))
    plan["engine"] = draw(st.sampled_from(ENGINES))
    for switch in ("sequence_parallel", "compiled"):
        chosen = draw(st.sampled_from((None, True, False)))
        plan |= {switch: chosen} if chosen is not None else {}
    plan["moe_dispatch"] = draw(st.sampled_from(("all-to-all", "deepep", "hybridep")))
    names = st.sampled_from(("grad-reduce", "param-gather", "tp", "cp", "moe", "offload"))
    plan["overlap"] = draw(st.dictionaries(names, st.booleans(), max_size=2))
    return plan


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    optimizer = {
        "name": draw(st.sampled_from(("adamw", "adamw", "adam", "sgd", "momentum", "muon", "lion", "adafactor"))),
        "states": draw(st.sampled_from(("fp32", "bf16"))),
        "master": draw(st.sampled_from(("fp32", "none", "bf16"))),
    }
    workload: dict[str, Any] = {"seq": draw(st.sampled_from((512, 1000))), "global_batch": 256, "optimizer": optimizer}
    workload["packed"] = draw(st.booleans())
    task = draw(st.sampled_from(("pretrain", "finetune", "lora")))
    workload |= {"task": task} | ({"lora": {"rank": 8, "targets": ["qkv", "down"]}} if task == "lora" else {})
    system = draw(st.sampled_from(("32xh100-sxm", "32xh100-sxm", "tpu-v5p:2x4x4", "tpu-v7x:2x4x4", "32xascend-910b2")))
    table = {"model": draw(st.sampled_from(MODELS)), "system": system, "workload": workload}
    built, problems = assemble({**table, "plan": draw(plans())})
    assume(built is not None and not problems)
    assert built is not None
    return built


@pytest.mark.parametrize("target", FILED)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=scenarios())
def test_nothing_is_dropped_and_the_rest_reads_back(target: str, made: Scenario) -> None:
    export = TARGETS[target].write(made)
    before = decisions_of(made)
    places = [*export.expressed, *export.implied, *(lost.path for lost in export.lost)]
    assert sorted(places) == sorted(before)
    assert not [lost for lost in export.lost if lost.why == UNSPOKEN]

    found = import_run(dict(export.files), target=target)
    table = dict(found.settings)
    absent = any(lost.path == "model.hidden" for lost in export.lost)  # software may have a default of its own
    if "model" not in table or (absent and target == "verl"):
        assert absent
        return
    if "seq" not in table["workload"]:
        assert any(lost.path == "workload.seq" for lost in export.lost)
        table["workload"] = {**table["workload"], "seq": made.workload.seq}
    built, problems = assemble(table)
    assert built is not None, problems
    after = decisions_of(built)
    wrong = {path: (value, after.get(path)) for path, value in before.items() if path in export.expressed}
    named = "model.numerics."  # of the catalog's model, which a name may bring back as its twin
    assert not {path: pair for path, pair in wrong.items() if pair[0] != pair[1] and not path.startswith(named)}
    kinds = {kind: place for place, kind in enumerate(("none", "selective", "full"))}
    least = without_fused_norms(made) if target == "verl" and needs_megatron(made) else made
    if target != "deepspeed":  # which leaves recompute to the script, and says so
        assert kinds[same_everywhere(least).kind] <= kinds[same_everywhere(built).kind]
    habits = {
        path: (before[path], after[path]) for path in export.implied if path in after and path != "plan.precision.kv"
    }
    assert not {path: pair for path, pair in habits.items() if pair[0] != pair[1]}


@pytest.mark.parametrize("target", FILED)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=scenarios())
def test_only_documented_options_are_written(target: str, made: Scenario) -> None:
    export = TARGETS[target].write(made)
    known = options(target)
    configuration = {name: text for name, text in export.files.items() if not name.startswith(("launch", "train"))}
    assert len(configuration) == 1
    for table in tables(configuration):
        for option, value in flatten(table.data):
            if option in ("defaults", "hydra.searchpath") or ".override_" in option:
                continue  # Hydra's own, and tables handed to Megatron
            problem = known.problem(option, value)
            assert problem is None or (value is None and option in known.values), problem
