"""Algorithms on a graph as fluid flows that share links: path choice, messages, max-min rates, other seeds."""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
