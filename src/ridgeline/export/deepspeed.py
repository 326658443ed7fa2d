"""Turn a Scenario into DeepSpeed's ds_config.json, and such a file back into settings.

DeepSpeed wraps a model that the user's script builds, so its file holds how states are sharded, batches, formats and
offload, and nothing of the model, the data or the pipeline: those decisions are lost in it and said so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ridgeline.core.errors import InputError
from ridgeline.export.decisions import decisions_of
from ridgeline.export.launch import Command, scripts
from ridgeline.export.ledger import Fixed, Lose, Piece, Say, exported, gather
from ridgeline.export.options import options
from ridgeline.export.reading import Reader, model_in, nested, only, pick, tables
from ridgeline.export.target import Export, Files, Imported, Target
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train

VERSION = options("deepspeed").version
FILE = "ds_config.json"
STAGES = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}
OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "lion": "Lion", "muon": "Muon", "sgd": "SGD", "adafactor": "Adafactor"}
FORMATS = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
OURS = ("SGD", "Adafactor")  # torch's own, which ZeRO takes only when told to
SCRIPT = "the script that DeepSpeed wraps builds this, not its configuration"


def write(scenario: Scenario) -> Export:
    """ds_config.json and the launch scripts."""
    ledger = gather(decisions_of(scenario), _pieces(scenario))
    text = json.dumps(nested(ledger.options), indent=2) + "\n"
    command = Command(words=("train.py", "--deepspeed", "--deepspeed_config", FILE))
    return exported("deepspeed", {FILE: text, **scripts(scenario, command, f"DeepSpeed {VERSION}")}, ledger)


def _pieces(scenario: Scenario) -> Iterator[Piece]:
    yield from _script(scenario)
    yield from _batch(scenario)
    yield from _mesh(scenario)
    yield from _zero(scenario)
    yield from _formats(scenario)
    yield from _optimizer(scenario)


def _script(scenario: Scenario) -> Iterator[Piece]:
    """What the user's own script decides."""
    yield Lose("model.*", SCRIPT)
    yield Fixed("workload.images", 0.0, "text only, unless the script says otherwise")
    for path in ("seq", "packed", "task", "lora.*"):
        yield Lose(f"workload.{path}", SCRIPT)
    yield Fixed("plan.engine", "deepspeed", "what runs it is DeepSpeed")
    yield Fixed("plan.recompute.kind", "none", "layers are recomputed where the model's code calls checkpoint()")
    for path in ("parts", "layers", "blocks"):
        yield Lose(f"plan.recompute.{path}", "which layers are recomputed is written in the model's code")
    if scenario.plan.mesh.pp > 1:
        yield Say("pipeline.stages", scenario.plan.mesh.pp)
        yield Lose("plan.pp", "pipeline.stages is written but nothing obeys it: PipelineModule(num_stages=...) does")
        yield Lose("plan.placement", "stages are built in the script: PipelineModule(partition_method=...)")
    yield Fixed("plan.pp", 1, "one stage")
    yield Fixed("plan.schedule.name", "1f1b", "the pipeline engine runs 1f1b")
    yield Fixed("plan.schedule.chunks", 1, "the pipeline engine has no virtual stages")
    yield Fixed("plan.attention", "flash", "the model's own code; most call a flash kernel")
    yield Fixed("plan.graph", "none", "kernels are issued one by one")
    yield Fixed("plan.compiled", False, "engine.compile() is called in the script")
    yield Fixed("plan.launch_blocking", False, "the environment decides: CUDA_LAUNCH_BLOCKING")


def _batch(scenario: Scenario) -> Iterator[Piece]:
    """train_batch_size = micro batch x accumulation x data-parallel ranks; the ranks follow from the launcher."""
    work = scenario.workload
    assert isinstance(work, Train)
    yield Say("train_batch_size", work.sequences, "workload.global_batch", "plan.dp")
    yield Say("train_micro_batch_size_per_gpu", scenario.plan.microbatch, "plan.microbatch")
    yield Say("gradient_accumulation_steps", scenario.microbatches, "plan.dp")
    yield Fixed("system.chips", scenario.system.chips, "ranks that launch.sh starts")


def _mesh(scenario: Scenario) -> Iterator[Piece]:
    mesh, switches = scenario.plan.mesh, scenario.plan.switches
    if mesh.tp > 1:
        yield Say("tensor_parallel.autotp_size", mesh.tp, "plan.tp")
        yield Say("tensor_parallel.tp_overlap_comm", decisions_of(scenario)["plan.overlap.tp"], "plan.overlap.tp")
        yield Fixed("plan.sequence_parallel", False, "AutoTP splits matrices only")
    yield Fixed("plan.tp", 1, "no tensor parallelism")
    if mesh.cp > 1:
        yield Say("sequence_parallel_size", mesh.cp, "plan.cp")
        yield Fixed("plan.cp_kind", "all-to-all", "Ulysses exchanges heads for sequence")
    yield Fixed("plan.cp", 1, "no context parallelism")
    if mesh.ep * mesh.etp > 1:
        yield Say("expert_parallel.enabled", True, "plan.ep", "plan.etp")
        yield Say("expert_parallel.autoep_size", mesh.ep, "plan.ep")
        yield Say("expert_parallel.expert_tensor_parallel_size", mesh.etp, "plan.etp")
        if switches.moe_dispatch == "deepep":
            yield Say("expert_parallel.comm_backend", "deepep", "plan.moe_dispatch")
    yield Fixed("plan.moe_dispatch", "all-to-all", "torch.distributed, or DeepEP")
    yield Fixed("plan.ep", 1, "every rank holds all experts")
    yield Fixed("plan.etp", 1, "experts are not split")
    for name in ("pp", "cp", "moe"):
        yield Fixed(f"plan.overlap.{name}", False, "DeepSpeed does not overlap it")


def _zero(scenario: Scenario) -> Iterator[Piece]:
    plan, offload, found = scenario.plan, scenario.plan.offload, decisions_of(scenario)
    stage = STAGES[plan.sharding.shard]
    yield Say("zero_optimization.stage", stage, "plan.shard")
    ranks = plan.mesh.dp * plan.mesh.cp
    if stage and plan.shard_degree < ranks:
        if stage == 3:
            yield Say("zero_optimization.zero_hpz_partition_size", plan.shard_degree, "plan.shard_degree")
        why = "states are split over all data-parallel ranks (MiCS is gone); hpZ keeps a second copy of weights only"
        yield Lose("plan.shard_degree", why)
    yield Fixed("plan.shard_degree", ranks, "all data-parallel ranks")
    reduce, fetch = found.get("plan.overlap.grad-reduce"), found.get("plan.overlap.param-gather")
    if stage and (reduce is not None or fetch is not None):
        both = stage == 3
        yield Say("zero_optimization.overlap_comm", bool(reduce if reduce is not None else fetch), *OVERLAPPED[both])
        if both and reduce is not None and fetch is not None and reduce != fetch:
            yield Lose("plan.overlap.param-gather", "overlap_comm switches reduction and gathering together")
    yield Fixed("plan.overlap.grad-reduce", False, "without ZeRO gradients are reduced after the backward pass")
    yield Fixed("plan.overlap.param-gather", False, "below stage 3 weights are gathered after the step")
    yield Fixed("plan.overlap.offload", True, "copies to the host have a stream of their own")
    yield from _offload(stage, offload.optimizer, offload.activations)


OVERLAPPED = {
    True: ("plan.overlap.grad-reduce", "plan.overlap.param-gather"),
    False: ("plan.overlap.grad-reduce",),
}


def _offload(stage: int, optimizer: float, activations: float) -> Iterator[Piece]:
    if optimizer and stage and (optimizer == 1 or stage == 3):
        yield Say("zero_optimization.offload_optimizer.device", "cpu", "plan.offload.optimizer")
        yield Say("zero_optimization.offload_optimizer.pin_memory", True)
        if optimizer < 1:
            yield Say("zero_optimization.offload_optimizer.ratio", optimizer, "plan.offload.optimizer")
    elif optimizer:
        why = "a share of the optimizer is offloaded in stage 3 only" if stage else "only ZeRO's optimizer is offloaded"
        yield Lose("plan.offload.optimizer", why)
    yield Fixed("plan.offload.optimizer", 0.0, "the optimizer stays on the chip")
    if activations == 1:
        yield Say("activation_checkpointing.cpu_checkpointing", True, "plan.offload.activations")
    yield Fixed("plan.offload.activations", 0.0, "all inputs of recomputed layers or none")


def _formats(scenario: Scenario) -> Iterator[Piece]:
    precision = scenario.plan.precision
    compute, found = precision.compute.id, decisions_of(scenario)
    if compute not in FORMATS:
        yield Lose("plan.precision.compute", "products are multiplied in bf16, fp16 or fp32; others are in the model")
        yield Lose("plan.precision.scaling", "DeepSpeed trains in no narrow format")
    stored = precision.weights.id if precision.weights.id in FORMATS else "bf16"
    if stored != "fp32":
        yield Say(f"{stored}.enabled", True, "plan.precision.weights", "plan.precision.compute")
    yield Fixed("plan.precision.compute", stored, "products are multiplied as weights are stored")
    yield Fixed("plan.precision.weights", stored, "bf16, fp16 or fp32")
    yield Fixed("plan.precision.activations", stored, "activations follow the weights")
    gradients = found["plan.precision.gradients"]
    if gradients in FORMATS:
        yield Say("communication_data_type", gradients, "plan.precision.gradients")
        yield Say("data_types.grad_accum_dtype", gradients, "plan.precision.gradients")
    else:
        yield Lose("plan.precision.gradients", "gradients are reduced in bf16, fp16 or fp32")


def _optimizer(scenario: Scenario) -> Iterator[Piece]:
    work, stage = scenario.workload, STAGES[scenario.plan.sharding.shard]
    assert isinstance(work, Train)
    name, states = work.optimizer.name, work.optimizer.states.id
    kind = "SGD" if name == "momentum" else OPTIMIZERS[name]
    yield Say("optimizer.type", kind, "workload.optimizer.name")
    if name == "momentum":
        yield Say("optimizer.params.momentum", 0.9, "workload.optimizer.name")
    if name in ("adam", "adamw"):
        yield Say("optimizer.params.adam_w_mode", name == "adamw", "workload.optimizer.name")
    if kind in OURS and stage:
        yield Say("zero_allow_untested_optimizer", True)
    master = work.optimizer.master.id if work.optimizer.master else "none"
    stored = scenario.plan.precision.weights.id
    if master == "bf16" == stored and stage:
        yield Say("bf16.bf16_master_weights_and_grads", True, "workload.optimizer.master")
        if states == "bf16":
            yield Say("bf16.bf16_optimizer_states", True, "workload.optimizer.states")
    expected = "none" if stored == "fp32" else "fp32"
    yield Fixed("workload.optimizer.master", expected, "16-bit weights get a copy in fp32, fp32 weights none")
    yield Fixed("workload.optimizer.states", "fp32", "states are kept in fp32")


# what a configuration says that a scenario has no place for
APART = {
    "scheduler.*": "learning rates decide nothing about speed",
    "optimizer.params.*": "learning rates decide nothing about speed",
    "gradient_clipping": "clipping is not priced apart",
    "*_bucket_size": "bucket sizes are not priced",
    "zero_optimization.*": "a tuning knob of ZeRO that is not priced",
    "fp16.*": "loss scaling decides nothing about speed",
    "bf16.*": "a detail of bf16 training that is not priced",
    "activation_checkpointing.*": "a detail of how checkpoints are stored that is not priced",
    "steps_per_print": "logging",
    "wall_clock_breakdown": "logging",
    "*profiler*": "logging",
    "tensorboard.*": "logging",
    "wandb.*": "logging",
    "comms_logger.*": "logging",
}


def read(files: Files) -> Imported:
    """What a ds_config.json says; the model and the sequence length come from elsewhere."""
    expected = "one JSON file with DeepSpeed's keys, such as zero_optimization or train_batch_size"
    reader = Reader(only(files, _is_config, expected, ".json"))
    optimizer = _read_optimizer(reader)
    mesh, zero = _read_mesh(reader), _read_zero(reader)
    plan = mesh | zero | {"overlap": mesh.pop("overlap", {}) | zero.pop("overlap", {})} | _read_formats(reader)
    batch = reader.count("train_batch_size")
    micro = reader.count("train_micro_batch_size_per_gpu")
    steps = reader.count("gradient_accumulation_steps")
    if micro is None and steps is None and batch is not None:
        reader.assumptions.append("microbatch = 1: train_micro_batch_size_per_gpu is not given")
    plan |= pick({"microbatch": micro, "engine": "deepspeed"})
    if batch and micro and steps and batch % (micro * steps) == 0:
        plan["dp"] = batch // (micro * steps)
    reader.assumptions.append("the model and seq are not part of a DeepSpeed configuration")
    settings = pick({"model": model_in(files)}) | {
        "workload": pick({"kind": "train", "global_batch": batch, "optimizer": optimizer}),
        "plan": plan,
    }
    return Imported(
        target="deepspeed",
        settings=settings,
        unread=reader.unread(APART),
        assumptions=tuple(reader.assumptions),
        per_rank=micro * (steps or 1) if micro and batch is None else None,
    )


def _read_mesh(reader: Reader) -> dict[str, Any]:
    plan: dict[str, Any] = {"tp": reader.degree("tensor_parallel.autotp_size"), "cp": reader.degree(CP)}
    plan["pp"] = reader.degree("pipeline.stages")
    if plan["tp"] > 1:
        plan |= {"sequence_parallel": False}
        plan["overlap"] = {"tp": reader.switch("tensor_parallel.tp_overlap_comm", default=False)}
    if plan["cp"] > 1:
        plan["cp_kind"] = "all-to-all"
    if reader.switch("expert_parallel.enabled", default=False):
        plan["ep"] = reader.degree("expert_parallel.autoep_size")
        plan["etp"] = reader.degree("expert_parallel.expert_tensor_parallel_size")
        dispatch = {"comm": "all-to-all", "deepep": "deepep"}
        plan["moe_dispatch"] = reader.word("expert_parallel.comm_backend", among=dispatch, default="all-to-all")
    return plan


CP = "sequence_parallel_size"


def _read_zero(reader: Reader) -> dict[str, Any]:
    shards = {str(stage): shard for shard, stage in STAGES.items()}
    shard = reader.word("zero_optimization.stage", among=shards, default="none")
    plan: dict[str, Any] = {"shard": shard}
    whole = shard == "zero3"
    overlap = reader.switch("zero_optimization.overlap_comm", default=whole) and shard != "none"
    plan["overlap"] = {"grad-reduce": overlap, "param-gather": overlap and whole}
    device = {"none": 0.0, "cpu": 1.0, "nvme": 1.0}
    share = reader.word("zero_optimization.offload_optimizer.device", among=device, default=0.0)
    if share:
        share = reader.share("zero_optimization.offload_optimizer.ratio", default=1.0)
    reader.take("zero_optimization.offload_optimizer.pin_memory", "zero_allow_untested_optimizer")
    kept = reader.switch("activation_checkpointing.cpu_checkpointing", default=False)
    plan["offload"] = {"optimizer": share, "activations": 1.0 if kept else 0.0}
    return plan


def _read_formats(reader: Reader) -> dict[str, Any]:
    stored = "fp32"
    for name in ("bf16", "fp16"):
        if reader.switch(f"{name}.enabled", "bfloat16.enabled" if name == "bf16" else f"{name}.enabled", default=False):
            stored = name
    if stored == "fp32" and any(str(reader.take(f"{name}.enabled")) == "auto" for name in ("bf16", "fp16")):
        stored = "bf16"
        reader.assumptions.append("precision = bf16: the file leaves it to the script")
    kept = reader.word("communication_data_type", "data_types.grad_accum_dtype", among=FORMATS, default=None)
    reader.take("data_types.grad_accum_dtype")
    gradients = kept or stored
    return {"precision": {"name": stored, "gradients": gradients}}


def _read_optimizer(reader: Reader) -> dict[str, Any]:
    names = {kind: name for name, kind in OPTIMIZERS.items()} | {"onebitadam": "adam", "zerooneadam": "adam"}
    name = reader.word("optimizer.type", among=names, default=None)
    if name is None:
        reader.assumptions.append("optimizer = adamw: the script builds it")
        name = "adamw"
    mode = reader.take("optimizer.params.adam_w_mode")
    if name == "adam" and mode is not False:
        name = "adamw"  # DeepSpeed's Adam decays weights as AdamW does unless told otherwise
    if name == "sgd" and reader.take("optimizer.params.momentum", default=0):
        name = "momentum"
    narrow = any(reader.switch(f"{key}.enabled", default=False) for key in ("bf16", "fp16", "bfloat16"))
    narrow = narrow or any(str(reader.take(f"{key}.enabled")) == "auto" for key in ("bf16", "fp16"))
    own = reader.switch("bf16.bf16_master_weights_and_grads", default=False)
    states = reader.switch("bf16.bf16_optimizer_states", default=False)
    return {
        "name": name,
        "master": "bf16" if own else "fp32" if narrow else "none",
        "states": "bf16" if states else "fp32",
    }


def _is_config(data: dict[str, Any]) -> bool:
    return any(key in data for key in ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"))


def recognises(files: Files) -> bool:
    """A JSON file with DeepSpeed's keys."""
    try:
        return any(_is_config(table.data) for table in tables(files, ".json"))
    except InputError:
        return False


TARGET = Target(id="deepspeed", write=write, read=read, recognises=recognises)
