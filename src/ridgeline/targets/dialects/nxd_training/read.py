"""Turn NxD Training's words about plan and workload into settings of a scenario."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.files import Table
from ridgeline.hardware.load import system as load_system
from ridgeline.models.hf import from_config
from ridgeline.models.load import model as load_model
from ridgeline.models.model_file import dimensions_of
from ridgeline.models.spec import Attention, ModelSpec
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.dialects.megatron.read_model import named_by_path, read_model
from ridgeline.targets.dialects.nemo import model_words, resolve_references, tokenizer_words
from ridgeline.targets.dialects.nxd_training.names import (
    ADAPTERS,
    CHUNKS,
    CP,
    ENGINE,
    EP,
    ID,
    MESH,
    MODULES,
    PEFT,
    PP,
    TP,
    VENDOR,
    WIDE,
    cores_of,
)
from ridgeline.targets.dialects.nxd_training.write import even
from ridgeline.targets.imports.model_names import known_as, named_by
from ridgeline.targets.imports.option_reader import OptionReader, flatten, holds, model_in, only, pick
from ridgeline.targets.imports.run_files import checkout_of
from ridgeline.targets.launchers.launch import system_in
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Files, Imported, Unread, refusal

PARTS = {word: part for names in MODULES.values() for part, word in names.items()}
FORMATS = ("bf16SR", "fp32", "autocast", "mixed_precision", "mixed_precisionSR", "manual")


def plan_of(reader: OptionReader, mesh: Mapping[str, int], spec: ModelSpec | None) -> JsonObject:
    """The plan; layers of its stages where the file cuts them."""
    plan: JsonObject = {"engine": ENGINE, **{axis: mesh[axis] for axis in ("tp", "pp", "cp")}}
    if spec is not None and has_experts(spec):
        plan |= {"ep": mesh["ep"], "etp": mesh["tp"]}
    plan["microbatch"] = reader.degree("data.micro_batch_size")
    parallel = reader.switch(f"{MESH}.sequence_parallel", default=False)
    if mesh["tp"] > 1:
        plan["sequence_parallel"] = parallel
    elif not parallel:
        why = "ranks of one chip hold the sequence twice: read as if they shared it"
        reader.notes.append(Unread(option=f"{MESH}.sequence_parallel", value="false", why=why, matters=True))
    if mesh["pp"] > 1:
        plan |= _stages(reader, mesh, spec.layers if spec is not None else 0)
    plan["shard"] = "zero1" if reader.switch(f"{MESH}.zero1", default=True) else "none"
    plan["recompute"] = _recompute(reader, mesh["cp"] > 1)
    plan["attention"] = _attention(reader, mesh)
    plan["precision"] = _formats(reader, plan["shard"] == "zero1")[0]
    return plan


def _stages(reader: OptionReader, mesh: Mapping[str, int], layers: int) -> JsonObject:
    chunks, cuts = mesh["chunks"], reader.take("model.pipeline_cuts")
    stage_plan: JsonObject = {"schedule": {"name": "interleaved", "chunks": chunks} if chunks > 1 else "1f1b"}
    stages = mesh["pp"] * chunks
    if isinstance(cuts, list) and len(cuts) == stages - 1 and layers:
        last = [int(digits) for cut in cuts if (digits := str(cut).rpartition(".")[2]).isdigit() and len(digits) < 6]
        ends = [-1, *last, layers - 1]
        layers_held = [after - before for before, after in pairwise(ends)]
        if len(last) == len(cuts) and min(layers_held) > 0:
            return stage_plan | {"placement": layers_held}
        cuts = None
    if layers and layers % stages:
        stage_plan["placement"] = list(even(layers, stages))
    return stage_plan


def _recompute(reader: OptionReader, ring: bool) -> JsonObject:
    """Whole layers, or modules by class. Llama's attention is recomputed unless a fused kernel takes its place."""
    kinds = {"selective": "selective", "full": "full", "none": "none"}
    kind = reader.word("model.activations_checkpoint_granularity", among=kinds, default="none")
    modules = reader.take("model.activations_checkpoint_recompute")
    names = [str(name) for name in modules] if isinstance(modules, list) else []
    if kind == "full":
        return {"kind": kind}
    is_fused = ring or reader.options.get("model.fusions.flash_attention") is True
    if kind == "none" or not names:
        is_kept = is_fused or (kind == "none" and "moe" in {key.split(".")[1] for key in reader.options if "." in key})
        return {"kind": "none"} if is_kept else {"kind": "selective", "parts": ["attention"]}
    parts = {PARTS[name] for name in names if name in PARTS} | ({"moe"} if "MoE" in names else set())
    if is_fused and "attention" in parts:
        parts.remove("attention")
        reader.assumptions.append("CoreAttention is not recomputed: a fused kernel takes its place")
    strange = [name for name in names if name not in PARTS and name != "MoE"]
    if strange:
        why, option = "not a module whose recompute is priced", "model.activations_checkpoint_recompute"
        reader.notes.append(Unread(option=option, value=", ".join(strange)[:80], why=why, matters=True))
    return {"kind": "selective", "parts": sorted(parts)} if parts else {"kind": "none"}


def _attention(reader: OptionReader, mesh: Mapping[str, int]) -> str:
    is_fused = [reader.switch(f"model.fusions.{name}", default=False) for name in ("flash_attention", "ring_attention")]
    reader.take("model.fusions.softmax"), reader.take("model.transpose_nki_inputs")
    return "flash" if any(is_fused) or mesh["cp"] > 1 else "unfused"


def _formats(reader: OptionReader, sharded: bool) -> tuple[JsonObject, JsonObject]:
    """Formats of the plan, and of the optimizer."""
    kind = reader.word("precision.type", among={name: name for name in FORMATS}, default="mixed_precision")
    master = wide = kind in ("mixed_precision", "mixed_precisionSR", "autocast")
    if kind == "manual":
        master = reader.switch("precision.master_weights", default=False)
        wide = reader.switch("precision.fp32_grad_acc", default=False)
    if kind == "fp32":
        return {"name": "fp32"}, {"master": None, "states": "fp32"}
    master, wide = master and sharded, wide and sharded
    word = str(reader.take("model.optim.name", default="adamw"))
    states = "fp32" if master or word == WIDE else "bf16"
    optimizer_formats = {"master": "fp32" if master else None, "states": states}
    return {"name": "bf16", "gradients": "fp32" if wide else "bf16"}, optimizer_formats


def workload_of(reader: OptionReader) -> JsonObject:
    """What is trained, on how many tokens."""
    names = {"adamw": "adamw", WIDE: "adamw", "adam": "adam", "sgd": "sgd", "adafactor": "adafactor"}
    is_sharded = reader.switch(f"{MESH}.zero1", default=True)
    optimizer = {
        "name": reader.word("model.optim.name", among=names, default="adamw"),
        **_formats(reader, is_sharded)[1],
    }
    optimizer["master"] = optimizer["master"] or "none"
    count_read: JsonObject = {"kind": "train", "seq": reader.count("model.encoder_seq_length", "data.seq_length")}
    reader.take("data.seq_length")
    count_read["global_batch"] = reader.count("data.global_batch_size")
    count_read["optimizer"] = optimizer
    tuning_switches = [name for name in reader.options if name.startswith("model_alignment_strategy")]
    if tuning_switches or reader.switch("data.use_sft_style_data_module", default=False):
        count_read["packed"] = reader.switch("model_alignment_strategy.sft.packing", "data.packing", default=True)
        count_read["task"] = "finetune"
    rank = reader.count(f"{PEFT}.lora_rank")
    if rank is not None:
        back: dict[str, list[str]] = {}
        for target, word in ADAPTERS.items():
            back.setdefault(word, []).append(target)
        modules = reader.take(f"{PEFT}.target_modules")
        names_of = [str(module) for module in modules] if isinstance(modules, list) else ["qkv_proj"]
        targets = [target for word in names_of for target in back.get(word, [])]
        count_read |= {"task": "lora", "lora": {"rank": rank, "targets": targets or ["qkv"]}}
    return count_read


CHIPS = 16  # of a node of Trainium
OTHER = re.compile(r"^hf_|[-_]*(config|trn\d|SFT|lora|DPO|ORPO|CP|\{).*$")  # of a name that tells the model
SPELLED = (
    "num_attention_heads", "ffn_hidden_size", "num_kv_heads", "normalization", "activation", "has_bias", "kv_channels",
    "share_embeddings_and_output_weights", "position_embedding_type", "sliding_window_size",
)  # fmt: skip
APART = table_words("nxd-training", "apart")


def recognises(files: Files) -> bool:
    """A YAML file with a distributed_strategy of tensor_model_parallel_size, or a model_source."""
    return holds(files, _is_ours, ".yaml", ".yml")


def _is_ours(data: JsonMapping) -> bool:
    mesh = data.get("distributed_strategy")
    return isinstance(mesh, Mapping) and "tensor_model_parallel_size" in mesh and isinstance(data.get("model"), Mapping)


def read(files: Files) -> Imported:
    """What the YAML says; an `InputError` where it cannot run on chips as plans have them."""
    table = only(files, _is_ours, "one YAML file with a distributed_strategy", ".yaml", ".yml")
    options = resolve_references(dict(flatten(table.data)))
    reader = OptionReader(Table(data=options, source=table.source))
    _refuse_other_work(reader, table)
    usual = {"num_nodes": 1, "devices": 2 * CHIPS}
    nodes, devices = (reader.count(f"trainer.{key}") or number for key, number in usual.items())
    ranks = _ranks_of_chip(files, devices, reader.take("trainer.lnc"))
    model = _model(files, reader, table)
    spec = load_model(model) if model is not None else None
    mesh = _mesh(reader, ranks, spec, table)
    plan = plan_of(reader, mesh, spec)
    workload = workload_of(reader)
    return Imported(
        target=ID,
        settings=pick({"model": model}) | {"workload": pick(workload), "plan": plan},
        unread=reader.unread(APART),
        assumptions=tuple(reader.assumptions),
        chips=nodes * devices // ranks,
    )


def _refuse_other_work(reader: OptionReader, table: Table) -> None:
    for kind, means in (("dpo", "preference pairs (DPO)"), ("orpo", "preference pairs (ORPO)")):
        if any(name.startswith(f"model_alignment_strategy.{kind}.") for name in reader.options):
            raise refusal(means, "training of a decoder", where=table.source)


def _ranks_of_chip(files: Files, devices: int, lnc: object) -> int:
    """Ranks of one chip: by the machine that the caller or the file names, else by the ranks of a whole node."""
    name = checkout_of(files).system or system_in(files)
    if name is None:
        return 4 if devices > 2 * CHIPS else 2
    machine = load_system(name)
    if machine.chip.vendor != VENDOR:
        given_text, expected_text = (
            f"{name}, chips of {machine.chip.vendor}",
            f"chips of {VENDOR}: NxD runs on no others",
        )
        raise refusal(given_text, expected_text, path="system", todo="say --on 64xtrn1 or 64xtrn2")
    ranks, own_cores = cores_of(machine)
    if devices > ranks * CHIPS or (type(lnc) is int and lnc != own_cores):
        given_text = f"{devices} ranks of {lnc or 1} cores on a node, for {name}"
        expected_text, todo = (
            f"at most {ranks * CHIPS} ranks of {own_cores} cores: {CHIPS} chips of {ranks}",
            "name the other Trainium",
        )
        raise refusal(given_text, expected_text, path="trainer.devices", todo=todo)
    return ranks


def _uneven(ranks: int, heads: int) -> bool:
    return bool(max(ranks, heads) % min(ranks, heads))


def _mesh(reader: OptionReader, ranks: int, spec: ModelSpec | None, table: Table) -> dict[str, int]:
    """Degrees in chips."""
    wide = reader.degree(TP)
    if wide % ranks:
        given_text = f"{wide}, and a chip holds {ranks} ranks (NeuronCores)"
        todo = "a plan's rank is a chip: cores of one chip that hold different data have no place in it"
        expected_text = f"a multiple of {ranks}"
        raise refusal(given_text, expected_text, path=TP, todo=todo, where=table.source)
    for block in spec.blocks if spec is not None else ():
        if isinstance(block.mixer, Attention) and (block.mixer.heads % wide or _uneven(wide, block.mixer.kv_heads)):
            expected_text = f"a divisor of {block.mixer.heads} heads that shares {block.mixer.kv_heads} of keys evenly"
            raise refusal(str(wide), expected_text, path=TP, where=table.source)
    reader.take(f"{MESH}.kv_replicator"), reader.take("model.qkv_linear"), reader.take("model.fuse_qkv")
    reader.take("trainer.lnc"), reader.take("trainer.devices"), reader.take("trainer.num_nodes")
    degrees = {"tp": wide // ranks, "pp": reader.degree(PP), "cp": reader.degree(CP), "ep": reader.degree(EP)}
    return {**degrees, "chunks": reader.degree(CHUNKS)}


def _model(files: Files, reader: OptionReader, table: Table) -> Any:
    """The model: that of the caller, of the config.json beside, of the dimensions, or of the name."""
    source = str(reader.take("model_source", default="megatron"))
    for name in ("model_config", "num_layers", "hidden_size", "max_position_embeddings"):
        reader.take(f"model.{name}")
    model_name = checkout_of(files).model or model_in(files)
    if model_name is not None:
        return model_name
    config = _config(files)
    if config is not None:
        return known_as(dimensions_of(from_config(config, id="model")), unsure=("context",))
    if source == "megatron":
        return _spelled_model(reader, table)
    for text in (reader.options.get("exp_manager.checkpoint_callback_params.filename"), table.source):
        entry = named_by(OTHER.sub("", str(text)[:200]))
        if entry is not None:
            note = f"model = {entry[0]}: the files name {str(text)[:60]}; its config.json is not here"
            reader.assumptions.append(note)
            return entry[0]
    return None


def _config(files: Files) -> JsonMapping | None:
    text, place = files.get("config.json"), checkout_of(files)
    if text is None and place.folder is not None:
        text = place.text(place.folder / "config.json")
    try:
        config = json.loads(text) if text is not None else None
    except ValueError:
        return None
    return config if isinstance(config, Mapping) and "model_type" in config else None


def _spelled_model(reader: OptionReader, table: Table) -> Any:
    """The model that `model_source: megatron` spells."""
    inner = table.data["model"]
    stated_options = {key: reader.options.get(f"model.{key}", value) for key, value in inner.items()}
    data = table.data.get("data")
    tokenizer = data.get("tokenizer") if isinstance(data, Mapping) else None
    words = dict(model_words(stated_options)) | dict(tokenizer_words(tokenizer))
    inner_reader = OptionReader(Table(data=words, source=table.source))
    model = read_model(inner_reader, named_by_path(table.source))
    inner_reader.unread({})  # raises what could not be used
    reader.assumptions += inner_reader.assumptions
    for key in SPELLED:
        reader.take(f"model.{key}")
    return model
