"""vLLM's words for formats, and the knobs of a plan that are arguments of `vllm serve` under the same name."""

from __future__ import annotations

ID = "vllm"

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
KV_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8-e4m3": "fp8_e4m3",
    "fp8-e5m2": "fp8_e5m2",
    "int8": "int8_per_token_head",
    "int4": "int4_per_token_head",
    "nvfp4": "nvfp4",
}
# weights that are quantised while they are loaded: (compute, weights, what shares a scale) -> method
ONLINE = {
    ("fp8-e4m3", "fp8-e4m3", "tensor"): "fp8_per_tensor",
    ("fp8-e4m3", "fp8-e4m3", "row"): "fp8_per_channel",
    ("fp8-e4m3", "fp8-e4m3", "block"): "fp8_per_block",
    ("fp8-e4m3", "fp8-e4m3", None): "fp8",
    ("mxfp8", "mxfp8", "block"): "mxfp8",
    ("mxfp8", "mxfp8", None): "mxfp8",
    ("bf16", "int8", None): "int8_per_channel_weight_only",
    ("nvfp4", "nvfp4", "block"): "nvfp4_per_token",
    ("nvfp4", "nvfp4", None): "nvfp4_per_token",
}
# how a checkpoint that is quantised already is named, where somebody says it: the method -> (compute, weights)
STORED = {"modelopt_fp4": ("nvfp4", "nvfp4"), "mxfp4": ("bf16", "mxfp4"), "modelopt_mxfp8": ("mxfp8", "mxfp8")}
GRAPHS = {"none": "NONE", "partial": "PIECEWISE", "full": "FULL"}
SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling", "scheduler_reserve_full_isl")
NUMBERS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "block_size",
    "gpu_memory_utilization",
    "num_gpu_blocks_override",
    "scheduling_policy",
    "long_prefill_token_threshold",
    "watermark",
)


def option(knob: str) -> str:
    """The argument of a knob.

    >>> option("max_num_seqs")
    '--max-num-seqs'
    """
    return f"--{knob.replace('_', '-')}"
