"""Plans of post-training handed to seven programs and read back: the account, refusals, strangers' files, damage."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.core.errors import InputError, Problem
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.rl import RlPrediction, predict_rl
from ridgeline.targets.api import import_run
from ridgeline.targets.imports.option_reader import flatten, table_of
from ridgeline.targets.post_training.decisions import rl_decisions_of
from ridgeline.targets.post_training.meaning import written_scenario
from ridgeline.targets.post_training.read import is_known, known_options
from ridgeline.targets.post_training.software import SOFTWARE
from ridgeline.targets.registry import TARGETS
from ridgeline.targets.target import Export

EXAMPLES = Path(__file__).parents[3] / "examples"
MEGATRON = {"tp": 2, "shard": "zero1", "recompute": "full", "engine": "megatron-core"}
SHARDED = {"shard": "zero3", "recompute": "full", "engine": "torch-eager"}
BY_DEEPSPEED = {"shard": "zero3", "recompute": "full", "engine": "deepspeed"}
PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "verl": ("vllm", SHARDED), "openrlhf": ("vllm", BY_DEEPSPEED), "nemo-rl": ("vllm", SHARDED),
    "slime": ("sglang", MEGATRON), "areal": ("sglang", SHARDED), "trl": ("vllm", BY_DEEPSPEED),
    "mindspeed-rl": ("vllm", MEGATRON),
}  # fmt: skip
WITHOUT_FACTS = ("defaults", "hydra")  # of a file that builds on others


def made(target: str, rl: dict[str, Any] | None = None, plan: dict[str, Any] | None = None, **work: Any) -> Scenario:
    engine, usual = PLANS[target]
    system = "16xascend-910b2" if target == "mindspeed-rl" else "16xh100-sxm"
    workload = {
        "kind": "rl", "algorithm": "grpo", "prompts": 64, "samples": 8, "prompt_tokens": 512, "mini_batch": 32,
        "response_tokens": {"kind": "lognormal", "mean": 1000, "sigma": 0.8, "high": 3584}, **work,
    }  # fmt: skip
    shape = {"placement": "colocated", "pack": 16384, "rollout": {"tp": 2, "engine": engine}} | (rl or {})
    table = {"model": "qwen2.5-7b", "system": system, "workload": workload, "plan": {**(plan or usual), "rl": shape}}
    return ridgeline.scenario(table)


def account(scenario: Scenario, exported: Export) -> None:
    """Every decision stands in one place, and what is said to be expressed comes back."""
    decisions = rl_decisions_of(post_training(scenario))
    lost = {part.path for part in exported.lost}
    places = [set(exported.expressed), set(exported.implied), lost]
    assert set().union(*places) == set(decisions)
    assert sum(map(len, places)) == len(decisions)
    after = rl_decisions_of(written_scenario(TARGETS[exported.target].read(exported.files), post_training(scenario)))
    for path in exported.expressed:
        planned, written = decisions[path], after[path]
        close = isinstance(planned, float) and abs(planned - written) <= 1e-3 * abs(planned)
        assert close or planned == written or tuple(planned) == tuple(written), path


@pytest.mark.parametrize("target", SOFTWARE)
def test_a_plan_comes_back_as_it_was_planned(target: str) -> None:
    scenario = made(target, roles={"reference": True}, learning={"kl": 0.01, "rate": 1e-6, "average": "token-mean"})
    exported = ridgeline.export(scenario, to=target)
    account(scenario, exported)
    assert exported.check is not None
    assert exported.check.verdict in ("same", "differs")
    assert exported.check.change == pytest.approx(0, abs=0.05)
    for path in ("plan.rl.placement", "plan.rl.rollout.tp", "workload.prompts", "workload.samples", "system.chips"):
        assert path in {*exported.expressed, *exported.implied}, path
    assert "workload.response_tokens" in {part.path for part in exported.lost if part.yours}


@pytest.mark.parametrize(("target", "placement"), [
    ("verl", "one-step-off"), ("verl", "async"), ("openrlhf", "split"), ("openrlhf", "async"), ("nemo-rl", "split"),
    ("nemo-rl", "one-step-off"), ("nemo-rl", "async"), ("slime", "split"), ("slime", "one-step-off"),
    ("slime", "async"), ("areal", "split"), ("areal", "async"), ("trl", "split"),
])  # fmt: skip
def test_chips_of_their_own_come_back(target: str, placement: str) -> None:
    rl = {"placement": placement, "train_chips": 8}
    rl |= {"staleness": 2.0, "partial_rollouts": True} if placement == "async" else {}
    scenario = made(target, rl)
    exported = ridgeline.export(scenario, to=target)
    account(scenario, exported)
    assert {"plan.rl.placement", "plan.rl.train_chips"} <= {*exported.expressed, *exported.implied}


def test_both_trainers_and_both_engines_of_verl() -> None:
    for plan in (SHARDED, {**MEGATRON, "pp": 2}, {**SHARDED, "cp": 2, "cp_kind": "all-to-all"}):
        for engine in ("vllm", "sglang"):
            scenario = made("verl", {"rollout": {"tp": 4, "engine": engine}}, plan)
            exported = ridgeline.export(scenario, to="verl")
            account(scenario, exported)
            base = "ppo_megatron_trainer" if "tp" in plan else "ppo_trainer"
            assert f"- {base}\n" in exported.files["verl.yaml"]


def random_scenario(draw: random.Random, target: str) -> Scenario:
    placement = draw.choice(("colocated", "split", "one-step-off", "async"))
    rl: dict[str, Any] = {"placement": placement, "pack": draw.choice((4096, 8192, 32768))}
    if placement != "colocated":
        rl["train_chips"] = draw.choice((4, 8))
    if placement == "async":
        rl |= {"staleness": float(draw.randint(1, 4)), "partial_rollouts": draw.random() < 0.5}
    rl["rollout"] = {"tp": draw.choice((1, 2, 4)), "engine": PLANS[target][0], "eager": draw.random() < 0.5}
    plan = dict(PLANS[target][1], recompute=draw.choice(("none", "full")))
    work = {"algorithm": draw.choice(("grpo", "dapo", "ppo")), "prompts": 64, "mini_batch": draw.choice((16, 64))}
    work |= {"samples": draw.choice((4, 16)), "roles": {"critic": True} if work["algorithm"] == "ppo" else {}}
    return made(target, rl, plan, **work)


def attempt(action: Callable[[], Any]) -> tuple[Any, tuple[Problem, ...]]:
    """What an action yields, or the problems that it is refused with."""
    try:
        return action(), ()
    except InputError as refused:
        return None, refused.problems or (Problem(path="", given=str(refused), expected="something else"),)


@pytest.mark.parametrize("target", SOFTWARE)
def test_random_plans_keep_their_account_or_are_refused_by_name(target: str) -> None:
    draw = random.Random(target)
    written = 0
    for _ in range(8):
        scenario = random_scenario(draw, target)
        exported, problems = attempt(lambda scenario=scenario: TARGETS[target].write(scenario))
        assert all(problem.path and problem.expected for problem in problems)
        if exported is not None:
            account(scenario, exported)
            written += 1
    assert written


@pytest.mark.parametrize("target", SOFTWARE)
def test_every_option_that_is_written_is_documented(target: str) -> None:
    exported = TARGETS[target].write(made(target, roles={"reference": True}))
    software = SOFTWARE[target]
    known = known_options(software)
    names = [
        name
        for file, text in exported.files.items()
        if file.endswith(".yaml") and file != "accelerate.yaml"
        for name, _ in flatten(table_of(file, text) or {})
    ]
    script = exported.files["launch.sh"].partition("RUN_ARGS=(")[2].partition("\n)")[0]
    names += [word.removeprefix("--") for word in script.split() if word.startswith("--")]
    assert names
    assert not [name for name in names if not name.startswith(WITHOUT_FACTS) and not is_known(name, known)]


@pytest.mark.parametrize(("target", "rl", "work", "words"), [
    ("verl", {"placement": "split", "train_chips": 8}, {}, "one-step-off"),
    ("trl", {"placement": "async", "train_chips": 8, "staleness": 1.0}, {}, "verl"),
    ("slime", {"rollout": {"tp": 2, "engine": "vllm"}}, {}, "sglang"),
    ("mindspeed-rl", {"placement": "split", "train_chips": 8}, {}, "colocated"),
    ("verl", {}, {"roles": {"teacher": True}}, "teacher"),
    ("nemo-rl", {}, {"algorithm": "ppo", "roles": {"critic": True}}, "verl, slime or openrlhf"),
    ("areal", {"placement": "one-step-off", "train_chips": 8}, {}, "staleness = 1"),
])  # fmt: skip
def test_what_a_software_does_not_run_is_refused_with_what_to_do(
    target: str, rl: dict[str, Any], work: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        ridgeline.export(made(target, rl, **work), to=target)


def test_training_on_data_that_is_there_is_refused_with_what_to_do() -> None:
    with pytest.raises(InputError, match="--to accelerate"):
        ridgeline.export(EXAMPLES / "dpo-llama3.1-8b-8xh100.toml", to="trl")
    with pytest.raises(InputError, match=r"workload\.algorithm"):
        ridgeline.export(EXAMPLES / "dpo-llama3.1-8b-8xh100.toml", to="verl")


VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=1024 \\
  data.max_prompt_length=1024 data.max_response_length=3072 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \\
  actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.use_dynamic_bsz=True \\
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24000 actor_rollout_ref.actor.use_kl_loss=True \\
  actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.n=5 \\
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
  actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.tensor_paralel_size=4 \\
  actor_rollout_ref.rollout.multi_turn.enable=True trainer.project_name=x trainer.n_gpus_per_node=8 trainer.nnodes=2
"""
OPENRLHF = """ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1 --actor.num_gpus_per_node 4 \\
  --vllm.num_engines 2 --vllm.tensor_parallel_size 2 --train.async_enable --train.async_queue_size 3 \\
  --train.colocate_all --actor.model_name_or_path Qwen/Qwen3-4B --rollout.batch_size 128 --train.batch_size 512 \\
  --rollout.n_samples_per_prompt 8 --data.max_len 9216 --rollout.max_new_tokens 8192 --ds.zero_stage 3 \\
  --algo.advantage.estimator group_norm --algo.kl.init_coef 0 --ds.no_such_thing 7
"""
SLIME = """ARGS=(--hf-checkpoint /data/Qwen3-4B --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 128
  --rollout-max-response-len 8192 --actor-num-nodes 1 --actor-num-gpus-per-node 4 --rollout-num-gpus 4
  --rollout-num-gpus-per-engine 2 --tensor-model-parallel-size 2 --sequence-parallel --use-dynamic-batch-size
  --max-tokens-per-gpu 9216 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
  --advantage-estimator grpo --sglang-mem-fraction-static 0.7 --bf16 --use-distributed-optimizer --what-is-this 3)
ray job submit -- python3 train_async.py ${ARGS[@]}
"""
NEMO = """
grpo:
  num_prompts_per_step: 64
  num_generations_per_prompt: 16
  async_grpo: {enabled: true, max_trajectory_age_steps: 2}
policy:
  model_name: Qwen/Qwen2.5-7B
  train_global_batch_size: 512
  train_micro_batch_size: 1
  max_total_sequence_length: 4096
  precision: bfloat16
  dtensor_cfg: {enabled: true, tensor_parallel_size: 2, activation_checkpoint: true}
  sequence_packing: {enabled: true, train_mb_tokens: "${mul:${policy.max_total_sequence_length}, 2}"}
  generation:
    backend: vllm
    max_new_tokens: 3072
    colocated: {enabled: false, resources: {num_nodes: 1, gpus_per_node: 8}}
    vllm_cfg: {tensor_parallel_size: 2, gpu_memory_utilization: 0.7}
cluster: {num_nodes: 2, gpus_per_node: 8}
"""
AREAL = """
rollout: {backend: "sglang:d4t2", max_head_offpolicyness: 4, max_heads: 3}
gconfig: {n_samples: 8, max_new_tokens: 4096}
actor: {backend: "megatron:(attn:d2p2t2|ffn:d1p2e4)", path: Qwen/Qwen3-30B-A3B, ppo_n_minibatches: 4, kl_ctl: 0.0,
        mb_spec: {max_tokens_per_mb: 16384}}
train_dataset: {batch_size: 128, max_length: 1024}
"""
TRL = """from trl import GRPOConfig, GRPOTrainer
config = GRPOConfig(num_generations=8, max_completion_length=1024, per_device_train_batch_size=4,
                    gradient_accumulation_steps=4, use_vllm=True, vllm_mode="colocate", beta=0.04, learning_rat=1e-6)
GRPOTrainer(model="Qwen/Qwen2.5-7B-Instruct", args=config).train()
"""
MINDSPEED = """
megatron_training: {global_batch_size: 64, stage: ray_grpo, tokenizer_name_or_path: ./Qwen2.5-32B, bf16: true,
                    sequence_parallel: true, use_distributed_optimizer: true}
actor_config: {micro_batch_size: 2, tensor_model_parallel_size: 4, pipeline_model_parallel_size: 2}
rl_config: {n_samples_per_prompt: 16, mini_batch_size: 32, max_prompt_length: 1024, actor_resource: {num_npus: 16},
            n_sample: 2}
generate_config: {infer_tensor_parallel_size: 2, gpu_memory_utilization: 0.6, sampling_config: {max_tokens: 2048}}
"""
STRANGERS = {
    "verl": ("run.sh", VERL, "16xh100-sxm", "tensor_paralel_size"),
    "openrlhf": ("run.sh", OPENRLHF, "8xh100-sxm", "ds.no_such_thing"),
    "slime": ("run.sh", SLIME, "8xh100-sxm", "what-is-this"),
    "nemo-rl": ("grpo.yaml", NEMO, "16xh100-sxm", "activation_checkpoint"),
    "areal": ("areal.yaml", AREAL, "16xh100-sxm", "max_heads"),
    "trl": ("train.py", TRL, "8xh100-sxm", "learning_rat"),
    "mindspeed-rl": ("run.yaml", MINDSPEED, "16xascend-910b2", "n_sample"),
}
# prompts, samples, mini-batch, prompt and answer at most, placement, chips that train, replicas' tensor ranks
MEANT = {
    "verl": (1024, 5, 256, 1024, 3072, "colocated", None, 2),
    "openrlhf": (128, 8, 64, 1024, 8192, "async", 4, 2),
    "slime": (32, 8, 16, 512, 8192, "one-step-off", 4, 2),
    "nemo-rl": (64, 16, 32, 1024, 3072, "async", 8, 2),
    "areal": (128, 8, 32, 1024, 4096, "async", 8, 2),
    "trl": (16, 8, None, 512, 1024, "colocated", None, 1),
    "mindspeed-rl": (64, 16, 32, 1024, 2048, "colocated", None, 2),
}


@pytest.mark.parametrize("target", SOFTWARE)
def test_a_strangers_file_means_what_it_says(target: str) -> None:
    name, text, system, unknown = STRANGERS[target]
    found = import_run({name: text}, system=system)
    assert found.target == target
    work, rl = found.settings["workload"], found.settings["plan"]["rl"]
    meant = (
        work["prompts"], work["samples"], work.get("mini_batch"), work["prompt_tokens"], work["response_tokens"],
        rl["placement"], rl.get("train_chips"), rl["rollout"].get("tp", 1),
    )  # fmt: skip
    assert meant == MEANT[target]
    strange = [part for part in found.unread if part.option.endswith(unknown)]
    assert [part.effect for part in strange] == ["may change"]
    assert isinstance(predict_rl(ridgeline.scenario(found.settings)), RlPrediction)


def test_what_is_read_of_a_verl_script_and_what_is_said_of_the_rest() -> None:
    found = import_run({"run.sh": VERL}, system="16xh100-sxm")
    plan, unread = found.settings["plan"], {part.option: part for part in found.unread}
    assert plan["rl"]["pack"] == 24000
    assert plan["serving"] == {"sglang": {"mem_fraction_static": 0.6, "max_running_requests": 256}}
    assert found.settings["workload"]["roles"] == {"reference": True}
    assert "near" in unread["actor_rollout_ref.rollout.tensor_paralel_size"].why
    assert unread["actor_rollout_ref.rollout.multi_turn.enable"].matters
    assert not unread["trainer.project_name"].matters
    assert any("upper bound" in note for note in found.assumptions)


def test_the_update_of_a_verl_run_is_a_training_step_where_that_is_asked_for() -> None:
    found = import_run({"run.sh": VERL}, system="16xh100-sxm", target="verl-update")
    assert (found.target, found.settings["workload"]["kind"]) == ("verl-update", "train")


def test_a_program_inside_a_quoted_command_is_found_and_another_is_refused() -> None:
    inner = OPENRLHF.replace("\n", " ").replace("\\", "").replace("ray job submit -- ", "")
    found = import_run({"run.sh": f'srun -N1 bash -c "cd /x && {inner}"'}, system="8xh100-sxm")
    assert found.settings["workload"]["prompts"] == 128
    for text in (
        "deepspeed --module openrlhf.cli.train_dpo --train.batch_size 8",
        "dpo: {max_num_steps: 3}\npolicy: {}",
    ):
        name = "run.sh" if "--module" in text else "dpo.yaml"
        with pytest.raises(InputError, match=r"rollout|no target recognises"):
            import_run({name: text})


@pytest.mark.parametrize("target", SOFTWARE)
def test_damaged_files_are_read_or_refused_by_name(target: str) -> None:
    name, text, system, _ = STRANGERS[target]
    draw = random.Random(target)
    hostile = ("", "-1", "0", "1e308", "nan", "null", "${x}", "'", "[", "{", "9" * 30, "\x00", "é", "a: b")
    for _ in range(25):
        start = draw.randrange(len(text))
        end = min(len(text), start + draw.choice((1, 3, 12, 60)))
        damaged = text[:start] + draw.choice(hostile) + text[end:]
        asked = draw.choice((None, target))
        found, problems = attempt(
            lambda damaged=damaged, asked=asked: import_run({name: damaged}, system=system, target=asked)
        )
        assert problems or found.settings["workload"]
