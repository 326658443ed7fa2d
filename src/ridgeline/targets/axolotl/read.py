"""Turn Axolotl's YAML, and DeepSpeed's file that it names, into settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline.targets.axolotl.names import ID, WORDS
from ridgeline.targets.hf_named import zero_file
from ridgeline.targets.hf_reader import Task, gathered, read_run
from ridgeline.targets.option_reader import holds, model_in, only
from ridgeline.targets.run_files import around
from ridgeline.targets.target import Files, Imported, Unread

READ_WORDS = {
    **WORDS,
    "seq_default": "512",
    "micro_default": "1",
    "rank_default": "8",
    "half": "train.float16",
    "ep": "train.expert_parallel_size",
    "bf16_default": "its schema says auto",
    "recompute_default": "false",
    "fsdp_also": "train.fsdp_config.fsdp_version",
    "reshard_also": "train.fsdp_config.sharding_strategy train.fsdp_config.fsdp_sharding_strategy",
    "cp_also": "train.sequence_parallel_degree",
}
OWN = ("micro_batch_size", "sequence_len", "sample_packing", "gradient_accumulation_steps", "datasets", "adapter")


def read(files: Files) -> Imported:
    """What the trainer's YAML says."""
    own = only(files, _is_ours, "one YAML file with base_model and micro_batch_size", ".yaml", ".yml")
    train: dict[str, Any] = {str(key): value for key, value in own.data.items()}
    notes: list[Unread] = []
    zero = zero_file(files, train.pop("deepspeed", None), notes)
    adapter = str(train.pop("adapter", None) or "")
    if adapter == "qlora" or train.get("load_in_4bit") is True:
        why = "frozen weights in 4 bits are not priced: read as bf16"
        notes.append(Unread(option="train.adapter", value=adapter or "load_in_4bit", why=why, matters=True))
    if train.pop("rl", None):
        why = "a step of preference training runs more than one pass; read as one of the model that is trained"
        notes.append(Unread(option="train.rl", value="set", why=why, matters=True))
    whole = train.pop("train_on_inputs", False) is True or "pretraining_dataset" in train
    everywhere = train.pop("lora_target_linear", False) is True
    task = Task(name="lora" if adapter else "pretrain" if whole else "finetune", everywhere=everywhere)
    _old_names(train)
    train |= {"sequence_len": around(files).seq} if around(files).seq else {}
    reader = gathered({"train": train} | ({"deepspeed": zero} if zero else {}), own.source)
    reader.notes += notes
    return read_run(reader, READ_WORDS, around(files).model or model_in(files), ID, task)


def _old_names(train: dict[str, Any]) -> None:
    """Keys of fsdp_config that begin with fsdp_, as they did; `bf16: auto` is bf16."""
    inner = train.get("fsdp_config")
    if isinstance(inner, Mapping):
        train["fsdp_config"] = {
            str(key).removeprefix("fsdp_") if str(key) != "fsdp_version" else "fsdp_version": value
            for key, value in inner.items()
        }


def _is_ours(data: Mapping[str, Any]) -> bool:
    return "base_model" in data and any(key in data for key in OWN)


def recognises(files: Files) -> bool:
    """A YAML file with a base model and Axolotl's batch or data."""
    return holds(files, _is_ours, ".yaml", ".yml")
