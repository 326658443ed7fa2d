"""Which words of torchtitan mean what: flavors of models, pipeline schedules, context exchange, narrow formats."""

from __future__ import annotations

from typing import Any

ID = "torchtitan"

# (model.name, model.flavor) -> catalog id; flavors that differ only in their attention kernel are read, not written
FLAVORS = {
    ("llama3", "8B"): "llama3-8b",
    ("llama3", "70B"): "llama3-70b",
    ("llama3", "405B"): "llama3.1-405b",
    ("qwen3", "0.6B"): "qwen3-0.6b",
    ("qwen3", "1.7B"): "qwen3-1.7b",
    ("qwen3", "4B"): "qwen3-4b",
    ("qwen3", "8B"): "qwen3-8b",
    ("qwen3", "14B"): "qwen3-14b",
    ("qwen3", "32B"): "qwen3-32b",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
    ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
}
# flavors that are read and not written
ALSO_FLAVORS = {
    ("llama3", "1B"): "llama3.2-1b",
    ("llama3", "3B"): "llama3.2-3b",
    ("llama4", "17bx16e"): "llama4-scout",
    ("llama4", "17bx128e"): "llama4-maverick",
    ("qwen3_5", "9B"): "qwen3.5-9b",
    ("qwen3_5", "27B"): "qwen3.5-27b",
    ("qwen3_5", "35B-A3B"): "qwen3.5-35b-a3b",
    ("qwen3_5", "122B-A10B"): "qwen3.5-122b-a10b",
    ("qwen3_5", "397B-A17B"): "qwen3.5-397b-a17b",
    ("kimi_k2_7", "Kimi-K2.5"): "kimi-k2.5",
    ("kimi_k2_7", "moonlight-16B-A3B"): "moonlight-16b-a3b",
}
# flavors whose published model shares the matrix of its embedding, and whose own does not
UNTIED = {
    ("qwen3_5", "0.8B"): "qwen3.5-0.8b",
    ("qwen3_5", "2B"): "qwen3.5-2b",
    ("qwen3_5", "4B"): "qwen3.5-4b",
}
_QWEN3 = {"heads": 16, "kv_heads": 8, "head_dim": 128, "qk_norm": "head"}
_SMALL = {"hidden": 256, "vocab": 2048}
# models that the software's own tests train, as tables of dimensions
DEBUG: dict[tuple[str, str], dict[str, Any]] = {
    ("gpt_oss", "debugmodel"): {
        **_SMALL,
        "name": "torchtitan's small gpt-oss",
        "layers": 4,
        "pattern": ["local", "full"],
        "attention": {"heads": 64, "kv_heads": 8, "head_dim": 64, "qkv_bias": True, "out_bias": True, "sinks": True},
        "moe": {"experts": 8, "topk": 4, "hidden": 2880, "bias": True, "router_bias": True},
        "block": {"local": {"attention": {"window": 128}}, "full": {}},
    },
    ("llama3", "debugmodel"): {
        **_SMALL,
        "name": "torchtitan's small Llama 3",
        "layers": 6,
        "attention": {"heads": 16, "kv_heads": 16, "head_dim": 16},
        "mlp": {"hidden": 768},
    },
    ("qwen3", "debugmodel"): {
        **_SMALL,
        "name": "torchtitan's small Qwen3",
        "layers": 8,
        "tied": True,
        "attention": _QWEN3,
        "mlp": {"hidden": 3072},
    },
    ("qwen3", "debugmodel_moe"): {
        **_SMALL,
        "name": "torchtitan's small Qwen3 with experts",
        "layers": 8,
        "attention": _QWEN3,
        "moe": {"experts": 64, "topk": 8, "hidden": 768},
    },
    ("deepseek_v3", "debugmodel"): {
        **_SMALL,
        "name": "torchtitan's small DeepSeek-V3",
        "layers": 6,
        "first_dense": 1,
        "attention": {
            "kind": "mla",
            "heads": 16,
            "q_rank": 0,
            "kv_rank": 512,
            "nope_dim": 128,
            "rope_dim": 64,
            "v_dim": 128,
        },
        "mlp": {"hidden": 1024},
        "moe": {"experts": 8, "topk": 3, "hidden": 256, "shared_hidden": 512},
    },
}
SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zbv": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
METHODS = {"ring": "alltoall"}
# (family, recipe) -> (format, what shares a scale)
CONVERTERS = {
    ("float8", "tensorwise"): ("fp8-e4m3", "tensor"),
    ("float8", "rowwise"): ("fp8-e4m3", "row"),
    ("mx", "mxfp8_cublas"): ("mxfp8", "block"),
}
