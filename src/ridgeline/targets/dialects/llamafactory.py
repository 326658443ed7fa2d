"""LLaMA-Factory: a YAML of its trainer, with Accelerate's or DeepSpeed's file beside it, and such files read back."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.files import Table
from ridgeline.plan.scenario import Scenario, training
from ridgeline.targets.dialects.accelerate import commands, fsdp_parts, with_chips, words_of
from ridgeline.targets.imports.option_reader import holds, model_in, only, tables
from ridgeline.targets.imports.run_files import checkout_of
from ridgeline.targets.ledger import Lose, Piece, Say
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Export, Files, Imported, Unread, other_work, refusal
from ridgeline.targets.trainers import write as trainers
from ridgeline.targets.trainers.read import TrainedTask, named_table, read_run, reader_of_files, zero_file

ID = "llamafactory"

WORDS = table_words("llamafactory", "words")
STAGES = {"pretrain": "pt", "finetune": "sft", "lora": "sft"}
CAN = frozenset({("deepspeed", "tp")})
NOTE = "# dataset, dataset_dir and template in train.yaml are yours to choose."
PROGRAM = ("llamafactory.launcher", "train.yaml")
READ_WORDS = {
    **WORDS,
    "seq_default": "2048",
    "rank_default": "8",
    "reshard_also": "accelerate.fsdp_config.fsdp_sharding_strategy",
}
MEGATRON = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size", "use_mca")
ELSEWHERE = {"export_dir": "merges weights", "infer_backend": "generates text"}
OTHERS = ("rm", "ppo", "dpo", "kto")  # stages whose step is more than one pass of one model


def write(scenario: Scenario) -> Export:
    """train.yaml, accelerate.yaml or deepspeed.json where one of them shards, and the launch scripts."""
    run = trainers.run_of(scenario, CAN)
    if run.backend == "fsdp2":
        command = trainers.by_accelerate(scenario, " ".join(PROGRAM), NOTE)
    else:
        command = trainers.by_torchrun(scenario, PROGRAM, NOTE)
    return trainers.trainer_export(ID, scenario, _pieces(scenario, run), command)


def _pieces(scenario: Scenario, run: trainers.TrainerRun) -> Iterator[Piece]:
    work = training(scenario).workload
    words = dict(WORDS)
    if run.backend != "fsdp2":
        del words["mixed"]
    yield from trainers.common(scenario, run, words)
    if run.backend == "fsdp2":
        yield from trainers.launch_pieces(scenario, run)
    if run.backend == "deepspeed":
        yield Say("train.deepspeed", trainers.ZERO, "plan.shard")
    sees_images = trainers.sees(scenario, words)
    yield Say("train.stage", "sft" if sees_images else STAGES[work.task], "workload.task")
    if sees_images:  # encoders are frozen unless told otherwise
        yield Say("train.freeze_vision_tower", work.towers == "frozen", "workload.towers")
        yield Say("train.freeze_multi_modal_projector", False)
        if work.task == "pretrain":
            yield Lose("workload.task", "its stage pt reads text alone: written as sft")
    yield Say("train.finetuning_type", "lora" if work.lora is not None else "full", "workload.task")
    yield from trainers.constants(ID, "run")


def read(files: Files) -> Imported:
    """What the trainer's YAML says, with the files beside it."""
    expected_text = "one YAML file with stage and finetuning_type"
    config_table = next(iter(_of_scripts(files)), None) or only(files, _is_ours, expected_text, ".yaml", ".yml")
    train: JsonObject = {str(key): value for key, value in config_table.data.items()}
    megatron = [key for key in MEGATRON if train.get(key) not in (None, False)]
    if megatron:
        given_text, todo = f"{megatron[0]}, of its Megatron backend", "name a file that trains with transformers"
        raise refusal(given_text, "FSDP or DeepSpeed", path=megatron[0], todo=todo, where=config_table.source)
    other_keys = [key for key in ELSEWHERE if key in train and not train.get("do_train")]
    if other_keys:
        given_text = f"a file that {ELSEWHERE[other_keys[0]]}"
        raise other_work(given_text, path=other_keys[0], where=config_table.source)
    notes: list[Unread] = []
    stage = str(train.pop("stage", "sft"))[:40]
    if stage in OTHERS:
        why = "a step of this stage runs more than one model; read as one pass of the model that is trained"
        notes.append(Unread(option="train.stage", value=stage, why=why, matters=True))
    launch = next((table.data for table in tables(files, ".yaml", ".yml") if "distributed_type" in table.data), {})
    zero = zero_file(files, train.pop("deepspeed", None), notes)
    kind = str(train.pop("finetuning_type", "lora"))[:40]
    lora = kind == "lora"
    if kind not in ("lora", "full"):
        notes.append(Unread(option="train.finetuning_type", value=kind, why="read as all weights", matters=True))
    task = TrainedTask(name="lora" if lora else "pretrain" if stage == "pt" else "finetune")
    is_packed = train.get("packing")
    train["packing"] = stage == "pt" if is_packed is None else is_packed  # pretraining packs unless told otherwise
    train |= {"cutoff_len": checkout_of(files).seq} if checkout_of(files).seq else {}
    frozen = train.pop("freeze_vision_tower", None) is True
    parts = {"train": train, "accelerate": fsdp_parts(launch)} | ({"deepspeed": zero} if zero else {})
    reader = reader_of_files(parts, config_table.source)
    reader.notes += notes
    imported_run = read_run(reader, READ_WORDS, checkout_of(files).model or model_in(files), ID, task)
    imported_run = imported_run.with_settings(workload={"towers": "frozen"} if frozen else {})
    return with_chips(imported_run, launch)


def _of_scripts(files: Files) -> Iterator[Table]:
    """The arguments of each command of a script that starts LLaMA-Factory, with the file that it names."""
    for command in commands(files):
        stated_options, _ = words_of(command)
        table = (named_table(files, stated_options.pop("config", None)) or {}) | stated_options
        if _is_ours(table):
            yield Table(data=table, source=next(iter(files)))


def _is_ours(data: JsonMapping) -> bool:
    is_own = "finetuning_type" in data or ("stage" in data and "cutoff_len" in data)
    return is_own or ("template" in data and any(key in data for key in ELSEWHERE))


def recognises(files: Files) -> bool:
    """A YAML file with LLaMA-Factory's stage and kind of fine-tuning, or a script with them as arguments."""
    return holds(files, _is_ours, ".yaml", ".yml") or any(True for _ in _of_scripts(files))
