"""Hugging Face Accelerate and TRL: a launch configuration and training arguments, and such files read back."""

from __future__ import annotations

from ridgeline.targets.accelerate.names import ID
from ridgeline.targets.accelerate.read import read, recognises
from ridgeline.targets.accelerate.write import write
from ridgeline.targets.target import Target

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
