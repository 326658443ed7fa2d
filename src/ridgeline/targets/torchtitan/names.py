"""Which words of torchtitan mean what: flavors of models, pipeline schedules, context exchange, narrow formats."""

from __future__ import annotations

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
