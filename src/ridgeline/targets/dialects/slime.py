"""slime: the command of train.py or train_async.py, with Megatron's options and SGLang's, and such commands read."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.plan.rl_roles import actor_scenario
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.targets.dialects.megatron.write import words
from ridgeline.targets.imports.model_names import named_by
from ridgeline.targets.imports.option_reader import OptionReader, false_where_unreadable
from ridgeline.targets.ledger import Piece
from ridgeline.targets.post_training.gather import command_of, command_options
from ridgeline.targets.post_training.megatron_actor import actor_pieces, read_actor
from ridgeline.targets.post_training.read import imported_post_training, other_algorithm
from ridgeline.targets.post_training.settings import placement_of
from ridgeline.targets.post_training.software import SOFTWARE
from ridgeline.targets.post_training.write import FileForm, export_post_training, ray_script
from ridgeline.targets.target import Export, Files, Imported

ID = "slime"
ENGINE, MODEL = "--rollout-engine", "--hf-checkpoint"
SIGNS = ("rollout-batch-size", "rollout-num-gpus-per-engine", "prompt-data", "actor-num-nodes")
BEFORE = """SLIME=${SLIME:-slime}
DATASET=${DATASET:?a file of prompts, one JSON object a line}
REWARD=${REWARD:-deepscaler}
REF_LOAD=${REF_LOAD:-${MODEL}_torch_dist}
export CUDA_DEVICE_MAX_CONNECTIONS=1
"""


def write(scenario: Scenario) -> Export:
    """launch.sh with the options in arrays."""
    return export_post_training(ID, post_training(scenario), FileForm(files=_files, read=read, actor=_actor))


def _actor(scenario: Scenario[Rl]) -> Iterator[Piece]:
    return actor_pieces(actor_scenario(scenario), lambda option: option, spells_model=True)


def _files(scenario: Scenario[Rl], options: JsonMapping) -> Files:
    stated = {name: value for name, value in options.items() if name.startswith("--") and name not in (ENGINE, MODEL)}
    lines = "".join(f"    {' '.join(words(name, value))}\n" for name, value in stated.items() if value is not None)
    array = f'RUN_ARGS=(\n    {MODEL} "$MODEL"\n{lines})\n'
    overlapped = scenario.plan.rl.placement in ("one-step-off", "async")
    program = "train_async.py" if overlapped else "train.py"
    command = (
        f'python3 "$SLIME/{program}" "${{RUN_ARGS[@]}}" --prompt-data "$DATASET" --rm-type "$REWARD" \\\n'
        '    --ref-load "$REF_LOAD" --num-rollout 1000'
    )
    return ray_script(scenario, SOFTWARE[ID], f"{BEFORE}\n{array}", command)


def read(files: Files) -> Imported:
    """What the command says."""
    software = SOFTWARE[ID]
    reader = command_options(files, str(software.data["program"]), dashes=True)
    for name in [name for name in reader.options if name.startswith("no-offload")]:
        reader.options[name.removeprefix("no-")] = not reader.options.pop(name)
    if str(reader.options.get("loss-type", "")).startswith("sft"):
        raise other_algorithm("supervised training by slime", reader.table.source)
    if not reader.options.get("fp16"):  # what slime sets whatever it is called with
        reader.options.setdefault("bf16", True)
    reader.options.setdefault("use-distributed-optimizer", True)
    facts = software.read_facts(reader, _placement(reader))
    _resolve(facts, reader)
    entry = named_by(str(facts.get("model.path") or ""))
    actor = read_actor(reader, lambda option: option.removeprefix("--"), entry[0] if entry else None)
    spelled = actor.pop("model", None)
    imported = imported_post_training(software, files, reader, facts, actor)
    if spelled is None or "model" in imported.settings:
        return imported
    return _with_model(imported, spelled)


def _with_model(imported: Imported, model: object) -> Imported:
    """The run with the model that its own options spell, whatever its folder is called."""
    from dataclasses import replace

    unread = tuple(part for part in imported.unread if part.option != "model")
    return replace(imported, settings={"model": model, **imported.settings}, unread=unread)


def _placement(reader: OptionReader) -> JsonObject:
    program, path = str(reader.take("program")), str(reader.take("rollout-function-path"))
    overlapped = program.endswith("train_async.py")
    fully = overlapped and "fully_async" in path
    colocated = reader.switch("colocate")
    placement = "colocated" if colocated else "async" if fully else "one-step-off" if overlapped else "split"
    return {"plan.rl.placement": placement, "placement.overlapped": overlapped, "placement.async": fully}


def _resolve(facts: JsonObject, reader: OptionReader) -> None:
    """Facts that several options hold together."""
    if "batch.mini_sequences" not in facts and facts.get("steps"):
        facts["batch.mini_batches"] = facts["steps"]
    if facts.get("token_loss"):
        facts["workload.learning.average"] = "token-mean"
    if facts.get("kl.reward"):
        facts["reference"] = True
    if not facts.get("reference"):
        facts.pop("workload.learning.kl", None)
    if facts.get("graphs.off"):
        facts["plan.rl.rollout.eager"] = True
    facts["filter"] = "nonzero_std" in str(reader.options.get("dynamic-sampling-filter-path", ""))
    if facts.get("logprobs"):
        facts["workload.old_log_probs"] = "rollout"
    elif placement_of(facts) == "async":
        facts["workload.old_log_probs"] = "trainer"
    if placement_of(facts) == "async":
        facts.setdefault("plan.rl.staleness", 1.0)
    if not facts.get("workload.lora.rank"):
        facts.pop("workload.lora.rank", None)


@false_where_unreadable
def recognises(files: Files) -> bool:
    """Whether a command starts train.py or train_async.py with slime's own options."""
    command = command_of(files, str(SOFTWARE[ID].data["program"]))
    return command is not None and sum(f"--{sign}" in command for sign in SIGNS) >= 2
