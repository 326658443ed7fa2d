"""Side door for whoever prices many plans, or one under many parameters, in one pass."""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
