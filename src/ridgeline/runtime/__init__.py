"""Measure real machines: the only floor with torch.

It knows no prediction: what it needs of one is handed in as values. The names of `__init__.pyi` are loaded when first
used.
"""

from __future__ import annotations

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
