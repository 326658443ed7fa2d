"""TensorRT-LLM's words: the fields of the YAML file that `trtllm-serve --config` takes."""

from __future__ import annotations

ID = "tensorrt-llm"
FILE = "extra_llm_api_options.yaml"

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
KV_DTYPES = {"fp8-e4m3": "fp8", "nvfp4": "nvfp4"}
DRAFTS = {"mtp": "MTP", "eagle": "Eagle", "ngram": "NGram"}
# the plan's knobs by the fields that they are
KNOBS = {
    "max_batch_size": "max_batch_size",
    "max_num_tokens": "max_num_tokens",
    "max_seq_len": "max_seq_len",
    "capacity_scheduler_policy": "scheduler_config.capacity_scheduler_policy",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "enable_block_reuse": "kv_cache_config.enable_block_reuse",
    "free_gpu_memory_fraction": "kv_cache_config.free_gpu_memory_fraction",
    "tokens_per_block": "kv_cache_config.tokens_per_block",
    "disable_overlap_scheduler": "disable_overlap_scheduler",
}
SWITCHES = ("enable_chunked_prefill", "enable_block_reuse", "disable_overlap_scheduler")
# options of the command line that are fields of the file too
FIELDS = {
    "tensor-parallel-size": "tensor_parallel_size",
    "pipeline-parallel-size": "pipeline_parallel_size",
    "moe-expert-parallel-size": "moe_expert_parallel_size",
    "max-batch-size": "max_batch_size",
    "max-num-tokens": "max_num_tokens",
    "max-seq-len": "max_seq_len",
    "free-gpu-memory-fraction": "kv_cache_config.free_gpu_memory_fraction",
    "enable-chunked-prefill": "enable_chunked_prefill",
}
