"""Plans found for every target, written and read again: the same predicted step, or a model that is refused by name."""

from __future__ import annotations

from functools import cache

import pytest

import ridgeline
from ridgeline.plan.scenario import Scenario
from ridgeline.search.training.plan_search import find_plan
from ridgeline.targets.api import export
from ridgeline.targets.plan_target import training_target
from ridgeline.targets.reread import SAME

MODELS = {
    "dense": "llama3-8b",
    "experts": "qwen3-30b-a3b",
    "latent attention": "deepseek-v2-lite",
    "hybrid": "nemotron-h-8b",
    "linear attention": "qwen3.5-4b",
    "vision": "qwen2-vl-7b",
}
OTHERS = {("nxd-training", "experts"): "mixtral-8x7b"}  # the experts that it has
# target -> the engine that its plans are searched for, and a machine it runs on
TARGETS = {
    "megatron": ("megatron-core", "16xh100-sxm"),
    "megatron-bridge": ("megatron-bridge", "16xh100-sxm"),
    "torchtitan": ("torchtitan", "16xh100-sxm"),
    "deepspeed": ("deepspeed", "16xh100-sxm"),
    "verl": ("megatron-core", "16xh100-sxm"),
    "maxtext": ("maxtext", "16xtpu-v5p"),
    "mindspeed": ("mindspeed", "16xascend-910b2"),
    "torchtitan-preset": ("torchtitan", "16xh100-sxm"),
    "accelerate": ("torch-eager", "16xh100-sxm"),
    "llamafactory": ("torch-eager", "16xh100-sxm"),
    "axolotl": ("torch-eager", "16xh100-sxm"),
    "primus": ("primus", "16xmi300x"),
    "nxd-training": ("nxd", "16xtrn2"),
}
# software that has no such model at all: refused with a reason, not written
FLAVOR, NAMED = "no flavor is this model", "MaxText has no such model by name"
CLASSES, ATTENTION = "its classes are Llama's and Mixtral's", "pretrain_gpt.py has attention in every layer"
REFUSED = {
    **{(target, kind): FLAVOR for target in ("torchtitan", "torchtitan-preset")
       for kind in ("hybrid", "linear attention", "vision")},
    **{("maxtext", kind): NAMED for kind in ("hybrid", "linear attention", "vision")},
    **{("mindspeed", kind): ATTENTION for kind in ("hybrid", "linear attention")},
    **{("nxd-training", kind): CLASSES for kind in ("latent attention", "hybrid", "linear attention", "vision")},
}  # fmt: skip


@cache
def found(model: str, engine: str, system: str, target: str | None) -> Scenario:
    """The best plan of a small space, of those that the target can be told."""
    work, plan = {"seq": 4096, "global_batch": 64}, {"engine": engine}
    asked = ridgeline.scenario({"model": model, "system": system, "workload": work, "plan": plan})
    pins = {"pp": (1, 2), "tp": (1, 2), "cp": 1, "microbatch": (1, 2), "etp": 1}
    told = training_target(target) if target is not None else None
    plans = find_plan(asked, pins, most=1, target=told).plans  # none where the model predicts further tokens
    return (plans or find_plan(asked, pins, most=1).plans)[0].scenario


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", MODELS)
def test_a_found_plan_is_read_again_to_the_same_step(target: str, kind: str) -> None:
    model = OTHERS.get((target, kind), MODELS[kind])
    refused = REFUSED.get((target, kind))
    made = export(found(model, *TARGETS[target], None if refused else target), to=target)
    check = made.check
    assert check is not None
    if refused is not None:
        assert (check.verdict, check.refuses) == ("unreadable", True)
        assert refused in check.why
        return
    assert check.change is not None
    lost = {part.path for part in made.lost}
    assert [one.path for one in check.differs if not explained(one.path, lost)] == []
    if any(path.startswith("model.mtp") for path in lost):  # transformers builds the model without those blocks
        assert check.change < SAME, check
        return
    assert abs(check.change) <= SAME, check


def explained(path: str, lost: set[str]) -> bool:
    """Whether a lost decision is this one, or the one that decides whether there is any: a recompute of no kind."""
    return path in lost or any(part.rpartition(".")[0] == path.rpartition(".")[0] for part in lost)
