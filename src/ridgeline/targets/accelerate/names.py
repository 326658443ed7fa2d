"""What Accelerate and TRL call things; `train.` stands in train.yaml, `accelerate.` in accelerate.yaml."""

from __future__ import annotations

from ridgeline.targets.hf_run import FSDP, MESH

ID = "accelerate"

WORDS = {
    "model": "train.model_name_or_path",
    "dtype": "train.dtype",
    "attention": "train.attn_implementation",
    "flash": "flash_attention_2",
    "seq": "train.max_length",
    "packed": "train.packing",
    "images": "alone",
    "micro": "train.per_device_train_batch_size",
    "steps": "train.gradient_accumulation_steps",
    "bf16": "train.bf16",
    "fp16": "train.fp16",
    "mixed": "accelerate.mixed_precision",
    "recompute": "train.gradient_checkpointing",
    "optimizer": "train.optim",
    "compiled": "train.torch_compile",
    "rank": "train.lora_r",
    "adapters": "train.lora_target_modules",
    "offload_activations": "train.activation_offloading",
    "fsdp": f"{FSDP}_version",
    "reshard": f"{FSDP}_reshard_after_forward",
    "offload": f"{FSDP}_offload_params",
    "shard": f"{MESH}_dp_shard_size",
    "replicate": f"{MESH}_dp_replicate_size",
    "cp": f"{MESH}_cp_size",
    "sp": f"{MESH}_sp_size",
}
