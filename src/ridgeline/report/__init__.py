"""What people see of results: terminal pages, HTML files, pictures and tables; entries of the catalogs."""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
