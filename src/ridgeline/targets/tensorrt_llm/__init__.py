"""TensorRT-LLM: the YAML of `trtllm-serve` and a launch script, and such files read back."""

from __future__ import annotations

from ridgeline.targets.target import Target
from ridgeline.targets.tensorrt_llm.names import ID
from ridgeline.targets.tensorrt_llm.read import read, recognises
from ridgeline.targets.tensorrt_llm.write import write

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
