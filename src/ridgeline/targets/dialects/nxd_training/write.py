"""Turn the plan and the workload of a Scenario into pieces in NxD Training's words, by the functions of PLAN."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

from ridgeline.core.documents import JsonObject
from ridgeline.models.numerics import Router, numerics_of, unknown_numerics
from ridgeline.models.spec import Attention, Mlp, ModelSpec, Moe
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario, training
from ridgeline.plan.workload import Train
from ridgeline.targets.decisions import decisions_of, has_experts
from ridgeline.targets.dialects.maxtext.write import plain_block
from ridgeline.targets.dialects.nxd_training.names import (
    ADAPTERS,
    CHUNKS,
    CP,
    EP,
    ID,
    MESH,
    MODULES,
    OPTIMIZERS,
    PEFT,
    PP,
    TP,
    WIDE,
    cores_of,
)
from ridgeline.targets.imports.option_reader import nest_options
from ridgeline.targets.launchers.launch import TORCHRUN, Command, comment, header, nodes_of, scripts
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, export_of, gather, habits, lose
from ridgeline.targets.options import options
from ridgeline.targets.recompute_fallback import fallback_losses, nearest
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Export
from ridgeline.targets.vendors import runs_on
from ridgeline.targets.yaml_text import yaml_text

COMPILED = "one compiled program for every stage and pass"


def family_of(model: ModelSpec) -> str:
    """The name of the run, by which NxD Training picks the model's class."""
    return "hf_mixtral" if has_experts(model) else "hf_llama"


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
    yield Say(PP, mesh.pp, "plan.pp")
    yield Say(CP, mesh.cp, "plan.cp")
    yield Fixed("plan.dp", mesh.dp, "the ranks that the other axes leave")
    yield from habits(ID, "axes")
    parallel = bool(plan.sequence_parallel) or mesh.tp == 1
    yield Say(f"{MESH}.sequence_parallel", parallel, "plan.sequence_parallel")
    if has_experts(scenario.model):
        yield Say(EP, mesh.ep, "plan.ep")
    sparse = has_experts(scenario.model)
    yield Fixed("plan.etp", mesh.tp if sparse else mesh.etp, "experts are split as the rest of a layer is")


def pipeline(scenario: Scenario) -> Iterator[Piece]:
    """1f1b and interleaved, layers dealt evenly or cut where a list says."""
    plan, schedule = scenario.plan, scenario.plan.schedule
    known_names = schedule.name in ("1f1b", "interleaved")
    chunks = schedule.chunks if schedule.name == "interleaved" else 1
    if plan.mesh.pp == 1:
        yield Say(CHUNKS, 1)
        return
    yield Say(CHUNKS, chunks, *(("plan.schedule.name", "plan.schedule.chunks") if known_names else ()))
    if not known_names:
        yield from lose(
            "schedules are 1f1b and interleaved 1f1b; written: 1f1b, layers dealt evenly",
            "plan.schedule.name",
            "plan.schedule.chunks",
            "plan.placement",
        )
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
    yield Say("data.micro_batch_size", scenario.plan.microbatch, "plan.microbatch")
    yield Say("data.global_batch_size", work.sequences, "workload.global_batch")
    yield Say("model.encoder_seq_length", work.seq, "workload.seq")
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
    kind = (
        "fp32"
        if stored_format == "fp32"
        else "bf16SR"
        if gradients == "bf16" and master == "none"
        else "mixed_precision"
    )
    yield Say("precision.type", kind, "plan.precision.weights")
    for path in ("weights", "activations", "compute"):
        yield Fixed(
            f"plan.precision.{path}", stored_format, "weights, activations and products have one format, bf16 or fp32"
        )
        if getattr(precision, path).id != stored_format:
            yield Lose(f"plan.precision.{path}", f"one format for all: written as {stored_format}")
    yield Lose("plan.precision.scaling", "narrow formats are not written")
    wide = kind == "mixed_precision" and is_sharded
    yield Fixed(
        "plan.precision.gradients", "fp32" if wide or stored_format == "fp32" else "bf16", "fp32 beside zero1 only"
    )
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
    yield from fallback_losses(
        scenario, written, "all layers, or modules of all layers; core attention is fused under flash"
    )
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


Writer = Callable[[Scenario], Iterator[Piece]]
PLAN: tuple[Writer, ...] = (axes, pipeline, batch, formats, sharding, recompute, switches)


FILE = "nxd.yaml"
CONFIG = "config.json"
NOTE = (
    "# NXDT is a checkout of aws-neuron/neuronx-distributed-training; data.train_dir in nxd.yaml is yours to choose.\n"
    "# COMPILE=1 compiles the programs of a first run ahead of time; words after the script's name override keys."
)
# what AWS's own script sets: the network of several nodes, and memory of the host
ENVIRONMENT = table_words("nxd-training", "environment")
# what a first run needs beside the decisions
RUN: JsonObject = {
    "seed": 1234,
    "trainer.max_epochs": -1,
    "trainer.max_steps": 50,
    "trainer.log_every_n_steps": 1,
    "trainer.val_check_interval": 51,
    "trainer.check_val_every_n_epoch": None,
    "trainer.num_sanity_val_steps": 0,
    "trainer.limit_val_batches": 0.0,
    "trainer.limit_test_batches": 0.0,
    "trainer.gradient_clip_val": 1.0,
    "exp_manager.log_local_rank_0_only": True,
    "exp_manager.create_tensorboard_logger": False,
    "exp_manager.explicit_log_dir": None,
    "exp_manager.exp_dir": None,
    "exp_manager.resume_if_exists": False,
    "exp_manager.resume_ignore_no_checkpoint": True,
    "exp_manager.create_checkpoint_callback": False,
    "exp_manager.checkpoint_callback_params.every_n_train_steps": 1000,
    "exp_manager.resume_from_checkpoint": None,
    "data.train_dir": "your/tokenized/dataset",
    "model.use_cpu_initialization": True,
    "model.do_layer_norm_weight_decay": False,
    "model.optim.lr": 1.5e-4,
    "model.optim.weight_decay": 0.01,
    "model.optim.capturable": False,
    "model.optim.betas": [0.9, 0.95],
    "model.optim.sched.name": "LinearAnnealingWithWarmUp",
    "model.optim.sched.warmup_steps": 10,
    "compiler_flags": "--model-type transformer",
    "compiler_cache_url": "neuron_cache",
    "aync_exec_max_inflight_requests": 5,
    "bucket_size_collectives": 1024,
    "neuron_rt_exec_timeout": 100,
    "neuron_experimental_compress_rg": False,
}


def write(scenario: Scenario) -> Export:
    """nxd.yaml, config.json and the launch scripts."""
    ledger = gather(decisions_of(scenario), _pieces(scenario))
    title = options(ID).title
    text = comment(header(scenario, title)) + yaml_text(nest_options({**ledger.options, **RUN}))
    files = {FILE: text, **scripts(scenario, _command(scenario), title)}
    block = plain_block(scenario.model)
    if block is not None:
        files[CONFIG] = json.dumps(dict(config_of(scenario.model, *block)), indent=2) + "\n"
    return export_of(ID, files, ledger)


def _command(scenario: Scenario) -> Command:
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
    return Command(words=(), per_chip=False, environment=environment, before=NOTE, tail=words)


def _pieces(scenario: Scenario) -> Iterator[Piece]:
    yield from runs_on(scenario, ID)
    yield from _model(scenario)
    for part in PLAN:
        yield from part(scenario)


def _model(scenario: Scenario) -> Iterator[Piece]:
    model, block = scenario.model, plain_block(scenario.model)
    yield Say("name", family_of(model))
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
        yield from _experts(ffn, numerics_of(model).router)
    yield from _copies(scenario, mixer)


def _experts(ffn: Moe, router: Router | None) -> Iterator[Piece]:
    """Every token reaches its experts: dropless, which has no capacity."""
    for name, value in (
        ("num_experts", ffn.experts),
        ("frequency", 1),
        ("top_k", ffn.topk),
        ("dropless", True),
        ("capacity_factor", 0.0),
        ("dropout", 0.0),
        ("routing_algorithm", "top_k"),
        ("output_router_logits", True),
    ):
        yield Say(f"model.moe.{name}", value)
    if router is None or router.aux_loss is None:
        yield Say("model.moe.router_aux_loss_coef", 0.02)
    if router is None or router.normalized is None:
        yield Say("model.moe.normalize_top_k_affinities", True)


def _copies(scenario: Scenario, mixer: Attention) -> Iterator[Piece]:
    """Cached heads are copied where there are more ranks than heads."""
    ranks = scenario.plan.mesh.tp * cores_of(scenario.system)[0]
    if mixer.heads % ranks or max(ranks, mixer.kv_heads) % min(ranks, mixer.kv_heads):
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
    if unknown := unknown_numerics(model):
        why = f"{', '.join(unknown)} of this model: not known; set them as its checkpoint has them"
        yield Lose("model.numerics.unknown", why, yours=True)


def config_of(model: ModelSpec, mixer: Attention, ffn: Mlp | Moe) -> Iterator[tuple[str, Any]]:
    """What a config.json of Llama or Mixtral says of the model, in transformers' words."""
    experts, numerics = isinstance(ffn, Moe), numerics_of(model)
    yield "architectures", ["MixtralForCausalLM" if experts else "LlamaForCausalLM"]
    yield "model_type", "mixtral" if experts else "llama"
    yield "hidden_act", "silu"
    yield "hidden_size", model.hidden
    yield "intermediate_size", ffn.hidden
    yield "num_hidden_layers", model.layers
    yield "num_attention_heads", mixer.heads
    yield "num_key_value_heads", mixer.kv_heads
    yield "max_position_embeddings", model.context or 8192
    yield "vocab_size", model.vocab
    yield "tie_word_embeddings", model.embedding.tied
    if isinstance(ffn, Moe):
        yield "num_local_experts", ffn.experts
        yield "num_experts_per_tok", ffn.topk
        yield "sliding_window", None
    if numerics.norm_eps is not None:
        yield "rms_norm_eps", numerics.norm_eps
    if numerics.rotary_base is not None:
        yield "rope_theta", numerics.rotary_base
    scaling = numerics.rotary_scaling
    if scaling is not None and scaling.kind == "llama3":
        yield (
            "rope_scaling",
            {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.slow or 1.0,
                "high_freq_factor": scaling.fast or 4.0,
                "original_max_position_embeddings": scaling.first_context,
            },
        )
