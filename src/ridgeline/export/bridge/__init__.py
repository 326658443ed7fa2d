"""Megatron-Bridge: a recipe that returns a ConfigContainer, and published recipes read back."""

from __future__ import annotations

from ridgeline.export.bridge.read import read, recognises
from ridgeline.export.bridge.write import ID, write
from ridgeline.export.target import Target

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
