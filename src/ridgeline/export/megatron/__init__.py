"""Megatron-LM: arguments of pretrain_gpt.py in a shell script, and such scripts read back."""

from __future__ import annotations

from ridgeline.export.megatron.read import looks_like, read
from ridgeline.export.megatron.write import ID, write
from ridgeline.export.options import options
from ridgeline.export.target import Target

TARGET = Target(
    id=ID,
    title="Megatron-LM",
    version=options(ID).version,
    source=options(ID).source,
    write=write,
    read=read,
    recognises=looks_like,
)
