"""What a target answers to a search is what its writer reports as lost and what its files mean."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.core.errors import InputError
from ridgeline.hardware.load import system
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.search.target import ExportTarget
from ridgeline.search.training.expressible import target_defaults
from ridgeline.targets.plan_target import capability_of, training_target
from ridgeline.targets.registry import TRAIN


def _scenario(
    engine: str, model: str = "llama3-8b", on: str = "16xh100-sxm", work: Any = None, **plan: Any
) -> Scenario:
    asked = {"seq": 4096, "global_batch": 64, **(work or {})}
    built, problems = assemble({"model": model, "system": on, "workload": asked, "plan": {"engine": engine, **plan}})
    assert built is not None, problems
    return built


@pytest.mark.parametrize(
    ("target", "on", "engines"),
    [
        ("megatron", "8xh100-sxm", ("megatron-core",)),
        ("megatron-bridge", "8xh100-sxm", ("megatron-bridge",)),
        ("torchtitan", "8xmi300x", ("torchtitan",)),
        ("torchtitan-preset", "8xh100-sxm", ("torchtitan",)),
        ("primus", "8xmi300x", ("primus",)),
        ("mindspeed", "8xascend-910b2", ("mindspeed",)),
        ("nxd-training", "16xtrn2", ("nxd",)),
        ("maxtext", "tpu-v5p:2x2x2", ("maxtext",)),
        ("deepspeed", "8xh100-sxm", ("deepspeed",)),
        ("accelerate", "8xh100-sxm", ("deepspeed", "torch-compile", "torch-eager")),
        ("llamafactory", "8xh100-sxm", ("deepspeed", "torch-compile", "torch-eager")),
        ("axolotl", "8xh100-sxm", ("deepspeed", "torch-compile", "torch-eager")),
        ("verl", "8xh100-sxm", ("megatron-core", "torch-eager")),
    ],
)
def test_the_engines_of_a_target_are_those_whose_files_it_writes(
    target: str, on: str, engines: tuple[str, ...]
) -> None:
    assert training_target(target).engines(system(on)) == engines


def test_every_target_that_trains_can_be_planned_for_and_no_other() -> None:
    for id in TRAIN:
        asked: ExportTarget = training_target(id)
        assert asked.id == id
    with pytest.raises(InputError, match="megatron"):
        training_target("vllm")
    with pytest.raises(InputError, match="megatron"):
        training_target("megatorn")


def test_chips_that_a_target_does_not_run_on_are_refused_with_targets_that_do() -> None:
    with pytest.raises(InputError, match="it runs on chips of Huawei, not of NVIDIA"):
        training_target("mindspeed").engines(system("8xh100-sxm"))


@pytest.mark.parametrize(
    ("target", "plan", "paths"),
    [
        ("torchtitan", {"shard": "zero3"}, []),
        ("torchtitan", {"shard": "zero1"}, ["plan.shard"]),
        ("torchtitan", {"cp": 2, "cp_kind": "all-to-all", "shard": "zero3"}, ["plan.cp_kind"]),
        ("megatron", {"pp": 2, "schedule": "zbv"}, ["plan.schedule.name", "plan.schedule.chunks", "plan.placement"]),
        ("megatron", {"recompute": {"kind": "selective", "parts": ["norm"]}}, ["plan.recompute.kind"]),
        ("mindspeed", {"shard": "zero3"}, ["plan.shard"]),
    ],
)
def test_what_cannot_be_told_is_what_an_export_loses(target: str, plan: dict[str, Any], paths: list[str]) -> None:
    asked = training_target(target)
    on = "16xascend-910b2" if target == "mindspeed" else "16xh100-sxm"
    found = asked.unsupported_decisions(_scenario(asked.engines(system(on))[0], on=on, **plan))
    assert [one.path for one in found][: len(paths)] == paths
    assert bool(found) == bool(paths)
    assert all(one.why for one in found)


def test_losses_that_change_no_step_do_not_count_and_those_that_do_are_told() -> None:
    verl = training_target("verl")
    assert verl.unsupported_decisions(_scenario("megatron-core", tp=2, shard="zero1")) == ()  # task = pretrain is lost
    documents = _scenario("megatron-core", work={"document": 512}, tp=2, shard="zero1")
    assert [one.path for one in verl.unsupported_decisions(documents)] == ["workload.document"]


def test_blocks_that_a_target_leaves_out_are_told() -> None:
    ahead = _scenario("torchtitan", model="deepseek-v3", on="256xh100-sxm", work={"global_batch": 256}, shard="zero3")
    paths = {one.path.split(".")[1] for one in training_target("torchtitan").unsupported_decisions(ahead)}
    assert paths == {"mtp"}


def test_an_image_encoder_that_does_not_run_is_no_loss() -> None:
    asked = training_target("accelerate")
    assert asked.unsupported_decisions(_scenario("torch-eager", model="qwen2-vl-7b", shard="zero3")) == ()


def test_what_a_target_does_by_itself_follows_from_its_table() -> None:
    deepspeed = capability_of("deepspeed")
    assert target_defaults(_scenario("deepspeed"), deepspeed) == {"plan.overlap.grad-reduce": False}
    assert target_defaults(_scenario("deepspeed", shard="zero1"), deepspeed) == {"plan.overlap.param-gather": False}
    assert target_defaults(_scenario("deepspeed", shard="zero3"), deepspeed) == {}
    zero1 = _scenario("torch-eager", shard="zero1")  # another engine would run it
    assert target_defaults(zero1, capability_of("accelerate")) == {}
