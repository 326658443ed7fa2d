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
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from target_cases import CASES, made

from ridgeline.targets.api import export
from ridgeline.targets.imports.shell_eval import read_script
from ridgeline.targets.options import options

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# kernels of Transformer Engine that a check asks for where tokens are permuted in one
FUSED = (
    "fused_permute", "fused_permute_with_probs", "fused_sort_chunks_by_index", "fused_unpermute",
    "fused_sort_chunks_by_index_with_probs",
)  # fmt: skip


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
    from megatron.core.transformer.moe import moe_utils
    from packaging.version import Version

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(arguments, "get_device_arch_version", lambda: 9)
    monkeypatch.setattr(utils, "_te_version", Version("2.10.0"))
    monkeypatch.setattr(rope_utils, "fused_apply_rotary_pos_emb", object())
    for name in FUSED:
        monkeypatch.setattr(moe_utils, name, object(), raising=False)
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.optimizers", types.SimpleNamespace(FusedAdam=_adam))
    return monkeypatch


def _adam(*, master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: Any) -> None:
    """What a check of the fused optimizer's signature sees."""


def command(text: str) -> tuple[list[str], dict[str, str]]:
    """What a launch script passes to the program it starts, and the environment it sets."""
    script = read_script(text)
    (words,) = [found for found in script.commands if any(word.startswith("--hidden-size") for word in found)]
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
