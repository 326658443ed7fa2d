"""NeMo 1: the YAML of megatron_gpt_pretraining.py and of NeMo's launcher; read, not written."""

from __future__ import annotations

from ridgeline.targets.nemo.read import read, recognises
from ridgeline.targets.target import Target, not_written

TARGET = Target(id="nemo", write=not_written("nemo", "megatron-bridge"), read=read, recognises=recognises)
