"""Hugging Face Accelerate and TRL: a launch configuration and training arguments, and such files read back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.plan.scenario import Scenario, training
from ridgeline.targets import target
from ridgeline.targets.dialects.megatron.collect import world_of
from ridgeline.targets.imports.option_reader import (
    OptionReader,
    false_where_unreadable,
    model_in,
    tables,
    value_of,
)
from ridgeline.targets.imports.run_files import SCRIPTS, RunFiles, checkout_of
from ridgeline.targets.imports.shell_eval import scripts_among
from ridgeline.targets.ledger import Piece, Say
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Export, Files, Imported, Unread, refusal
from ridgeline.targets.trainers import write as trainers
from ridgeline.targets.trainers.read import TrainedTask, named_table, read_run, reader_of_files, zero_file

ID = "accelerate"

WORDS = table_words("accelerate", "words")
CAN = frozenset({("fsdp2", "cp"), ("deepspeed", "cp"), ("deepspeed", "tp")})
NOTE = "# dataset_name in train.yaml is yours to choose. Words after the script's name are passed on to the trainer."
ARGUMENTS = ("per_device_train_batch_size", "num_train_epochs", "model_name_or_path")
STARTS = re.compile(r"accelerate launch|\btrl (sft|dpo|grpo)\b|--per_device_train_batch_size")
LAUNCHERS = ("accelerate", "torchrun", "deepspeed", "python", "python3", "trl", "llamafactory-cli")
STARTERS = ("torch.distributed.", "accelerate.")  # modules that start a program
# part of a program's name -> what it does instead of training a decoder
OTHER_WORK = table_words("accelerate", "other_work")
# programs and machines whose words look like the Trainer's and mean other things
OTHER_SOFTWARE = re.compile(
    r"\bXLA_USE_SPMD=1|\bPJRT_DEVICE=TPU|\bNEURON_(CC|RT|FUSE|EXTRACT)_\w+|open_instruct/(olmo_core_\w+|dpo)\.py"
)
# of a file that names a model, what shows that it trains
TRAINS = ("learning_rate", "gradient_accumulation_steps", "gradient_checkpointing", "max_steps", "output_dir", "lora_r")
# switches and ranks of adapters, by TRL and by programs around the Trainer
SWITCHES = ("use_peft", "use_lora", "use_peft_lora", "lora_enable", "low_rank_training")
KINDS = ("use_qlora", "use_dora", "q_lora", "qlora")  # of adapters: where one is asked for, adapters are
RANKS = ("lora_r", "lora_rank")
# accelerate's own words for DeepSpeed -> those of DeepSpeed's file
INLINE = table_words(ID, "inline")
# what transformers' own configuration class says where a run changes nothing
GPT2: JsonMapping = {"gpt2": {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}}
READ_WORDS = {**WORDS, **table_words("accelerate", "read_words")}


def write(scenario: Scenario) -> Export:
    """accelerate.yaml, train.yaml, deepspeed.json where DeepSpeed shards, and the launch scripts."""
    said = pieces(scenario, trainers.run_of(scenario, CAN))
    command = trainers.by_accelerate(scenario, "trl.scripts.sft --config train.yaml", NOTE)
    return trainers.trainer_export(ID, scenario, said, command)


def pieces(scenario: Scenario, run: trainers.TrainerRun) -> Iterator[Piece]:
    """What Accelerate, the Trainer and DeepSpeed are told."""
    work = training(scenario).workload
    words = dict(WORDS, flash="sdpa") if run.cp > 1 else dict(WORDS)
    if run.backend == "deepspeed":
        del words["mixed"]  # DeepSpeed's own file says it, and Accelerate refuses it twice
    yield from trainers.common(scenario, run, words)
    yield from trainers.launch_pieces(scenario, run)
    yield Say("train.completion_only_loss", work.task == "finetune", "workload.task")
    yield Say("train.use_peft", work.lora is not None, "workload.task")
    yield from trainers.constants(ID, "run")


def _wrapped_commands(files: Files) -> Iterator[list[str]]:
    """Commands of scripts that start a trainer with arguments of transformers, with what wraps them."""
    for _, script in scripts_among(files):
        yield from (command for command in script.commands if STARTS.search(" ".join(command)[:4000]))


def commands(files: Files) -> Iterator[list[str]]:
    """The same commands without what wraps them."""
    return (launcher_command(command) for command in _wrapped_commands(files))


def launcher_command(command: list[str]) -> list[str]:
    """The launcher's own command: behind `--` of a scheduler, and behind `uv run` and its like.

    >>> launcher_command(["uv", "run", "mason.py", "--gpus", "8", "--", "accelerate", "launch", "a.py"])
    ['accelerate', 'launch', 'a.py']
    """
    if "--" in command and any(name in command[command.index("--") :] for name in LAUNCHERS):
        command = command[command.index("--") + 1 :]
    for at, word in enumerate(command[:40]):
        if word.rpartition("/")[2] in LAUNCHERS:
            return command[at:]
    return command


def program(command: list[str]) -> str:
    """A command up to the program it starts, without its options."""
    for at, word in enumerate(command):
        module = at > 0 and command[at - 1] in ("-m", "--module") and not word.startswith(STARTERS)
        if word.endswith(".py") or module:
            return " ".join(part for part in command[: at + 1] if not part.startswith("--"))
    return " ".join(command[:3])


def other_work(files: Files) -> str:
    """What scripts do all of whose programs do something else than training a decoder; empty where one trains."""
    other_items = [_other_work_of(command) for command in commands(files)]
    return other_items[0] if other_items and all(other_items) else ""


def trains(files: Files) -> list[list[str]]:
    """Commands that train a decoder."""
    return [command for command in commands(files) if not _other_work_of(command)]


def _other_work_of(command: list[str]) -> str:
    words = " ".join([program(command), *(word for word in command[:60] if word.endswith(".py"))])
    return next((why for sign, why in OTHER_WORK.items() if re.search(sign, words)), "")


def asked_chips(files: Files) -> int | None:
    """Chips that a scheduler is asked for in front of the launcher's command: `--num_nodes 4 --gpus 8 -- ...`."""
    for command in _wrapped_commands(files):
        behind, front = words_of(["", *(command[: command.index("--")] if "--" in command else [])])
        stated_options = front | behind
        chips_per_node, nodes = stated_options.get("gpus"), stated_options.get("num_nodes", 1)
        if type(chips_per_node) is int and type(nodes) is int and chips_per_node * nodes > 0:
            return chips_per_node * nodes
    return None


def other_software(files: Files) -> bool:
    """Whether scripts start PyTorch/XLA, Neuron or a trainer of its own, whose batch of a rank means other things."""
    if any(name.endswith(SCRIPTS) and OTHER_SOFTWARE.search(text) for name, text in files.items()):
        return True
    config_name = (words_of(command)[0].get("fsdp_config") for command in commands(files))
    return any((named_table(files, name) or {}).get("xla") is True for name in config_name)


def words_of(command: list[str]) -> tuple[JsonObject, JsonObject]:
    """Options behind the script's name, and those in front of it (of the launcher)."""
    stated_options: JsonObject = {}
    flags: JsonObject = {}
    into, name = flags, ""
    for word in command[1:]:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            if name in ARGUMENTS:
                into = stated_options
            into[name] = value_of(value) if equals else True
            name = "" if equals else name
        elif name:
            into[name] = value_of(word) if into[name] is True else f"{into[name]},{word}"
            if into is flags:
                name = ""
        elif word.endswith(".py") or word in ("sft", "dpo", "grpo", "train") or word.startswith("trl.scripts"):
            into = stated_options
        elif into is stated_options and word.endswith((".yaml", ".yml")) and "config" not in stated_options:
            stated_options["config"] = word  # a recipe, in front of what changes it
        if into is flags and name in ("m", "module"):
            into, name = stated_options, ""
    return stated_options, flags


def launch_table(flags: JsonMapping) -> JsonObject:
    """What options of `accelerate launch` say, as its file says it.

    >>> launch_table({"use_deepspeed": True, "zero_stage": 3, "num_processes": 8})
    {'num_processes': 8, 'distributed_type': 'DEEPSPEED', 'deepspeed_config': {'zero_stage': 3}}
    """
    plain = ("num_processes", "num_machines", "mixed_precision")
    launch: JsonObject = {key: flags[key] for key in plain if key in flags}
    names = ("zero_stage", "deepspeed_config_file", "offload_optimizer_device", "offload_param_device")
    zero = {key: flags[key] for key in names if key in flags}
    fsdp = {key: value for key, value in flags.items() if key.startswith("fsdp_")}
    if flags.get("use_deepspeed") or zero:
        launch |= {"distributed_type": "DEEPSPEED", "deepspeed_config": zero}
    elif flags.get("use_fsdp") or fsdp:
        launch |= {"distributed_type": "FSDP", "fsdp_config": fsdp}
    elif flags.get("multi_gpu"):
        launch["distributed_type"] = "MULTI_GPU"
    return launch


def parts_of(files: Files) -> tuple[JsonObject, JsonObject, JsonObject]:
    """The tables of `accelerate launch`, of the Trainer and of DeepSpeed, whichever there are."""
    launch: JsonObject = {}
    train: JsonObject = {}
    zero: JsonObject = {}
    for table in tables(files, ".yaml", ".yml", ".json"):
        if "distributed_type" in table.data:
            launch |= table.data
        elif "zero_optimization" in table.data or "train_micro_batch_size_per_gpu" in table.data:
            zero |= table.data
        elif _is_trainer(table.data):
            train |= table.data
    for command in trains(files)[:1]:
        stated_options, flags = words_of(command)
        config_name = stated_options.get("config_file") or flags.get("config_file")
        launch |= (named_table(files, config_name) or {}) if not launch else {}
        train |= (named_table(files, stated_options.pop("config", None)) or {}) | stated_options
        if command[0].endswith("accelerate") or "accelerate.commands.launch" in command[:8]:
            launch |= ({} if launch else {"distributed_type": "MULTI_GPU"}) | launch_table(flags)
    return launch, train, zero


def written(files: Files) -> Files:
    """The files, with those that scripts among them write on the way, by their last name."""
    scripts = scripts_among(files)
    texts = {PurePosixPath(path).name: text for _, script in scripts for path, text in script.texts.items()}
    return RunFiles({**texts, **files}, checkout_of(files))


def read(files: Files) -> Imported:
    """What the launch configuration and the Trainer's arguments say together."""
    if work := other_work(files):
        raise target.other_work(work, where=next(iter(files)))
    launch, train, zero = parts_of(files)
    files = written(files)
    if not launch and not train:
        expected_text = "a YAML file of accelerate (distributed_type) or of the Trainer (per_device_train_batch_size)"
        raise refusal(", ".join(files)[:200] or "no file", expected_text)
    notes: list[Unread] = []
    zero = zero or _by_words(train)
    config_name = train.pop("deepspeed", None) or _inner(launch, "deepspeed_config").get("deepspeed_config_file")
    zero = zero or zero_file(files, config_name, notes) or _inline(launch)
    if str(launch.get("distributed_type", "")).upper() == "DEEPSPEED" and not zero:
        zero = {"zero_optimization": {"stage": 2}}
    lora = _asked_for(train) or _adapters(train)
    trains_all_weights = train.pop("completion_only_loss", None) is False
    train |= {"max_length": checkout_of(files).seq} if checkout_of(files).seq else {}
    parts = {"train": train, "accelerate": fsdp_parts(launch)} | ({"deepspeed": zero} if zero else {})
    reader = reader_of_files(parts, "the Trainer's arguments")
    reader.notes += notes
    task = TrainedTask(name="lora" if lora else "pretrain" if trains_all_weights else "finetune")
    spelled_model = _model_from_scratch(reader, files) if checkout_of(files).model is None else None
    imported_run = read_run(reader, READ_WORDS, checkout_of(files).model or model_in(files), ID, task)
    if spelled_model is not None and "model" not in imported_run.settings:
        imported_run = replace(imported_run, settings={"model": spelled_model, **imported_run.settings})
    imported_run = with_chips(imported_run, launch)
    if not launch and not zero and "train.fsdp" not in reader:
        note = "every rank holds all weights: a launch configuration that shards them is not among the files"
        imported_run = imported_run.with_notes(note)
    several = len(trains(files))
    if several > 1:
        imported_run = imported_run.with_notes(f"the first of {several} commands that train; the others are not read")
    return replace(imported_run, chips=asked_chips(files) or imported_run.chips or world_of(files))


def _model_from_scratch(reader: OptionReader, files: Files) -> JsonMapping | str | None:
    """The model of a run from nothing: a config.json of the checkout, or a kind of model and what is changed in it."""
    if "train.model_name_or_path" in reader:
        return None
    config = named_table(files, reader.options.get("train.config_name"))
    if config is not None and "model_type" in config:
        reader.skip("train.config_name")
        return config
    kind = str(reader.options.get("train.model_type"))
    if kind not in GPT2:
        return None
    reader.skip("train.model_type")
    changes = str(reader.take("train.config_overrides", default=""))
    stated_options = {name: int(value) for name, value in re.findall(r"(n_\w+|vocab_size)=(\d{1,7})", changes)}
    sizes = [name for name in (*GPT2[kind], "n_inner") if f"train.{name}" in reader]
    stated_options |= {name: reader.size(f"train.{name}") or 0 for name in sizes}
    return {"model_type": kind, **GPT2[kind], **stated_options}


def _by_words(train: JsonObject) -> JsonObject:
    """DeepSpeed as scripts of DeepSpeed-Chat say it: a stage, a switch for offloading, a format (fp16 unless told)."""
    if train.get("deepspeed") is not True or "zero_stage" not in train:
        return {}
    del train["deepspeed"]
    place = "cpu" if train.pop("offload", False) is True else "none"
    stored_format = {"bf16": "bf16", "fp16": "fp16"}.get(str(train.pop("dtype", "fp16")), "fp16")
    device = {"device": place}
    zero = {"stage": train.pop("zero_stage"), "offload_optimizer": device, "offload_param": device}
    return {"zero_optimization": zero, stored_format: {"enabled": True}}


def _asked_for(train: JsonObject) -> bool:
    """Whether adapters are trained: by a switch, or by a rank where the program has none; the rank in TRL's words."""
    off = (None, False, 0, "False", "false")
    switches = [train.pop(name, None) for name in SWITCHES]
    kinds = [train.pop(name, None) for name in KINDS]
    rank = next((train.pop(name) for name in RANKS if name in train), None)
    if rank is not None:
        train["lora_r"] = rank
    if "trainable" in train and rank is not None:
        train["lora_target_modules"] = train.pop("trainable")
    stated_values = [value for value in switches if value is not None]
    trains_all_weights = train.pop("full_finetuning", None)
    if any(value not in off for value in kinds):
        return True
    if stated_values or trains_all_weights is True:
        return any(value not in off for value in stated_values) and trains_all_weights is not True
    return rank is not None and type(rank) is int and rank > 0


def _adapters(train: JsonObject) -> bool:
    """Whether scripts of DeepSpeed-Chat ask for adapters; their rank in the words of others."""
    rank = train.pop("lora_dim", 0)
    if type(rank) is not int or rank <= 0:
        return False
    train.pop("only_optimize_lora", None), train.pop("lora_module_name", None)
    train |= {"lora_r": rank, "lora_target_modules": "all-linear"}
    return True


def with_chips(found: Imported, launch: JsonMapping) -> Imported:
    """What was read, with the number of processes that the launcher starts."""
    chips = launch.get("num_processes")
    return replace(found, chips=chips) if type(chips) is int and chips > 0 else found


def _inner(table: JsonMapping, key: str) -> JsonMapping:
    inner_table = table.get(key)
    return inner_table if isinstance(inner_table, Mapping) else {}


def _inline(launch: JsonMapping) -> JsonObject:
    """DeepSpeed as accelerate's own file says it."""
    stated_options = _inner(launch, "deepspeed_config")
    if "zero_stage" not in stated_options:
        return {}
    zero: JsonObject = {}
    for word, name in INLINE.items():
        if word in stated_options:
            at, _, last = name.rpartition(".")
            (zero.setdefault(at, {}) if at else zero)[last] = stated_options[word]
    steps = stated_options.get("gradient_accumulation_steps")
    return {"zero_optimization": zero} | ({"gradient_accumulation_steps": steps} if type(steps) is int else {})


def fsdp_parts(launch: JsonMapping) -> JsonObject:
    """Keys of tables inside with the prefix that accelerate gives those without."""
    found = dict(launch)
    for key, prefix in (("fsdp_config", "fsdp_"), ("parallelism_config", "parallelism_config_")):
        inner = {str(name): value for name, value in _inner(launch, key).items()}
        if inner:
            found[key] = {prefix + name.removeprefix(prefix): value for name, value in inner.items()}
    return found


def _is_trainer(data: JsonMapping) -> bool:
    plain = any(key in data for key in ARGUMENTS[:2])
    return (plain or (ARGUMENTS[2] in data and any(key in data for key in TRAINS))) and "micro_batch_size" not in data


@false_where_unreadable
def recognises(files: Files) -> bool:
    """A configuration of accelerate, arguments of the Trainer, or a script that starts either."""
    configs = [table.data for table in tables(files, ".yaml", ".yml")]
    is_trainer = any("distributed_type" in data or _is_trainer(data) for data in configs)
    return is_trainer or (not other_software(files) and any(True for _ in commands(files)))
