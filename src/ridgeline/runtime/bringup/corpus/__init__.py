"""The built-in faults of the fake device, by name, and which of them were frozen before the limits were tuned.

FAULTS     every fault: name -> what answers for an op
FROZEN     names that were not looked at while tuning (`frozen`)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.runtime.bringup.corpus import attention, functions, lookups, movement, products, rows, training
from ridgeline.runtime.bringup.corpus.frozen import FROZEN
from ridgeline.runtime.bringup.emulation import Alter

__all__ = ["FAULTS", "FROZEN", "MODULES", "PREFIX"]

PREFIX = "fault_"
MODULES = products, attention, rows, functions, movement, lookups, training

FAULTS: Mapping[str, Alter] = MappingProxyType({
    name.removeprefix(PREFIX): value
    for module in MODULES for name, value in vars(module).items() if name.startswith(PREFIX)
})  # fmt: skip
