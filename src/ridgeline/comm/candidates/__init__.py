"""Algorithms as data that could run on a graph: one builder for each row of the algorithm table.

Builders need bounds and timing, which import scipy. Each is loaded when its steps are first asked for, so that whoever
takes only a closed form from the table does not wait for them.
"""

from __future__ import annotations

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
