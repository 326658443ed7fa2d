"""AReaL: the YAML of a GRPO or PPO run with backends such as `fsdp:d4t2`, and such files read back."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import Problem
from ridgeline.plan.rl_roles import actor_scenario
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.imports.model_names import named_by
from ridgeline.targets.imports.option_reader import OptionReader, false_where_unreadable, nest_options
from ridgeline.targets.ledger import Piece
from ridgeline.targets.options import options
from ridgeline.targets.post_training.facts import facts_of
from ridgeline.targets.post_training.gather import yaml_options
from ridgeline.targets.post_training.megatron_actor import actor_pieces, read_actor
from ridgeline.targets.post_training.read import imported_post_training, other_algorithm
from ridgeline.targets.post_training.settings import placement_of
from ridgeline.targets.post_training.software import SOFTWARE
from ridgeline.targets.post_training.write import FileForm, export_post_training, head, ray_script, trainer_of
from ridgeline.targets.target import Export, Files, Imported
from ridgeline.targets.yaml_text import yaml_text

ID, FILE = "areal", "areal.yaml"
BACKEND = re.compile(r"(fsdp|megatron|archon|sglang|vllm)(?:\[\w+\])?:\(?([\w:|]+?)\)?")
AXIS = re.compile(r"([dptce])([1-9]\d{0,5})")
PLACES = ("actor.megatron", "actor.megatron.ddp")
DEGREES = {
    "tensor-model-parallel-size": "plan.tp",
    "pipeline-model-parallel-size": "plan.pp",
    "context-parallel-size": "plan.cp",
    "expert-model-parallel-size": "plan.ep",
    "expert-tensor-parallel-size": "plan.etp",
}
MEMORY = {"vllm": "vllm.gpu_memory_utilization", "sglang": "sglang.mem_fraction_static"}
BEFORE = """AREAL=${AREAL:-AReaL}
DATASET=${DATASET:-openai/gsm8k}
"""


def write(scenario: Scenario) -> Export:
    """areal.yaml and the launch scripts."""
    return export_post_training(ID, post_training(scenario), FileForm(files=_files, read=read, actor=_actor))


def option_name(option: str) -> str:
    """Where the YAML has one of Megatron's options; empty where it has none.

    >>> option_name("--overlap-grad-reduce"), option_name("--tensor-model-parallel-size")
    ('actor.megatron.ddp.overlap_grad_reduce', '')
    """
    name, known = option.removeprefix("--").replace("-", "_"), options(ID).values
    return next((f"{place}.{name}" for place in PLACES if f"{place}.{name}" in known), "")


def _actor(scenario: Scenario[Rl]) -> Iterator[Piece]:
    if trainer_of(scenario, SOFTWARE[ID]) == "megatron":
        yield from actor_pieces(actor_scenario(scenario), option_name)


def backend_text(backend: str, axes: JsonMapping) -> str:
    """One role's software and its degrees; experts with degrees of their own beside those of attention.

    >>> backend_text("fsdp", {"d": 4, "t": 2}), backend_text("megatron", {"d": 4, "t": 2, "e": 4, "x": 1})
    ('fsdp:d4t2', 'megatron:(attn:d4t2|ffn:d2e4)')
    """

    def text(values: JsonMapping) -> str:
        return "".join(f"{axis}{size}" for axis, size in values.items() if size > 1 or axis == "d")

    plain = {axis: axes.get(axis, 1) for axis in "dtpc"}
    experts = axes.get("e", 1)
    if experts == 1:
        return f"{backend}:{text(plain)}"
    inner = axes.get("x", 1)
    ranks = plain["d"] * plain["t"] * plain["c"] // (experts * inner)
    outer = {"d": max(1, ranks), "t": inner, "p": plain["p"], "e": experts}
    return f"{backend}:(attn:{text(plain)}|ffn:{text(outer)})"


def _files(scenario: Scenario[Rl], stated: JsonMapping) -> Files:
    software, facts = SOFTWARE[ID], facts_of(scenario)
    mesh, rollout = scenario.plan.mesh, scenario.plan.rl.rollout
    trainer = trainer_of(scenario, software)
    chips = facts["train.chips"]
    axes = {"d": max(1, chips // (mesh.tp * mesh.pp * mesh.cp)), "t": mesh.tp, "p": mesh.pp, "c": mesh.cp}
    if has_experts(scenario.model):
        axes |= {"e": mesh.ep, "x": mesh.etp}
    kept = {name: value for name, value in stated.items() if name not in ("algorithm", "memory_share")}
    if trainer != "megatron":
        kept = {name: value for name, value in kept.items() if ".megatron." not in name}
    serves = {"d": facts["rollout.data_parallel"], "t": rollout.tp, "p": rollout.pp}
    kept |= {"actor.backend": backend_text(trainer, axes), "rollout.backend": backend_text(rollout.engine, serves)}
    if facts.get("knob.memory") is not None:
        kept[MEMORY[rollout.engine]] = facts["knob.memory"]
    if facts["reference"]:
        kept |= {"ref.backend": "${actor.backend}", "ref.path": "${actor.path}", "ref.optimizer": None}
    if scenario.workload.algorithm == "ppo":
        kept |= {"critic.backend": "${actor.backend}", "critic.path": "${actor.path}"}
    kept |= {"experiment_name": "ridgeline", "trial_name": "first", "tokenizer_path": "${actor.path}"}
    text = head(scenario, software) + yaml_text(nest_options(kept))
    command = (
        f'python3 "$AREAL/examples/math/gsm8k_rl.py" --config {FILE} scheduler.type=ray \\\n'
        '    actor.path="$MODEL" train_dataset.path="$DATASET" valid_dataset.path="$DATASET"'
    )
    return {FILE: text, **ray_script(scenario, software, BEFORE, command)}


def axes_of(text: str) -> tuple[str, dict[str, int]]:
    """A role's software and its degrees; `e` and `x` are those of experts.

    >>> axes_of("megatron:(attn:d4p2t2|ffn:d2p2e4)")
    ('megatron', {'d': 4, 'p': 2, 't': 2, 'e': 4})
    >>> axes_of("sglang:d4p1t1")[1], axes_of("what")
    ({'d': 4, 'p': 1, 't': 1}, ('', {}))
    """
    found = BACKEND.fullmatch(text.replace(" ", "")[:200])
    if found is None:
        return "", {}
    attention, _, experts = found.group(2).partition("|")
    axes = {axis: int(size) for axis, size in AXIS.findall(attention.removeprefix("attn:"))}
    for axis, size in AXIS.findall(experts.removeprefix("ffn:")):
        if axis in "et":
            axes["e" if axis == "e" else "x"] = int(size)
    return found.group(1), axes


def read(files: Files) -> Imported:
    """What the YAML says."""
    software = SOFTWARE[ID]
    reader = yaml_options(files, ("actor", "gconfig", "rollout"))
    if not any(name.startswith("rollout.") for name in reader.options):
        raise other_algorithm("training without a rollout by AReaL", reader.table.source)
    facts = _backends(reader)
    ppo = any(name.startswith("critic.") for name in reader.options)
    reader.options["algorithm"] = "ppo" if ppo else "grpo"
    kl, has_reference = reader.options.get("actor.kl_ctl", 0.1), any(n.startswith("ref.") for n in reader.options)
    facts["reference"] = has_reference and isinstance(kl, (int, float)) and kl > 0
    facts = software.read_facts(reader, facts)
    _resolve(facts, reader)
    entry = named_by(str(facts.get("model.path") or ""))
    actor: JsonObject = {"engine": "torch-eager"}
    if facts["trainer"] == "megatron":
        actor = _read_megatron(reader, facts, entry[0] if entry else None)
    return imported_post_training(software, files, reader, facts, actor)


def _backends(reader: OptionReader) -> JsonObject:
    """Degrees and chips of the actor and of the engines, by their backends or by the older `allocation_mode`."""
    texts = {role: reader.take(f"{role}.backend") for role in ("actor", "rollout")}
    if reader.options.get("critic.backend") == texts["actor"]:
        reader.skip("critic.backend")
    older = reader.take("allocation_mode")
    if isinstance(older, str) and older and None in texts.values():
        parts = re.split(r"[+|](?![^(]*\))", older)
        texts = {"rollout": parts[0], "actor": parts[-1] if ":" in parts[-1] else f"fsdp:{parts[-1]}"}
    trainer, axes = axes_of(str(texts["actor"]))
    engine, serves = axes_of(str(texts["rollout"]))
    for role, name in (("actor", trainer), ("rollout", engine)):
        if not name:
            given = str(texts[role])[:60]
            reader.problems.append(
                Problem(path=f"{role}.backend", given=given, expected='software and degrees, such as "fsdp:d4t2"')
            )
    names = {"t": "plan.tp", "p": "plan.pp", "c": "plan.cp", "e": "plan.ep", "x": "plan.etp"}
    facts: JsonObject = {names[axis]: size for axis, size in axes.items() if axis in names}
    for axis in ("plan.tp", "plan.pp", "plan.cp"):
        facts.setdefault(axis, 1)
    ranks = facts["plan.tp"] * facts["plan.pp"] * facts["plan.cp"]
    colocated = str(reader.take("rollout.scheduling_strategy.type")) == "colocation"
    facts |= {
        "trainer": "megatron" if trainer == "megatron" else "fsdp",
        "plan.rl.rollout.engine": engine if engine in MEMORY else "sglang", "placement.colocated": colocated,
        "plan.rl.rollout.tp": serves.get("t", 1), "plan.rl.rollout.pp": serves.get("p", 1),
        "plan.rl.rollout.replicas": serves.get("d", 1), "train.chips": axes.get("d", 1) * ranks,
        "rollout.chips": serves.get("d", 1) * serves.get("t", 1) * serves.get("p", 1),
    }  # fmt: skip
    if trainer == "archon":
        reader.note("actor.backend", "archon", "AReaL's own trainer: read as FSDP")
    return facts


def _resolve(facts: JsonObject, reader: OptionReader) -> None:
    """Facts that several options hold together, and what the software does by itself."""
    facts.pop("all.nodes", None)
    facts.pop("all.chips_per_node", None)
    share = reader.take(MEMORY[facts["plan.rl.rollout.engine"]])
    if isinstance(share, (int, float)):
        facts["knob.memory"] = float(share)
    if facts["reference"]:
        facts["workload.learning.kl"] = facts["kl.coefficient"]
    lag = facts.pop("lag", 0)
    facts |= {"placement.overlapped": lag > 0, "placement.async": lag > 0, "plan.rl.staleness": float(lag)}
    facts["plan.rl.partial_rollouts"] = lag > 0
    facts["workload.old_log_probs"] = "trainer" if facts.get("recompute.logprob") else "rollout"
    if placement_of(facts) != "async":
        facts.pop("plan.rl.staleness")
    facts["workload.learning.average"] = "token-mean"
    if "workload.prompts" not in facts:
        facts["workload.prompts"] = 1
        reader.problems.append(
            Problem(path="train_dataset.batch_size", given="nothing", expected="prompts of one step")
        )
    if not facts.get("lora"):
        facts.pop("workload.lora.rank", None)
    if facts["trainer"] == "fsdp":
        stored = facts["plan.precision.compute"]
        facts |= {"plan.precision.weights": stored, "plan.precision.activations": stored, "plan.shard": "zero3"}
        if facts["plan.cp"] > 1:
            facts["plan.cp_kind"] = "all-to-all"
        if facts.get("offload.adam"):
            facts["plan.offload.optimizer"] = 1.0


def _read_megatron(reader: OptionReader, facts: JsonObject, model: str | None) -> JsonObject:
    """Megatron's plan with the degrees of the backend; recompute where it is asked for."""
    for name, fact in DEGREES.items():
        if facts.get(fact, 1) > 1 or fact in ("plan.tp", "plan.pp", "plan.cp", "plan.etp"):
            reader.options[f"backend.{name}"] = facts.get(fact, 1)
    for toggle, default in (("overlap_grad_reduce", False), ("grad_reduce_in_fp32", True)):
        reader.options.setdefault(f"actor.megatron.ddp.{toggle}", default)
    reader.options.setdefault("actor.megatron.ddp.use_distributed_optimizer", True)
    reader.options["backend.bf16"] = True
    if facts["plan.tp"] > 1:
        reader.options["backend.sequence-parallel"] = True
    wide = reader.options["actor.megatron.ddp.grad_reduce_in_fp32"]
    reader.options["backend.accumulate-allreduce-grads-in-fp32"] = wide
    if not facts.get("recompute"):
        for name in ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"):
            reader.options.pop(f"actor.megatron.{name}", None)
    else:
        defaults = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
        for name, value in defaults.items():
            reader.options.setdefault(f"actor.megatron.{name}", value)

    def own_name(option: str) -> str:
        inner = f"backend.{option.removeprefix('--')}"
        return inner if inner in reader.options else option_name(option)

    facts.pop("recompute", None)
    return read_actor(reader, own_name, model)


@false_where_unreadable
def recognises(files: Files) -> bool:
    """A YAML file with an actor, a rollout and how it draws tokens."""
    reader = yaml_options(files, ("gconfig",))
    return any(name.startswith("actor.") for name in reader.options)
