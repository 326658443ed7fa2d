"""Turn a MaxText configuration (YAML, or `key=value` arguments of a launch script) into settings of a scenario."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import Table
from ridgeline.models.dimensions import MOST_LAYERS
from ridgeline.models.load import model as load_model
from ridgeline.models.spec import ModelSpec
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.dialects.maxtext.names import (
    ALSO_AXES,
    AXES,
    CONTEXT,
    ID,
    INPUT,
    LIKE,
    LONG,
    OPTIMIZERS,
    OTHERS,
    POLICIES,
    PROJECTED,
    PROJECTIONS,
    QUANTIZED,
    WIDE,
    WIDENED,
    parts_of,
)
from ridgeline.targets.dialects.maxtext.read_model import (
    benchmark_note,
    benchmark_of,
    filled_axes,
    filled_slices,
    machine_of,
    read_model,
    refuse_strange,
    spare_axis,
    spelled_out,
    started,
)
from ridgeline.targets.imports.option_reader import (
    OptionReader,
    assigned,
    assigned_by,
    chips_named,
    left_out,
    model_in,
    nested,
    pick,
    tables,
)
from ridgeline.targets.imports.run_files import around
from ridgeline.targets.imports.shell_eval import read_script
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Files, Imported, Unread

TRAINS = r"pre_train\.train|MaxText[./]train|[./]train\.py|train_sft|sft_train|\$EXECUTABLE"
# part of a program's name -> what it does instead of training
OTHER_WORK = dict.fromkeys(("inference", "decode", "maxengine", "generate"), "generation of text")
OTHER_WORK |= dict.fromkeys(
    ("to_huggingface", "to_maxtext", "conversion", "convert", "ckpt"), "conversion of checkpoints"
)
OTHER_WORK |= {"logit_checker": "an evaluation", "train_rl": "reinforcement learning", "grpo": "reinforcement learning"}
OTHER_WORK |= {"train_distill": "distillation from a teacher", "standalone_": "a check of input or checkpoints"}
ALTERED = {"grpo": "reinforcement learning", "rl": "reinforcement learning", "distill": "distillation from a teacher"}
LORA_RANK = 16  # where adapters are switched on and nothing says their rank
TUNES = r"train_sft|sft_train"
MANY = frozenset({"per_device_batch_size", "ici_fsdp_parallelism", "max_target_length", "remat_policy", "model_name"})
APART = table_words("maxtext", "apart")


def read(files: Files) -> Imported:
    """What a configuration says; a launch script's arguments stand above the file."""
    files = spelled_out(started(files))
    refuse_strange(files)
    machine = machine_of(files)
    table = _merged(files)
    chips, halves = machine.chips or chips_named(table.source), machine.halves
    second = _second(files) or (spare_axis(table.data) if halves else "")
    devices = (chips or around(files).chips or 0) * (2 if halves else 1)
    table = filled_axes(filled_slices(table, devices, machine.slices), devices)
    found = read_table(table, around(files).model or model_in(files), second)
    if "base_emb_dim" in table.data and not MANY & set(table.data):
        note = "a model file: batch, sequence, mesh and recompute are MaxText's defaults"
        found = replace(found, assumptions=(note, *found.assumptions))
    found = replace(found, assumptions=(*benchmark_note(files), *left_out(files), *found.assumptions))
    if "task" not in found.settings["workload"] and _tunes(files, table):
        workload = {**found.settings["workload"], "task": "finetune"}
        found = replace(found, settings={**found.settings, "workload": workload})
    return replace(found, chips=chips) if chips else found


def _tunes(files: Files, table: Table) -> bool:
    """Whether the run that is read starts from a trained model: supervised fine-tuning."""
    texts = (text for name, text in files.items() if name.endswith((".sh", ".sbatch", ".slurm")))
    commands = (" ".join(command[:12]) for text in texts for command in read_script(text, around(files)).commands)
    first = next((command for command in commands if re.search(TRAINS, command)), "")
    base = Path(str(table.data.get("base_config"))[:200]).stem
    return bool(re.search(TUNES, first)) or table.data.get("use_sft") is True or base == "sft"


def read_table(table: Table, named: str | None, second: str = "") -> Imported:
    """What the options of a configuration say; `named` stands in for a model that they do not tell."""
    reader = OptionReader(table)
    found = read_model(reader, named)
    model = found or named
    if found is None and named is not None:
        reader.notes = [note for note in reader.notes if note.option != "model_name"]
    spec = load_model(model) if model is not None else None
    plan = _mesh(reader, second)
    batch, per_rank = _batch(reader, plan, 2 if second else 1)
    if plan["pp"] > 1:
        plan |= _pipeline(reader, plan, spec)
    plan |= _memory(reader, spec is not None and has_experts(spec)) | _switches(reader) | {"engine": "maxtext"}
    precision, optimizer = _formats(reader)
    if plan["tp"] > 1 and spec is not None and has_experts(spec):
        plan["etp"] = plan["tp"]
    workload = {"kind": "train", "seq": reader.count("max_target_length", default=2048), "optimizer": optimizer}
    workload |= {"packed": reader.switch("packing", default=True)} | pick({"global_batch": batch}) | _lora(reader)
    settings = pick({"model": model}) | {"workload": workload, "plan": plan | {"precision": precision}}
    return Imported(
        target=ID,
        settings=settings,
        unread=tuple(replace(part, matters=part.matters or _splits(part)) for part in reader.unread(APART)),
        assumptions=tuple(reader.assumptions),
        per_rank=per_rank,
    )


def _merged(files: Files) -> Table:
    """The YAML file with the arguments of launch scripts on top."""
    found = [table for table in tables(files, ".yml", ".yaml") if (MANY | {"base_emb_dim"}) & set(table.data)]
    trains = [one for one in assigned_by(files, TRAINS) if MANY & set(one)]
    said = trains[0] if trains else assigned(files)
    words = {key: value for key, value in said.items() if "." not in key or key.startswith("lora.")}
    if not found:
        _refuse_other_work(files)
    if len(found) > 1 or not (found or MANY & set(words)):
        expected = "one YAML file, or a script whose arguments are MaxText's"
        raise InputError(Problem(path="", given=f"{len(found)} such files", expected=expected, todo="name one file"))
    if not found:
        return Table(data=nested(words), source=next(iter(files)))
    _refuse_base(found[0])
    known = {key: value for key, value in words.items() if key in MANY or key.endswith("_parallelism")}
    return Table(data={**found[0].data, **known}, source=found[0].source, lines=found[0].lines)


def _refuse_base(table: Table) -> None:
    """An `InputError` for a file that changes one which does not train a decoder alone."""
    stem = Path(str(table.data.get("base_config", ""))[:200]).stem
    other = next((means for sign, means in ALTERED.items() if re.search(rf"(^|_){sign}", stem)), None)
    if other is not None:
        given = f"{other} ({stem}.yml)"
        raise InputError(Problem(path="", given=given, expected="training of a decoder", where=table.source))


def _refuse_other_work(files: Files) -> None:
    """An `InputError` for scripts whose only program does not train."""
    texts = (text for name, text in files.items() if name.endswith((".sh", ".sbatch", ".slurm")))
    programs = [
        " ".join(word for word in command[:8] if "=" not in word)
        for text in texts
        for command in read_script(text, around(files)).commands
        if any(word.split("=")[0] in MANY for word in command)
    ]
    if any(re.search(TRAINS, program) for program in programs):
        return
    for program in programs:
        other = next((means for sign, means in OTHER_WORK.items() if sign in program), None)
        if other is not None:
            given = f"{other} ({program[:80]})"
            raise InputError(Problem(path="", given=given, expected="training of a decoder", where=next(iter(files))))


def _lora(reader: OptionReader) -> dict[str, Any]:
    """Adapters on all matrices, where they are switched on."""
    rank = reader.size("lora.lora_rank")
    if not reader.switch("lora.enable_lora", default=False):
        return {}
    return {"task": "lora", "lora": {"rank": rank or LORA_RANK, "targets": ["qkv", "out", "up", "gate", "down"]}}


def _second(files: Files) -> str:
    """The axis that Ridgeline gave the second device of a chip, where JAX counts two."""
    for text in files.values():
        found = re.search(r"^# devices: two for each chip, the second on axis (\w{1,20})$", text, re.MULTILINE)
        if found and "Written by Ridgeline" in text:
            return found.group(1)
    return ""


def _mesh(reader: OptionReader, second: str) -> dict[str, Any]:
    """The plan's degrees; -1 on one axis stands for the chips that the others leave."""
    degrees = {axis: _axis(reader, axis) for axis in AXES}
    for axis, also in ALSO_AXES.items():  # a second dimension of the same split
        more = _axis(reader, also)
        own = degrees[axis]
        degrees[axis] = own * more if own is not None and more is not None else None
    copied = degrees["data"] is not None and degrees["data"] > 1
    for axis in ("tensor", "tensor_sequence", "context", "pipeline", "expert", *(("fsdp",) if copied else ())):
        if degrees[axis] is None:
            expected, todo = "a degree, or a machine that tells it", "say the machine with --on"
            given = "-1, which takes what the others leave"
            path = f"ici_{axis}_parallelism"
            reader.problems.append(Problem(path=path, given=given, expected=expected, todo=todo))
    if degrees.get(second):
        degrees[second] = max(1, (degrees[second] or 1) // 2)
    known = {axis: degree or 1 for axis, degree in degrees.items()}
    tp, cp, pp, ep = known["tensor"] * known["tensor_sequence"], known["context"], known["pipeline"], known["expert"]
    plan: dict[str, Any] = {"tp": tp, "cp": cp, "pp": pp, "ep": ep}
    if tp > 1:
        plan["sequence_parallel"] = known["tensor_sequence"] > 1
    if cp > 1:
        kinds = {"all_gather": "ring", "ring": "ring", "ulysses": "all-to-all"}
        plan["cp_kind"] = reader.word("context_parallel_strategy", among=kinds, default="ring")
    over_data = reader.switch("shard_optimizer_over_data", default=False)
    fsdp, data = degrees["fsdp"], degrees["data"]
    plan["shard"] = "zero1" if over_data and fsdp == 1 else "none" if fsdp == 1 and cp * ep == 1 else "zero3"
    if fsdp is not None and data is not None:
        plan["dp"] = fsdp * data * ep
        if plan["shard"] != "none":
            plan["shard_degree"] = fsdp * cp * ep if plan["shard"] == "zero3" else plan["dp"]
    elif data != 1:
        reader.assumptions.append("one slice: dcn_data_parallelism is left to the number of slices")
    return plan


def _splits(part: Unread) -> bool:
    """Whether an option that nobody read splits the mesh."""
    return part.option.endswith("_parallelism") and part.value not in ("1", "-1", "0")


def _axis(reader: OptionReader, axis: str) -> int | None:
    """The degree of an axis; None where it takes what the others leave."""
    degree = 1
    for place in ("dcn", "ici"):
        option = f"{place}_{axis}_parallelism"
        value = reader.take(option)
        if value == -1 or (value is None and option == "ici_fsdp_parallelism"):
            return None
        degree *= reader.count(option, default=1) or 1
    return degree


def _batch(reader: OptionReader, plan: dict[str, Any], devices: int) -> tuple[int | None, int | None]:
    """The global batch, or the sequences of one data-parallel rank; sets the microbatch. `devices` of a chip."""
    value = reader.take("per_device_batch_size", default=12.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
        reader.bad("per_device_batch_size", value, "a positive number", None)
        value = 1.0
    steps = reader.degree("gradient_accumulation_steps")
    each = value * devices * plan["tp"] * plan["cp"] * plan["pp"]  # sequences of a data-parallel rank in one pass
    held = max(1, round(each))
    if abs(each - held) > 1e-6 * held:
        reader.bad("per_device_batch_size", value, "whole sequences on each data-parallel rank", None)
    plan["microbatch"] = held
    if plan["pp"] > 1:
        count = reader.count("num_pipeline_microbatches", default=plan["pp"]) or plan["pp"]
        plan["microbatch"] = max(1, held // count)
    whole = held * steps
    return (whole * plan["dp"], None) if "dp" in plan else (None, whole)


def _pipeline(reader: OptionReader, plan: dict[str, Any], spec: ModelSpec | None) -> dict[str, Any]:
    repeats = reader.degree("num_pipeline_repeats")
    found: dict[str, Any] = {"schedule": {"name": "interleaved" if repeats > 1 else "gpipe", "chunks": repeats}}
    if repeats > 1:
        reader.assumptions.append("circular repeats are read as interleaved, which keeps fewer activations")
    each, stages = reader.count("num_layers_per_pipeline_stage"), plan["pp"] * repeats
    inner = reader.count("pipeline_parallel_layers", default=(each or 0) * stages) or 0
    outside = spec.layers - inner if spec is not None and each else 0
    if outside:
        reader.assumptions.append(f"{outside} layers outside of the pipeline are dealt over its stages")
    elif each is not None and stages <= MOST_LAYERS:
        found["placement"] = [each] * stages
    return found


def _memory(reader: OptionReader, experts: bool) -> dict[str, Any]:
    policy = str(reader.take("remat_policy", default="full"))
    kept, moved = _tensors(reader) if policy == "custom" else ("", 0.0)
    if policy == "custom":
        reader.assumptions.append(f"remat_policy = custom: read as {kept}, by the tensors that are kept")
    elif policy in LIKE:
        reader.assumptions.append(f"remat_policy = {policy}: read as {LIKE[policy]}")
    name = kept or LIKE.get(policy, policy)
    if name not in POLICIES:
        reader.word("remat_policy", among=dict.fromkeys((*POLICIES, *LIKE, "custom")), default=None)
        name = "full"
    kind, parts = POLICIES[name][0], list(parts_of(name, experts))
    offload = {
        "activations": 1.0 if policy.endswith("_offloaded") else moved,
        "optimizer": 1.0 if reader.switch("optimizer_memory_host_offload", default=False) else 0.0,
    }
    return {"recompute": {"kind": kind} | ({"parts": parts} if parts else {}), "offload": offload}


def _tensors(reader: OptionReader) -> tuple[str, float]:
    """The policy nearest to a choice by tensor, and the share of the kept tensors that rests in host memory."""
    places = {"remat": 0, "device": 1, "offload": 2}
    at = {
        name: reader.word(name, among=places, default=int(name == INPUT))
        for name in (INPUT, *PROJECTIONS, *WIDE, *CONTEXT, *OTHERS)
    }
    kept = {name for name, place in at.items() if place}
    projected = any(set(names) <= kept for names in PROJECTED)  # all of them: what one lacks has to be done again
    groups = (projected, not kept.isdisjoint(WIDENED), not kept.isdisjoint(CONTEXT))
    near = {
        (True, True, True): "minimal_with_context",
        (True, True, False): "minimal",
        (True, False, True): "save_dot_with_context_except_mlp",
        (True, False, False): "save_dot_except_mlp",
    }
    policy = near.get(groups, "full")
    counted = kept & {INPUT} if policy == "full" else kept  # of the rest, recompute of all layers keeps nothing
    return policy, sum(at[name] == 2 for name in counted) / len(counted) if counted else 0.0


def _switches(reader: OptionReader) -> dict[str, Any]:
    kinds = {"autoselected": "flash", "flash": "flash", "cudnn_flash_te": "flash", "dot_product": "unfused"}
    kinds |= {"cudnn_flash_jax": "flash"}
    return {"attention": reader.word("attention", among=kinds, default="flash")}


def _formats(reader: OptionReader) -> tuple[dict[str, Any], dict[str, Any]]:
    short = {word: name for name, word in LONG.items()}
    used = reader.word("dtype", among=short, default="bf16")
    rest = reader.word("weight_dtype", among=short, default="fp32")
    gradients = reader.word("grad_dtype", among=short, default="fp32")
    reader.take("mu_dtype")
    narrow = reader.word("quantization", among=QUANTIZED, default=None)
    precision = {"compute": used, "weights": used, "activations": used, "kv": used, "gradients": gradients}
    if narrow is not None:
        precision |= {"compute": narrow[0], "scaling": narrow[1]}
    names = {word: name for name, word in OPTIMIZERS.items()} | {"adam_pax": "adamw"}
    name = reader.word("opt_type", among=names, default="adamw")
    master = "none" if rest == used else rest
    return precision, {"name": name, "states": rest, "master": master}


def recognises(files: Files) -> bool:
    """A YAML file or a script with several of MaxText's keys, a model file of it, or a manifest that starts it."""
    try:
        files = spelled_out(started(files))
        if benchmark_of(files) is not None or any(
            {"base_emb_dim", "base_num_decoder_layers"} <= set(table.data) for table in tables(files, ".yml", ".yaml")
        ):
            return True
        keys = {key for table in tables(files, ".yml", ".yaml") for key in table.data} | set(assigned(files))
    except InputError:
        return False
    return len(MANY & keys) >= 2
