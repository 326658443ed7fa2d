"""Turn verl's options, of the actor's update and of its supervised trainers, into settings of a scenario."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import not_among
from ridgeline.core.files import Table
from ridgeline.models.load import MODELS, find_name
from ridgeline.targets.decisions import divisor_below
from ridgeline.targets.dialects.megatron.collect import world_of
from ridgeline.targets.dialects.megatron.names import MODULES, RECIPES, placement_of
from ridgeline.targets.dialects.verl.names import ACTOR, DDP, FSDP, ID, LAYER, LORA_NAMES, MEGATRON, MODEL, OPTIM
from ridgeline.targets.dialects.verl.read_base import base_of
from ridgeline.targets.imports import option_reader
from ridgeline.targets.imports.model_names import UNKNOWN, named_by, with_depth
from ridgeline.targets.imports.run_files import SCRIPTS, checkout_of
from ridgeline.targets.option_table import imported_run, read_options
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Files, Imported, other_work, refusal

PROGRAM = re.compile(r"verl\.trainer\.(fsdp_)?sft_trainer|verl/trainer/(fsdp_)?sft_trainer")
MOVED = table_words("verl", "moved")
ENGINES = {"megatron": MEGATRON, "veomni": f"{ACTOR}.veomni"}
OLDER = re.compile(r"fsdp_sft_trainer")  # which pads, and takes its microbatch in sequences
ADAPTER_RANK = 32  # of an adapter that is loaded, where nothing says it
DEFAULT_MODEL = "deepseek-llm-7b"  # of verl's own configuration
PLACEHOLDER = re.compile(r"\$|your|path[_-]?to|/path/|^\W*(ref_)?model_?path\W*$|<", re.IGNORECASE)
UPDATE = ("actor_rollout_ref.", "model.", "data.")
STRATEGIES = ("", "fsdp", "fsdp2", "megatron", "veomni")


def is_sft(files: Files) -> bool:
    """Whether a script starts a supervised trainer of verl."""
    return any(name.endswith(SCRIPTS) and PROGRAM.search(text) for name, text in files.items())


def engine_in(options: JsonMapping) -> str:
    """Who trains: the engine that is chosen, that its own table names, or whose words stand there."""
    stated_options = options.get("engine") or options.get("engine.strategy") or options.get("model.strategy")
    return "megatron" if "engine.tensor_model_parallel_size" in options else str(stated_options or "fsdp")


def _actor_option(key: str, engine: str) -> str:
    """The name that the actor's update has for an option of a supervised trainer."""
    head, _, tail = key.partition(".")
    if key in MOVED:
        return MOVED[key]
    if head == "engine":
        return f"{ENGINES.get(engine, FSDP)}.{tail}"
    if key.startswith("model.fsdp_config."):
        return f"{FSDP}.{key.removeprefix('model.fsdp_config.')}"
    return f"{MODEL}.{tail}" if head == "model" else f"{OPTIM}.{tail}" if head == "optim" else key


def sft_workload(reader: option_reader.OptionReader, plan: JsonObject, files: Files) -> JsonObject:
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
    is_packed = reader.switch(f"{MODEL}.use_remove_padding", default=newer)
    return {"kind": "train", "task": "finetune", "seq": seq, "global_batch": batch, "packed": is_packed}


def megatron_plan(reader: option_reader.OptionReader) -> JsonObject:
    """Mesh, schedule, sharding, recompute and formats of an actor that Megatron trains."""
    plan = read_options(ID, "mesh", reader)
    plan.setdefault("etp", plan["tp"] if plan["ep"] > 1 else 1)
    plan |= {"engine": "megatron-core", "overlap": {}}
    if plan["tp"] > 1:
        tensor = read_options(ID, "tensor", reader)
        plan |= {"overlap": {"tp": tensor["tp"]}, "sequence_parallel": tensor["sequence_parallel"]}
    if plan["cp"] > 1:
        plan |= read_options(ID, "context", reader)
    ways = {"alltoall": "all-to-all", "allgather": "all-to-all", "flex": "deepep"}
    way = reader.word(f"{LAYER}.moe_token_dispatcher_type", among=ways, default=None)
    reader.skip(f"{LAYER}.moe_enable_deepep")
    plan |= option_reader.pick({"moe_dispatch": way})
    chunks = reader.degree(f"{MEGATRON}.virtual_pipeline_model_parallel_size")
    if plan["pp"] > 1:
        plan["schedule"] = {"name": "interleaved" if chunks > 1 else "1f1b", "chunks": chunks}
    return plan | _memory(reader, plan) | _formats(reader)


def megatron_placement(reader: option_reader.OptionReader, plan: JsonObject, layers: int) -> JsonObject:
    """Layers are dealt evenly, except that the first and the last stage may be told their share."""
    first = reader.count(f"{LAYER}.num_layers_in_first_pipeline_stage")
    last = reader.count(f"{LAYER}.num_layers_in_last_pipeline_stage")
    stages = plan["pp"] * plan.get("schedule", {}).get("chunks", 1)
    layout = reader.take(f"{LAYER}.pipeline_model_parallel_layout")
    layout = layout.strip("\"'").replace("\\|", "|") if isinstance(layout, str) else layout
    if isinstance(layout, str) and layout.lower() not in option_reader.OPEN and plan["pp"] > 1:
        placement = placement_of(layout)
        if len(placement) % plan["pp"] == 0 and len(placement) != stages:
            plan["schedule"] = {"name": "interleaved", "chunks": len(placement) // plan["pp"]}
        return {"placement": list(placement)}
    if plan["pp"] == 1 or not layers or stages > layers:
        return {}
    inner_layers, inner = layers - (first or 0) - (last or 0), stages - (first is not None) - (last is not None)
    share_each = inner_layers // inner if inner else 0
    if inner_layers < 0 or share_each * inner != inner_layers:
        reader.assumptions.append("placement: as Ridgeline balances it, for layers that do not divide")
        return {}
    rows = [share_each] * inner
    return {"placement": [*([first] if first else []), *rows, *([last] if last else [])]}


def _memory(reader: option_reader.OptionReader, plan: JsonObject) -> JsonObject:
    shards_weights = reader.switch(f"{MEGATRON}.use_megatron_fsdp")
    split = reader.switch(f"{MEGATRON}.use_distributed_optimizer", default=True)
    memory_plan: JsonObject = {"shard": "zero3" if shards_weights else "zero1" if split else "none"}
    plan["overlap"] |= read_options(ID, "overlaps", reader)
    kind = reader.take(f"{LAYER}.recompute_granularity") or "none"
    modules = reader.take(f"{LAYER}.recompute_modules", default=["core_attn"])
    method = reader.take(f"{LAYER}.recompute_method")
    layers = reader.count(f"{LAYER}.recompute_num_layers")
    memory_plan["recompute"] = {"kind": kind if kind in ("none", "selective", "full") else "none"}
    if kind == "selective" and isinstance(modules, list):
        memory_plan["recompute"]["parts"] = [part for part, name in MODULES.items() if name in modules]
    if kind == "full" and method == "block":
        memory_plan["recompute"]["layers"] = layers
    way = f"{OPTIM}.override_optimizer_config"
    if reader.switch(f"{way}.optimizer_cpu_offload"):
        memory_plan["offload"] = {"optimizer": reader.share(f"{way}.optimizer_offload_fraction", default=1.0)}
        plan["overlap"]["offload"] = reader.switch(f"{way}.overlap_cpu_optimizer_d2h_h2d")
    return memory_plan


def _formats(reader: option_reader.OptionReader) -> JsonObject:
    stored_format = reader.word(f"{MEGATRON}.dtype", among={"bfloat16": "bf16", "float16": "fp16"}, default="bf16")
    precision: JsonObject = dict.fromkeys(("compute", "weights", "activations", "kv"), stored_format)
    if reader.take(f"{LAYER}.fp8"):
        recipes = {recipe: means for means, recipe in RECIPES.items()} | {"delayed": ("fp8-e4m3", "tensor")}
        means = reader.word(f"{LAYER}.fp8_recipe", among=recipes, default=("fp8-e4m3", "tensor"))
        precision |= {"compute": means[0], "scaling": means[1]}
    precision["gradients"] = "fp32" if reader.switch(f"{DDP}.grad_reduce_in_fp32", default=True) else stored_format
    name = read_options(ID, "megatron_optimizer", reader)["name"]
    short = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
    states = reader.word(f"{OPTIM}.exp_avg_dtype", among=short, default="fp32")
    reader.skip(f"{OPTIM}.exp_avg_sq_dtype")
    if not reader.switch(f"{OPTIM}.use_precision_aware_optimizer"):
        states = "fp32"
    optimizer = {"name": name, "states": states, "master": "fp32"}
    return {"precision": precision, "optimizer": optimizer, **read_options(ID, "attention", reader)}


def read(files: Files) -> Imported:
    """A step of post-training; supervised training, or the update of an actor that Ridgeline wrote alone."""
    from ridgeline.targets.dialects.verl import post_training  # which reads this update too

    _refuse_other_work(files)
    table = merge_overrides(files)
    update = any(key.startswith("actor_rollout_ref.") for key, _ in option_reader.flatten(table.data))
    if update and not is_sft(files) and post_training.is_post_training(files):
        return post_training.read_post_training(files)
    return read_update(files)


def read_update(files: Files) -> Imported:
    """What the files say of the actor alone, as a training step; overrides in scripts stand above YAML."""
    _refuse_other_work(files)
    table = merge_overrides(files)
    if not any(key.startswith("actor_rollout_ref.") for key, _ in option_reader.flatten(table.data)):
        if is_sft(files):
            return _read_sft(files, table)
        raise refusal(
            "no such file", "a YAML file or script with actor_rollout_ref.* options", todo="name verl's own file"
        )
    reader, base = option_reader.OptionReader(table), base_of(files)
    reader.taken |= base.quiet
    strategy = actor_strategy(reader, f"{ACTOR}.strategy", base.engine)
    megatron = strategy == "megatron"
    if not strategy:
        megatron = any(option.startswith(f"{MEGATRON}.") for option in reader.options)
    plan = actor_plan(reader, megatron, strategy)
    places = ("async_resources.actor_train", "trainer")  # a pool of the update's own, where there is one
    nodes = reader.degree(*(f"{place}.nnodes" for place in places))
    chips_per_node = reader.count(*(f"{place}.n_gpus_per_node" for place in places), default=8) or 8
    if any("main_ppo_split" in text for text in files.values()):  # the critic has the other half
        nodes, chips_per_node = (nodes // 2, chips_per_node) if nodes > 1 else (nodes, max(1, chips_per_node // 2))
        half = f"{nodes * chips_per_node} chips of the actor: half of the machine, the critic has the other"
        reader.assumptions.append(half)
    plan["dp"] = max(1, nodes * chips_per_node // (plan["tp"] * plan["pp"] * plan["cp"]))
    if plan.get("shard_degree", 0) >= plan["dp"] * plan["cp"]:  # more than there are: all of them
        del plan["shard_degree"]
    return _imported(files, reader, plan, _workload(reader, plan, megatron), nodes * chips_per_node)


def _imported(
    files: Files, reader: option_reader.OptionReader, plan: JsonObject, workload: JsonObject, chips: int | None
) -> Imported:
    workload["optimizer"] = plan.pop("optimizer")
    model = _chosen(reader, files)
    plan |= megatron_placement(reader, plan, MODELS[model].layers if model else 0)
    settings = {"model": _without_further_tokens(reader, model), "workload": workload, "plan": plan}
    return imported_run(ID, reader, settings, chips=chips).with_notes(*option_reader.left_out(files))


def actor_plan(reader: option_reader.OptionReader, megatron: bool, strategy: str) -> JsonObject:
    plan = megatron_plan(reader) if megatron else _fsdp(reader)
    return plan | _veomni(reader) if strategy == "veomni" else plan


def actor_strategy(reader: option_reader.OptionReader, option: str, usual: str) -> str:
    strategy = str(reader.take(option, default=usual))
    if strategy not in STRATEGIES:
        reader.problems.append(not_among(option, strategy[:60], STRATEGIES[1:]))
    return strategy


def _refuse_other_work(files: Files) -> None:
    for name, text in files.items():
        program = re.search(r"verl\.trainer\.(main_generation\w*|main_eval\w*)", text) if name.endswith(".sh") else None
        if program and not re.search(r"main_ppo|sft_trainer|main_dapo|\.main_(?!gen|eval)\w+", text):
            raise other_work(f"generation of text ({program.group(1)})", where=name)


def _chosen(reader: option_reader.OptionReader, files: Files) -> str | None:
    """The model of the files, or the one that the caller names in its place."""
    model_name = checkout_of(files).model
    entry = find_name(model_name) if model_name else None
    if entry is not None:
        reader.skip(f"{MODEL}.path")
        return entry[0]
    usual = f"{MODEL}.path" in reader.taken  # of verl's own files
    model = _model(reader) or option_reader.model_in(files) or _by_file(reader, files)
    if usual and model is not None:
        reader.assumptions.append(f"model = {model}: verl's default, which the files do not change")
    return model


def _by_file(reader: option_reader.OptionReader, files: Files) -> str | None:
    """The model of a file that leaves its path open: by the file's own name, or verl's default where it is silent."""
    path = reader.options.get(f"{MODEL}.path")
    if path is None or path == "???":
        reader.assumptions.append(f"model = {DEFAULT_MODEL}: verl's default, which the files do not change")
        return DEFAULT_MODEL
    if not PLACEHOLDER.search(str(path)):
        return None
    for name in files:
        entry = named_by(Path(name).stem)
        if entry is not None:
            reader.notes = [note for note in reader.notes if note.option != f"{MODEL}.path"]
            reader.assumptions.append(f"model = {entry[0]}: the file's name; its path {str(path)[:60]} is left open")
            return entry[0]
    return None


def _read_sft(files: Files, table: Table) -> Imported:
    """What a script of the supervised trainer says, in the words of the actor's update."""
    options = dict(option_reader.flatten(table.data))
    engine = engine_in(options)
    actor_options = {_actor_option(key, engine): value for key, value in options.items()} | {"strategy": engine}
    reader = option_reader.OptionReader(Table(data=actor_options, source=next(iter(files), table.source)))
    reader.taken |= {_actor_option(key, engine) for key in base_of(files).quiet}
    reader.skip("engine")
    strategy = actor_strategy(reader, "strategy", "")
    megatron = strategy == "megatron"
    plan = actor_plan(reader, megatron, strategy)
    world = world_of(files)
    if world is not None:
        plan["dp"] = max(1, world // (plan["tp"] * plan["pp"] * plan["cp"]))
    workload = sft_workload(reader, plan, files) | read_lora(reader, megatron)
    return _imported(files, reader, plan, workload, world)


def _veomni(reader: option_reader.OptionReader) -> JsonObject:
    """Experts and sequences as the VeOmni engine spreads them over the ranks that share weights."""
    place = f"{ACTOR}.veomni"
    ep = reader.degree(f"{place}.expert_parallel_size", f"{place}.ep_size")
    cp = reader.degree(f"{place}.ulysses_parallel_size", f"{place}.ulysses_sequence_parallel_size")
    degrees: JsonObject = {"ep": ep, "etp": 1} if ep > 1 else {}
    size = reader.take(f"{place}.fsdp_size", default=-1)
    if isinstance(size, int) and size > 0:
        degrees |= {"shard": "none"} if size == 1 else {"shard_degree": size}
    if not reader.switch(f"{place}.enable_full_shard", default=True):
        degrees["shard"] = "zero2"
    return degrees | ({"cp": cp, "cp_kind": "all-to-all"} if cp > 1 else {})


def merge_overrides(files: Files) -> Table:
    yaml_tables = list(option_reader.tables(files, ".yml", ".yaml"))
    bare = ("engine", "ulysses_sequence_parallel_size", "use_remove_padding") if is_sft(files) else ()
    every_command = option_reader.assigned_by(files)
    updates = (options for options in every_command if any(key.startswith(UPDATE) for key in options))
    stated_options = next(updates, None) or option_reader.assignments(files)
    words = {key: value for key, value in stated_options.items() if "." in key or key in bare}
    base = base_of(files).options
    below = base | {key: value for table in yaml_tables for key, value in option_reader.flatten(table.data)}
    if below or yaml_tables:
        words = option_reader.interpolate_references(below | words, checkout_of(files).environment)
    data = option_reader.nest_options(words)
    if not yaml_tables:
        return Table(data=data, source=next(iter(files), ""))
    return replace(yaml_tables[0], data=data)


def _model(reader: option_reader.OptionReader) -> str | None:
    path = reader.take(f"{MODEL}.path")
    if not isinstance(path, str):
        return None
    entry = named_by(path)
    if entry is not None:
        if entry[1]:
            reader.assumptions.append(f"model = {entry[0]}: by {entry[1]} in {path[:80]}")
        return entry[0]
    reader.note(f"{MODEL}.path", path[:60], UNKNOWN)
    return None


def _without_further_tokens(reader: option_reader.OptionReader, model: str | None) -> str | JsonObject | None:
    """The model that is updated: blocks that predict further tokens are left out unless they are asked for."""
    ahead = [reader.switch(f"{MODEL}.mtp.{name}") for name in ("enable", "enable_train")]
    updated_model = model if all(ahead) else with_depth(model, 0)
    if updated_model != model:
        reader.assumptions.append("mtp = 0: prediction of further tokens is not switched on")
    return updated_model


def _workload(reader: option_reader.OptionReader, plan: JsonObject, megatron: bool) -> JsonObject:
    prompt = reader.count("data.max_prompt_length", default=512) or 512
    response = reader.count("data.max_response_length", default=512) or 512
    prompts = reader.count(f"{ACTOR}.ppo_mini_batch_size", default=256) or 256
    responses_each = reader.degree("actor_rollout_ref.rollout.n")
    reader.assumptions.append("every sequence as long as prompt and response may be; real ones are shorter")
    seq, batch = prompt + response, prompts * responses_each
    micro = reader.count(f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    tokens = reader.count(f"{ACTOR}.ppo_max_token_len_per_gpu", default=16384) or 16384
    share = max(1, batch // plan["dp"])
    over_all = reader.count(f"{ACTOR}.ppo_micro_batch_size")
    if micro is None and over_all is not None:  # of all ranks together
        micro = max(1, over_all // plan["dp"])
    if reader.switch(f"{ACTOR}.use_dynamic_bsz"):
        micro = divisor_below(share, max(1, tokens * plan["cp"] // seq))
        reader.assumptions.append(f"microbatch = {micro}: full sequences that {tokens} tokens hold, in equal parts")
    if micro is None:
        reader.assumptions.append("microbatch = 1: the files do not say it")
    plan["microbatch"] = min(micro or 1, share)
    workload: JsonObject = {"kind": "train", "task": "finetune", "seq": seq, "global_batch": batch}
    return workload | read_options(ID, "packed", reader) | read_lora(reader, megatron)


def read_lora(reader: option_reader.OptionReader, megatron: bool) -> JsonObject:
    ranks = [reader.take(f"{MODEL}.{name}", default=0) for name in ("lora.rank", "lora_rank")]
    rank = next((rank for rank in (ranks if megatron else ranks[::-1]) if isinstance(rank, int) and rank > 0), 0)
    if isinstance(rank, int) and rank > 0:
        lists = [reader.take(f"{MODEL}.{name}") for name in ("lora.target_modules", "target_modules")]
        given = next((names for names in (lists if megatron else lists[::-1]) if names is not None), None)
        modules = given if isinstance(given, list) else None
        named = LORA_NAMES[megatron].items()
        targets = [target for target, parts in named if modules is None or all(part in modules for part in parts)]
        return {"task": "lora", "lora": {"rank": rank, "targets": targets}}
    loaded_values = [reader.take(f"{MODEL}.{name}") for name in ("lora_adapter_path", "lora.adapter_path")]
    if any(isinstance(path, str) and path for path in loaded_values):
        reader.assumptions.append(f"lora.rank = {ADAPTER_RANK}: that of the adapter which is loaded is not stated")
        return {"task": "lora", "lora": {"rank": ADAPTER_RANK, "targets": list(LORA_NAMES[megatron])}}
    return {}


def _fsdp(reader: option_reader.OptionReader) -> JsonObject:
    cp = reader.degree(*(f"{place}.ulysses_sequence_parallel_size" for place in (ACTOR, FSDP)))
    reader.skip(f"{FSDP}.ulysses_sequence_parallel_size")
    plan: JsonObject = {"tp": 1, "pp": 1, "cp": cp, "engine": "torch-eager"}
    if cp > 1:
        plan["cp_kind"] = "all-to-all"
    size = reader.take(f"{FSDP}.fsdp_size", default=-1)
    plan["shard"] = "zero3" if reader.switch(f"{FSDP}.reshard_after_forward", default=True) else "zero2"
    if isinstance(size, int) and size == 1:
        plan["shard"] = "none"
    elif isinstance(size, int) and size > 1:
        plan["shard_degree"] = size
    full = reader.switch(f"{MODEL}.enable_gradient_checkpointing", default=True)
    offloads_activations = reader.switch(f"{MODEL}.enable_activation_offload")
    states = reader.switch(f"{FSDP}.offload_policy")
    plan["recompute"] = "full" if full else "none"
    plan["offload"] = {"activations": float(offloads_activations), "optimizer": float(states)}
    stored_format = reader.word(f"{FSDP}.dtype", among={"bfloat16": "bf16", "float16": "fp16"}, default="bf16")
    short = {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16"}
    format_kept = reader.word(f"{FSDP}.model_dtype", among=short, default="fp32")
    plan["precision"] = {"name": stored_format, "gradients": "fp32"}
    master = "none" if format_kept == stored_format else "fp32"
    plan["optimizer"] = read_options(ID, "fsdp_optimizer", reader) | {"states": format_kept, "master": master}
    return plan


@option_reader.false_where_unreadable
def recognises(files: Files) -> bool:
    """Options below actor_rollout_ref, in YAML or in a script; or a script of the supervised trainer."""
    yaml_tables = option_reader.tables(files, ".yml", ".yaml")
    if is_sft(files) or any("actor_rollout_ref" in table.data for table in yaml_tables):
        return True
    return any(key.startswith("actor_rollout_ref.") for key in option_reader.assignments(files))
