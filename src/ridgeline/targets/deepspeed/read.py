"""Turn a ds_config.json into settings of a scenario; the model and the sequence length come from elsewhere."""

from __future__ import annotations

from typing import Any

from ridgeline.targets.deepspeed.names import CP, FORMATS, ID, OPTIMIZERS, STAGES
from ridgeline.targets.option_reader import OptionReader, holds, model_in, only, pick
from ridgeline.targets.target import Files, Imported, Unread

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
    "compile.*": "how the graph is compiled is not priced",
    "expert_parallel.*": "how experts are found in the model is not priced",
    "tensor_parallel.*": "how matrices are found in the model is not priced",
}


def read(files: Files) -> Imported:
    """What a ds_config.json says; the model and the sequence length come from elsewhere."""
    expected = "one JSON file with DeepSpeed's keys, such as zero_optimization or train_batch_size"
    reader = OptionReader(only(files, _is_config, expected, ".json"))
    optimizer = _read_optimizer(reader)
    mesh, zero = _read_mesh(reader), _read_zero(reader)
    plan = mesh | zero | {"overlap": mesh.pop("overlap", {}) | zero.pop("overlap", {})} | _read_formats(reader)
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
    if reader.switch("compile.deepcompile", default=False):
        plan["compiled"] = True
    if batch and micro and steps and batch % (micro * steps) == 0:
        plan["dp"] = batch // (micro * steps)
    reader.assumptions.append("the model and seq are not part of a DeepSpeed configuration")
    settings = pick({"model": model_in(files)}) | {
        "workload": pick({"kind": "train", "global_batch": batch, "optimizer": optimizer}),
        "plan": plan,
    }
    return Imported(
        target=ID,
        settings=settings,
        unread=reader.unread(APART),
        assumptions=tuple(reader.assumptions),
        per_rank=micro * (steps or 1) if micro and batch is None else None,
    )


def _read_mesh(reader: OptionReader) -> dict[str, Any]:
    plan: dict[str, Any] = {"tp": reader.degree("tensor_parallel.autotp_size"), "cp": reader.degree(CP)}
    plan["pp"] = reader.degree("pipeline.stages")
    reader.take("data_parallel_size", "seq_parallel_communication_data_type")
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


def _read_zero(reader: OptionReader) -> dict[str, Any]:
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
    elif reader.switch("zero_optimization.cpu_offload", default=False):
        share = 1.0
    reader.take("zero_optimization.offload_optimizer.pin_memory", "zero_allow_untested_optimizer")
    weights = reader.word("zero_optimization.offload_param.device", among=device, default=0.0)
    if weights or reader.switch("zero_optimization.cpu_offload_params", default=False):
        why = "changes the step: weights in host memory are not priced"
        reader.notes.append(Unread(option="zero_optimization.offload_param", value="cpu", why=why, matters=True))
    kept = reader.switch("activation_checkpointing.cpu_checkpointing", default=False)
    plan["offload"] = {"optimizer": share, "activations": 1.0 if kept else 0.0}
    return plan


def _read_formats(reader: OptionReader) -> dict[str, Any]:
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


def _read_optimizer(reader: OptionReader) -> dict[str, Any]:
    names = {kind: name for name, kind in OPTIMIZERS.items()} | {"onebitadam": "adam", "zerooneadam": "adam"}
    like = dict.fromkeys(("lamb", "onebitlamb"), "adamw") | {"cpuadam": "adamw", "fusedadam": "adamw"}
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
    return holds(files, _is_config, ".json")
