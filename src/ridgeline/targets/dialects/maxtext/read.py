"""Turn a MaxText configuration (YAML, or `key=value` arguments of a launch script) into settings of a scenario."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import Problem
from ridgeline.core.files import Table
from ridgeline.models.dimensions import MOST_LAYERS
from ridgeline.models.load import model as load_model
from ridgeline.models.spec import ModelSpec
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.dialects.maxtext import read_model as run
from ridgeline.targets.dialects.maxtext import write as maxtext
from ridgeline.targets.imports import option_reader
from ridgeline.targets.imports.run_files import checkout_of
from ridgeline.targets.imports.shell_eval import scripts_among
from ridgeline.targets.option_table import imported_run, read_options
from ridgeline.targets.options import LONG_FORMATS
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Files, Imported, other_work, refusal, written_words

TRAINS = r"pre_train\.train|MaxText[./]train|[./]train\.py|train_sft|sft_train|\$EXECUTABLE"
OTHER_WORK = table_words("maxtext", "other_work")  # part of a program's name -> what it does instead of training
ALTERED = {"grpo": "reinforcement learning", "rl": "reinforcement learning", "distill": "distillation from a teacher"}
LORA_RANK = 16  # where adapters are switched on and nothing says their rank
TUNES = r"train_sft|sft_train"
MANY = frozenset({"per_device_batch_size", "ici_fsdp_parallelism", "max_target_length", "remat_policy", "model_name"})


def read(files: Files) -> Imported:
    """What a configuration says; a launch script's arguments stand above the file."""
    files = run.spelled_out(run.expand_manifests(files))
    run.refuse_strange(files)
    machine = run.machine_of(files)
    table = _merge_arguments(files)
    chips, halves = machine.chips or option_reader.chips_named(table.source), machine.halves
    second = _second(files) or (run.spare_axis(table.data) if halves else "")
    devices = (chips or checkout_of(files).chips or 0) * (2 if halves else 1)
    table = run.filled_axes(run.filled_slices(table, devices, machine.slices), devices)
    imported = read_table(table, checkout_of(files).model or option_reader.model_in(files), second)
    if "base_emb_dim" in table.data and not MANY & set(table.data):
        imported = imported.with_notes("a model file: batch, sequence, mesh and recompute are MaxText's defaults")
    imported = imported.with_notes(*run.benchmark_note(files), *option_reader.left_out(files))
    if "task" not in imported.settings["workload"] and _tunes(files, table):
        imported = imported.with_settings(workload={"task": "finetune"})
    return replace(imported, chips=chips) if chips else imported


def _tunes(files: Files, table: Table) -> bool:
    """Whether the run that is read starts from a trained model: supervised fine-tuning."""
    commands = (" ".join(command[:12]) for _, script in scripts_among(files) for command in script.commands)
    first = next((command for command in commands if re.search(TRAINS, command)), "")
    base = Path(str(table.data.get("base_config"))[:200]).stem
    return bool(re.search(TUNES, first)) or table.data.get("use_sft") is True or base == "sft"


def read_table(table: Table, named: str | None, second: str = "") -> Imported:
    """What the options of a configuration say; `named` stands in for a model that they do not tell."""
    reader = option_reader.OptionReader(table)
    model_read = run.read_model(reader, named)
    model = model_read or named
    if model_read is None and named is not None:
        reader.notes = [note for note in reader.notes if note.option != "model_name"]
    spec = load_model(model) if model is not None else None
    plan = _mesh(reader, second)
    batch, per_rank = _batch(reader, plan, 2 if second else 1)
    if plan["pp"] > 1:
        plan |= _pipeline(reader, plan, spec)
    plan |= _memory(reader, spec is not None and has_experts(spec)) | read_options(maxtext.ID, "attention", reader)
    plan["engine"] = "maxtext"
    precision, optimizer = _formats(reader)
    if plan["tp"] > 1 and spec is not None and has_experts(spec):
        plan["etp"] = plan["tp"]
    workload = {"kind": "train", **read_options(maxtext.ID, "seq", reader), "optimizer": optimizer}
    workload |= read_options(maxtext.ID, "packed", reader) | option_reader.pick({"global_batch": batch}) | _lora(reader)
    settings = {"model": model, "workload": workload, "plan": plan | {"precision": precision}}
    imported = imported_run(maxtext.ID, reader, settings, per_rank=per_rank)
    splits = (part.option.endswith("_parallelism") and part.value not in ("1", "-1", "0") for part in imported.unread)
    weighed = (
        replace(part, matters=part.matters or split) for part, split in zip(imported.unread, splits, strict=True)
    )
    return replace(imported, unread=tuple(weighed))


def _merge_arguments(files: Files) -> Table:
    """The YAML file with the arguments of launch scripts on top."""
    every_table = option_reader.tables(files, ".yml", ".yaml")
    yaml_tables = [table for table in every_table if (MANY | {"base_emb_dim"}) & set(table.data)]
    trains = [one for one in option_reader.assigned_by(files, TRAINS) if MANY & set(one)]
    stated_options = trains[0] if trains else option_reader.assignments(files)
    words = {key: value for key, value in stated_options.items() if "." not in key or key.startswith("lora.")}
    if not yaml_tables:
        _refuse_other_work(files)
    if len(yaml_tables) > 1 or not (yaml_tables or MANY & set(words)):
        expected_text = "one YAML file, or a script whose arguments are MaxText's"
        raise refusal(f"{len(yaml_tables)} such files", expected_text, todo="name one file")
    if not yaml_tables:
        return Table(data=option_reader.nest_options(words), source=next(iter(files)))
    stem = Path(str(yaml_tables[0].data.get("base_config", ""))[:200]).stem
    altered = next((means for sign, means in ALTERED.items() if re.search(rf"(^|_){sign}", stem)), None)
    if altered is not None:  # the file changes one which does not train a decoder alone
        raise other_work(f"{altered} ({stem}.yml)", where=yaml_tables[0].source)
    run_words = {key: value for key, value in words.items() if key in MANY or key.endswith("_parallelism")}
    return Table(data={**yaml_tables[0].data, **run_words}, source=yaml_tables[0].source, lines=yaml_tables[0].lines)


def _refuse_other_work(files: Files) -> None:
    programs = [
        " ".join(word for word in command[:8] if "=" not in word)
        for _, script in scripts_among(files)
        for command in script.commands
        if any(word.split("=")[0] in MANY for word in command)
    ]
    if any(re.search(TRAINS, program) for program in programs):
        return
    for program in programs:
        other_work_found = next((means for sign, means in OTHER_WORK.items() if sign in program), None)
        if other_work_found is not None:
            raise other_work(f"{other_work_found} ({program[:80]})", where=next(iter(files)))


def _lora(reader: option_reader.OptionReader) -> JsonObject:
    rank = reader.size("lora.lora_rank")
    if not reader.switch("lora.enable_lora"):
        return {}
    return {"task": "lora", "lora": {"rank": rank or LORA_RANK, "targets": ["qkv", "out", "up", "gate", "down"]}}


def _second(files: Files) -> str:
    """The axis that Ridgeline gave the second device of a chip, where JAX counts two."""
    return next(written_words(files, r"^# devices: two for each chip, the second on axis (\w{1,20})$"), "")


def _mesh(reader: option_reader.OptionReader, second: str) -> JsonObject:
    """The plan's degrees; -1 on one axis stands for the chips that the others leave."""
    degrees = {axis: _axis(reader, axis) for axis in maxtext.AXES}
    for axis, also in maxtext.ALSO_AXES.items():  # a second dimension of the same split
        first, second_degree = degrees[axis], _axis(reader, also)
        degrees[axis] = first * second_degree if first is not None and second_degree is not None else None
    has_copies = degrees["data"] is not None and degrees["data"] > 1
    for axis in ("tensor", "tensor_sequence", "context", "pipeline", "expert", *(("fsdp",) if has_copies else ())):
        if degrees[axis] is None:
            given_text, todo = "-1, which takes what the others leave", "say the machine with --on"
            path, expected_text = f"ici_{axis}_parallelism", "a degree, or a machine that tells it"
            reader.problems.append(Problem(path=path, given=given_text, expected=expected_text, todo=todo))
    if degrees.get(second):
        degrees[second] = max(1, (degrees[second] or 1) // 2)
    sizes = {axis: degree or 1 for axis, degree in degrees.items()}
    tp, cp, pp, ep = sizes["tensor"] * sizes["tensor_sequence"], sizes["context"], sizes["pipeline"], sizes["expert"]
    plan: JsonObject = {"tp": tp, "cp": cp, "pp": pp, "ep": ep}
    if tp > 1:
        plan["sequence_parallel"] = sizes["tensor_sequence"] > 1
    if cp > 1:
        kinds = {"all_gather": "ring", "ring": "ring", "ulysses": "all-to-all"}
        plan["cp_kind"] = reader.word("context_parallel_strategy", among=kinds, default="ring")
    over_data = reader.switch("shard_optimizer_over_data")
    fsdp, data = degrees["fsdp"], degrees["data"]
    plan["shard"] = "zero1" if over_data and fsdp == 1 else "none" if fsdp == 1 and cp * ep == 1 else "zero3"
    if fsdp is not None and data is not None:
        plan["dp"] = fsdp * data * ep
        if plan["shard"] != "none":
            plan["shard_degree"] = fsdp * cp * ep if plan["shard"] == "zero3" else plan["dp"]
    elif data != 1:
        reader.assumptions.append("one slice: dcn_data_parallelism is left to the number of slices")
    return plan


def _axis(reader: option_reader.OptionReader, axis: str) -> int | None:
    """The degree of an axis; None where it takes what the others leave."""
    degree = 1
    for place in ("dcn", "ici"):
        option = f"{place}_{axis}_parallelism"
        value = reader.take(option)
        if value == -1 or (value is None and option == "ici_fsdp_parallelism"):
            return None
        degree *= reader.count(option, default=1) or 1
    return degree


def _batch(reader: option_reader.OptionReader, plan: JsonObject, devices: int) -> tuple[int | None, int | None]:
    """The global batch, or the sequences of one data-parallel rank; sets the microbatch. `devices` of a chip."""
    value = reader.take("per_device_batch_size", default=12.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
        reader.bad("per_device_batch_size", value, "a positive number", None)
        value = 1.0
    steps = reader.degree("gradient_accumulation_steps")
    in_one_pass = value * devices * plan["tp"] * plan["cp"] * plan["pp"]
    rank_sequences = max(1, round(in_one_pass))
    if abs(in_one_pass - rank_sequences) > 1e-6 * rank_sequences:
        reader.bad("per_device_batch_size", value, "whole sequences on each data-parallel rank", None)
    plan["microbatch"] = rank_sequences
    if plan["pp"] > 1:
        count = reader.count("num_pipeline_microbatches", default=plan["pp"]) or plan["pp"]
        plan["microbatch"] = max(1, rank_sequences // count)
    global_batch = rank_sequences * steps
    return (global_batch * plan["dp"], None) if "dp" in plan else (None, global_batch)


def _pipeline(reader: option_reader.OptionReader, plan: JsonObject, spec: ModelSpec | None) -> JsonObject:
    repeats = reader.degree("num_pipeline_repeats")
    stage_plan: JsonObject = {"schedule": {"name": "interleaved" if repeats > 1 else "gpipe", "chunks": repeats}}
    if repeats > 1:
        reader.assumptions.append("circular repeats are read as interleaved, which keeps fewer activations")
    layers_each, stages = reader.count("num_layers_per_pipeline_stage"), plan["pp"] * repeats
    inner = reader.count("pipeline_parallel_layers", default=(layers_each or 0) * stages) or 0
    outside = spec.layers - inner if spec is not None and layers_each else 0
    if outside:
        reader.assumptions.append(f"{outside} layers outside of the pipeline are dealt over its stages")
    elif layers_each is not None and stages <= MOST_LAYERS:
        stage_plan["placement"] = [layers_each] * stages
    return stage_plan


def _memory(reader: option_reader.OptionReader, experts: bool) -> JsonObject:
    policy = str(reader.take("remat_policy", default="full"))
    policy_kept, offload_share = _tensors(reader) if policy == "custom" else ("", 0.0)
    if policy == "custom":
        reader.assumptions.append(f"remat_policy = custom: read as {policy_kept}, by the tensors that are kept")
    elif policy in maxtext.LIKE:
        reader.assumptions.append(f"remat_policy = {policy}: read as {maxtext.LIKE[policy]}")
    name = policy_kept or maxtext.LIKE.get(policy, policy)
    if name not in maxtext.POLICIES:
        reader.word("remat_policy", among=dict.fromkeys((*maxtext.POLICIES, *maxtext.LIKE, "custom")), default=None)
        name = "full"
    kind, parts = maxtext.POLICIES[name][0], list(maxtext.parts_of(name, experts))
    offload = {
        "activations": 1.0 if policy.endswith("_offloaded") else offload_share,
        "optimizer": 1.0 if reader.switch("optimizer_memory_host_offload") else 0.0,
    }
    return {"recompute": {"kind": kind} | ({"parts": parts} if parts else {}), "offload": offload}


def _tensors(reader: option_reader.OptionReader) -> tuple[str, float]:
    """The policy nearest to a choice by tensor, and the share of the kept tensors that rests in host memory."""
    places = {"remat": 0, "device": 1, "offload": 2}
    names = (maxtext.INPUT, *maxtext.PROJECTIONS, *maxtext.WIDE, *maxtext.CONTEXT, *maxtext.OTHERS)
    at = {name: reader.word(name, among=places, default=int(name == maxtext.INPUT)) for name in names}
    saved = {name for name, place in at.items() if place}
    policy = "full"
    if any(set(row) <= saved for row in maxtext.PROJECTED):  # all of them: what one lacks has to be done again
        with_context = "_with_context" * (not saved.isdisjoint(maxtext.CONTEXT))
        wide = not saved.isdisjoint(maxtext.WIDENED)
        policy = f"minimal{with_context}" if wide else f"save_dot{with_context}_except_mlp"
    counted = saved & {maxtext.INPUT} if policy == "full" else saved  # recompute of all layers keeps no others
    return policy, sum(at[name] == 2 for name in counted) / len(counted) if counted else 0.0


def _formats(reader: option_reader.OptionReader) -> tuple[JsonObject, JsonObject]:
    short = {LONG_FORMATS[name]: name for name in ("bf16", "fp32", "fp16")}
    used = reader.word("dtype", among=short, default="bf16")
    stored_format = reader.word("weight_dtype", among=short, default="fp32")
    gradients = read_options(maxtext.ID, "gradients", reader)["gradients"]
    reader.skip("mu_dtype")
    narrow = reader.word("quantization", among=maxtext.QUANTIZED, default=None)
    precision = dict.fromkeys(("compute", "weights", "activations", "kv"), used) | {"gradients": gradients}
    if narrow is not None:
        precision |= {"compute": narrow[0], "scaling": narrow[1]}
    names = {word: name for name, word in maxtext.OPTIMIZERS.items()} | {"adam_pax": "adamw"}
    name = reader.word("opt_type", among=names, default="adamw")
    master = "none" if stored_format == used else stored_format
    return precision, {"name": name, "states": stored_format, "master": master}


@option_reader.false_where_unreadable
def recognises(files: Files) -> bool:
    """A YAML file or a script with several of MaxText's keys, a model file of it, or a manifest that starts it."""
    files = run.spelled_out(run.expand_manifests(files))
    keys_of_tables = [set(table.data) for table in option_reader.tables(files, ".yml", ".yaml")]
    model_file = any({"base_emb_dim", "base_num_decoder_layers"} <= keys for keys in keys_of_tables)
    if run.benchmark_of(files) is not None or model_file:
        return True
    return len(MANY & set().union(*keys_of_tables, option_reader.assignments(files))) >= 2
