"""AWS NxD Training: a YAML of NeuronX Distributed Training with the model's config.json, and such files read back.

Its ranks are NeuronCores. A plan's rank is a chip, whose cores hold tensor shards of what the plan gives the chip: a
tensor degree in the file is the plan's times the cores of a chip.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, pairwise

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.files import Table
from ridgeline.hardware.load import system as load_system
from ridgeline.hardware.system import System
from ridgeline.models.dimensions import dimensions_of
from ridgeline.models.hf import from_config
from ridgeline.models.load import model as load_model
from ridgeline.models.numerics import numerics_of
from ridgeline.models.spec import Attention, Mlp, ModelSpec, Moe
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario, training
from ridgeline.plan.workload import Train
from ridgeline.targets.decisions import decisions_of, has_experts
from ridgeline.targets.dialects.maxtext.write import plain_block, plain_sizes
from ridgeline.targets.dialects.megatron.read_model import named_by_path, read_model
from ridgeline.targets.dialects.megatron.write_model import unknown_losses
from ridgeline.targets.dialects.nemo import model_words, resolve_references, tokenizer_words
from ridgeline.targets.imports.model_names import known_as, named_by
from ridgeline.targets.imports.option_reader import OptionReader, flatten, holds, model_in, nest_options, only, pick
from ridgeline.targets.imports.run_files import checkout_of
from ridgeline.targets.launchers.launch import TORCHRUN, NodeCommand, account_run, export_run, nodes_of, system_in
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, habits, lose
from ridgeline.targets.option_table import imported_run, read_options, say_options
from ridgeline.targets.recompute_fallback import fallback_losses, nearest
from ridgeline.targets.tables import names, values, words
from ridgeline.targets.target import Export, Files, Imported, other_work, refusal
from ridgeline.targets.yaml_text import yaml_text

ID = "nxd-training"
ENGINE = "nxd"
VENDOR = "AWS"

MESH = "distributed_strategy"
TP = f"{MESH}.tensor_model_parallel_size"
CHUNKS = f"{MESH}.virtual_pipeline_model_parallel_size"
PEFT = "model_alignment_strategy.peft"
MODULES = values(ID, "modules")  # parts of a layer -> modules that selective recompute names, of Llama and of Mixtral
ADAPTERS = {"qkv": "qkv_proj", "out": "o_proj", "up": "gate_up_proj", "gate": "gate_up_proj", "down": "down_proj"}
OPTIMIZERS = ("adamw", "adam", "sgd", "adafactor")
WIDE = "adamw_fp32OptState"  # AdamW whose states are fp32 whatever the weights are
FILE = "nxd.yaml"
CONFIG = "config.json"
NOTE = (
    "# NXDT is a checkout of aws-neuron/neuronx-distributed-training; data.train_dir in nxd.yaml is yours to choose.\n"
    "# COMPILE=1 compiles the programs of a first run ahead of time; words after the script's name override keys."
)
ENVIRONMENT = words(ID, "environment")  # what AWS's own script sets: the network of several nodes, memory of the host
# what a first run needs beside the decisions
RUN = {name: None if value == "null" else value for name, value in values(ID, "run").items()}
MODULE_PARTS = {word: part for names in MODULES.values() for part, word in names.items()}
FORMATS = ("bf16SR", "fp32", "autocast", "mixed_precision", "mixed_precisionSR", "manual")
CHIPS = 16  # of a node of Trainium
OTHER = re.compile(r"^hf_|[-_]*(config|trn\d|SFT|lora|DPO|ORPO|CP|\{).*$")  # of a name that tells the model


def cores_of(system: System) -> tuple[int, int]:
    """Ranks of one chip, and the physical NeuronCores that are one of them (lnc).

    >>> import ridgeline
    >>> cores_of(ridgeline.system("16xtrn1")), cores_of(ridgeline.system("16xtrn2"))
    ((2, 1), (4, 2))
    """
    if system.chip.vendor != VENDOR or system.chip.cores is None:
        return 1, 1
    cores = int(system.chip.cores.value)
    lnc = 2 if cores >= 8 else 1
    return cores // lnc, lnc


def shares_evenly(mixer: Attention, ranks: int) -> bool:
    """Whether tensor ranks share the heads of an attention, and those of its keys, evenly."""
    return not mixer.heads % ranks and not max(ranks, mixer.kv_heads) % min(ranks, mixer.kv_heads)


def even(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage as NxD deals them by itself: what is left over goes to the last stages.

    >>> even(32, 4), even(10, 4)
    ((8, 8, 8, 8), (2, 2, 3, 3))
    """
    layers_each, remainder = divmod(layers, stages)
    return tuple(layers_each + (place >= stages - remainder) for place in range(stages))


def axes(scenario: Scenario) -> Iterator[Piece]:
    """The mesh; a tensor degree counts the cores of a chip."""
    plan, mesh, (ranks, lnc) = scenario.plan, scenario.plan.mesh, cores_of(scenario.system)
    nodes, chips_per_node = nodes_of(scenario.system)
    yield Say("trainer.devices", chips_per_node * ranks, "system.chips")
    yield Say("trainer.num_nodes", nodes, "system.chips")
    if lnc > 1:
        yield Say("trainer.lnc", lnc)
    yield Say(TP, mesh.tp * ranks, "plan.tp")
    yield from say_options(ID, "axes", decisions_of(scenario))
    yield from habits(ID, "axes")
    parallel = bool(plan.sequence_parallel) or mesh.tp == 1
    yield Say(f"{MESH}.sequence_parallel", parallel, "plan.sequence_parallel")
    sparse = has_experts(scenario.model)
    if sparse:
        yield from say_options(ID, "experts", decisions_of(scenario))
    yield Fixed("plan.etp", mesh.tp if sparse else mesh.etp, "experts are split as the rest of a layer is")


def pipeline(scenario: Scenario) -> Iterator[Piece]:
    """1f1b and interleaved, layers dealt evenly or cut where a list says."""
    plan, schedule = scenario.plan, scenario.plan.schedule
    known_names = schedule.name in ("1f1b", "interleaved")
    chunks = schedule.chunks if schedule.name == "interleaved" else 1
    if plan.mesh.pp == 1:
        yield Say(CHUNKS, 1)
        return
    paths = ("plan.schedule.name", "plan.schedule.chunks")
    yield Say(CHUNKS, chunks, *(paths if known_names else ()))
    if not known_names:
        why = "schedules are 1f1b and interleaved 1f1b; written: 1f1b, layers dealt evenly"
        yield from lose(why, *paths, "plan.placement")
        return
    stages = plan.mesh.pp * chunks
    if scenario.placement == even(scenario.model.layers, stages):
        yield Fixed("plan.placement", scenario.placement, "an even split is the default")
    elif chunks > 1:
        yield Lose("plan.placement", "layers of virtual stages are dealt evenly")
    else:
        last = list(accumulate(scenario.placement))[:-1]
        yield Say("model.pipeline_cuts", [f"model.layers.{count - 1}" for count in last], "plan.placement")


def batch(scenario: Scenario) -> Iterator[Piece]:
    """Sequences, and what is trained on them."""
    work = training(scenario).workload
    for section in ("micro", "batch"):
        yield from say_options(ID, section, decisions_of(scenario))
    yield Say("model.max_position_embeddings", max(work.seq, scenario.model.context))
    if work.task != "pretrain":
        yield Say("model_alignment_strategy.sft.packing", work.packed, "workload.task", "workload.packed")
        yield Say("data.seq_length", work.seq)
    yield from habits(ID, "batch")
    if work.lora is not None:
        yield Say(f"{PEFT}.lora_rank", work.lora.rank, "workload.lora.rank")
        modules = list(dict.fromkeys(ADAPTERS[name] for name in work.lora.targets if name in ADAPTERS))
        yield Say(f"{PEFT}.target_modules", modules, "workload.lora.targets")
        if set(work.lora.targets) - set(ADAPTERS):
            yield Lose("workload.lora.targets", f"adapters go on {', '.join(dict.fromkeys(ADAPTERS.values()))}")


def formats(scenario: Scenario) -> Iterator[Piece]:
    """Mixed precision keeps fp32 masters and gradients, with zero1 only; else everything is bf16, or fp32."""
    precision, work, decisions = scenario.plan.precision, training(scenario).workload, decisions_of(scenario)
    is_sharded, gradients = scenario.plan.sharding.shard != "none", decisions["plan.precision.gradients"]
    stored_format = "fp32" if precision.weights.id == "fp32" else "bf16"
    master = work.optimizer.master.id if work.optimizer.master else "none"
    kind = "bf16SR" if gradients == "bf16" and master == "none" else "mixed_precision"
    kind = "fp32" if stored_format == "fp32" else kind
    yield Say("precision.type", kind, "plan.precision.weights")
    for path in ("weights", "activations", "compute"):
        why = "weights, activations and products have one format, bf16 or fp32"
        yield Fixed(f"plan.precision.{path}", stored_format, why)
        if getattr(precision, path).id != stored_format:
            yield Lose(f"plan.precision.{path}", f"one format for all: written as {stored_format}")
    wide = kind == "mixed_precision" and is_sharded
    gradient_format = "fp32" if wide or stored_format == "fp32" else "bf16"
    yield Fixed("plan.precision.gradients", gradient_format, "fp32 beside zero1 only")
    yield Fixed("workload.optimizer.master", "fp32" if wide else "none", "masters are kept beside zero1 only")
    yield from _optimizer(work, wide or stored_format == "fp32")


def _optimizer(work: Train, wide: bool) -> Iterator[Piece]:
    name, states, path = work.optimizer.name, work.optimizer.states.id, "workload.optimizer"
    word: str = name if name in OPTIMIZERS else "adamw"
    if word == "adamw" and states == "fp32" and not wide:
        word = WIDE
        yield Say("model.optim.name", word, f"{path}.states")
    yield Say("model.optim.name", word, *((f"{path}.name",) if name in OPTIMIZERS else ()))
    yield Fixed(f"{path}.name", "adamw", f"written are {', '.join(OPTIMIZERS)}")
    yield Fixed(f"{path}.states", "fp32" if wide else "bf16", "states have the format of what is updated")


def sharding(scenario: Scenario) -> Iterator[Piece]:
    """zero1 or nothing."""
    plan, shard = scenario.plan, scenario.plan.sharding.shard
    yield Say(f"{MESH}.zero1", shard != "none", "plan.shard")
    if shard not in ("none", "zero1"):
        yield Lose("plan.shard", "states are sharded, weights and gradients are not: written as zero1")
    yield Fixed("plan.shard_degree", plan.mesh.dp * plan.mesh.cp, "over all data-parallel ranks")


def written_recompute(scenario: Scenario) -> Recompute:
    """What can be said of recompute: whole layers, or modules of all layers. A fused kernel takes the place of core
    attention, which is not recomputed then; in Llama's class it always is without one."""
    sparse = has_experts(scenario.model)
    parts = set(MODULES["mixtral" if sparse else "llama"])
    is_fused = scenario.plan.mesh.cp > 1 or decisions_of(scenario)["plan.attention"] == "flash"
    if is_fused:
        parts.discard("attention")
    fallback = replace(nearest(scenario, parts), layers=None, rest="none", blocks={})
    if fallback.kind == "none" and not is_fused and not sparse:
        return Recompute(kind="selective", parts=("attention",))
    return fallback


def recompute(scenario: Scenario) -> Iterator[Piece]:
    """Modules by the names of their classes, or whole layers."""
    written, names = written_recompute(scenario), MODULES["mixtral" if has_experts(scenario.model) else "llama"]
    why = "all layers, or modules of all layers; core attention is fused under flash"
    yield from fallback_losses(scenario, written, why)
    kind = None if written.kind == "none" else written.kind
    yield Say("model.activations_checkpoint_granularity", kind, "plan.recompute.kind")
    modules = [names[part] for part in sorted(written.parts)] if kind == "selective" else None
    yield Say("model.activations_checkpoint_recompute", modules, "plan.recompute.parts")
    yield from habits(ID, "recompute")


def switches(scenario: Scenario) -> Iterator[Piece]:
    """Attention's kernel, and what the compiler decides."""
    ring, flash = scenario.plan.mesh.cp > 1, decisions_of(scenario)["plan.attention"] == "flash"
    yield Say("model.fusions.softmax", True)
    yield Say("model.fusions.flash_attention", flash and not ring, *(() if ring else ("plan.attention",)))
    if ring:  # which is refused beside flash attention, and is a fused kernel itself
        yield Say("model.fusions.ring_attention", True)
        yield Fixed("plan.attention", "flash", "ring attention is a fused kernel")
    yield from habits(ID, "switches")


def write(scenario: Scenario) -> Export:
    """nxd.yaml, config.json and the launch scripts."""
    ledger = account_run(ID, scenario, (piece for part in PARTS for piece in part(scenario)))
    text, block = yaml_text(nest_options({**ledger.options, **RUN})), plain_block(scenario.model)
    config = {CONFIG: json.dumps(config_of(scenario.model, *block), indent=2) + "\n"} if block else {}
    return export_run(ID, scenario, ledger, {FILE: text}, _command(scenario), config)


def _command(scenario: Scenario) -> NodeCommand:
    """torchrun with a process for each logical NeuronCore of the node."""
    (_, chips_per_node), (ranks, lnc) = nodes_of(scenario.system), cores_of(scenario.system)
    environment = dict(ENVIRONMENT)
    if lnc > 1:
        environment["NEURON_RT_VIRTUAL_CORE_SIZE"] = str(lnc)
    words = (
        f"${{COMPILE:+neuron_parallel_compile}} {TORCHRUN} --nproc_per_node={chips_per_node * ranks} "
        '--nnodes="$NNODES" '
        '--node_rank="$NODE_RANK" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" '
        f'"${{NXDT:-neuronx-distributed-training}}/examples/training_orchestrator.py" --config-path="$PWD" '
        f'--config-name={shlex.quote(FILE.removesuffix(".yaml"))} model.model_config="$PWD/{CONFIG}" '
        'trainer.num_nodes="$NNODES"'
    )
    return NodeCommand(words=(), per_chip=False, environment=environment, before=NOTE, tail=words)


def _model_pieces(scenario: Scenario) -> Iterator[Piece]:
    model, block = scenario.model, plain_block(scenario.model)
    yield Say("name", "hf_mixtral" if has_experts(model) else "hf_llama")  # by which it picks the model's class
    yield Say("model_source", "hf")
    if block is None or block[0].head_dim * block[0].heads != model.hidden:
        why = "its classes are Llama's and Mixtral's: equal layers of RMSNorm, rotary attention and SwiGLU, no biases"
        yield Lose("model.*", why)
        return
    mixer, ffn = block
    yield Say("model.model_config", CONFIG, "model.*")
    yield Say("model.num_layers", model.layers, "model.order")
    yield Say("model.hidden_size", model.hidden, "model.hidden")
    if model.embedding.tied:
        yield Lose("model.embedding.tied", "input and output embeddings are two matrices")
    yield from _numerics(model)
    if isinstance(ffn, Moe):
        # every token reaches its experts: dropless, which has no capacity
        router = numerics_of(model).router
        yield Say("model.moe.num_experts", ffn.experts)
        yield Say("model.moe.frequency", 1)
        yield Say("model.moe.top_k", ffn.topk)
        for name, value in values(ID, "dropless").items():
            yield Say(f"model.moe.{name}", value)
        if router is None or router.aux_loss is None:
            yield Say("model.moe.router_aux_loss_coef", 0.02)
        if router is None or router.normalized is None:
            yield Say("model.moe.normalize_top_k_affinities", True)
    yield from _copies(scenario, mixer)


def _copies(scenario: Scenario, mixer: Attention) -> Iterator[Piece]:
    """Cached heads are copied where there are more ranks than heads."""
    ranks = scenario.plan.mesh.tp * cores_of(scenario.system)[0]
    if not shares_evenly(mixer, ranks):
        why = f"{ranks} tensor ranks (NeuronCores) do not share {mixer.heads} heads and {mixer.kv_heads} of keys evenly"
        yield Lose("plan.tp", why)
        return
    has_copies = mixer.kv_heads < mixer.heads
    yield Say("model.qkv_linear", has_copies)
    if has_copies:
        yield Say("model.fuse_qkv", True)
        yield Say("distributed_strategy.kv_replicator", max(1, ranks // mixer.kv_heads))


def _numerics(model: ModelSpec) -> Iterator[Piece]:
    numerics = numerics_of(model)
    if numerics.rotary_base is not None:
        yield Say("model.rope_theta", numerics.rotary_base, "model.numerics.rotary_base")
    if numerics.rotary_scaling is not None and numerics.rotary_scaling.kind != "llama3":
        yield Lose("model.numerics.rotary_scaling.*", "positions are scaled as Llama 3 scales them, or not at all")
    yield from habits(ID, "numerics")
    if numerics.router is not None:
        if numerics.router.aux_loss is not None:
            yield Say("model.moe.router_aux_loss_coef", numerics.router.aux_loss, "model.numerics.router.aux_loss")
        if numerics.router.normalized is not None:
            option = "model.moe.normalize_top_k_affinities"
            yield Say(option, numerics.router.normalized, "model.numerics.router.normalized")
        if (numerics.router.score, numerics.router.bias, numerics.router.scale) != ("softmax", False, 1.0):
            yield Lose("model.numerics.router.*", "experts are scored by a softmax")
    yield from unknown_losses(model)


def config_of(model: ModelSpec, mixer: Attention, ffn: Mlp | Moe) -> JsonObject:
    """What a config.json of Llama or Mixtral says of the model, in transformers' words."""
    numerics, scaling = numerics_of(model), numerics_of(model).rotary_scaling
    config: JsonObject = {
        "architectures": ["MixtralForCausalLM" if isinstance(ffn, Moe) else "LlamaForCausalLM"],
        "model_type": "mixtral" if isinstance(ffn, Moe) else "llama",
        "hidden_act": "silu",
    }
    sizes = plain_sizes(model, mixer, ffn)
    config |= {word: sizes[name] for name, word in words(ID, "config").items()}
    if isinstance(ffn, Moe):
        config |= {"num_local_experts": ffn.experts, "num_experts_per_tok": ffn.topk, "sliding_window": None}
    config |= pick({"rms_norm_eps": numerics.norm_eps, "rope_theta": numerics.rotary_base})
    if scaling is not None and scaling.kind == "llama3":
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.slow or 1.0,
            "high_freq_factor": scaling.fast or 4.0,
            "original_max_position_embeddings": scaling.first_context,
        }
    return config


PARTS: tuple[Callable[[Scenario], Iterator[Piece]], ...]
PARTS = (_model_pieces, axes, pipeline, batch, formats, sharding, recompute, switches)


def plan_of(reader: OptionReader, mesh: Mapping[str, int], spec: ModelSpec | None) -> JsonObject:
    """The plan; layers of its stages where the file cuts them."""
    plan: JsonObject = {"engine": ENGINE, **{axis: mesh[axis] for axis in ("tp", "pp", "cp")}}
    if spec is not None and has_experts(spec):
        plan |= {"ep": mesh["ep"], "etp": mesh["tp"]}
    plan |= read_options(ID, "micro", reader)
    parallel = reader.switch(f"{MESH}.sequence_parallel")
    if mesh["tp"] > 1:
        plan["sequence_parallel"] = parallel
    elif not parallel:
        why = "ranks of one chip hold the sequence twice: read as if they shared it"
        reader.note(f"{MESH}.sequence_parallel", "false", why)
    if mesh["pp"] > 1:
        plan |= _stages(reader, mesh, spec.layers if spec is not None else 0)
    plan["shard"] = "zero1" if reader.switch(f"{MESH}.zero1", default=True) else "none"
    plan["recompute"] = _recompute(reader, mesh["cp"] > 1)
    fused = [reader.switch(f"model.fusions.{name}") for name in ("flash_attention", "ring_attention")]
    reader.skip("model.fusions.softmax", "model.transpose_nki_inputs")
    plan["attention"] = "flash" if any(fused) or mesh["cp"] > 1 else "unfused"
    plan["precision"] = _formats(reader, plan["shard"] == "zero1")[0]
    return plan


def _stages(reader: OptionReader, mesh: Mapping[str, int], layers: int) -> JsonObject:
    chunks, cuts = mesh["chunks"], reader.take("model.pipeline_cuts")
    stage_plan: JsonObject = {"schedule": {"name": "interleaved", "chunks": chunks} if chunks > 1 else "1f1b"}
    stages = mesh["pp"] * chunks
    if isinstance(cuts, list) and len(cuts) == stages - 1 and layers:
        last = [int(digits) for cut in cuts if (digits := str(cut).rpartition(".")[2]).isdigit() and len(digits) < 6]
        layers_held = [after - before for before, after in pairwise([-1, *last, layers - 1])]
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
    parts = {MODULE_PARTS[name] for name in names if name in MODULE_PARTS} | ({"moe"} if "MoE" in names else set())
    if is_fused and "attention" in parts:
        parts.remove("attention")
        reader.assumptions.append("CoreAttention is not recomputed: a fused kernel takes its place")
    strange = [name for name in names if name not in MODULE_PARTS and name != "MoE"]
    if strange:
        option = "model.activations_checkpoint_recompute"
        reader.note(option, ", ".join(strange)[:80], "not a module whose recompute is priced")
    return {"kind": "selective", "parts": sorted(parts)} if parts else {"kind": "none"}


def _formats(reader: OptionReader, sharded: bool) -> tuple[JsonObject, JsonObject]:
    kind = reader.word("precision.type", among={name: name for name in FORMATS}, default="mixed_precision")
    master = wide = kind in ("mixed_precision", "mixed_precisionSR", "autocast")
    if kind == "manual":
        master = reader.switch("precision.master_weights")
        wide = reader.switch("precision.fp32_grad_acc")
    if kind == "fp32":
        return {"name": "fp32"}, {"master": "none", "states": "fp32"}
    master, wide = master and sharded, wide and sharded
    word = str(reader.take("model.optim.name", default="adamw"))
    states = "fp32" if master or word == WIDE else "bf16"
    optimizer_formats = {"master": "fp32" if master else "none", "states": states}
    return {"name": "bf16", "gradients": "fp32" if wide else "bf16"}, optimizer_formats


def workload_of(reader: OptionReader) -> JsonObject:
    """What is trained, on how many tokens."""
    names = {"adamw": "adamw", WIDE: "adamw", "adam": "adam", "sgd": "sgd", "adafactor": "adafactor"}
    is_sharded = reader.switch(f"{MESH}.zero1", default=True)
    optimizer = {"name": reader.word("model.optim.name", among=names, default="adamw")}
    optimizer |= _formats(reader, is_sharded)[1]
    sizes = read_options(ID, "batch", reader)
    reader.skip("data.seq_length")
    workload: JsonObject = {"kind": "train", "seq": sizes.get("seq"), "global_batch": sizes.get("global_batch")}
    workload["optimizer"] = optimizer
    tuning_switches = [name for name in reader.options if name.startswith("model_alignment_strategy")]
    if tuning_switches or reader.switch("data.use_sft_style_data_module"):
        workload["packed"] = reader.switch("model_alignment_strategy.sft.packing", "data.packing", default=True)
        workload["task"] = "finetune"
    rank = reader.count(f"{PEFT}.lora_rank")
    if rank is not None:
        modules = reader.take(f"{PEFT}.target_modules")
        modules = [str(module) for module in modules] if isinstance(modules, list) else ["qkv_proj"]
        targets = [target for module in modules for target, word in ADAPTERS.items() if word == module]
        workload |= {"task": "lora", "lora": {"rank": rank, "targets": targets or ["qkv"]}}
    return workload


def recognises(files: Files) -> bool:
    """A YAML file with a distributed_strategy of tensor_model_parallel_size, or a model_source."""
    return holds(files, _is_ours, ".yaml", ".yml")


def _is_ours(data: JsonMapping) -> bool:
    mesh = data.get("distributed_strategy")
    return isinstance(mesh, Mapping) and "tensor_model_parallel_size" in mesh and isinstance(data.get("model"), Mapping)


def read(files: Files) -> Imported:
    """What the YAML says; an `InputError` where it cannot run on chips as plans have them."""
    table = only(files, _is_ours, "one YAML file with a distributed_strategy", ".yaml", ".yml")
    reader = OptionReader(Table(data=resolve_references(dict(flatten(table.data))), source=table.source))
    for kind in ("dpo", "orpo"):
        if any(name.startswith(f"model_alignment_strategy.{kind}.") for name in reader.options):
            raise other_work(f"preference pairs ({kind.upper()})", where=table.source)
    nodes, devices = reader.count("trainer.num_nodes") or 1, reader.count("trainer.devices") or 2 * CHIPS
    ranks = _ranks_of_chip(files, devices, reader.take("trainer.lnc"))
    model = _model(files, reader, table)
    spec = load_model(model) if model is not None else None
    mesh = _mesh(reader, ranks, spec, table)
    settings = {"model": model, "plan": plan_of(reader, mesh, spec), "workload": workload_of(reader)}
    return imported_run(ID, reader, settings, chips=nodes * devices // ranks)


def _ranks_of_chip(files: Files, devices: int, lnc: object) -> int:
    """Ranks of one chip: by the machine that the caller or the file names, else by the ranks of a whole node."""
    name = checkout_of(files).system or system_in(files)
    if name is None:
        return 4 if devices > 2 * CHIPS else 2
    machine = load_system(name)
    if machine.chip.vendor != VENDOR:
        expected_text = f"chips of {VENDOR}: NxD runs on no others"
        given_text = f"{name}, chips of {machine.chip.vendor}"
        raise refusal(given_text, expected_text, path="system", todo="say --on 64xtrn1 or 64xtrn2")
    ranks, own_cores = cores_of(machine)
    if devices > ranks * CHIPS or (type(lnc) is int and lnc != own_cores):
        given_text = f"{devices} ranks of {lnc or 1} cores on a node, for {name}"
        expected_text = f"at most {ranks * CHIPS} ranks of {own_cores} cores: {CHIPS} chips of {ranks}"
        raise refusal(given_text, expected_text, path="trainer.devices", todo="name the other Trainium")
    return ranks


def _mesh(reader: OptionReader, ranks: int, spec: ModelSpec | None, table: Table) -> dict[str, int]:
    wide = reader.degree(TP)
    if wide % ranks:
        given_text = f"{wide}, and a chip holds {ranks} ranks (NeuronCores)"
        todo = "a plan's rank is a chip: cores of one chip that hold different data have no place in it"
        expected_text = f"a multiple of {ranks}"
        raise refusal(given_text, expected_text, path=TP, todo=todo, where=table.source)
    for mixer in (block.mixer for block in spec.blocks) if spec is not None else ():
        if isinstance(mixer, Attention) and not shares_evenly(mixer, wide):
            expected_text = f"a divisor of {mixer.heads} heads that shares {mixer.kv_heads} of keys evenly"
            raise refusal(str(wide), expected_text, path=TP, where=table.source)
    reader.skip(f"{MESH}.kv_replicator", "model.qkv_linear", "model.fuse_qkv")
    reader.skip("trainer.lnc", "trainer.devices", "trainer.num_nodes")
    degrees = read_options(ID, "axes", reader) | read_options(ID, "experts", reader)
    return {"tp": wide // ranks, **degrees, "chunks": reader.degree(CHUNKS)}


def _model(files: Files, reader: OptionReader, table: Table) -> str | JsonMapping | None:
    """The model: that of the caller, of the config.json beside, of the dimensions, or of the name."""
    source = str(reader.take("model_source", default="megatron"))
    keys = ("model_config", "num_layers", "hidden_size", "max_position_embeddings")
    reader.skip(*(f"model.{key}" for key in keys))
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


def _spelled_model(reader: OptionReader, table: Table) -> str | JsonMapping | None:
    stated_options = {key: reader.options.get(f"model.{key}", value) for key, value in table.data["model"].items()}
    data = table.data.get("data")
    tokenizer = data.get("tokenizer") if isinstance(data, Mapping) else None
    words = dict(model_words(stated_options)) | dict(tokenizer_words(tokenizer))
    inner_reader = OptionReader(Table(data=words, source=table.source))
    model = read_model(inner_reader, named_by_path(table.source))
    inner_reader.unread({})  # raises what could not be used
    reader.assumptions += inner_reader.assumptions
    reader.skip(*(f"model.{key}" for key in names(ID, "spelled")))
    return model
