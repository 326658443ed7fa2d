"""Axolotl: a YAML of its trainer, with DeepSpeed's file beside it, and such files read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.plan.scenario import Scenario, training
from ridgeline.targets.imports.option_reader import holds, model_in, only
from ridgeline.targets.imports.run_files import checkout_of
from ridgeline.targets.ledger import Piece, Say
from ridgeline.targets.tables import words
from ridgeline.targets.target import Export, Files, Imported, Unread
from ridgeline.targets.trainers.read import TrainedTask, read_run, reader_of_files, zero_file
from ridgeline.targets.trainers.write import ZERO, TrainerRun, by_torchrun, common, constants, run_of, trainer_export

ID = "axolotl"

WORDS = words("axolotl", "words")
CAN = frozenset({("fsdp2", "cp"), ("fsdp2", "tp")})
NOTE = "# datasets in train.yaml are yours to choose."
READ_WORDS = {**WORDS, **words("axolotl", "read_words")}
OWN = ("micro_batch_size", "sequence_len", "sample_packing", "gradient_accumulation_steps", "datasets", "adapter")


def write(scenario: Scenario) -> Export:
    """train.yaml, deepspeed.json where DeepSpeed shards, and the launch scripts."""
    pieces = _pieces(scenario, run_of(scenario, CAN))
    return trainer_export(ID, scenario, pieces, by_torchrun(scenario, ("axolotl.cli.train", "train.yaml"), NOTE))


def _pieces(scenario: Scenario, run: TrainerRun) -> Iterator[Piece]:
    work = training(scenario).workload
    yield from common(scenario, run, WORDS)
    if run.backend == "fsdp2":
        yield from constants("trainers", "wrapped", "train.fsdp_config.")
    if run.backend == "deepspeed":
        yield Say("train.deepspeed", ZERO, "plan.shard")
    if work.lora is not None:
        yield Say("train.adapter", "lora", "workload.task")
        yield Say("train.lora_alpha", 2 * work.lora.rank)
    else:
        yield Say("train.train_on_inputs", work.task == "pretrain", "workload.task")
    yield from constants(ID, "run")


def read(files: Files) -> Imported:
    """What the trainer's YAML says."""
    config_table = only(files, _is_ours, "one YAML file with base_model and micro_batch_size", ".yaml", ".yml")
    train: JsonObject = {str(key): value for key, value in config_table.data.items()}
    notes: list[Unread] = []
    zero = zero_file(files, train.pop("deepspeed", None), notes)
    adapter = str(train.pop("adapter", None) or "")
    if adapter == "qlora" or train.get("load_in_4bit") is True:
        why = "frozen weights in 4 bits are not priced: read as bf16"
        notes.append(Unread(option="train.adapter", value=adapter or "load_in_4bit", why=why, matters=True))
    if train.pop("rl", None):
        why = "a step of preference training runs more than one pass; read as one of the model that is trained"
        notes.append(Unread(option="train.rl", value="set", why=why, matters=True))
    trains_all_weights = train.pop("train_on_inputs", False) is True or "pretraining_dataset" in train
    everywhere = train.pop("lora_target_linear", False) is True
    task = TrainedTask(
        name="lora" if adapter else "pretrain" if trains_all_weights else "finetune", everywhere=everywhere
    )
    inner = train.get("fsdp_config")
    if isinstance(inner, Mapping):  # whose keys began with fsdp_
        names = {key: key if key == "fsdp_version" else str(key).removeprefix("fsdp_") for key in inner}
        train["fsdp_config"] = {names[key]: value for key, value in inner.items()}
    train |= {"sequence_len": checkout_of(files).seq} if checkout_of(files).seq else {}
    reader = reader_of_files({"train": train} | ({"deepspeed": zero} if zero else {}), config_table.source)
    reader.notes += notes
    return read_run(reader, READ_WORDS, checkout_of(files).model or model_in(files), ID, task)


def _is_ours(data: JsonMapping) -> bool:
    return "base_model" in data and any(key in data for key in OWN)


def recognises(files: Files) -> bool:
    """A YAML file with a base model and Axolotl's batch or data."""
    return holds(files, _is_ours, ".yaml", ".yml")
