"""A collective of a library on a system -> the seconds a benchmark measures, by few fitted numbers per kind of link."""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
