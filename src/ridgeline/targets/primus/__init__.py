"""Primus, AMD's launcher: an experiment (YAML) of its Megatron backend, and such files read back."""

from __future__ import annotations

from ridgeline.targets.primus.names import ID
from ridgeline.targets.primus.read import read, recognises
from ridgeline.targets.primus.write import write
from ridgeline.targets.target import Target

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
