"""Turn verl's Hydra files, or the overrides in its launch scripts, into settings: the update of the actor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.files import Table
from ridgeline.models.load import MODELS
from ridgeline.models.names import find_name
from ridgeline.targets.megatron.collect import world_of
from ridgeline.targets.model_names import named_by
from ridgeline.targets.option_reader import (
    OptionReader,
    assigned,
    assigned_by,
    flatten,
    interpolated,
    left_out,
    model_in,
    nested,
    pick,
    tables,
)
from ridgeline.targets.run_files import around
from ridgeline.targets.target import Files, Imported, Unread
from ridgeline.targets.verl.names import ACTOR, FSDP, ID, LAYER, LORA_NAMES, MEGATRON, MODEL, OPTIM
from ridgeline.targets.verl.read_base import base_of
from ridgeline.targets.verl.read_megatron import megatron_placement, megatron_plan
from ridgeline.targets.verl.read_sft import as_update, divisor_below, is_sft, quiet_in, sft_workload

ADAPTER_RANK = 32  # of an adapter that is loaded, where nothing says it
DEFAULT_MODEL = "deepseek-llm-7b"  # of verl's own configuration
PLACEHOLDER = re.compile(r"\$|your|path[_-]?to|/path/|^\W*(ref_)?model_?path\W*$|<", re.IGNORECASE)
UPDATE = ("actor_rollout_ref.", "model.", "data.")
STRATEGIES = ("", "fsdp", "fsdp2", "megatron", "veomni")
APART = {
    "actor_rollout_ref.rollout.*": "how responses are generated is not part of the update",
    "actor_rollout_ref.ref.*": "the reference model is not part of the update",
    "critic.*": "the critic is not part of the update",
    "reward*": "rewards are not part of the update",
    "algorithm.*": "the algorithm around the update is not priced",
    "data.*": "which data decides nothing about speed",
    "trainer.*": "logging and checkpoints",
    f"{ACTOR}.optim.*": "learning rates and details of the optimizer",
    f"{ACTOR}.entropy_checkpointing": "recompute of the entropy is not priced apart",
    f"{ACTOR}.entropy_from_logits_with_chunking": "how the entropy is computed is not priced apart",
    f"{LAYER}.account_for_*": "changes the step: a layer's place in the pipeline is not moved",
    f"{ACTOR}.*coef*": "the loss decides nothing about speed",
    f"{ACTOR}.*clip*": "the loss decides nothing about speed",
    f"{ACTOR}.*loss*": "the loss decides nothing about speed",
    "*.param_offload": "moved between phases, not during the update",
    "*.optimizer_offload": "moved between phases, not during the update",
    "*.grad_offload": "moved between phases, not during the update",
    f"{LAYER}.*fusion*": "fusions are the engine's habits",
    f"{LAYER}.*": "a detail of the layer that is not priced",
    "defaults": "the files this one changes",
    "hydra.*": "where files are looked for",
    "*checkpoint*": "checkpoints are not part of the update",
}


def read(files: Files) -> Imported:
    """What the files say of the actor; overrides in scripts stand above YAML."""
    _refuse_other_work(files)
    table = _merged(files)
    if not any(key.startswith("actor_rollout_ref.") for key, _ in flatten(table.data)) and is_sft(files):
        return _read_sft(files, table)
    if not any(key.startswith("actor_rollout_ref.") for key, _ in flatten(table.data)):
        expected = "a YAML file or script with actor_rollout_ref.* options"
        raise InputError(Problem(path="", given="no such file", expected=expected, todo="name verl's own file"))
    reader, base = OptionReader(table), base_of(files)
    reader.taken |= base.quiet
    strategy = _strategy(reader, f"{ACTOR}.strategy", base.engine)
    megatron = strategy == "megatron"
    if not strategy:
        megatron = any(option.startswith(f"{MEGATRON}.") for option in reader.options)
    plan = megatron_plan(reader) if megatron else _fsdp(reader)
    if strategy == "veomni":
        plan |= _veomni(reader)
    places = ("async_resources.actor_train", "trainer")  # a pool of the update's own, where there is one
    nodes = reader.degree(*(f"{place}.nnodes" for place in places))
    each = reader.count(*(f"{place}.n_gpus_per_node" for place in places), default=8) or 8
    if any("main_ppo_split" in text for text in files.values()):  # the critic has the other half
        nodes, each = (nodes // 2, each) if nodes > 1 else (nodes, max(1, each // 2))
        reader.assumptions.append(f"{nodes * each} chips of the actor: half of the machine, the critic has the other")
    plan["dp"] = max(1, nodes * each // (plan["tp"] * plan["pp"] * plan["cp"]))
    if plan.get("shard_degree", 0) >= plan["dp"] * plan["cp"]:  # more than there are: all of them
        del plan["shard_degree"]
    workload = _workload(reader, plan, megatron)
    workload["optimizer"] = plan.pop("optimizer")
    model = _chosen(reader, files)
    plan |= megatron_placement(reader, plan, MODELS[model].layers if model else 0)
    settings = pick({"model": _trained(reader, model)}) | {"workload": workload, "plan": plan}
    return Imported(
        target=ID,
        settings=settings,
        unread=reader.unread(APART),
        assumptions=(*left_out(files), *reader.assumptions),
        chips=nodes * each,
    )


def _strategy(reader: OptionReader, option: str, usual: str) -> str:
    """Who runs the model; a problem where it is none that is read."""
    found = str(reader.take(option, default=usual))
    if found not in STRATEGIES:
        reader.problems.append(not_among(option, found[:60], STRATEGIES[1:]))
    return found


def _refuse_other_work(files: Files) -> None:
    """An `InputError` for scripts that only generate or evaluate."""
    for name, text in files.items():
        program = re.search(r"verl\.trainer\.(main_generation\w*|main_eval\w*)", text) if name.endswith(".sh") else None
        if program and not re.search(r"main_ppo|sft_trainer|main_dapo|\.main_(?!gen|eval)\w+", text):
            given = f"generation of text ({program.group(1)})"
            raise InputError(Problem(path="", given=given, expected="training of a decoder", where=name))


def _chosen(reader: OptionReader, files: Files) -> str | None:
    """The model of the files, or the one that the caller names in its place."""
    named = around(files).model
    found = find_name(named) if named else None
    if found is not None:
        reader.take(f"{MODEL}.path")
        return found[0]
    usual = f"{MODEL}.path" in reader.taken  # of verl's own files
    model = _model(reader) or model_in(files) or _by_file(reader, files)
    if usual and model is not None:
        reader.assumptions.append(f"model = {model}: verl's default, which the files do not change")
    return model


def _by_file(reader: OptionReader, files: Files) -> str | None:
    """The model of a file that leaves its path open: by the file's own name, or verl's default where it is silent."""
    path = reader.options.get(f"{MODEL}.path")
    if path is None or path == "???":
        reader.assumptions.append(f"model = {DEFAULT_MODEL}: verl's default, which the files do not change")
        return DEFAULT_MODEL
    if not PLACEHOLDER.search(str(path)):
        return None
    for name in files:
        found = named_by(Path(name).stem)
        if found is not None:
            reader.notes = [note for note in reader.notes if note.option != f"{MODEL}.path"]
            reader.assumptions.append(f"model = {found[0]}: the file's name; its path {str(path)[:60]} is left open")
            return found[0]
    return None


def _read_sft(files: Files, table: Table) -> Imported:
    """What a script of the supervised trainer says, in the words of the actor's update."""
    reader = OptionReader(as_update(table, files))
    reader.taken |= quiet_in(files, dict(flatten(table.data)))
    reader.take("engine")
    strategy = _strategy(reader, "strategy", "")
    megatron = strategy == "megatron"
    plan = megatron_plan(reader) if megatron else _fsdp(reader)
    if strategy == "veomni":
        plan |= _veomni(reader)
    world = world_of(files)
    if world is not None:
        plan["dp"] = max(1, world // (plan["tp"] * plan["pp"] * plan["cp"]))
    workload = sft_workload(reader, plan, files) | _lora(reader, megatron)
    workload["optimizer"] = plan.pop("optimizer")
    model = _chosen(reader, files)
    plan |= megatron_placement(reader, plan, MODELS[model].layers if model else 0)
    settings = pick({"model": _trained(reader, model)}) | {"workload": workload, "plan": plan}
    unread = reader.unread(APART)
    notes = (*left_out(files), *reader.assumptions)
    return Imported(target=ID, settings=settings, unread=unread, assumptions=notes, chips=world)


def _veomni(reader: OptionReader) -> dict[str, Any]:
    """Experts and sequences as the VeOmni engine spreads them over the ranks that share weights."""
    place = f"{ACTOR}.veomni"
    ep = reader.degree(f"{place}.expert_parallel_size", f"{place}.ep_size")
    cp = reader.degree(f"{place}.ulysses_parallel_size", f"{place}.ulysses_sequence_parallel_size")
    found: dict[str, Any] = {"ep": ep, "etp": 1} if ep > 1 else {}
    size = reader.take(f"{place}.fsdp_size", default=-1)
    if isinstance(size, int) and size > 0:
        found |= {"shard": "none"} if size == 1 else {"shard_degree": size}
    if not reader.switch(f"{place}.enable_full_shard", default=True):
        found["shard"] = "zero2"
    return found | ({"cp": cp, "cp_kind": "all-to-all"} if cp > 1 else {})


def _merged(files: Files) -> Table:
    found = list(tables(files, ".yml", ".yaml"))
    bare = ("engine", "ulysses_sequence_parallel_size", "use_remove_padding") if is_sft(files) else ()
    said = next((one for one in assigned_by(files) if any(key.startswith(UPDATE) for key in one)), assigned(files))
    words = {key: value for key, value in said.items() if "." in key or key in bare}
    base = base_of(files).options
    if not found:
        filled = interpolated(base | words, around(files).environment) if base else words
        return Table(data=nested(filled), source=next(iter(files), ""))
    below = base | {key: value for table in found for key, value in flatten(table.data)}
    filled = interpolated(below | words, around(files).environment)
    return Table(data=nested(filled), source=found[0].source, lines=found[0].lines)


def _model(reader: OptionReader) -> str | None:
    path = reader.take(f"{MODEL}.path")
    if not isinstance(path, str):
        return None
    found = named_by(path)
    if found is not None:
        if found[1]:
            reader.assumptions.append(f"model = {found[0]}: by {found[1]} in {path[:80]}")
        return found[0]
    reader.notes.append(Unread(option=f"{MODEL}.path", value=path[:60], why="no catalog entry is it", matters=True))
    return None


def _trained(reader: OptionReader, model: str | None) -> str | dict[str, Any] | None:
    """The model that is updated: blocks that predict further tokens are left out unless they are asked for."""
    ahead = [reader.switch(f"{MODEL}.mtp.{name}", default=False) for name in ("enable", "enable_train")]
    if model is None or MODELS[model].mtp is None or all(ahead):
        return model
    reader.assumptions.append("mtp = 0: prediction of further tokens is not switched on")
    return {"base": model, "mtp": 0}


def _workload(reader: OptionReader, plan: dict[str, Any], megatron: bool) -> dict[str, Any]:
    prompt = reader.count("data.max_prompt_length", default=512) or 512
    response = reader.count("data.max_response_length", default=512) or 512
    prompts = reader.count(f"{ACTOR}.ppo_mini_batch_size", default=256) or 256
    each = reader.degree("actor_rollout_ref.rollout.n")
    reader.assumptions.append("every sequence as long as prompt and response may be; real ones are shorter")
    seq, batch = prompt + response, prompts * each
    micro = reader.count(f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    tokens = reader.count(f"{ACTOR}.ppo_max_token_len_per_gpu", default=16384) or 16384
    share = max(1, batch // plan["dp"])
    over_all = reader.count(f"{ACTOR}.ppo_micro_batch_size")
    if micro is None and over_all is not None:  # of all ranks together
        micro = max(1, over_all // plan["dp"])
    if reader.switch(f"{ACTOR}.use_dynamic_bsz", default=False):
        micro = divisor_below(share, max(1, tokens * plan["cp"] // seq))
        reader.assumptions.append(f"microbatch = {micro}: full sequences that {tokens} tokens hold, in equal parts")
    if micro is None:
        reader.assumptions.append("microbatch = 1: the files do not say it")
    plan["microbatch"] = min(micro or 1, share)
    workload: dict[str, Any] = {
        "kind": "train",
        "task": "finetune",
        "seq": seq,
        "global_batch": batch,
        "packed": reader.switch(f"{MODEL}.use_remove_padding", default=True),
    }
    return workload | _lora(reader, megatron)


def _lora(reader: OptionReader, megatron: bool) -> dict[str, Any]:
    """Adapters, where the files ask for them."""
    ranks = [reader.take(f"{MODEL}.{name}", default=0) for name in ("lora.rank", "lora_rank")]
    rank = next((rank for rank in (ranks if megatron else ranks[::-1]) if isinstance(rank, int) and rank > 0), 0)
    if isinstance(rank, int) and rank > 0:
        names = LORA_NAMES[megatron]
        both = [reader.take(f"{MODEL}.{name}") for name in ("lora.target_modules", "target_modules")]
        listed = next((one for one in (both if megatron else both[::-1]) if one is not None), None)
        words = listed if isinstance(listed, list) else [name for part in names.values() for name in part]
        targets = [target for target, parts in names.items() if all(part in words for part in parts)]
        return {"task": "lora", "lora": {"rank": rank, "targets": targets}}
    loaded = [reader.take(f"{MODEL}.{name}") for name in ("lora_adapter_path", "lora.adapter_path")]
    if any(isinstance(path, str) and path for path in loaded):
        reader.assumptions.append(f"lora.rank = {ADAPTER_RANK}: that of the adapter which is loaded is not stated")
        return {"task": "lora", "lora": {"rank": ADAPTER_RANK, "targets": list(LORA_NAMES[megatron])}}
    return {}


def _fsdp(reader: OptionReader) -> dict[str, Any]:
    names = ("ulysses_sequence_parallel_size",)
    cp = reader.degree(*(f"{ACTOR}.{name}" for name in names), *(f"{FSDP}.{name}" for name in names))
    reader.take(f"{FSDP}.ulysses_sequence_parallel_size")
    plan: dict[str, Any] = {"tp": 1, "pp": 1, "cp": cp, "engine": "torch-eager"}
    if cp > 1:
        plan["cp_kind"] = "all-to-all"
    size = reader.take(f"{FSDP}.fsdp_size", default=-1)
    plan["shard"] = "zero3" if reader.switch(f"{FSDP}.reshard_after_forward", default=True) else "zero2"
    if isinstance(size, int) and size == 1:
        plan["shard"] = "none"
    elif isinstance(size, int) and size > 1:
        plan["shard_degree"] = size
    full = reader.switch(f"{MODEL}.enable_gradient_checkpointing", default=True)
    moved = reader.switch(f"{MODEL}.enable_activation_offload", default=False)
    states = reader.switch(f"{FSDP}.offload_policy", default=False)
    plan |= {
        "recompute": "full" if full else "none",
        "offload": {"activations": float(moved), "optimizer": float(states)},
    }
    stored = reader.word(f"{FSDP}.dtype", among={"bfloat16": "bf16", "float16": "fp16"}, default="bf16")
    short = {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16"}
    kept = reader.word(f"{FSDP}.model_dtype", among=short, default="fp32")
    plan["precision"] = {"name": stored, "gradients": "fp32"}
    kinds = {"AdamW": "adamw", "Adam": "adam", "SGD": "sgd", "AdamW8bit": "adamw"}
    name = reader.word(f"{OPTIM}.optimizer", among=kinds, default="adamw")
    plan["optimizer"] = {"name": name, "states": kept, "master": "none" if kept == stored else "fp32"}
    return plan


def recognises(files: Files) -> bool:
    """Options below actor_rollout_ref, in YAML or in a script; or a script of the supervised trainer."""
    try:
        if is_sft(files):
            return True
        if any("actor_rollout_ref" in table.data for table in tables(files, ".yml", ".yaml")):
            return True
        return any(key.startswith("actor_rollout_ref.") for key in assigned(files))
    except InputError:
        return False
