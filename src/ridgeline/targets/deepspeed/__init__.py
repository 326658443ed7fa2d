"""DeepSpeed: a ds_config.json, and such files read back."""

from __future__ import annotations

from ridgeline.targets.deepspeed.names import ID
from ridgeline.targets.deepspeed.read import read, recognises
from ridgeline.targets.deepspeed.write import write
from ridgeline.targets.target import Target

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
