"""Side door for whoever prices steps: tables of ops, rates that chips sustain, and prices of every op."""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
