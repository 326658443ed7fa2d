"""Recorded options and readers against checkouts of the targets themselves, where there are any.

RIDGELINE_MEGATRON_LM, RIDGELINE_MEGATRON_BRIDGE and RIDGELINE_MINDSPEED_LLM name folders that hold them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import ridgeline
from ridgeline.targets.api import import_run
from ridgeline.targets.options import options


def checkout(name: str) -> Path:
    folder = os.environ.get(name)
    if not folder or not Path(folder).is_dir():
        pytest.skip(f"{name} names no checkout")
    return Path(folder)


def declared(folder: Path) -> set[str]:
    """Every option that a parser in the folder adds."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        found |= set(
            re.findall(r"add_argument\(\s*[\"']--([\w-]+)", path.read_text(encoding="utf-8", errors="replace"))
        )
    return found


def test_megatron_declares_what_is_recorded() -> None:
    known, names = options("megatron"), declared(checkout("RIDGELINE_MEGATRON_LM") / "megatron")
    absent = (known.flags | known.values) - names
    assert len(absent) < 40, sorted(absent)  # newer versions make some options from dataclasses


def test_mindspeed_declares_its_own() -> None:
    names = declared(checkout("RIDGELINE_MINDSPEED_LLM"))
    own = {"multi-head-latent-attention", "noop-layers", "schedules-method", "context-parallel-algo", "num-layer-list"}
    assert own <= names


@pytest.mark.parametrize(
    ("variable", "path", "system", "model"),
    [
        ("RIDGELINE_MEGATRON_LM", "examples/gpt3/train_gpt3_175b_distributed.sh", "128xa100-80-sxm", "gpt3-175b"),
        ("RIDGELINE_MEGATRON_LM", "examples/llama/train_llama3_8b_h100_fp8.sh", "8xh100-sxm", None),
        (
            "RIDGELINE_MINDSPEED_LLM",
            "examples/mcore/deepseek3/pretrain_deepseek3_671b_4k_ptd.sh",
            "512xascend-910b2",
            None,
        ),
        (
            "RIDGELINE_MEGATRON_BRIDGE",
            "src/megatron/bridge/recipes/llama/llama3.py::llama3_8b_pretrain_config",
            "16xh100-sxm",
            "llama3-8b",
        ),
    ],
)
def test_published_runs_are_possible(variable: str, path: str, system: str, model: str | None) -> None:
    source = checkout(variable) / path
    if not Path(str(source).partition("::")[0]).exists():
        pytest.skip(f"{path} is not in this version")
    built = ridgeline.scenario(import_run(source, system=system).settings)
    assert model is None or built.model.id == model
