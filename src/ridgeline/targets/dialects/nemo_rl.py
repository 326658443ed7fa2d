"""NeMo-RL: the YAML of run_grpo.py with its launch script, and such files with all that they build on read back."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.plan.rl_roles import actor_scenario
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.targets.imports.model_names import named_by
from ridgeline.targets.imports.option_reader import OptionReader, false_where_unreadable, nest_options
from ridgeline.targets.ledger import Piece
from ridgeline.targets.options import options
from ridgeline.targets.post_training.gather import yaml_options
from ridgeline.targets.post_training.megatron_actor import actor_pieces, read_actor
from ridgeline.targets.post_training.read import imported_post_training, other_algorithm
from ridgeline.targets.post_training.software import SOFTWARE
from ridgeline.targets.post_training.write import MARK, FileForm, export_post_training, head, ray_script, trainer_of
from ridgeline.targets.target import Export, Files, Imported
from ridgeline.targets.yaml_text import yaml_text

ID, FILE, BASE = "nemo-rl", "grpo.yaml", "base.yaml"
TRAINER = "policy.megatron_cfg"
PLACES = (TRAINER, f"{TRAINER}.optimizer", f"{TRAINER}.distributed_data_parallel_config")
# switches that the project's own file turns on, so that a plan without them has to say so
TOGGLES = (
    "policy.megatron_cfg.sequence_parallel", "policy.megatron_cfg.optimizer.use_precision_aware_optimizer",
    "policy.megatron_cfg.optimizer.use_distributed_optimizer", "policy.megatron_cfg.optimizer.optimizer_cpu_offload",
    "policy.megatron_cfg.distributed_data_parallel_config.overlap_grad_reduce",
    "policy.megatron_cfg.distributed_data_parallel_config.overlap_param_gather",
)  # fmt: skip
OTHER = {
    "dpo": "DPO", "sft": "supervised training", "rm": "training of a reward model", "ppo": "PPO",
    "distillation": "distillation from a teacher",
}  # fmt: skip
BEFORE = """NEMO_RL=${NEMO_RL:-NeMo-RL}
# grpo.yaml changes the project's own file, which names the data and its reward
ln -sf "$(realpath "$NEMO_RL")/examples/configs/grpo_math_1B.yaml" "$(dirname "$0")/base.yaml"
"""


def write(scenario: Scenario) -> Export:
    """grpo.yaml, which changes the project's own example, and the launch scripts."""
    return export_post_training(ID, post_training(scenario), FileForm(files=_files, read=read, actor=_actor))


def option_name(option: str) -> str:
    """Where the YAML has one of Megatron's options; empty where it has none.

    >>> option_name("--tensor-model-parallel-size"), option_name("--overlap-grad-reduce")[-20:], option_name("--swiglu")
    ('policy.megatron_cfg.tensor_model_parallel_size', '.overlap_grad_reduce', '')
    """
    name, known = option.removeprefix("--").replace("-", "_"), options(ID).values
    return next((f"{place}.{name}" for place in PLACES if f"{place}.{name}" in known), "")


def _actor(scenario: Scenario[Rl]) -> Iterator[Piece]:
    """What Megatron is told, where it trains; DTensor's few words stand in the table."""
    if trainer_of(scenario, SOFTWARE[ID]) == "megatron":
        yield from actor_pieces(actor_scenario(scenario), option_name)


def _files(scenario: Scenario[Rl], stated: JsonMapping) -> Files:
    software = SOFTWARE[ID]
    megatron = trainer_of(scenario, software) == "megatron"
    kept = {name: value for name, value in stated.items() if megatron or "megatron_cfg" not in name}
    kept |= {"policy.megatron_cfg.enabled": megatron, "policy.dtensor_cfg.enabled": not megatron}
    if megatron:
        kept = dict.fromkeys(TOGGLES, False) | kept
        kept["policy.megatron_cfg.activation_checkpointing"] = scenario.plan.recompute.kind != "none"
        kept |= {"policy.optimizer": None, "policy.scheduler": None}
    text = head(scenario, software) + yaml_text({"defaults": BASE} | nest_options(kept))
    command = f'uv run --project "$NEMO_RL" "$NEMO_RL/examples/run_grpo.py" --config {FILE} policy.model_name="$MODEL"'
    return {FILE: text, **ray_script(scenario, software, BEFORE, command)}


def read(files: Files) -> Imported:
    """What the YAML says, on top of the files that it names."""
    software = SOFTWARE[ID]
    reader = yaml_options(files, ("grpo", "policy", *OTHER))
    refuse_other_work(reader)
    if any(MARK in text for text in files.values()):  # which states all that a step depends on
        reader.notes.clear()
    facts: JsonObject = {"trainer": "megatron" if reader.switch("policy.megatron_cfg.enabled") else "fsdp"}
    facts = software.read_facts(reader, facts)
    if isinstance(facts.get("model.path"), str) and "$" in facts["model.path"]:
        facts["model.path"] = ""
    entry = named_by(str(facts.get("model.path") or ""))
    actor = _read_megatron(reader, facts, entry[0] if entry else None) if facts["trainer"] == "megatron" else {}
    _resolve(facts)
    return imported_post_training(software, files, reader, facts, actor or {"engine": "torch-eager"})


def refuse_other_work(reader: OptionReader) -> None:
    """An `InputError` for programs other than GRPO's."""
    if any(name.startswith("grpo.") for name in reader.options):
        return
    for key, work in OTHER.items():
        if any(name.startswith(f"{key}.") for name in reader.options):
            raise other_algorithm(f"{work} by NeMo-RL", reader.table.source)


def _read_megatron(reader: OptionReader, facts: JsonObject, model: str | None) -> JsonObject:
    off = not facts.get("activation_checkpointing")
    if off:
        reader.skip(*(option_name(f"--{name}") for name in ("recompute-granularity", "recompute-modules")))
        reader.options.pop(option_name("--recompute-granularity"), None)
    elif option_name("--recompute-granularity") not in reader.options:
        reader.options[option_name("--recompute-granularity")] = "full"
    for name in ("attention-backend",):
        if reader.options.get(option_name(f"--{name}")) is None:
            reader.options.pop(option_name(f"--{name}"), None)
    ep = facts.get("plan.ep")
    return read_actor(reader, option_name, model) | ({"ep": ep} if ep else {})


def _resolve(facts: JsonObject) -> None:
    """Facts that several options hold together, and what the software does by itself."""
    facts["reference"] = facts.get("kl.coefficient", 0.01) > 0
    if facts["reference"] and "kl.coefficient" in facts:
        facts["workload.learning.kl"] = facts["kl.coefficient"]
    facts["workload.learning.average"] = "token-mean" if facts["token_loss"] else "seq-mean-token-mean"
    facts["offload.any"] = True
    if facts.get("placement.overlapped"):
        versions, partial = facts.get("placement.versions", 1), facts.get("plan.rl.partial_rollouts", False)
        facts["placement.async"] = partial or versions > 1
    facts.setdefault("workload.old_log_probs", "trainer")
    ep, tp = facts.get("plan.rl.rollout.ep", 1), facts.get("plan.rl.rollout.tp", 1)
    if ep > tp:
        facts["plan.rl.rollout.dp"] = ep // tp
    if facts["trainer"] == "fsdp":
        facts |= {"plan.shard": "zero3", "plan.precision.gradients": "fp32"}
        stored = facts["plan.precision.compute"]
        facts |= {"plan.precision.weights": stored, "plan.precision.activations": stored}
        if facts.get("offload.adam"):
            facts["plan.offload.optimizer"] = 1.0
    if not facts.get("lora"):
        facts.pop("workload.lora.rank", None)


@false_where_unreadable
def recognises(files: Files) -> bool:
    """A YAML file with the policy of NeMo-RL, or one that changes such a file."""
    reader = yaml_options(files, ("policy", *OTHER, "grpo"))
    signs = ("policy.model_name", "policy.train_global_batch_size", "cluster.gpus_per_node")
    return sum(sign in reader.options for sign in signs) >= 2
