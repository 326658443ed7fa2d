"""What LLaMA-Factory calls things; `train.` stands in train.yaml, `accelerate.` in accelerate.yaml."""

from __future__ import annotations

from ridgeline.targets.hf_run import FSDP, MESH

ID = "llamafactory"

WORDS = {
    "model": "train.model_name_or_path",
    "attention": "train.flash_attn",
    "flash": "fa2",
    "seq": "train.cutoff_len",
    "packed": "train.packing train.neat_packing",
    "images": "packed with text",
    "micro": "train.per_device_train_batch_size",
    "steps": "train.gradient_accumulation_steps",
    "bf16": "train.bf16",
    "fp16": "train.fp16",
    "pure": "train.pure_bf16",
    "mixed": "accelerate.mixed_precision",
    "recompute": "train.disable_gradient_checkpointing",
    "recompute_off": "the option switches it off",
    "optimizer": "train.optim",
    "muon": "train.use_muon=true",
    "compiled": "train.torch_compile",
    "rank": "train.lora_rank",
    "adapters": "train.lora_target",
    "adapters_joined": "names joined by commas",
    "fsdp": f"{FSDP}_version",
    "reshard": f"{FSDP}_reshard_after_forward",
    "offload": f"{FSDP}_offload_params",
    "shard": f"{MESH}_dp_shard_size",
    "replicate": f"{MESH}_dp_replicate_size",
}
STAGES = {"pretrain": "pt", "finetune": "sft", "lora": "sft"}
