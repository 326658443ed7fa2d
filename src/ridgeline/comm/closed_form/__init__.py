"""Closed forms of collectives: the wiring of systems as columns, and seconds of an algorithm on them as terms."""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
