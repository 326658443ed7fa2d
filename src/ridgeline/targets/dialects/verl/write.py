"""Turn a Scenario into what verl is told about the actor, for its Megatron backend or for FSDP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.core.dtype import dtype
from ridgeline.models.params import count
from ridgeline.models.spec import Attention, LatentAttention
from ridgeline.plan.scenario import Scenario, is_post_training, training
from ridgeline.plan.workload import Train
from ridgeline.targets.decisions import decisions_of, has_experts
from ridgeline.targets.dialects.megatron.names import MODULES, RECIPES, layout_of
from ridgeline.targets.dialects.megatron.write import FUSED, without_fused_norms
from ridgeline.targets.dialects.verl import names as verl
from ridgeline.targets.imports.option_reader import nest_options
from ridgeline.targets.launchers import launch as launchers
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, habits, lose, media_of_the_data
from ridgeline.targets.option_table import say_options
from ridgeline.targets.options import LONG_FORMATS, options
from ridgeline.targets.recompute_fallback import checkpointing_pieces, fallback_losses, same_in_stages
from ridgeline.targets.tables import template
from ridgeline.targets.target import Export
from ridgeline.targets.vendors import runs_on, vendor_of
from ridgeline.targets.yaml_text import yaml_text

FILE = "verl.yaml"
HELD = 0.4  # of a chip's memory for the rollout's weights: it is given half, and its cache needs the rest


def megatron_pieces(scenario: Scenario) -> Iterator[Piece]:
    """All that the backend is told."""
    if scenario.model.mtp is not None:
        yield Say(f"{verl.MODEL}.mtp.enable", True, "model.mtp*")
        yield Say(f"{verl.MODEL}.mtp.enable_train", True, "model.mtp*")
    for part in (_mesh, _pipeline, _shards, _recompute, _formats, _optimizer):
        yield from part(scenario)
    yield from say_options(verl.ID, "attention", decisions_of(scenario))
    yield from habits(verl.ID, "habits")
    yield Fixed("plan.overlap.pp", scenario.plan.schedule.chunks > 1, "sends overlap with virtual stages")


def _mesh(scenario: Scenario) -> Iterator[Piece]:
    decisions = decisions_of(scenario)
    for section in ("mesh", "tensor", "context"):
        yield from say_options(verl.ID, section, decisions)
    if has_experts(scenario.model):
        way = decisions["plan.moe_dispatch"]
        if way == "hybridep":
            yield Lose("plan.moe_dispatch", "all-to-all and DeepEP are written: written as all-to-all")
        word = "flex" if way == "deepep" else "alltoall"
        yield Say(f"{verl.LAYER}.moe_token_dispatcher_type", word, "plan.moe_dispatch")
        yield Say(f"{verl.LAYER}.moe_enable_deepep", way == "deepep", "plan.moe_dispatch")


def _pipeline(scenario: Scenario) -> Iterator[Piece]:
    plan = scenario.plan
    if plan.mesh.pp == 1:
        return
    chunks, placement = plan.schedule.chunks, scenario.placement
    size = chunks if chunks > 1 else None
    option = f"{verl.MEGATRON}.virtual_pipeline_model_parallel_size"
    yield Say(option, size, "plan.schedule.chunks", "plan.schedule.name")
    if plan.schedule.name != ("interleaved" if chunks > 1 else "1f1b"):
        yield Lose("plan.schedule.name", "Megatron runs 1f1b, interleaved with virtual stages")
    first, last, inner = placement[0], placement[-1], set(placement[1:-1])
    if len(set(placement)) == 1:
        yield Fixed("plan.placement", placement, "layers are dealt evenly")
    elif chunks == 1 and len(inner) <= 1 and first and last and scenario.model.mtp is None:
        yield Say(f"{verl.LAYER}.num_layers_in_first_pipeline_stage", first, "plan.placement")
        yield Say(f"{verl.LAYER}.num_layers_in_last_pipeline_stage", last, "plan.placement")
    else:
        ahead = scenario.model.mtp.depth if scenario.model.mtp else 0
        yield Say(f"{verl.LAYER}.pipeline_model_parallel_layout", layout_of(placement, ahead), "plan.placement")


def _shards(scenario: Scenario) -> Iterator[Piece]:
    plan, decisions = scenario.plan, decisions_of(scenario)
    shard = plan.sharding.shard
    yield Say(f"{verl.MEGATRON}.use_distributed_optimizer", shard != "none", "plan.shard")
    yield Say(f"{verl.MEGATRON}.use_megatron_fsdp", shard == "zero3", "plan.shard")
    if shard == "zero2":
        yield Lose("plan.shard", "written as zero1: gradients are sharded only together with weights")
    ranks = plan.mesh.dp * plan.mesh.cp
    yield Fixed("plan.shard_degree", ranks, "all data-parallel ranks")
    yield from say_options(verl.ID, "overlaps", decisions)


def _recompute(scenario: Scenario) -> Iterator[Piece]:
    bare = without_fused_norms(scenario)
    recompute = same_in_stages(bare)
    if recompute.kind == "selective" and not set(recompute.parts) & set(MODULES):  # more rather than less
        recompute = replace(recompute, kind="full", layers=None, rest="none")
    why = FUSED if bare is not scenario else "one number of layers for all stages"
    yield from fallback_losses(scenario, recompute, why)
    kind = None if recompute.kind == "none" else recompute.kind
    if kind is None and scenario.plan.recompute.kind != "none":
        yield Lose("plan.recompute.*", "no layer is recomputed: written as none, which is the same")
    yield Say(f"{verl.LAYER}.recompute_granularity", kind, "plan.recompute.kind")
    if kind == "selective":
        module_names = [MODULES[part] for part in sorted(recompute.parts) if part in MODULES]
        yield Say(f"{verl.LAYER}.recompute_modules", module_names, "plan.recompute.parts")
        if len(module_names) < len(recompute.parts):
            yield Lose("plan.recompute.parts", f"of the parts Megatron knows {', '.join(MODULES)}")
        yield Fixed("plan.recompute.layers", None, "all layers")
    elif kind == "full":
        some = recompute.layers is not None
        yield Say(f"{verl.LAYER}.recompute_method", "block" if some else "uniform", "plan.recompute.layers")
        yield Say(f"{verl.LAYER}.recompute_num_layers", recompute.layers if some else 1, "plan.recompute.layers")


def _formats(scenario: Scenario) -> Iterator[Piece]:
    precision, decisions = scenario.plan.precision, decisions_of(scenario)
    stored_format = "fp16" if precision.weights.id == "fp16" else "bf16"
    long = LONG_FORMATS[stored_format]
    paths = {f"plan.precision.{name}": getattr(precision, name).id for name in ("weights", "activations")}
    yield Say(f"{verl.MEGATRON}.dtype", long, *paths)
    other_paths = (path for path, id in paths.items() if id != stored_format)
    yield from lose("the actor's weights and activations are bf16 or fp16", *other_paths)
    recipe = RECIPES.get((precision.compute.id, decisions.get("plan.precision.scaling", "")))
    if recipe:
        yield Say(f"{verl.LAYER}.fp8", "e4m3", "plan.precision.compute")
        yield Say(f"{verl.LAYER}.fp8_recipe", recipe, "plan.precision.compute", "plan.precision.scaling")
    else:
        yield Fixed("plan.precision.compute", stored_format, "bf16 or fp16, or fp8 by tensor or block")
        yield Lose("plan.precision.scaling", "fp8 scales by tensor or block")
    gradients = decisions["plan.precision.gradients"]
    if gradients in ("fp32", stored_format):
        yield Say(f"{verl.DDP}.grad_reduce_in_fp32", gradients == "fp32", "plan.precision.gradients")
    else:
        yield Lose("plan.precision.gradients", "gradients are reduced in fp32 or in the weights' format")


def _optimizer(scenario: Scenario) -> Iterator[Piece]:
    work, offload, decisions = training(scenario).workload, scenario.plan.offload, decisions_of(scenario)
    yield from say_options(verl.ID, "megatron_optimizer", decisions)
    yield from habits(verl.ID, "optimizer")
    states = work.optimizer.states.id
    if states in ("bf16", "fp16") and scenario.plan.sharding.shard != "none":
        yield Say(f"{verl.OPTIM}.use_precision_aware_optimizer", True, "workload.optimizer.states")
        yield Say(f"{verl.OPTIM}.exp_avg_dtype", states, "workload.optimizer.states")
        yield Say(f"{verl.OPTIM}.exp_avg_sq_dtype", states, "workload.optimizer.states")
    if offload.optimizer:
        way = f"{verl.OPTIM}.override_optimizer_config"
        yield Say(f"{way}.optimizer_cpu_offload", True, "plan.offload.optimizer")
        yield Say(f"{way}.optimizer_offload_fraction", offload.optimizer, "plan.offload.optimizer")
        overlaps_experts = bool(decisions.get("plan.overlap.offload"))
        yield Say(f"{way}.overlap_cpu_optimizer_d2h_h2d", overlaps_experts, "plan.overlap.offload")


def write(scenario: Scenario) -> Export:
    """verl.yaml and the launch scripts, which start Ray on every node and the trainer on the first."""
    if is_post_training(scenario):
        from ridgeline.targets.dialects.verl.post_training import write_post_training  # which writes this update too

        return write_post_training(scenario)
    megatron = needs_megatron(scenario)
    backend = megatron_pieces(scenario) if megatron else fsdp_pieces(scenario)
    ledger = launchers.account_run(verl.ID, scenario, (*_common(scenario, megatron), *backend))
    title = options(verl.ID).title
    base = "ppo_megatron_trainer" if megatron else "ppo_trainer"
    hydra = {"defaults": [base, "_self_"], "hydra": {"searchpath": ["pkg://verl.trainer.config"]}}
    nodes = launchers.nodes_of(scenario.system)[0]
    joins = "".join(f"{line}\n" for line in launchers.leader(nodes, 6379))
    launch = template("verl_launch.txt").format(nodes=nodes, leader=joins, name=FILE.removesuffix(".yaml"))
    starts = {
        launchers.ON_NODE: f"#!/bin/bash\n{launchers.comment(launchers.header(scenario, title))}{launch}",
        launchers.SLURM: launchers.slurm(scenario, title),
    }
    return launchers.export_run(
        verl.ID, scenario, ledger, {FILE: yaml_text(hydra | nest_options(ledger.options))}, starts
    )


def needs_megatron(scenario: Scenario) -> bool:
    """Whether the plan asks for what FSDP's backend has not: tp, pp, ep, a ring, zero1, or Megatron itself."""
    mesh, plan = scenario.plan.mesh, scenario.plan
    ring = mesh.cp > 1 and plan.switches.cp_kind == "ring"
    split = mesh.tp * mesh.pp * mesh.ep * mesh.etp > 1
    return split or ring or plan.sharding.shard == "zero1" or scenario.engine.family == "megatron-core"


def _common(scenario: Scenario, megatron: bool) -> Iterator[Piece]:
    work, plan = training(scenario).workload, scenario.plan
    nodes, chips_per_node = launchers.nodes_of(scenario.system)
    yield Say("trainer.nnodes", nodes, "system.chips", "plan.dp")
    yield Say("trainer.n_gpus_per_node", chips_per_node, "system.chips", "plan.dp")
    device = vendor_of(scenario.system).device
    if device != "cuda" and not any(runs_on(scenario, verl.ID)):
        yield Say("trainer.device", device)
    yield Say("data.train_batch_size", work.sequences)
    yield Say(f"{verl.ACTOR}.ppo_mini_batch_size", work.sequences, "workload.global_batch")
    yield Say("actor_rollout_ref.rollout.n", 1, "workload.global_batch")
    yield Say(f"{verl.ACTOR}.ppo_micro_batch_size_per_gpu", plan.microbatch, "plan.microbatch")
    yield Say(f"{verl.ACTOR}.use_dynamic_bsz", False, "plan.microbatch")
    for part in ("rollout", "ref"):
        yield Say(f"actor_rollout_ref.{part}.log_prob_micro_batch_size_per_gpu", plan.microbatch)
    yield Say("actor_rollout_ref.rollout.name", "vllm")
    yield Say("actor_rollout_ref.rollout.tensor_model_parallel_size", rollout_ranks(scenario))
    yield Say("data.max_prompt_length", work.seq // 2, "workload.seq")
    yield Say("data.max_response_length", work.seq - work.seq // 2, "workload.seq")
    yield from say_options(verl.ID, "packed", decisions_of(scenario))
    yield from habits(verl.ID, "common")
    sees_images = scenario.model.vision is not None and bool(work.images or work.videos)
    if sees_images:
        yield from media_of_the_data()
    path = verl.weights_of(scenario.model)
    if path is None:
        yield Lose("model.*", "verl loads published weights; this model has none that the catalog knows")
    else:
        yield Say(f"{verl.MODEL}.path", path, "model.*")
        if scenario.model.vision is not None and not sees_images:
            yield Lose("model.vision*", "an update without images does not run the encoder")
    yield from lora_pieces(work, megatron)


def rollout_ranks(scenario: Scenario) -> int:
    """Chips that one rollout engine splits its weights over: as few as hold them in two fifths of their memory.

    >>> import ridgeline
    >>> asked = {"system": "64xh100-sxm", "workload": {"seq": 4096, "global_batch": 64}, "plan": {}}
    >>> [rollout_ranks(ridgeline.scenario({**asked, "model": id})) for id in ("qwen3-8b", "llama3-70b", "deepseek-v3")]
    [1, 8, 64]
    """
    size, chips = 2 * count(scenario.model).total, scenario.system.chips
    memory = scenario.system.chip.hbm.capacity
    capacity = float(memory.value) if memory is not None else 0.0
    mixers = [block.mixer for block in scenario.model.blocks]
    heads = [mixer.heads for mixer in mixers if isinstance(mixer, (Attention, LatentAttention))]
    powers = [1 << place for place in range(chips.bit_length())]
    able = [ranks for ranks in powers if all(head_count % ranks == 0 for head_count in heads)]
    return next((ranks for ranks in able if size <= HELD * capacity * ranks), able[-1])


def lora_pieces(work: Train, megatron: bool) -> Iterator[Piece]:
    if work.lora is None:
        return
    names = verl.LORA_NAMES[megatron]
    targets = list(dict.fromkeys(name for target in work.lora.targets for name in names.get(target, ())))
    prefix = f"{verl.MODEL}.lora" if megatron else verl.MODEL
    yield Say(f"{prefix}.rank" if megatron else f"{prefix}.lora_rank", work.lora.rank, "workload.lora.rank")
    yield Say(f"{prefix}.target_modules", targets, "workload.task", "workload.lora.targets")
    joined_text = megatron and ("up" in work.lora.targets) != ("gate" in work.lora.targets)
    if joined_text or set(work.lora.targets) - set(names):
        yield Lose("workload.lora.targets", f"adapters go on {', '.join(names)}, up and gate together in Megatron")


def fsdp_pieces(scenario: Scenario) -> Iterator[Piece]:
    if scenario.model.mtp is not None:
        yield Lose("model.mtp*", "the FSDP backend leaves out blocks that predict further tokens")
    for part in (_write_shards, _memory, _write_formats):
        yield from part(scenario)


def _write_shards(scenario: Scenario) -> Iterator[Piece]:
    plan, mesh = scenario.plan, scenario.plan.mesh
    yield Say(f"{verl.ACTOR}.strategy", "fsdp2", "plan.shard")
    yield Say(f"{verl.FSDP}.fsdp_size", plan.shard_degree, "plan.shard", "plan.shard_degree", "plan.dp")
    yield Say(f"{verl.FSDP}.reshard_after_forward", plan.sharding.shard == "zero3", "plan.shard")
    yield Say(f"{verl.ACTOR}.ulysses_sequence_parallel_size", mesh.cp, "plan.cp", "plan.cp_kind")
    yield Say(f"{verl.FSDP}.ulysses_sequence_parallel_size", mesh.cp, "plan.cp")
    yield from habits(verl.ID, "write_shards")


def _memory(scenario: Scenario) -> Iterator[Piece]:
    offload = scenario.plan.offload
    yield from checkpointing_pieces(scenario, f"{verl.MODEL}.enable_gradient_checkpointing")
    yield from habits(verl.ID, "memory")
    for option, name in (
        (f"{verl.MODEL}.enable_activation_offload", "activations"),
        (f"{verl.FSDP}.offload_policy", "optimizer"),
    ):
        whole = getattr(offload, name) == 1
        yield Say(option, whole, *([f"plan.offload.{name}"] if whole else []))


def _write_formats(scenario: Scenario) -> Iterator[Piece]:
    precision, work = scenario.plan.precision, training(scenario).workload
    stored_format = "fp16" if precision.weights.id == "fp16" else "bf16"
    without_master = work.optimizer.master is None
    word = LONG_FORMATS[stored_format]
    names = ("compute", "weights", "activations")
    yield Say(f"{verl.FSDP}.dtype", word, *(f"plan.precision.{name}" for name in names))
    other_paths = (f"plan.precision.{name}" for name in names if getattr(precision, name).id != stored_format)
    yield from lose("the FSDP backend computes in bf16 or fp16", *other_paths)
    format_kept = without_master or work.optimizer.master == dtype("fp32")
    paths_carried = ("workload.optimizer.master",) if format_kept else ()
    yield Say(f"{verl.FSDP}.model_dtype", stored_format if without_master else "fp32", *paths_carried)
    yield from habits(verl.ID, "write_formats")
    yield Fixed("workload.optimizer.master", "none" if without_master else "fp32", "sharded weights are fp32 or 16-bit")
    state_format = stored_format if without_master else "fp32"
    yield Fixed("workload.optimizer.states", state_format, "states have the format of model_dtype")
    yield from say_options(verl.ID, "fsdp_optimizer", decisions_of(scenario))
