"""MindSpeed-LLM on Ascend: arguments of its pretrain_gpt.py in a shell script, and such scripts read back."""

from __future__ import annotations

from ridgeline.targets.mindspeed.names import ID
from ridgeline.targets.mindspeed.read import read, recognises
from ridgeline.targets.mindspeed.write import write
from ridgeline.targets.target import Target

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
