"""Megatron-DeepSpeed: Megatron's arguments with DeepSpeed's engine below; read, not written."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from ridgeline.core.documents import JsonObject
from ridgeline.models.dimensions import MOST_LAYERS
from ridgeline.targets.dialects.megatron.collect import Given, collect, other_work, speaking
from ridgeline.targets.dialects.megatron.names import pattern_of
from ridgeline.targets.dialects.megatron.read import settings_of, with_model
from ridgeline.targets.imports.run_files import checkout_of
from ridgeline.targets.target import Files, Imported, refusal

ID = "megatron-deepspeed"
SIGNS = re.compile(r"--(deepspeed|zero-stage|deepspeed[-_]config|ds-sequence-parallel-size|moe-expert-parallel-size)\b")
STAGES = {0: "none", 1: "zero1", 2: "zero2", 3: "zero3"}
NOISE = ("deepspeed", "deepspeed-config", "deepspeed-mpi", "no-pipeline-parallel", "create-moe-param-group")


def recognises(files: Files) -> bool:
    """Whether a script passes Megatron's arguments and one that only Megatron-DeepSpeed has."""
    return any(SIGNS.search(text) for text in speaking(files))


def read(files: Files) -> Imported:
    """The settings of a script."""
    run_options = with_model(collect(files), files)
    other_work(run_options)  # before what else such a run lacks
    stated_options = dict(run_options.options)
    config = _config(run_options, files)
    shard, notes = _stage(stated_options, config, run_options.source)
    _layout(stated_options)
    _experts(stated_options)
    _recompute(stated_options, config)
    imported_run = settings_of(replace(run_options, options=stated_options), ID, ID)
    if imported_run.settings["workload"]["kind"] != "train":
        return imported_run
    if imported_run.settings["plan"]["pp"] > 1 and shard in ("zero2", "zero3"):
        notes.append(f"shard = zero1, where the files say {shard}: the pipeline engine shards optimizer states only")
        shard = "zero1"
    inner = (config or {}).get("zero_optimization")
    has_offload = isinstance(inner, dict) and isinstance(inner.get("offload_optimizer"), dict)
    there = has_offload and inner["offload_optimizer"].get("device", "none") in ("cpu", "nvme")  # type: ignore[index]
    changes = {
        "shard": shard,
        **({"offload": {"optimizer": 1.0}} if there or stated_options.get("cpu-optimizer") else {}),
    }
    return imported_run.with_settings(plan=changes).with_notes(after=tuple(notes))


def _config(found: Given, files: Files) -> JsonObject | None:
    """The configuration of DeepSpeed that the run is started with; None where it is not here."""
    name = str(found.options.get("deepspeed-config", ""))
    texts = dict(found.texts or {})
    text = texts.get(name) or next((texts[key] for key in texts if key.split("/")[-1] == name.split("/")[-1]), None)
    folder = checkout_of(files).folder
    if text is None and folder is not None and name and "$" not in name:
        text = checkout_of(files).text(folder / name) or checkout_of(files).text(folder / name.split("/")[-1])
    if text is None:
        return None
    try:
        plain = re.sub(r"\b(CONFIG_[A-Z0-9_]+|[A-Z]+_[A-Z_]+|GBSIZE|MBSIZE)\b", "null", text)
        table = json.loads(re.sub(r",(\s*[}\]])", r"\1", plain))
    except (ValueError, RecursionError):
        return None
    return table if isinstance(table, dict) else None


def _stage(said: JsonObject, config: JsonObject | None, source: str) -> tuple[str, list[str]]:
    """What is sharded: the configuration decides; without it the stage that the script passes."""
    passed_piece = said.pop("zero-stage", None)
    inner = (config or {}).get("zero_optimization")
    stated_values = inner.get("stage") if isinstance(inner, dict) else 0 if config is not None else None
    stage = stated_values if stated_values is not None else passed_piece
    if (isinstance(stage, float) and stage.is_integer()) or (isinstance(stage, str) and stage.isdigit()):
        stage = int(stage)
    if stage is None:
        if "deepspeed" not in said:
            return ("zero1" if said.get("use-distributed-optimizer") else "none"), []
        name = str(said.get("deepspeed-config", "none"))
        expected_text = "the stage of ZeRO, in a DeepSpeed configuration that is here or as --zero-stage"
        todo = "put the configuration beside the script, or say its stage with --env where the script asks for it"
        raise refusal(name[:60], expected_text, path="--deepspeed_config", todo=todo, where=source)
    if type(stage) is not int or stage not in STAGES:
        raise refusal(repr(stage)[:40], "0, 1, 2 or 3", path="--zero-stage", where=source)
    if stage == 0 and "deepspeed" in said and said.get("bf16"):
        return "zero1", ["shard = zero1, where the files say stage 0: DeepSpeed's optimizer for bf16 splits its states"]
    return STAGES[stage], []


def _layout(said: JsonObject) -> None:
    """No pipeline engine without stages; sequences split as Ulysses does."""
    if said.get("no-pipeline-parallel") is True:
        said["pipeline-model-parallel-size"] = 1
    if "embedding" in str(said.pop("pp-partition-method", "")):  # embedding and output count as a layer each
        said |= {"account-for-embedding-in-pipeline-split": True, "account-for-loss-in-pipeline-split": True}
    split = said.pop("ds-sequence-parallel-size", None)
    if type(split) is int and split > 1:
        said |= {"context-parallel-size": split, "cp-comm-type": "a2a"}
    for name in NOISE:
        said.pop(name, None)
    if any(said.pop(f"use-flash-attn-{kind}", None) for kind in ("v2", "v1", "triton")):
        said["use-flash-attn"] = True
    said.setdefault("attention-backend", "flash" if said.get("use-flash-attn") else "unfused")


def _experts(said: JsonObject) -> None:
    """Experts in every second layer unless told otherwise, one for each token."""
    count = said.get("num-experts")
    if count is None:
        said.pop("moe-expert-parallel-size", None)
        return
    counts = count if isinstance(count, list) else [count]
    said["num-experts"] = counts[0] if len({*counts}) == 1 else counts
    if counts[0] == 1 and len({*counts}) == 1:
        said.pop("moe-expert-parallel-size", None)
        return
    interval, layers = said.pop("expert-interval", 2), said.get("num-layers")
    if type(interval) is int and type(layers) is int and interval > 0 and 0 < layers <= MOST_LAYERS:
        said["moe-layer-freq"] = pattern_of(tuple((layer + 1) % interval == 0 for layer in range(layers)))
    said["moe-router-topk"] = said.pop("topk", 1)
    said["expert-model-parallel-size"] = said.pop("moe-expert-parallel-size", 1)
    said.setdefault("expert-tensor-parallel-size", said.get("tensor-model-parallel-size", 1))
    said.setdefault("moe-token-dispatcher-type", "alltoall")


def _recompute(said: JsonObject, config: JsonObject | None) -> None:
    old = [said.pop(name, None) for name in ("checkpoint-activations", "deepspeed-activation-checkpointing")]
    if any(old) and "recompute-granularity" not in said:
        said["recompute-granularity"] = "full"
        said.setdefault("recompute-method", "uniform")
    said.pop("checkpoint-num-layers", None)
    for name in ("bf16", "fp16"):
        table = (config or {}).get(name)
        is_open = "bf16" not in said and (name == "fp16" or "fp16" not in said)
        if isinstance(table, dict) and table.get("enabled") is True and is_open:
            said[name] = True
