"""Turn files of `accelerate launch`, arguments of transformers' Trainer (YAML, or words of a script) into settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.targets.accelerate.names import ID, WORDS
from ridgeline.targets.accelerate.read_commands import (
    ARGUMENTS,
    SCRIPTS,
    asked_chips,
    by_accelerate,
    commands,
    launch_table,
    other_software,
    other_work,
    trains,
    words_of,
)
from ridgeline.targets.hf_named import beside, zero_file
from ridgeline.targets.hf_reader import Task, gathered, read_run
from ridgeline.targets.megatron.collect import world_of
from ridgeline.targets.option_reader import OptionReader, model_in, tables
from ridgeline.targets.run_files import RunFiles, around
from ridgeline.targets.shell_eval import read_script
from ridgeline.targets.target import Files, Imported, Unread

# of a file that names a model, what shows that it trains
TRAINS = ("learning_rate", "gradient_accumulation_steps", "gradient_checkpointing", "max_steps", "output_dir", "lora_r")
# switches and ranks of adapters, by TRL and by programs around the Trainer
SWITCHES = ("use_peft", "use_lora", "use_peft_lora", "lora_enable", "low_rank_training")
KINDS = ("use_qlora", "use_dora", "q_lora", "qlora")  # of adapters: where one is asked for, adapters are
RANKS = ("lora_r", "lora_rank")
# accelerate's own words for DeepSpeed -> those of DeepSpeed's file
INLINE = {
    "zero_stage": "stage",
    "offload_optimizer_device": "offload_optimizer.device",
    "offload_param_device": "offload_param.device",
}
# what transformers' own configuration class says where a run changes nothing
GPT2: Mapping[str, Mapping[str, int]] = {
    "gpt2": {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
}
READ_WORDS = {
    **WORDS,
    "tp": "accelerate.parallelism_config.parallelism_config_tp_size",
    "seq_also": "train.max_seq_length train.model_max_length train.block_size train.max_seq_len",
    "seq_default": "1024",
    "reshard_also": "accelerate.fsdp_config.fsdp_sharding_strategy",
    "recompute_default": "false",
}


def parts_of(files: Files) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The tables of `accelerate launch`, of the Trainer and of DeepSpeed, whichever there are."""
    launch: dict[str, Any] = {}
    train: dict[str, Any] = {}
    zero: dict[str, Any] = {}
    for table in tables(files, ".yaml", ".yml", ".json"):
        if "distributed_type" in table.data:
            launch |= table.data
        elif "zero_optimization" in table.data or "train_micro_batch_size_per_gpu" in table.data:
            zero |= table.data
        elif _is_trainer(table.data):
            train |= table.data
    for command in trains(files)[:1]:
        said, flags = words_of(command)
        named = said.get("config_file") or flags.get("config_file")
        launch |= (beside(files, named) or {}) if not launch else {}
        inside = beside(files, said.pop("config", None))
        train |= (inside or {}) | said
        if by_accelerate(command):
            launch |= ({} if launch else {"distributed_type": "MULTI_GPU"}) | launch_table(flags)
    return launch, train, zero


def written(files: Files) -> Files:
    """The files, with those that scripts among them write on the way, by their last name."""
    texts = {
        PurePosixPath(path).name: text
        for name, script in files.items()
        if name.endswith(SCRIPTS)
        for path, text in read_script(script, around(files)).texts.items()
    }
    return RunFiles({**texts, **files}, around(files))


def _refuse_other_work(files: Files) -> None:
    """An `InputError` for scripts all of whose programs do something else than training a decoder."""
    other = other_work(files)
    if other:
        raise InputError(Problem(path="", given=other, expected="training of a decoder", where=next(iter(files))))


def read(files: Files) -> Imported:
    """What the launch configuration and the Trainer's arguments say together."""
    _refuse_other_work(files)
    launch, train, zero = parts_of(files)
    files = written(files)
    if not launch and not train:
        expected = "a YAML file of accelerate (distributed_type) or of the Trainer (per_device_train_batch_size)"
        raise InputError(Problem(path="", given=", ".join(files)[:200] or "no file", expected=expected))
    notes: list[Unread] = []
    zero = zero or _by_words(train)
    named = train.pop("deepspeed", None) or _inner(launch, "deepspeed_config").get("deepspeed_config_file")
    zero = zero or zero_file(files, named, notes) or _inline(launch)
    if str(launch.get("distributed_type", "")).upper() == "DEEPSPEED" and not zero:
        zero = {"zero_optimization": {"stage": 2}}
    lora = _asked_for(train) or _adapters(train)
    whole = train.pop("completion_only_loss", None) is False
    train |= {"max_length": around(files).seq} if around(files).seq else {}
    parts = {"train": train, "accelerate": fsdp_parts(launch)} | ({"deepspeed": zero} if zero else {})
    reader = gathered(parts, "the Trainer's arguments")
    reader.notes += notes
    task = Task(name="lora" if lora else "pretrain" if whole else "finetune")
    spelled = _spelled(reader, files) if around(files).model is None else None
    found = read_run(reader, READ_WORDS, around(files).model or model_in(files), ID, task)
    if spelled is not None and "model" not in found.settings:
        found = replace(found, settings={"model": spelled, **found.settings})
    found = with_chips(found, launch)
    if not launch and not zero and "train.fsdp" not in reader:
        note = "every rank holds all weights: a launch configuration that shards them is not among the files"
        found = replace(found, assumptions=(note, *found.assumptions))
    several = len(trains(files))
    if several > 1:
        note = f"the first of {several} commands that train; the others are not read"
        found = replace(found, assumptions=(note, *found.assumptions))
    asked = asked_chips(files)
    return replace(found, chips=asked or found.chips or world_of(files))


def _spelled(reader: OptionReader, files: Files) -> Mapping[str, Any] | str | None:
    """The model of a run from nothing: a config.json of the checkout, or a kind of model and what is changed in it."""
    if "train.model_name_or_path" in reader:
        return None
    config = beside(files, reader.options.get("train.config_name"))
    if config is not None and "model_type" in config:
        reader.take("train.config_name")
        return config
    kind = str(reader.options.get("train.model_type"))
    if kind not in GPT2:
        return None
    reader.take("train.model_type")
    changes = str(reader.take("train.config_overrides", default=""))
    said = {name: int(value) for name, value in re.findall(r"(n_\w+|vocab_size)=(\d{1,7})", changes)}
    said |= {name: reader.size(f"train.{name}") or 0 for name in (*GPT2[kind], "n_inner") if f"train.{name}" in reader}
    return {"model_type": kind, **GPT2[kind], **said}


def _by_words(train: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed as scripts of DeepSpeed-Chat say it: a stage, a switch for offloading, a format (fp16 unless told)."""
    if train.get("deepspeed") is not True or "zero_stage" not in train:
        return {}
    del train["deepspeed"]
    place = "cpu" if train.pop("offload", False) is True else "none"
    stored = {"bf16": "bf16", "fp16": "fp16"}.get(str(train.pop("dtype", "fp16")), "fp16")
    zero = {
        "stage": train.pop("zero_stage"),
        "offload_optimizer": {"device": place},
        "offload_param": {"device": place},
    }
    return {"zero_optimization": zero, stored: {"enabled": True}}


def _asked_for(train: dict[str, Any]) -> bool:
    """Whether adapters are trained: by a switch, or by a rank where the program has none; the rank in TRL's words."""
    off = (None, False, 0, "False", "false")
    switches = [train.pop(name, None) for name in SWITCHES]
    kinds = [train.pop(name, None) for name in KINDS]
    rank = next((train.pop(name) for name in RANKS if name in train), None)
    if rank is not None:
        train["lora_r"] = rank
    if "trainable" in train and rank is not None:
        train["lora_target_modules"] = train.pop("trainable")
    stated = [value for value in switches if value is not None]
    whole = train.pop("full_finetuning", None)
    if any(value not in off for value in kinds):
        return True
    if stated or whole is True:
        return any(value not in off for value in stated) and whole is not True
    return rank is not None and type(rank) is int and rank > 0


def _adapters(train: dict[str, Any]) -> bool:
    """Whether scripts of DeepSpeed-Chat ask for adapters; their rank in the words of others."""
    rank = train.pop("lora_dim", 0)
    if type(rank) is not int or rank <= 0:
        return False
    train.pop("only_optimize_lora", None), train.pop("lora_module_name", None)
    train |= {"lora_r": rank, "lora_target_modules": "all-linear"}
    return True


def with_chips(found: Imported, launch: Mapping[str, Any]) -> Imported:
    """What was read, with the number of processes that the launcher starts."""
    chips = launch.get("num_processes")
    return replace(found, chips=chips) if type(chips) is int and chips > 0 else found


def _inner(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = table.get(key)
    return found if isinstance(found, Mapping) else {}


def _inline(launch: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed as accelerate's own file says it."""
    said = _inner(launch, "deepspeed_config")
    if "zero_stage" not in said:
        return {}
    zero: dict[str, Any] = {}
    for word, name in INLINE.items():
        if word in said:
            at, _, last = name.rpartition(".")
            (zero.setdefault(at, {}) if at else zero)[last] = said[word]
    steps = said.get("gradient_accumulation_steps")
    return {"zero_optimization": zero} | ({"gradient_accumulation_steps": steps} if type(steps) is int else {})


def fsdp_parts(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of tables inside with the prefix that accelerate gives those without."""
    found = dict(launch)
    for key, prefix in (("fsdp_config", "fsdp_"), ("parallelism_config", "parallelism_config_")):
        inner = {str(name): value for name, value in _inner(launch, key).items()}
        if inner:
            found[key] = {
                name if name.startswith(prefix) else f"{prefix}{name}": value for name, value in inner.items()
            }
    return found


def _is_trainer(data: Mapping[str, Any]) -> bool:
    plain = any(key in data for key in ARGUMENTS[:2])
    return (plain or (ARGUMENTS[2] in data and any(key in data for key in TRAINS))) and "micro_batch_size" not in data


def recognises(files: Files) -> bool:
    """A configuration of accelerate, arguments of the Trainer, or a script that starts either."""
    try:
        found = any(
            "distributed_type" in table.data or _is_trainer(table.data) for table in tables(files, ".yaml", ".yml")
        )
        return found or (not other_software(files) and any(True for _ in commands(files)))
    except InputError:
        return False
