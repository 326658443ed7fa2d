"""OpenRLHF: the command of train_ppo_ray on Ray with DeepSpeed and vLLM, and such commands read back."""

from __future__ import annotations

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.targets.dialects.megatron.write import words
from ridgeline.targets.imports.option_reader import OptionReader, false_where_unreadable
from ridgeline.targets.post_training.gather import command_of, command_options
from ridgeline.targets.post_training.read import imported_post_training, other_algorithm
from ridgeline.targets.post_training.settings import placement_of
from ridgeline.targets.post_training.software import SOFTWARE
from ridgeline.targets.post_training.write import FileForm, export_post_training, ray_script
from ridgeline.targets.target import Export, Files, Imported

ID = "openrlhf"
ENGINE, MODEL = "--vllm.engine", "--actor.model_name_or_path"
OTHER = {"train_dpo": "DPO", "train_sft": "supervised training", "train_rm": "training of a reward model"}
BEFORE = """DATASET=${DATASET:?a data set of prompts: a name that hubs know, or a folder}
REWARD=${REWARD:?a file with the function reward_func, or the address of a reward server}
"""


def write(scenario: Scenario) -> Export:
    """launch.sh with the options in one array."""
    return export_post_training(ID, post_training(scenario), FileForm(files=_files, read=read))


def _files(scenario: Scenario[Rl], options: JsonMapping) -> Files:
    stated = {name: value for name, value in options.items() if name not in (ENGINE, MODEL)}
    lines = "".join(f"    {' '.join(words(name, value))}\n" for name, value in stated.items())
    array = f'RUN_ARGS=(\n    {MODEL} "$MODEL"\n{lines})\n'
    command = (
        'python3 -m openrlhf.cli.train_ppo_ray "${RUN_ARGS[@]}" \\\n'
        '    --data.prompt_dataset "$DATASET" --reward.remote_url "$REWARD"'
    )
    return ray_script(scenario, SOFTWARE[ID], f"{BEFORE}\n{array}", command)


def read(files: Files) -> Imported:
    """What the command says."""
    software = SOFTWARE[ID]
    for name, work in OTHER.items():
        if command_of(files, rf"openrlhf\.cli\.{name}") and not command_of(files, str(software.data["program"])):
            raise other_algorithm(f"{work} by OpenRLHF", next(iter(files), ""))
    reader = command_options(files, str(software.data["program"]))
    facts = software.read_facts(reader, _placement(reader))
    _resolve(facts, reader)
    return imported_post_training(software, files, reader, facts, {"engine": "deepspeed"})


def _placement(reader: OptionReader) -> JsonObject:
    """Engines share the actor's chips where all models do and nothing is asynchronous."""
    overlapped = reader.switch("train.async_enable")
    together = reader.switch("train.colocate_all")
    queue = reader.count("train.async_queue_size", default=1) or 1
    partial = reader.switch("train.partial_rollout_enable")
    return {
        "placement.colocated": together and not overlapped,
        "placement.overlapped": overlapped,
        "placement.async": overlapped and (partial or queue > 1),
    }


def _resolve(facts: JsonObject, reader: OptionReader) -> None:
    """Facts that several options hold together, and what DeepSpeed keeps."""
    if placement_of(facts) != "async":
        facts.pop("plan.rl.partial_rollouts", None)
    facts["pack.per_chip"] = facts["pack.per_rank"] * facts["plan.tp"]
    facts["reference"] = facts["kl.coefficient"] > 0
    if facts["reference"]:
        facts["workload.learning.kl"] = facts["kl.coefficient"]
    pair = reader.take("actor.eps_clip_low_high")
    low, high = pair if isinstance(pair, list) and len(pair) == 2 else (facts["clip"], facts["clip"])
    facts |= {"workload.learning.clip_low": low, "workload.learning.clip_high": high}
    facts["workload.learning.average"] = "token-mean"
    facts["plan.rl.weight_sync.method"] = "tensor"
    if facts["offload.adam"]:
        facts["plan.offload.optimizer"] = 1.0
    stored = facts["plan.precision.compute"]
    for name in ("weights", "activations"):
        facts[f"plan.precision.{name}"] = stored
    facts.setdefault("plan.precision.gradients", stored)
    facts["plan.overlap.grad-reduce"] = bool(facts["overlap"])
    if facts["plan.cp"] > 1:
        facts["plan.cp_kind"] = "ring"
    _read_roles(facts, reader)
    if not facts.get("workload.lora.rank"):
        facts.pop("workload.lora.rank", None)
    if placement_of(facts) == "colocated" and not reader.switch("train.dynamic_batch_enable"):
        facts["pack.dynamic"] = False


def _read_roles(facts: JsonObject, reader: OptionReader) -> None:
    """Roles beside the actor: on its chips where they are told to share them, else on chips of their own."""
    together = reader.switch("train.colocate_all")
    beside = {"ref": together or reader.switch("train.colocate_actor_ref"), "critic": together, "reward": together}
    rewards = bool(facts.get("role.reward_model.path")) and not reader.options.get("reward.remote_url")
    used = {"ref": facts["reference"], "critic": facts["workload.algorithm"] == "ppo", "reward": rewards}
    names = {"ref": "reference", "critic": "critic", "reward": "reward_model"}
    for role, name in names.items():
        nodes = reader.count(f"{role}.num_nodes", default=1) or 1
        chips = nodes * (reader.count(f"{role}.num_gpus_per_node", default=8) or 8)
        if used[role] and not beside[role]:
            facts[f"role.{name}.chips"] = chips
    if not used["reward"]:
        facts.pop("role.reward_model.path", None)


@false_where_unreadable
def recognises(files: Files) -> bool:
    """Whether a command starts a program of OpenRLHF."""
    return command_of(files, r"(.*/)?openrlhf[./]cli[./]\w+(\.py)?") is not None
