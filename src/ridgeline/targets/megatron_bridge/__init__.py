"""Megatron-Bridge: a recipe that returns a ConfigContainer, and published recipes read back."""

from __future__ import annotations

from ridgeline.targets.megatron_bridge.names import ID
from ridgeline.targets.megatron_bridge.read import read, recognises
from ridgeline.targets.megatron_bridge.write import write
from ridgeline.targets.target import Target

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
