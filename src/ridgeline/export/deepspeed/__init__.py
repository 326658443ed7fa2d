"""DeepSpeed: a ds_config.json, and such files read back."""

from __future__ import annotations

from ridgeline.export.deepspeed.read import read, recognises
from ridgeline.export.deepspeed.write import write
from ridgeline.export.target import Target

TARGET = Target(id="deepspeed", write=write, read=read, recognises=recognises)
