"""Turn files of `accelerate launch`, arguments of transformers' Trainer (YAML, or words of a script) into settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.targets.accelerate.names import ID, WORDS
from ridgeline.targets.command_line import value_of
from ridgeline.targets.hf_reader import Task, beside, gathered, read_run, zero_file
from ridgeline.targets.megatron.collect import world_of
from ridgeline.targets.option_reader import OptionReader, model_in, tables
from ridgeline.targets.run_files import RunFiles, around
from ridgeline.targets.shell_eval import read_script
from ridgeline.targets.target import Files, Imported, Unread

ARGUMENTS = ("per_device_train_batch_size", "num_train_epochs", "model_name_or_path")
# of a file that names a model, what shows that it trains
TRAINS = ("learning_rate", "gradient_accumulation_steps", "gradient_checkpointing", "max_steps", "output_dir", "lora_r")
SCRIPTS = (".sh", ".sbatch", ".slurm")
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
# part of a program's name -> what it does instead of training a decoder
OTHER_WORK = {
    r"\blm[_-]eval\b|evaluat|\beval\w*\.py": "an evaluation",
    r"run_(glue|squad|ner|swag|mlm|xnli|qa)\w*\.py|text_classification": "training of an encoder for a task",
    r"diffusion|text_to_image|dreambooth|image_classification|speech|wav2vec": "a model of images or sound",
    r"generat\w*\.py|inference\w*\.py": "generation of text",
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
    for command in commands(files):
        said, flags = _words(command)
        named = said.get("config_file") or flags.get("config_file")
        launch |= (beside(files, named) or {}) if not launch else {}
        inside = beside(files, said.pop("config", None))
        train |= (inside or {}) | said
        if not launch and "accelerate" in command[0]:
            launch |= {"distributed_type": "MULTI_GPU"} | flags
    return launch, train, zero


def commands(files: Files) -> Iterator[list[str]]:
    """Commands of scripts that start a trainer with arguments of transformers."""
    for name, text in files.items():
        if name.endswith(SCRIPTS):
            for command in read_script(text, around(files)).commands:
                words = " ".join(command[:60])
                if re.search(r"accelerate launch|\btrl (sft|dpo|grpo)\b|--per_device_train_batch_size", words):
                    yield command


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
    started = [" ".join(command[:20]) for command in commands(files)]
    others = [next((why for sign, why in OTHER_WORK.items() if re.search(sign, words)), "") for words in started]
    if others and all(others):
        where = next(iter(files))
        raise InputError(Problem(path="", given=others[0], expected="training of a decoder", where=where))


def _words(command: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options behind the script's name, and those in front of it (of the launcher)."""
    said: dict[str, Any] = {}
    flags: dict[str, Any] = {}
    into, name = flags, ""
    for word in command[1:]:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            if name in ARGUMENTS:
                into = said
            into[name] = value_of(value) if equals else True
            name = "" if equals else name
        elif name:
            into[name] = value_of(word) if into[name] is True else f"{into[name]},{word}"
            if into is flags:
                name = ""
        elif word.endswith(".py") or word in ("sft", "dpo", "grpo") or word.startswith("trl.scripts"):
            into = said
        if into is flags and name in ("m", "module"):
            into, name = said, ""
    return said, flags


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
    lora = train.pop("use_peft", False) is True or bool(train.pop("use_lora", False)) or _adapters(train)
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
    return found if found.chips else replace(found, chips=world_of(files))


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


def _on_tpu(files: Files) -> bool:
    """Whether scripts start PyTorch/XLA, whose batch of a device is that of all devices: other software."""
    if any(name.endswith(SCRIPTS) and re.search(r"\bXLA_USE_SPMD=1|\bPJRT_DEVICE=TPU", files[name]) for name in files):
        return True
    named = (_words(command)[0].get("fsdp_config") for command in commands(files))
    return any((beside(files, name) or {}).get("xla") is True for name in named)


def recognises(files: Files) -> bool:
    """A configuration of accelerate, arguments of the Trainer, or a script that starts either."""
    try:
        found = any(
            "distributed_type" in table.data or _is_trainer(table.data) for table in tables(files, ".yaml", ".yml")
        )
        return found or (not _on_tpu(files) and any(True for _ in commands(files)))
    except InputError:
        return False
