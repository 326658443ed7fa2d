"""SGLang: the arguments of its server in a launch script, and such command lines read back."""

from __future__ import annotations

from ridgeline.targets.sglang.names import ID
from ridgeline.targets.sglang.read import read, recognises
from ridgeline.targets.sglang.write import write
from ridgeline.targets.target import Target

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
