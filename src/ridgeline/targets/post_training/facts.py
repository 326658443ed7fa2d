"""Turn a Scenario of post-training into what its software is told, in every unit that some software counts in.

A fact is a decision by its path, or the same decision in another unit: chips as nodes of so many, a mini-batch in
prompts, in sequences or as a number of parts, a pack per chip. `CARRIES` says which decisions a fact of the second kind
holds. The tables of a target name facts and options side by side, and `settings.py` turns facts back into a scenario.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.units import DECIMAL
from ridgeline.hardware.system import System
from ridgeline.plan.rl_roles import chip_shares
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.launchers.launch import nodes_of
from ridgeline.targets.post_training.decisions import rl_decisions_of
from ridgeline.targets.serving.engine import model_path
from ridgeline.targets.tables import word_lists
from ridgeline.targets.tables import words as table_words

CARRIES: Mapping[str, tuple[str, ...]] = MappingProxyType(word_lists("post-training", "carries"))
KNOBS = table_words("post-training", "knobs")  # a fact that both engines know -> its knob of each, by engine
MEBI = 2**20
SMALLEST_KL = 0.001  # a coefficient for a reference whose divergence is only watched


def facts_of(scenario: Scenario[Rl]) -> JsonObject:
    """Every fact by name.

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> found = facts_of(read_scenario("examples/grpo-async-qwen2.5-7b-32xh20.toml"))
    >>> found["batch.mini_sequences"], found["train.nodes"], found["rollout.chips"], found["pack.per_chip"]
    (512, 2, 16, 60000)
    """
    facts: JsonObject = dict(rl_decisions_of(scenario))
    facts |= _chips(scenario) | _batch(facts) | _placement(scenario, facts) | _engine(scenario, facts)
    facts["model.path"] = model_path(scenario)
    facts["pack.per_chip"] = max(1, facts["plan.rl.pack"] // facts["plan.cp"])
    facts["limit.total"] = facts["workload.prompt_tokens.longest"] + facts.get("workload.response_tokens.longest", 0)
    facts["pack.per_rank"] = max(1, facts["plan.rl.pack"] // (facts["plan.cp"] * facts["plan.tp"]))
    facts["pack.dynamic"] = True
    facts |= _losses(facts) | _habits(facts)
    facts["filter"] = scenario.workload.algorithm == "dapo"
    facts["lora"] = scenario.workload.updates.lora is not None
    return {name: value for name, value in facts.items() if value is not None}


def even_nodes(system: System, chips: int) -> tuple[int, int]:
    """Nodes that so many chips of a system fill, and how many of each they take."""
    chips_per_node = nodes_of(system)[1]
    if chips <= chips_per_node:
        return 1, chips
    while chips % chips_per_node:
        chips_per_node -= 1
    return chips // chips_per_node, chips_per_node


def _chips(scenario: Scenario[Rl]) -> JsonObject:
    shares, rl = chip_shares(scenario), scenario.plan.rl
    pools = {"all": shares.total, "train": shares.train}
    if scenario.workload.generates:
        pools["rollout"] = shares.rollout
    facts: JsonObject = {}
    for pool, chips in pools.items():
        nodes, share_each = even_nodes(scenario.system, max(chips, 1))
        facts |= {f"{pool}.chips": chips, f"{pool}.nodes": nodes, f"{pool}.chips_per_node": share_each}
    facts["rollout.own_nodes"] = facts["rollout.nodes"] if rl.separate and "rollout.nodes" in facts else 0
    return facts


def _batch(facts: JsonMapping) -> JsonObject:
    prompts, samples, mini = (facts[f"workload.{name}"] for name in ("prompts", "samples", "mini_batch"))
    return {
        "samples": samples,
        "batch.sequences": prompts * samples,
        "batch.mini_sequences": mini * samples,
        "batch.mini_batches": prompts // mini,
        "batch.sequences_per_chip": max(1, prompts * samples // facts["train.chips"]) if "train.chips" in facts else 1,
    }


def _placement(scenario: Scenario[Rl], facts: JsonMapping) -> JsonObject:
    rl, roles = scenario.plan.rl, scenario.workload.roles
    offloads = {f"plan.rl.offload.{state}": facts.get(f"plan.rl.offload.{state}") for state in ("weights", "optimizer")}
    staleness = rl.staleness if rl.staleness is not None else 1.0 if rl.placement == "one-step-off" else 0.0
    return {
        "placement.colocated": not rl.separate,
        "placement.separate": rl.separate,
        "placement.overlapped": rl.placement in ("async", "one-step-off"),
        "placement.async": rl.placement == "async",
        "lag": max(1, round(staleness)) if rl.placement == "async" else 0,
        "placement.versions": max(1, round(staleness)) if rl.placement == "async" else round(staleness),
        "staleness.queue": max(1, round(staleness)),
        "staleness.share": staleness,
        "offload.any": not rl.separate and bool(rl.offload),
        "offload.all": not rl.separate and all(offloads.values()),
        "sync.bytes": round(rl.weight_sync.bucket),
        "sync.megabytes": max(1, round(rl.weight_sync.bucket / MEBI)),
        "sync.gigabytes": rl.weight_sync.bucket / DECIMAL["G"],
        "reference": roles.reference is not None,
        "role.reference.offload": "reference" in rl.roles and rl.roles["reference"].offload,
        "critic": roles.critic is not None,
        "recompute": scenario.plan.recompute.kind == "full",
    }


def _losses(facts: JsonMapping) -> JsonObject:
    """The loss in the words of those with one number for two: a reference is loaded for a coefficient above 0."""
    kl, clips = facts.get("workload.learning.kl", 0.0), "workload.learning.clip_low" in facts
    return {
        "kl.coefficient": (kl or SMALLEST_KL) if facts["reference"] else 0.0,
        "clip": facts.get("workload.learning.clip_low"),
        "clip.pair": tuple(facts[f"workload.learning.clip_{side}"] for side in ("low", "high")) if clips else None,
    }


def _habits(facts: JsonMapping) -> JsonObject:
    """Switches of the trainer that stand for shares and pairs of decisions."""
    return {
        "offload.adam": facts.get("plan.offload.optimizer") == 1,
        "overlap": facts.get("plan.overlap.grad-reduce"),
        "recompute.logprob": facts.get("workload.old_log_probs") == "trainer",
        "token_loss": facts.get("workload.learning.average") == "token-mean",
        "clips.apart": facts.get("workload.learning.clip_low") != facts.get("workload.learning.clip_high"),
        "colocate_all": facts.get("plan.rl.placement") != "split",
        "colocate_reference": facts["reference"],
    }


def _engine(scenario: Scenario[Rl], facts: JsonMapping) -> JsonObject:
    """The rollout engine in other units, and the knobs that every engine has under a name of its own."""
    if not scenario.workload.generates:
        return {}
    rollout = scenario.plan.rl.rollout
    replicas = facts["plan.rl.rollout.replicas"]
    derived: JsonObject = {
        "rollout.ranks": rollout.chips,
        "rollout.data_parallel": replicas * rollout.dp,
        "rollout.used_chips": replicas * rollout.chips,
        "graphs": not rollout.eager,
    }
    for fact, knob_names in KNOBS.items():
        knobs = (facts.get(f"plan.serving.{name}") for name in knob_names.split())
        derived[fact] = next((value for value in knobs if value is not None), None)
    return derived


def carried(fact: str) -> tuple[str, ...]:
    """The decisions that an option with this fact holds."""
    return CARRIES.get(fact, (fact,))
