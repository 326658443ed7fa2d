"""Side door for whoever reads what real engines left: results of load generators, request logs, recordings, traces."""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
