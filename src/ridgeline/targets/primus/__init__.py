"""Primus: AMD's launcher, Megatron's words in YAML; read, not written."""

from __future__ import annotations

from ridgeline.targets.primus.read import read, recognises
from ridgeline.targets.target import Target, not_written

TARGET = Target(id="primus", write=not_written("primus", "megatron"), read=read, recognises=recognises)
