"""TRL's GRPO: the files of `trl grpo` under Accelerate, and such files, commands and Python scripts read back.

The actor's update is that of every run of Accelerate and TRL; what is around it is GRPOConfig. A step draws
per_device_train_batch_size x steps_per_generation samples on each data-parallel rank.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import Table
from ridgeline.plan.rl_roles import actor_scenario
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.plan.workload import Train
from ridgeline.targets.decisions import divisor_below
from ridgeline.targets.dialects import accelerate
from ridgeline.targets.imports.option_reader import (
    STRANGE,
    OptionReader,
    false_where_unreadable,
    nest_options,
    split_options,
    tables,
    value_of,
)
from ridgeline.targets.imports.run_files import checkout_of
from ridgeline.targets.launchers import launch
from ridgeline.targets.ledger import Lose, Piece, Say
from ridgeline.targets.options import options
from ridgeline.targets.post_training.facts import facts_of
from ridgeline.targets.post_training.gather import command_of
from ridgeline.targets.post_training.read import imported_post_training
from ridgeline.targets.post_training.software import SOFTWARE
from ridgeline.targets.post_training.write import MARK, FileForm, export_post_training, head
from ridgeline.targets.target import Export, Files, Imported, refusal
from ridgeline.targets.trainers import write as trainers
from ridgeline.targets.yaml_text import yaml_text

ID = "trl"
SIGNS = ("num_generations", "max_completion_length", "use_vllm", "vllm_mode", "num_iterations", "epsilon_high")
CONFIG = re.compile(r"(?<!\w)GRPOConfig\(")
OWN = ("train.scale", "train.rollout")  # facts that stand in no file
USUAL_CHIPS = 8
NOTE = "# dataset_name and reward_funcs in train.yaml are yours. Words after the script's name are passed on."


def write(scenario: Scenario) -> Export:
    """accelerate.yaml, train.yaml, deepspeed.json where DeepSpeed shards, and the scripts of trainer and engine."""
    return export_post_training(ID, post_training(scenario), FileForm(files=_files, read=read, actor=_actor))


def update_of(scenario: Scenario[Rl]) -> tuple[Scenario[Train], int]:
    """The actor's update in sequences as the Trainer counts them, and the batches of one generation."""
    facts = facts_of(scenario)
    lanes = max(1, scenario.plan.mesh.dp)
    mini, samples = facts["batch.mini_sequences"], facts["batch.sequences"]
    if mini % lanes:
        given = f"{mini} samples of a mini-batch on {lanes} data-parallel ranks"
        expected = f"a multiple of {lanes}: the Trainer deals them evenly"
        todo = "change workload.mini_batch or workload.samples"
        raise InputError(Problem(path="workload.mini_batch", given=given, expected=expected, todo=todo))
    total = facts["limit.total"]
    each = divisor_below(mini // lanes, max(1, facts["plan.rl.pack"] // total))
    update = actor_scenario(scenario, seq=total, sequences=mini)
    return replace(update, plan=replace(update.plan, microbatch=each)), max(1, samples // (each * lanes))


def _actor(scenario: Scenario[Rl]) -> Iterator[Piece]:
    update, batches = update_of(scenario)
    known = options(ID).values
    run = trainers.run_of(update, accelerate.CAN)
    for piece in accelerate.pieces(update, run):
        name = piece.option.removeprefix("train.") if isinstance(piece, Say) else ""
        if isinstance(piece, Say) and piece.option.startswith("train.") and name not in known:
            continue
        if isinstance(piece, Lose) and piece.path.startswith("workload.") and piece.path != "workload.lora.targets":
            continue
        yield piece
    yield Say("train.per_device_train_batch_size", run.micro, "plan.rl.pack")
    yield Say("train.gradient_accumulation_steps", run.steps, "workload.mini_batch")
    yield Say("train.steps_per_generation", batches, "workload.prompts")
    yield Say("train.vllm_mode", "colocate" if scenario.plan.rl.placement == "colocated" else "server",
              "plan.rl.placement")  # fmt: skip


def _files(scenario: Scenario[Rl], stated: JsonMapping) -> Files:
    software, facts = SOFTWARE[ID], facts_of(scenario)
    update, _ = update_of(scenario)
    kept = {name: value for name, value in stated.items() if name not in OWN}
    kept |= {
        "train.dataset_name": "your/dataset",
        "train.output_dir": "output",
        "train.reward_funcs": "accuracy_reward",
    }
    nested = nest_options(kept)
    top = head(scenario, software)
    files: dict[str, str] = {f"{name}.yaml": top + yaml_text(nested[name]) for name in ("accelerate", "train")}
    if "deepspeed" in nested:
        files |= {trainers.ZERO: trainers.json_text(nested["deepspeed"])}
    command = trainers.by_accelerate(update, "trl.scripts.grpo --config train.yaml", NOTE)
    script = launch.on_node(update, command, software.title)
    files[launch.ON_NODE] = script.replace("set -euo pipefail", f"# {MARK}\nset -euo pipefail", 1)
    if scenario.plan.rl.separate:
        files["serve.sh"] = _server(scenario, facts, top)
    else:
        files[launch.SLURM] = launch.slurm(scenario, software.title)
    return files


def _server(scenario: Scenario[Rl], facts: JsonMapping, top: str) -> str:
    """The engine beside the trainer: started on the chips that generate, before launch.sh."""
    rollout = scenario.plan.rl.rollout
    words = [f"--tensor_parallel_size {rollout.tp}", f"--data_parallel_size {facts['rollout.data_parallel']}"]
    if facts.get("knob.memory") is not None:
        words.append(f"--gpu_memory_utilization {facts['knob.memory']}")
    if rollout.eager:
        words.append("--enforce_eager true")
    path = facts["model.path"]
    model = f"MODEL=${{MODEL:-{path}}}" if path else "MODEL=${MODEL:?a folder with weights and a config.json}"
    return (
        f"#!/bin/bash\n{top}# {facts['rollout.chips']} chips beside those that train; then start launch.sh with\n"
        f"# --vllm_server_host ADDRESS\nset -euo pipefail\n\n{model}\n"
        f'trl vllm-serve --model "$MODEL" {" ".join(words)} "$@"\n'
    )


def read(files: Files) -> Imported:
    """What the configuration says; in a Python script, the literal words of GRPOConfig."""
    software = SOFTWARE[ID]
    launch_table, train = _tables(files)
    found = _trainer(files, launch_table, train)
    reader = OptionReader(Table(data={"train": train}, source=next(iter(files), "")))
    facts = software.read_facts(reader, {"placement.colocated": str(train.get("vllm_mode", "colocate")) == "colocate"})
    _resolve(facts, reader, files, found)
    plan = {key: value for key, value in found.settings["plan"].items() if key != "microbatch"}
    work = found.settings["workload"]
    actor: JsonObject = plan | ({"optimizer": work["optimizer"]} if "optimizer" in work else {})
    if work.get("lora"):
        facts["workload.lora.rank"] = work["lora"].get("rank", 16)
    read_by_trainer = set(reader.options) - {part.option for part in found.unread}
    reader.taken |= read_by_trainer
    reader.options = {name.removeprefix("train."): value for name, value in reader.options.items()}
    reader.taken = {name.removeprefix("train.") for name in reader.taken}
    reader.notes += [part for part in found.unread if part.why != STRANGE and not part.option.startswith("train.")]
    imported = imported_post_training(software, files, reader, facts, actor)
    if "model" not in imported.settings and "model" in found.settings:
        imported = replace(imported, settings={"model": found.settings["model"], **imported.settings})
    return imported.with_notes(*found.assumptions[:8])


def _trainer(files: Files, launch_table: JsonMapping, train: JsonMapping) -> Imported:
    """What the reader of Accelerate and the Trainer makes of the same run."""
    if any(name.endswith(".py") for name in files) and not launch_table:
        stated = {"per_device_train_batch_size": 8, "gradient_checkpointing": True, "bf16": True, **train}
        texts = {"train.yaml": yaml_text({key: value for key, value in stated.items() if value is not None})}
        return accelerate.read(texts)
    return accelerate.read(files)


def _tables(files: Files) -> tuple[JsonObject, JsonObject]:
    """The tables of the launcher and of GRPOConfig."""
    for name, text in files.items():
        if name.endswith(".py") and CONFIG.search(text):
            return {}, _python_arguments(text, name)
    launch_table, train, _ = accelerate.parts_of(files)
    if not train:
        raise refusal(", ".join(files)[:200] or "no file", "a YAML file, a command or a script with GRPOConfig")
    return launch_table, train


def _python_arguments(text: str, name: str) -> JsonObject:
    """Literal arguments of GRPOConfig, and the model that GRPOTrainer is given."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise refusal("a file that is no Python", "a script with GRPOConfig(...)", where=name) from None
    found: JsonObject = {}
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        title = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
        if not isinstance(node, ast.Call) or title not in ("GRPOConfig", "GRPOTrainer"):
            continue
        words = {word.arg: _literal(word.value) for word in node.keywords if word.arg}
        if title == "GRPOConfig":
            found |= words
        elif isinstance(words.get("model"), str) and words["model"] != "$open":
            found["model_name_or_path"] = words["model"]
    return found


def _literal(node: ast.expr) -> object:
    """A literal; what only running the script tells is left open."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return "$open"
    return value if isinstance(value, (str, int, float, bool, list)) or value is None else str(value)


def _resolve(facts: JsonObject, reader: OptionReader, files: Files, found: Imported) -> None:
    """Chips of the two sides, and batches of all ranks together."""
    chips = found.chips or checkout_of(files).chips
    if chips is None:
        chips = USUAL_CHIPS
        reader.assumptions.append(f"{chips} chips train: the files do not say how many processes are started")
    plan = found.settings["plan"]
    lanes = max(1, chips // (plan.get("tp", 1) * plan.get("cp", 1)))
    each, steps = facts["trl.per_device"], facts["trl.accumulation"]
    batches = facts.get("trl.generation_steps") or steps
    sequences = facts.get("trl.generation_batch") or each * lanes * batches
    facts |= {
        "batch.sequences": sequences, "batch.mini_sequences": each * lanes * steps, "pack.sequences": each,
        "pack.dynamic": False, "train.chips": chips, "filter": False, "plan.rl.placement": facts["placement.mode"],
        "plan.rl.weight_sync.method": "tensor", "reference": facts["kl.coefficient"] > 0,
    }  # fmt: skip
    if facts["reference"]:
        facts["workload.learning.kl"] = facts["kl.coefficient"]
    prompt = reader.count("train.max_prompt_length")  # of older versions, which cut prompts
    if prompt is not None:
        facts["workload.prompt_tokens.longest"] = prompt
    if not facts.get("generates.by"):
        reader.note("use_vllm", "False", "generation by transformers: read as vLLM's, which is faster")
    if facts["plan.rl.placement"] == "split":
        _resolve_server(facts, reader, files)


def _resolve_server(facts: JsonObject, reader: OptionReader, files: Files) -> None:
    """The chips of the engine, by the command that starts it."""
    command = command_of(files, r"vllm-serve") or []
    words = {name.replace("-", "_"): value_of(values[0]) for name, values in split_options(command) if values}
    tp, dp = words.get("tensor_parallel_size", 1), words.get("data_parallel_size", 1)
    tp, dp = (size if isinstance(size, int) and size > 0 else 1 for size in (tp, dp))
    if not command:
        reader.assumptions.append("1 chip generates: the command that starts the server is not in the files")
    facts |= {"plan.rl.rollout.tp": tp, "plan.rl.rollout.replicas": dp, "rollout.chips": tp * dp}
    share = words.get("gpu_memory_utilization")
    if isinstance(share, float):
        facts["knob.memory"] = share


@false_where_unreadable
def recognises(files: Files) -> bool:
    """A script or a table of GRPO's arguments."""
    for name, text in files.items():
        if name.endswith(".py") and CONFIG.search(text):
            return True
    signs = [set(SIGNS) & set(table.data) for table in tables(files, ".yaml", ".yml")]
    if any(len(named) >= 2 or "num_generations" in named for named in signs):
        return True
    command = command_of(files, r"grpo|.*grpo\w*\.py|trl\.scripts\.grpo")
    return command is not None and any(f"--{sign}" in word for sign in SIGNS for word in command)
