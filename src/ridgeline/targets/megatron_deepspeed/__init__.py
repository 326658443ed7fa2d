"""Megatron-DeepSpeed: Megatron's arguments with DeepSpeed's engine below; read, not written."""

from __future__ import annotations

from ridgeline.targets.megatron_deepspeed.read import read, recognises
from ridgeline.targets.target import Target, not_written

TARGET = Target(
    id="megatron-deepspeed", write=not_written("megatron-deepspeed", "deepspeed"), read=read, recognises=recognises
)
