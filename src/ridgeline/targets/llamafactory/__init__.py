"""LLaMA-Factory: a YAML of its trainer, with Accelerate's or DeepSpeed's file beside it, and such files read back."""

from __future__ import annotations

from ridgeline.targets.llamafactory.names import ID
from ridgeline.targets.llamafactory.read import read, recognises
from ridgeline.targets.llamafactory.write import write
from ridgeline.targets.target import Target

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
