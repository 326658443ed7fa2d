"""Turn the files of software around transformers' Trainer into settings of a scenario."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import Problem
from ridgeline.core.files import Table
from ridgeline.core.table import given_text
from ridgeline.targets.dialects.deepspeed import read_zero
from ridgeline.targets.imports.model_names import UNKNOWN, named_by_beginning, named_exactly, with_depth
from ridgeline.targets.imports.option_reader import OptionReader, pick, table_of
from ridgeline.targets.imports.run_files import checkout_of
from ridgeline.targets.tables import names, word_lists
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Files, Imported, Unread
from ridgeline.targets.trainers.write import MODULES

QUANTIZED = re.compile(r"\b(gptq|awq|aqlm|bnb|nf4|int4|int8|4bit|8bit|nvfp4)\b", re.IGNORECASE)
# what transformers calls an optimizer -> (ours, the format of its states)
OPTIMIZERS = word_lists("trainers", "optimizers")
ALL = ("all", "all-linear", "all_linear")
SHORT = table_words("trainers", "short")  # the format that weights are loaded in; mixed precision keeps fp32 instead
SHARDED = table_words("trainers", "sharded")
# options by which programs of their own split a model
DEGREE = re.compile(
    r"train\.((tensor|pipeline|context|expert|sequence|model)_parallel(_size|_degree|ism)?|(tp|pp|cp|ep|sp)_(size|degree)"
    r"|deepspeed_stage|zero_stage|zero_1|shard_degree)"
)
# where FSDP is told to recompute, beside the trainer's own word for it
CHECKPOINTING = (
    "accelerate.fsdp_config.fsdp_activation_checkpointing",
    "train.fsdp_config.activation_checkpointing",
    "train.fsdp_config.fsdp_activation_checkpointing",
)
APART = table_words("trainers", "apart")
MATTERS = names("trainers", "matters")


def named_table(files: Files, name: object) -> JsonObject | None:
    """A table that a configuration names: among the files, or beside them in their checkout."""
    if isinstance(name, Mapping):
        return dict(name)
    if not isinstance(name, str) or not name or len(name) > 300:
        return None
    path = PurePosixPath(name)
    text = files.get(path.name) or checkout_of(files).named(name)
    if path.suffix not in (".json", ".yaml", ".yml", ".conf"):
        return None
    return table_of(path.name.removesuffix(".conf") + ".json" * (path.suffix == ".conf"), text)


def zero_file(files: Files, name: object, notes: list[Unread]) -> JsonObject:
    """DeepSpeed's file by the name that a configuration gives; its name alone tells the stage where it is not here."""
    if name in (None, "", False):
        return {}
    zero_table = named_table(files, name)
    if zero_table is not None:
        return zero_table
    stage = re.search(r"z(?:ero)?_?(?:stage)?_?([0-3])(?!\d)", PurePosixPath(str(name)[:300]).name.lower())
    message = f"stage {stage.group(1)} by its name" if stage else "read as stage 0"
    why = f"the file is not here: {message}; formats and offloading as the rest says"
    notes.append(Unread(option="deepspeed", value=str(name)[:80], why=why, matters=True))
    return {"zero_optimization": {"stage": int(stage.group(1)) if stage else 0}}


def model_of(reader: OptionReader, option: str, named: str | None) -> str | None:
    """The catalog's model of this name or folder; unread where it has none."""
    value = reader.take(option)
    if named is not None or not isinstance(value, str) or not value:
        return named
    tower = reader.options.get("train.vision_tower")
    if tower:  # the run trains more than the text model that it names
        reader.note("model", value[:100], f"with the tower {str(tower)[:60]} no catalog entry is it")
        return None
    if QUANTIZED.search(value):
        reader.note(option, value[:100], "frozen weights in few bits are not priced: read as bf16")
    exact = named_exactly(value[:200], value.rstrip("/").rpartition("/")[2][:200])
    if exact is not None:
        return exact
    part = named_by_beginning(value)
    if part is not None:
        reader.assumptions.append(f"model = {part[0]}: by {part[1]} in {value[:80]}")
        return part[0]
    reader.note("model", value[:100], UNKNOWN)
    return None


def without_further_tokens(reader: OptionReader, model: str | None) -> str | JsonObject | None:
    """The model as transformers builds it, without blocks that predict further tokens."""
    trained_model = with_depth(model, 0)
    if trained_model != model:
        reader.assumptions.append("mtp = 0: transformers leaves out blocks that predict further tokens")
    return trained_model


def reader_of_files(parts: Mapping[str, JsonMapping], source: str) -> OptionReader:
    """A reader of several files' options, each under the name of its file."""
    return OptionReader(Table(data={name: dict(table) for name, table in parts.items()}, source=source))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTask:
    """What is trained: all weights, or adapters (of all matrices where `everywhere`)."""

    name: str = "finetune"
    everywhere: bool = False


def read_run(
    reader: OptionReader, words: Mapping[str, str], named: str | None, target: str, task: TrainedTask
) -> Imported:
    """What the options say, in the words of the target."""
    model = model_of(reader, words["model"], named)
    zero = "deepspeed.zero_optimization.stage" in reader or any(key.startswith("deepspeed.") for key in reader.options)
    is_compiled = reader.switch(words["compiled"])
    engine = "deepspeed" if zero else "torch-compile" if is_compiled else "torch-eager"
    plan: JsonObject = {"engine": engine, "compiled": is_compiled}
    sharding = _zero(reader, words) if zero else _fsdp(reader, words)
    plan |= sharding
    plan |= _memory(reader, words, plan)
    precision, optimizer = _formats(reader, words, plan["shard"] == "none" and task.name != "lora", zero)
    plan["precision"] = precision
    if "ep" in words and (ep := reader.degree(words["ep"])) > 1:
        plan |= {"ep": ep, "etp": 1}
    micro, steps = _batch(reader, words)
    plan["microbatch"] = micro
    seq = reader.count(words["seq"], *words.get("seq_also", "").split())
    if seq is None:
        default = int(words.get("seq_default", "0")) or None
        if default:
            reader.assumptions.append(f"seq = {default}: the files do not say it")
        seq = default
    packed = reader.switch(words["packed"].split()[0])
    work = {"kind": "train", "seq": seq, "packed": packed, "optimizer": optimizer, **_lora(reader, words, task)}
    reader.skip(words["attention"], *words["packed"].split())
    _refuse_degrees(reader)
    return Imported(
        target=target,
        settings=pick({"model": without_further_tokens(reader, model)}) | {"workload": pick(work), "plan": plan},
        unread=_weigh_unread(reader),
        assumptions=tuple(reader.assumptions),
        per_rank=micro * steps,
    )


def _refuse_degrees(reader: OptionReader) -> None:
    """A problem for each degree or stage of a program's own that nobody took: a mesh is never read without it."""
    for name, value in reader.options.items():
        quiet = name in reader.taken or str(value) in ("1", "0", "-1", "False", "None", "")
        if not quiet and DEGREE.fullmatch(name):
            expected_text = "degrees and stages by the words of the Trainer, FSDP or DeepSpeed"
            todo = "the program splits the model in its own way, which is not read"
            reader.problems.append(Problem(path=name, given=given_text(value), expected=expected_text, todo=todo))


def _weigh_unread(reader: OptionReader) -> tuple[Unread, ...]:
    quiet = ("", "false", "none", "null", "no")
    return tuple(
        replace(part, matters=part.matters or (hit and str(part.value).strip("'\"").lower() not in quiet))
        for part in reader.unread(APART)
        for hit in [any(fnmatchcase(part.option, pattern) for pattern in MATTERS)]
    )


def _batch(reader: OptionReader, words: Mapping[str, str]) -> tuple[int, int]:
    sizes = ("deepspeed.train_micro_batch_size_per_gpu", "deepspeed.gradient_accumulation_steps")
    zero_sizes = [None if reader.take(name) == "auto" else reader.count(name) for name in sizes]
    micro, steps = reader.count(words["micro"]) or zero_sizes[0], reader.count(words["steps"]) or zero_sizes[1]
    reader.skip("deepspeed.train_batch_size", "accelerate.deepspeed_config.gradient_accumulation_steps")
    default = int(words.get("micro_default", "8"))
    if micro is None:
        reader.assumptions.append(f"microbatch = {default}: the files do not say it")
    return micro or default, steps or 1


def _fsdp(reader: OptionReader, words: Mapping[str, str]) -> JsonObject:
    """DDP, FSDP1 or FSDP2 and the mesh of it."""
    kind = str(reader.take("accelerate.distributed_type", default="")).upper()
    version = reader.take(words["fsdp"], *words.get("fsdp_also", "").split())
    split = reader.take(words["shard"])
    on = kind == "FSDP" or (kind == "" and (version is not None or words["reshard"] in reader or split is not None))
    on = on or _old_fsdp(reader, words)
    plan: JsonObject = {}
    if "cp" in words:
        plan["cp"] = reader.degree(words["cp"], *words.get("cp_also", "").split())
    if "tp" in words:
        plan["tp"] = reader.degree(words["tp"])
        if plan["tp"] > 1:
            plan["sequence_parallel"] = False
    if plan.get("cp", 1) > 1:
        plan["cp_kind"] = "ring"
    replicate = reader.degree(words["replicate"])
    if not on and plan.get("cp", 1) * plan.get("tp", 1) == 1:
        return plan | {"shard": "none"}
    reshard = reader.take(words["reshard"], *words.get("reshard_also", "").split(), default=True)
    shard = SHARDED.get(str(reshard).lower())
    if shard is None:
        reader.note(words["reshard"], str(reshard)[:60], "unknown")
    shard = shard or "zero3"
    size = split if type(split) is int and split > 0 else None
    if not on:
        shard = "none"
    elif size is not None:
        plan |= {"dp": replicate * size, "shard_degree": size * plan.get("cp", 1)}
    elif replicate > 1 or "hybrid" in str(reshard).lower():
        reader.assumptions.append("shards are split over all ranks: how many share one is not stated")
    return plan | {"shard": shard}


def _old_fsdp(reader: OptionReader, words: Mapping[str, str]) -> bool:
    """`fsdp: "full_shard auto_wrap"` of the Trainer, or a list of such words."""
    value = reader.take("train.fsdp")
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value or "")
    if not re.search(r"shard|hybrid", text):
        return False
    for word, means in (("shard_grad_op", "SHARD_GRAD_OP"), ("hybrid", "HYBRID_SHARD"), ("full_shard", "FULL_SHARD")):
        if word in text:
            reader.options.setdefault(words["reshard"], means)
            break
    return True


def _zero(reader: OptionReader, words: Mapping[str, str]) -> JsonObject:
    plan = read_zero(reader, "deepspeed.")
    offload = plan.pop("offload")
    reader.take("accelerate.distributed_type", "accelerate.deepspeed_config.zero_stage")
    plan["tp"] = reader.degree("deepspeed.tensor_parallel.autotp_size")
    split = [words[name] for name in ("sp", "cp") if name in words] + words.get("cp_also", "").split()
    plan["cp"] = reader.degree(*split, "deepspeed.sequence_parallel_size")
    if plan["tp"] > 1:
        plan["sequence_parallel"] = False
        plan["overlap"]["tp"] = reader.switch("deepspeed.tensor_parallel.tp_overlap_comm")
    if plan["cp"] > 1:  # DeepSpeed exchanges heads for sequence; a trainer without words for that has a ring of its own
        plan["cp_kind"] = "all-to-all" if "sp" in words or "deepspeed.sequence_parallel_size" in reader else "ring"
    return plan | {"offload": offload}


def _memory(reader: OptionReader, words: Mapping[str, str], plan: JsonMapping) -> JsonObject:
    off = "recompute_off" in words
    stated_values = reader.take(words["recompute"])
    offloads = str(stated_values).lower().startswith("offload")  # Axolotl's word for recompute and copies to the host
    default_on = words.get("recompute_default", "true") == "true" and not off
    on = offloads or reader.switch(words["recompute"], default=default_on)
    recomputes = (not on) if off else on
    recomputes = any(reader.switch(option) for option in CHECKPOINTING) or recomputes
    offload = dict(plan.get("offload", {}))
    away = reader.take(words["offload_activations"]) if "offload_activations" in words else False
    if (away and str(away).lower() != "false") or offloads:
        offload["activations"] = 1.0
    if "offload" in words and reader.switch(words["offload"]):
        offload["optimizer"] = 1.0
    return {"recompute": "full" if recomputes else "none", "offload": offload}


def _formats(reader: OptionReader, words: Mapping[str, str], wide: bool, zero: bool) -> tuple[JsonObject, JsonObject]:
    stored_format = "fp32"
    for name in ("bf16", "fp16"):
        values = [str(reader.take(option)).lower() for option in (words[name], f"deepspeed.{name}.enabled")]
        if any(value in ("true", "auto") for value in values) and stored_format == "fp32":
            stored_format = name
    model_given = reader.take(words["mixed"]) if "mixed" in words else None
    if str(model_given).lower() in ("bf16", "fp16", "fp8"):
        stored_format = "fp16" if str(model_given).lower() == "fp16" else "bf16"
    format_kept = SHORT.get(str(reader.take(words["dtype"])).lower()) if "dtype" in words else None
    pure = "pure" in words and reader.switch(words["pure"])
    half = "half" in words and reader.switch(words["half"])
    pure = pure or half or (stored_format == "fp32" and format_kept in ("bf16", "fp16"))
    if pure:
        stored_format = "fp16" if half or format_kept == "fp16" else "bf16"
    elif stored_format == "fp32" and "bf16_default" in words and reader.take(words["bf16"]) is None:
        stored_format = "bf16"
    optimizer = _optimizer(reader, words)
    if zero:
        gradients = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
        options = ("deepspeed.communication_data_type", "deepspeed.data_types.grad_accum_dtype")
        reduced = reader.word(*options, among=gradients, default=None)
        reader.skip("deepspeed.data_types.grad_accum_dtype")
        optimizer["master"] = "none" if stored_format == "fp32" else "fp32"
        return {"name": stored_format, "gradients": reduced or stored_format}, optimizer
    if pure or stored_format == "fp32":
        states = optimizer["states"] if optimizer["states"] == "int8" else stored_format
        return {"name": stored_format, "gradients": stored_format}, optimizer | {"states": states, "master": "none"}
    if wide:  # DDP: fp32 weights under autocast
        precision: JsonObject = dict.fromkeys(("compute", "weights", "activations", "kv", "gradients"), stored_format)
        precision |= {"weights": "fp32", "gradients": "fp32"}
        return precision, optimizer | {"master": "none"}
    return {"name": stored_format, "gradients": stored_format}, optimizer | {"master": "fp32"}


def _optimizer(reader: OptionReader, words: Mapping[str, str]) -> JsonObject:
    name = str(reader.take(words["optimizer"], default="adamw_torch_fused")).lower()
    meaning = OPTIMIZERS.get(name)
    if "muon" in words and "=" in words["muon"]:
        option, _, value = words["muon"].partition("=")
        if value == "true" and reader.switch(option):
            meaning = OPTIMIZERS["muon"]
    kind = str(reader.take("deepspeed.optimizer.type", default="")).lower()
    if kind in ("muon", "lion", "sgd", "adafactor"):
        meaning = (kind, "fp32")
    if meaning is None:
        reader.note(words["optimizer"], name[:60], "read as adamw")
    ours, states = meaning or ("adamw", "fp32")
    return {"name": ours, "states": states}


def _lora(reader: OptionReader, words: Mapping[str, str], task: TrainedTask) -> JsonObject:
    rank = reader.count(words["rank"])
    value = reader.take(words["adapters"])
    if task.name != "lora":
        return {"task": task.name}
    module_names = value.replace(" ", "").split(",") if isinstance(value, str) else value
    names = [str(name)[:60] for name in module_names[:200]] if isinstance(module_names, list) else []
    if not names or any(name in ALL for name in names) or task.everywhere:
        targets = list(MODULES)
    else:
        targets = [target for target, parts in MODULES.items() if set(parts) & set(names)]
        strange = [name for name in names if not any(name in parts for parts in MODULES.values())]
        if strange:
            reader.note(words["adapters"], ", ".join(strange)[:80], "adapters on these are not priced")
    if value is None and not task.everywhere:
        targets = ["qkv"]
        reader.assumptions.append("adapters on q and v: the files do not say which")
    return {"task": "lora", "lora": pick({"rank": rank or int(words.get("rank_default", "16")), "targets": targets})}
