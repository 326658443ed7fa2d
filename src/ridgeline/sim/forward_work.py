"""Side door for whoever fits serving parameters: nominal work of engine steps, and what parameters make of it."""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
