"""vLLM: the arguments of `vllm serve` in a launch script, and such command lines read back."""

from __future__ import annotations

from ridgeline.targets.target import Target
from ridgeline.targets.vllm.names import ID
from ridgeline.targets.vllm.read import read, recognises
from ridgeline.targets.vllm.write import write

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
