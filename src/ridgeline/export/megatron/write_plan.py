"""Turn the plan and workload of a Scenario into pieces in Megatron's words: small functions in one tuple, PLAN."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.export.decisions import has_experts
from ridgeline.export.ledger import Fixed, Lose, Piece, Say
from ridgeline.export.megatron.layout import layout_of
from ridgeline.export.megatron.write_model import Writer
from ridgeline.plan.plan import NARROW
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train

LAUNCH = "torchrun --nnodes --nproc-per-node"
PARTS = {
    "attention": "core_attn",
    "norm": "layernorm",
    "activation": "moe_act",
    "mlp": "mlp",
    "moe": "moe",
    "latent-up": "mla_up_proj",
}
STRATEGIES = {"zero2": "optim_grads", "zero3": "optim_grads_params"}
STATES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8-e4m3": "fp8"}
RECIPES = {("fp8-e4m3", "tensor"): "tensorwise", ("fp8-e4m3", "block"): "blockwise", ("mxfp8", "block"): "mxfp8"}
OFF = "off unless told otherwise"


def axes(scenario: Scenario) -> Iterator[Piece]:
    """Degrees of the mesh; data parallelism is what the others leave of all ranks."""
    mesh = scenario.plan.mesh
    yield Say("--tensor-model-parallel-size", mesh.tp, "plan.tp")
    yield Say("--pipeline-model-parallel-size", mesh.pp, "plan.pp")
    yield Say("--context-parallel-size", mesh.cp, "plan.cp")
    yield Say(LAUNCH, scenario.system.chips, "plan.dp", "system.chips")
    if has_experts(scenario.model):
        yield Say("--expert-model-parallel-size", mesh.ep, "plan.ep")
        yield Say("--expert-tensor-parallel-size", mesh.etp, "plan.etp")
    yield Fixed("plan.ep", 1, "no experts")
    yield Fixed("plan.etp", 1, "no experts")
    if scenario.plan.sequence_parallel and mesh.tp > 1:
        yield Say("--sequence-parallel", True, "plan.sequence_parallel")
    yield Fixed("plan.sequence_parallel", False, OFF)
    kinds = {"ring": "p2p", "all-to-all": "a2a"}
    if mesh.cp > 1:
        yield Say("--cp-comm-type", kinds[scenario.plan.switches.cp_kind], "plan.cp_kind")


def pipeline(scenario: Scenario) -> Iterator[Piece]:
    """1f1b and interleaved, layers spread evenly or as a layout string spells."""
    plan, schedule = scenario.plan, scenario.plan.schedule
    if plan.mesh.pp == 1:
        return
    if schedule.name not in ("1f1b", "interleaved"):
        for path in ("plan.schedule.name", "plan.schedule.chunks", "plan.placement"):
            yield Lose(path, "schedules are 1f1b and interleaved 1f1b")
        return
    placement = scenario.placement
    chunked = ("plan.schedule.name", "plan.schedule.chunks")
    if len(set(placement)) > 1:
        mtp = scenario.model.mtp.depth if scenario.model.mtp else 0
        yield Say("--pipeline-model-parallel-layout", layout_of(placement, mtp), "plan.placement", *chunked)
    elif schedule.chunks > 1:
        yield Say("--num-layers-per-virtual-pipeline-stage", placement[0], *chunked, "plan.placement")
    yield Fixed("plan.schedule.name", "1f1b", "without virtual stages")
    yield Fixed("plan.schedule.chunks", 1, "without virtual stages")
    yield Fixed("plan.placement", placement, "an even split is the default")


def batch(scenario: Scenario) -> Iterator[Piece]:
    """Sequences, and what is trained on them."""
    work = scenario.workload
    assert isinstance(work, Train)
    yield Say("--seq-length", work.seq, "workload.seq")
    yield Say("--micro-batch-size", scenario.plan.microbatch, "plan.microbatch")
    yield Say("--global-batch-size", work.sequences, "workload.global_batch")
    if work.task == "finetune":
        yield Say("--sft", True, "workload.task")
    yield Fixed("workload.task", "pretrain", "what pretrain_gpt.py does")
    yield Lose("workload.lora.*", "no adapters")
    yield Fixed("workload.packed", True, "documents are joined to full sequences")
    yield Fixed("workload.images", 0.0, "text only")


def optimizer(scenario: Scenario) -> Iterator[Piece]:
    """Adam with decoupled decay, or SGD; formats of what they keep."""
    work = scenario.workload
    assert isinstance(work, Train)
    kind, states, path = work.optimizer.name, work.optimizer.states.id, "workload.optimizer"
    names = {"adamw": "adam", "momentum": "sgd", "sgd": "sgd"}
    if kind == "adam":
        yield Lose(f"{path}.name", "its adam decouples weight decay, which is adamw")
    yield Say("--optimizer", names.get(kind, "adam" if kind == "adam" else kind), f"{path}.name")
    if kind in ("momentum", "sgd"):
        yield Say("--sgd-momentum", 0.9 if kind == "momentum" else 0.0, f"{path}.name")
    aware = states != "fp32" or scenario.plan.offload.optimizer > 0
    if aware and scenario.plan.sharding.shard == "none":
        yield Lose(f"{path}.states", "other formats need the distributed optimizer")
    elif aware:
        yield Say("--use-precision-aware-optimizer", True, f"{path}.states")
        for option in ("--exp-avg-dtype", "--exp-avg-sq-dtype"):
            yield Say(option, STATES.get(states, states), f"{path}.states")
    yield Fixed(f"{path}.states", "fp32", "fp32 unless told otherwise")
    master = "none" if scenario.plan.precision.weights.id == "fp32" else "fp32"
    if aware and work.optimizer.master is not None and work.optimizer.master.id == "fp16" and master == "fp32":
        yield Say("--main-params-dtype", "fp16", f"{path}.master")
    yield Fixed(f"{path}.master", master, "fp32, and no copy of weights that are fp32 already")


def sharding(scenario: Scenario) -> Iterator[Piece]:
    """The distributed optimizer is zero1; Megatron-FSDP is zero2 and zero3."""
    plan, shard = scenario.plan, scenario.plan.sharding.shard
    if shard != "none":
        yield Say("--use-distributed-optimizer", True, "plan.shard")
        copies = plan.mesh.dp * plan.mesh.cp // plan.shard_degree
        if copies > 1:
            yield Say("--num-distributed-optimizer-instances", copies, "plan.shard_degree")
        yield Fixed("plan.shard_degree", plan.mesh.dp * plan.mesh.cp, "over all data-parallel ranks")
    if shard in STRATEGIES:
        yield Say("--use-megatron-fsdp", True, "plan.shard")
        yield Say("--data-parallel-sharding-strategy", STRATEGIES[shard], "plan.shard")
        yield Say("--no-gradient-accumulation-fusion", True)
        yield Say("--ckpt-format", "fsdp_dtensor")
    yield Fixed("plan.shard", "none", OFF)


def recompute(scenario: Scenario) -> Iterator[Piece]:
    """Whole layers, all or some of each virtual stage; or named modules of every layer."""
    chosen = scenario.plan.recompute
    yield Lose("plan.recompute.blocks", "one choice for all layers")
    if chosen.kind == "none":
        yield Fixed("plan.recompute.kind", "none", OFF)
        return
    yield Say("--recompute-granularity", chosen.kind, "plan.recompute.kind")
    if chosen.kind == "full":
        method, layers = ("uniform", 1) if chosen.layers is None else ("block", chosen.layers)
        yield Say("--recompute-method", method, "plan.recompute.layers")
        yield Say("--recompute-num-layers", layers, "plan.recompute.layers")
        return
    yield Fixed("plan.recompute.layers", None, "named modules are recomputed in every layer")
    dense = "activation" in chosen.parts and not has_experts(scenario.model)
    if set(chosen.parts) <= set(PARTS) and chosen.parts and not dense:
        yield Say("--recompute-modules", tuple(PARTS[part] for part in sorted(chosen.parts)), "plan.recompute.parts")
    else:
        yield Lose("plan.recompute.parts", f"modules are {', '.join(PARTS.values())}, moe_act of experts only")


def offload(scenario: Scenario) -> Iterator[Piece]:
    """Whole layers' activations without a pipeline; a share of optimizer states."""
    plan, share = scenario.plan, scenario.plan.offload
    layers = scenario.model.layers
    count = round(share.activations * layers)
    if (
        share.activations
        and plan.mesh.pp == 1
        and plan.recompute.kind == "none"
        and count / layers == share.activations
    ):
        yield Say("--cpu-offloading-num-layers", count, "plan.offload.activations")
    elif share.activations:
        yield Lose("plan.offload.activations", "whole layers only, without a pipeline and without recompute")
    yield Fixed("plan.offload.activations", 0.0, OFF)
    if share.optimizer and plan.sharding.shard == "none":
        yield Lose("plan.offload.optimizer", "needs the distributed optimizer")
    elif share.optimizer:
        yield Say("--optimizer-cpu-offload", True, "plan.offload.optimizer")
        yield Say("--optimizer-offload-fraction", share.optimizer, "plan.offload.optimizer")
        beside = plan.switches.overlap.get("offload", "offload" in scenario.engine.overlaps)
        if beside:
            yield Say("--overlap-cpu-optimizer-d2h-h2d", True, "plan.overlap.offload")
    yield Fixed("plan.offload.optimizer", 0.0, OFF)
    yield Fixed("plan.overlap.offload", not share.optimizer, "activations travel beside compute, states on request")


def precision(scenario: Scenario) -> Iterator[Piece]:
    """bf16, fp16 or fp32 at rest; fp8 and fp4 products by Transformer Engine's recipes."""
    chosen = scenario.plan.precision
    compute, where = chosen.compute.id, "plan.precision"
    narrow = chosen.compute.peak in NARROW
    rest = chosen.activations.id
    if rest in ("bf16", "fp16"):
        yield Say(f"--{rest}", True, f"{where}.activations")
    yield Fixed(f"{where}.activations", "fp32", "fp32 unless told otherwise")
    if not narrow:
        if compute == rest and rest in ("bf16", "fp16"):
            yield Say(f"--{rest}", True, f"{where}.compute")
        yield Fixed(f"{where}.compute", rest if rest in ("bf16", "fp16") else "fp32", "as activations rest")
    else:
        yield from _narrow(compute, chosen.scaling or ("block" if chosen.compute.block else "tensor"))
    stored = chosen.weights.id
    if narrow and stored == compute:
        yield Say("--fp4-param-gather" if compute == "nvfp4" else "--fp8-param-gather", True, f"{where}.weights")
    elif stored == rest and rest in ("bf16", "fp16"):
        yield Say(f"--{rest}", True, f"{where}.weights")
    yield Fixed(f"{where}.weights", rest, "as activations rest")
    yield from _gradients(scenario, rest)


def _narrow(compute: str, scaling: str) -> Iterator[Piece]:
    paths = ("plan.precision.compute", "plan.precision.scaling")
    if compute == "nvfp4" and scaling == "block":
        yield Say("--fp4-format", "e2m1", *paths)
        yield Say("--fp4-recipe", "nvfp4", *paths)
    elif (compute, scaling) in RECIPES:
        yield Say("--fp8-format", "hybrid" if scaling == "tensor" else "e4m3", *paths)
        yield Say("--fp8-recipe", RECIPES[compute, scaling], *paths)
    else:
        for path in paths:
            yield Lose(path, "fp8 scaled by tensor or block, mxfp8 and nvfp4")


def _gradients(scenario: Scenario, rest: str) -> Iterator[Piece]:
    path = "plan.precision.gradients"
    wanted = (scenario.plan.precision.gradients or scenario.engine.gradients).id
    if rest == "bf16" and wanted == "bf16":
        yield Say("--grad-reduce-in-bf16", True, path)
    elif wanted == "fp32" and rest in ("bf16", "fp16"):
        yield Say("--accumulate-allreduce-grads-in-fp32", True, path)
    yield Fixed(path, {"bf16": "fp32"}.get(rest, rest), "bf16 reduces in fp32, the others in their own format")


def switches(scenario: Scenario) -> Iterator[Piece]:
    """Attention kernels, captured graphs, dispatch of tokens, and what only other software switches."""
    plan = scenario.plan
    kind = plan.switches.attention or scenario.engine.attention
    yield Say("--attention-backend", "auto" if kind == "flash" else "unfused", "plan.attention")
    graph = plan.switches.graph or ("full" if scenario.engine.launch.mode == "graph" else "none")
    if graph != "none":
        how = {"partial": ("transformer_engine", "attn"), "full": ("local", "full_iteration")}[graph]
        yield Say("--cuda-graph-impl", how[0], "plan.graph")
        yield Say("--cuda-graph-scope", how[1], "plan.graph")
        yield Say("--te-rng-tracker", True)
        if graph == "full":  # a whole captured step cannot stop to look for NaNs
            yield Say("--no-check-for-nan-in-loss-and-grad", True)
    yield Fixed("plan.graph", "none", OFF)
    yield Fixed("plan.compiled", False, "kernels are fused by hand, chains are not compiled")
    if plan.switches.launch_blocking:
        yield Say("CUDA_LAUNCH_BLOCKING", "1", "plan.launch_blocking")
    yield Fixed("plan.launch_blocking", False, OFF)
    if has_experts(scenario.model):
        dispatch = plan.switches.moe_dispatch or "all-to-all"
        flexible = dispatch != "all-to-all"
        yield Say("--moe-token-dispatcher-type", "flex" if flexible else "alltoall", "plan.moe_dispatch")
        if flexible:
            yield Say("--moe-flex-dispatcher-backend", dispatch, "plan.moe_dispatch")


def overlaps(scenario: Scenario) -> Iterator[Piece]:
    """What communication runs beside compute, where Megatron's own conditions allow it."""
    plan = scenario.plan

    def on(name: str) -> bool:
        return plan.switches.overlap.get(name, name in scenario.engine.overlaps)

    ranks = plan.mesh.dp * plan.mesh.cp
    if on("grad-reduce") and ranks > 1:
        yield Say("--overlap-grad-reduce", True, "plan.overlap.grad-reduce")
    if on("param-gather") and plan.sharding.shard != "none" and plan.shard_degree > 1:
        if on("grad-reduce"):
            yield Say("--overlap-param-gather", True, "plan.overlap.param-gather")
        else:
            yield Lose("plan.overlap.param-gather", "only together with the overlap of gradients")
    if on("tp") and plan.mesh.tp > 1:
        if plan.sequence_parallel:
            yield Say("--tp-comm-overlap", True, "plan.overlap.tp")
        else:
            yield Lose("plan.overlap.tp", "only with sequence parallelism")
    if on("moe") and plan.mesh.ep > 1:
        yield Say("--overlap-moe-expert-parallel-comm", True, "plan.overlap.moe")
    interleaved = plan.schedule.name == "interleaved"
    if interleaved and not on("pp") and plan.mesh.pp > 2:
        yield Say("--no-overlap-p2p-communication", True, "plan.overlap.pp")
    for name, value, why in (
        ("grad-reduce", False, OFF),
        ("param-gather", False, OFF),
        ("tp", False, OFF),
        ("moe", False, OFF),
        ("pp", interleaved, "sends overlap under the interleaved schedule and wait under plain 1f1b"),
        ("cp", plan.switches.cp_kind == "ring", "a ring exchanges beside attention, an all-to-all before it"),
    ):
        yield Fixed(f"plan.overlap.{name}", value, why)


PLAN: tuple[Writer, ...] = (
    axes, pipeline, batch, optimizer, sharding, recompute, offload, precision, switches, overlaps,
)  # fmt: skip
