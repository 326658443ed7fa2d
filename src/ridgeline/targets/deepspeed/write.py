"""Turn a Scenario into DeepSpeed's ds_config.json and the launch scripts.

DeepSpeed wraps a model that the user's script builds, so its file holds how states are sharded, batches, formats and
offload, and nothing of the model, the data or the pipeline: those decisions are lost in it and said so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.decisions import decisions_of
from ridgeline.targets.deepspeed.names import CP, FORMATS, ID, OPTIMIZERS, STAGES
from ridgeline.targets.deepspeed.write_train import FILE as TRAIN
from ridgeline.targets.deepspeed.write_train import train_script
from ridgeline.targets.launch import Command, scripts
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, exported, gather, media_of_the_data
from ridgeline.targets.option_reader import nested
from ridgeline.targets.options import options
from ridgeline.targets.recompute_fallback import KEYS, changed, same_everywhere
from ridgeline.targets.target import Export
from ridgeline.targets.vendors import growing_segments, runs_on, vendor_of

FILE = "ds_config.json"
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"  # which PyTorch of every age reads
ON_HOST = {"DS_ACCELERATOR": "cpu"}
OURS = ("SGD", "Adafactor")  # torch's own, which ZeRO takes only when told to
SCRIPT = "the script that DeepSpeed wraps (train.py) builds this, not its configuration"
NOTE = "# train.py is your script: it builds the model and the data and calls deepspeed.initialize"
WRITTEN = "# train.py builds the model on made-up data: put your data and weights there; STEPS and MODEL are variables"
CODE = "which layers are recomputed is written in the script (train.py)"


def write(scenario: Scenario) -> Export:
    """ds_config.json and the launch scripts."""
    ledger = gather(decisions_of(scenario), _pieces(scenario))
    text = json.dumps(nested(ledger.options), indent=2) + "\n"
    title = options(ID).title
    script = train_script(scenario, title)
    command = Command(
        words=("train.py", "--deepspeed", "--deepspeed_config", FILE),
        before=WRITTEN if script else NOTE,
        environment=ON_HOST
        if vendor_of(scenario.system).device == "cpu"
        else growing_segments(scenario.system, ALLOCATOR),
    )
    files = {FILE: text, **scripts(scenario, command, title)}
    return exported(ID, files | ({TRAIN: script} if script else {}), ledger)


def _pieces(scenario: Scenario) -> Iterator[Piece]:
    yield from _script()
    yield from runs_on(scenario, ID)
    for part in (_pipeline, _batch, _mesh, _experts, _zero, _offload, _formats, _optimizer):
        yield from part(scenario)


def _script() -> Iterator[Piece]:
    """What the user's own script decides."""
    yield Lose("model.*", SCRIPT, yours=True)
    yield Fixed("workload.images", 0.0, "text only, unless the script says otherwise")
    for path in ("seq", "packed", "document", "task", "lora.*"):
        yield Lose(f"workload.{path}", SCRIPT, yours=True)
    yield Fixed("plan.engine", "deepspeed", "what runs it is DeepSpeed")
    yield Fixed("plan.attention", "flash", "the model's own code; most call a flash kernel")
    yield Fixed("plan.graph", "none", "kernels are issued one by one")
    yield Fixed("plan.compiled", False, "engine.compile() is called in the script")
    yield Fixed("plan.launch_blocking", False, "the environment decides: CUDA_LAUNCH_BLOCKING")


def _pipeline(scenario: Scenario) -> Iterator[Piece]:
    """Stages are built by the script; how many layers lie between checkpoints the pipeline engine does read."""
    plan, cover = scenario.plan, same_everywhere(scenario)
    if plan.mesh.pp > 1:
        yield Say("pipeline.stages", plan.mesh.pp)
        built = "pipeline.stages is written but nothing obeys it: PipelineModule(num_stages=...) does"
        yield Lose("plan.pp", built, yours=True)
        yield Lose("plan.placement", "stages are built in the script: PipelineModule(partition_method=...)", yours=True)
    yield Fixed("plan.pp", 1, "one stage")
    yield Fixed("plan.schedule.name", "1f1b", "the pipeline engine runs 1f1b")
    yield Fixed("plan.schedule.chunks", 1, "the pipeline engine has no virtual stages")
    if plan.mesh.pp > 1 and cover.kind == "full":
        yield from changed(scenario, cover, "one interval for all layers")
        yield Say("pipeline.activation_checkpoint_interval", 1, "plan.recompute.kind", "plan.recompute.layers")
        return
    yield Fixed("plan.recompute.kind", "none", "layers are recomputed where the model's code calls checkpoint()")
    if plan.recompute.kind != "none":
        for path in KEYS:
            yield Lose(f"plan.recompute.{path}", CODE, yours=True)


def sequence_ranks(scenario: Scenario) -> tuple[int, str]:
    """Ranks that share a sequence, and why these are not the plan's where DeepSpeed refuses the combination."""
    plan, mesh = scenario.plan, scenario.plan.mesh
    if mesh.cp > 1 and mesh.tp > 1:
        return 1, "sequence parallelism and AutoTP exclude each other: left out"
    if mesh.cp > 1 and mesh.ep > 1 and plan.sharding.shard == "zero3":
        return 1, "stage 3 takes no sequence parallelism beside AutoEP: left out"
    return mesh.cp, ""


def _batch(scenario: Scenario) -> Iterator[Piece]:
    """train_batch_size = micro batch x accumulation x data-parallel ranks; the ranks follow from the launcher."""
    work, mesh = scenario.workload, scenario.plan.mesh
    assert isinstance(work, Train)
    if work.images or work.videos or work.audio_s:
        yield from media_of_the_data()
        yield Lose("workload.towers", SCRIPT, yours=True)
    shared, why = sequence_ranks(scenario)
    ranks = mesh.dp * mesh.cp // shared
    micro, steps, sequences = scenario.plan.microbatch, scenario.microbatches, work.sequences
    if why:
        yield Lose("plan.dp", f"{why}, and its ranks take data of their own")
        each = max(1, sequences // ranks)
        micro = next(size for size in range(min(micro, each), 0, -1) if each % size == 0)
        steps = each // micro
    if micro * steps * ranks != sequences:
        sequences = micro * steps * ranks
        yield Lose("workload.global_batch", f"{ranks} data-parallel ranks do not share it: written with {sequences}")
    if micro != scenario.plan.microbatch:
        yield Lose("plan.microbatch", f"written as {micro}, for {ranks} data-parallel ranks")
    yield Say("train_batch_size", sequences, "workload.global_batch", "plan.dp")
    yield Say("train_micro_batch_size_per_gpu", micro, "plan.microbatch")
    yield Say("gradient_accumulation_steps", steps, "plan.dp")
    yield Fixed("system.chips", scenario.system.chips, "ranks that launch.sh starts")


def _mesh(scenario: Scenario) -> Iterator[Piece]:
    mesh = scenario.plan.mesh
    if mesh.tp > 1:
        yield Say("tensor_parallel.autotp_size", mesh.tp, "plan.tp")
        yield Say("tensor_parallel.tp_overlap_comm", decisions_of(scenario)["plan.overlap.tp"], "plan.overlap.tp")
        yield Fixed("plan.sequence_parallel", False, "AutoTP splits matrices only")
    yield Fixed("plan.tp", 1, "no tensor parallelism")
    shared, why = sequence_ranks(scenario)
    if why:
        yield Lose("plan.cp", why)
        yield Lose("plan.cp_kind", why)
    if shared > 1:
        yield Say(CP, shared, "plan.cp")
        yield Say("data_parallel_size", mesh.dp)  # both make the groups
        yield Fixed("plan.cp_kind", "all-to-all", "Ulysses exchanges heads for sequence")
    yield Fixed("plan.cp", 1, "no context parallelism")
    for name in ("pp", "cp", "moe"):
        yield Fixed(f"plan.overlap.{name}", False, "DeepSpeed does not overlap it")


def _experts(scenario: Scenario) -> Iterator[Piece]:
    mesh, switches = scenario.plan.mesh, scenario.plan.switches
    assert isinstance(scenario.workload, Train)
    if mesh.ep > 1:
        yield Say("expert_parallel.enabled", True, "plan.ep")
        yield Say("expert_parallel.autoep_size", mesh.ep, "plan.ep")
        yield Say("expert_parallel.expert_tensor_parallel_size", 1)
        if switches.moe_dispatch == "deepep":
            yield Say("expert_parallel.comm_backend", "deepep", "plan.moe_dispatch")
            tokens = scenario.plan.microbatch * scenario.workload.seq // sequence_ranks(scenario)[0]
            yield Say("expert_parallel.comm_max_tokens_per_rank", tokens)
    yield Fixed("plan.moe_dispatch", "all-to-all", "torch.distributed, or DeepEP")
    yield Fixed("plan.ep", 1, "every rank holds all experts")
    yield Fixed("plan.etp", 1, "experts are not split over tensor ranks yet")


def _zero(scenario: Scenario) -> Iterator[Piece]:
    plan, found = scenario.plan, decisions_of(scenario)
    stage = STAGES[plan.sharding.shard]
    yield Say("zero_optimization.stage", stage, "plan.shard")
    ranks = plan.mesh.dp * plan.mesh.cp
    if stage and plan.shard_degree < ranks:
        if stage == 3 and plan.mesh.ep == 1 and plan.shard_degree > 1:
            yield Say("zero_optimization.zero_hpz_partition_size", plan.shard_degree)
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


OVERLAPPED = {
    True: ("plan.overlap.grad-reduce", "plan.overlap.param-gather"),
    False: ("plan.overlap.grad-reduce",),
}


def _offload(scenario: Scenario) -> Iterator[Piece]:
    offload, mesh = scenario.plan.offload, scenario.plan.mesh
    optimizer, stage = offload.optimizer, STAGES[scenario.plan.sharding.shard]
    folded = mesh.tp > 1 and mesh.ep > 1
    if optimizer and stage and (optimizer == 1 or stage == 3) and not folded:
        yield Say("zero_optimization.offload_optimizer.device", "cpu", "plan.offload.optimizer")
        yield Say("zero_optimization.offload_optimizer.pin_memory", True)
        if optimizer < 1:
            yield Say("zero_optimization.offload_optimizer.ratio", optimizer, "plan.offload.optimizer")
    elif optimizer:
        why = "a share of the optimizer is offloaded in stage 3 only" if stage else "only ZeRO's optimizer is offloaded"
        yield Lose("plan.offload.optimizer", "refused beside AutoTP with AutoEP: left out" if folded else why)
    yield Fixed("plan.offload.optimizer", 0.0, "the optimizer stays on the chip")
    if offload.activations == 1:
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
    yield from _gradients(scenario, found["plan.precision.gradients"], stored)


def _gradients(scenario: Scenario, gradients: str, stored: str) -> Iterator[Piece]:
    """The format they are added up in and the one they are reduced in; with sequence parallelism its own option."""
    if gradients not in FORMATS:
        yield Lose("plan.precision.gradients", "gradients are reduced in bf16, fp16 or fp32")
        return
    yield Say("communication_data_type", gradients, "plan.precision.gradients")
    if sequence_ranks(scenario)[0] > 1:
        yield Say("seq_parallel_communication_data_type", gradients, "plan.precision.gradients")
    if scenario.plan.sharding.shard == "none" and gradients != stored:
        yield Lose("plan.precision.gradients", f"without ZeRO they are added up in {stored}, and only reduced in this")
        return
    yield Say("data_types.grad_accum_dtype", gradients, "plan.precision.gradients")


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
        if vendor_of(scenario.system).device == "cpu":  # no kernel is compiled for a host
            yield Say("optimizer.params.torch_adam", True)
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
