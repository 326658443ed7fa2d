"""A post-training scenario: read from a table, refused with all reasons at once, and split into one scenario a role."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError
from ridgeline.plan.check import check
from ridgeline.plan.rl_roles import actor_scenario, chip_shares, forward_scenario, rollout_scenario
from ridgeline.plan.rl_workload import ConstantTokens, LognormalTokens, Rl, TokensFile
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.plan.scenario_file import assemble, read_scenario, scenario, schema

EXAMPLES = Path(__file__).parents[3] / "examples"
BASE: JsonObject = {
    "model": "qwen2.5-7b",
    "system": "32xh100-sxm",
    "workload": {
        "kind": "rl", "algorithm": "grpo", "prompts": 64, "samples": 8, "prompt_tokens": "1k",
        "response_tokens": {"kind": "lognormal", "mean": 2000, "high": 8192}, "mini_batch": 16,
    },
    "plan": {"engine": "torchtitan", "shard": "zero3"},
}  # fmt: skip
ASYNC = ["plan.rl.placement=async", "plan.rl.train_chips=16", "plan.rl.staleness=1"]


def built(*settings: str) -> Scenario[Rl]:
    return post_training(scenario(BASE, settings))


def paths(*settings: str) -> set[str]:
    return {problem.path for problem in assemble(BASE, settings)[1]}


def test_a_file_of_it_is_read_into_values() -> None:
    work = built("workload.roles.critic=true", "workload.roles.reward_model=qwen2.5-32b").workload
    assert work.data.prompt_tokens == ConstantTokens(tokens=1024)
    assert work.data.response_tokens == LognormalTokens(mean=2000, high=8192)
    assert (work.mini_batches, work.answers) == (4, 512)
    assert {name: role.model for name, role in work.roles.models.items()} == {
        "critic": "", "reward_model": "qwen2.5-32b",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.toml") if "rl" in path.read_text()))
def test_examples_are_possible(name: str) -> None:
    assert check(read_scenario(EXAMPLES / name)) == ()


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (["workload.algorithm=gpro"], "workload.algorithm"),
        (["workload.algorithm=ppo"], "workload.roles.critic"),
        (["workload.algorithm=dpo"], "workload.samples"),
        (["workload.algorithm=distill-on-policy"], "workload.roles.teacher"),
        (["workload.samples=1"], "workload.samples"),
        (["workload.mini_batch=13"], "workload.mini_batch"),
        (["workload.response_tokens.mean=9000"], "workload.response_tokens.mean"),
        (["workload.roles.critic=qwen2.5-7c"], "workload.roles.critic.model"),
        (["workload.replay.share=0.1"], "workload.replay"),
        (["plan.rl.placement=async"], "plan.rl.train_chips"),
        (["plan.rl.placement=split", "plan.rl.train_chips=32"], "plan.rl.train_chips"),
        (["plan.rl.staleness=1"], "plan.rl.staleness"),
        (["plan.rl.partial_rollouts=true"], "plan.rl.partial_rollouts"),
        (["plan.rl.rollout.engine=vlm"], "plan.rl.rollout.engine"),
        (["plan.rl.rollout.engine=megatron-core"], "plan.rl.rollout.engine"),
        (["plan.rl.rollout.tp=3"], "plan.rl.rollout.tp"),
        (["plan.rl.rollout.tp=8"], "plan.rl.rollout.tp"),  # 28 heads
        (["plan.rl.rollout.replicas=40"], "plan.rl.rollout.replicas"),
        (["plan.rl.roles.teacher.tp=2"], "plan.rl.roles.teacher"),
        (["workload.roles.critic=true", "plan.rl.roles.critic.tp=8"], "plan.rl.roles.critic.tp"),
        ([*ASYNC, "plan.dp=32"], "plan.dp"),
        (["plan.tp=3", "plan.dp=1"], "plan.tp"),
    ],
)
def test_what_cannot_run_names_its_path(settings: list[str], path: str) -> None:
    assert path in paths(*settings)


def test_all_reasons_come_at_once() -> None:
    found = paths("plan.rl.rollout.engine=vlm", "workload.roles.critic=nosuch", "plan.tp=3", "plan.dp=1")
    assert {"plan.rl.rollout.engine", "workload.roles.critic.model", "plan.tp", "plan.dp"} <= found


def test_pools_divide_the_chips() -> None:
    shares = chip_shares(built(*ASYNC))
    assert (shares.train, shares.rollout) == (16, 16)
    own = chip_shares(built(*ASYNC, "workload.roles.reference=true", "plan.rl.roles.reference={chips=8, dp=8}"))
    assert (own.train, own.rollout) == (16, 8)
    together = chip_shares(built())
    assert (together.train, together.rollout) == (32, 32)


def test_roles_are_scenarios_of_their_own() -> None:
    whole = built(*ASYNC, "workload.roles.reward_model=qwen2.5-32b", "plan.rl.rollout.tp=2")
    actor, rollout = actor_scenario(whole), rollout_scenario(whole)
    assert (actor.system.chips, actor.plan.mesh.ranks, actor.workload.task) == (16, 16, "finetune")
    assert (rollout.system.chips, rollout.plan.mesh.tp, rollout.plan.serving.replicas) == (16, 2, 8)
    assert forward_scenario(whole, "reward_model").model.id == "qwen2.5-32b"
    assert forward_scenario(whole, "actor").model is whole.model
    for part in (actor, rollout, forward_scenario(whole, "reward_model")):
        assert check(part) == ()


def test_a_file_of_lengths_lies_beside_its_scenario(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("1\n2\n")
    file = tmp_path / "s.toml"
    text = 'model = "qwen2.5-7b"\nsystem = "8xh100-sxm"\n[workload]\nkind = "rl"\nprompts = 8\nsamples = 2\n'
    file.write_text(text + 'response_tokens = "lengths.txt"\n[plan]\nengine = "torchtitan"\n')
    lengths = post_training(read_scenario(file)).workload.data.response_tokens
    assert lengths == TokensFile(file=str(tmp_path / "lengths.txt"))
    file.write_text(text + 'response_tokens = "../lengths.txt"\n')
    with pytest.raises(InputError, match=r"workload.response_tokens"):
        read_scenario(file)


def test_the_schema_knows_it() -> None:
    work = next(
        one for one in schema()["properties"]["workload"]["anyOf"] if one["properties"]["kind"]["enum"] == ["rl"]
    )
    assert {"algorithm", "prompts", "samples", "roles", "agent"} <= set(work["properties"])
    assert "weight_sync" in schema()["properties"]["plan"]["properties"]["rl"]["properties"]
