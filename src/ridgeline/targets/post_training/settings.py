"""Turn facts that files state into the table of a scenario: the way back from `facts.py`.

What files do not say is assumed and said: every prompt and every answer is as long as its limit, which is an upper
bound of what a step costs.
"""

from __future__ import annotations

import math
import re

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import Problem
from ridgeline.core.units import DECIMAL
from ridgeline.targets.imports.model_names import UNKNOWN, named_by
from ridgeline.targets.imports.option_reader import OptionReader, nest_options, pick
from ridgeline.targets.post_training.facts import KNOBS, MEBI

STATES = ("weights", "gradients", "optimizer")
DERIVED = ("plan.rl.", "plan.serving.")
FULL_LENGTH = (
    "every prompt and every answer as long as its limit: an upper bound; say what lengths are seen with"
    " workload.response_tokens"
)


def settings_of(facts: JsonMapping, reader: OptionReader, actor: JsonMapping) -> tuple[JsonObject, int | None]:
    """The tables `workload` and `plan`, and the chips that the run takes where the files say it.

    `actor` is what the reader of a trainer's own dialect made of its options: a plan, with its optimizer.
    """
    chips = _chips(facts)
    plan = nest_options(_plan_facts(facts)) | {key: value for key, value in actor.items() if key != "optimizer"}
    plan["rl"] = _placement(facts, plan, reader, chips)
    serving = _knobs(facts)
    plan |= {"serving": serving} if serving else {}
    workload = _workload(facts, reader)
    optimizer = actor.get("optimizer") or nest_options(
        {key.removeprefix("workload.optimizer."): value for key, value in facts.items() if "workload.optimizer" in key}
    )
    workload |= {"optimizer": optimizer} if optimizer else {}
    own_chips = sum(int(value) for name, value in facts.items() if re.fullmatch(r"role\.\w+\.chips", name))
    return {"workload": workload, "plan": plan}, (sum(chips) + own_chips) or None


def _plan_facts(facts: JsonMapping) -> JsonObject:
    """Decisions of the actor's own plan, in the shape that a scenario has them."""
    plan = {
        name.removeprefix("plan."): value
        for name, value in facts.items()
        if name.startswith("plan.") and not name.startswith(DERIVED) and value is not None
    }
    if "recompute" in facts and "recompute.kind" not in plan:
        plan["recompute.kind"] = "full" if facts["recompute"] else "none"
    if plan.get("recompute.kind") != "full":
        plan.pop("recompute.layers", None)
    if plan.get("pp", 1) == 1:
        plan = {name: value for name, value in plan.items() if not name.startswith(("schedule.", "placement"))}
    elif "schedule.chunks" in plan:
        plan["schedule.name"] = "interleaved" if plan["schedule.chunks"] > 1 else "1f1b"
    if plan.get("cp", 1) == 1:
        plan.pop("cp_kind", None)
    if plan.get("ep", 1) > 1:
        plan.setdefault("etp", 1)
    return {name: value for name, value in plan.items() if name != "dp"}


def _chips(facts: JsonMapping) -> tuple[int, int]:
    """Chips that train, and those beside them that generate; of colocated roles the second is 0."""

    def of(pool: str) -> int:
        nodes = facts.get(f"{pool}.nodes", 1 if f"{pool}.chips_per_node" in facts else 0)
        return int(facts.get(f"{pool}.chips") or nodes * facts.get(f"{pool}.chips_per_node", 0))

    whole, train, rollout = of("all"), of("train"), of("rollout")
    ranks = [facts.get(f"plan.rl.rollout.{axis}", 1) for axis in ("tp", "pp", "dp")]
    rollout = rollout or int(facts.get("plan.rl.rollout.replicas") or 0) * ranks[0] * ranks[1] * ranks[2]
    if placement_of(facts) == "colocated":
        return (train or whole or rollout), 0
    if whole and not train:
        return whole - rollout, rollout
    return train, (rollout or max(whole - train, 0))


def placement_of(facts: JsonMapping) -> str:
    """Where roles run, by the switches that a software has for it.

    >>> placement_of({"placement.colocated": False, "placement.overlapped": True, "placement.async": False})
    'one-step-off'
    """
    if "plan.rl.placement" in facts:
        return str(facts["plan.rl.placement"])
    if facts.get("placement.colocated", not facts.get("placement.separate", False)):
        return "colocated"
    if facts.get("placement.async", False):
        return "async"
    return "one-step-off" if facts.get("placement.overlapped", False) else "split"


def _placement(facts: JsonMapping, plan: JsonMapping, reader: OptionReader, chips: tuple[int, int]) -> JsonObject:
    placement = placement_of(facts)
    rl: JsonObject = {"placement": placement}
    if placement == "colocated":
        rl["offload"] = _offloaded(facts)
        rl |= pick({"free_engine": facts.get("plan.rl.free_engine")})
    else:
        rl |= pick({"train_chips": chips[0] or None, "sync_every": facts.get("plan.rl.sync_every")})
    if placement == "async":
        versions = (facts.get(name) for name in ("plan.rl.staleness", "staleness.share", "placement.versions"))
        lag = next((value for value in (*versions, facts.get("staleness.queue")) if value is not None), 1.0)
        rl |= {"staleness": float(lag), "partial_rollouts": bool(facts.get("plan.rl.partial_rollouts", False))}
    rl["pack"] = _pack(facts, plan, reader)
    bucket = facts.get("plan.rl.weight_sync.bucket") or facts.get("sync.bytes")
    bucket = bucket or facts.get("sync.megabytes", 0) * MEBI or facts.get("sync.gigabytes", 0) * DECIMAL["G"]
    bytes_given = f"{bucket:.10g} B" if bucket else None
    rl["weight_sync"] = pick({"method": facts.get("plan.rl.weight_sync.method"), "bucket": bytes_given})
    rl["rollout"] = _rollout(facts, chips)
    own_chips = {role: facts.get(f"role.{role}.chips") for role in ("reference", "critic", "reward_model")}
    rl["roles"] = {role: _role_plan(plan) | {"chips": int(chips)} for role, chips in own_chips.items() if chips}
    if facts.get("reference") and facts.get("role.reference.offload"):
        rl["roles"]["reference"] = {**_role_plan(plan), **rl["roles"].get("reference", {}), "offload": True}
    return {key: value for key, value in rl.items() if value not in (None, {})}


def _role_plan(plan: JsonMapping) -> JsonObject:
    """A role split as the actor is."""
    return {key: plan[key] for key in ("tp", "pp", "cp", "ep", "shard") if key in plan}


def _offloaded(facts: JsonMapping) -> list[str]:
    if facts.get("offload.any") or facts.get("offload.all"):
        return list(STATES)
    return [state for state in STATES if facts.get(f"plan.rl.offload.{state}")]


def _pack(facts: JsonMapping, plan: JsonMapping, reader: OptionReader) -> int | None:
    """Tokens of a microbatch: as they are packed, or of so many sequences of full length."""
    total = _limits(facts)[2]
    sequences, per_chip = facts.get("pack.sequences"), facts.get("pack.per_chip")
    if facts.get("pack.dynamic", sequences is None) and (per_chip or facts.get("plan.rl.pack")):
        return int(facts.get("plan.rl.pack") or per_chip * plan.get("cp", 1))
    if sequences:
        tokens = int(sequences) * total
        reader.assumptions.append(f"pack = {tokens}: {sequences} sequences of {total} tokens")
        return tokens
    return None


def _rollout(facts: JsonMapping, chips: tuple[int, int]) -> JsonObject:
    names = ("tp", "pp", "ep", "dp", "engine", "eager")
    rollout = pick({name: facts.get(f"plan.rl.rollout.{name}") for name in names})
    formats = {
        key.rpartition(".")[2]: value
        for key, value in facts.items()
        if key.startswith("plan.rl.rollout.precision.") and value is not None
    }
    rollout |= {"precision": formats} if formats else {}
    if "graphs" in facts and "eager" not in rollout:
        rollout["eager"] = not facts["graphs"]
    ranks = facts.get("rollout.ranks")
    if ranks and "tp" not in rollout:
        rollout["tp"] = max(1, int(ranks) // (rollout.get("pp", 1) * rollout.get("dp", 1)))
    share = rollout.get("tp", 1) * rollout.get("pp", 1) * rollout.get("dp", 1)
    groups = int(facts.get("rollout.data_parallel", 0)) // rollout.get("dp", 1)
    replicas = facts.get("plan.rl.rollout.replicas") or groups
    pool = chips[1] or chips[0]
    if replicas and replicas * share != pool:
        rollout["replicas"] = int(replicas)
    return rollout


def _knobs(facts: JsonMapping) -> JsonObject:
    """Arguments of the rollout engine, those that several engines have by the engine's own name."""
    engine = str(facts.get("plan.rl.rollout.engine", "vllm"))
    knobs = {
        name.removeprefix(f"plan.serving.{engine}."): value
        for name, value in facts.items()
        if name.startswith(f"plan.serving.{engine}.")
    }
    for fact, names in KNOBS.items():
        own_name = next((name for name in names.split() if name.startswith(f"{engine}.")), "")
        if own_name and facts.get(fact) is not None:
            knobs.setdefault(own_name.partition(".")[2], facts[fact])
    return {engine: knobs} if knobs else {}


def _limits(facts: JsonMapping) -> tuple[int, int, int]:
    """Tokens of a prompt, of an answer and of both at most."""
    prompt = facts.get("workload.prompt_tokens.longest")
    answer = facts.get("workload.response_tokens.longest")
    total = facts.get("limit.total")
    if total and answer and not prompt:
        prompt = max(1, total - answer) if answer < total else max(1, total // 4)
        answer = min(answer, total - prompt) or 1
    if total and prompt and not answer:
        answer = max(1, total - prompt)
    if total and not prompt and not answer:
        prompt, answer = max(1, total // 4), total - max(1, total // 4)
    prompt, answer = int(prompt or 512), int(answer or 512)
    return prompt, answer, prompt + answer


def _workload(facts: JsonMapping, reader: OptionReader) -> JsonObject:
    prompt, answer, _ = _limits(facts)
    reader.assumptions.append(FULL_LENGTH)
    prompts, samples = _prompts(facts)
    algorithm = str(facts.get("workload.algorithm", "grpo"))
    algorithm = "dapo" if algorithm == "grpo" and facts.get("filter") else algorithm
    if algorithm == "dapo":
        reader.assumptions.append("oversampling = 1: how many prompts the filter throws away is not in the files")
    roles = pick({
        "reference": True if facts.get("reference") else None,
        "critic": (_role_model(facts, "critic", reader) or True) if algorithm == "ppo" else None,
        "reward_model": _role_model(facts, "reward_model", reader),
    })  # fmt: skip
    workload: JsonObject = {
        "kind": "rl", "algorithm": algorithm, "prompts": prompts, "samples": samples, "prompt_tokens": prompt,
        "response_tokens": answer, "mini_batch": _mini_batch(facts, (prompts, samples), reader),
        "epochs": facts.get("workload.epochs"), "roles": roles or None, "lora": _lora(facts),
        "old_log_probs": _old_log_probs(facts),
    }  # fmt: skip
    learning = {key.rpartition(".")[2]: value for key, value in facts.items() if key.startswith("workload.learning.")}
    if not 0 < learning.get("clip_low", 0.2) < 1:
        reader.assumptions.append(
            f"clip_low = {learning.pop('clip_low'):g} is left out: a range of 0 to 1 is described"
        )
    return pick(workload) | ({"learning": learning} if learning else {})


def _role_model(facts: JsonMapping, role: str, reader: OptionReader) -> str | bool | None:
    """The catalog's model of a role with a path of its own; True where that is the actor's."""
    path = facts.get(f"role.{role}.path")
    if not isinstance(path, str) or not path:
        return None
    entry = named_by(path)
    actor = named_by(str(facts.get("model.path") or ""))
    if entry is None:
        reader.note(f"role.{role}", path[:100], f"{UNKNOWN}: read as the actor's model")
        return True
    return True if actor is not None and entry[0] == actor[0] else entry[0]


def _old_log_probs(facts: JsonMapping) -> str | None:
    """Who computes them, where that is not what the placement means by itself."""
    who = facts.get("workload.old_log_probs")
    usual = "rollout" if placement_of(facts) == "async" else "trainer"
    return None if who in (None, usual) else str(who)


def _prompts(facts: JsonMapping) -> tuple[int, int]:
    samples = int(facts.get("workload.samples", 1))
    prompts = facts.get("workload.prompts") or int(facts.get("batch.sequences", 0)) // samples
    return max(1, int(prompts)), samples


def _mini_batch(facts: JsonMapping, batch: tuple[int, int], reader: OptionReader) -> int | None:
    """Prompts of one optimizer step; a size that does not divide a step is said and made to."""
    prompts, samples = batch
    mini = facts.get("workload.mini_batch")
    if mini is None and facts.get("batch.mini_sequences"):
        mini = max(1, int(facts["batch.mini_sequences"]) // samples)
    if mini is None and facts.get("batch.mini_batches"):
        mini = max(1, prompts // int(facts["batch.mini_batches"]))
    if mini is None or mini >= prompts:
        return None
    if prompts % mini:
        divisor = math.gcd(prompts, int(mini))
        steps = round(prompts / mini)
        best = prompts // steps if steps and prompts % steps == 0 else divisor
        reader.assumptions.append(f"mini_batch = {best}: {mini} prompts do not divide a step of {prompts}")
        return best
    return int(mini)


def _lora(facts: JsonMapping) -> JsonObject | None:
    rank = facts.get("workload.lora.rank")
    return {"rank": int(rank)} if rank and facts.get("lora", True) else None


def require_chips(facts: JsonMapping, reader: OptionReader) -> None:
    """Note a problem where roles with chips of their own leave none to train."""
    train, rollout = _chips(facts)
    if placement_of(facts) != "colocated" and (train < 1 or rollout < 1):
        given = f"{train} chips that train and {rollout} that generate"
        expected = "some of each: training and rollout are apart"
        reader.problems.append(Problem(path="", given=given, expected=expected, todo="state both sizes in the files"))
