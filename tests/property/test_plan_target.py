"""A plan that was searched for a target says nothing that the target cannot be told: its files mean the same step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ridgeline.hardware.load import system
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.search.training.plan_search import find_plan
from ridgeline.search.training.space import Pins
from ridgeline.targets.api import export
from ridgeline.targets.plan_target import training_target
from ridgeline.targets.registry import TRAIN
from ridgeline.targets.vendors import vendors

DENSE, EXPERTS, LATENT = "llama3-8b", "qwen3-30b-a3b", "deepseek-v2-lite"
SYSTEMS = {
    "NVIDIA": "16xh100-sxm", "AMD": "16xmi300x", "Huawei": "16xascend-910b2", "Google": "tpu-v5p:2x2x4",
    "Intel": "16xgaudi2", "AWS": "64xtrn2",
}  # fmt: skip
FEW = Pins.of({"microbatch": (1, 2), "tp": (1, 2), "cp": (1, 2), "pp": (1, 2)})


def _cases() -> Iterator[tuple[str, str, str]]:
    """target, system, engine: every chip that a target runs on."""
    for vendor, known in vendors().items():
        for target in known.targets:
            if target in TRAIN and vendor in SYSTEMS:
                yield from (
                    (target, SYSTEMS[vendor], one) for one in training_target(target).engines(system(SYSTEMS[vendor]))
                )


def _asked(model: str, on: str, engine: str) -> Scenario:
    work = {"seq": 4096, "global_batch": 64}
    built, problems = assemble({"model": model, "system": on, "workload": work, "plan": {"engine": engine}})
    assert built is not None, problems
    return built


def _means_the_same(target: str, model: str, on: str, engine: str, pins: Pins) -> bool:
    """Whether there were plans, each of which comes back from its files with the step that was predicted."""
    found = find_plan(_asked(model, on, engine), pins, most=3, target=training_target(target))
    for one in found.plans:
        made = export(one.scenario, to=target)
        assert made.check is not None
        assert made.check.verdict == "same", (target, on, engine, made.check)
        lost = [part.path for part in made.lost if not part.yours and part.path.startswith("plan.")]
        assert lost == [], (target, on, engine)
    return bool(found.plans)


@pytest.mark.parametrize("model", [DENSE, EXPERTS])
@pytest.mark.parametrize(("target", "on", "engine"), [
    ("megatron", "16xh100-sxm", "megatron-core"), ("torchtitan", "16xh100-sxm", "torchtitan"),
    ("deepspeed", "16xh100-sxm", "deepspeed"), ("maxtext", "tpu-v5p:2x2x4", "maxtext"),
    ("accelerate", "16xh100-sxm", "torch-eager"), ("verl", "16xh100-sxm", "torch-eager"),
])  # fmt: skip
def test_files_of_a_plan_for_their_target_mean_its_step(target: str, on: str, engine: str, model: str) -> None:
    assert _means_the_same(target, model, on, engine, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("model", [DENSE, EXPERTS, LATENT])
def test_files_of_plans_for_all_targets_mean_their_steps(model: str) -> None:
    found = {case: _means_the_same(case[0], model, *case[1:], Pins()) for case in _cases()}
    assert {target for (target, _, _), any_plan in found.items() if any_plan} >= {"megatron", "torchtitan", "deepspeed"}
