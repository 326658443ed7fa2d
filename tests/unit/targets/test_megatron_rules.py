"""What Megatron-Core 0.19.2 refuses, as rules of our own: no export breaks one, whatever the plan.

The rules are those of `validate_args` and of the `__post_init__` of TransformerConfig, OptimizerConfig and
DistributedDataParallelConfig that a plan can run into; tests/real asks the software itself where it is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "real"))
from target_cases import CASES, made

from ridgeline.targets.api import export
from ridgeline.targets.dialects.megatron.collect import from_script
from ridgeline.targets.dialects.megatron.names import placement_of
from ridgeline.targets.options import options

Said = Mapping[str, Any]


def words(said: Said, name: str) -> list[str]:
    """The values of an option that takes several."""
    value = said.get(name, [])
    return [str(part) for part in value] if isinstance(value, list) else [str(value)]


def chunked(said: Said) -> bool:
    """Whether ranks hold several virtual stages."""
    layout = said.get("pipeline-model-parallel-layout")
    by_layout = layout is not None and len(placement_of(str(layout))) > said["pipeline-model-parallel-size"]
    return by_layout or "num-layers-per-virtual-pipeline-stage" in said


def spelled(said: Said) -> bool:
    """A pattern says how many layers there are, and cuts them into stages, alone: even ones, or as many as it likes."""
    segments = str(said["hybrid-layer-pattern"]).split("/")[0].split("|")
    stages = said["pipeline-model-parallel-size"]
    others = {"num-layers", "pipeline-model-parallel-layout", "num-layers-per-virtual-pipeline-stage"}
    even = len(segments[0]) % stages == 0 if len(segments) == 1 else len(segments) % stages == 0
    return even and not others & set(said) and all(segments)


def splits(said: Said) -> bool:
    """Stages are told by a layout that counts every layer, or share them evenly."""
    if "hybrid-layer-pattern" in said:
        return spelled(said)
    layout = said.get("pipeline-model-parallel-layout")
    if layout is not None:
        placement = placement_of(str(layout))
        whole = len(placement) % said["pipeline-model-parallel-size"] == 0
        return whole and sum(placement) == said["num-layers"] and "num-layers-per-virtual-pipeline-stage" not in said
    return bool(said["num-layers"] % said["pipeline-model-parallel-size"] == 0)


def overlapped(said: Said) -> bool:
    """Experts exchange beside compute only with chunks or without a pipeline, and without recompute of them."""
    if "overlap-moe-expert-parallel-comm" not in said:
        return True
    staged = said["pipeline-model-parallel-size"] == 1 or chunked(said)
    kept = said.get("recompute-granularity") != "full" and "moe" not in words(said, "recompute-modules")
    return staged and kept and said["expert-model-parallel-size"] > 1 and ("bf16" in said or "fp16" in said)


def recomputed(said: Said) -> bool:
    """Whole layers come with a method and a number, modules with neither and only where the model has them."""
    kind = said.get("recompute-granularity")
    if kind == "full":
        return "recompute-method" in said and type(said.get("recompute-num-layers")) is int
    modules = words(said, "recompute-modules")
    grouped = "moe_act" not in modules or "moe-grouped-gemm" in said
    latent = "mla_up_proj" not in modules or "multi-latent-attention" in said
    return "recompute-method" not in said and "recompute-num-layers" not in said and grouped and latent


def captured(said: Said) -> bool:
    """A whole captured step looks for no NaNs; captured parts go with neither full recompute nor offload."""
    kind = said.get("cuda-graph-impl", "none")
    if kind == "full_iteration":
        return "no-check-for-nan-in-loss-and-grad" in said and "cuda-graph-modules" not in said
    return kind == "none" or (said.get("recompute-granularity") != "full" and "cpu-offloading-num-layers" not in said)


def sharded(said: Said) -> bool:
    """Megatron-FSDP: its own checkpoints, adam or sgd."""
    return "use-megatron-fsdp" not in said or (
        said.get("ckpt-format") == "fsdp_dtensor" and said["optimizer"] in ("adam", "sgd")
    )


def stated(said: Said) -> bool:
    """Other formats of states: distributed adam; states on the host: that, and no fp8 weights but under delayed."""
    aware = "use-precision-aware-optimizer" in said
    distributed = not aware or (said["optimizer"] == "adam" and "use-distributed-optimizer" in said)
    hosted = "optimizer-cpu-offload" not in said or (
        aware and ("fp8-param-gather" not in said or said["fp8-recipe"] == "delayed")
    )
    return distributed and hosted and (aware or "exp-avg-dtype" not in said)


RULES: Mapping[str, Callable[[Said], bool]] = {
    "stages": splits,
    "positions reach the sequence": lambda said: said["max-position-embeddings"] >= said["seq-length"],
    "sequence over context ranks": lambda said: (
        said["context-parallel-size"] == 1 or said["seq-length"] % (2 * said["context-parallel-size"]) == 0
    ),
    "gathered parameters": lambda said: (
        "overlap-param-gather" not in said or {"use-distributed-optimizer", "overlap-grad-reduce"} <= set(said)
    ),
    "tensor overlap": lambda said: "tp-comm-overlap" not in said or "sequence-parallel" in said,
    "experts beside compute": overlapped,
    "recompute": recomputed,
    "graphs": captured,
    "sharding": sharded,
    "states": stated,
    "narrow weights": lambda said: (
        not {"fp8-param-gather", "fp4-param-gather"} & set(said) or "use-distributed-optimizer" in said
    ),
    "one narrow format": lambda said: not {"fp8-format", "fp4-format"} <= set(said),
    "offloaded layers": lambda said: (
        "cpu-offloading-num-layers" not in said
        or (
            said["pipeline-model-parallel-size"] == 1
            and "recompute-granularity" not in said
            and said["cpu-offloading-num-layers"] < said["num-layers"]
        )
    ),
    "one expert needs its score first": lambda said: (
        said.get("moe-router-topk") != 1 or "moe-router-pre-softmax" in said
    ),
    "interleaving without overlap": lambda said: (
        "no-overlap-p2p-communication" not in said or said["pipeline-model-parallel-size"] > 2
    ),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[2]} {case[3]}"[:90])
def test_no_rule_is_broken(case: tuple[str, str, dict[str, Any], dict[str, Any]]) -> None:
    found = from_script("launch.sh", export(made(*case), to="megatron").files["launch.sh"])
    assert found is not None
    broken = [name for name, rule in RULES.items() if not rule(found.options)]
    assert not broken
    known = options("megatron")
    for name, value in found.options.items():
        for part in value if isinstance(value, list) else [value]:
            assert known.problem(f"--{name}", part) is None, (name, part)


def test_the_rules_can_be_broken() -> None:
    good = {"num-layers": 32, "pipeline-model-parallel-size": 4, "optimizer": "adam"}
    assert splits(good)
    assert not splits({**good, "num-layers": 30})
    assert not splits({**good, "pipeline-model-parallel-layout": "Et*8|t*8|t*8|t*7L"})
    spells = {"hybrid-layer-pattern": "M-M*", "pipeline-model-parallel-size": 2}
    assert splits(spells)
    assert not splits({**spells, "hybrid-layer-pattern": "M-*"})
    assert not splits({**spells, "hybrid-layer-pattern": "M|-|*"})
    assert not splits({**spells, "num-layers": 4})
    assert not recomputed({"recompute-granularity": "full"})
    assert not recomputed({"recompute-granularity": "selective", "recompute-modules": "moe_act"})
    assert not stated({**good, "use-precision-aware-optimizer": True})
    assert not sharded({**good, "use-megatron-fsdp": True})
    assert not captured({"cuda-graph-impl": "transformer_engine", "recompute-granularity": "full"})
