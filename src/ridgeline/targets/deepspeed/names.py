"""Which words of DeepSpeed mean what: ZeRO stages, optimizers, number formats, sequence parallelism."""

from __future__ import annotations

ID = "deepspeed"

STAGES = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}
OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "lion": "Lion", "muon": "Muon", "sgd": "SGD", "adafactor": "Adafactor"}
FORMATS = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
CP = "sequence_parallel_size"
