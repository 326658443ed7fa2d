"""Scenarios whose exports Megatron and Megatron-Bridge are asked about: plans of every kind, on several models."""

from __future__ import annotations

from typing import Any

import ridgeline
from ridgeline.plan.scenario import Scenario

DENSE: tuple[dict[str, Any], ...] = (
    {},
    {"tp": 4, "shard": "zero1"},
    {"tp": 2, "pp": 2, "cp": 2, "shard": "zero1", "microbatch": 2},
    {"tp": 2, "cp": 2, "cp_kind": "all-to-all"},
    {"pp": 4, "schedule": {"name": "interleaved", "chunks": 2}, "shard": "zero1"},
    {"pp": 4, "placement": [7, 9, 9, 7], "shard": "zero1"},
    {"pp": 4, "schedule": {"name": "interleaved", "chunks": 2}, "placement": [3, 4, 4, 4, 5, 4, 4, 4]},
    {"pp": 2, "schedule": {"name": "interleaved", "chunks": 2}, "overlap": {"pp": False}},
    {"pp": 2, "schedule": "zbv"},
    {"shard": "zero2"},
    {"shard": "zero3", "tp": 2},
    {"shard": "zero3", "shard_degree": 8},
    {"shard": "zero1", "shard_degree": 8},
    {"shard": "zero3", "precision": "fp8"},
    {"shard": "zero1", "precision": "fp8", "tp": 2},
    {"shard": "none", "precision": "fp8"},
    {"shard": "zero1", "precision": "fp16"},
    {"shard": "none", "precision": "fp32"},
    {"shard": "zero1", "precision": {"name": "bf16", "gradients": "bf16"}},
    {"recompute": "full"},
    {"recompute": {"kind": "full", "layers": 3}, "pp": 4},
    {"recompute": "selective", "tp": 2},
    {"recompute": {"kind": "selective", "parts": ["mlp", "norm"]}},
    {"recompute": {"kind": "selective", "parts": ["activation"]}},
    {"recompute": {"kind": "full", "layers": [2, 1, 0, 0]}, "pp": 4},
    {"recompute": {"kind": "full", "layers": [2, 1, 0, 0], "rest": "selective"}, "pp": 4},
    {"offload": "optimizer", "shard": "zero1"},
    {"offload": {"optimizer": 0.5}, "shard": "zero1", "overlap": {"offload": True}},
    {"offload": {"activations": 0.5}},
    {"offload": {"activations": 0.5}, "pp": 2},
    {"graph": "partial"},
    {"graph": "full"},
    {"graph": "full", "recompute": "full"},
    {"graph": "partial", "recompute": "full"},
    {"attention": "unfused"},
    {"overlap": {"grad-reduce": False, "param-gather": True}, "shard": "zero1"},
    {"tp": 2, "sequence_parallel": False, "overlap": {"tp": True}},
    {"tp": 2, "overlap": {"tp": True}},
)
SPARSE: tuple[dict[str, Any], ...] = (
    {"ep": 8, "shard": "zero1"},
    {"ep": 4, "tp": 2, "etp": 2, "shard": "zero1"},
    {"ep": 8, "tp": 2, "etp": 1, "pp": 2, "shard": "zero1", "moe_dispatch": "deepep"},
    {"ep": 8, "moe_dispatch": "hybridep", "shard": "zero1"},
    {"ep": 8, "overlap": {"moe": True}, "shard": "zero1"},
    {"ep": 8, "pp": 2, "overlap": {"moe": True}, "shard": "zero1"},
    {"ep": 8, "pp": 2, "overlap": {"moe": True}, "shard": "zero1", "schedule": {"name": "interleaved", "chunks": 2}},
    {"ep": 8, "overlap": {"moe": True}, "shard": "zero1", "recompute": "full"},
    {"ep": 8, "shard": "zero3"},
    {"ep": 8, "shard": "zero1", "recompute": {"kind": "selective", "parts": ["moe"]}},
    {"ep": 8, "shard": "zero1", "recompute": {"kind": "selective", "parts": ["activation", "norm"]}},
    {"ep": 8, "shard": "zero1", "precision": "fp8", "recompute": {"kind": "selective", "parts": ["activation"]}},
    {"ep": 8, "shard": "zero1", "graph": "partial"},
    {"ep": 8, "shard": "zero1", "graph": "full"},
)
WORK: tuple[dict[str, Any], ...] = (
    {"optimizer": "muon"},
    {"optimizer": "lion"},
    {"optimizer": "sgd"},
    {"optimizer": "momentum"},
    {"optimizer": {"name": "adamw", "states": "bf16"}},
    {"optimizer": {"name": "adamw", "states": "fp8-e4m3"}},
    {"task": "finetune"},
    {"task": "lora", "lora": {"rank": 16}},
)
HYBRID: tuple[dict[str, Any], ...] = (
    {"shard": "zero1", "tp": 2},
    {"shard": "zero1", "pp": 2},
    {"pp": 2, "schedule": {"name": "interleaved", "chunks": 2}, "shard": "zero1"},
    {"pp": 2, "placement": [25, 27], "shard": "zero1"},
    {"shard": "zero1", "recompute": "full"},
)
CASES: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    *(("llama3-8b", "h100-sxm", plan, {}) for plan in DENSE),
    *(("qwen3-30b-a3b", "h100-sxm", plan, {}) for plan in SPARSE),
    *(("deepseek-v3", "h100-sxm", plan, {}) for plan in SPARSE),
    *(("llama3-8b", "h100-sxm", {"shard": "zero1"}, work) for work in WORK),
    *(("llama3-8b", "b200-sxm", {"shard": "zero1", "precision": name}, {}) for name in ("mxfp8", "nvfp4")),
    ("deepseek-v3", "h100-sxm", {"ep": 4, "pp": 16, "shard": "zero1", "placement": [3, *[4] * 14, 2]}, {}),
    ("deepseek-v3", "h100-sxm", {"ep": 8, "pp": 4, "shard": "zero1",
                                 "schedule": {"name": "interleaved", "chunks": 4}}, {}),
    *((id, "h100-sxm", {"shard": "zero1"}, {}) for id in
      ("gpt3-6.7b", "gpt-oss-20b", "gemma3-12b", "llama4-scout", "qwen2.5-7b", "mixtral-8x7b")),
    *(("nemotron-h-8b", "h100-sxm", plan, {}) for plan in HYBRID),
    *((id, "h100-sxm", {"shard": "zero1", "ep": 8}, {}) for id in
      ("nemotron3-nano-30b-a3b", "nemotron3-super-120b-a12b", "qwen3-next-80b-a3b")),
    *((id, "h100-sxm", {"shard": "zero1", "tp": 2}, {}) for id in ("mamba2-2.7b", "qwen3.5-9b")),
)  # fmt: skip


def made(model: str, chip: str, plan: dict[str, Any], work: dict[str, Any]) -> Scenario:
    workload = {"seq": 4096, "global_batch": 256, **work}
    table = {"model": model, "system": f"64x{chip}", "workload": workload, "plan": {"engine": "megatron-core", **plan}}
    return ridgeline.scenario(table)
