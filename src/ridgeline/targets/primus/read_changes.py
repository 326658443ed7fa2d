"""Turn what Primus says beside Megatron's words (layers to recompute by number, adapters) into changes of settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ridgeline.models.load import model as load_model
from ridgeline.targets.target import Imported

LORA = {"qkv": "linear_qkv", "out": "linear_proj", "up": "linear_fc1", "gate": "linear_fc1", "down": "linear_fc2"}
RANK = 32  # of Primus's own adapters


def recomputed(found: Imported, ids: Any) -> Imported:
    """Recompute of the layers with these numbers, counted by pipeline rank.

    Layers stand in virtual stages in order, and stages are dealt to ranks in turn.
    """
    plan = dict(found.settings["plan"])
    numbers = {int(number) for number in re.findall(r"\d{1,5}", str(ids))} if ids is not None else set()
    if not numbers or plan.get("recompute") == "none":
        return found
    layers, pp = load_model(found.settings["model"]).layers, plan.get("pp", 1)
    schedule = plan.get("schedule")
    chunks = schedule.get("chunks", 1) if isinstance(schedule, Mapping) else 1
    stages = pp * chunks
    held = plan.get("placement") or [layers // stages + (stage < layers % stages) for stage in range(stages)]
    counts, first = [0] * pp, 0
    for stage, size in enumerate(held):
        counts[stage % pp] += len(numbers & set(range(first, first + size)))
        first += size
    plan["recompute"] = {"kind": "full", "layers": counts if len(set(counts)) > 1 else counts[0]}
    return replace(found, settings={**found.settings, "plan": plan})


def with_adapters(found: Imported, lora: Any) -> Imported:
    """Adapters, where the experiment switches them on."""
    if not isinstance(lora, Mapping) or lora.get("enabled") is not True:
        return found
    words = lora.get("target_modules")
    names = [str(word) for word in words] if isinstance(words, list) else list(LORA.values())
    targets = [target for target, name in LORA.items() if any(name in word for word in names)]
    rank = lora.get("dim", RANK)
    adapters = {"rank": rank if type(rank) is int and rank > 0 else RANK, "targets": targets}
    workload = {**found.settings["workload"], "task": "lora", "lora": adapters}
    return replace(found, settings={**found.settings, "workload": workload})
