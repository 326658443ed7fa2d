"""torchtitan from 0.3 on: a configuration function in Python, and such functions read back."""

from __future__ import annotations

from ridgeline.targets.target import Target
from ridgeline.targets.torchtitan_preset.names import ID
from ridgeline.targets.torchtitan_preset.read import read, recognises
from ridgeline.targets.torchtitan_preset.write import write

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
