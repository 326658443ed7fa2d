"""What Axolotl calls things; `train.` stands in train.yaml."""

from __future__ import annotations

ID = "axolotl"

WORDS = {
    "model": "train.base_model",
    "attention": "train.attn_implementation",
    "flash": "flash_attention_2",
    "seq": "train.sequence_len",
    "packed": "train.sample_packing",
    "packed_cp": "its ring keeps documents apart",
    "micro": "train.micro_batch_size",
    "steps": "train.gradient_accumulation_steps",
    "bf16": "train.bf16",
    "fp16": "train.fp16",
    "pure": "train.bfloat16",
    "recompute": "train.gradient_checkpointing",
    "optimizer": "train.optimizer",
    "muon": "train.optimizer=muon",
    "compiled": "train.torch_compile",
    "rank": "train.lora_r",
    "adapters": "train.lora_target_modules",
    "offload_activations": "train.activation_offloading",
    "fsdp": "train.fsdp_version",
    "reshard": "train.fsdp_config.reshard_after_forward",
    "offload": "train.fsdp_config.offload_params",
    "shard": "train.dp_shard_size",
    "replicate": "train.dp_replicate_size",
    "cp": "train.context_parallel_size",
    "tp": "train.tensor_parallel_size",
}
