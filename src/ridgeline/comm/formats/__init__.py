"""Files of collective algorithms that libraries execute: read, checked, verified, written."""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
