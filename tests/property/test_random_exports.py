"""Random runs, written for every target and read again: what the account does not call lost means the same.

A decision that comes back with another value is one that the account names as lost, or lies beside one; files without
losses mean the step that was predicted; scripts are scripts. Runs are drawn with a seed, most of them of no use to
anybody: that is where writers and readers disagree.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from ridgeline.core.errors import InputError
from ridgeline.hardware.load import system
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.targets.api import export
from ridgeline.targets.ledger import UNSPOKEN
from ridgeline.targets.plan_target import training_target
from ridgeline.targets.recompute_fallback import normal_recompute
from ridgeline.targets.registry import TRAIN
from ridgeline.targets.target import Export, ExportDifference
from ridgeline.targets.vendors import vendors

SYSTEMS = {
    "NVIDIA": ("32xh100-sxm", "32xb200-sxm"), "AMD": ("32xmi300x",), "Huawei": ("32xascend-910b2",),
    "Intel": ("16xgaudi2",), "Google": ("tpu-v5p:2x4x4",), "AWS": ("64xtrn2",),
}  # fmt: skip
MODELS = (
    "llama3-8b", "llama3.1-70b", "qwen2.5-7b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v2-lite", "deepseek-v3",
    "gpt-oss-20b", "gemma3-12b", "nemotron-h-8b", "qwen3-next-80b-a3b", "qwen2.5-vl-7b", "gpt3-6.7b", "llama4-scout",
)  # fmt: skip
TASKS: tuple[dict[str, Any], ...] = (
    {}, {}, {}, {"task": "finetune"}, {"task": "lora", "lora": {"rank": 16}}, {"packed": False},
    {"optimizer": "muon"}, {"optimizer": {"name": "adamw", "states": "bf16"}}, {"optimizer": "sgd"},
)  # fmt: skip
RECOMPUTE: tuple[Any, ...] = (
    "none", "none", "full", "selective", {"kind": "full", "layers": 2}, {"kind": "selective", "parts": ["mlp"]},
    {"kind": "selective", "parts": ["norm", "activation"]}, {"kind": "selective", "parts": ["moe"]},
    {"kind": "selective", "parts": ["alternate"]},
)  # fmt: skip
PRECISION: tuple[Any, ...] = (
    "bf16",
    "bf16",
    "bf16",
    "fp8",
    "fp16",
    "fp32",
    "mxfp8",
    {"name": "bf16", "gradients": "bf16"},
)
OFFLOAD: tuple[Any, ...] = ((), (), (), "optimizer", {"activations": 0.5}, ["activations", "optimizer"])
SCHEDULES: tuple[Any, ...] = (
    "1f1b", "1f1b", {"name": "interleaved", "chunks": 2}, "zbv", "gpipe", "zero-bubble", "dualpipe-v",
)  # fmt: skip
SAID = ("plan.overlap.pp", "plan.overlap.cp")  # decisions where a plan says them, not where it leaves them open
OVERLAPS = ("grad-reduce", "param-gather", "tp", "pp", "moe")
DEGREES = (1, 1, 2, 4, 8)


@cache
def engines_of(target: str, name: str) -> tuple[str, ...]:
    return training_target(target).engines(system(name))


def table_of(draw: random.Random, target: str) -> dict[str, Any]:
    """A run that somebody could write down."""
    vendor = draw.choice([name for name, known in vendors().items() if target in known.targets and name in SYSTEMS])
    on = draw.choice(SYSTEMS[vendor])
    plan: dict[str, Any] = {
        "engine": draw.choice(engines_of(target, on)),
        "tp": draw.choice(DEGREES),
        "pp": draw.choice((1, 1, 2, 4)),
        "cp": draw.choice((1, 1, 1, 2, 4)),
        "ep": draw.choice((1, 1, 4, 8)),
        "shard": draw.choice(("none", "zero1", "zero2", "zero3")),
        "microbatch": draw.choice((1, 2)),
        "recompute": draw.choice(RECOMPUTE),
        "precision": draw.choice(PRECISION),
        "offload": draw.choice(OFFLOAD),
    }
    if plan["pp"] > 1:
        plan["schedule"] = draw.choice(SCHEDULES)
    if plan["cp"] > 1 and draw.random() < 0.5:
        plan["cp_kind"] = draw.choice(("ring", "all-to-all"))
    if plan["ep"] > 1 and draw.random() < 0.5:
        plan["moe_dispatch"] = draw.choice(("all-to-all", "deepep", "hybridep"))
    if draw.random() < 0.4:
        plan["overlap"] = {name: draw.random() < 0.5 for name in draw.sample(OVERLAPS, 2)}
    if draw.random() < 0.2:
        plan["graph"] = draw.choice(("partial", "full"))
    work = {"seq": draw.choice((2048, 4096, 32768)), "global_batch": draw.choice((64, 128)), **draw.choice(TASKS)}
    return {"model": draw.choice(MODELS), "system": on, "workload": work, "plan": plan}


def runs(target: str, seed: int, many: int) -> Iterator[Scenario]:
    """Runs that can be predicted, of many more that are drawn."""
    draw = random.Random(f"{target} {seed}")
    found = 0
    while found < many:
        table = table_of(draw, target)
        built, problems = assemble(table)
        if built is not None and not problems and ENGINES[built.plan.engine].serves is None:
            found += 1
            yield built


def explained(one: ExportDifference, scenario: Scenario, lost: set[str]) -> bool:
    """Whether the account says why a decision came back otherwise.

    It is lost, or one beside it is: what a recompute of no kind recomputes. Or it hangs on one that is: how states
    travel that stay, what a context exchange overlaps that is a ring there; blocks of a model, some of which are lost.
    Or it says what nothing depends on: recompute of parts that no layer has, a sharding over one rank, sends of a
    schedule that is lost.
    """
    beside = one.path.rpartition(".")[0]
    if one.path in lost or any(path.rpartition(".")[0] == beside for path in lost):
        return True
    if one.path.startswith("model.blocks."):
        return any(path.startswith("model.blocks.") for path in lost)
    if one.path.startswith("plan.recompute."):
        return normal_recompute(scenario).kind == "none"
    if one.path == "plan.shard" and scenario.plan.shard_degree == 1:
        return True
    if one.path == "plan.overlap.pp" and "plan.schedule.name" in lost:
        return True
    absent = one.planned is None or one.written is None
    return absent and (one.path in SAID or any(path.startswith("plan.") for path in lost))


def held_to_its_account(target: str, scenario: Scenario) -> Export | None:
    """The export, once its account has been held against what its files mean; None where they are none."""
    told = f"{target} {scenario.model.id} {scenario.system.name} {scenario.workload} {scenario.plan}"
    try:
        made = export(scenario, to=target)
    except InputError:
        return None
    assert made.check is not None
    lost = {part.path for part in made.lost}
    assert not [part.path for part in made.lost if part.why == UNSPOKEN], told
    if made.check.verdict == "unreadable":
        assert any(not part.yours for part in made.lost), (made.check.why, told)
        return made
    strange = [one for one in made.check.differs if not explained(one, scenario, lost)]
    assert strange == [], told
    mesh = scenario.plan.mesh
    open_overlap = mesh.dp * mesh.cp == 1 < mesh.edp  # experts alone have replicas: nobody says whether those overlap
    if not open_overlap and not any(path.startswith(("plan.", "model.", "workload.")) for path in lost):
        assert made.check.verdict in ("same", "not-predicted"), (made.check, told)
    return made


@pytest.mark.parametrize("target", TRAIN)
def test_what_is_not_lost_comes_back(target: str) -> None:
    assert [held_to_its_account(target, scenario) for scenario in runs(target, 0, 6)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("target", TRAIN)
def test_of_many_runs_too(target: str, seed: int) -> None:
    texts = set()
    for scenario in runs(target, seed, 60):
        made = held_to_its_account(target, scenario)
        texts |= {text for name, text in (made.files if made else {}).items() if name.endswith((".sh", ".sbatch"))}
    assert texts
    if shutil.which("bash"):
        for text in texts:
            subprocess.run(["bash", "-n", "-c", text], check=True)
