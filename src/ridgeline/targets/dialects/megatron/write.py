"""Turn a Scenario into the arguments of Megatron-LM's pretraining programs and the scripts that launch them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.models.spec import Moe
from ridgeline.plan.mesh import DP_LAST
from ridgeline.plan.plan import NARROW, Recompute
from ridgeline.plan.resolve import NEARLY_ALL, resolve, separate_norms
from ridgeline.plan.scenario import Scenario, training
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.plan.workload import Train
from ridgeline.targets.decisions import decisions_of, has_experts
from ridgeline.targets.dialects.megatron.names import ID, MODULES, RECIPES, STATES, STRATEGIES, layout_of
from ridgeline.targets.dialects.megatron.write_model import MODEL as SPEC
from ridgeline.targets.dialects.megatron.write_model import Writer, is_hybrid, numerics, stages
from ridgeline.targets.launchers.launch import NodeCommand, export_run
from ridgeline.targets.ledger import Fixed, Ledger, Lose, Piece, Say, admit_options, gather, habits, lose
from ridgeline.targets.option_table import option_names, say_options
from ridgeline.targets.options import options
from ridgeline.targets.recompute_fallback import nearest, normal_recompute, price
from ridgeline.targets.tables import values as table_values
from ridgeline.targets.target import Export
from ridgeline.targets.yaml_text import yaml_text

LAUNCH = "torchrun --nnodes --nproc-per-node"
OFF = "off unless told otherwise"
FUSED = "norms run inside the product that follows, where recompute has nothing to free; left out"
PARTLY = "norms before attention or dense layers run inside the product that follows: only the others are recomputed"
MODEL: tuple[Writer, ...] = (*SPEC, numerics)
ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"  # how many queues lead from a host to its chip
CHECKOUT = "# MEGATRON_LM is a checkout of NVIDIA/Megatron-LM, as a whole path or below this folder.\n"
# what a first run needs beside the decisions: made-up data, few steps, throughput in the log
RUN = table_values("megatron", "run")


def precision(scenario: Scenario) -> Iterator[Piece]:
    """bf16, fp16 or fp32 at rest; fp8 and fp4 products by Transformer Engine's recipes."""
    chosen = scenario.plan.precision
    compute, where = chosen.compute.id, "plan.precision"
    narrow = chosen.compute.peak in NARROW
    stored_format = chosen.activations.id
    if stored_format in ("bf16", "fp16"):
        yield Say(f"--{stored_format}", True, f"{where}.activations")
    yield Fixed(f"{where}.activations", "fp32", "fp32 unless told otherwise")
    if not narrow:
        if compute == stored_format and stored_format in ("bf16", "fp16"):
            yield Say(f"--{stored_format}", True, f"{where}.compute")
        product_format = stored_format if stored_format in ("bf16", "fp16") else "fp32"
        yield Fixed(f"{where}.compute", product_format, "as activations rest")
    else:
        yield from _narrow(compute, chosen.scaling or ("block" if chosen.compute.block else "tensor"), scenario)
    stored = chosen.weights.id
    if narrow and stored == compute and (lack := _cannot_keep_narrow(scenario)):
        yield Lose(f"{where}.weights", f"{lack}; written: {stored_format}")
    elif narrow and stored == compute:
        yield Say("--fp4-param-gather" if compute == "nvfp4" else "--fp8-param-gather", True, f"{where}.weights")
        if compute == "mxfp8" and scenario.plan.sharding.shard not in STRATEGIES:
            yield Say("--reuse-grad-buf-for-mxfp8-param-ag", True)
    elif stored == stored_format and stored_format in ("bf16", "fp16"):
        yield Say(f"--{stored_format}", True, f"{where}.weights")
    yield Fixed(f"{where}.weights", stored_format, "as activations rest")
    path = "plan.precision.gradients"
    wanted_names = resolve(scenario).gradients.id
    if stored_format == "bf16" and wanted_names == "bf16":
        yield Say("--grad-reduce-in-bf16", True, path)
    elif wanted_names == "fp32" and stored_format in ("bf16", "fp16"):
        yield Say("--accumulate-allreduce-grads-in-fp32", True, path)
    yield Fixed(
        path, {"bf16": "fp32"}.get(stored_format, stored_format), "bf16 reduces in fp32, the others in their own format"
    )


def _cannot_keep_narrow(scenario: Scenario) -> str:
    """Why weights cannot rest in the format they are multiplied in; empty where they can."""
    if scenario.plan.sharding.shard == "none":
        return "weights in fp8 or fp4 need the distributed optimizer"
    if _is_offloading(scenario) and not _uses_delayed_scaling(scenario):
        return "states on the host go with fp8 weights under delayed scaling only"
    return ""


def _is_offloading(scenario: Scenario) -> bool:
    return scenario.plan.offload.optimizer > 0 and is_aware(scenario)


def _uses_delayed_scaling(scenario: Scenario) -> bool:
    """Whether fp8 is scaled by the history of a tensor: only where states on the host and fp8 weights ask for it."""
    chosen = scenario.plan.precision
    tensor = chosen.compute.id == "fp8-e4m3" and chosen.scaling in (None, "tensor")
    again = scenario.plan.recompute
    recomputes = again.kind == "selective" and {"norm", "activation"} & set(again.parts)
    return tensor and chosen.weights.id == "fp8-e4m3" and _is_offloading(scenario) and not recomputes


def _narrow(compute: str, scaling: str, scenario: Scenario) -> Iterator[Piece]:
    paths = ("plan.precision.compute", "plan.precision.scaling")
    if compute == "nvfp4" and scaling == "block":
        yield Say("--fp4-format", "e2m1", *paths)
        yield Say("--fp4-recipe", "nvfp4", *paths)
    elif (compute, scaling) in RECIPES:
        yield Say("--fp8-format", "hybrid" if scaling == "tensor" else "e4m3", *paths)
        yield Say("--fp8-recipe", "delayed" if _uses_delayed_scaling(scenario) else RECIPES[compute, scaling], *paths)
    else:
        yield from lose("fp8 scaled by tensor or block, mxfp8 and nvfp4", *paths)


def is_aware(scenario: Scenario) -> bool:
    """Whether states may have another format or place: adam, distributed."""
    work = scenario.workload
    has_adam = isinstance(work, Train) and work.optimizer.name in ("adam", "adamw")
    return scenario.plan.sharding.shard != "none" and has_adam


def axes(scenario: Scenario) -> Iterator[Piece]:
    """Degrees of the mesh; data parallelism is what the others leave of all ranks."""
    mesh = scenario.plan.mesh
    decisions = decisions_of(scenario)
    yield from say_options(ID, "axes", decisions)
    if mesh.order == DP_LAST and mesh.pp > 1:
        yield Say("--use-tp-pp-dp-mapping", True, "plan.order")
    yield Say(LAUNCH, scenario.system.chips, "plan.dp", "system.chips")
    if has_experts(scenario.model):
        has_bias = any(isinstance(block.ffn, Moe) and block.ffn.bias for block in scenario.model.blocks)
        ep, etp = (mesh.ep * mesh.etp, 1) if has_bias else (mesh.ep, mesh.etp)
        yield Say("--expert-model-parallel-size", ep, "plan.ep")
        yield Say("--expert-tensor-parallel-size", etp, "plan.etp")
        if etp != mesh.etp:
            why = f"experts with biases are not cut; written: ep {ep}, which holds as much on each rank"
            yield from lose(why, "plan.ep", "plan.etp")
    yield from habits(ID, "axes")
    yield from say_options(ID, "split", decisions)


def by_rank(scenario: Scenario) -> tuple[int, ...]:
    """Layers that each rank of the pipeline holds, over all its virtual stages."""
    pp, placement = scenario.plan.mesh.pp, scenario.placement
    if SCHEDULES[scenario.plan.schedule.name].v_shaped:
        return tuple(placement[rank] + placement[2 * pp - 1 - rank] for rank in range(pp))
    return tuple(sum(placement[rank::pp]) for rank in range(pp))


def pipeline(scenario: Scenario) -> Iterator[Piece]:
    """1f1b and interleaved, layers spread evenly or as a layout string spells."""
    plan, schedule = scenario.plan, scenario.plan.schedule
    mtp = scenario.model.mtp.depth if scenario.model.mtp else 0
    if plan.mesh.pp == 1:
        return
    if is_hybrid(scenario.model):
        yield from stages(scenario)
        return
    if schedule.name not in ("1f1b", "interleaved"):
        yield from lose(
            "schedules are 1f1b and interleaved 1f1b; written: 1f1b, as many layers on each rank",
            "plan.schedule.name",
            "plan.schedule.chunks",
            "plan.placement",
        )
        if len(set(by_rank(scenario))) > 1:
            yield Say("--pipeline-model-parallel-layout", layout_of(by_rank(scenario), mtp))
        return
    placement = scenario.placement
    chunk_paths = ("plan.schedule.name", "plan.schedule.chunks")
    if len(set(placement)) > 1:
        yield Say("--pipeline-model-parallel-layout", layout_of(placement, mtp), "plan.placement", *chunk_paths)
    elif schedule.chunks > 1:
        yield Say("--num-layers-per-virtual-pipeline-stage", placement[0], *chunk_paths, "plan.placement")
    yield from habits(ID, "stages")
    yield Fixed("plan.placement", placement, "an even split is the default")


def batch(scenario: Scenario) -> Iterator[Piece]:
    """Sequences, and what is trained on them."""
    work = training(scenario).workload
    yield from say_options(ID, "batch", decisions_of(scenario))
    if work.task == "finetune":
        yield Say("--sft", True, "workload.task")
    yield from habits(ID, "batch")


def optimizer(scenario: Scenario) -> Iterator[Piece]:
    """Adam with decoupled decay, or SGD; formats of what they keep."""
    work = training(scenario).workload
    kind, states, path = work.optimizer.name, work.optimizer.states.id, "workload.optimizer"
    names = {"adamw": "adam", "momentum": "sgd"}
    if kind == "adam":
        yield Lose(f"{path}.name", "its adam decouples weight decay, which is adamw")
    yield Say("--optimizer", names.get(kind, kind), f"{path}.name")
    if kind in ("momentum", "sgd"):
        yield Say("--sgd-momentum", 0.9 if kind == "momentum" else 0.0, f"{path}.name")
    aware = states != "fp32" or scenario.plan.offload.optimizer > 0
    if states != "fp32" and not is_aware(scenario):
        yield Lose(f"{path}.states", "other formats need the distributed optimizer and adam")
    elif aware and not is_aware(scenario):
        aware = False
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
    work = scenario.workload
    known_names = isinstance(work, Train) and work.optimizer.name in ("adam", "adamw", "sgd", "momentum")
    if shard != "none":
        yield Say("--use-distributed-optimizer", True, "plan.shard")
        copies = plan.mesh.dp * plan.mesh.cp // plan.shard_degree
        if copies > 1 and not known_names:
            yield Lose("plan.shard_degree", "over all data-parallel ranks, except with adam and sgd")
        elif copies > 1:
            yield Say("--num-distributed-optimizer-instances", copies, "plan.shard_degree")
        yield Fixed("plan.shard_degree", plan.mesh.dp * plan.mesh.cp, "over all data-parallel ranks")
    if shard in STRATEGIES and not known_names:
        yield Lose("plan.shard", "weights and gradients are sharded with adam and sgd only; written: zero1")
    elif shard in STRATEGIES:
        yield Say("--use-megatron-fsdp", True, "plan.shard")
        yield Say("--data-parallel-sharding-strategy", STRATEGIES[shard], "plan.shard")
        yield Say("--no-gradient-accumulation-fusion", True)
        yield Say("--ckpt-format", "fsdp_dtensor")
        if shard == "zero3":  # otherwise every rank first builds all weights of its stage
            yield Say("--init-model-with-meta-device", True)
    yield Fixed("plan.shard", "none", OFF)


def recompute(scenario: Scenario) -> Iterator[Piece]:
    """Whole layers, all or some of each virtual stage; or named modules of every layer."""
    written = writable_recompute(scenario)
    yield from recompute_words(scenario, written)
    is_fused = without_fused_norms(scenario) is not scenario
    able = FUSED if is_fused else "one number for all stages, and modules in all layers"
    yield from recompute_losses(scenario, written, able)
    if written.kind == "selective" and "norm" in written.parts and separate_norms(scenario.model) < NEARLY_ALL:
        yield Lose("plan.recompute.parts", PARTLY)


def writable_recompute(scenario: Scenario) -> Recompute:
    """What is written of recompute: activations of experts need grouped products, which are bf16; norms that run inside
    products are left out."""
    has_groups = has_experts(scenario.model) and scenario.plan.precision.activations.id == "bf16"
    parts = [part for part in MODULES if part != "activation" or has_groups]
    return nearest(without_fused_norms(scenario), parts)


def without_fused_norms(scenario: Scenario) -> Scenario:
    """The scenario without recompute of norms where none stands alone: it would do nothing."""
    chosen = scenario.plan.recompute
    recomputes_norms = "norm" in chosen.parts and "selective" in (chosen.kind, chosen.rest)
    if not recomputes_norms or separate_norms(scenario.model):
        return scenario
    if parts := tuple(part for part in chosen.parts if part != "norm"):
        chosen = replace(chosen, parts=parts)
    elif chosen.kind == "selective":
        chosen = Recompute()
    else:
        chosen = replace(chosen, rest="none", parts=Recompute().parts)
    return replace(scenario, plan=replace(scenario.plan, recompute=chosen))


def parts_path(scenario: Scenario, written: Recompute) -> tuple[str, ...]:
    """The decision about parts, where all of them are said: parts that no layer has are not."""
    return ("plan.recompute.parts",) if set(written.parts) == set(scenario.plan.recompute.parts) else ()


def recompute_words(scenario: Scenario, written: Recompute) -> Iterator[Piece]:
    """What Megatron can say of recompute."""
    if written.kind == "none":
        yield Fixed("plan.recompute.kind", "none", OFF)
        return
    yield Say("--recompute-granularity", written.kind, "plan.recompute.kind")
    if written.kind == "full":
        method, layers = ("uniform", 1) if written.layers is None else ("block", written.layers)
        paths_carried = ("plan.recompute.layers",) if written.layers == scenario.plan.recompute.layers else ()
        yield Say("--recompute-method", method, *paths_carried)
        yield Say("--recompute-num-layers", layers, *paths_carried)
        return
    yield Fixed("plan.recompute.layers", None, "named modules are recomputed in every layer")
    modules = tuple(MODULES[part] for part in sorted(written.parts))
    yield Say("--recompute-modules", modules, *parts_path(scenario, written))


def recompute_losses(scenario: Scenario, written: Recompute, able: str) -> Iterator[Piece]:
    """What had to be written otherwise, with what that costs; nothing where the plan says the same in other words."""
    chosen, same = scenario.plan.recompute, normal_recompute(scenario)
    if written == same:
        for key in ("kind", "layers", "rest", "parts"):
            value = tuple(sorted(chosen.parts)) if key == "parts" else getattr(chosen, key)
            yield Fixed(f"plan.recompute.{key}", value, "the same, said in the fewest words")
        return
    why = f"{able}; {price(scenario, written)}"
    for path in ("kind", "parts", "layers", "rest", "blocks"):
        if getattr(written, path) != getattr(chosen, path) and (path != "parts" or written.kind == "selective"):
            yield Lose(f"plan.recompute.{path}", why)
    if written.kind == "full" and chosen.kind == "selective":
        yield Lose("plan.recompute.parts", why)


def offload(scenario: Scenario) -> Iterator[Piece]:
    """Whole layers' activations without a pipeline; a share of optimizer states."""
    plan, share = scenario.plan, scenario.plan.offload
    layers = scenario.model.layers
    count = round(share.activations * layers)
    whole_layers = count / layers == share.activations and count < layers
    if share.activations and whole_layers and plan.mesh.pp == 1 and plan.recompute.kind == "none":
        yield Say("--cpu-offloading-num-layers", count, "plan.offload.activations")
    elif share.activations:
        why = "whole layers, not all of them, without a pipeline and without recompute"
        yield Lose("plan.offload.activations", why)
    yield from habits(ID, "offload")
    if share.optimizer and not is_aware(scenario):
        yield Lose("plan.offload.optimizer", "needs the distributed optimizer and adam")
    elif share.optimizer:
        yield Say("--optimizer-cpu-offload", True, "plan.offload.optimizer")
        yield Say("--optimizer-offload-fraction", share.optimizer, "plan.offload.optimizer")
        if resolve(scenario).overlap.offload:
            yield Say("--overlap-cpu-optimizer-d2h-h2d", True, "plan.overlap.offload")
    yield Fixed("plan.overlap.offload", not share.optimizer, "activations travel beside compute, states on request")


def switches(scenario: Scenario) -> Iterator[Piece]:
    """Attention kernels, captured graphs, dispatch of tokens, and what only other software switches."""
    plan, switches_resolved = scenario.plan, resolve(scenario)
    yield Say("--attention-backend", "auto" if switches_resolved.attention == "flash" else "unfused", "plan.attention")
    graph = switches_resolved.graph
    covers_all = writable_recompute(scenario).kind == "full"
    if graph == "partial" and (covers_all or plan.offload.activations):
        yield Lose("plan.graph", "parts are captured without full recompute and without activations on the host")
    elif graph != "none":
        yield Say("--cuda-graph-impl", {"partial": "transformer_engine", "full": "full_iteration"}[graph], "plan.graph")
        yield Say("--te-rng-tracker", True)
        if graph == "partial":
            yield Say("--cuda-graph-modules", "attn", "plan.graph")
        else:  # a whole captured step cannot stop to look for NaNs
            yield Say("--no-check-for-nan-in-loss-and-grad", True)
    yield from habits(ID, "switches")
    if switches_resolved.launch_blocking:
        yield Say("CUDA_LAUNCH_BLOCKING", "1", "plan.launch_blocking")
    if has_experts(scenario.model):
        dispatch = switches_resolved.moe_dispatch
        flexible = dispatch != "all-to-all"
        yield Say("--moe-token-dispatcher-type", "flex" if flexible else "alltoall", "plan.moe_dispatch")
        if flexible:
            yield Say("--moe-flex-dispatcher-backend", dispatch, "plan.moe_dispatch")


def overlaps(scenario: Scenario) -> Iterator[Piece]:
    """What communication runs beside compute, where Megatron's own conditions allow it."""
    plan, on = scenario.plan, resolve(scenario).overlap.__getitem__
    is_sharded = plan.sharding.shard != "none" and plan.shard_degree > 1
    hindrances = {  # what overlaps here, and what keeps Megatron from it
        "grad-reduce": (plan.mesh.dp * plan.mesh.cp > 1, ""),
        "param-gather": (is_sharded, "" if on("grad-reduce") else "only together with the overlap of gradients"),
        "tp": (plan.mesh.tp > 1, "" if plan.sequence_parallel else "only with sequence parallelism"),
        "moe": (plan.mesh.ep > 1, _cannot_overlap_experts(scenario)),
    }
    for path, option in option_names(ID, "overlaps").items():
        here, why = hindrances[path.removeprefix("plan.overlap.")]
        if here and on(path.removeprefix("plan.overlap.")):
            yield Lose(path, why) if why else Say(option, True, path)
    is_interleaved = plan.schedule.name == "interleaved"
    if is_interleaved and not on("pp") and plan.mesh.pp > 2:
        yield Say("--no-overlap-p2p-communication", True, "plan.overlap.pp")
    yield from habits(ID, "overlaps")
    why = "sends overlap under the interleaved schedule and wait under plain 1f1b"
    yield Fixed("plan.overlap.pp", is_interleaved, why)
    why = "a ring exchanges beside attention, an all-to-all before it"
    yield Fixed("plan.overlap.cp", plan.switches.cp_kind == "ring", why)


def _cannot_overlap_experts(scenario: Scenario) -> str:
    """Why experts cannot exchange beside compute; empty where they can."""
    plan, ahead = scenario.plan, scenario.model.mtp
    written = writable_recompute(scenario)
    if plan.mesh.pp > 1 and plan.schedule.name != "interleaved":
        return "with a pipeline only under the interleaved schedule"
    if written.kind == "full" or (written.kind == "selective" and "moe" in written.parts):
        return "not while layers or their experts are recomputed"
    if plan.precision.activations.id not in ("bf16", "fp16"):
        return "in bf16 and fp16 only"
    return "with at most one layer that predicts further tokens" if ahead is not None and ahead.depth > 1 else ""


PLAN: tuple[Writer, ...] = (
    axes, pipeline, batch, optimizer, sharding, recompute, offload, precision, switches, overlaps,
)  # fmt: skip


def pieces(scenario: Scenario, writers: tuple[Writer, ...] = (*MODEL, *PLAN)) -> Iterator[Piece]:
    """What these writers say of a scenario in Megatron's words: all of it, unless fewer are named."""
    for writer in writers:
        yield from writer(scenario)


def write(scenario: Scenario) -> Export:
    """The launch scripts and the arguments of pretrain_gpt.py, or of pretrain_hybrid.py for layers of a pattern."""
    engine = Fixed("plan.engine", "megatron-core", "the software that runs it, whatever the prediction assumed")
    model = list(admit_options(pieces(scenario, MODEL), options(ID)))
    decisions = gather(decisions_of(scenario), [engine, *model, *admit_options(pieces(scenario, PLAN), options(ID))])
    said, experts = decisions.options, "--overlap-moe-expert-parallel-comm" in decisions.options
    is_sharded, graph = "--use-megatron-fsdp" in said, said.get("--cuda-graph-impl")
    program = "pretrain_hybrid.py" if is_hybrid(scenario.model) else "pretrain_gpt.py"
    command = NodeCommand(
        words=(),
        environment=run_environment(said, fsdp=is_sharded, experts=experts, graph=graph),
        before=CHECKOUT + arrays(said, {**RUN, **fusions(scenario)}, said_by(model)),
        tail=f'"${{MEGATRON_LM:-Megatron-LM}}/{program}" "${{MODEL_ARGS[@]}}" "${{PLAN_ARGS[@]}}" "${{RUN_ARGS[@]}}"',
    )
    return with_arguments(ID, scenario, command, decisions)


def run_environment(said: JsonMapping, *, fsdp: bool, experts: bool, graph: object) -> dict[str, str]:
    """One queue keeps kernels in the order that tensor and context ranks count on; exchanges of experts beside compute
    need many, and FSDP refuses one. NCCL must not register buffers of a captured graph beside segments that grow.

    >>> run_environment({}, fsdp=False, experts=True, graph=None)["CUDA_DEVICE_MAX_CONNECTIONS"]
    '32'
    """
    queues = {QUEUES: "32"} if experts else {} if fsdp else {QUEUES: "1"}
    graph_variables = {"NCCL_GRAPH_REGISTER": "0"} if graph not in (None, "none") else {}
    return ALLOCATOR | queues | graph_variables | {name: value for name, value in said.items() if name.isupper()}


def fusions(scenario: Scenario) -> JsonObject:
    """Fused kernels that the prediction counts on and the parser leaves off."""
    fusions_predicted, sparse = scenario.engine.fuses, has_experts(scenario.model)
    kernels: JsonObject = {
        f"--moe-{part}-fusion": True for part in ("permute", "router") if sparse and part in fusions_predicted
    }
    if "cross-entropy" in fusions_predicted:
        kernels |= {"--cross-entropy-loss-fusion": True, "--cross-entropy-fusion-impl": "te"}
    return kernels


def with_arguments(id: str, scenario: Scenario, command: NodeCommand, found: Ledger) -> Export:
    """The launch scripts, and beside them the arguments as a table."""
    dashed_options = {name[2:]: value for name, value in found.options.items() if name.startswith("--")}
    return export_run(id, scenario, found, {}, command, {"args.yaml": yaml_text(dashed_options)})


def said_by(found: Iterable[Piece]) -> frozenset[str]:
    """The options that pieces say."""
    return frozenset(piece.option for piece in found if isinstance(piece, Say))


def arrays(said: JsonMapping, run: JsonMapping, of_model: frozenset[str]) -> str:
    """Three shell arrays: of the model, of the plan, and of what a first run needs."""
    dashed_options = {name: value for name, value in said.items() if name.startswith("--")}
    model = {name: value for name, value in dashed_options.items() if name in of_model}
    plan = {name: value for name, value in dashed_options.items() if name not in model}
    run_options = {name: value for name, value in run.items() if name not in dashed_options}
    parts = {"MODEL_ARGS=(": model, "PLAN_ARGS=(": plan, "RUN_ARGS=( # replace by your data and rates": run_options}
    texts = []
    for opening, values in parts.items():
        lines = [f"    {' '.join(words(option, value))}\n" for option, value in values.items()]
        texts.append(f"{opening}\n{''.join(lines)})\n")
    return "\n".join(texts)


def words(option: str, value: object) -> list[str]:
    """An option as quoted shell words.

    >>> words("--bf16", True), words("--recompute-modules", ("moe", "mlp")), words("--split", "a b")
    (['--bf16'], ['--recompute-modules', 'moe', 'mlp'], ['--split', "'a b'"])
    """
    if value is True:
        return [option]
    values = value if isinstance(value, tuple) else (value,)
    return [option, *(shlex.quote(str(part)) for part in values)]
