"""Exports against Megatron's own parser, its validation of arguments and its TransformerConfig.

Megatron-Core 0.17 and newer ship megatron/training, so that a CPU machine can ask them. Not part of the test extra:

    pip install torch triton packaging; pip download --no-deps megatron-core --python-version 3.12 --only-binary=:all:
    unzip the wheel and put the folder on PYTHONPATH (its compiled helper for datasets is not needed)

What the GPU would be is told to it: an H100 and Transformer Engine 2.10 for its checks of versions.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import types
import typing
from types import ModuleType
from typing import Any

import pytest

import ridgeline
from ridgeline.export.options import options
from ridgeline.export.shell import read_script
from ridgeline.export.verbs import export
from ridgeline.plan.scenario import Scenario

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

DENSE: tuple[dict[str, Any], ...] = (
    {},
    {"tp": 4, "shard": "zero1"},
    {"tp": 2, "pp": 2, "cp": 2, "shard": "zero1", "microbatch": 2},
    {"tp": 2, "cp": 2, "cp_kind": "all-to-all"},
    {"pp": 4, "schedule": {"name": "interleaved", "chunks": 2}, "shard": "zero1"},
    {"pp": 4, "placement": [7, 9, 9, 7], "shard": "zero1"},
    {"pp": 4, "schedule": {"name": "interleaved", "chunks": 2}, "placement": [3, 4, 4, 4, 5, 4, 4, 4]},
    {"pp": 2, "schedule": {"name": "interleaved", "chunks": 2}, "overlap": {"pp": False}},
    {"pp": 2, "schedule": "zbv"},
    {"shard": "zero2"},
    {"shard": "zero3", "tp": 2},
    {"shard": "zero3", "shard_degree": 8},
    {"shard": "zero1", "shard_degree": 8},
    {"shard": "zero3", "precision": "fp8"},
    {"shard": "zero1", "precision": "fp8", "tp": 2},
    {"shard": "none", "precision": "fp8"},
    {"shard": "zero1", "precision": "fp16"},
    {"shard": "none", "precision": "fp32"},
    {"shard": "zero1", "precision": {"name": "bf16", "gradients": "bf16"}},
    {"recompute": "full"},
    {"recompute": {"kind": "full", "layers": 3}, "pp": 4},
    {"recompute": "selective", "tp": 2},
    {"recompute": {"kind": "selective", "parts": ["mlp", "norm"]}},
    {"recompute": {"kind": "selective", "parts": ["activation"]}},
    {"recompute": {"kind": "full", "layers": [2, 1, 0, 0]}, "pp": 4},
    {"recompute": {"kind": "full", "layers": [2, 1, 0, 0], "rest": "selective"}, "pp": 4},
    {"offload": "optimizer", "shard": "zero1"},
    {"offload": {"optimizer": 0.5}, "shard": "zero1", "overlap": {"offload": True}},
    {"offload": {"activations": 0.5}},
    {"offload": {"activations": 0.5}, "pp": 2},
    {"graph": "partial"},
    {"graph": "full"},
    {"graph": "full", "recompute": "full"},
    {"graph": "partial", "recompute": "full"},
    {"attention": "unfused"},
    {"overlap": {"grad-reduce": False, "param-gather": True}, "shard": "zero1"},
    {"tp": 2, "sequence_parallel": False, "overlap": {"tp": True}},
    {"tp": 2, "overlap": {"tp": True}},
)
SPARSE: tuple[dict[str, Any], ...] = (
    {"ep": 8, "shard": "zero1"},
    {"ep": 4, "tp": 2, "etp": 2, "shard": "zero1"},
    {"ep": 8, "tp": 2, "etp": 1, "pp": 2, "shard": "zero1", "moe_dispatch": "deepep"},
    {"ep": 8, "moe_dispatch": "hybridep", "shard": "zero1"},
    {"ep": 8, "overlap": {"moe": True}, "shard": "zero1"},
    {"ep": 8, "pp": 2, "overlap": {"moe": True}, "shard": "zero1"},
    {"ep": 8, "pp": 2, "overlap": {"moe": True}, "shard": "zero1", "schedule": {"name": "interleaved", "chunks": 2}},
    {"ep": 8, "overlap": {"moe": True}, "shard": "zero1", "recompute": "full"},
    {"ep": 8, "shard": "zero3"},
    {"ep": 8, "shard": "zero1", "recompute": {"kind": "selective", "parts": ["moe"]}},
    {"ep": 8, "shard": "zero1", "recompute": {"kind": "selective", "parts": ["activation", "norm"]}},
    {"ep": 8, "shard": "zero1", "precision": "fp8", "recompute": {"kind": "selective", "parts": ["activation"]}},
    {"ep": 8, "shard": "zero1", "graph": "partial"},
    {"ep": 8, "shard": "zero1", "graph": "full"},
)
WORK: tuple[dict[str, Any], ...] = (
    {"optimizer": "muon"},
    {"optimizer": "lion"},
    {"optimizer": "sgd"},
    {"optimizer": "momentum"},
    {"optimizer": {"name": "adamw", "states": "bf16"}},
    {"optimizer": {"name": "adamw", "states": "fp8-e4m3"}},
    {"task": "finetune"},
)
CASES: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    *(("llama3-8b", "h100-sxm", plan, {}) for plan in DENSE),
    *(("qwen3-30b-a3b", "h100-sxm", plan, {}) for plan in SPARSE),
    *(("deepseek-v3", "h100-sxm", plan, {}) for plan in SPARSE),
    *(("llama3-8b", "h100-sxm", {"shard": "zero1"}, work) for work in WORK),
    *(("llama3-8b", "b200-sxm", {"shard": "zero1", "precision": name}, {}) for name in ("mxfp8", "nvfp4")),
    ("deepseek-v3", "h100-sxm", {"ep": 4, "pp": 16, "shard": "zero1", "placement": [3, *[4] * 14, 2]}, {}),
    ("deepseek-v3", "h100-sxm", {"ep": 8, "pp": 4, "shard": "zero1",
                                 "schedule": {"name": "interleaved", "chunks": 4}}, {}),
    *((id, "h100-sxm", {"shard": "zero1"}, {}) for id in
      ("gpt3-6.7b", "gpt-oss-20b", "gemma3-12b", "nemotron-h-8b", "llama4-scout", "qwen2.5-7b", "mixtral-8x7b")),
)  # fmt: skip


def made(model: str, chip: str, plan: dict[str, Any], work: dict[str, Any]) -> Scenario:
    workload = {"seq": 4096, "global_batch": 256, **work}
    table = {"model": model, "system": f"64x{chip}", "workload": workload, "plan": {"engine": "megatron-core", **plan}}
    return ridgeline.scenario(table)


@pytest.fixture(scope="module")
def arguments() -> ModuleType:
    """Megatron's module of arguments."""
    if not hasattr(typing, "override"):  # Python 3.11: Megatron asks for 3.12
        setattr(typing, "override", lambda func: func)  # noqa: B010
    pytest.importorskip("torch")
    return typing.cast(ModuleType, pytest.importorskip("megatron.training.arguments"))


@pytest.fixture
def told(arguments: ModuleType, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The chip and the version of Transformer Engine that checks ask for."""
    import torch
    from megatron.core import utils
    from megatron.core.models.common.embeddings import rope_utils
    from packaging.version import Version

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(arguments, "get_device_arch_version", lambda: 9)
    monkeypatch.setattr(utils, "_te_version", Version("2.10.0"))
    monkeypatch.setattr(rope_utils, "fused_apply_rotary_pos_emb", object())
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.optimizers", types.SimpleNamespace(FusedAdam=_adam))
    return monkeypatch


def _adam(*, master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: Any) -> None:
    """What a check of the fused optimizer's signature sees."""


def command(text: str) -> tuple[list[str], dict[str, str]]:
    """What a launch script passes to pretrain_gpt.py, and the environment it sets."""
    script = read_script(text)
    (words,) = [found for found in script.commands if any("num-layers" in word for word in found)]
    start = next(index for index, word in enumerate(words) if word.endswith(".py"))
    return words[start + 1 :], dict(script.environment)


@pytest.mark.parametrize(("model", "chip", "plan", "work"), CASES)
def test_megatron_accepts(
    arguments: ModuleType,
    told: pytest.MonkeyPatch,
    model: str,
    chip: str,
    plan: dict[str, Any],
    work: dict[str, Any],
) -> None:
    scenario = made(model, chip, plan, work)
    words, environment = command(export(scenario, to="megatron").files["launch.sh"])
    told.setattr("sys.argv", ["pretrain_gpt.py", *(word for word in words if word != "$@")])
    told.setenv("WORLD_SIZE", str(scenario.system.chips))
    told.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    for name, value in environment.items():
        told.setenv(name, value)
    args = arguments.parse_args()
    arguments.validate_args(args)
    config = arguments.core_transformer_config_from_args(args)
    training = importlib.import_module("megatron.training.training")
    training.get_megatron_optimizer_config(args)
    training.get_megatron_ddp_config(args)
    mesh = scenario.plan.mesh
    assert (config.tensor_model_parallel_size, config.pipeline_model_parallel_size) == (mesh.tp, mesh.pp)
    assert (config.context_parallel_size, config.expert_model_parallel_size) == (mesh.cp, mesh.ep)
    assert args.data_parallel_size == mesh.dp
    chunks = scenario.plan.schedule.chunks if scenario.plan.schedule.name == "interleaved" else 1
    assert (config.virtual_pipeline_model_parallel_size or 1) == chunks


def test_the_recorded_list_is_the_parsers(arguments: ModuleType) -> None:
    """The list gathered from syntax names what the parser holds, where the version is the recorded one."""
    import megatron.core

    known = options("megatron")
    if megatron.core.__version__.split("+")[0] != known.version:
        pytest.skip(f"the list is of {known.version}, installed is {megatron.core.__version__}")
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    flags: set[str] = set()
    values: set[str] = set()
    for action in parser._actions:
        long = {word[2:] for word in action.option_strings if word.startswith("--")}
        (flags if action.nargs == 0 else values).update(long)
        for name in long & set(known.choices):
            assert sorted(known.choices[name]) == sorted({getattr(one, "name", str(one)) for one in action.choices})
    assert flags - {"help"} == known.flags
    assert known.values - values <= {"kitchen-config-file", "kitchen-recipe-number"}  # only where that is installed
    assert values <= known.values
