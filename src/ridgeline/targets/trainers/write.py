"""Turn a Scenario into what software around transformers' Trainer can be told: who shards, the mesh, the batch.

Such software splits data (DDP, FSDP2 or DeepSpeed), sequences and, some of it, matrices; it has no pipeline and holds
experts whole. Ranks of an axis that it lacks take data of their own, and what that changes is a loss with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ridgeline.core.documents import JsonMapping
from ridgeline.plan.scenario import Scenario, training
from ridgeline.targets.decisions import decisions_of, divisor_below
from ridgeline.targets.dialects.deepspeed import OVERLAPPED, STAGES, offload_pieces, zero_offloads
from ridgeline.targets.dialects.verl.names import LORA_NAMES, weights_of
from ridgeline.targets.imports.option_reader import nest_options
from ridgeline.targets.launchers.launch import NodeCommand, account_run, export_run, nodes_of
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, habits, media_of_the_data
from ridgeline.targets.options import LONG_FORMATS
from ridgeline.targets.recompute_fallback import checkpointing_pieces
from ridgeline.targets.tables import values
from ridgeline.targets.target import Export
from ridgeline.targets.vendors import growing_segments
from ridgeline.targets.yaml_text import yaml_text

Backend = Literal["ddp", "fsdp2", "deepspeed"]
# where `accelerate launch` keeps FSDP, and its words for who shards
FSDP = "accelerate.fsdp_config.fsdp"
TYPES: dict[Backend, str] = {"ddp": "MULTI_GPU", "fsdp2": "FSDP", "deepspeed": "DEEPSPEED"}
Words = Mapping[str, str]
OPTIMIZERS = {"adamw": "adamw_torch_fused", "sgd": "sgd", "adafactor": "adafactor", "lion": "lion_32bit"}
FORMATS = ("bf16", "fp16", "fp32")
MODULES = LORA_NAMES[False]
OWN = "what runs it is PyTorch, eager or compiled, or DeepSpeed"
ZERO = "deepspeed.json"
STARTED = (
    '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" '
    '--num_machines "$NNODES" -m '
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRun:
    """One run as it is written.

    shard      ranks that a shard is split over, context ranks not counted; `replicate` such groups hold copies
    steps      microbatches that gradients are accumulated over
    lost       what differs from the plan, and why
    """

    backend: Backend
    stage: int
    tp: int
    cp: int
    shard: int
    replicate: int
    micro: int
    steps: int
    lost: tuple[Lose, ...] = ()

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.shard * self.replicate

    @property
    def sequences(self) -> int:
        """Sequences of one step."""
        return self.micro * self.steps * self.dp


def backend_of(scenario: Scenario) -> Backend:
    """DeepSpeed where the plan's engine is it, or only it can: ZeRO-1, and heads exchanged for sequence."""
    plan = scenario.plan
    exchanges_heads = plan.mesh.cp > 1 and plan.switches.cp_kind == "all-to-all"
    if plan.engine == "deepspeed" or exchanges_heads or (plan.sharding.shard == "zero1" and plan.mesh.dp > 1):
        return "deepspeed"
    return "fsdp2" if plan.sharding.shard != "none" or plan.mesh.cp > 1 else "ddp"


def run_of(scenario: Scenario, can: Collection[tuple[str, str]]) -> TrainerRun:
    """The run, for software that can split along these axes ("tp", "cp") with these backends."""
    mesh, backend = scenario.plan.mesh, backend_of(scenario)
    lost: list[Lose] = []
    stage = STAGES[scenario.plan.sharding.shard]
    cp = _able(mesh.cp, ("plan.cp", "plan.cp_kind"), (backend, "cp") in can, "sequences are not split", lost)
    splits = (backend, "tp") in can and (backend != "deepspeed" or (stage < 3 and cp == 1))
    tp = _able(mesh.tp, ("plan.tp",), splits, "matrices are not split, or not beside this sharding", lost)
    if mesh.pp > 1:
        why = "there is no pipeline: its ranks take data of their own"
        lost += [Lose(f"plan.{name}", why) for name in ("pp", "schedule.*", "placement", "order", "overlap.pp")]
    if backend == "fsdp2" and stage == 0:
        stage = 2
        lost.append(Lose("plan.shard", "context parallelism comes with FSDP2: written as zero2"))
    dp = scenario.system.chips // (tp * cp)
    if dp != mesh.dp:
        lost.append(Lose("plan.dp", f"{dp} data-parallel ranks, for axes that are not there"))
    shard = _shard(scenario, backend, cp, dp, lost)
    if backend == "fsdp2" and tp > 1 and shard == 1:
        shard = dp
    micro, steps = _batch(scenario, dp, lost)
    return TrainerRun(
        backend=backend,
        stage=stage,
        tp=tp,
        cp=cp,
        shard=shard,
        replicate=dp // shard,
        micro=micro,
        steps=steps,
        lost=tuple(lost),
    )


def _able(degree: int, paths: tuple[str, ...], able: bool, why: str, lost: list[Lose]) -> int:
    if degree == 1 or able:
        return degree
    lost += [Lose(path, f"{why}: these ranks take data of their own") for path in paths]
    return 1


def _shard(scenario: Scenario, backend: Backend, cp: int, dp: int, lost: list[Lose]) -> int:
    plan = scenario.plan
    if backend == "ddp":
        return 1
    shards_weights = plan.shard_degree == plan.mesh.dp * plan.mesh.cp
    if backend == "deepspeed":
        if not shards_weights and plan.sharding.shard != "none":
            lost.append(Lose("plan.shard_degree", "states are split over all data-parallel ranks"))
        return dp
    wanted_names = dp if shards_weights else plan.shard_degree // cp
    fits = plan.shard_degree % cp == 0 and wanted_names > 1 and dp % wanted_names == 0
    if not shards_weights and not fits:
        lost.append(Lose("plan.shard_degree", "a shard is split over whole context groups, and two ranks at least"))
    if shards_weights and dp != plan.mesh.dp:
        lost.append(Lose("plan.shard_degree", "a shard is split over all data-parallel ranks"))
    return wanted_names if fits or shards_weights else dp


def _batch(scenario: Scenario, dp: int, lost: list[Lose]) -> tuple[int, int]:
    """Sequences of a microbatch and microbatches of a step, as near to the plan's as the ranks allow."""
    work, micro = training(scenario).workload, scenario.plan.microbatch
    sequences_each = max(1, work.sequences // dp)
    size_found = divisor_below(sequences_each, micro)
    if size_found != micro:
        lost.append(Lose("plan.microbatch", f"written as {size_found}, for {dp} data-parallel ranks"))
    if sequences_each * dp != work.sequences:
        why = f"{dp} data-parallel ranks do not share it: written as {sequences_each * dp}"
        lost.append(Lose("workload.global_batch", why))
    return size_found, sequences_each // size_found


def common(scenario: Scenario, run: TrainerRun, words: Words) -> Iterator[Piece]:
    """Everything but the model's task, which each software has its own word for."""
    yield from run.lost
    for plain in (_model, _lora, _recompute, _optimizer):
        yield from plain(scenario, words)
    for part in (_pieces_batch, _offload, _formats, _switches):
        yield from part(scenario, run, words)
    yield from habits("trainers", "experts")
    yield from _zero(scenario, run, words) if run.backend == "deepspeed" else _sharding_pieces(run, words)


def _model(scenario: Scenario, words: Words) -> Iterator[Piece]:
    path = weights_of(scenario.model)
    if path is None:
        yield Say(words["model"], scenario.model.id)
        yield Lose("model.*", "no published weights are known of it: name a folder whose config.json says the same")
        return
    yield Say(words["model"], path, "model.*")
    if scenario.model.mtp is not None:
        yield Lose("model.mtp*", "transformers leaves out blocks that predict further tokens")
    if scenario.model.vision is not None and not sees(scenario, words):
        yield Lose("model.vision*", "a batch of text does not run the encoder")


def sees(scenario: Scenario, words: Words) -> bool:
    """Whether images or videos reach the model's encoder: the trainer can, and the workload has some."""
    work = training(scenario).workload
    return "images" in words and scenario.model.vision is not None and bool(work.images or work.videos)


def _pieces_batch(scenario: Scenario, run: TrainerRun, words: Words) -> Iterator[Piece]:
    """Packing joins documents; beside context parallelism it is refused, for the mask between them is dropped."""
    work = training(scenario).workload
    yield Say(words["seq"], work.seq, "workload.seq")
    is_packed = work.packed and (run.cp == 1 or "packed_cp" in words)
    stands_alone = is_packed and sees(scenario, words) and words["images"] == "alone"
    is_packed = is_packed and not stands_alone
    for name in words["packed"].split():
        yield Say(name, is_packed, "workload.packed")
    if stands_alone:
        yield Lose("workload.packed", "refused beside images: one document fills a sequence")
    elif is_packed != work.packed:
        yield Lose("workload.packed", "refused beside context parallelism: one document fills a sequence")
    yield from habits("trainers", "pieces_batch")
    if sees(scenario, words):
        yield from media_of_the_data()
    yield Say(words["micro"], run.micro, "plan.microbatch")
    yield Say(words["steps"], run.steps, "workload.global_batch", "plan.dp")


def _lora(scenario: Scenario, words: Words) -> Iterator[Piece]:
    work = training(scenario).workload
    if work.lora is None:
        return
    yield Say(words["rank"], work.lora.rank, "workload.lora.rank")
    names = list(dict.fromkeys(name for target in work.lora.targets for name in MODULES.get(target, ())))
    value = ",".join(names) if "adapters_joined" in words else names
    yield Say(words["adapters"], value, "workload.lora.targets")
    if set(work.lora.targets) - set(MODULES):
        yield Lose("workload.lora.targets", f"adapters go on {', '.join(MODULES)}")


def _recompute(scenario: Scenario, words: Words) -> Iterator[Piece]:
    yield from checkpointing_pieces(scenario, words["recompute"], switches_off="recompute_off" in words)


def _offload(scenario: Scenario, run: TrainerRun, words: Words) -> Iterator[Piece]:
    share = scenario.plan.offload
    if share.activations == 1 and "offload_activations" in words:
        yield Say(words["offload_activations"], True, "plan.offload.activations")
    yield from habits("trainers", "offload")
    if share.optimizer == 1 and run.backend == "fsdp2":
        yield Say(words["offload"], True, "plan.offload.optimizer")
    elif run.backend == "deepspeed" and zero_offloads(share.optimizer, run.stage):
        yield from offload_pieces(share.optimizer, "deepspeed.")


def _formats(scenario: Scenario, run: TrainerRun, words: Words) -> Iterator[Piece]:
    """Mixed precision keeps fp32 weights that are cast as they are gathered (FSDP2) or used (DDP); or all is bf16."""
    precision, work = scenario.plan.precision, training(scenario).workload
    stored_format = precision.weights.id if precision.weights.id in FORMATS else "bf16"
    if run.backend == "ddp" and stored_format == "fp32" and precision.compute.id in FORMATS:
        stored_format = precision.compute.id
    master = work.optimizer.master.id if work.optimizer.master else "none"
    pure_bf16 = run.backend != "deepspeed" and stored_format == "bf16" and master == "none"
    pure_bf16 = pure_bf16 and work.optimizer.states.id == "bf16"
    is_mixed = stored_format != "fp32" and not pure_bf16
    wide = run.backend == "ddp" and is_mixed and work.lora is None  # beside adapters, weights rest as they are
    weight_format = "fp32" if wide else stored_format
    paths_carried = [f"plan.precision.{path}" for path in ("weights", "compute", "activations")]
    if "dtype" in words:
        yield Say(words["dtype"], LONG_FORMATS["fp32" if is_mixed and work.lora is None else stored_format])
    for name in ("bf16", "fp16"):
        yield Say(words[name], is_mixed and stored_format == name, *paths_carried)
    if "mixed" in words:
        yield Say(words["mixed"], stored_format if is_mixed else "no", *paths_carried)
    if "pure" in words:
        yield Say(words["pure"], pure_bf16)
    for path in ("weights", "compute", "activations"):
        if getattr(precision, path).id != (weight_format if path == "weights" else stored_format):
            why = f"kept in {weight_format}" if path == "weights" else f"products are multiplied in {stored_format}"
            yield Lose(f"plan.precision.{path}", why)
    if run.backend == "deepspeed":
        return
    why = "gradients have the format that weights are kept in" if run.backend == "ddp" else "FSDP2 reduces in it"
    yield Fixed("plan.precision.gradients", weight_format, why)
    yield Fixed("workload.optimizer.master", "fp32" if is_mixed and not wide else "none", f"kept in {weight_format}")
    state_format = "bf16" if pure_bf16 else "fp32"
    yield Fixed("workload.optimizer.states", state_format, "states have the format of what is updated")


def _optimizer(scenario: Scenario, words: Words) -> Iterator[Piece]:
    name = training(scenario).workload.optimizer.name
    if name == "muon" and "muon" in words:
        option, _, value = words["muon"].partition("=")
        yield Say(option, True if value == "true" else value, "workload.optimizer.name")
    if name in OPTIMIZERS or "muon" not in words or name != "muon":
        yield Say(words["optimizer"], OPTIMIZERS.get(name, OPTIMIZERS["adamw"]))
    if name in OPTIMIZERS:
        yield Say(words["optimizer"], OPTIMIZERS[name], "workload.optimizer.name")
    yield Fixed("workload.optimizer.name", "adamw", f"written are {', '.join(OPTIMIZERS)}")


def _switches(scenario: Scenario, run: TrainerRun, words: Words) -> Iterator[Piece]:
    is_compiled = decisions_of(scenario)["plan.compiled"]
    yield Say(words["compiled"], is_compiled, "plan.compiled")
    by_torch = "torch-compile" if is_compiled else "torch-eager"
    yield Fixed("plan.engine", "deepspeed" if run.backend == "deepspeed" else by_torch, OWN)
    yield Say(words["attention"], words["flash"], "plan.attention")
    if decisions_of(scenario)["plan.attention"] != "flash":
        yield Lose("plan.attention", "scaled_dot_product_attention picks a flash kernel")
    yield from habits("trainers", "switches")


def _sharding_pieces(run: TrainerRun, words: Words) -> Iterator[Piece]:
    yield from habits("trainers", run.backend)
    if run.backend == "ddp":
        return
    yield Say(words["fsdp"], 2, "plan.shard")
    yield Say(words["reshard"], run.stage == 3, "plan.shard")
    yield Say(words["shard"], run.shard, "plan.shard_degree", "plan.dp")
    yield Say(words["replicate"], run.replicate, "plan.shard_degree", "plan.dp")
    yield from (Say(words[axis], getattr(run, axis), f"plan.{axis}") for axis in ("cp", "tp") if axis in words)


def _zero(scenario: Scenario, run: TrainerRun, words: Words) -> Iterator[Piece]:
    """DeepSpeed's own file. Batches are written out: "auto" would leave them to the Trainer, which has the same."""
    decisions = decisions_of(scenario)
    zero = "deepspeed.zero_optimization"
    yield from habits("trainers", "zero")
    yield Say(f"{zero}.stage", run.stage, "plan.shard")
    yield Fixed("plan.shard_degree", run.dp * run.cp, "all data-parallel ranks")
    yield Say("deepspeed.train_batch_size", run.sequences, "workload.global_batch")
    yield Say("deepspeed.train_micro_batch_size_per_gpu", run.micro, "plan.microbatch")
    yield Say("deepspeed.gradient_accumulation_steps", run.steps, "plan.dp")
    if run.stage:
        whole_step = run.stage == 3
        overlap = bool(decisions.get("plan.overlap.grad-reduce", True))
        yield Say(f"{zero}.overlap_comm", overlap, *OVERLAPPED[: 1 + whole_step])
        if whole_step and decisions.get("plan.overlap.param-gather", overlap) != overlap:
            yield Lose("plan.overlap.param-gather", "overlap_comm switches reduction and gathering together")
    if run.cp > 1:
        yield Say(words["sp"], run.cp, "plan.cp")
    if run.tp > 1:
        yield Say("deepspeed.tensor_parallel.autotp_size", run.tp, "plan.tp")
        overlaps_tp = bool(decisions.get("plan.overlap.tp"))
        yield Say("deepspeed.tensor_parallel.tp_overlap_comm", overlaps_tp, "plan.overlap.tp")
    yield from habits("trainers", "zero_mesh")
    stored_format = scenario.plan.precision.weights.id
    stored_format = stored_format if stored_format in FORMATS else "bf16"
    if stored_format != "fp32":
        yield Say(f"deepspeed.{stored_format}.enabled", True, "plan.precision.weights")
    gradients = str(decisions_of(scenario)["plan.precision.gradients"])
    if gradients not in FORMATS or (not run.stage and gradients != stored_format):
        yield Lose("plan.precision.gradients", f"without ZeRO they are added up in {stored_format}; bf16, fp16 or fp32")
        gradients = stored_format
    yield Say("deepspeed.communication_data_type", gradients, "plan.precision.gradients")
    if run.stage:
        yield Say("deepspeed.data_types.grad_accum_dtype", gradients, "plan.precision.gradients")
    master = "none" if stored_format == "fp32" else "fp32"
    yield Fixed("workload.optimizer.master", master, "16-bit weights get a copy in fp32, fp32 weights none")


def trainer_export(id: str, scenario: Scenario, pieces: Iterable[Piece], command: NodeCommand) -> Export:
    """The tables of options as files, and the launch scripts."""
    ledger = account_run(id, scenario, pieces)
    tables = nest_options(ledger.options)
    files = {f"{name}.yaml": yaml_text(tables[name]) for name in ("accelerate", "train") if name in tables}
    files |= {ZERO: json_text(tables["deepspeed"])} if "deepspeed" in tables else {}
    return export_run(id, scenario, ledger, files, command)


def json_text(table: JsonMapping) -> str:
    """A table as DeepSpeed's file has it."""
    return json.dumps(table, indent=2) + "\n"


def by_accelerate(scenario: Scenario, program: str, note: str) -> NodeCommand:
    """`accelerate launch` of a Python module and its arguments, a process for each chip of the node."""
    words = ("accelerate", "launch", "--config_file", "accelerate.yaml")
    allocator = growing_segments(scenario.system)
    return NodeCommand(words=words, per_chip=False, tail=f"{STARTED}{program}", before=note, environment=allocator)


def by_torchrun(scenario: Scenario, program: tuple[str, ...], note: str) -> NodeCommand:
    """torchrun of a Python module and its arguments."""
    return NodeCommand(words=("-m", *program), before=note, environment=growing_segments(scenario.system))


def constants(table: str, section: str, prefix: str = "train.") -> Iterator[Say]:
    """Options that are the same for every run: what a first one needs beside the decisions."""
    return (Say(f"{prefix}{option}", value) for option, value in values(table, section).items())


def launch_pieces(scenario: Scenario, run: TrainerRun) -> Iterator[Piece]:
    """What `accelerate launch` is told beside the mesh."""
    nodes, _ = nodes_of(scenario.system)
    kind = "NO" if scenario.system.chips == 1 and run.backend == "ddp" else TYPES[run.backend]
    yield Say("accelerate.compute_environment", "LOCAL_MACHINE")
    yield Say("accelerate.distributed_type", kind)
    yield Say("accelerate.num_machines", nodes)
    yield Say("accelerate.num_processes", scenario.system.chips)
    yield from constants("trainers", "launch", "accelerate.")
    if kind != "NO":
        yield Say("accelerate.distributed_type", kind, "plan.shard")
    if run.backend == "fsdp2":
        yield from constants("trainers", "wrapped", f"{FSDP}_")
    if run.backend == "deepspeed":
        yield Say("accelerate.deepspeed_config.deepspeed_config_file", ZERO)
        yield Say("accelerate.deepspeed_config.zero3_init_flag", run.stage == 3)
        yield Say("accelerate.deepspeed_config.deepspeed_multinode_launcher", "standard")
