"""Topology graphs, collective algorithms as data and as closed forms, what libraries choose, and simulations.

The names of `__init__.pyi` are loaded when first used.
"""

from __future__ import annotations

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
