"""Axolotl: a YAML of its trainer, with DeepSpeed's file beside it, and such files read back."""

from __future__ import annotations

from ridgeline.targets.axolotl.names import ID
from ridgeline.targets.axolotl.read import read, recognises
from ridgeline.targets.axolotl.write import write
from ridgeline.targets.target import Target

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
