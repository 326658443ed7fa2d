"""Turn verl's options of an actor under Megatron into the plan of its update."""

from __future__ import annotations

from typing import Any

from ridgeline.targets.megatron.layout import placement_of
from ridgeline.targets.megatron.names import MODULES, RECIPES
from ridgeline.targets.option_reader import OPEN, OptionReader, pick
from ridgeline.targets.verl.names import DDP, LAYER, MEGATRON, OPTIM

OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "muon": "muon"}


def megatron_plan(reader: OptionReader) -> dict[str, Any]:
    """Mesh, schedule, sharding, recompute and formats of an actor that Megatron trains."""
    degrees = {
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "cp": "context_parallel_size",
        "ep": "expert_model_parallel_size",
    }
    plan: dict[str, Any] = {axis: reader.degree(f"{MEGATRON}.{option}") for axis, option in degrees.items()}
    plan["etp"] = reader.count(f"{MEGATRON}.expert_tensor_parallel_size", default=plan["tp"] if plan["ep"] > 1 else 1)
    plan |= {"engine": "megatron-core", "overlap": {}}
    if plan["tp"] > 1:
        plan["sequence_parallel"] = reader.switch(f"{MEGATRON}.sequence_parallel", default=True)
        plan["overlap"]["tp"] = reader.switch(f"{LAYER}.tp_comm_overlap", default=False)
    kinds = {"p2p": "ring", "a2a": "all-to-all", "all_gather": "ring", "a2a+p2p": "ring"}
    if plan["cp"] > 1:
        plan["cp_kind"] = reader.word(f"{LAYER}.cp_comm_type", among=kinds, default="ring")
    ways = {"alltoall": "all-to-all", "allgather": "all-to-all", "flex": "deepep"}
    way = reader.word(f"{LAYER}.moe_token_dispatcher_type", among=ways, default=None)
    reader.take(f"{LAYER}.moe_enable_deepep")
    plan |= pick({"moe_dispatch": way})
    chunks = reader.degree(f"{MEGATRON}.virtual_pipeline_model_parallel_size")
    if plan["pp"] > 1:
        plan["schedule"] = {"name": "interleaved" if chunks > 1 else "1f1b", "chunks": chunks}
    return plan | _memory(reader, plan) | _formats(reader)


def megatron_placement(reader: OptionReader, plan: dict[str, Any], layers: int) -> dict[str, Any]:
    """Layers are dealt evenly, except that the first and the last stage may be told their share."""
    first = reader.count(f"{LAYER}.num_layers_in_first_pipeline_stage")
    last = reader.count(f"{LAYER}.num_layers_in_last_pipeline_stage")
    stages = plan["pp"] * plan.get("schedule", {}).get("chunks", 1)
    layout = reader.take(f"{LAYER}.pipeline_model_parallel_layout")
    layout = layout.strip("\"'").replace("\\|", "|") if isinstance(layout, str) else layout
    if isinstance(layout, str) and layout.lower() not in OPEN and plan["pp"] > 1:
        held = placement_of(layout)
        if len(held) % plan["pp"] == 0 and len(held) != stages:
            plan["schedule"] = {"name": "interleaved", "chunks": len(held) // plan["pp"]}
        return {"placement": list(held)}
    if plan["pp"] == 1 or not layers or stages > layers:
        return {}
    rest, inner = layers - (first or 0) - (last or 0), stages - (first is not None) - (last is not None)
    each = rest // inner if inner else 0
    if rest < 0 or each * inner != rest:
        reader.assumptions.append("placement: as Ridgeline balances it, for layers that do not divide")
        return {}
    rows = [each] * inner
    return {"placement": [*([first] if first else []), *rows, *([last] if last else [])]}


def _memory(reader: OptionReader, plan: dict[str, Any]) -> dict[str, Any]:
    whole = reader.switch(f"{MEGATRON}.use_megatron_fsdp", default=False)
    split = reader.switch(f"{MEGATRON}.use_distributed_optimizer", default=True)
    found: dict[str, Any] = {"shard": "zero3" if whole else "zero1" if split else "none"}
    plan["overlap"]["grad-reduce"] = reader.switch(f"{DDP}.overlap_grad_reduce", default=False)
    plan["overlap"]["param-gather"] = reader.switch(f"{DDP}.overlap_param_gather", default=False)
    kind = reader.take(f"{LAYER}.recompute_granularity") or "none"
    modules = reader.take(f"{LAYER}.recompute_modules", default=["core_attn"])
    method = reader.take(f"{LAYER}.recompute_method")
    layers = reader.count(f"{LAYER}.recompute_num_layers")
    found["recompute"] = {"kind": kind if kind in ("none", "selective", "full") else "none"}
    if kind == "selective" and isinstance(modules, list):
        found["recompute"]["parts"] = [part for part, name in MODULES.items() if name in modules]
    if kind == "full" and method == "block":
        found["recompute"]["layers"] = layers
    way = f"{OPTIM}.override_optimizer_config"
    if reader.switch(f"{way}.optimizer_cpu_offload", default=False):
        found["offload"] = {"optimizer": reader.share(f"{way}.optimizer_offload_fraction", default=1.0)}
        plan["overlap"]["offload"] = reader.switch(f"{way}.overlap_cpu_optimizer_d2h_h2d", default=False)
    return found


def _formats(reader: OptionReader) -> dict[str, Any]:
    stored = reader.word(f"{MEGATRON}.dtype", among={"bfloat16": "bf16", "float16": "fp16"}, default="bf16")
    precision: dict[str, Any] = {"compute": stored, "weights": stored, "activations": stored, "kv": stored}
    if reader.take(f"{LAYER}.fp8"):
        recipes = {recipe: means for means, recipe in RECIPES.items()} | {"delayed": ("fp8-e4m3", "tensor")}
        means = reader.word(f"{LAYER}.fp8_recipe", among=recipes, default=("fp8-e4m3", "tensor"))
        precision |= {"compute": means[0], "scaling": means[1]}
    wide = reader.switch(f"{DDP}.grad_reduce_in_fp32", default=True)
    precision["gradients"] = "fp32" if wide else stored
    name = reader.word(f"{OPTIM}.optimizer", among=OPTIMIZERS, default="adamw")
    short = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
    states = reader.word(f"{OPTIM}.exp_avg_dtype", among=short, default="fp32")
    reader.take(f"{OPTIM}.exp_avg_sq_dtype")
    if not reader.switch(f"{OPTIM}.use_precision_aware_optimizer", default=False):
        states = "fp32"
    attention = {"flash": "flash", "fused": "flash", "auto": "flash", "unfused": "unfused", "local": "unfused"}
    kernel = reader.word(f"{LAYER}.attention_backend", among=attention, default="flash")
    optimizer = {"name": name, "states": states, "master": "fp32"}
    return {"precision": precision, "optimizer": optimizer, "attention": kernel}
