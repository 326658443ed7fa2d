"""Turn the plan and the workload of a Scenario into pieces in NxD Training's words, by the functions of PLAN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate

from ridgeline.models.spec import ModelSpec
from ridgeline.plan.engine import ENGINES, OVERLAPS
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.decisions import decisions_of, has_experts
from ridgeline.targets.launch import nodes_of
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say
from ridgeline.targets.nxd_training.names import (
    ADAPTERS,
    CHUNKS,
    CP,
    ENGINE,
    EP,
    MESH,
    MODULES,
    OPTIMIZERS,
    PEFT,
    PP,
    TP,
    WIDE,
    cores_of,
)
from ridgeline.targets.recompute_fallback import changed, nearest

COMPILED = "one compiled program for every stage and pass"


def family_of(model: ModelSpec) -> str:
    """The name of the run, by which NxD Training picks the model's class."""
    return "hf_mixtral" if has_experts(model) else "hf_llama"


def even(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage as NxD deals them by itself: what is left over goes to the last stages.

    >>> even(32, 4), even(10, 4)
    ((8, 8, 8, 8), (2, 2, 3, 3))
    """
    each, rest = divmod(layers, stages)
    return tuple(each + (place >= stages - rest) for place in range(stages))


def axes(scenario: Scenario) -> Iterator[Piece]:
    """The mesh; a tensor degree counts the cores of a chip."""
    plan, mesh, (ranks, lnc) = scenario.plan, scenario.plan.mesh, cores_of(scenario.system)
    nodes, each = nodes_of(scenario.system)
    yield Say("trainer.devices", each * ranks, "system.chips")
    yield Say("trainer.num_nodes", nodes, "system.chips")
    if lnc > 1:
        yield Say("trainer.lnc", lnc)
    yield Say(TP, mesh.tp * ranks, "plan.tp")
    yield Say(PP, mesh.pp, "plan.pp")
    yield Say(CP, mesh.cp, "plan.cp")
    yield Fixed("plan.dp", mesh.dp, "the ranks that the other axes leave")
    yield Fixed("plan.cp_kind", "ring", "ring attention is what context ranks do")
    parallel = bool(plan.sequence_parallel) or mesh.tp == 1
    yield Say(f"{MESH}.sequence_parallel", parallel, "plan.sequence_parallel")
    if has_experts(scenario.model):
        yield Say(EP, mesh.ep, "plan.ep")
    yield Fixed("plan.ep", 1, "no experts")
    sparse = has_experts(scenario.model)
    yield Fixed("plan.etp", mesh.tp if sparse else mesh.etp, "experts are split as the rest of a layer is")
    yield Fixed("plan.moe_dispatch", "all-to-all", "tokens are exchanged by all-to-all")


def pipeline(scenario: Scenario) -> Iterator[Piece]:
    """1f1b and interleaved, layers dealt evenly or cut where a list says."""
    plan, schedule = scenario.plan, scenario.plan.schedule
    known = schedule.name in ("1f1b", "interleaved")
    chunks = schedule.chunks if schedule.name == "interleaved" else 1
    if plan.mesh.pp == 1:
        yield Say(CHUNKS, 1)
        return
    yield Say(CHUNKS, chunks, *(("plan.schedule.name", "plan.schedule.chunks") if known else ()))
    if not known:
        for path in ("plan.schedule.name", "plan.schedule.chunks", "plan.placement"):
            yield Lose(path, "schedules are 1f1b and interleaved 1f1b; written: 1f1b, layers dealt evenly")
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
    work = scenario.workload
    assert isinstance(work, Train)
    yield Say("data.micro_batch_size", scenario.plan.microbatch, "plan.microbatch")
    yield Say("data.global_batch_size", work.sequences, "workload.global_batch")
    yield Say("model.encoder_seq_length", work.seq, "workload.seq")
    yield Say("model.max_position_embeddings", max(work.seq, scenario.model.context))
    if work.task != "pretrain":
        yield Say("model_alignment_strategy.sft.packing", work.packed, "workload.task", "workload.packed")
        yield Say("data.seq_length", work.seq)
    yield Fixed("workload.task", "pretrain", "all weights are updated on plain text")
    yield Fixed("workload.packed", True, "documents are joined to full sequences")
    yield Lose("workload.document", "how long documents are is a matter of the data")
    yield Fixed("workload.images", 0.0, "text only")
    if work.lora is not None:
        yield Say(f"{PEFT}.lora_rank", work.lora.rank, "workload.lora.rank")
        modules = list(dict.fromkeys(ADAPTERS[name] for name in work.lora.targets if name in ADAPTERS))
        yield Say(f"{PEFT}.target_modules", modules, "workload.lora.targets")
        if set(work.lora.targets) - set(ADAPTERS):
            yield Lose("workload.lora.targets", f"adapters go on {', '.join(dict.fromkeys(ADAPTERS.values()))}")


def formats(scenario: Scenario) -> Iterator[Piece]:
    """Mixed precision keeps fp32 masters and gradients, with zero1 only; else everything is bf16, or fp32."""
    precision, work, found = scenario.plan.precision, scenario.workload, decisions_of(scenario)
    assert isinstance(work, Train)
    sharded, gradients = scenario.plan.sharding.shard != "none", found["plan.precision.gradients"]
    stored = "fp32" if precision.weights.id == "fp32" else "bf16"
    master = work.optimizer.master.id if work.optimizer.master else "none"
    kind = "fp32" if stored == "fp32" else "bf16SR" if gradients == "bf16" and master == "none" else "mixed_precision"
    yield Say("precision.type", kind, "plan.precision.weights")
    for path in ("weights", "activations", "compute"):
        yield Fixed(f"plan.precision.{path}", stored, "weights, activations and products have one format, bf16 or fp32")
        if getattr(precision, path).id != stored:
            yield Lose(f"plan.precision.{path}", f"one format for all: written as {stored}")
    yield Lose("plan.precision.scaling", "narrow formats are not written")
    wide = kind == "mixed_precision" and sharded
    yield Fixed("plan.precision.gradients", "fp32" if wide or stored == "fp32" else "bf16", "fp32 beside zero1 only")
    yield Fixed("workload.optimizer.master", "fp32" if wide else "none", "masters are kept beside zero1 only")
    yield from _optimizer(work, wide or stored == "fp32")


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
    fused = scenario.plan.mesh.cp > 1 or decisions_of(scenario)["plan.attention"] == "flash"
    if fused:
        parts.discard("attention")
    found = replace(nearest(scenario, parts), layers=None, rest="none", blocks={})
    if found.kind == "none" and not fused and not sparse:
        return Recompute(kind="selective", parts=("attention",))
    return found


def recompute(scenario: Scenario) -> Iterator[Piece]:
    """Modules by the names of their classes, or whole layers."""
    written, names = written_recompute(scenario), MODULES["mixtral" if has_experts(scenario.model) else "llama"]
    yield from changed(scenario, written, "all layers, or modules of all layers; core attention is fused under flash")
    kind = None if written.kind == "none" else written.kind
    yield Say("model.activations_checkpoint_granularity", kind, "plan.recompute.kind")
    modules = [names[part] for part in sorted(written.parts)] if kind == "selective" else None
    yield Say("model.activations_checkpoint_recompute", modules, "plan.recompute.parts")
    yield Fixed("plan.recompute.layers", None, "all layers")
    for name in ("activations", "optimizer"):
        yield Fixed(f"plan.offload.{name}", 0.0, "nothing is kept in host memory")


def switches(scenario: Scenario) -> Iterator[Piece]:
    """Attention's kernel, and what the compiler decides."""
    ring, flash = scenario.plan.mesh.cp > 1, decisions_of(scenario)["plan.attention"] == "flash"
    yield Say("model.fusions.softmax", True)
    yield Say("model.fusions.flash_attention", flash and not ring, *(() if ring else ("plan.attention",)))
    if ring:  # which is refused beside flash attention, and is a fused kernel itself
        yield Say("model.fusions.ring_attention", True)
        yield Fixed("plan.attention", "flash", "ring attention is a fused kernel")
    yield Fixed("plan.engine", ENGINE, "what runs it is NxD")
    yield Fixed("plan.graph", "none", COMPILED)
    yield Fixed("plan.compiled", True, COMPILED)
    yield Fixed("plan.launch_blocking", False, COMPILED)
    for name in OVERLAPS:
        yield Fixed(f"plan.overlap.{name}", name in ENGINES[ENGINE].overlaps, "the compiler arranges it")


Writer = Callable[[Scenario], Iterator[Piece]]
PLAN: tuple[Writer, ...] = (axes, pipeline, batch, formats, sharding, recompute, switches)
