"""Turn a YAML of NxD Training, with the config.json it names, into settings.

A tensor degree in the file counts NeuronCores. The file says how many ranks a node has and, on Trainium2, how many
cores are one of them: a node holds sixteen chips, so ranks of a node over sixteen are the ranks of a chip.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import Table
from ridgeline.hardware.load import system as load_system
from ridgeline.models.hf import from_config
from ridgeline.models.load import model as load_model
from ridgeline.models.model_file import dimensions_of
from ridgeline.models.spec import Attention, ModelSpec
from ridgeline.targets.catalog_match import known_as
from ridgeline.targets.launch import system_in
from ridgeline.targets.megatron.read_model import read_model
from ridgeline.targets.megatron.vocabulary import named_by_path
from ridgeline.targets.model_names import named_by
from ridgeline.targets.nemo_words import filled, model_words, tokenizer_words
from ridgeline.targets.nxd_training.names import CHUNKS, CP, EP, ID, MESH, PP, TP, VENDOR, cores_of
from ridgeline.targets.nxd_training.read_plan import plan_of, workload_of
from ridgeline.targets.option_reader import OptionReader, flatten, holds, model_in, only, pick
from ridgeline.targets.run_files import around
from ridgeline.targets.target import Files, Imported

CHIPS = 16  # of a node of Trainium
OTHER = re.compile(r"^hf_|[-_]*(config|trn\d|SFT|lora|DPO|ORPO|CP|\{).*$")  # of a name that tells the model
SPELLED = (
    "num_attention_heads", "ffn_hidden_size", "num_kv_heads", "normalization", "activation", "has_bias", "kv_channels",
    "share_embeddings_and_output_weights", "position_embedding_type", "sliding_window_size",
)  # fmt: skip
APART = {
    "exp_manager.*": "logging and checkpoints are not part of a step",
    "trainer.*": "how long a run is decides nothing about a step",
    "data.*": "which data decides nothing about speed",
    "model.optim.*": "learning rates decide nothing about speed",
    "model.*dropout*": "dropout is not priced apart",
    "model.init_method_std": "how weights begin decides nothing about speed",
    "model.use_scaled_init_method": "how weights begin decides nothing about speed",
    "model.use_cpu_initialization": "how weights begin decides nothing about speed",
    "model.weight_init_only": "how weights begin decides nothing about speed",
    "model.do_layer_norm_weight_decay": "learning rates decide nothing about speed",
    "model.layernorm_epsilon": "a number that costs nothing",
    "model.rope_theta": "a number that costs nothing",
    "model.moe.*": "how experts are balanced is not priced",
    "model_alignment_strategy.peft.*": "how adapters are scaled and saved decides nothing about speed",
    "model_alignment_strategy.*": "how answers are told apart decides nothing about speed",
    "precision.*": "taken by precision.type manual alone",
    "compiler_*": "how programs are compiled is not priced",
    "name": "names decide nothing",
    "seed": "seeds decide nothing about speed",
}


def recognises(files: Files) -> bool:
    """A YAML file with a distributed_strategy of tensor_model_parallel_size, or a model_source."""
    return holds(files, _is_ours, ".yaml", ".yml")


def _is_ours(data: Mapping[str, Any]) -> bool:
    mesh = data.get("distributed_strategy")
    return isinstance(mesh, Mapping) and "tensor_model_parallel_size" in mesh and isinstance(data.get("model"), Mapping)


def read(files: Files) -> Imported:
    """What the YAML says; an `InputError` where it cannot run on chips as plans have them."""
    table = only(files, _is_ours, "one YAML file with a distributed_strategy", ".yaml", ".yml")
    options = filled(dict(flatten(table.data)))
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
            raise InputError(Problem(path="", given=means, expected="training of a decoder", where=table.source))


def _ranks_of_chip(files: Files, devices: int, lnc: object) -> int:
    """Ranks of one chip: by the machine that the caller or the file names, else by the ranks of a whole node."""
    name = around(files).system or system_in(files)
    if name is None:
        return 4 if devices > 2 * CHIPS else 2
    machine = load_system(name)
    if machine.chip.vendor != VENDOR:
        given, expected = f"{name}, chips of {machine.chip.vendor}", f"chips of {VENDOR}: NxD runs on no others"
        raise InputError(Problem(path="system", given=given, expected=expected, todo="say --on 64xtrn1 or 64xtrn2"))
    ranks, own = cores_of(machine)
    if devices > ranks * CHIPS or (type(lnc) is int and lnc != own):
        given = f"{devices} ranks of {lnc or 1} cores on a node, for {name}"
        expected, todo = (
            f"at most {ranks * CHIPS} ranks of {own} cores: {CHIPS} chips of {ranks}",
            "name the other Trainium",
        )
        raise InputError(Problem(path="trainer.devices", given=given, expected=expected, todo=todo))
    return ranks


def _uneven(ranks: int, heads: int) -> bool:
    return bool(max(ranks, heads) % min(ranks, heads))


def _mesh(reader: OptionReader, ranks: int, spec: ModelSpec | None, table: Table) -> dict[str, int]:
    """Degrees in chips."""
    wide = reader.degree(TP)
    if wide % ranks:
        given = f"{wide}, and a chip holds {ranks} ranks (NeuronCores)"
        todo = "a plan's rank is a chip: cores of one chip that hold different data have no place in it"
        expected = f"a multiple of {ranks}"
        raise InputError(Problem(path=TP, given=given, expected=expected, todo=todo, where=table.source))
    for block in spec.blocks if spec is not None else ():
        if isinstance(block.mixer, Attention) and (block.mixer.heads % wide or _uneven(wide, block.mixer.kv_heads)):
            expected = f"a divisor of {block.mixer.heads} heads that shares {block.mixer.kv_heads} of keys evenly"
            raise InputError(Problem(path=TP, given=str(wide), expected=expected, where=table.source))
    reader.take(f"{MESH}.kv_replicator"), reader.take("model.qkv_linear"), reader.take("model.fuse_qkv")
    reader.take("trainer.lnc"), reader.take("trainer.devices"), reader.take("trainer.num_nodes")
    found = {"tp": wide // ranks, "pp": reader.degree(PP), "cp": reader.degree(CP), "ep": reader.degree(EP)}
    return {**found, "chunks": reader.degree(CHUNKS)}


def _model(files: Files, reader: OptionReader, table: Table) -> Any:
    """The model: that of the caller, of the config.json beside, of the dimensions, or of the name."""
    source = str(reader.take("model_source", default="megatron"))
    for name in ("model_config", "num_layers", "hidden_size", "max_position_embeddings"):
        reader.take(f"model.{name}")
    named = around(files).model or model_in(files)
    if named is not None:
        return named
    config = _config(files)
    if config is not None:
        return known_as(dimensions_of(from_config(config, id="model")), unsure=("context",))
    if source == "megatron":
        return _spelled(reader, table)
    for text in (reader.options.get("exp_manager.checkpoint_callback_params.filename"), table.source):
        found = named_by(OTHER.sub("", str(text)[:200]))
        if found is not None:
            note = f"model = {found[0]}: the files name {str(text)[:60]}; its config.json is not here"
            reader.assumptions.append(note)
            return found[0]
    return None


def _config(files: Files) -> Mapping[str, Any] | None:
    text, place = files.get("config.json"), around(files)
    if text is None and place.folder is not None:
        text = place.text(place.folder / "config.json")
    try:
        found = json.loads(text) if text is not None else None
    except ValueError:
        return None
    return found if isinstance(found, Mapping) and "model_type" in found else None


def _spelled(reader: OptionReader, table: Table) -> Any:
    """The model that `model_source: megatron` spells."""
    inner = table.data["model"]
    said = {key: reader.options.get(f"model.{key}", value) for key, value in inner.items()}
    data = table.data.get("data")
    tokenizer = data.get("tokenizer") if isinstance(data, Mapping) else None
    words = dict(model_words(said)) | dict(tokenizer_words(tokenizer))
    own = OptionReader(Table(data=words, source=table.source))
    model = read_model(own, named_by_path(table.source))
    own.unread({})  # raises what could not be used
    reader.assumptions += own.assumptions
    for key in SPELLED:
        reader.take(f"model.{key}")
    return model
