"""Megatron-LM: arguments of pretrain_gpt.py in a shell script, and such scripts read back."""

from __future__ import annotations

from ridgeline.targets.megatron.names import ID
from ridgeline.targets.megatron.read import read, recognises
from ridgeline.targets.megatron.write import write
from ridgeline.targets.target import Target

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
