"""MindSpeed-LLM on Ascend: arguments of its pretrain_gpt.py in a shell script, and such scripts read back."""

from __future__ import annotations

from ridgeline.export.mindspeed.read import read, recognises
from ridgeline.export.mindspeed.write import ID, write
from ridgeline.export.target import Target

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
