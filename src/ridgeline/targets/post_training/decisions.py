"""Turn a Scenario of post-training into every decision that takes effect in it, by path, as it is meant.

The actor's training is decided as every training run is, a replica of the rollout engine as every server is; what is
left is the step around the two: who takes part, how samples are batched, where roles run and what waits for what.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.encode import plain
from ridgeline.plan.rl_roles import actor_scenario, chip_shares, rollout_scenario
from ridgeline.plan.rl_workload import ConstantTokens, Lengths, Rl
from ridgeline.plan.scenario import Scenario
from ridgeline.rl import longest_tokens
from ridgeline.targets.decisions import decisions_of, has_experts, serving_decisions_of

# of the actor's update: a step packs its samples, so that these have no effect
WITHOUT_EFFECT = ("plan.microbatch", "plan.dp", "workload.seq", "workload.global_batch", "workload.packed")
OF_THE_ACTOR = ("plan.", "model.", "workload.optimizer.", "workload.lora.")
OF_AN_ENGINE = ("plan.tp", "plan.pp", "plan.ep", "plan.precision.")


def rl_decisions_of(scenario: Scenario[Rl]) -> JsonMapping:
    """Every decision by path.

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> found = rl_decisions_of(read_scenario("examples/grpo-async-qwen2.5-7b-32xh20.toml"))
    >>> found["plan.rl.placement"], found["plan.rl.rollout.tp"], found["plan.cp"], found["workload.mini_batch"]
    ('async', 4, 4, 32)
    """
    decisions: JsonObject = {"system.chips": scenario.system.chips}
    actor = decisions_of(actor_scenario(scenario))
    decisions |= {path: value for path, value in actor.items() if _is_of_the_actor(path)}
    decisions |= dict(_workload(scenario.workload)) | dict(_placement(scenario))
    if scenario.workload.generates:
        decisions |= dict(_rollout(scenario))
    return MappingProxyType({path: value for path, value in decisions.items() if value is not None})


def _is_of_the_actor(path: str) -> bool:
    return path.startswith(OF_THE_ACTOR) and path not in WITHOUT_EFFECT


def _workload(work: Rl) -> Iterator[tuple[str, object]]:
    data, updates, learning = work.data, work.updates, work.learning
    yield "workload.algorithm", work.algorithm
    yield "workload.prompts", data.prompts
    yield "workload.samples", data.samples
    yield "workload.prompt_tokens.longest", longest_tokens(data.prompt_tokens)
    yield "workload.prompt_tokens", _shape(data.prompt_tokens)
    yield "workload.response_tokens.longest", longest_tokens(data.response_tokens) if data.response_tokens else None
    yield "workload.response_tokens", _shape(data.response_tokens)
    yield "workload.drift", plain(data.drift) if data.drift else None
    yield "workload.oversampling", data.oversampling if data.oversampling > 1 else None
    yield "workload.mini_batch", updates.mini_batch or data.prompts
    yield "workload.epochs", updates.epochs
    yield "workload.agent", plain(work.agent) if work.agent else None
    yield "workload.replay", plain(work.replay) if work.replay else None
    for role, part in work.roles.models.items():
        yield f"workload.roles.{role}", part.model or True
    yield "workload.roles.verifier", plain(work.roles.verifier) if work.roles.verifier else None
    if work.generates:
        widely = 0.28 if work.algorithm == "dapo" else learning.clip_low
        by_token = work.algorithm in ("dapo", "reinforce++")
        yield "workload.learning.temperature", learning.temperature
        yield "workload.learning.clip_low", learning.clip_low
        yield "workload.learning.clip_high", widely if learning.clip_high is None else learning.clip_high
        yield "workload.learning.kl", learning.kl if work.roles.reference else None
        usual = "token-mean" if by_token else "seq-mean-token-mean"
        yield "workload.learning.average", learning.average or usual
    yield "workload.learning.rate", learning.rate
    for name in ("task", "warm_up", "overlong"):
        yield f"workload.learning.{name}", getattr(learning, name) or None


def _shape(lengths: Lengths | None) -> object:
    """How lengths are spread; None where all are the longest."""
    return None if lengths is None or isinstance(lengths, ConstantTokens) else plain(lengths)


def _placement(scenario: Scenario[Rl]) -> Iterator[tuple[str, object]]:
    rl, work = scenario.plan.rl, scenario.workload
    for role, part in rl.roles.items():
        yield f"plan.rl.roles.{role}", plain(part)
    yield "plan.rl.pack", packed_tokens(scenario)
    if not work.generates:
        return
    yield "plan.rl.placement", rl.placement
    yield "workload.old_log_probs", old_log_probs(scenario)
    if rl.separate:
        yield "plan.rl.train_chips", chip_shares(scenario).train
        yield "plan.rl.staleness", rl.staleness
        yield "plan.rl.partial_rollouts", rl.partial_rollouts if rl.placement == "async" else None
        yield "plan.rl.sync_every", rl.sync_every
    else:
        for state in ("weights", "gradients", "optimizer"):
            yield f"plan.rl.offload.{state}", state in rl.offload
        yield "plan.rl.free_engine", rl.free_engine
    yield "plan.rl.weight_sync.method", rl.weight_sync.method
    yield "plan.rl.weight_sync.bucket", rl.weight_sync.bucket if rl.weight_sync.method != "tensor" else None


def packed_tokens(scenario: Scenario[Rl]) -> int:
    """Tokens of a packed microbatch; the longest sample where nothing is said."""
    data = scenario.workload.data
    answer = longest_tokens(data.response_tokens) if data.response_tokens else 0
    return scenario.plan.rl.pack or longest_tokens(data.prompt_tokens) + answer


def old_log_probs(scenario: Scenario[Rl]) -> str:
    """Who computes log-probabilities of the old policy."""
    usual = "rollout" if scenario.plan.rl.placement == "async" else "trainer"
    return scenario.workload.updates.old_log_probs or usual


def _rollout(scenario: Scenario[Rl]) -> Iterator[tuple[str, object]]:
    """One replica of the engine, and how many there are."""
    rollout = scenario.plan.rl.rollout
    yield "plan.rl.rollout.engine", rollout.engine
    yield "plan.rl.rollout.dp", rollout.dp
    yield "plan.rl.rollout.eager", rollout.eager
    shares = chip_shares(scenario)
    replicas = rollout.replicas or max(shares.rollout // rollout.chips, 1)
    yield "plan.rl.rollout.replicas", replicas
    knobs = f"plan.serving.{rollout.engine.replace('-', '_')}."
    served = serving_decisions_of(rollout_scenario(scenario))
    for path, value in served.items():
        if path.startswith(OF_AN_ENGINE) and (path != "plan.ep" or has_experts(scenario.model)):
            yield f"plan.rl.rollout.{path.removeprefix('plan.')}", value
        elif path.startswith((knobs, "plan.speculation")):
            yield path, value
