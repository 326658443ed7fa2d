"""Turn NxD Training's words about plan and workload into settings of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ridgeline.models.spec import ModelSpec
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.nxd_training.names import ADAPTERS, ENGINE, MESH, MODULES, PEFT, WIDE
from ridgeline.targets.nxd_training.write_plan import even
from ridgeline.targets.option_reader import OptionReader
from ridgeline.targets.target import Unread

PARTS = {word: part for names in MODULES.values() for part, word in names.items()}
FORMATS = ("bf16SR", "fp32", "autocast", "mixed_precision", "mixed_precisionSR", "manual")


def plan_of(reader: OptionReader, mesh: Mapping[str, int], spec: ModelSpec | None) -> dict[str, Any]:
    """The plan; layers of its stages where the file cuts them."""
    plan: dict[str, Any] = {"engine": ENGINE, **{axis: mesh[axis] for axis in ("tp", "pp", "cp")}}
    if spec is not None and has_experts(spec):
        plan |= {"ep": mesh["ep"], "etp": mesh["tp"]}
    plan["microbatch"] = reader.degree("data.micro_batch_size")
    parallel = reader.switch(f"{MESH}.sequence_parallel", default=False)
    if mesh["tp"] > 1:
        plan["sequence_parallel"] = parallel
    elif not parallel:
        why = "ranks of one chip hold the sequence twice: read as if they shared it"
        reader.notes.append(Unread(option=f"{MESH}.sequence_parallel", value="false", why=why, matters=True))
    if mesh["pp"] > 1:
        plan |= _stages(reader, mesh, spec.layers if spec is not None else 0)
    plan["shard"] = "zero1" if reader.switch(f"{MESH}.zero1", default=True) else "none"
    plan["recompute"] = _recompute(reader, mesh["cp"] > 1)
    plan["attention"] = _attention(reader, mesh)
    plan["precision"] = _formats(reader, plan["shard"] == "zero1")[0]
    return plan


def _stages(reader: OptionReader, mesh: Mapping[str, int], layers: int) -> dict[str, Any]:
    chunks, cuts = mesh["chunks"], reader.take("model.pipeline_cuts")
    found: dict[str, Any] = {"schedule": {"name": "interleaved", "chunks": chunks} if chunks > 1 else "1f1b"}
    stages = mesh["pp"] * chunks
    if isinstance(cuts, list) and len(cuts) == stages - 1 and layers:
        last = [int(digits) for cut in cuts if (digits := str(cut).rpartition(".")[2]).isdigit() and len(digits) < 6]
        ends = [-1, *last, layers - 1]
        held = [after - before for before, after in pairwise(ends)]
        if len(last) == len(cuts) and min(held) > 0:
            return found | {"placement": held}
        cuts = None
    if layers and layers % stages:
        found["placement"] = list(even(layers, stages))
    return found


def _recompute(reader: OptionReader, ring: bool) -> dict[str, Any]:
    """Whole layers, or modules by class. Llama's attention is recomputed unless a fused kernel takes its place."""
    kinds = {"selective": "selective", "full": "full", "none": "none"}
    kind = reader.word("model.activations_checkpoint_granularity", among=kinds, default="none")
    modules = reader.take("model.activations_checkpoint_recompute")
    names = [str(name) for name in modules] if isinstance(modules, list) else []
    if kind == "full":
        return {"kind": kind}
    fused = ring or reader.options.get("model.fusions.flash_attention") is True
    if kind == "none" or not names:
        whole = fused or (kind == "none" and "moe" in {key.split(".")[1] for key in reader.options if "." in key})
        return {"kind": "none"} if whole else {"kind": "selective", "parts": ["attention"]}
    parts = {PARTS[name] for name in names if name in PARTS} | ({"moe"} if "MoE" in names else set())
    if fused and "attention" in parts:
        parts.remove("attention")
        reader.assumptions.append("CoreAttention is not recomputed: a fused kernel takes its place")
    strange = [name for name in names if name not in PARTS and name != "MoE"]
    if strange:
        why, option = "not a module whose recompute is priced", "model.activations_checkpoint_recompute"
        reader.notes.append(Unread(option=option, value=", ".join(strange)[:80], why=why, matters=True))
    return {"kind": "selective", "parts": sorted(parts)} if parts else {"kind": "none"}


def _attention(reader: OptionReader, mesh: Mapping[str, int]) -> str:
    fused = [reader.switch(f"model.fusions.{name}", default=False) for name in ("flash_attention", "ring_attention")]
    reader.take("model.fusions.softmax"), reader.take("model.transpose_nki_inputs")
    return "flash" if any(fused) or mesh["cp"] > 1 else "unfused"


def _formats(reader: OptionReader, sharded: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Formats of the plan, and of the optimizer."""
    kind = reader.word("precision.type", among={name: name for name in FORMATS}, default="mixed_precision")
    master = wide = kind in ("mixed_precision", "mixed_precisionSR", "autocast")
    if kind == "manual":
        master = reader.switch("precision.master_weights", default=False)
        wide = reader.switch("precision.fp32_grad_acc", default=False)
    if kind == "fp32":
        return {"name": "fp32"}, {"master": None, "states": "fp32"}
    master, wide = master and sharded, wide and sharded
    word = str(reader.take("model.optim.name", default="adamw"))
    states = "fp32" if master or word == WIDE else "bf16"
    kept = {"master": "fp32" if master else None, "states": states}
    return {"name": "bf16", "gradients": "fp32" if wide else "bf16"}, kept


def workload_of(reader: OptionReader) -> dict[str, Any]:
    """What is trained, on how many tokens."""
    names = {"adamw": "adamw", WIDE: "adamw", "adam": "adam", "sgd": "sgd", "adafactor": "adafactor"}
    sharded = reader.switch(f"{MESH}.zero1", default=True)
    optimizer = {"name": reader.word("model.optim.name", among=names, default="adamw"), **_formats(reader, sharded)[1]}
    optimizer["master"] = optimizer["master"] or "none"
    found: dict[str, Any] = {"kind": "train", "seq": reader.count("model.encoder_seq_length", "data.seq_length")}
    reader.take("data.seq_length")
    found["global_batch"] = reader.count("data.global_batch_size")
    found["optimizer"] = optimizer
    tuned = [name for name in reader.options if name.startswith("model_alignment_strategy")]
    if tuned or reader.switch("data.use_sft_style_data_module", default=False):
        found["packed"] = reader.switch("model_alignment_strategy.sft.packing", "data.packing", default=True)
        found["task"] = "finetune"
    rank = reader.count(f"{PEFT}.lora_rank")
    if rank is not None:
        back: dict[str, list[str]] = {}
        for target, word in ADAPTERS.items():
            back.setdefault(word, []).append(target)
        modules = reader.take(f"{PEFT}.target_modules")
        names_of = [str(one) for one in modules] if isinstance(modules, list) else ["qkv_proj"]
        targets = [target for word in names_of for target in back.get(word, [])]
        found |= {"task": "lora", "lora": {"rank": rank, "targets": targets or ["qkv"]}}
    return found
