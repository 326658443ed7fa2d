"""DeepSpeed: a ds_config.json, and such files read back."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ridgeline.core.documents import JsonObject
from ridgeline.models.spec import Mlp, ModelSpec
from ridgeline.plan.scenario import Scenario, training
from ridgeline.targets.decisions import decisions_of, divisor_below
from ridgeline.targets.dialects.maxtext.write import plain_block, plain_sizes
from ridgeline.targets.dialects.verl.names import weights_of
from ridgeline.targets.imports.option_reader import OptionReader, holds, model_in, nest_options, only, pick
from ridgeline.targets.launchers.launch import NodeCommand, account_run, export_run
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, habits, lose, media_of_the_data
from ridgeline.targets.option_table import imported_run
from ridgeline.targets.recompute_fallback import KEYS, fallback_losses, same_everywhere
from ridgeline.targets.tables import template, words
from ridgeline.targets.target import Export, Files, Imported
from ridgeline.targets.vendors import growing_segments, vendor_of

ID = "deepspeed"

STAGES = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}
OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "lion": "Lion", "muon": "Muon", "sgd": "SGD", "adafactor": "Adafactor"}
FORMATS = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
CP = "sequence_parallel_size"
BODY = template("deepspeed_train.txt")
FILE = "ds_config.json"
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"  # which PyTorch of every age reads
ON_HOST = {"DS_ACCELERATOR": "cpu"}
OURS = ("SGD", "Adafactor")  # torch's own, which ZeRO takes only when told to
SCRIPT = "the script that DeepSpeed wraps (train.py) builds this, not its configuration"
NO_PART = "transformers' LlamaConfig has no such part: your script (train.py) builds the model"
NOTE = "# train.py is your script: it builds the model and the data and calls deepspeed.initialize"
WRITTEN = "# train.py builds the model on made-up data: put your data and weights there; STEPS and MODEL are variables"
CODE = "which layers are recomputed is written in the script (train.py)"
OVERLAPPED = ("plan.overlap.grad-reduce", "plan.overlap.param-gather")


def train_script(scenario: Scenario) -> str | None:
    """train.py; None where the plan or the model takes code of the user's own."""
    mesh, model = scenario.plan.mesh, scenario.model
    config_code, weights_path = llama_config(model), weights_of(model)
    if mesh.pp * mesh.cp * mesh.ep * mesh.etp > 1 or (config_code is None and weights_path is None):
        return None
    recomputes = same_everywhere(scenario).kind != "none"
    return BODY.format(seq=scenario.workload.seq, recompute=recomputes, published=weights_path or "", own=config_code)


def llama_config(model: ModelSpec) -> str | None:
    """The model as the LlamaConfig of transformers, in code; None where its layers are not those of Llama.

    >>> from ridgeline.models.load import MODELS
    >>> llama_config(MODELS["deepseek-v3"]) is None, "head_dim=128" in (llama_config(MODELS["llama3-8b"]) or "")
    (True, True)
    """
    block = plain_block(model)
    if block is None or not isinstance(block[1], Mlp):
        return None
    sizes = plain_sizes(model, *block)
    return f"LlamaConfig({', '.join(f'{word}={sizes[name]}' for name, word in words(ID, 'llama').items())})"


def write(scenario: Scenario) -> Export:
    """ds_config.json and the launch scripts."""
    ledger = account_run(ID, scenario, _pieces(scenario))
    text = json.dumps(nest_options(ledger.options), indent=2) + "\n"
    script = train_script(scenario)
    on_host = vendor_of(scenario.system).device == "cpu"
    environment = ON_HOST if on_host else growing_segments(scenario.system, ALLOCATOR)
    program = ("train.py", "--deepspeed", "--deepspeed_config", FILE)
    command = NodeCommand(words=program, before=WRITTEN if script else NOTE, environment=environment)
    return export_run(ID, scenario, ledger, {FILE: text}, command, {"train.py": script} if script else {})


def _pieces(scenario: Scenario) -> Iterator[Piece]:
    by_script = (f"workload.{path}" for path in ("seq", "packed", "document", "task", "lora.*"))
    yield from lose(SCRIPT, "model.*", *by_script, yours=True)
    embedding = scenario.model.embedding
    own_parts = [name for name in ("width", "norm", "head_bias") if getattr(embedding, name)]
    yield from lose(NO_PART, *(f"model.embedding.{name}*" for name in own_parts), yours=True)
    yield from habits(ID, "script")
    for part in (_pipeline, _batch, _mesh, _experts, _zero, _offload, _formats, _optimizer):
        yield from part(scenario)


def _pipeline(scenario: Scenario) -> Iterator[Piece]:
    """Stages are built by the script; how many layers lie between checkpoints the pipeline engine does read."""
    plan, cover = scenario.plan, same_everywhere(scenario)
    if plan.mesh.pp > 1:
        yield Say("pipeline.stages", plan.mesh.pp)
        built = "pipeline.stages is written but nothing obeys it: PipelineModule(num_stages=...) does"
        yield Lose("plan.pp", built, yours=True)
        yield Lose("plan.placement", "stages are built in the script: PipelineModule(partition_method=...)", yours=True)
    yield from habits(ID, "pipeline")
    if plan.mesh.pp > 1 and cover.kind == "full":
        yield from fallback_losses(scenario, cover, "one interval for all layers")
        yield Say("pipeline.activation_checkpoint_interval", 1, "plan.recompute.kind", "plan.recompute.layers")
        return
    if plan.recompute.kind != "none":
        yield from lose(CODE, *(f"plan.recompute.{key}" for key in KEYS), yours=True)


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
    work, mesh = training(scenario).workload, scenario.plan.mesh
    if work.images or work.videos or work.audio_s:
        yield from media_of_the_data()
        yield Lose("workload.towers", SCRIPT, yours=True)
    shared, why = sequence_ranks(scenario)
    ranks = mesh.dp * mesh.cp // shared
    micro, steps, sequences = scenario.plan.microbatch, scenario.microbatches, work.sequences
    if why:
        yield Lose("plan.dp", f"{why}, and its ranks take data of their own")
        sequences_each = max(1, sequences // ranks)
        micro = divisor_below(sequences_each, micro)
        steps = sequences_each // micro
    if micro * steps * ranks != sequences:
        sequences = micro * steps * ranks
        yield Lose("workload.global_batch", f"{ranks} data-parallel ranks do not share it: written with {sequences}")
    if micro != scenario.plan.microbatch:
        yield Lose("plan.microbatch", f"written as {micro}, for {ranks} data-parallel ranks")
    yield Say("train_batch_size", sequences, "workload.global_batch", "plan.dp")
    yield Say("train_micro_batch_size_per_gpu", micro, "plan.microbatch")
    yield Say("gradient_accumulation_steps", steps, "plan.dp")


def _mesh(scenario: Scenario) -> Iterator[Piece]:
    mesh = scenario.plan.mesh
    if mesh.tp > 1:
        yield Say("tensor_parallel.autotp_size", mesh.tp, "plan.tp")
        yield Say("tensor_parallel.tp_overlap_comm", decisions_of(scenario)["plan.overlap.tp"], "plan.overlap.tp")
    yield from habits(ID, "mesh")
    shared, why = sequence_ranks(scenario)
    if why:
        yield from lose(why, "plan.cp", "plan.cp_kind")
    if shared > 1:
        yield Say(CP, shared, "plan.cp")
        yield Say("data_parallel_size", mesh.dp)  # both make the groups


def _experts(scenario: Scenario) -> Iterator[Piece]:
    mesh, switches = scenario.plan.mesh, scenario.plan.switches
    if mesh.ep > 1:
        yield Say("expert_parallel.enabled", True, "plan.ep")
        yield Say("expert_parallel.autoep_size", mesh.ep, "plan.ep")
        yield Say("expert_parallel.expert_tensor_parallel_size", 1)
        if switches.moe_dispatch == "deepep":
            yield Say("expert_parallel.comm_backend", "deepep", "plan.moe_dispatch")
            tokens = scenario.plan.microbatch * scenario.workload.seq // sequence_ranks(scenario)[0]
            yield Say("expert_parallel.comm_max_tokens_per_rank", tokens)
    yield from habits(ID, "experts")


def _zero(scenario: Scenario) -> Iterator[Piece]:
    plan, decisions = scenario.plan, decisions_of(scenario)
    stage = STAGES[plan.sharding.shard]
    yield Say("zero_optimization.stage", stage, "plan.shard")
    ranks = plan.mesh.dp * plan.mesh.cp
    if stage and plan.shard_degree < ranks:
        if stage == 3 and plan.mesh.ep == 1 and plan.shard_degree > 1:
            yield Say("zero_optimization.zero_hpz_partition_size", plan.shard_degree)
        why = "states are split over all data-parallel ranks (MiCS is gone); hpZ keeps a second copy of weights only"
        yield Lose("plan.shard_degree", why)
    yield Fixed("plan.shard_degree", ranks, "all data-parallel ranks")
    reduce, fetch = decisions.get("plan.overlap.grad-reduce"), decisions.get("plan.overlap.param-gather")
    if stage and (reduce is not None or fetch is not None):
        whole_step = stage == 3
        overlap = bool(reduce if reduce is not None else fetch)
        yield Say("zero_optimization.overlap_comm", overlap, *OVERLAPPED[: 1 + whole_step])
        if whole_step and reduce is not None and fetch is not None and reduce != fetch:
            yield Lose("plan.overlap.param-gather", "overlap_comm switches reduction and gathering together")
    yield from habits(ID, "zero")


def zero_offloads(share: float, stage: int) -> bool:
    """Whether ZeRO can keep this share of the optimizer in host memory: a part of it in stage 3 only."""
    return bool(share and stage) and (share == 1 or stage == 3)


def offload_pieces(share: float, prefix: str = "") -> Iterator[Piece]:
    """ZeRO's words for optimizer states in host memory."""
    place = f"{prefix}zero_optimization.offload_optimizer"
    yield Say(f"{place}.device", "cpu", "plan.offload.optimizer")
    yield Say(f"{place}.pin_memory", True)
    if share < 1:
        yield Say(f"{place}.ratio", share, "plan.offload.optimizer")


def _offload(scenario: Scenario) -> Iterator[Piece]:
    offload, mesh = scenario.plan.offload, scenario.plan.mesh
    optimizer, stage = offload.optimizer, STAGES[scenario.plan.sharding.shard]
    folds_experts = mesh.tp > 1 and mesh.ep > 1
    if zero_offloads(optimizer, stage) and not folds_experts:
        yield from offload_pieces(optimizer)
    elif optimizer:
        why = "a share of the optimizer is offloaded in stage 3 only" if stage else "only ZeRO's optimizer is offloaded"
        yield Lose("plan.offload.optimizer", "refused beside AutoTP with AutoEP: left out" if folds_experts else why)
    yield from habits(ID, "offload")
    if offload.activations == 1:
        yield Say("activation_checkpointing.cpu_checkpointing", True, "plan.offload.activations")


def _formats(scenario: Scenario) -> Iterator[Piece]:
    precision = scenario.plan.precision
    compute, decisions = precision.compute.id, decisions_of(scenario)
    if compute not in FORMATS:
        yield Lose("plan.precision.compute", "products are multiplied in bf16, fp16 or fp32; others are in the model")
        yield Lose("plan.precision.scaling", "DeepSpeed trains in no narrow format")
    stored_format = precision.weights.id if precision.weights.id in FORMATS else "bf16"
    if stored_format != "fp32":
        yield Say(f"{stored_format}.enabled", True, "plan.precision.weights", "plan.precision.compute")
    yield Fixed("plan.precision.compute", stored_format, "products are multiplied as weights are stored")
    yield Fixed("plan.precision.weights", stored_format, "bf16, fp16 or fp32")
    yield Fixed("plan.precision.activations", stored_format, "activations follow the weights")
    gradients = decisions["plan.precision.gradients"]
    if gradients not in FORMATS:
        yield Lose("plan.precision.gradients", "gradients are reduced in bf16, fp16 or fp32")
        return
    yield Say("communication_data_type", gradients, "plan.precision.gradients")
    if sequence_ranks(scenario)[0] > 1:
        yield Say("seq_parallel_communication_data_type", gradients, "plan.precision.gradients")
    if scenario.plan.sharding.shard == "none" and gradients != stored_format:
        yield Lose(
            "plan.precision.gradients", f"without ZeRO they are added up in {stored_format}, and only reduced in this"
        )
        return
    yield Say("data_types.grad_accum_dtype", gradients, "plan.precision.gradients")


def _optimizer(scenario: Scenario) -> Iterator[Piece]:
    work, stage = training(scenario).workload, STAGES[scenario.plan.sharding.shard]
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
    stored_format = scenario.plan.precision.weights.id
    if master == "bf16" == stored_format and stage:
        yield Say("bf16.bf16_master_weights_and_grads", True, "workload.optimizer.master")
        if states == "bf16":
            yield Say("bf16.bf16_optimizer_states", True, "workload.optimizer.states")
    expected_format = "none" if stored_format == "fp32" else "fp32"
    yield Fixed("workload.optimizer.master", expected_format, "16-bit weights get a copy in fp32, fp32 weights none")


def read(files: Files) -> Imported:
    """What a ds_config.json says; the model and the sequence length come from elsewhere."""
    expected_text = "one JSON file with DeepSpeed's keys, such as zero_optimization or train_batch_size"
    reader = OptionReader(only(files, _is_config, expected_text, ".json"))
    optimizer = _read_optimizer(reader)
    mesh, zero = _read_mesh(reader), read_zero(reader)
    if not zero["offload"]["optimizer"] and reader.switch("zero_optimization.cpu_offload"):
        zero["offload"]["optimizer"] = 1.0
    reader.take("zero_optimization.offload_optimizer.pin_memory", "zero_allow_untested_optimizer")
    on_host = reader.switch("activation_checkpointing.cpu_checkpointing")
    zero["offload"]["activations"] = 1.0 if on_host else 0.0
    plan = mesh | zero | {"overlap": mesh.pop("overlap", {}) | zero.pop("overlap", {})}
    plan["precision"] = _read_formats(reader)
    if plan["precision"]["name"] == "fp32" and optimizer["master"] == "fp32":
        optimizer["master"] = "none"  # which are no copy of weights that are fp32 already
    batch = reader.count("train_batch_size")
    micro = reader.count("train_micro_batch_size_per_gpu")
    steps = reader.count("gradient_accumulation_steps")
    if micro is None and steps is None:
        reader.assumptions.append("microbatch = 1: train_micro_batch_size_per_gpu is not given")
    if micro is None and batch is None:  # left to the script
        micro = 1
    plan |= pick({"microbatch": micro, "engine": "deepspeed"})
    if reader.count("pipeline.activation_checkpoint_interval") == 1 and plan["pp"] > 1:
        plan["recompute"] = "full"
    if reader.switch("compile.deepcompile"):
        plan["compiled"] = True
    if batch and micro and steps and batch % (micro * steps) == 0:
        plan["dp"] = batch // (micro * steps)
    reader.assumptions.append("the model and seq are not part of a DeepSpeed configuration")
    workload = {"kind": "train", "global_batch": batch, "optimizer": optimizer}
    settings = {"model": model_in(files), "workload": workload, "plan": plan}
    per_rank = micro * (steps or 1) if micro and batch is None else None
    return imported_run(ID, reader, settings, per_rank=per_rank)


def _read_mesh(reader: OptionReader) -> JsonObject:
    plan: JsonObject = {"tp": reader.degree("tensor_parallel.autotp_size"), "cp": reader.degree(CP)}
    plan["pp"] = reader.degree("pipeline.stages")
    reader.take("data_parallel_size", "seq_parallel_communication_data_type")
    if plan["tp"] > 1:
        plan |= {"sequence_parallel": False}
        plan["overlap"] = {"tp": reader.switch("tensor_parallel.tp_overlap_comm")}
    if plan["cp"] > 1:
        plan["cp_kind"] = "all-to-all"
    if reader.switch("expert_parallel.enabled"):
        plan["ep"] = reader.degree("expert_parallel.autoep_size")
        plan["etp"] = reader.degree("expert_parallel.expert_tensor_parallel_size")
        dispatch = {"comm": "all-to-all", "deepep": "deepep"}
        plan["moe_dispatch"] = reader.word("expert_parallel.comm_backend", among=dispatch, default="all-to-all")
    return plan


def read_zero(reader: OptionReader, prefix: str = "") -> JsonObject:
    """Sharding, overlap and offloaded states by ZeRO's words, below `prefix` in files that hold DeepSpeed's."""
    zero = f"{prefix}zero_optimization"
    shard = reader.word(f"{zero}.stage", among={str(stage): shard for shard, stage in STAGES.items()}, default="none")
    shards_weights = shard == "zero3"
    overlap = reader.switch(f"{zero}.overlap_comm", default=shards_weights) and shard != "none"
    device = {"none": 0.0, "cpu": 1.0, "nvme": 1.0}
    share = reader.word(f"{zero}.offload_optimizer.device", among=device, default=0.0)
    if share:
        share = reader.share(f"{zero}.offload_optimizer.ratio", default=1.0)
    weights = reader.word(f"{zero}.offload_param.device", among=device, default=0.0)
    if weights or (not prefix and reader.switch(f"{zero}.cpu_offload_params")):
        why = f"{'' if prefix else 'changes the step: '}weights in host memory are not priced"
        option = f"{zero}.offload_param.device" if prefix else f"{zero}.offload_param"
        reader.note(option, "cpu", why)
    overlaps = {"grad-reduce": overlap, "param-gather": overlap and shards_weights}
    return {"shard": shard, "overlap": overlaps, "offload": {"optimizer": share}}


def _read_formats(reader: OptionReader) -> JsonObject:
    stored_format = "fp32"
    for name in ("bf16", "fp16"):
        if reader.switch(f"{name}.enabled", "bfloat16.enabled" if name == "bf16" else f"{name}.enabled"):
            stored_format = name
    if stored_format == "fp32" and any(str(reader.take(f"{name}.enabled")) == "auto" for name in ("bf16", "fp16")):
        stored_format = "bf16"
        reader.assumptions.append("precision = bf16: the file leaves it to the script")
    format_kept = reader.word("communication_data_type", "data_types.grad_accum_dtype", among=FORMATS, default=None)
    reader.skip("data_types.grad_accum_dtype")
    gradients = format_kept or stored_format
    return {"name": stored_format, "gradients": gradients}


def _read_optimizer(reader: OptionReader) -> JsonObject:
    names = {kind: name for name, kind in OPTIMIZERS.items()} | {"onebitadam": "adam", "zerooneadam": "adam"}
    like = dict.fromkeys(("lamb", "onebitlamb", "cpuadam", "fusedadam"), "adamw")
    name = reader.word("optimizer.type", among=names | like, default=None)
    if str(reader.options.get("optimizer.type", "")).lower() in ("lamb", "onebitlamb"):
        reader.assumptions.append("optimizer = adamw: Lamb keeps the same states")
    if name is None:
        reader.assumptions.append("optimizer = adamw: the script builds it")
        name = "adamw"
    mode = reader.take("optimizer.params.adam_w_mode")
    if name == "adam" and mode is not False:
        name = "adamw"  # DeepSpeed's Adam decays weights as AdamW does unless told otherwise
    if name == "sgd" and reader.take("optimizer.params.momentum", default=0):
        name = "momentum"
    is_own = reader.switch("bf16.bf16_master_weights_and_grads")
    states = reader.switch("bf16.bf16_optimizer_states")
    return {"name": name, "master": "bf16" if is_own else "fp32", "states": "bf16" if states else "fp32"}


def _is_config(data: JsonObject) -> bool:
    return any(key in data for key in ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"))


def recognises(files: Files) -> bool:
    """A JSON file with DeepSpeed's keys."""
    return holds(files, _is_config, ".json")
