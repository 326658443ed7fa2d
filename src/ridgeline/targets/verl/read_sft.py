"""Turn the options of verl's supervised trainers into the words of the actor's update, which mean the same things."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ridgeline.core.files import Table
from ridgeline.targets.option_reader import OptionReader, flatten
from ridgeline.targets.target import Files
from ridgeline.targets.verl.names import ACTOR, FSDP, MEGATRON, MODEL, OPTIM
from ridgeline.targets.verl.read_base import base_of

PROGRAM = re.compile(r"verl\.trainer\.(fsdp_)?sft_trainer|verl/trainer/(fsdp_)?sft_trainer")
MOVED = {
    "model.partial_pretrain": f"{MODEL}.path",
    "ulysses_sequence_parallel_size": f"{ACTOR}.ulysses_sequence_parallel_size",
    "use_remove_padding": f"{MODEL}.use_remove_padding",
    "engine": "engine",
    "engine.strategy": "engine",
    "model.strategy": "engine",
}
ENGINES = {"megatron": MEGATRON, "veomni": f"{ACTOR}.veomni"}
OLDER = re.compile(r"fsdp_sft_trainer")  # which pads, and takes its microbatch in sequences


def is_sft(files: Files) -> bool:
    """Whether a script starts a supervised trainer of verl."""
    return any(name.endswith((".sh", ".sbatch", ".slurm")) and PROGRAM.search(text) for name, text in files.items())


def as_update(table: Table, files: Files) -> Table:
    """The options by the names that the actor's update has for them."""
    options = dict(flatten(table.data))
    engine = engine_in(options)
    found = {_renamed(key, engine): value for key, value in options.items()}
    return Table(data=found | {"strategy": engine}, source=next(iter(files), table.source))


def engine_in(options: Mapping[str, Any]) -> str:
    """Who trains: the engine that is chosen, that its own table names, or whose words stand there."""
    said = options.get("engine") or options.get("engine.strategy") or options.get("model.strategy")
    return "megatron" if "engine.tensor_model_parallel_size" in options else str(said or "fsdp")


def quiet_in(files: Files, options: Mapping[str, Any]) -> frozenset[str]:
    """Options of verl's own files by those names."""
    return frozenset(_renamed(key, engine_in(options)) for key in base_of(files).quiet)


def _renamed(key: str, engine: str) -> str:
    head, _, rest = key.partition(".")
    if key in MOVED:
        return MOVED[key]
    if head == "engine":
        return f"{ENGINES.get(engine, FSDP)}.{rest}"
    if key.startswith("model.fsdp_config."):
        return f"{FSDP}.{key.removeprefix('model.fsdp_config.')}"
    return f"{MODEL}.{rest}" if head == "model" else f"{OPTIM}.{rest}" if head == "optim" else key


def sft_workload(reader: OptionReader, plan: dict[str, Any], files: Files) -> dict[str, Any]:
    """Batch and sequence; sets the microbatch."""
    newer = not any(OLDER.search(text) for text in files.values())
    seq = reader.count("data.max_length", default=1024) or 1024
    batch = reader.count("data.train_batch_size", default=256) or 256
    for name, value in (("data.max_length", seq), ("data.train_batch_size", batch)):
        if name not in reader:
            reader.assumptions.append(f"{name} = {value}: verl's default, which the files do not change")
    reader.assumptions.append("every sequence as long as data.max_length allows; real ones are shorter")
    micro = reader.count("data.micro_batch_size_per_gpu", "data.micro_batch_size", default=4) or 4
    share = max(1, batch // plan["dp"]) if "dp" in plan else batch
    if reader.switch("data.use_dynamic_bsz", default=newer):
        tokens = reader.count("data.max_token_len_per_gpu", default=8192) or 8192
        micro = divisor_below(share, max(1, tokens * plan["cp"] // seq))
        reader.assumptions.append(f"microbatch = {micro}: full sequences that {tokens} tokens hold, in equal parts")
    plan["microbatch"] = min(micro, share)
    packed = reader.switch(f"{MODEL}.use_remove_padding", default=newer)
    return {"kind": "train", "task": "finetune", "seq": seq, "global_batch": batch, "packed": packed}


def divisor_below(whole: int, most: int) -> int:
    """The largest part of at most `most` that divides a whole.

    >>> divisor_below(160, 23), divisor_below(7, 3)
    (20, 1)
    """
    return next(part for part in range(min(most, whole), 0, -1) if whole % part == 0)
