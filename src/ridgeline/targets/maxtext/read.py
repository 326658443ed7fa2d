"""Turn a MaxText configuration (YAML, or `key=value` arguments of a launch script) into settings of a scenario."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import Table
from ridgeline.models.dimensions import MOST_LAYERS
from ridgeline.models.load import MODELS
from ridgeline.models.load import model as load_model
from ridgeline.models.spec import ModelSpec
from ridgeline.targets.catalog_match import known_as
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.maxtext.names import (
    ALSO_NAMED,
    AXES,
    CONTEXT,
    ID,
    INPUT,
    LIKE,
    LONG,
    MODELS_NAMED,
    OPTIMIZERS,
    OTHERS,
    POLICIES,
    PROJECTIONS,
    QUANTIZED,
    WIDE,
    parts_of,
)
from ridgeline.targets.maxtext.read_machine import filled_axes, machine_of, spare_axis, started
from ridgeline.targets.option_reader import OptionReader, assigned, assigned_by, left_out, model_in, pick, tables
from ridgeline.targets.run_files import around
from ridgeline.targets.shell_eval import read_script
from ridgeline.targets.target import Files, Imported, Unread

PLAIN_BLOCKS = ("llama2", "mistral", "mixtral", "default", "qwen2", "qwen3", "qwen3_moe", "gpt3")
# options of a model file beside its dimensions
DESCRIBES = frozenset(
    {
        "head_dim", "mlp_activations", "vocab_size", "enable_dropout", "logits_via_embedding",
        "normalization_layer_epsilon",
        "decoder_block", "rope_max_timescale", "num_experts", "num_experts_per_tok", "attention_type", "q_lora_rank",
        "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "shared_experts",
        "first_num_dense_layers",
        "use_qk_norm", "attention_bias", "sliding_window_size", "mtp_num_layers",
    }
)  # fmt: skip
TRAINS = r"pre_train\.train|MaxText[./]train|[./]train\.py|train_sft|sft_train|\$EXECUTABLE"
# part of a program's name -> what it does instead of training
OTHER_WORK = dict.fromkeys(("inference", "decode", "maxengine", "generate"), "generation of text")
OTHER_WORK |= dict.fromkeys(
    ("to_huggingface", "to_maxtext", "conversion", "convert", "ckpt"), "conversion of checkpoints"
)
OTHER_WORK |= {"logit_checker": "an evaluation", "train_rl": "reinforcement learning", "grpo": "reinforcement learning"}
OTHER_WORK |= {"train_distill": "distillation from a teacher", "standalone_": "a check of input or checkpoints"}
MANY = frozenset({"per_device_batch_size", "ici_fsdp_parallelism", "max_target_length", "remat_policy", "model_name"})
APART = {
    "base_config": "the file this one changes",
    "run_name": "where output goes",
    "base_output_directory": "where output goes",
    "steps": "how many steps is not part of one",
    "*checkpoint*": "checkpoints are not part of a step",
    "dataset*": "which data decides nothing about speed",
    "tokenizer*": "the tokenizer decides nothing about speed",
    "*profiler*": "logging",
    "*log*": "logging",
    "*learning_rate*": "learning rates decide nothing about speed",
    "adam_*": "learning rates decide nothing about speed",
    "reuse_example_batch": "which data decides nothing about speed",
    "use_iota_embed": "how the embedding is looked up is not priced apart",
    "max_segments_per_seq": "documents in a sequence are not counted",
    "scan_layers": "how layers are compiled is not priced",
    "use_qwix_quantization": "which library quantizes is not priced",
    "use_tokamax_splash": "which flash kernel runs is not priced",
    "context_parallel_load_balance": "the load is taken as balanced",
    "sa_block_*": "tile sizes are not priced",
    "gradient_clipping_threshold": "clipping is not priced apart",
    "hardware": "the system says it",
    "*xla_flags*": "compiler flags are not read",
}


def read(files: Files) -> Imported:
    """What a configuration says; a launch script's arguments stand above the file."""
    files = started(files)
    chips, halves = machine_of(files)
    table = _merged(files)
    second = _second(files) or (spare_axis(table.data) if halves else "")
    devices = (chips or around(files).chips or 0) * (2 if halves else 1)
    table = filled_axes(table, devices)
    found = read_table(table, around(files).model or model_in(files), second)
    if "base_emb_dim" in table.data and not MANY & set(table.data):
        note = "a model file: batch, sequence, mesh and recompute are MaxText's defaults"
        found = replace(found, assumptions=(note, *found.assumptions))
    found = replace(found, assumptions=(*left_out(files), *found.assumptions))
    return replace(found, chips=chips) if chips else found


def read_table(table: Table, named: str | None, second: str = "") -> Imported:
    """What the options of a configuration say; `named` stands in for a model that they do not tell."""
    reader = OptionReader(table)
    found = _model(reader, named)
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
    workload |= {"packed": reader.switch("packing", default=True)} | pick({"global_batch": batch})
    settings = pick({"model": model}) | {"workload": workload, "plan": plan | {"precision": precision}}
    return Imported(
        target=ID,
        settings=settings,
        unread=reader.unread(APART),
        assumptions=tuple(reader.assumptions),
        per_rank=per_rank,
    )


def _merged(files: Files) -> Table:
    """The YAML file with the arguments of launch scripts on top."""
    found = [table for table in tables(files, ".yml", ".yaml") if (MANY | {"base_emb_dim"}) & set(table.data)]
    trains = [one for one in assigned_by(files, TRAINS) if MANY & set(one)]
    words = {key: value for key, value in (trains[0] if trains else assigned(files)).items() if "." not in key}
    if not found:
        _refuse_other_work(files)
    if len(found) > 1 or not (found or MANY & set(words)):
        expected = "one YAML file, or a script whose arguments are MaxText's"
        raise InputError(Problem(path="", given=f"{len(found)} such files", expected=expected, todo="name one file"))
    if not found:
        return Table(data=words, source=next(iter(files)))
    known = {key: value for key, value in words.items() if key in MANY or key.endswith("_parallelism")}
    return Table(data={**found[0].data, **known}, source=found[0].source, lines=found[0].lines)


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


def _model(reader: OptionReader, named: str | None) -> Any:
    """The model that the options name or spell; that of MaxText's defaults where nobody names one."""
    name = str(reader.take("model_name", default="default"))
    if name == "default" and "base_emb_dim" in reader:
        name = _file_named(reader)
    if name != "default":
        id = next((id for id, word in MODELS_NAMED.items() if word == name), ALSO_NAMED.get(name))
        if id is None:
            reader.notes.append(Unread(option="model_name", value=name[:60], why="no catalog entry is it"))
        reader.take("mtp_num_layers")
        return _changed(reader, id)
    scale = reader.degree("global_parameter_scale")
    if scale != 1:
        if f"maxtext-{scale}b" in MODELS and "base_emb_dim" not in reader:
            return f"maxtext-{scale}b"
        reader.bad("global_parameter_scale", scale, "a scale whose model the catalog has, or dimensions", None)
    if "base_emb_dim" not in reader:
        if named is not None or {"student_overrides", "teacher_overrides"} & set(reader.table.data):
            return None
        reader.assumptions.append("model: the 1.1 billion parameters of MaxText's own defaults, as no model is named")
    block = reader.word("decoder_block", among={name: name for name in PLAIN_BLOCKS}, default="default")
    normed = reader.switch("use_qk_norm", default=str(block).startswith("qwen3"))
    biased = reader.switch("attention_bias", default=block == "qwen2")
    heads = reader.count("base_num_query_heads", default=16)
    inner = reader.count("base_mlp_dim", default=7168)
    experts = reader.degree("num_experts")
    mlp: dict[str, Any] = {"mlp": {"hidden": inner}}
    moe_dim = None if reader.options.get("base_moe_mlp_dim") == -1 else reader.count("base_moe_mlp_dim")
    if experts > 1:
        topk = reader.degree("num_experts_per_tok")
        mlp = {"moe": {"experts": experts, "topk": topk, "hidden": moe_dim or inner}}
    table: dict[str, Any] = {
        "hidden": reader.count("base_emb_dim", default=2048),
        "layers": reader.count("base_num_decoder_layers", default=16),
        "vocab": reader.count("vocab_size", default=32000),
        "tied": reader.switch("logits_via_embedding", default=False),
        "attention": {
            "heads": heads,
            "kv_heads": reader.count("base_num_kv_heads", default=16),
            "head_dim": reader.count("head_dim", default=128),
            **({"qk_norm": "head"} if normed else {}),
            **({"qkv_bias": True} if biased else {}),
        },
        **mlp,
    }
    if block == "gpt3":
        table |= {"norm": "layer", "positions": reader.count("trainable_position_size", default=2048)}
        table["attention"] |= {"positions": "learned", "qkv_bias": True, "out_bias": True}
        table["mlp"] |= {"gated": False, "activation": "gelu", "bias": True}
    return known_as(table, ("context",))


def _changed(reader: OptionReader, id: str | None) -> Any:
    """A model of the catalog with the number of layers that the options give it; other dims that differ are told."""
    if id is None:
        return None
    spec = MODELS[id]
    asked = reader.count("base_num_decoder_layers")
    if reader.options.get("base_emb_dim") not in (None, spec.hidden):
        why = f"not the width of {id}, whose dims are taken"
        value = str(reader.options["base_emb_dim"])[:20]
        reader.notes.append(Unread(option="base_emb_dim", value=value, why=why, matters=True))
    stated = spec.layers // 2 if id == "longcat-flash" else spec.layers
    return {"base": id, "layers": asked} if asked is not None and asked != stated else id


def _file_named(reader: OptionReader) -> str:
    """The model that a file of MaxText's own model folder is named after."""
    stem = Path(reader.table.source).stem
    known = stem in ALSO_NAMED or stem in MODELS_NAMED.values()
    if known:
        for option in list(reader.options):
            if option.startswith("base_") or option in DESCRIBES:
                reader.take(option)
    return stem if known else "default"


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
    for axis in ("tensor", "tensor_sequence", "context", "pipeline", "expert"):
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
    groups = (not kept.isdisjoint(PROJECTIONS), not kept.isdisjoint(WIDE), not kept.isdisjoint(CONTEXT))
    near = {
        (True, True, True): "minimal_with_context",
        (True, True, False): "minimal",
        (True, False, True): "save_dot_with_context_except_mlp",
        (True, False, False): "save_dot_except_mlp",
    }
    share = sum(at[name] == 2 for name in kept) / len(kept) if kept else 0.0
    return near.get(groups, "full"), share


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
        files = started(files)
        if any(
            {"base_emb_dim", "base_num_decoder_layers"} <= set(table.data) for table in tables(files, ".yml", ".yaml")
        ):
            return True
        keys = {key for table in tables(files, ".yml", ".yaml") for key in table.data} | set(assigned(files))
    except InputError:
        return False
    return len(MANY & keys) >= 2
