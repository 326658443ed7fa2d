"""Turn a Scenario into what verl's Megatron backend is told about the actor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.decisions import decisions_of, has_experts
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say
from ridgeline.targets.megatron.layout import layout_of
from ridgeline.targets.megatron.names import MODULES, RECIPES
from ridgeline.targets.megatron.write_plan import FUSED, without_fused_norms
from ridgeline.targets.recompute_fallback import changed, same_in_stages
from ridgeline.targets.verl.names import DDP, LAYER, MEGATRON, MODEL, OPTIM


def megatron_pieces(scenario: Scenario) -> Iterator[Piece]:
    """All that the backend is told."""
    if scenario.model.mtp is not None:
        yield Say(f"{MODEL}.mtp.enable", True, "model.mtp*")
        yield Say(f"{MODEL}.mtp.enable_train", True, "model.mtp*")
    for part in (_mesh, _pipeline, _shards, _recompute, _formats, _optimizer, _habits):
        yield from part(scenario)


def _mesh(scenario: Scenario) -> Iterator[Piece]:
    mesh, found = scenario.plan.mesh, decisions_of(scenario)
    yield Say(f"{MEGATRON}.tensor_model_parallel_size", mesh.tp, "plan.tp")
    yield Say(f"{MEGATRON}.pipeline_model_parallel_size", mesh.pp, "plan.pp")
    yield Say(f"{MEGATRON}.context_parallel_size", mesh.cp, "plan.cp")
    yield Say(f"{MEGATRON}.expert_model_parallel_size", mesh.ep, "plan.ep")
    yield Say(f"{MEGATRON}.expert_tensor_parallel_size", mesh.etp, "plan.etp")
    if mesh.tp > 1:
        yield Say(f"{MEGATRON}.sequence_parallel", scenario.plan.sequence_parallel, "plan.sequence_parallel")
        yield Say(f"{LAYER}.tp_comm_overlap", found["plan.overlap.tp"], "plan.overlap.tp")
    if mesh.cp > 1:
        kind = {"ring": "p2p", "all-to-all": "a2a"}[scenario.plan.switches.cp_kind]
        yield Say(f"{LAYER}.cp_comm_type", kind, "plan.cp_kind")
    if has_experts(scenario.model):
        way = found["plan.moe_dispatch"]
        if way == "hybridep":
            yield Lose("plan.moe_dispatch", "all-to-all and DeepEP are written: written as all-to-all")
        yield Say(f"{LAYER}.moe_token_dispatcher_type", "flex" if way == "deepep" else "alltoall", "plan.moe_dispatch")
        yield Say(f"{LAYER}.moe_enable_deepep", way == "deepep", "plan.moe_dispatch")


def _pipeline(scenario: Scenario) -> Iterator[Piece]:
    plan = scenario.plan
    if plan.mesh.pp == 1:
        return
    chunks, held = plan.schedule.chunks, scenario.placement
    size = chunks if chunks > 1 else None
    yield Say(f"{MEGATRON}.virtual_pipeline_model_parallel_size", size, "plan.schedule.chunks", "plan.schedule.name")
    if plan.schedule.name != ("interleaved" if chunks > 1 else "1f1b"):
        yield Lose("plan.schedule.name", "Megatron runs 1f1b, interleaved with virtual stages")
    first, last, inner = held[0], held[-1], set(held[1:-1])
    if len(set(held)) == 1:
        yield Fixed("plan.placement", held, "layers are dealt evenly")
    elif chunks == 1 and len(inner) <= 1 and first and last and scenario.model.mtp is None:
        yield Say(f"{LAYER}.num_layers_in_first_pipeline_stage", first, "plan.placement")
        yield Say(f"{LAYER}.num_layers_in_last_pipeline_stage", last, "plan.placement")
    else:
        ahead = scenario.model.mtp.depth if scenario.model.mtp else 0
        yield Say(f"{LAYER}.pipeline_model_parallel_layout", layout_of(held, ahead), "plan.placement")


def _shards(scenario: Scenario) -> Iterator[Piece]:
    plan, found = scenario.plan, decisions_of(scenario)
    shard = plan.sharding.shard
    yield Say(f"{MEGATRON}.use_distributed_optimizer", shard != "none", "plan.shard")
    yield Say(f"{MEGATRON}.use_megatron_fsdp", shard == "zero3", "plan.shard")
    if shard == "zero2":
        yield Lose("plan.shard", "written as zero1: gradients are sharded only together with weights")
    ranks = plan.mesh.dp * plan.mesh.cp
    yield Fixed("plan.shard_degree", ranks, "all data-parallel ranks")
    for name, option in (("grad-reduce", "overlap_grad_reduce"), ("param-gather", "overlap_param_gather")):
        chosen = found.get(f"plan.overlap.{name}")
        if chosen is not None:
            yield Say(f"{DDP}.{option}", chosen, f"plan.overlap.{name}")


def _recompute(scenario: Scenario) -> Iterator[Piece]:
    bare = without_fused_norms(scenario)
    recompute = same_in_stages(bare)
    if recompute.kind == "selective" and not set(recompute.parts) & set(MODULES):  # more rather than less
        recompute = replace(recompute, kind="full", layers=None, rest="none")
    yield from changed(scenario, recompute, FUSED if bare is not scenario else "one number of layers for all stages")
    kind = None if recompute.kind == "none" else recompute.kind
    if kind is None and scenario.plan.recompute.kind != "none":
        yield Lose("plan.recompute.*", "no layer is recomputed: written as none, which is the same")
    yield Say(f"{LAYER}.recompute_granularity", kind, "plan.recompute.kind")
    if kind == "selective":
        known = [MODULES[part] for part in sorted(recompute.parts) if part in MODULES]
        yield Say(f"{LAYER}.recompute_modules", known, "plan.recompute.parts")
        if len(known) < len(recompute.parts):
            yield Lose("plan.recompute.parts", f"of the parts Megatron knows {', '.join(MODULES)}")
        yield Fixed("plan.recompute.layers", None, "all layers")
    elif kind == "full":
        some = recompute.layers is not None
        yield Say(f"{LAYER}.recompute_method", "block" if some else "uniform", "plan.recompute.layers")
        yield Say(f"{LAYER}.recompute_num_layers", recompute.layers if some else 1, "plan.recompute.layers")


def _formats(scenario: Scenario) -> Iterator[Piece]:
    precision, found = scenario.plan.precision, decisions_of(scenario)
    stored = "fp16" if precision.weights.id == "fp16" else "bf16"
    long = {"fp16": "float16", "bf16": "bfloat16"}[stored]
    for path in ("weights", "activations"):
        if getattr(precision, path).id == stored:
            yield Say(f"{MEGATRON}.dtype", long, f"plan.precision.{path}")
        else:
            yield Lose(f"plan.precision.{path}", "the actor's weights and activations are bf16 or fp16")
    yield Say(f"{MEGATRON}.dtype", long)
    recipe = RECIPES.get((precision.compute.id, found.get("plan.precision.scaling", "")))
    if recipe:
        yield Say(f"{LAYER}.fp8", "e4m3", "plan.precision.compute")
        yield Say(f"{LAYER}.fp8_recipe", recipe, "plan.precision.compute", "plan.precision.scaling")
    else:
        yield Fixed("plan.precision.compute", stored, "bf16 or fp16, or fp8 by tensor or block")
        yield Lose("plan.precision.scaling", "fp8 scales by tensor or block")
    gradients = found["plan.precision.gradients"]
    if gradients in ("fp32", stored):
        yield Say(f"{DDP}.grad_reduce_in_fp32", gradients == "fp32", "plan.precision.gradients")
    else:
        yield Lose("plan.precision.gradients", "gradients are reduced in fp32 or in the weights' format")


def _optimizer(scenario: Scenario) -> Iterator[Piece]:
    work, offload, found = scenario.workload, scenario.plan.offload, decisions_of(scenario)
    assert isinstance(work, Train)
    name = {"adamw": "adam", "sgd": "sgd", "muon": "muon"}.get(work.optimizer.name)
    if name:
        yield Say(f"{OPTIM}.optimizer", name, "workload.optimizer.name")
    yield Fixed("workload.optimizer.name", "adamw", "AdamW, SGD and Muon are the optimizers it knows")
    states = work.optimizer.states.id
    if states in ("bf16", "fp16") and scenario.plan.sharding.shard != "none":
        yield Say(f"{OPTIM}.use_precision_aware_optimizer", True, "workload.optimizer.states")
        yield Say(f"{OPTIM}.exp_avg_dtype", states, "workload.optimizer.states")
        yield Say(f"{OPTIM}.exp_avg_sq_dtype", states, "workload.optimizer.states")
    yield Fixed("workload.optimizer.states", "fp32", "16-bit states need the distributed optimizer")
    yield Fixed("workload.optimizer.master", "fp32", "a copy in fp32 is kept")
    if offload.optimizer:
        way = f"{OPTIM}.override_optimizer_config"
        yield Say(f"{way}.optimizer_cpu_offload", True, "plan.offload.optimizer")
        yield Say(f"{way}.optimizer_offload_fraction", offload.optimizer, "plan.offload.optimizer")
        overlapped = bool(found.get("plan.overlap.offload"))
        yield Say(f"{way}.overlap_cpu_optimizer_d2h_h2d", overlapped, "plan.overlap.offload")
    yield Fixed("plan.offload.optimizer", 0.0, "states stay on the chip")
    yield Fixed("plan.offload.activations", 0.0, "the Megatron backend keeps activations on the chip")


def _habits(scenario: Scenario) -> Iterator[Piece]:
    found = decisions_of(scenario)
    yield Say(f"{LAYER}.attention_backend", found["plan.attention"], "plan.attention")
    yield Fixed("plan.engine", "megatron-core", "Megatron-Core")
    yield Fixed("plan.compiled", False, "kernels are fused by hand")
    yield Fixed("plan.overlap.pp", scenario.plan.schedule.chunks > 1, "sends overlap with virtual stages")
    yield Fixed("plan.overlap.cp", True, "ring attention overlaps its exchange")
    yield Fixed("plan.overlap.moe", False, "the exchange of tokens is not overlapped")
    yield Fixed("plan.overlap.offload", False, "nothing is offloaded")
