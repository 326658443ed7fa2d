"""Laws of the targets whose configuration is a file: nothing is dropped, and what is expressed reads back the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ridgeline.core.errors import InputError
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.targets.api import import_run
from ridgeline.targets.decisions import decisions_of
from ridgeline.targets.dialects.megatron.write import without_fused_norms
from ridgeline.targets.dialects.verl.write import needs_megatron
from ridgeline.targets.imports.option_reader import flatten, tables
from ridgeline.targets.ledger import UNSPOKEN
from ridgeline.targets.options import options
from ridgeline.targets.recompute_fallback import same_everywhere
from ridgeline.targets.registry import TARGETS
from ridgeline.targets.target import Export

# target -> plans that are drawn for it
FILED = {"torchtitan": 120, "deepspeed": 120, "maxtext": 120, "verl": 120, "nxd-training": 40}
FILED |= dict.fromkeys(("accelerate", "llamafactory", "axolotl", "torchtitan-preset", "primus"), 12)
TRAINERS = ("accelerate", "llamafactory", "axolotl", "primus")  # which are known by their files, and have several
ENGINES = ("torchtitan", "deepspeed", "maxtext", "torch-eager", "megatron-core", "nxd")
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


MACHINES = ("32xh100-sxm", "32xh100-sxm", "tpu-v5p:2x4x4", "tpu-v7x:2x4x4", "32xascend-910b2")
TRAINIUM = ("32xtrn1", "32xtrn2")


@st.composite
def scenarios(draw: st.DrawFn, systems: tuple[str, ...] = MACHINES) -> Scenario:
    optimizer = {
        "name": draw(st.sampled_from(("adamw", "adamw", "adam", "sgd", "momentum", "muon", "lion", "adafactor"))),
        "states": draw(st.sampled_from(("fp32", "bf16"))),
        "master": draw(st.sampled_from(("fp32", "none", "bf16"))),
    }
    workload: dict[str, Any] = {"seq": draw(st.sampled_from((512, 1000))), "global_batch": 256, "optimizer": optimizer}
    workload["packed"] = draw(st.booleans())
    task = draw(st.sampled_from(("pretrain", "finetune", "lora")))
    workload |= {"task": task} | ({"lora": {"rank": 8, "targets": ["qkv", "down"]}} if task == "lora" else {})
    table = {"model": draw(st.sampled_from(MODELS)), "system": draw(st.sampled_from(systems)), "workload": workload}
    built, problems = assemble({**table, "plan": draw(plans())})
    assume(built is not None and not problems)
    assert built is not None
    return built


@pytest.mark.parametrize("target", FILED)
def test_nothing_is_dropped_and_the_rest_reads_back(target: str) -> None:
    @settings(max_examples=FILED[target], deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(made=scenarios(TRAINIUM if target == "nxd-training" else MACHINES))
    def holds(made: Scenario) -> None:
        export = TARGETS[target].write(made)
        places = [*export.expressed, *export.implied, *(lost.path for lost in export.lost)]
        assert sorted(places) == sorted(decisions_of(made))
        assert not [lost for lost in export.lost if lost.why == UNSPOKEN]
        _documented(target, dict(export.files))
        _reads_back(target, made, export)

    holds()


def _reads_back(target: str, made: Scenario, export: Export) -> None:
    """What is expressed and implied comes back as it was, and layers are recomputed at least as planned."""
    known_by_files = target in TRAINERS or target in ("torchtitan-preset", "nxd-training")
    absent = any(lost.path == "model.hidden" for lost in export.lost)  # software may have a default of its own
    if absent and target == "nxd-training":
        return
    try:
        found = import_run(dict(export.files), target=None if known_by_files else target)
    except InputError:  # heads that the ranks do not share: the file is refused when it is read, too
        assert target == "nxd-training"
        assert any(lost.path == "plan.tp" for lost in export.lost)
        return
    assert found.target == target
    table = dict(found.settings)
    if "model" not in table or (absent and target == "verl"):
        assert absent
        return
    if "seq" not in table["workload"]:
        assert any(lost.path == "workload.seq" for lost in export.lost)
        table["workload"] = {**table["workload"], "seq": made.workload.seq}
    built, problems = assemble(table)
    assert built is not None, problems
    before, after = decisions_of(made), decisions_of(built)
    carried = [*export.expressed, *(path for path in export.implied if path in after and path != "plan.precision.kv")]
    quiet = ["model.numerics."]  # of the catalog's model, which a name may bring back as its twin
    quiet += ["plan.recompute."] if target == "primus" else []  # Megatron says it in the fewest words
    quiet += ["model.context"] if before["model.context"] == 0 or target == "nxd-training" else []  # 0: not known
    told = [path for path in carried if not path.startswith(tuple(quiet))]
    assert not {path: pair for path in told if (pair := (before[path], after.get(path)))[0] != pair[1]}
    if target not in ("deepspeed", "primus"):  # DeepSpeed leaves recompute to the script, and says so
        least = without_fused_norms(made) if target == "verl" and needs_megatron(made) else made
        kinds = {kind: place for place, kind in enumerate(("none", "selective", "full"))}
        assert kinds[same_everywhere(least).kind] <= kinds[same_everywhere(built).kind]


def _documented(target: str, files: dict[str, str]) -> None:
    """Every option that is written is one that the software documents."""
    own = {name: text for name, text in files.items() if not name.startswith("launch") and name != "config.json"}
    if target not in TRAINERS:
        own = {name: text for name, text in own.items() if not name.startswith("train")}
        assert len(own) == 1
    for table in tables(own):
        stem = table.source.rpartition(".")[0] + "." if target in TRAINERS else ""
        data = table.data
        if target == "primus":
            data, stem = data["modules"]["pre_trainer"]["overrides"], "overrides."
        for option, value in flatten(data):
            if option in ("defaults", "hydra.searchpath") or ".override_" in option:
                continue  # Hydra's own, and tables handed to Megatron
            known = options("deepspeed" if stem == "deepspeed." else target)
            name = option if stem == "deepspeed." else f"{stem}{option}"
            problem = known.problem(name, value)
            assert problem is None or (value is None and name in known.values), problem
