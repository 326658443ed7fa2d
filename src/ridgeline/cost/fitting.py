"""Side door for `calibrate`, which fits what the room prices with: parameters, measured kernels, anchoring runs."""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
